"""The engine behind an event loop: streams, aborts by every way of leaving, bounds, death and health."""

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from engine_world import FakeRunner, Oracle, request

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.errors import EngineDeadError, EngineFullError, RequestError
from octavo.sampling_params import BeamSearchParams

PROMPT = [5, 9, 2, 6, 5, 3, 5, 8, 9]
GROUPS = [CacheGroup("full", 400, 4)]


class Gated(FakeRunner):
    """A runner whose steps wait at a gate, and take a moment each."""

    def __init__(self) -> None:
        super().__init__(GROUPS)
        self.gate = threading.Event()
        self.gate.set()
        self.num_steps = 0

    def launch(self, batch):
        self.gate.wait(20)
        self.num_steps += 1
        time.sleep(0.0005)
        return super().launch(batch)


@contextlib.contextmanager
def served(*, lookahead: int = 0, step_timeout: float = 20.0, **config) -> Iterator[tuple[AsyncEngine, Gated]]:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 1000, "max_output_rows": 32} | config
    runner = Gated()
    scheduler = Scheduler(SchedulerConfig(**options), GROUPS)
    engine = AsyncEngine(Engine(scheduler, runner, lookahead=lookahead), step_timeout=step_timeout)
    try:
        yield engine, runner
    finally:
        runner.gate.set()
        engine.close()
        assert runner.closed
        scheduler.check()


async def whole(engine: AsyncEngine, asked) -> RequestOutput:
    result = RequestOutput.empty(asked)
    async for outputs in engine.generate(asked):
        for news in outputs:
            result.apply(news)
    return result


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen in ten seconds")


def idle(engine: AsyncEngine) -> bool:
    snapshot = engine.stats()
    return (snapshot.num_running, snapshot.num_waiting, snapshot.kv_cache_usage, engine.num_live) == (0, 0, 0.0, 0)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_many_requests_at_once_get_their_own_tokens(lookahead: int) -> None:
    async def main() -> None:
        with served(lookahead=lookahead) as (engine, _):
            asked = [request(f"r{i}", PROMPT[i % 5 :], max_tokens=20, n=1 + i % 2, seed=i) for i in range(20)]
            outputs = await asyncio.gather(*(whole(engine, one) for one in asked))
            for one, output in zip(asked, outputs, strict=True):
                assert output.finished
                for index, completion in enumerate(output.outputs):
                    assert completion.token_ids == Oracle([0]).run(one, index)[0]
            await until(lambda: idle(engine))
            assert engine.is_healthy()

    asyncio.run(main())


@pytest.mark.parametrize("leave", ["close", "cancel", "drop"])
def test_a_reader_that_leaves_ends_its_request_only(leave: str) -> None:
    async def read(engine: AsyncEngine, asked) -> None:
        stream = engine.generate(asked)
        num_read = 0
        async for _ in stream:
            num_read += 1
            if num_read == 3 and leave == "close":
                await stream.aclose()
                return
            if num_read == 3 and leave == "drop":
                return

    async def main() -> None:
        with served(max_num_seqs=1) as (engine, _):
            gone = asyncio.create_task(read(engine, request("gone", PROMPT, max_tokens=900)))
            await until(lambda: engine.stats().totals.generation_tokens >= 3)  # and no more where it leaves at once
            other = asyncio.create_task(whole(engine, request("other", PROMPT, max_tokens=9)))
            if leave == "cancel":
                gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            del gone
            gc.collect()
            output = await other
            assert output.outputs[0].token_ids == Oracle([0]).run(request("other", PROMPT, max_tokens=9), 0)[0]
            await until(lambda: idle(engine))
            assert engine.stats().totals.request_success["abort"] == 1

    asyncio.run(main())


def test_an_id_can_be_used_again_as_soon_as_its_reader_has_left() -> None:
    async def main() -> None:
        with served() as (engine, runner):
            for turn in range(20):
                stream = engine.generate(request("again", PROMPT, max_tokens=900))
                async for _ in stream:
                    break
                runner.gate.clear()
                await until(lambda: engine._step_started is not None)
                await stream.aclose()
                asked = request("again", PROMPT[turn % 5 :], max_tokens=9, seed=turn)
                reading = asyncio.create_task(whole(engine, asked))
                await asyncio.sleep(0)
                runner.gate.set()
                assert (await reading).outputs[0].token_ids == Oracle([0]).run(asked, 0)[0]
            await until(lambda: idle(engine))

    asyncio.run(main())


def test_a_waiting_request_can_leave_without_touching_the_running_one() -> None:
    async def main() -> None:
        with served(max_num_seqs=1) as (engine, _):
            running = asyncio.create_task(whole(engine, request("a", PROMPT, max_tokens=60)))
            await until(lambda: engine.stats().num_running == 1)
            waiting = engine.generate(request("b", PROMPT[1:], max_tokens=60))
            await until(lambda: engine.stats().num_waiting == 1)
            await waiting.aclose()
            output = await running
            assert output.outputs[0].token_ids == Oracle([0]).run(request("a", PROMPT, max_tokens=60), 0)[0]
            ends = {reason: count for reason, count in engine.stats().totals.request_success.items() if count}
            assert ends == {"length": 1, "abort": 1}

    asyncio.run(main())


def test_past_the_bound_requests_are_refused_and_later_accepted() -> None:
    async def main() -> None:
        with served(max_num_seqs=1, max_num_queued=2) as (engine, runner):
            runner.gate.clear()
            streams = [engine.generate(request(f"r{i}", PROMPT, max_tokens=3)) for i in range(3)]
            with pytest.raises(EngineFullError) as caught:
                engine.generate(request("over", PROMPT))
            assert caught.value.retry_after >= 1
            with pytest.raises(RequestError, match="in use"):
                engine.generate(request("r1", PROMPT))
            runner.gate.set()
            for stream in streams:
                assert sum([len(news.token_ids) async for outputs in stream for news in outputs]) == 3
            assert (await whole(engine, request("over", PROMPT, max_tokens=2))).finished

    asyncio.run(main())


def test_prompts_of_more_tokens_than_may_wait_are_refused() -> None:
    async def main() -> None:
        with served(max_num_seqs=2, max_num_queued_tokens=20) as (engine, runner):
            runner.gate.clear()
            held = [engine.generate(request("long", PROMPT * 5, max_tokens=3))]  # more than the bound, but alone
            with pytest.raises(EngineFullError, match="45 tokens"):
                engine.generate(request("over", PROMPT))
            runner.gate.set()
            assert await anext(held[0])
            runner.gate.clear()
            held += [engine.generate(request(f"r{i}", PROMPT, max_tokens=3)) for i in range(2)]
            assert engine.stats().num_tokens_waiting == 18
            with pytest.raises(EngineFullError, match="18 tokens"):
                engine.generate(request("over", PROMPT))
            held.append(engine.generate(request("fits", PROMPT[:2], max_tokens=3)))
            assert engine.stats().num_rejected == 2
            runner.gate.set()
            for stream in held:
                async for _ in stream:
                    pass
            assert engine.stats().num_tokens_waiting == 0 and engine._prompts == {}

    asyncio.run(main())


@pytest.mark.parametrize(
    "asks", [{"n": 1, "best_of": 3}, {"n": 2, "beams": BeamSearchParams(beam_width=2, max_tokens=60)}]
)
def test_a_prompt_that_is_computed_waits_no_longer_even_if_nothing_is_told_of_it(asks: dict) -> None:
    async def main() -> None:
        with served(max_num_seqs=4, max_num_queued_tokens=20, max_num_batched_tokens=16) as (engine, runner):
            stream = engine.generate(request("untold", PROMPT * 3, max_tokens=60, **asks))
            assert engine.stats().num_tokens_waiting == 27
            await until(lambda: runner.num_steps > 4)
            assert engine.stats().num_tokens_waiting == 0 and engine.num_live == 1
            other = request("other", PROMPT, max_tokens=3)
            assert (await whole(engine, other)).outputs[0].token_ids == Oracle([0]).run(other, 0)[0]
            assert not stream._outputs, "or this test would prove nothing"
            async for _ in stream:
                pass
            await until(lambda: idle(engine))

    asyncio.run(main())


@pytest.mark.parametrize("bound", [{"max_num_queued": 2}, {"max_num_queued_tokens": 20}])
def test_a_tenant_with_nothing_there_is_not_shut_out_by_a_full_queue(bound: dict) -> None:
    async def main() -> None:
        with served(max_num_seqs=1, **bound) as (engine, runner):
            runner.gate.clear()
            streams = []
            with pytest.raises(EngineFullError):
                for number in range(9):
                    streams.append(engine.generate(request(f"a{number}", PROMPT, max_tokens=9, tenant=Tenant("a"))))
            streams.append(engine.generate(request("b", PROMPT, max_tokens=9, tenant=Tenant("b"))))
            with pytest.raises(EngineFullError):
                engine.generate(request("b2", PROMPT, tenant=Tenant("b")))
            runner.gate.set()
            ends = []

            async def read(stream) -> None:
                async for _ in stream:
                    pass
                ends.append(stream.request.request_id)

            await asyncio.gather(*map(read, streams))
            assert ends[:2] == ["a0", "b"]

    asyncio.run(main())


def test_the_time_to_come_back_is_that_of_the_backlog() -> None:
    """Measured where a request takes a known time and one runs after the other."""

    async def main() -> None:
        with served(max_num_seqs=1, max_num_queued=40) as (engine, runner):

            def slowly(batch):
                time.sleep(0.05)
                return FakeRunner.launch(runner, batch)

            runner.launch = slowly
            for number in range(8):
                await whole(engine, request(f"r{number}", PROMPT, max_tokens=2))
            seconds = []
            for most in (11, 31, 41):
                engine._most = most
                streams = []
                with pytest.raises(EngineFullError) as caught:
                    for number in range(50):
                        streams.append(engine.generate(request(f"q{number}", PROMPT, max_tokens=2)))
                seconds.append(caught.value.retry_after)
                for stream in streams:
                    await stream.aclose()
                await until(lambda: idle(engine))
            # A tenth of a second each, and more on a machine that is busy.
            assert all(isinstance(number, int) for number in seconds)
            assert 1 <= seconds[0] < seconds[1] < seconds[2] <= 60

    asyncio.run(main())


def test_a_slow_reader_misses_nothing_and_slows_nobody() -> None:
    async def main() -> None:
        with served() as (engine, _):
            slow = engine.generate(request("slow", PROMPT, max_tokens=50))
            await whole(engine, request("quick", PROMPT, max_tokens=60))
            tokens = [token async for outputs in slow for news in outputs for token in news.token_ids]
            assert tokens == Oracle([0]).run(request("slow", PROMPT, max_tokens=50), 0)[0]

    asyncio.run(main())


def test_a_request_that_the_scheduler_refuses_fails_alone() -> None:
    async def main() -> None:
        with served() as (engine, _):
            with pytest.raises(RequestError, match="does not fit"):
                await whole(engine, request("large", PROMPT, max_tokens=5000))
            assert (await whole(engine, request("fits", PROMPT))).finished
            await until(lambda: idle(engine))

    asyncio.run(main())


def test_a_request_that_fails_as_it_finishes_ends_its_stream(caplog) -> None:
    """Its last token stands and its blocks are back when what was asked beside it turns out not to be there."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        with served() as (engine, runner):
            launch = runner.launch

            def spoilt(batch):
                pending = launch(batch)
                for scheduled, output in zip(batch.ranges, pending.results, strict=True):
                    if scheduled.sequence.request.request_id == "bad":
                        output.samples[0].logprob = None
                return pending

            runner.launch = spoilt
            good = request("good", PROMPT, max_tokens=30)
            asked = request("bad", PROMPT, max_tokens=1, logprobs=0)
            failed, fine = await asyncio.wait_for(asyncio.gather(whole(engine, asked), whole(engine, good)), 20)
            assert failed.outputs[0].finish_reason == "error"
            assert fine.outputs[0].token_ids == Oracle([0]).run(good, 0)[0]
            assert engine.num_live == 0

    asyncio.run(main())


def test_a_dead_engine_tells_everyone(caplog) -> None:
    caplog.set_level(logging.CRITICAL + 1)

    async def main() -> None:
        with served() as (engine, runner):
            runner.gate.clear()
            stream = engine.generate(request("r", PROMPT, max_tokens=50))
            reader = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.02)
            engine._engine.scheduler.schedule = None  # a fault of the engine itself, not of a step
            runner.gate.set()
            await reader
            with pytest.raises(EngineDeadError, match="TypeError"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineDeadError):
                engine.generate(request("late", PROMPT))
            with pytest.raises(EngineDeadError):
                await asyncio.wait_for(engine.reset_prefix_cache(), 10)
            assert not engine.is_healthy()

    asyncio.run(main())


def test_health_is_progress() -> None:
    async def main() -> None:
        with served(step_timeout=0.05) as (engine, runner):
            assert engine.is_healthy()
            runner.gate.clear()
            reader = asyncio.create_task(whole(engine, request("r", PROMPT, max_tokens=2)))
            await until(lambda: not engine.is_healthy())
            runner.gate.set()
            await reader
            await until(engine.is_healthy)

    asyncio.run(main())


def test_an_errand_that_nobody_awaits_any_longer_harms_nothing() -> None:
    async def main() -> None:
        with served() as (engine, runner):
            runner.gate.clear()
            reader = asyncio.create_task(whole(engine, request("r", PROMPT, max_tokens=2)))
            await until(lambda: engine.stats().num_running == 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.reset_prefix_cache(), 0.05)
            runner.gate.set()
            await reader
            await asyncio.wait_for(engine.reset_prefix_cache(), 10)
            assert engine.is_healthy()

    asyncio.run(main())


@pytest.mark.parametrize("timeout", [0.0, 20.0])
def test_drain(timeout: float) -> None:
    async def main() -> None:
        with served() as (engine, _):
            reader = asyncio.create_task(whole(engine, request("r", PROMPT, max_tokens=100)))
            await until(lambda: engine.stats().num_running == 1)
            drain = asyncio.create_task(engine.drain(timeout))
            await asyncio.sleep(0)
            with pytest.raises(EngineDeadError, match="shutting down"):
                engine.generate(request("late", PROMPT))
            await drain
            output = await reader
            assert output.outputs[0].finish_reason == ("length" if timeout else "abort")
            assert idle(engine)

    asyncio.run(main())


def test_closing_ends_open_streams_and_the_thread() -> None:
    async def main() -> None:
        before = threading.active_count()
        with served() as (engine, _):
            stream = engine.generate(request("r", PROMPT, max_tokens=900))
            await anext(stream)
            engine.close()
            with pytest.raises(EngineDeadError, match="closed"):
                async for _ in stream:
                    pass
        assert threading.active_count() == before

    asyncio.run(main())


def test_an_idle_engine_sleeps() -> None:
    async def main() -> None:
        with served() as (engine, runner):
            await whole(engine, request("r", PROMPT, max_tokens=5))
            num_steps, used = runner.num_steps, time.process_time()
            await asyncio.sleep(0.3)
            assert runner.num_steps == num_steps
            assert time.process_time() - used < 0.1

    asyncio.run(main())
