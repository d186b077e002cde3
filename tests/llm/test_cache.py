"""Prefix hits, chunks and preemption change how long an answer takes, and nothing else of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from octavo.errors import RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
BLOCK = 16
Make = Callable[..., LLM]


def some_ids(count: int, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(256) for _ in range(count)]


def run(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    idle(llm)
    return outputs


def idle(llm: LLM) -> None:
    """Blocks are free or cached, none is held, and the books agree."""
    scheduler = llm._loaded().engine.scheduler
    scheduler.check()
    assert scheduler.kv_cache_usage == 0


def seen(outputs: list[RequestOutput]) -> list[Any]:
    """All that a user sees of the answers."""
    return [
        [(o.text, o.token_ids, o.cumulative_logprob, o.logprobs, o.finish_reason) for o in output.outputs]
        for output in outputs
    ]


def salted(llm: LLM, prompt: list[int], salt: str | None = None) -> tuple[list[int], int]:
    """Generated tokens and cached tokens of one request with a cache salt."""
    model = llm._loaded()
    request = model.admit(f"salted-{random.random()}", prompt, GREEDY, cache_salt=salt)
    output = RequestOutput.empty(request)
    model.engine.add(request)
    while model.engine.has_work():
        for news in model.engine.step():
            output.apply(news)
    return output.outputs[0].token_ids, output.num_cached_tokens


def test_a_hit_gives_the_same_answer_and_says_so(make: Make, llm: LLM) -> None:
    system, question = some_ids(300), [7, 8, 9]
    warm = make()
    params = SamplingParams(temperature=1, seed=3, max_tokens=8, ignore_eos=True, logprobs=3)
    cold = run(llm, [system, system + question], params)
    first = run(warm, system, params)
    again = run(warm, system, params)
    shared = run(warm, [system + question], params)
    assert seen(first) == seen(again) == seen(cold[:1]) and seen(shared) == seen(cold[1:])
    assert first[0].num_cached_tokens == 0
    assert again[0].num_cached_tokens == shared[0].num_cached_tokens == 300 // BLOCK * BLOCK


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1])
def test_the_last_token_of_a_prompt_is_always_computed(make: Make, llm: LLM, length: int) -> None:
    prompt = some_ids(length, seed=length)
    warm = make()
    cold = run(llm, [prompt])
    assert seen(run(warm, [prompt])) == seen(cold)
    again = run(warm, [prompt])
    assert seen(again) == seen(cold)
    assert again[0].num_cached_tokens == (length - 1) // BLOCK * BLOCK


def test_what_was_evicted_is_no_hit(make: Make, llm: LLM) -> None:
    """About forty blocks: other prompts push P out, over and over."""
    small = make(max_model_len=512, kv_cache_memory=pool_bytes(make, 40))
    prompt = some_ids(200, seed=1)
    expected = seen(run(llm, [prompt]))
    for turn in range(5):
        first = run(small, [prompt])
        assert seen(first) == expected and first[0].num_cached_tokens == 0
        again = run(small, [prompt])
        assert seen(again) == expected and again[0].num_cached_tokens == 192
        flood = [some_ids(250, seed=100 + 10 * turn + i) for i in range(5)]
        assert seen(run(small, flood)) == seen(run(llm, flood))


def pool_bytes(make: Make, num_blocks: int) -> int:
    """Bytes of a KV cache of that many blocks."""
    measured = make(max_model_len=1024, kv_cache_memory="4MiB")._loaded()
    (pool,) = measured.engine.scheduler.tables.pools
    return int(measured.cache_bytes // pool.num_blocks * num_blocks)


def test_a_salt_keeps_tenants_apart(make: Make) -> None:
    llm = make()
    prompt = some_ids(100, seed=2)
    found = [salted(llm, prompt, salt) for salt in ("a", "a", "b", None, "a", None)]
    assert [cached for _, cached in found] == [0, 96, 0, 0, 96, 96]
    assert len({tuple(ids) for ids, _ in found}) == 1
    prompts = [{"prompt_token_ids": prompt, "cache_salt": "c"}, {"prompt_token_ids": prompt}]
    run(llm, prompts[:1])
    assert [output.num_cached_tokens for output in run(llm, prompts)] == [96, 96]
    for wrong in ("", 7):
        with pytest.raises(RequestError, match="cache_salt"):
            run(llm, [{"prompt_token_ids": prompt, "cache_salt": wrong}])
        with pytest.raises(RequestError, match="cache_salt"):
            salted(llm, prompt, wrong)  # type: ignore[arg-type]


def test_a_reset_forgets_everything_and_changes_no_answer(make: Make) -> None:
    llm = make()
    prompt = some_ids(100, seed=4)
    cold, warm = run(llm, [prompt]), run(llm, [prompt])
    assert llm.reset_prefix_cache()
    idle(llm)
    again = run(llm, [prompt])
    assert seen(cold) == seen(warm) == seen(again)
    assert [outputs[0].num_cached_tokens for outputs in (cold, warm, again)] == [0, 96, 0]
    # In mid-request: what it holds stays its own, and what it computes from then on is found again.
    engine = llm._loaded().engine
    other = some_ids(100, seed=5)
    (expected,) = run(llm, [other])
    llm.reset_prefix_cache()
    output = RequestOutput.empty(request := llm._loaded().admit("reset", other, GREEDY))
    engine.add(request)
    steps = 0
    while engine.has_work():
        for news in engine.step():
            output.apply(news)
        steps += 1
        if steps == 3:
            llm.reset_prefix_cache()
            engine.scheduler.check()
    idle(llm)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    assert run(llm, [other])[0].num_cached_tokens == 0


def test_only_what_was_computed_before_an_abort_is_a_hit(make: Make, llm: LLM) -> None:
    cut = make(max_num_batched_tokens=64)
    model = cut._loaded()
    prompt = some_ids(600, seed=3)
    model.engine.add(model.admit("leaves", prompt, GREEDY))
    for _ in range(3):
        model.engine.step()
    model.engine.abort("leaves")
    while model.engine.has_work():  # its blocks are held until a step in flight is over
        model.engine.step()
    idle(cut)
    after = run(cut, [prompt])
    assert seen(after) == seen(run(llm, [prompt]))
    assert 0 < after[0].num_cached_tokens <= 3 * 64


def test_the_same_prompt_many_times_at_once(make: Make, llm: LLM) -> None:
    params = SamplingParams(n=2, seed=5, temperature=1, max_tokens=20, ignore_eos=True)
    prompt = some_ids(100, seed=4)
    together = seen(run(make(), [prompt] * 8, params))
    assert together == [seen(run(llm, [prompt], params))[0]] * 8


@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_too_small_for_all_changes_no_answer(make: Make, llm: LLM, caching: bool) -> None:
    """Eight requests grow past the pool, so that some lose their blocks and begin again."""
    small = make(max_model_len=512, kv_cache_memory=pool_bytes(make, 34), enable_prefix_caching=caching)
    params = [
        SamplingParams(
            temperature=i % 2,
            seed=i,
            presence_penalty=0.5 * (i % 3),
            repetition_penalty=1.1,
            logprobs=2,
            min_tokens=100,
            max_tokens=150,
        )
        for i in range(8)
    ]
    prompts = [some_ids(20 + 9 * i, seed=i) for i in range(8)]
    assert seen(run(small, prompts, params)) == seen(run(llm, prompts, params))
    assert small._loaded().engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_prompt_logprobs_do_not_depend_on_the_chunks(make: Make, chunk: int) -> None:
    prompt = some_ids(700, seed=6)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1, logprobs=1, ignore_eos=True)
    (whole,) = run(make(max_num_batched_tokens=1024), [prompt], params)
    cut = make(max_num_batched_tokens=chunk)
    for _ in range(2):  # the second time the prompt is in the cache, and is computed all the same
        (output,) = run(cut, [prompt], params)
        assert output.prompt_logprobs == whole.prompt_logprobs and seen([output]) == seen([whole])
    entries = whole.prompt_logprobs
    assert entries is not None and len(entries) == len(prompt) and entries[0] is None
    for token_id, entry in zip(prompt[1:], entries[1:], strict=True):
        assert entry is not None and next(iter(entry)) == token_id and 1 <= len(entry) <= 2
        assert min(one.rank or 0 for one in entry.values()) == 1


@pytest.mark.parametrize("options", [{"max_num_seqs": 1}, {"max_num_batched_tokens": 32}, {"threads": 2}])
def test_company_and_threads_change_nothing(make: Make, llm: LLM, options: dict[str, Any]) -> None:
    prompts = [some_ids(n, seed=n) for n in (1, 17, 90, 240)]
    params = [SamplingParams(temperature=1, seed=n, max_tokens=12, ignore_eos=True, logprobs=1) for n in range(4)]
    alone = [seen(run(llm, [p], s))[0] for p, s in zip(prompts, params, strict=True)]
    assert seen(run(make(**options), prompts, params)) == alone
