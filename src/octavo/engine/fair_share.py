"""Whose waiting sequence goes next: shares of the computed work, kept by virtual token counters.

The counters are those of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). Each tenant has one,
which grows with what is computed for it, divided by its weight, and the tenant with the least goes next. One that was
away is lifted to the least of those that wait: what it did not ask for meanwhile, it does not get later. So two tenants
that both keep something waiting differ, weights considered, by no more than the work of what can run at once. The
paper counts its clients; here names are free, so that a new one begins with the most of those that wait: else a client
that takes a new name each time would be served before all others for ever.

The same rule shares a tenant's part among its users, who weigh alike. Each priority class is a world of its own, since
a class gets only what those above it leave: counters of one say nothing in another.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from operator import attrgetter

from octavo.engine.request import Request, Sequence

# Shares in which nothing waits and whose counters are remembered; past it, those that waited last the longest ago are
# forgotten, whatever names clients think of. One that comes back is new, and has gained nothing by that.
MAX_IDLE_SHARES = 1024
NEW = -math.inf  # the counter of a share that has not waited yet

_order = attrgetter("order")


class Share:
    """A node of the tree all > priority class > tenant > user: users have a queue, the others have children."""

    __slots__ = ("children", "counter", "last", "name", "parent", "queue", "start", "unit", "waiting")

    def __init__(self, parent: "Share | None", name: Hashable, counter: float = NEW, unit: float = 1.0) -> None:
        self.parent = self if parent is None else parent
        self.name = name
        self.counter = counter  # the work done over the weight; of a class: its priority
        self.unit = unit  # 1 / weight
        self.children: dict[Hashable, Share] = {}  # that are remembered
        self.waiting: dict[Share, None] = {}  # children that have a sequence to offer
        self.last: Share | None = None  # the child that was the last to have one
        self.queue: list[Sequence] = []  # by `order`
        self.start = 0  # of the queue, how many are passed over

    def charge(self, num_tokens: int, num_rows: int) -> None:
        """Counts work done for a user: 1 for a computed token, and 1 more for a row of logits.

        So a token of the prompt costs 1 and a generated one 2, the weights of the paper; and in full batches on a CPU
        the first is in fact computed about twice as fast (README, Speed).
        """
        cost = num_tokens + num_rows
        tenant = self.parent
        self.counter += cost
        tenant.counter += cost * tenant.unit

    def first(self) -> Sequence:
        """What this share offers: of the child with the least counter, of equal ones whatever came first."""
        share = self
        while share.waiting:
            children = list(share.waiting)
            if len(children) > 1:
                least = min(child.counter for child in children)
                children = [child for child in children if child.counter == least]
            if len(children) > 1:
                return min((child.first() for child in children), key=_order)
            share = children[0]
        return share.queue[share.start]

    def lift(self) -> None:
        """Before it joins those that wait: brings the counter up to theirs, or to that of the last that did."""
        others = [other.counter for other in self.parent.waiting]
        if not others:
            level = 0.0 if self.parent.last is None else self.parent.last.counter
        else:
            level = max(others) if self.counter == NEW else min(others)
        self.counter = max(self.counter, level)


class FairQueue:
    """The sequences that wait. Within a user they are in their `order`, and for one user that is all there is to it."""

    def __init__(self) -> None:
        self._length = 0
        self._turns = -(2**62)  # below any arrival
        self._root = Share(None, None)
        self._idle: dict[Share, None] = {}  # with nothing to offer, longest first; children before their parents
        self._passed: list[Share] = []

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, user by user."""
        shares = [self._root]
        for share in shares:
            yield from share.queue
            shares += share.children.values()

    def push(self, sequence: Sequence) -> None:
        """Lets a sequence wait, from now on or again."""
        user = sequence.share = self._user(sequence.request)
        for share in (user, user.parent):
            if share not in share.parent.waiting:
                share.lift()
        insort(user.queue, sequence, key=_order)
        self._length += 1
        self._offer(user)
        while len(self._idle) > MAX_IDLE_SHARES:
            share = next(iter(self._idle))
            del self._idle[share], share.parent.children[share.name]

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out: it runs now, or has ended."""
        user = sequence.share
        index = bisect_left(user.queue, sequence.order, key=_order)
        assert user.queue[index] is sequence, f"{sequence} does not wait"
        del user.queue[index]
        self._length -= 1
        self._withdraw(user)

    @property
    def priority(self) -> float:
        """The class that goes next; above all where nothing waits."""
        return min((share.counter for share in self._root.waiting), default=math.inf)

    def first(self) -> Sequence | None:
        """The sequence that goes next."""
        return self._root.first() if self._root.waiting else None

    def take_turn(self) -> Sequence | None:
        """The sequence that goes next, whose place is fixed by that: ahead of all whose turn comes later.

        Who gives way to whom among those that run is decided by this order, as it never changes: by the counters, two
        could preempt each other for ever. For one user it is the order of arrival.
        """
        sequence = self.first()
        if sequence is not None and sequence.order[1] >= 0:
            self._turns += 1
            sequence.order = (sequence.order[0], self._turns, sequence.index)
        return sequence

    def pass_over(self, sequence: Sequence) -> None:
        """Leaves out the sequence that goes next, until `recall`."""
        user = sequence.share
        user.start += 1
        self._passed.append(user)
        self._withdraw(user)

    def recall(self) -> None:
        for user in self._passed:
            if user.start:
                user.start = 0
                self._offer(user)
        self._passed.clear()

    def _user(self, request: Request) -> Share:
        share = self._root
        for name, counter, unit in (
            (request.priority, request.priority, 0.0),
            (request.tenant.name, NEW, 1.0 / request.tenant.weight),
            (request.user, NEW, 1.0),
        ):
            child = share.children.get(name)
            if child is None:
                child = share.children[name] = Share(share, name, counter, unit)
            share = child
        return share

    def _offer(self, share: Share) -> None:
        """Makes a user with a queue, and what it is in, known to those above."""
        while share.parent is not share and share not in share.parent.waiting:
            share.parent.waiting[share] = None
            self._idle.pop(share, None)
            share = share.parent

    def _withdraw(self, share: Share) -> None:
        """Undoes `_offer`, as far up as nothing is left to offer."""
        while share.parent is not share and len(share.queue) == share.start and not share.waiting:
            del share.parent.waiting[share]
            share.parent.last = share
            self._idle[share] = None
            share = share.parent

    def check(self) -> None:
        """Asserts the invariants; for tests, walks everything."""
        assert not self._passed and len(list(self)) == self._length, "a sequence got lost"
        shares = [self._root]
        for share in shares:
            assert share.queue == sorted(share.queue, key=_order), "a queue is out of order"
            assert all(sequence.share is share for sequence in share.queue) and share.start == 0
            offers = {child for child in share.children.values() if child.queue or child.waiting}
            assert set(share.waiting) == offers and not offers & self._idle.keys(), "a share's offers are not known"
            shares += share.children.values()
        assert self._idle.keys() <= set(shares), "a share was forgotten but is remembered as idle"
