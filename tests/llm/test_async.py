"""AsyncLLM: many tasks at once, outputs as they come, and requests that end early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestOutput, SamplingParams
from octavo.engine.engine import Engine
from octavo.errors import EngineDeadError, EngineFullError, GenerationError, RequestError
from octavo.sampling_params import OutputKind


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(folder, threads=1, kv_cache_memory="16MiB", enable_prefix_caching=False)
    yield llm
    llm.close()


def sampled(kind: OutputKind = OutputKind.CUMULATIVE, **options: Any) -> SamplingParams:
    values = {"temperature": 1, "seed": 1, "max_tokens": 12, "ignore_eos": True, **options}
    return SamplingParams(**values, output_kind=kind)


async def all_of(llm: AsyncLLM, prompt: Any, params: SamplingParams, name: str = "r") -> list[RequestOutput]:
    return [output async for output in llm.generate(prompt, params, name)]


def idle(llm: AsyncLLM) -> bool:
    now = llm.engine.stats()
    return now.num_running == now.num_waiting == now.kv_cache_usage == llm.engine.num_live == 0


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not come about in time"
        await asyncio.sleep(0.01)


def test_each_kind_of_output_adds_up_to_the_same(served: AsyncLLM, llm: LLM) -> None:
    options: dict[str, Any] = {"n": 2, "logprobs": 1, "prompt_logprobs": 0}
    (offline,) = llm.generate("abc", sampled(**options), use_tqdm=False)

    async def main() -> None:
        grown = await all_of(served, "abc", sampled(**options))
        news = await all_of(served, "abc", sampled(OutputKind.DELTA, **options))
        (final,) = await all_of(served, "abc", sampled(OutputKind.FINAL_ONLY, **options))
        assert final.outputs == grown[-1].outputs == offline.outputs
        assert final.finished and final.prompt_token_ids == offline.prompt_token_ids
        assert final.prompt_logprobs == offline.prompt_logprobs
        # How many there are is a matter of time: what came since the last look comes at once.
        assert 1 <= len(grown) <= 12 and 1 <= len(news) <= 12
        assert [output.finished for output in grown] == [False] * (len(grown) - 1) + [True]
        assert [output.finished for output in news] == [False] * (len(news) - 1) + [True]
        for before, after in pairwise(grown):
            for old, new in zip(before.outputs, after.outputs, strict=True):
                assert new.text.startswith(old.text) and new.token_ids[: len(old.token_ids)] == old.token_ids
                assert len(new.logprobs or ()) == len(new.token_ids)
        for index, whole in enumerate(offline.outputs):
            pieces = [one for output in news for one in output.outputs if one.index == index]
            assert "".join(piece.text for piece in pieces) == whole.text
            assert list(chain.from_iterable(piece.token_ids for piece in pieces)) == whole.token_ids
            assert list(chain.from_iterable(piece.logprobs or [] for piece in pieces)) == whole.logprobs
            assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
            assert pieces[-1].cumulative_logprob == pytest.approx(whole.cumulative_logprob)
        assert [output.prompt_logprobs for output in news if output.prompt_logprobs] == [offline.prompt_logprobs]

    asyncio.run(main())


def test_64_tasks_at_once_get_their_own_answers(served: AsyncLLM, llm: LLM) -> None:
    prompts = [[i] * (1 + 3 * i) for i in range(64)]
    alone = [llm.generate([p], sampled(seed=i), use_tqdm=False)[0].outputs for i, p in enumerate(prompts)]

    async def main() -> list[list[RequestOutput]]:
        tasks = [
            all_of(served, p, sampled(list(OutputKind)[i % 2 * 2], seed=i), f"r{i}") for i, p in enumerate(prompts)
        ]
        return await asyncio.gather(*tasks)

    assert [outputs[-1].outputs for outputs in asyncio.run(main())] == alone
    assert idle(served)


@pytest.mark.parametrize("kind", list(OutputKind))
def test_a_request_that_fails_raises_and_leaves_nothing(served: AsyncLLM, kind: OutputKind) -> None:
    banned = sampled(kind, allowed_token_ids=[65], stop_token_ids=[65], min_tokens=2, temperature=1.0)

    async def main() -> None:
        good = asyncio.ensure_future(all_of(served, "abc", sampled(), "good"))
        with pytest.raises(GenerationError, match=r"bad.*ban all of them") as caught:
            await all_of(served, "abc", banned, "bad")
        assert caught.value.outputs[0].outputs[0].finish_reason == "error"
        assert (await good)[-1].finished

    asyncio.run(main())
    assert idle(served)


def test_prompts_come_in_every_form(served: AsyncLLM) -> None:
    ids = served.tokenizer.encode("abc")

    async def main() -> None:
        forms: list[Any] = ["abc", ids, {"prompt": "abc"}, {"prompt_token_ids": ids}]
        outputs = [(await all_of(served, form, sampled(OutputKind.FINAL_ONLY)))[0] for form in forms]
        assert all(output.prompt_token_ids == ids for output in outputs)
        assert len({output.outputs[0].text for output in outputs}) == 1
        for wrong in (None, [], [1.5], {"x": 1}, "a" * 9000):
            with pytest.raises(RequestError):
                await all_of(served, wrong, sampled())

    asyncio.run(main())
    assert idle(served)


@pytest.mark.parametrize("how", ["break", "cancel", "abort"])
def test_a_request_that_ends_early_gives_its_blocks_back(
    served: AsyncLLM, how: str, slow_down: Callable[[Engine], None]
) -> None:
    slow_down(served.engine._engine)
    params = sampled(max_tokens=4000)

    async def read(begun: asyncio.Event) -> RequestOutput | None:
        last = None
        async for output in served.generate("abc", params, "leaves"):
            last = output
            begun.set()
            if how == "break":
                break
        return last

    async def main() -> None:
        begun = asyncio.Event()
        task = asyncio.ensure_future(read(begun))
        await begun.wait()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            if how == "abort":
                await served.abort("leaves")
            last = await task
            assert last is not None and last.finished == (how == "abort")
            assert last.outputs[0].finish_reason == ("abort" if how == "abort" else None)
        await until(lambda: idle(served))
        await served.abort("never heard of")
        assert len(await all_of(served, "abc", sampled(OutputKind.FINAL_ONLY))) == 1

    asyncio.run(main())


def test_an_id_in_use_and_a_full_queue_are_refused(folder: Path, slow_down: Callable[[Engine], None]) -> None:
    llm = AsyncLLM(folder, threads=1, kv_cache_memory="8MiB", max_num_seqs=1, max_num_queued_reqs=1)
    slow_down(llm.engine._engine)

    async def main() -> None:
        first = llm.generate("a", sampled(max_tokens=4000), "first")
        await anext(first)
        with pytest.raises(RequestError, match="first"):
            await all_of(llm, "a", sampled(), "first")
        waiting = asyncio.ensure_future(all_of(llm, "a", sampled(), "second"))
        await until(lambda: llm.engine.num_live == 2)
        with pytest.raises(EngineFullError):
            await all_of(llm, "a", sampled(), "third")
        await first.aclose()
        assert (await waiting)[-1].finished

    asyncio.run(main())
    llm.close()
    with pytest.raises(EngineDeadError):
        asyncio.run(all_of(llm, "a", sampled()))


def test_past_its_timeout_an_iteration_ends_with_an_error(
    served: AsyncLLM, slow_down: Callable[[Engine], None]
) -> None:
    slow_down(served.engine._engine)

    async def main() -> None:
        stream = served.generate("abc", sampled(OutputKind.DELTA, max_tokens=4000), "r", timeout=0.3)
        assert (await anext(stream)).outputs[0].token_ids
        with pytest.raises(GenerationError, match=r"timeout of 0\.3 seconds"):
            async for _ in stream:
                pass
        await until(lambda: idle(served))

    asyncio.run(main())


def test_a_priority_needs_its_policy(served: AsyncLLM, folder: Path) -> None:
    async def ask(llm: AsyncLLM) -> list[RequestOutput]:
        return [output async for output in llm.generate("abc", sampled(), "r", priority=-1)]

    with pytest.raises(RequestError, match="scheduling_policy") as refused:
        asyncio.run(ask(served))
    assert refused.value.param == "priority" and idle(served)
    llm = AsyncLLM(folder, threads=1, kv_cache_memory="4MiB", scheduling_policy="priority")
    assert asyncio.run(ask(llm))[-1].finished
    llm.close()


def test_it_knows_its_origin(served: AsyncLLM, folder: Path) -> None:
    assert served.max_model_len == 4096 and served.model_names == (str(folder),)
    assert served.fingerprint.startswith("octavo-")
    llm = AsyncLLM(
        folder, threads=1, kv_cache_memory="4MiB", scheduling_policy="priority", served_model_name=["a", "b"]
    )
    assert tuple(llm.model_names) == ("a", "b") and llm.fingerprint == served.fingerprint
    llm.close()
