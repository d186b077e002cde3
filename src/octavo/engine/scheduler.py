"""Which sequences compute which tokens in the next step, and what a finished step changes."""

import logging
import time
from collections.abc import Iterable
from operator import attrgetter

from octavo.engine import beams, ranges
from octavo.engine.batch import Batch, Output, RangeOutput, ScheduledRange
from octavo.engine.block_tables import CacheGroup
from octavo.engine.decodes import Decodes, oldest_of
from octavo.engine.outputs import News, SequenceOutput, end_of, news_of
from octavo.engine.queues import Queues, num_places
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
        self.queues = Queues(config, groups)
        self.tables, self.decodes = self.queues.tables, self.queues.decodes
        self.waiting, self.running, self.requests = self.queues.waiting, self.queues.running, self.queues.requests
        self.num_prefix_queries = 0  # tokens
        self.num_prefix_query_blocks = 0  # the full blocks of those tokens
        self.num_prefix_hits = 0  # tokens, in whole blocks

    @property
    def num_preemptions(self) -> int:
        return self.queues.num_preemptions

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
        return self.queues.add(request)

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
            self.queues.finish(sequence, reason)
        return [end_of(request_id, index, reason) for index in indices]

    def reset_prefix_cache(self) -> None:
        """Lets no later request find what has been computed so far; what runs keeps its blocks."""
        for pool in self.tables.pools:
            pool.forget()

    def awaits_commit(self) -> bool:
        """Whether a sequence or a drafter needs what a step in flight samples before the next one is scheduled."""
        if not self.tables.num_in_flight:
            return False
        return self.speculation.drafter is not None or any(map(ranges.awaits_token, self._others()))

    def schedule(self) -> Batch | None:
        """The next step, or None where nothing can be computed before a step in flight is committed."""
        tables = self.tables
        batch = Batch(tables.last_step + 1, [], [], [[] for _ in tables.groups])
        if self.running and self.running[-1].order[0] > self.waiting.priority and (head := self.waiting.first()):
            self._yield_to_priority(head)
        for drafted in self.speculation.draft(self.running, self.waiting.first(), self.config):
            self.decodes.leave(drafted)
        if self._schedule_running(batch) and self.waiting:
            self._schedule_waiting(batch)
        if not batch.num_tokens:
            return None
        batch.decodes = self.decodes.advance(batch.step)
        tables.last_step = batch.step
        tables.num_in_flight += 1
        return batch

    def commit(self, batch: Batch, outputs: list[Output]) -> News:
        """Appends what the oldest step in flight sampled, publishes its full blocks, forks and finishes sequences.

        Every range is committed by itself: one that cannot be ends its request with finish_reason "error".
        """
        count = len(batch.decodes)
        if len(outputs) != count + len(batch.others):
            error = f"The runner returned {len(outputs)} outputs for {len(batch.ranges)} ranges."
            return News([], [], self.fail(batch, error))
        news = News([], [], [])
        alone: Iterable[tuple[ScheduledRange, Output]] = zip(batch.others, outputs[count:], strict=True)
        if count:
            tokens = [output for output in outputs[:count] if isinstance(output, int)]
            if len(tokens) == count:
                news = self._commit_decodes(batch, tokens)
            else:  # one has failed
                self.decodes.disband()
                alone = zip([*map(oldest_of, batch.decodes), *batch.others], outputs, strict=True)
        for scheduled, output in alone:
            self._commit_alone(scheduled, output, news.others)
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
        """Lets running sequences catch up, oldest first; False where one lacked blocks: nobody new may take any.

        Plain decodes have their place in the step beforehand, and are looked at where they need a block.
        """
        decodes, others = self.decodes, self._others()
        if ranges.least_rows(others) > ranges.room(self.config, batch) - len(decodes):
            decodes.disband()  # not all have a place: it goes by their order
            others = list(self.running)
        batch.num_tokens = batch.num_rows = len(decodes)
        walk = sorted([*decodes.take_short(), *others], key=_order)
        joining: list[Sequence] = []
        fits = True
        for sequence in walk:
            if sequence.status is not Status.RUNNING:  # preempted meanwhile
                continue
            is_in, joins = sequence.decode is not None, Decodes.suits(sequence)
            count = self._catch_up(sequence, batch) if fits else -1
            if count < 0:
                fits = False
                if sequence.decode is not None:
                    self._leave(sequence, batch)
            elif is_in:
                decodes.expect(sequence)
            elif count and joins:
                joining.append(sequence)
                batch.num_tokens += 1
                batch.num_rows += 1
            elif count:
                ranges.put(self.config, sequence, count, batch)
        decodes.join(joining)
        return fits

    def _others(self) -> list[Sequence]:
        """The running sequences that are not among the plain decodes."""
        if len(self.decodes) == len(self.running):
            return []
        return [sequence for sequence in self.running if sequence.decode is None]

    def _leave(self, sequence: Sequence, batch: Batch) -> None:
        """Takes a sequence out of the plain decodes, and out of the step."""
        self.decodes.leave(sequence)
        batch.num_tokens -= 1
        batch.num_rows -= 1

    def _catch_up(self, sequence: Sequence, batch: Batch) -> int:
        """How many tokens of a running sequence go into the step, with blocks reserved for them; -1 where it has to
        wait for blocks, and all behind it too.
        """
        count = 1 if sequence.decode is not None else ranges.count_tokens(self.config, sequence, batch)
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
            if last.decode is not None:
                self._leave(last, batch)
            self.queues.preempt(last)
            if sequence.status is not Status.RUNNING:
                return -1
        return count

    def _schedule_waiting(self, batch: Batch) -> None:
        """Admits sequences in order, until one does not fit."""
        config, waiting, places = self.config, self.waiting, self.queues.free_places()
        while places > 0 and batch.num_tokens < config.max_num_batched_tokens:
            sequence = waiting.take_turn()
            if sequence is None or places < num_places(sequence):
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
            self.queues.admit(sequence)
            places -= num_places(sequence)
            if sequence.scheduled_time == 0.0:
                sequence.scheduled_time = time.monotonic()
                sequence.num_cached_tokens = sequence.num_computed_tokens
                self.num_prefix_queries += sequence.num_prompt_tokens
                self.num_prefix_query_blocks += sequence.num_prompt_tokens // self.tables.block_size
                self.num_prefix_hits += sequence.num_cached_tokens
            ranges.put(self.config, sequence, count, batch)
        waiting.recall()

    def _reads_cache(self, sequence: Sequence) -> bool:
        """Whether a prefix hit may count as computed: not where an output is asked of every position."""
        request = sequence.request
        asks_all = request.params.prompt_logprobs is not None or request.pooling not in (None, "last")
        return self.config.enable_prefix_caching and not asks_all

    def _yield_to_priority(self, head: Sequence) -> None:
        """Preempts sequences of lower priority while they keep the first that waits from running."""
        while self.running and self.running[-1].order[0] > head.order[0] and head.waits_for is None:
            if self.queues.free_places() >= num_places(head) and self.tables.can_hold(len(head.token_ids)):
                return
            self.queues.preempt(self.running[-1])

    # Committing.

    def _commit_decodes(self, batch: Batch, tokens: list[int]) -> News:
        """Commits a token of every plain decode, and looks at those that end or have filled a block."""
        others: list[SequenceOutput] = []
        try:
            num_later = self.tables.num_in_flight - 1
            going_on, tokens, alone, full = self.decodes.commit(batch.step, batch.decodes, tokens, num_later)
        except Exception as error:
            logger.exception("The tokens of plain decodes cannot be committed; their requests end with an error.")
            for scheduled in batch.decodes:
                if scheduled.is_current:
                    others += self._fail_range(scheduled, describe(error))
            return News([], [], others)
        for scheduled, token_id in alone:
            self._commit_alone(scheduled, token_id, others)
        for scheduled in full:
            try:
                self.queues.publish(scheduled.sequence, scheduled.sequence.num_known_tokens - 1)
            except Exception as error:
                logger.exception("Request %s ends with an error.", scheduled.sequence.request.request_id)
                others += self._fail_range(scheduled, describe(error))
        return News(going_on, tokens, others)

    def _commit_alone(self, scheduled: ScheduledRange, output: Output, news: list[SequenceOutput]) -> None:
        """Commits a range by itself: what goes wrong ends its request only."""
        if not scheduled.is_current:
            return
        if isinstance(output, int):
            output = RangeOutput([TokenOutput(output)])
        told = len(news)
        try:
            if output.error is None:
                self._commit_range(scheduled, output, news)
            else:
                news += self._fail_range(scheduled, output.error)
        except Exception as error:
            logger.exception("Request %s ends with an error.", scheduled.sequence.request.request_id)
            news[told:] = self._fail_range(scheduled, describe(error))

    def _commit_range(self, scheduled: ScheduledRange, output: RangeOutput, news: list[SequenceOutput]) -> None:
        sequence, end = scheduled.sequence, scheduled.start + scheduled.num_tokens
        num_samples = len(scheduled.sample_indices) * (scheduled.num_drafts + 1)
        if len(output.samples) != num_samples:
            raise ValueError(f"The runner returned {len(output.samples)} tokens for {num_samples} samples.")
        if output.prompt_logprobs:
            sequence.prompt_logprobs += output.prompt_logprobs
        if not scheduled.sample_indices:
            self.queues.publish(sequence, end)
            if sequence.request.pooling is not None and end >= len(sequence.token_ids):
                self.queues.finish(sequence, "stop")
                news.append(news_of(sequence, [], [], False))
                news[-1].vector = output.vector
            elif sequence.search is not None and end >= len(sequence.token_ids):
                sequence.search.spread(self.queues.fork)
            return
        sequence.num_pending_samples -= 1
        if sequence.search is not None:
            self.queues.publish(sequence, end)
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
            self.queues.publish(sequence, end)
            sequence.num_samples = 1
            lines = [sequence, *(self.queues.fork(sequence, index) for index in scheduled.sample_indices[1:])]
            for line, sample in zip(lines, samples, strict=True):
                self._extend(line, known, [sample], end, news)

    def _commit_beam(
        self, search: beams.BeamSearch, sequence: Sequence, sample: TokenOutput, news: list[SequenceOutput]
    ) -> None:
        if search.take(sequence, sample):
            search.advance(self.queues.fork, self.queues.drop)
        if search.is_over:
            for line in list(self.requests[sequence.request.request_id]):
                self.queues.finish(line, "stop")
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
            self.queues.publish(sequence, min(end, len(sequence.token_ids)))
        if reason is not None:
            self.queues.finish(sequence, reason, stop)
        news.append(news_of(sequence, taken, samples, first))

    def check(self) -> None:
        """Asserts law L2 and the invariants of sequences; for tests, walks everything."""
        self.queues.check()


def _is_in(search: beams.BeamSearch, batch: Batch) -> bool:
    return any(scheduled.sequence.search is search for scheduled in batch.others)
