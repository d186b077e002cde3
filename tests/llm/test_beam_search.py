"""LLM.beam_search: token for token as transformers' generate, whatever is in the batch, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import beam_cases
import pytest
import tiny

from octavo import LLM, BeamSearchParams, SamplingParams
from octavo.engine.outputs import RequestOutput
from octavo.errors import RequestError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "beams.json").read_text())
CASES = beam_cases.CASES


@pytest.fixture(scope="module", params=sorted(GOLDEN))
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LLM]]:
    name = str(request.param)
    path = tiny.write_checkpoint(name, tmp_path_factory.mktemp(name))
    with LLM(path, threads=1, dtype="float32", kv_cache_memory="4MiB", max_num_batched_tokens=32) as llm:
        yield name, llm


def search(llm: LLM, name: str, entries: list[dict[str, Any]]) -> list[RequestOutput]:
    """The recorded cases, all at once, beside a request that samples."""
    model = llm._loaded()
    results = {}
    for number, entry in enumerate(entries):
        case = CASES[entry["case"]]
        ids = beam_cases.prompt(name, entry["prompt"])
        beams = BeamSearchParams(
            beam_width=case.num_beams,
            max_tokens=case.max_new_tokens,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
        )
        params = SamplingParams(
            n=case.num_beams,
            max_tokens=case.max_new_tokens,
            ignore_eos=True,
            stop_token_ids=beam_cases.stops(name, case),
            logprobs=0,
        )
        asked = model.admit(f"beams-{number}", ids, params, beams=beams)
        results[asked.request_id] = RequestOutput.empty(asked)
        model.engine.add(asked)
    sampled = model.admit("sampled", ids[:20], SamplingParams(max_tokens=60, seed=1, ignore_eos=True))
    model.engine.add(sampled)
    results["sampled"] = RequestOutput.empty(sampled)
    while model.engine.has_work():
        for news in model.engine.step():
            results[news.request_id].apply(news)
    model.engine.scheduler.check()
    return [results[f"beams-{number}"] for number in range(len(entries))]


def test_hypotheses_are_those_of_transformers(named: tuple[str, LLM]) -> None:
    name, llm = named
    entries = GOLDEN[name]
    assert len(entries) >= 0.8 * len(CASES) * len(beam_cases.PROMPT_LENGTHS)
    endings = set()
    for entry, output in zip(entries, search(llm, name, entries), strict=True):
        case = CASES[entry["case"]]
        assert [one.token_ids for one in output.outputs] == [one["tokens"] for one in entry["found"]], case
        for one, found in zip(output.outputs, entry["found"], strict=True):
            chosen = sum(e[t].logprob for t, e in zip(one.token_ids, one.logprobs or [], strict=True))
            assert one.cumulative_logprob == pytest.approx(chosen)
            if case.num_beams > 1:  # transformers' greedy search gives no score
                score = chosen / len(one.token_ids) ** case.length_penalty
                assert score == pytest.approx(found["score"], rel=1e-4, abs=1e-4)
            endings.add(one.finish_reason)
    assert endings == {"stop", "length"}


def shown(output: RequestOutput) -> list[Any]:
    return [(one.token_ids, one.cumulative_logprob, one.logprobs) for one in output.outputs]


@pytest.mark.parametrize(("name", "times"), [("llama", 3), ("gemma3", 5)])
def test_a_search_finds_the_same_in_any_company(name: str, times: int, tmp_path: Path) -> None:
    """L1: alone, all at once, by small steps, with more threads, from a warm cache, and in a pool that preempts."""
    path = tiny.write_checkpoint(name, tmp_path)
    entries = [{"case": case, "prompt": length} for case in (0, 3, 5, 7) for length in (17, 60)]

    def load(**options: Any) -> LLM:
        return LLM(path, **{"threads": 1, "dtype": "float32", "kv_cache_memory": "4MiB"} | options)

    with load(enable_prefix_caching=False) as llm:
        alone = [shown(search(llm, name, [entry])[0]) for entry in entries]
    for options in (
        {"threads": 2},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"enable_prefix_caching": False, "max_num_seqs": 12},
        {"kv_cache_memory": small_pool(path, times), "max_model_len": 128, "max_num_batched_tokens": 32},
    ):
        with load(**options) as llm:
            cold, warm = search(llm, name, entries), search(llm, name, entries)
            preempted = llm._loaded().engine.scheduler.num_preemptions
        assert list(map(shown, cold)) == alone, options
        assert list(map(shown, warm)) == alone, options
        assert preempted > 0 or "kv_cache_memory" not in options


def small_pool(path: Path, times: int) -> int:
    """Bytes of a cache for so many sequences of 128 tokens: enough for the widest search, and little more."""
    options = {"max_num_seqs": 1, "max_model_len": 128, "max_num_batched_tokens": 32, "dtype": "float32"}
    with LLM(path, threads=1, kv_cache_memory="64MiB", **options) as llm:
        return times * int(llm._loaded().cache_bytes)


def test_the_form_of_the_outputs(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    tokenizer = llm.get_tokenizer()
    first, second = llm.beam_search(["abc", tokenizer.encode("de")], params)
    for output, text in ((first, "abc"), (second, "de")):
        prompt = tokenizer.encode(text)
        assert len(output.sequences) == 3
        for one in output.sequences:
            assert one.tokens[: len(prompt)] == prompt and len(one.logprobs) == len(one.tokens) - len(prompt)
            assert one.text.startswith(text) and one.finish_reason in ("stop", "length")
            chosen = [e[t].logprob for t, e in zip(one.tokens[len(prompt) :], one.logprobs, strict=True)]
            assert one.cum_logprob == pytest.approx(sum(chosen))
        scores = [one.cum_logprob / len(one.logprobs) for one in output.sequences]
        assert scores == sorted(scores, reverse=True)
    greedy = llm.generate("abc", SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0].outputs[0]
    (only,) = llm.beam_search("abc", BeamSearchParams(beam_width=1, max_tokens=6))[0].sequences
    assert only.tokens[4:] == greedy.token_ids
    warm = BeamSearchParams(beam_width=3, max_tokens=6, temperature=0.7)
    assert llm.beam_search("abc", warm)[0].sequences == first.sequences
    assert llm.beam_search([], params) == []


def test_what_cannot_be_is_refused_and_nothing_runs(make: Callable[..., LLM]) -> None:
    llm = make(max_num_seqs=4, max_logprobs=0)
    for prompt, params, says in (
        ("a", BeamSearchParams(beam_width=5, max_tokens=3), "max_num_seqs is 4"),
        ([], BeamSearchParams(beam_width=4, max_tokens=3), "no tokens"),
        ("a" * 4000, BeamSearchParams(beam_width=4, max_tokens=90), None),
    ):
        if says is None:
            assert len(llm.beam_search(prompt, params)[0].sequences) == 4
            continue
        with pytest.raises(RequestError, match=says):
            llm.beam_search([prompt], params)
        assert not llm._loaded().engine.has_work()
    small = make(kv_cache_memory="1MiB", max_model_len=512)
    with pytest.raises(RequestError, match=r"A beam search of width 100 needs up to .* blocks"):
        small.beam_search("a" * 300, BeamSearchParams(beam_width=100, max_tokens=200))


def test_best_of(llm: LLM) -> None:
    shared: dict[str, Any] = {"seed": 3, "temperature": 1.2, "max_tokens": 20}
    (every,) = llm.generate("abc", SamplingParams(n=5, logprobs=0, **shared), use_tqdm=False)
    (best,) = llm.generate("abc", SamplingParams(n=2, best_of=5, **shared), use_tqdm=False)
    ranked = sorted(every.outputs, key=lambda one: (one.cumulative_logprob or 0) / len(one.token_ids), reverse=True)
    assert [one.token_ids for one in best.outputs] == [one.token_ids for one in ranked[:2]]
    assert [one.index for one in best.outputs] == [0, 1]
    assert all(one.logprobs is None and one.cumulative_logprob is None for one in best.outputs)
    greedy = [SamplingParams(best_of=count, temperature=0, max_tokens=5) for count in (None, 3)]
    one, other = llm.generate(["abc", "abc"], greedy, use_tqdm=False)
    assert one.outputs == other.outputs
