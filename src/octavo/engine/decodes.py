"""Plain decodes: the running sequences that get one token in every step, moved on together."""

from collections import Counter, deque
from dataclasses import replace
from typing import TypeVar

from octavo.engine.batch import ScheduledRange
from octavo.engine.fair_share import Share
from octavo.engine.request import Sequence

Item = TypeVar("Item")
Line = tuple[list[int], frozenset[int]]
Alone = list[tuple[ScheduledRange, int]]  # ranges that are committed by themselves, with their tokens


class Decodes:
    """Sequences of which a step computes the one last token, samples one, and nothing else is asked.

    A sequence joins once and stays until something happens to it. What a step changes of all of them is one pass over
    them here; the scheduler looks at a single one when it is due: its block is full, or its next token is its last.
    The next step may be scheduled before the last one is committed: whoever is in one is in all later ones too, as
    long as it stays. `ranges` is replaced, never changed, so that whoever keeps it sees by identity that nobody has
    left or joined.
    """

    def __init__(self, block_size: int) -> None:
        self.ranges: list[ScheduledRange] = []
        self._block_size = block_size
        self._lines: list[Line] = []  # of each: where its tokens go, and what stops it
        self._shares = Counter[Share]()  # whose work they are
        self._step = 0  # the last one that was scheduled
        # By the step that fills their block, or samples their last token; some may have left.
        self._due: dict[int, list[ScheduledRange]] = {}
        self._short: list[ScheduledRange] = []  # whose block is full, since the last step
        # Of steps that are not committed: their lines, and whose block they fill.
        self._scheduled: deque[tuple[int, list[Line], list[ScheduledRange]]] = deque()

    def __len__(self) -> int:
        return len(self.ranges)

    @staticmethod
    def suits(sequence: Sequence) -> bool:
        """Whether a running sequence is a plain decode from here on, its last token known or being sampled."""
        start = sequence.num_computed_tokens
        return start >= sequence.decodes_from and start + 1 >= len(sequence.token_ids) and not sequence.draft_token_ids

    def join(self, joining: list[Sequence]) -> None:
        """Adds sequences, with blocks reserved for a token more."""
        if not joining:
            return
        self.ranges, self._lines = self.ranges.copy(), self._lines.copy()
        for sequence in joining:
            start, epoch = sequence.num_computed_tokens, sequence.num_preemptions
            sequence.decode = ScheduledRange(sequence, start, 1, (sequence.index,), epoch=epoch)
            self.ranges.append(sequence.decode)
            self._lines.append((sequence.token_ids, sequence.request.stop_token_ids))
            self._shares[sequence.share] += 1
            self.expect(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Takes a sequence out: it is looked at by itself from now on, or has ended."""
        if sequence.decode is not None:
            self._take_out({self.ranges.index(sequence.decode)})

    def _take_out(self, places: set[int]) -> None:
        for place in places:
            sequence = self.ranges[place].sequence
            sequence.decode = None
            sequence.num_pending_samples = sequence.num_computed_tokens + 1 - sequence.num_known_tokens
            self._shares[sequence.share] -= 1
            if not self._shares[sequence.share]:
                del self._shares[sequence.share]
        self.ranges, self._lines = _without(places, self.ranges), _without(places, self._lines)
        if not self.ranges:
            self._due.clear()
            self._short.clear()
            self._scheduled.clear()

    def disband(self) -> None:
        """Takes all of them out."""
        self._take_out(set(range(len(self.ranges))))

    def expect(self, sequence: Sequence) -> None:
        """Makes a sequence due at the step that fills the block it is in, or samples its last token."""
        assert sequence.decode is not None
        start = sequence.num_computed_tokens
        steps = min(self._block_size - start % self._block_size, sequence.max_length - 1 - start)
        self._due.setdefault(self._step + steps, []).append(sequence.decode)

    def take_short(self) -> list[Sequence]:
        """Those that need a block before they can go on, each told of once."""
        short, self._short = self._short, []
        return [scheduled.sequence for scheduled in short if scheduled.sequence.decode is scheduled]

    def advance(self, step: int) -> list[ScheduledRange]:
        """Schedules a token of each, and returns them. Whose last one will be sampled has left when this returns."""
        ranges = self.ranges
        self._step = step
        for scheduled, (known, _) in zip(ranges, self._lines, strict=True):
            sequence = scheduled.sequence
            start = scheduled.start = sequence.num_computed_tokens
            if start == len(known):
                known.append(-1)
            sequence.num_computed_tokens = start + 1
        for share, count in self._shares.items():
            share.charge(count, count)
        filled, last = list[ScheduledRange](), set[int]()
        for scheduled in self._due.pop(step, ()):
            sequence = scheduled.sequence
            if sequence.decode is not scheduled:  # it has left
                continue
            if sequence.num_computed_tokens + 1 < sequence.max_length:
                filled.append(scheduled)
            else:
                last.add(id(scheduled))
        self._short += filled
        if ranges:
            self._scheduled.append((step, self._lines, filled))
        if last:
            self._take_out({place for place, scheduled in enumerate(ranges) if id(scheduled) in last})
        return ranges

    def commit(
        self, step: int, ranges: list[ScheduledRange], tokens: list[int], num_later: int
    ) -> tuple[list[ScheduledRange], list[int], Alone, list[ScheduledRange]]:
        """Gives its token to each of a step's `ranges`, after which `num_later` more steps have been scheduled.

        Returns those that go on, with their tokens; those that do not, to be committed alone: they have left since, or
        leave now, as their token may be their last; and those that have filled a block.
        """
        alone: Alone = []
        lines, filled = list[Line](), list[ScheduledRange]()
        while self._scheduled and self._scheduled[0][0] <= step:
            _, lines, filled = self._scheduled.popleft()
        if ranges is not self.ranges:
            left = {place for place, scheduled in enumerate(ranges) if scheduled.sequence.decode is not scheduled}
            if left:
                alone = [(ranges[place], tokens[place]) for place in left]
                ranges, lines, tokens = _without(left, ranges), _without(left, lines), _without(left, tokens)
                if ranges == self.ranges:
                    ranges = self.ranges
        ended = set()
        for place, ((known, stops), token) in enumerate(zip(lines, tokens, strict=True)):
            if token in stops:
                ended.add(place)
            elif num_later:
                known[-num_later] = token
            else:
                known.append(token)
        if ended:
            alone += [(ranges[place], tokens[place]) for place in sorted(ended)]
            ids = {id(ranges[place]) for place in ended}
            were_all = ranges is self.ranges
            self._take_out({place for place, scheduled in enumerate(self.ranges) if id(scheduled) in ids})
            ranges, tokens = self.ranges if were_all else _without(ended, ranges), _without(ended, tokens)
        if num_later:
            alone = [(oldest_of(scheduled), token) for scheduled, token in alone]
        return ranges, tokens, alone, [scheduled for scheduled in filled if scheduled.sequence.decode is scheduled]

    def check(self) -> None:
        """Asserts what the passes rely on; for tests."""
        awaited = {id(scheduled) for due in (*self._due.values(), self._short) for scheduled in due}
        shares = Counter[Share]()
        for scheduled, line in zip(self.ranges, self._lines, strict=True):
            sequence = scheduled.sequence
            assert sequence.decode is scheduled and scheduled.is_current and id(scheduled) in awaited
            assert line[0] is sequence.token_ids and line[1] is sequence.request.stop_token_ids
            computed, known = sequence.num_computed_tokens, sequence.num_known_tokens
            assert known <= computed + 1 < sequence.max_length and computed <= len(sequence.token_ids) <= computed + 1
            shares[sequence.share] += 1
        assert shares == self._shares, "work is charged to others"
        assert self.ranges or not self._due, "those that have left are remembered"


def oldest_of(scheduled: ScheduledRange) -> ScheduledRange:
    """A range of a plain decode as the oldest step in flight has it: what follows may have moved it on."""
    return replace(scheduled, start=scheduled.sequence.num_known_tokens - 1)


def _without(places: set[int], items: list[Item]) -> list[Item]:
    return [item for place, item in enumerate(items) if place not in places]
