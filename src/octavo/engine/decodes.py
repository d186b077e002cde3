"""Plain decodes: the running sequences that get one token in every step, moved on together."""

from collections import Counter

from octavo.engine.batch import ScheduledRange
from octavo.engine.fair_share import Share
from octavo.engine.request import Sequence


class Decodes:
    """Sequences of which a step computes the one last token, samples one, and nothing else is asked.

    A sequence joins once and stays until something happens to it. What a step changes of all of them is one pass over
    them here; the scheduler looks at a single one when it is due: its block is full, or its next token is its last.
    `ranges` is replaced, never changed, so that whoever keeps it sees by identity that nobody has left or joined.
    """

    def __init__(self, block_size: int) -> None:
        self.ranges: list[ScheduledRange] = []
        self.in_flight = False
        self._block_size = block_size
        self._lines: list[tuple[list[int], frozenset[int]]] = []  # of each: where its tokens go, and what stops it
        self._shares = Counter[Share]()  # whose work they are
        self._num_steps = 0
        self._due: dict[int, list[ScheduledRange]] = {}  # by the step whose commit they are due at; some may have left
        self._full: list[ScheduledRange] = []  # whose block is full, since the last step

    def __len__(self) -> int:
        return len(self.ranges)

    @staticmethod
    def suits(sequence: Sequence) -> bool:
        """Whether a running sequence is a plain decode, with nothing of it in flight."""
        start = sequence.num_computed_tokens
        return start >= sequence.decodes_from and start + 1 == len(sequence.token_ids) and not sequence.draft_token_ids

    def join(self, joining: list[Sequence]) -> None:
        """Adds sequences, with blocks reserved for a token more."""
        if not joining:
            return
        self.ranges = self.ranges.copy()
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
            sequence.num_pending_samples = int(self.in_flight)
            self._shares[sequence.share] -= 1
            if not self._shares[sequence.share]:
                del self._shares[sequence.share]
        self.ranges = [one for place, one in enumerate(self.ranges) if place not in places]
        self._lines = [line for place, line in enumerate(self._lines) if place not in places]
        if not self.ranges:  # no commit will take out who is due
            self._due.clear()

    def disband(self) -> None:
        """Takes all of them out."""
        for scheduled in self.ranges:
            scheduled.sequence.decode = None
            scheduled.sequence.num_pending_samples = int(self.in_flight)
        self.ranges, self._lines, self.in_flight = [], [], False
        self._shares.clear()
        self._due.clear()
        self._full.clear()

    def expect(self, sequence: Sequence) -> None:
        """Makes a sequence due at the step that fills the block it is in, or yields the token before its last."""
        assert sequence.decode is not None
        start = sequence.num_computed_tokens
        steps = min(self._block_size - start % self._block_size, sequence.max_length - 1 - start)
        self._due.setdefault(self._num_steps + steps, []).append(sequence.decode)

    def take_full(self) -> list[Sequence]:
        """Those that need a block before they can go on, each told of once."""
        full, self._full = self._full, []
        return [scheduled.sequence for scheduled in full if scheduled.sequence.decode is scheduled]

    def advance(self) -> None:
        """Schedules a token of each."""
        self.in_flight = bool(self.ranges)
        self._num_steps += 1
        for scheduled in self.ranges:
            sequence = scheduled.sequence
            start = scheduled.start = sequence.num_computed_tokens
            sequence.num_computed_tokens = start + 1
        for share, count in self._shares.items():
            share.charge(count, count)

    def commit(self, tokens: list[int]) -> tuple[list[int], list[tuple[ScheduledRange, int]], list[ScheduledRange]]:
        """Appends a token to each. Returns the tokens of those that go on, which `ranges` now are; those that left, as
        their token may be their last, with it; and those that have filled a block.
        """
        places = set()
        for place, ((known, stops), token) in enumerate(zip(self._lines, tokens, strict=True)):
            known.append(token)
            if token in stops:
                places.add(place)
        longest = set()
        for scheduled in self._due.pop(self._num_steps, ()):
            sequence = scheduled.sequence
            if sequence.decode is not scheduled:  # it has left
                continue
            if len(sequence.token_ids) < sequence.max_length:
                self._full.append(scheduled)
            else:
                longest.add(id(scheduled))
        if longest:
            places.update(place for place, scheduled in enumerate(self.ranges) if id(scheduled) in longest)
        ended = [(self.ranges[place], tokens[place]) for place in sorted(places)]
        if places:
            self._take_out(places)
            tokens = [token for place, token in enumerate(tokens) if place not in places]
        self.in_flight = False
        return tokens, ended, [scheduled for scheduled in self._full if scheduled.sequence.decode is scheduled]

    def check(self) -> None:
        """Asserts what the passes rely on; for tests."""
        awaited = {id(scheduled) for due in (*self._due.values(), self._full) for scheduled in due}
        shares = Counter[Share]()
        for scheduled, line in zip(self.ranges, self._lines, strict=True):
            sequence = scheduled.sequence
            assert sequence.decode is scheduled and scheduled.is_current and id(scheduled) in awaited
            assert line[0] is sequence.token_ids and line[1] is sequence.request.stop_token_ids
            assert sequence.num_computed_tokens + 1 == len(sequence.token_ids) + self.in_flight <= sequence.max_length
            shares[sequence.share] += 1
        assert shares == self._shares, "work is charged to others"
        assert self.ranges or not self._due, "those that have left are remembered"
