"""Which sequences compute which tokens in the next step, and what a finished step changes."""

import logging
import time
from bisect import bisect_left, insort
from operator import attrgetter

from octavo.engine import beams, ranges
from octavo.engine.batch import Batch, Output, RangeOutput, ScheduledRange
from octavo.engine.block_tables import BlockTables, CacheGroup
from octavo.engine.fair_share import FairQueue
from octavo.engine.outputs import SequenceOutput, end_of, news_of
from octavo.engine.request import Request, Sequence, Status, TokenOutput
from octavo.engine.scheduler_config import SchedulerConfig, check_windows
from octavo.engine.speculation import Speculation
from octavo.errors import RequestError, describe

__all__ = ["CacheGroup", "Scheduler", "SchedulerConfig"]

logger = logging.getLogger(__name__)
_order = attrgetter("order")


class Scheduler:
    """Sequences wait by priority, then the share of their tenant, then arrival; they run by priority and turn.

    A running sequence owns the blocks of its tables, a waiting one owns none. Strict order: where the first that
    waits does not fit, those behind it wait too, except past one that waits for a prefix which a running sequence is
    computing. A waiting sequence displaces running ones of lower priority; among equals, one gives way only to those
    whose turn came before its own, so that the first of them always gets to its end. Steps are committed in the order
    in which they were scheduled.
    """

    def __init__(
        self, config: SchedulerConfig, groups: list[CacheGroup], speculation: Speculation | None = None
    ) -> None:
        check_windows(config, groups)
        self.config = config
        self.speculation = speculation or Speculation()
        self.tables = BlockTables(groups, config.kv_dtype)
        self.waiting = FairQueue()
        self.running: list[Sequence] = []
        self.requests: dict[str, list[Sequence]] = {}  # those with an unfinished sequence
        self.num_preemptions = 0
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_query_blocks = 0  # the full blocks of those tokens
        self.num_prefix_hits = 0  # tokens, in whole blocks
        self._arrivals = 0

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that one sequence alone can hold in the cache."""
        return self.tables.max_tokens or self.config.max_model_len

    @property
    def kv_cache_usage(self) -> float:
        """The share of blocks that are not free, of the fullest group."""
        return max(1.0 - pool.num_free / pool.num_blocks for pool in self.tables.pools)

    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.tables.num_in_flight)

    def add(self, request: Request) -> Sequence:
        """Queues a request, as its first sequence."""
        if request.request_id in self.requests:
            raise RequestError(f"Request id {request.request_id!r} is in use.", "request_id")
        self.check_fits(request)
        sequence = Sequence(request, 0, self._arrivals, len(self.tables.groups))
        if request.beams is not None:
            sequence.search = beams.BeamSearch(sequence)
        elif request.pooling is None:
            sequence.num_samples = request.params.num_sequences
        self._arrivals += 1
        self.requests[request.request_id] = [sequence]
        self.waiting.push(sequence)
        return sequence

    def check_fits(self, request: Request) -> None:
        """Raises RequestError where a request could never run. Reads nothing that changes: any thread may ask."""
        # The last token that is sampled is not computed.
        most = len(request.prompt_token_ids) + max(request.max_tokens, 1) - 1
        if not request.prompt_token_ids or most > min(self.max_sequence_tokens, self.config.max_model_len):
            raise RequestError(
                f"A prompt of {len(request.prompt_token_ids)} tokens with max_tokens={request.max_tokens} does not "
                f"fit: the KV cache holds {self.max_sequence_tokens} tokens, the context {self.config.max_model_len}.",
                "max_tokens",
            )
        if (rows := request.params.num_sequences) > self.config.max_output_rows:
            name = "best_of" if request.params.ranks else "n"
            raise RequestError(f"{name} is {rows}; a step samples at most {self.config.max_output_rows} rows.", name)
        beams.check_fits(request, self.config, self.tables.groups)

    def abort(self, request_id: str, reason: str = "abort") -> list[SequenceOutput]:
        """Ends all sequences of a request, whatever they are doing; no request of this id is no error."""
        sequences = list(self.requests.get(request_id, ()))
        indices = [sequence.index for sequence in sequences if sequence.status is not Status.FINISHED]
        if len(sequences) == 1 or (sequences and sequences[0].search is not None):  # not forked, or not told of
            indices = list(range(sequences[0].request.params.num_sequences))
        for sequence in sequences:
            self.finish(sequence, reason)
        return [end_of(request_id, index, reason) for index in indices]

    def finish(self, sequence: Sequence, reason: str, stop_reason: int | str | None = None) -> None:
        """Ends a sequence and gives its blocks back. Finishing twice changes nothing."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            _remove(self.running, sequence)
        else:
            self.waiting.remove(sequence)
        self.tables.release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        siblings = self.requests[sequence.request.request_id]
        if all(sibling.status is Status.FINISHED for sibling in siblings):
            del self.requests[sequence.request.request_id]

    def reset_prefix_cache(self) -> None:
        """Lets no later request find what has been computed so far; what runs keeps its blocks."""
        for pool in self.tables.pools:
            pool.forget()

    def schedule(self) -> Batch | None:
        """The next step, or None where nothing can be computed before a step in flight is committed."""
        tables = self.tables
        batch = Batch(tables.last_step + 1, [], [], [[] for _ in tables.groups])
        if self.running and self.running[-1].order[0] > self.waiting.priority and (head := self.waiting.first()):
            self._yield_to_priority(head)
        if self.speculation.drafter is not None:
            self.speculation.draft(self.running, self.waiting.first(), self.config)
        if self._schedule_running(batch) and self.waiting:
            self._schedule_waiting(batch)
        if not batch.ranges:
            return None
        tables.last_step = batch.step
        tables.num_in_flight += 1
        return batch

    def commit(self, batch: Batch, outputs: list[Output]) -> list[SequenceOutput]:
        """Appends what the oldest step in flight sampled, publishes its full blocks, forks and finishes sequences.

        Every range is committed by itself: one that cannot be ends its request with finish_reason "error".
        """
        if len(outputs) != len(batch.ranges):
            return self.fail(batch, f"The runner returned {len(outputs)} outputs for {len(batch.ranges)} ranges.")
        news: list[SequenceOutput] = []
        for scheduled, output in self._commit_decodes(batch, outputs, news):
            if not scheduled.is_current:
                continue
            told = len(news)
            try:
                if output.error is None:
                    self._commit_range(scheduled, output, news)
                else:
                    news += self._fail_range(scheduled, output.error)
            except Exception as error:
                logger.exception("Request %s ends with an error.", scheduled.sequence.request.request_id)
                news[told:] = self._fail_range(scheduled, describe(error))
        self.tables.retire(batch.step)
        return news

    def fail(self, batch: Batch, error: str) -> list[SequenceOutput]:
        """Ends the requests of the oldest step in flight, whose outputs cannot be had, with finish_reason "error"."""
        news: list[SequenceOutput] = []
        for scheduled in batch.ranges:
            if scheduled.is_current:
                news += self._fail_range(scheduled, error)
        self.tables.retire(batch.step)
        return news

    # Scheduling: how many tokens, in which blocks.

    def _schedule_running(self, batch: Batch) -> bool:
        """Lets running sequences catch up, oldest first; False where one lacked blocks: nobody new may take any."""
        fits, room = True, ranges.room(self.config, batch)
        decodes: list[ScheduledRange] = []
        num_counted = 0  # of the decodes, in the batch's sums
        for sequence in self.running:  # the last ones may be preempted meanwhile
            start = sequence.num_computed_tokens
            is_decode = (
                start >= sequence.decodes_from
                and start + 1 == len(sequence.token_ids)  # nothing of it is in flight then
                and not sequence.draft_token_ids
            )
            if not is_decode or start >= sequence.num_reserved_tokens or not room:
                ranges.count_decodes(decodes[num_counted:], batch)
                num_counted = len(decodes)
                count = self._catch_up(sequence, batch)
                if count < 0:
                    fits = False
                    break
                if count == 0:
                    continue
                if not is_decode:
                    ranges.put(sequence, count, batch)
                    room = ranges.room(self.config, batch)
                    continue
            scheduled = sequence.decode
            if scheduled is None:
                scheduled = sequence.decode = ScheduledRange(
                    sequence, start, 1, (sequence.index,), epoch=sequence.num_preemptions
                )
            scheduled.start = start
            sequence.num_computed_tokens = start + 1
            sequence.num_pending_samples = 1
            decodes.append(scheduled)
            room -= 1
        ranges.count_decodes(decodes[num_counted:], batch)
        batch.ranges[:0] = decodes
        batch.num_decodes = len(decodes)
        return fits

    def _catch_up(self, sequence: Sequence, batch: Batch) -> int:
        """How many tokens of a running sequence go into the step, with blocks reserved for them; -1 where it has to
        wait for blocks, and all behind it too.
        """
        count = ranges.count_tokens(self.config, sequence, batch)
        while count and not self.tables.reserve(sequence, count, batch):
            if sequence.draft_token_ids:  # a guess is not worth another's blocks
                sequence.draft_token_ids.clear()
                count = ranges.count_tokens(self.config, sequence, batch)
                continue
            # Blocks held for a step in flight come back by themselves: take from no more sequences than needed.
            if self.tables.holds_back:
                return -1
            last, search = self.running[-1], sequence.search
            if search is not None and search is last.search and _is_in(search, batch):
                return -1  # the beams of it that have their blocks take this step, what lacks some the next
            self._preempt(last)
            if sequence.status is not Status.RUNNING:
                return -1
        return count

    def _schedule_waiting(self, batch: Batch) -> None:
        """Admits sequences in order, until one does not fit."""
        config, waiting, places = self.config, self.waiting, self._free_places()
        while places > 0 and batch.num_tokens < config.max_num_batched_tokens:
            sequence = waiting.take_turn()
            if sequence is None or places < _num_places(sequence):
                break
            num_hits = self.tables.find_prefix(sequence) if self._reads_cache(sequence) else 0
            if num_hits is None:
                waiting.pass_over(sequence)
                continue
            self.tables.share_prefix(sequence, num_hits)
            count = ranges.count_tokens(self.config, sequence, batch)
            if count == 0 or not self.tables.reserve(sequence, count, batch):
                self.tables.unshare_prefix(sequence)
                break
            waiting.remove(sequence)
            insort(self.running, sequence, key=_order)
            sequence.status = Status.RUNNING
            places -= _num_places(sequence)
            if sequence.scheduled_time == 0.0:
                sequence.scheduled_time = time.monotonic()
                sequence.num_cached_tokens = sequence.num_computed_tokens
                self.num_prefix_queries += sequence.num_prompt_tokens
                self.num_prefix_query_blocks += sequence.num_prompt_tokens // self.tables.block_size
                self.num_prefix_hits += sequence.num_cached_tokens
            ranges.put(sequence, count, batch)
        waiting.recall()

    def _reads_cache(self, sequence: Sequence) -> bool:
        """Whether a prefix hit may count as computed: not where an output is asked of every position."""
        request = sequence.request
        asks_all = request.params.prompt_logprobs is not None or request.pooling not in (None, "last")
        return self.config.enable_prefix_caching and not asks_all

    def _free_places(self) -> int:
        """How many sequences may join the running ones."""
        promised = sum(one.search.num_promised for one in self.running if one.search is not None)
        return self.config.max_num_seqs - len(self.running) - promised

    def _yield_to_priority(self, head: Sequence) -> None:
        """Preempts sequences of lower priority while they keep the first that waits from running."""
        while self.running and self.running[-1].order[0] > head.order[0] and head.waits_for is None:
            if self._free_places() >= _num_places(head) and self.tables.can_hold(len(head.token_ids)):
                return
            self._preempt(self.running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Puts a running sequence back in the queue without its blocks; outputs of it in flight will be ignored.

        A beam takes all others of its search with it: one sequence waits in their place.
        """
        search, lines = sequence.search, self.requests[sequence.request.request_id]
        if search is not None and len(lines) > 1:
            for line in list(lines):
                self._drop(line)
            sequence = search.gather(len(self.tables.groups))
            lines.append(sequence)
        else:
            _remove(self.running, sequence)
            self.tables.release(sequence)
        sequence.status = Status.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(sequence)

    # Committing.

    def _commit_decodes(
        self, batch: Batch, outputs: list[Output], news: list[SequenceOutput]
    ) -> list[tuple[ScheduledRange, RangeOutput]]:
        """Appends the tokens of plain decodes; returns what is left: other ranges, and tokens that end a sequence."""
        left: list[tuple[ScheduledRange, RangeOutput]] = []
        block_size = self.tables.block_size
        for scheduled, output in zip(batch.ranges, outputs, strict=True):
            if not isinstance(output, int):
                left.append((scheduled, output))
                continue
            sequence, end = scheduled.sequence, scheduled.start + 1
            if sequence.decode is not scheduled:  # finished or preempted since
                continue
            request = sequence.request
            if (
                output in request.stop_token_ids
                or end + 1 >= sequence.max_length
                or sequence.num_pending_samples > 1  # then there is a place for the token already
            ):
                left.append((scheduled, RangeOutput([TokenOutput(output)])))
                continue
            sequence.num_pending_samples = 0
            sequence.token_ids.append(output)
            if end % block_size == 0:
                self._publish(sequence, end)
            news.append(SequenceOutput(request.request_id, sequence.index, [output], sequence.num_cached_tokens))
        return left

    def _commit_range(self, scheduled: ScheduledRange, output: RangeOutput, news: list[SequenceOutput]) -> None:
        sequence, end = scheduled.sequence, scheduled.start + scheduled.num_tokens
        num_samples = len(scheduled.sample_indices) * (scheduled.num_drafts + 1)
        if len(output.samples) != num_samples:
            raise ValueError(f"The runner returned {len(output.samples)} tokens for {num_samples} samples.")
        if output.prompt_logprobs:
            sequence.prompt_logprobs += output.prompt_logprobs
        if not scheduled.sample_indices:
            self._publish(sequence, end)
            if sequence.request.pooling is not None and end >= len(sequence.token_ids):
                self.finish(sequence, "stop")
                news.append(news_of(sequence, [], [], False))
                news[-1].vector = output.vector
            elif sequence.search is not None and end >= len(sequence.token_ids):
                sequence.search.spread(self._fork)
            return
        sequence.num_pending_samples -= 1
        if sequence.search is not None:
            self._publish(sequence, end)
            self._commit_beam(sequence.search, sequence, output.samples[0], news)
            return
        samples, known = output.samples, end - scheduled.num_drafts
        if scheduled.num_drafts:
            num_accepted = self.speculation.judge(sequence, scheduled.num_drafts, samples)
            sequence.num_computed_tokens -= scheduled.num_drafts - num_accepted
            samples = samples[: num_accepted + 1]
            self._extend(sequence, known, samples, known + num_accepted, news)
        elif len(scheduled.sample_indices) == 1:
            self._extend(sequence, known, samples, end, news)
        else:
            self._publish(sequence, end)
            sequence.num_samples = 1
            lines = [sequence, *(self._fork(sequence, index) for index in scheduled.sample_indices[1:])]
            for line, sample in zip(lines, samples, strict=True):
                self._extend(line, known, [sample], end, news)

    def _commit_beam(
        self, search: beams.BeamSearch, sequence: Sequence, sample: TokenOutput, news: list[SequenceOutput]
    ) -> None:
        if search.take(sequence, sample):
            search.advance(self._fork, self._drop)
        if search.is_over:
            for line in list(self.requests[sequence.request.request_id]):
                self.finish(line, "stop")
            news += search.outputs()

    def _fail_range(self, scheduled: ScheduledRange, error: str) -> list[SequenceOutput]:
        """Ends the request of a range that is not committed, or only in part: of that nothing has been told."""
        sequence = scheduled.sequence
        request_id = sequence.request.request_id
        indices = {output.index for output in self.abort(request_id, "error")}
        if sequence.search is None:
            indices.update(scheduled.sample_indices or (sequence.index,))
        else:
            indices.update(range(sequence.request.params.n))
        return [end_of(request_id, index, "error", error) for index in sorted(indices)]

    def _extend(
        self, sequence: Sequence, position: int, samples: list[TokenOutput], end: int, news: list[SequenceOutput]
    ) -> None:
        """Writes tokens from `position` on until one ends the sequence, whose first `end` positions are computed."""
        first = position == sequence.num_prompt_tokens
        taken, reason, stop = sequence.write(position, samples)
        if end // self.tables.block_size > sequence.num_published_blocks:
            self._publish(sequence, min(end, len(sequence.token_ids)))
        if reason is not None:
            self.finish(sequence, reason, stop)
        news.append(news_of(sequence, taken, samples, first))

    def _fork(self, parent: Sequence, index: int) -> Sequence:
        """A sibling with the parent's tokens and, where there is a slot for it to run, all of its blocks."""
        child = Sequence(parent.request, index, parent.order[1], len(self.tables.groups))
        child.token_ids = list(parent.token_ids)
        child.block_keys = list(parent.block_keys)
        child.search = parent.search
        child.num_cached_tokens, child.scheduled_time = parent.num_cached_tokens, parent.scheduled_time
        if parent.search is not None or self._free_places() > 0:  # places are kept for beams
            self.tables.fork(parent, child)
            child.status, child.share = Status.RUNNING, parent.share
            insort(self.running, child, key=_order)
        else:
            self.waiting.push(child)
        self.requests[parent.request.request_id].append(child)
        return child

    def _drop(self, sequence: Sequence) -> None:
        """Ends a running sequence of which nothing is told, and gives its blocks back."""
        _remove(self.running, sequence)
        self.tables.release(sequence)
        sequence.status = Status.FINISHED
        self.requests[sequence.request.request_id].remove(sequence)

    def _publish(self, sequence: Sequence, end: int) -> None:
        if self.config.enable_prefix_caching and sequence.status is Status.RUNNING:
            self.tables.publish(sequence, end)

    def check(self) -> None:
        """Asserts law L2 and the invariants of sequences; for tests, walks everything."""
        self.waiting.check()
        assert self.running == sorted(self.running, key=_order), "running sequences are out of order"
        for queue, status in ((self.waiting, Status.WAITING), (self.running, Status.RUNNING)):
            for sequence in queue:
                assert sequence.status is status and sequence in self.requests[sequence.request.request_id]
                assert sequence.num_computed_tokens <= len(sequence.token_ids) + len(sequence.draft_token_ids)
        for sequence in self.waiting:
            assert not any(sequence.block_tables) and sequence.num_computed_tokens == 0, f"{sequence} owns blocks"
        live = sum(sequence.status is not Status.FINISHED for line in self.requests.values() for sequence in line)
        assert live == len(self.waiting) + len(self.running), "a sequence is in no queue"
        self.tables.check(self.running)


def _num_places(sequence: Sequence) -> int:
    """How many running sequences come of a waiting one."""
    return 1 if sequence.search is None else sequence.search.width


def _is_in(search: beams.BeamSearch, batch: Batch) -> bool:
    return any(scheduled.sequence.search is search for scheduled in batch.ranges)


def _remove(queue: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(queue, sequence.order, key=_order)
    assert queue[index] is sequence, f"{sequence} is not in the queue of its status"
    del queue[index]
