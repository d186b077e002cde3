"""Where every sequence stands - waiting, running or ended - and the blocks that come and go with that."""

from bisect import bisect_left, insort
from operator import attrgetter

from octavo.engine import beams
from octavo.engine.block_tables import BlockTables, CacheGroup
from octavo.engine.decodes import Decodes
from octavo.engine.fair_share import FairQueue
from octavo.engine.request import Request, Sequence, Status
from octavo.engine.scheduler_config import SchedulerConfig

_order = attrgetter("order")


class Queues:
    """A waiting sequence owns no block, a running one those of its tables, one that has ended none."""

    def __init__(self, config: SchedulerConfig, groups: list[CacheGroup]) -> None:
        self.config = config
        self.tables = BlockTables(groups, config.kv_dtype)
        self.waiting = FairQueue()
        self.running: list[Sequence] = []  # in their order
        self.decodes = Decodes(self.tables.block_size)  # of the running ones, those that only go on
        self.requests: dict[str, list[Sequence]] = {}  # those with an unfinished sequence
        self.num_preemptions = 0
        self._arrivals = 0

    def add(self, request: Request) -> Sequence:
        """Queues a request, as its first sequence."""
        sequence = Sequence(request, 0, self._arrivals, len(self.tables.groups))
        if request.beams is not None:
            sequence.search = beams.BeamSearch(sequence)
        elif request.pooling is None:
            sequence.num_samples = request.params.num_sequences
        self._arrivals += 1
        self.requests[request.request_id] = [sequence]
        self.waiting.push(sequence)
        return sequence

    def admit(self, sequence: Sequence) -> None:
        """Lets a waiting sequence run."""
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_order)
        sequence.status = Status.RUNNING

    def finish(self, sequence: Sequence, reason: str, stop_reason: int | str | None = None) -> None:
        """Ends a sequence and gives its blocks back. Finishing twice changes nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        siblings = self.requests[sequence.request.request_id]
        if all(sibling.status is Status.FINISHED for sibling in siblings):
            del self.requests[sequence.request.request_id]

    def preempt(self, sequence: Sequence) -> None:
        """Puts a running sequence back in the queue without its blocks; outputs of it in flight will be ignored.

        A beam takes all others of its search with it: one sequence waits in their place.
        """
        search, lines = sequence.search, self.requests[sequence.request.request_id]
        if search is not None and len(lines) > 1:
            for line in list(lines):
                self.drop(line)
            sequence = search.gather(len(self.tables.groups))
            lines.append(sequence)
        else:
            self._stop(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(sequence)

    def fork(self, parent: Sequence, index: int) -> Sequence:
        """A sibling with the parent's tokens and, where there is a slot for it to run, all of its blocks."""
        child = Sequence(parent.request, index, parent.order[1], len(self.tables.groups))
        child.token_ids = list(parent.token_ids)
        child.block_keys = list(parent.block_keys)
        child.search = parent.search
        child.num_cached_tokens, child.scheduled_time = parent.num_cached_tokens, parent.scheduled_time
        if parent.search is not None or self.free_places() > 0:  # places are kept for beams
            self.tables.fork(parent, child)
            child.status, child.share = Status.RUNNING, parent.share
            insort(self.running, child, key=_order)
        else:
            self.waiting.push(child)
        self.requests[parent.request.request_id].append(child)
        return child

    def drop(self, sequence: Sequence) -> None:
        """Ends a running sequence of which nothing is told, and gives its blocks back."""
        self._stop(sequence)
        sequence.status = Status.FINISHED
        self.requests[sequence.request.request_id].remove(sequence)

    def publish(self, sequence: Sequence, end: int) -> None:
        """Makes the full blocks of the first `end` positions of a running sequence findable."""
        if self.config.enable_prefix_caching and sequence.status is Status.RUNNING:
            self.tables.publish(sequence, end)

    def free_places(self) -> int:
        """How many sequences may join the running ones."""
        promised = sum(one.search.num_promised for one in self.running if one.search is not None)
        return self.config.max_num_seqs - len(self.running) - promised

    def _stop(self, sequence: Sequence) -> None:
        """Takes a running sequence out, and its blocks from it."""
        index = bisect_left(self.running, sequence.order, key=_order)
        assert self.running[index] is sequence, f"{sequence} does not run"
        del self.running[index]
        self.decodes.leave(sequence)
        self.tables.release(sequence)

    def check(self) -> None:
        """Asserts law L2 and the invariants of sequences; for tests, walks everything."""
        self.waiting.check()
        self.decodes.check()
        assert self.running == sorted(self.running, key=_order), "running sequences are out of order"
        decoding = [sequence for sequence in self.running if sequence.decode is not None]
        assert {id(one.decode) for one in decoding} == set(map(id, self.decodes.ranges)), "one decodes that must not"
        for queue, status in ((self.waiting, Status.WAITING), (self.running, Status.RUNNING)):
            for sequence in queue:
                assert sequence.status is status and sequence in self.requests[sequence.request.request_id]
                assert sequence.num_computed_tokens <= len(sequence.token_ids) + len(sequence.draft_token_ids)
        for sequence in self.waiting:
            assert not any(sequence.block_tables) and sequence.num_computed_tokens == 0, f"{sequence} owns blocks"
        live = sum(sequence.status is not Status.FINISHED for line in self.requests.values() for sequence in line)
        assert live == len(self.waiting) + len(self.running), "a sequence is in no queue"
        self.tables.check(self.running)


def num_places(sequence: Sequence) -> int:
    """How many running sequences come of a waiting one."""
    return 1 if sequence.search is None else sequence.search.width
