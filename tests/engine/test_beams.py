"""Beam search in the scheduler: what its blocks and places are bounded by, how it ends, and what is refused."""

import dataclasses

import pytest
from engine_world import World, request
from test_engine import GROUPS, PROMPT, engine, run, text_of

from octavo.engine.admission import Limits, admit
from octavo.engine.batch import RangeOutput
from octavo.engine.scheduler import CacheGroup, SchedulerConfig
from octavo.errors import RequestError
from octavo.sampling_params import BeamSearchParams, SamplingParams


def search(width: int, **more) -> BeamSearchParams:
    return BeamSearchParams(beam_width=width, max_tokens=100, **more)


def world(num_blocks: int, *, max_num_seqs: int = 8, block_size: int = 4, **config) -> World:
    options = {"max_num_batched_tokens": 16, "max_model_len": 128, "max_output_rows": 16} | config
    return World(SchedulerConfig(max_num_seqs, **options), [CacheGroup("full", num_blocks, block_size)])


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("width", "length", "block_size"), [(1, 9, 4), (2, 8, 4), (4, 30, 4), (8, 5, 2), (5, 7, 16)])
def test_blocks_in_use_are_bounded(width: int, length: int, block_size: int, caching: bool) -> None:
    w = world(200, block_size=block_size, enable_prefix_caching=caching)
    asked = request("b", list(range(length)), max_tokens=40, beams=search(width, early_stopping="never"), n=width)
    w.add(asked)
    pool = w.scheduler.tables.pools[0]
    most = 0
    while w.scheduler.has_work():
        assert w.step()
        (one, *_) = w.scheduler.running or [None]
        generated = len(one.token_ids) - length if one else 0
        used = pool.num_blocks - pool.num_free
        assert used <= -(-length // block_size) + width * (-(-generated // block_size) + 1)
        assert len(w.scheduler.running) in (0, 1, width)
        most = max(most, used)
    w.verify()
    assert most < width * -(-(length + 40) // block_size) or width == 1, "nothing was shared"
    assert pool.num_free == pool.num_blocks


def test_a_search_runs_in_the_blocks_that_the_gate_asks_for() -> None:
    """The gate's number is enough, and one less is refused with it: 2 blocks of the prompt, 3 beams of 5 blocks."""
    asked = request("b", list(range(9)), max_tokens=20, beams=search(3, early_stopping="never"), n=3)
    w = world(2 + 3 * 5)
    w.add(asked)
    w.run()
    w.verify()
    assert w.scheduler.num_preemptions == 0
    with pytest.raises(RequestError, match=r"needs up to 17 blocks .* it has 16") as caught:
        world(16).add(asked)
    assert caught.value.param == "beam_width"


@pytest.mark.parametrize("limit", ["max_num_seqs", "max_output_rows"])
def test_a_search_wider_than_a_step_is_refused(limit: str) -> None:
    with pytest.raises(RequestError, match=f"{limit} is 3") as caught:
        world(100, **{limit: 3}).add(request("b", [1, 2], beams=search(4)))
    assert caught.value.param == "beam_width"


def test_places_are_kept_for_the_beams_to_come() -> None:
    """A search of 6 and a request with n = 4 in 8 places: neither takes what the other was admitted for."""
    w = world(200)
    w.add(request("b", list(range(40)), max_tokens=30, beams=search(6), n=6))
    w.add(request("n", list(range(5)), max_tokens=30, n=4))
    w.add(request("c", list(range(7)), max_tokens=10, beams=search(8), n=1))
    w.run()
    w.verify()


def test_an_abort_ends_all_that_is_shown() -> None:
    for steps in (0, 1, 5):
        w = world(100)
        w.add(request("b", PROMPT, max_tokens=40, beams=search(4), n=2))
        for _ in range(steps):
            w.step()
        ends = w.scheduler.abort("b")
        assert [(end.index, end.finish_reason, end.token_ids) for end in ends] == [(0, "abort", []), (1, "abort", [])]
        w.run()
        assert w.scheduler.abort("b") == []


@pytest.mark.parametrize("index", [0, 3])
def test_a_row_that_fails_ends_the_search_alone(index: int) -> None:
    w = world(100)
    w.add(request("b", PROMPT, max_tokens=40, beams=search(4), n=2))
    w.add(request("r", PROMPT, max_tokens=20))
    for _ in range(4):
        w.step()
    batch = w.scheduler.schedule()
    outputs = w.runner.launch(batch).outputs()
    at = next(place for place, r in enumerate(batch.ranges) if r.sequence.search and r.sequence.index == index)
    outputs[at] = RangeOutput([], error="all NaN")
    news = [one for one in w.scheduler.commit(batch, outputs) if one.request_id == "b"]
    assert [(one.index, one.finish_reason, one.error) for one in news] == [(i, "error", "all NaN") for i in (0, 1)]
    w.check()
    assert "b" not in w.scheduler.requests and all(s.search is None for s in w.scheduler.running)


def test_text_logprobs_and_numbers_of_the_hypotheses() -> None:
    asked = request(
        "b", PROMPT, max_tokens=12, beams=search(4), n=3, logprobs=2, prompt_logprobs=0, eos=frozenset(range(5))
    )
    e = engine()
    output = run(e, asked)["b"]
    assert output.finished and len(output.outputs) == 3
    found = World(SchedulerConfig(1, 16, 128, 16), GROUPS).oracle.beams(asked)
    for one, (tokens, reason, cumulative) in zip(output.outputs, found, strict=True):
        assert (one.token_ids, one.finish_reason, one.cumulative_logprob) == (tokens, reason, cumulative)
        assert one.text == text_of(tokens[:-1] if reason == "stop" else tokens)
        chosen = [entry[token] for token, entry in zip(tokens, one.logprobs, strict=True)]
        assert sum(entry.logprob for entry in chosen) == pytest.approx(cumulative)
        assert all({1, 2} <= {other.rank for other in entry.values()} for entry in one.logprobs)
    assert {one.finish_reason for one in output.outputs} == {"stop"}
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(PROMPT)
    assert e.stats.generation_tokens == sum(len(one.token_ids) for one in output.outputs)
    assert e.stats.request_success["stop"] == 3 and not e._live


def test_a_stop_id_ends_a_beam_and_is_named() -> None:
    asked = request("b", PROMPT, max_tokens=30, beams=search(2), n=2, stop=frozenset(range(25)), eos=frozenset({40}))
    for one in run(engine(), asked)["b"].outputs:
        assert one.finish_reason == "stop" and one.stop_reason in (*range(25), None)
        assert (one.stop_reason is None) == (one.token_ids[-1] == 40)


LIMITS = Limits(vocab_size=50, max_model_len=128, max_sequence_tokens=256, eos_token_ids=frozenset({0}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 1.0),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.1),
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("logit_bias", {3: 1.0}),
        ("allowed_token_ids", [3]),
        ("bad_words", ["x"]),
        ("min_tokens", 2),
        ("stop", "x"),
        ("best_of", 4),
        ("stop_token_ids", list(range(10, 42))),
    ],
)
def test_the_gate_names_what_a_beam_search_does_not_take(field: str, value) -> None:
    with pytest.raises(RequestError, match=field if field != "stop_token_ids" else "up to 32 token ids") as caught:
        admit("b", PROMPT, SamplingParams(max_tokens=8, **{field: value}), LIMITS, beams=search(4))
    assert caught.value.param == field


def test_the_gate_takes_what_means_nothing() -> None:
    with pytest.raises(RequestError, match="at least n=5, got 4"):
        admit("b", PROMPT, SamplingParams(n=5), LIMITS, beams=search(4))
    params = SamplingParams(max_tokens=8, n=4, logit_bias={}, stop=[], top_p=1, seed=3, stop_token_ids=[7])
    asked = admit("b", PROMPT, params, LIMITS, beams=search(4))
    assert asked.num_logprobs == 4 + 2 and asked.stop_token_ids == {0, 7}
    with pytest.raises(RequestError, match="vocabulary") as caught:
        admit("b", PROMPT, SamplingParams(), dataclasses.replace(LIMITS, vocab_size=10), beams=search(10))
    assert caught.value.param == "beam_width"
