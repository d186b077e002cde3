"""The step: schedule, launch, commit, and the text and numbers that come of it."""

import copy
import logging
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

from octavo.engine.batch import Batch, Output, Pending, Runner, ScheduledRange
from octavo.engine.decode_feeds import DecodeFeeds
from octavo.engine.live import Detokenizer, Live
from octavo.engine.outputs import Contradiction, News, SequenceOutput
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler
from octavo.engine.stats import EngineStats, Snapshot
from octavo.errors import describe

logger = logging.getLogger(__name__)


class _FailedLaunch:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def outputs(self) -> list[Output]:
        raise self.error


class Engine:
    """Scheduler and runner, stepped by whoever owns it; not thread-safe.

    With `lookahead` steps launched beyond the one that is committed, a runner that returns from `launch` before it
    has finished is never idle between steps: the next one is scheduled and written while one runs, and what one has
    brought is told while the next one runs. Where a sequence needs what it samples before it can go on, the step is
    committed before the next one is scheduled, and only its text waits.

    An exception of the runner ends the requests of that step with finish_reason "error"; what can be told of one
    request ends that one: an error among the runner's outputs, outputs that cannot be committed, a failing detokenizer
    (its sequence). What `step` itself raises is a fault of the engine, which is then dead. A request whose time is over
    ends before the next step, with finish_reason "timeout".
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        make_detokenizer: Callable[[Request, int], Detokenizer] | None = None,
        stats: EngineStats | None = None,
        *,
        lookahead: int = 0,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.stats = stats if stats is not None else EngineStats()
        self._make_detokenizer = make_detokenizer
        self._lookahead = lookahead
        self._in_flight: deque[tuple[Batch, Pending]] = deque()
        self._reset_step = 0  # the last step scheduled when the prefix cache was reset
        self._live: dict[str, Live] = {}
        self._deadlines: list[tuple[float, str]] = []  # of live requests that have one, sorted
        # Requests whose prompts the last step has computed and of which nothing is told before they end.
        self.computed_untold: list[str] = []
        self._feeds = DecodeFeeds(self._live, self.stats)

    def add(self, request: Request) -> None:
        """Queues a request; RequestError where its id is in use or it could never fit."""
        make = self._make_detokenizer if request.params.detokenize else None
        detokenizers = [make(request, index) for index in range(request.params.num_sequences)] if make else []
        sequence = self.scheduler.add(request)
        live = self._live[request.request_id] = Live(request, sequence, detokenizers)
        if request.timeout is not None:
            insort(self._deadlines, live.deadline)

    def abort(self, request_id: str) -> list[SequenceOutput]:
        """Ends a request, also in mid-step; an unknown id is no error."""
        return self._deliver(self.scheduler.abort(request_id))

    def reset_prefix_cache(self) -> None:
        """Lets no later request find what has been computed so far."""
        self._reset_step = self.scheduler.tables.last_step
        self.scheduler.reset_prefix_cache()

    @property
    def num_live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def step(self) -> list[SequenceOutput]:
        """Schedules and launches one step, and commits the oldest launched one, once there are enough or where the next
        cannot be scheduled before; returns what it brought, with text.
        """
        told = self._expire()
        self.computed_untold = []
        committed: list[News] = []
        while self.scheduler.awaits_commit():
            committed.append(self._commit())
        batch = self.scheduler.schedule()
        if batch is not None:
            self._launch(batch)
            self.stats.step_tokens.observe(batch.num_tokens)
        if self._in_flight and not committed and (batch is None or len(self._in_flight) > self._lookahead):
            committed.append(self._commit())
        for news in committed:
            told += self._tell(news)
        return told

    def snapshot(self) -> Snapshot:
        """Numbers for metrics; may be called from another thread."""
        scheduler, tables = self.scheduler, self.scheduler.tables
        num_evictions = sum(pool.num_evictions for pool in tables.pools)
        return Snapshot(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.kv_cache_usage,
            scheduler.num_preemptions,
            scheduler.num_prefix_queries,
            scheduler.num_prefix_hits,
            scheduler.num_prefix_query_blocks,
            scheduler.num_prefix_hits // tables.block_size,
            num_evictions,
            num_evictions * tables.block_size,
            scheduler.speculation.num_drafts,
            scheduler.speculation.num_draft_tokens,
            scheduler.speculation.num_accepted_tokens,
            tables.last_step,
            copy.deepcopy(self.stats),
        )

    def close(self) -> None:
        self.runner.close()
        self._in_flight.clear()  # a step holds on to what it runs in

    def _expire(self) -> list[SequenceOutput]:
        """Ends the requests whose time is over, whether they run or wait. A live one is always followed by a step."""
        news: list[SequenceOutput] = []
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            live = self._live[self._deadlines[0][1]]
            was = "it ran" if live.sequence.scheduled_time else "it waited for its turn"
            ended = self._deliver(self.scheduler.abort(live.request.request_id, "timeout"))
            for output in ended:
                output.error = f"The request reached its timeout of {live.request.timeout:g} seconds while {was}."
            news += ended
        return news

    def _commit(self) -> News:
        """What the oldest step in flight brings, once it is over. Whoever was interrupted in it can call it again."""
        batch, pending = self._in_flight[0]
        self.computed_untold += [one.sequence.request.request_id for one in batch.others if _ends_untold_prompt(one)]
        try:
            outputs = pending.outputs()
        except Exception as error:
            logger.exception("Step %d failed; the %d requests in it end with an error.", batch.step, len(batch.ranges))
            news = News([], [], self.scheduler.fail(batch, describe(error)))
        else:
            news = self.scheduler.commit(batch, outputs)
        self._in_flight.popleft()
        if batch.step <= self._reset_step:  # what it had computed by then has become findable
            self.scheduler.reset_prefix_cache()
        return news

    def _launch(self, batch: Batch) -> None:
        pending: Pending = _FailedLaunch(RuntimeError("The step was interrupted."))
        try:
            pending = self.runner.launch(batch)
        except Exception as error:
            pending = _FailedLaunch(error)  # met in the order of commits
        finally:
            self._in_flight.append((batch, pending))

    def _tell(self, news: News) -> list[SequenceOutput]:
        """The outputs of a step, with text."""
        now = time.monotonic()
        told, ended = self._feeds.tell(news.decodes, news.token_ids, now)
        if ended:
            self._feeds.settle()
        for output, reason in ended:
            self._finish(output, reason, output.stop_reason)
            self._count_end(self._live[output.request_id], output.index, reason, now)
        return told + self._deliver(news.others)

    def _deliver(self, news: list[SequenceOutput]) -> list[SequenceOutput]:
        if not news:
            return news
        self._feeds.settle()
        now = time.monotonic()
        told: list[SequenceOutput] = []
        for output in news:
            live = self._live.get(output.request_id)
            if (
                live is None or output.index not in live.open
            ):  # its text has ended it in this step, its sibling's fault after
                continue
            if live.detokenizers:
                try:
                    self._add_text(output, live)
                except Exception as error:
                    logger.exception("The text of request %s failed; it ends with an error.", output.request_id)
                    self._finish(output, "error", None)
                    output.error = describe(error)
            if output.error is not None:
                level = logging.INFO if isinstance(output.error, Contradiction) else logging.ERROR
                logger.log(level, "Request %s ends with an error: %s", output.request_id, output.error)
            self._count(output, live, now)
            if live.best_of is None:
                told.append(output)
            else:
                told += live.best_of.add(output)
        return told

    def _add_text(self, output: SequenceOutput, live: Live) -> None:
        detokenizer, params = live.detokenizers[output.index], live.request.params
        # The token of a stop id is an output, but no text.
        hides_last = output.finish_reason == "stop" and not params.include_stop_str_in_output
        shown = len(output.token_ids) - hides_last
        for count, token_id in enumerate(output.token_ids[:shown], 1):
            output.text += detokenizer.append([token_id])
            if detokenizer.stop_reason is not None:
                # Tokens past the stop string came in the same step by speculation only: as if they had never been.
                del output.token_ids[count:]
                if output.logprobs is not None:
                    del output.logprobs[count:]
                self._finish(output, "stop", detokenizer.stop_reason)
                break
        if output.finish_reason is not None:
            output.text += detokenizer.finish()
        for entry in (*(output.logprobs or ()), *(output.prompt_logprobs or ())):
            for token_id, logprob in (entry or {}).items():
                logprob.decoded_token = detokenizer.decode_token(token_id)

    def _finish(self, output: SequenceOutput, reason: str, stop_reason: int | str | None) -> None:
        output.finish_reason, output.stop_reason = reason, stop_reason
        for sequence in self.scheduler.requests.get(output.request_id, ()):
            if sequence.index == output.index:
                self.scheduler.queues.finish(sequence, reason, stop_reason)
                break

    def _count(self, output: SequenceOutput, live: Live, now: float) -> None:
        stats, request, num_tokens = self.stats, live.request, len(output.token_ids)
        if not live.started and output.finish_reason not in ("abort", "error", "timeout"):
            live.started = True
            stats.prompt_tokens += len(request.prompt_token_ids)
            stats.prompt_tokens_cached += output.num_cached_tokens
        if num_tokens:
            stats.generation_tokens += num_tokens
            live.num_tokens += num_tokens
            last = live.last_times[output.index]
            if last:
                stats.inter_token_latency.observe((now - last) / num_tokens, num_tokens)
            elif not live.first_time:
                live.first_time = now
                stats.time_to_first_token.observe(now - request.arrival_time)
            live.last_times[output.index] = now
        if output.finish_reason is not None:
            self._count_end(live, output.index, output.finish_reason, now)

    def _count_end(self, live: Live, index: int, reason: str, now: float) -> None:
        """Counts a sequence that has ended, and with the last of them its request."""
        self.stats.request_success[reason] += 1
        live.open.discard(index)
        if not live.open:
            self._count_request(live, now)
            del self._live[live.request.request_id]
            if live.request.timeout is not None:
                del self._deadlines[bisect_left(self._deadlines, live.deadline)]

    def _count_request(self, live: Live, now: float) -> None:
        stats, request = self.stats, live.request
        scheduled = live.sequence.scheduled_time
        stats.e2e_latency.observe(now - request.arrival_time)
        stats.request_prompt_tokens.observe(len(request.prompt_token_ids))
        stats.request_generation_tokens.observe(live.num_tokens)
        stats.request_max_tokens.observe(request.max_tokens)
        stats.request_n.observe(request.params.n)
        if scheduled:
            stats.queue_time.observe(scheduled - request.arrival_time)
            stats.inference_time.observe(now - scheduled)
        if live.first_time:
            last = max(live.last_times)
            stats.prefill_time.observe(live.first_time - scheduled)
            stats.decode_time.observe(last - live.first_time)
            if (others := live.num_tokens - request.params.num_sequences) > 0:
                stats.time_per_output_token.observe((last - live.first_time) / others)


def _ends_untold_prompt(scheduled: ScheduledRange) -> bool:
    request, start = scheduled.sequence.request, scheduled.start
    tells_at_end = request.params.ranks or request.beams is not None
    return tells_at_end and start < len(request.prompt_token_ids) <= start + scheduled.num_tokens
