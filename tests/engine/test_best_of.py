"""best_of: the n sequences of the highest mean log-probability, told at the end; as with n = best_of otherwise."""

import time

import pytest
from engine_world import request
from test_engine import PROMPT, Broken, Letters, engine, run

from octavo.engine.outputs import SequenceOutput
from octavo.errors import RequestError
from octavo.sampling_params import OutputKind, SamplingParams


def mean(completion) -> float:
    chosen = [entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)]
    return sum(chosen) / len(chosen)


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize(("n", "best_of"), [(1, 4), (2, 5), (3, 3), (1, 1)])
def test_the_best_of_all(n: int, best_of: int, logprobs: int | None, lookahead: int) -> None:
    shared = {"max_tokens": 20, "eos": frozenset(range(4)), "seed": 5}
    every = run(engine(), request("all", PROMPT, n=best_of, logprobs=0, **shared))["all"].outputs
    expected = sorted(every, key=mean, reverse=True)[:n] if best_of > n else every
    e = engine(lookahead=lookahead)
    found = run(e, request("r", PROMPT, n=n, best_of=best_of, logprobs=logprobs, prompt_logprobs=0, **shared))["r"]
    assert found.finished and [one.index for one in found.outputs] == list(range(n))
    for one, other in zip(found.outputs, expected, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert one.logprobs == (None if logprobs is None else other.logprobs)
        assert one.cumulative_logprob == (None if logprobs is None else pytest.approx(other.cumulative_logprob))
    assert len({len(one.token_ids) for one in every}) > 1 or best_of < 4, "all sequences are of one length"
    assert len(found.prompt_logprobs) == len(PROMPT)
    assert e.stats.generation_tokens == sum(len(one.token_ids) for one in every)
    assert not e._live


def test_nothing_is_told_before_the_end() -> None:
    e = engine()
    e.add(request("r", PROMPT, n=2, best_of=4, max_tokens=9))
    news: list[SequenceOutput] = []
    while e.has_work():
        assert not news
        news = e.step()
    assert [(one.index, len(one.token_ids), one.logprobs) for one in news] == [(0, 9, None), (1, 9, None)]


def test_equal_sequences_are_told_in_order_and_no_tokens_are_no_fault() -> None:
    asked = request("r", PROMPT, n=2, best_of=3, max_tokens=0)
    assert [one.finish_reason for one in run(engine(), asked)["r"].outputs] == ["length", "length"]


def test_aborts_and_errors_end_all_that_is_shown() -> None:
    e = engine()
    e.add(request("r", PROMPT, n=2, best_of=4, max_tokens=9))
    e.step()
    ends = e.abort("r")
    assert [(end.index, end.finish_reason) for end in ends] == [(0, "abort"), (1, "abort")] and not e._live
    e.add(request("late", PROMPT, n=2, best_of=4, max_tokens=9, timeout=1e-6, arrival_time=time.monotonic()))
    ends = e.step()
    assert [(end.index, end.finish_reason) for end in ends] == [(0, "timeout"), (1, "timeout")] and not e._live
    broken = run(engine(Broken(outputs=(3,))), request("r", PROMPT, n=2, best_of=4, max_tokens=9))["r"]
    assert [one.finish_reason for one in broken.outputs] == ["error", "error"] and "broken outputs" in broken.error


def test_a_text_that_fails_is_not_passed_over() -> None:
    """The other sequences end well; but which are best cannot be said."""

    class Second(Letters):
        def __init__(self, asked, index: int) -> None:
            super().__init__(asked, index)
            self.index = index

        def append(self, token_ids: list[int]) -> str:
            if self.index == 1:
                raise RuntimeError("no text")
            return super().append(token_ids)

    found = run(engine(detokenizer=Second), request("r", PROMPT, n=2, best_of=3, max_tokens=5))["r"]
    assert [one.finish_reason for one in found.outputs] == ["error", "error"] and "no text" in found.error


def test_what_is_refused() -> None:
    for wrong in ({"n": 3, "best_of": 2}, {"best_of": 0}, {"best_of": 129}, {"best_of": True}):
        with pytest.raises(RequestError, match="best_of") as caught:
            SamplingParams(**wrong)
        assert caught.value.param == "best_of"
    with pytest.raises(RequestError, match="cannot be streamed") as caught:
        SamplingParams(n=1, best_of=2, output_kind=OutputKind.DELTA)
    assert caught.value.param == "best_of"
    assert not SamplingParams(n=2, best_of=2, output_kind=OutputKind.DELTA).ranks
    with pytest.raises(RequestError, match="best_of is 33; a step samples at most 32"):
        engine().add(request("r", PROMPT, best_of=33))
