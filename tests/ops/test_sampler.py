"""The sampling kernel against its definition, at every instruction set level that the machine can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.ops.reference.sampler import (
    LEAST_LOGPROB,
    Row,
    Sample,
    draw,
    logprobs,
    order,
    philox,
    probabilities,
    process,
    sample,
    uniform,
)

LEVELS = [name for name, supported, _ in _native.isa_levels() if supported]
POOLS = {threads: _native.ThreadPool(threads) for threads in (1, 2)}
BORDER = 2e-5  # of the whole: what the kernel's float32 weights may move a border between two tokens by
MAX_LOGPROBS = 20


def inputs_for(rows: Sequence[Row], vocab: int, threads: int = 1, max_rows: int | None = None) -> Any:
    """Inputs filled from rows. Outputs are garbage first, so that whatever a kernel leaves unwritten shows."""
    inputs = _native.SampleInputs(max_rows or max(len(rows), 1), vocab, MAX_LOGPROBS, threads)
    for name in ("token_ids", "ranks", "status", "top_ids"):
        getattr(inputs, name)[...] = -7
    for name in ("logprobs", "top_logprobs"):
        getattr(inputs, name)[...] = np.nan
    inputs.rows = len(rows)
    for r, row in enumerate(rows):
        put(inputs, r, row)
    return inputs


def put(inputs: Any, r: int, row: Row) -> None:
    for entry in dataclasses.fields(Row):
        if entry.name not in ("allowed", "bias", "counts"):
            getattr(inputs, entry.name)[r] = getattr(row, entry.name)
    inputs.masked[r] = row.allowed is not None
    if row.allowed is not None:
        bits = np.packbits(row.allowed, bitorder="little")
        inputs.mask[r].view(np.uint8)[: len(bits)] = bits
    inputs.clear_lists(r)
    if row.bias:
        ids, values = zip(*row.bias, strict=True)
        inputs.set_bias(r, np.array(ids, np.int32), np.array(values, np.float32))
    if row.counts:
        counts = _native.TokenCounts(np.array(list(row.counts), np.int32))
        for token, count in row.counts.items():
            for _ in range(count):
                counts.add(token)
        inputs.set_penalties(r, counts)


def outputs_of(inputs: Any, r: int) -> Sample:
    wanted = min(max(int(inputs.num_logprobs[r]), 0), inputs.vocab)
    top = [(int(i), float(v)) for i, v in zip(inputs.top_ids[r, :wanted], inputs.top_logprobs[r, :wanted], strict=True)]
    return Sample(int(inputs.token_ids[r]), int(inputs.status[r]), float(inputs.logprobs[r]), int(inputs.ranks[r]), top)


def run(level: str, logits: np.ndarray, rows: Sequence[Row], threads: int = 1) -> list[Sample]:
    """Row r samples from row r of the logits."""
    inputs = inputs_for(rows, logits.shape[1], threads)
    _native.sample(_native.select_isa(level), POOLS[threads], np.ascontiguousarray(logits, np.float32), inputs)
    return [outputs_of(inputs, r) for r in range(len(rows))]


def one(level: str, logits: Any, row: Row) -> Sample:
    return run(level, np.asarray(logits, np.float32)[None], [row])[0]


def acceptable(logits: np.ndarray, row: Row) -> set[int]:
    """The defined token, and those that a border moved by BORDER would give."""
    if row.target >= 0 or row.is_greedy or (y := process(logits, row)).max() == -np.inf:
        return {sample(logits, row).token_id}
    u = uniform(row.seed, row.sequence, row.position)
    shifts = (0.0, -BORDER, BORDER) if row.top_p < 1.0 else (0.0,)
    kept = [probabilities(y, row, shift) for shift in shifts]
    return {draw(chances, u + shift) for chances in kept for shift in (0.0, -BORDER, BORDER)}


def check(result: Sample, logits: np.ndarray, row: Row) -> None:
    expected = sample(logits, row)
    assert result.status == expected.status
    assert result.token_id in acceptable(logits, row)
    if row.target < 0 and row.num_logprobs < 0:
        assert (result.logprob, result.rank, result.top) == (0.0, 0, [])
        return
    values, ids = logprobs(logits), order(np.nan_to_num(logits, nan=-np.inf, posinf=3.4028235e38, neginf=-np.inf))
    assert result.logprob == pytest.approx(values[result.token_id], abs=2e-5, rel=2e-6)
    assert ids[result.rank - 1] == result.token_id
    assert [token for token, _ in result.top] == [token for token, _ in expected.top]
    np.testing.assert_allclose([v for _, v in result.top], [v for _, v in expected.top], atol=2e-5, rtol=2e-6)


VOCABS = st.sampled_from([1, 2, 15, 31, 33, 64, 100, 511, 512, 513, 1000, 2085, 5000])


@st.composite
def cases(draw_: Any) -> tuple[np.ndarray, Row]:
    vocab = draw_(VOCABS)
    generator = np.random.default_rng(draw_(st.integers(0, 2**32)))
    logits = (generator.standard_normal(vocab) * draw_(st.sampled_from([0.0, 0.3, 3.0, 10.0]))).astype(np.float32)
    if draw_(st.booleans()):  # many ties, zeros of both signs
        logits = np.round(logits) * generator.choice(np.float32([1, 1, -1]))
    if draw_(st.integers(0, 3)) == 0:
        spoilt = generator.random(vocab) < draw_(st.sampled_from([0.01, 0.5, 1.0]))
        logits[spoilt] = generator.choice(np.float32([np.nan, -np.inf, np.inf]), spoilt.sum(), p=[0.45, 0.45, 0.1])
    chance = st.sampled_from([0.0, 0.0, 0.05, 0.3, 0.9, 1.0])
    allowed = generator.random(vocab) < draw_(st.sampled_from([0.02, 0.5, 0.99])) if draw_(st.booleans()) else None
    some = generator.integers(0, vocab, 8).tolist() if draw_(st.booleans()) else []
    row = Row(
        temperature=draw_(st.sampled_from([0.0, 0.01, 0.3, 1.0, 1.0, 1.7])),
        top_k=draw_(st.sampled_from([0, 0, 0, 1, 2, 5, 50, 700, 10**9])),
        top_p=draw_(st.sampled_from([1.0, 1.0, 0.0, 0.1, 0.5, 0.95, 0.999])),
        min_p=draw_(chance),
        repetition_penalty=draw_(st.sampled_from([1.0, 1.3, 0.5, 2.0])),
        presence_penalty=draw_(st.sampled_from([0.0, 2.0, -1.5])),
        frequency_penalty=draw_(st.sampled_from([0.0, 1.1, -0.3])),
        seed=draw_(st.integers(0, 2**64 - 1)),
        sequence=draw_(st.integers(0, 127)),
        position=draw_(st.integers(0, 2**40)),
        num_logprobs=draw_(st.sampled_from([-1, 0, 1, 5, 20])),
        target=draw_(st.sampled_from([-1, -1, -1, 0, vocab - 1])),
        allowed=allowed,
        bias=[(t, draw_(st.sampled_from([-np.inf, -100.0, 3.5, 100.0]))) for t in some[:3]],
        counts={t: i % 3 for i, t in enumerate(some)},
    )
    return logits, row


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_kernel_meets_definition(level: str, case: tuple[np.ndarray, Row]) -> None:
    logits, row = case
    row = dataclasses.replace(row, num_logprobs=min(row.num_logprobs, len(logits)))
    check(one(level, logits, row), logits, row)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(picked=st.lists(cases(), min_size=1, max_size=4), data=st.data())
def test_row_is_its_own(level: str, picked: list[tuple[np.ndarray, Row]], data: Any) -> None:
    """L1: a row alone, and at any place of a batch on two threads, yields the same bits."""
    vocab = len(picked[0][0])
    rows = []
    for logits, row in picked:  # cases of other vocabularies lend their parameters
        same = len(logits) == vocab
        rows.append((np.resize(logits, vocab), row if same else dataclasses.replace(
            row, allowed=None, target=min(row.target, 0), bias=[], counts={})))  # fmt: skip
    alone = [one(level, logits, row) for logits, row in rows]
    places = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9))
    batch = run(level, np.stack([rows[p][0] for p in places]), [rows[p][1] for p in places], threads=2)
    assert batch == [alone[p] for p in places]


@pytest.mark.parametrize("level", LEVELS)
def test_rows_may_share_logits(level: str) -> None:
    """The first step of a request with n > 1: its sequences sample from one row, which penalties must not change."""
    logits = np.random.default_rng(1).standard_normal((2, 3000)).astype(np.float32)
    before = logits.copy()
    rows = [Row(temperature=1.0, seed=9, sequence=i, position=4, counts={3: 1}, presence_penalty=2.0) for i in range(8)]
    inputs = inputs_for(rows, 3000, 2)
    inputs.source[:] = 1
    _native.sample(_native.select_isa(level), POOLS[2], logits, inputs)
    assert [outputs_of(inputs, r) for r in range(8)] == [one(level, logits[1], row) for row in rows]
    assert len({int(t) for t in inputs.token_ids}) > 1
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # known answers published with Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, words: Any) -> None:
    assert philox(counter, key) == words


def chi_square(counts: np.ndarray, chances: np.ndarray) -> float:
    """In standard deviations above its mean; cells that expect few draws are put together."""
    expected = chances * counts.sum()
    big = expected >= 8
    observed = np.append(counts[big], counts[~big].sum())
    expected = np.append(expected[big], max(expected[~big].sum(), 1e-9))
    if expected[-1] < 8:
        observed, expected = observed[:-1], expected[:-1]
    degrees = max(len(expected) - 1, 1)
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "row",
    [
        Row(temperature=1.0),
        Row(temperature=0.6),
        Row(temperature=1.5, top_k=40),
        Row(temperature=1.0, top_p=0.8),
        Row(temperature=1.0, min_p=0.1),
        Row(temperature=0.9, top_k=100, top_p=0.9, min_p=0.01, counts={5: 2, 700: 0}, repetition_penalty=1.2),
    ],
)
def test_draws_follow_the_probabilities(level: str, row: Row) -> None:
    vocab, draws = 1300, 40_000
    logits = (np.random.default_rng(3).standard_normal(vocab) * 2.5).astype(np.float32)
    chances = probabilities(process(logits, row), row)
    inputs = inputs_for([dataclasses.replace(row, seed=s, sequence=s % 3) for s in range(200)], vocab, 2)
    inputs.source[:] = 0
    counts = np.zeros(vocab)
    for position in range(draws // 200):
        inputs.position[:] = position
        _native.sample(_native.select_isa(level), POOLS[2], logits[None], inputs)
        np.add.at(counts, inputs.token_ids, 1)
    assert not counts[chances == 0].any()
    assert abs(chi_square(counts, chances)) < 6


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "limit", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-12}, {"temperature": 0.0}]
)
def test_limits_that_mean_greedy(level: str, limit: dict[str, Any]) -> None:
    logits = np.random.default_rng(2).standard_normal((50, 777)).astype(np.float32)
    logits[:, 500] = logits.max(axis=1) - np.float32(1e-6)  # a near tie, which a draw would take often
    results = run(level, logits, [Row(**{"temperature": 1.0, "seed": s} | limit) for s in range(50)])
    assert [result.token_id for result in results] == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("level", LEVELS)
def test_limits_that_mean_none(level: str) -> None:
    logits = np.random.default_rng(2).standard_normal(777).astype(np.float32)
    for seed in range(50):
        plain = one(level, logits, Row(temperature=1.0, seed=seed))
        for none in ({"top_k": 777}, {"top_k": 10**9}, {"top_k": 0}, {"top_p": 1.0}, {"min_p": 0.0}):
            assert one(level, logits, Row(**{"temperature": 1.0, "seed": seed} | none)) == plain


@pytest.mark.parametrize("level", LEVELS)
def test_random_key(level: str) -> None:
    """Seed, sequence index and position each change the draw; nothing else does."""
    logits = np.zeros(5000, np.float32)
    base = {"temperature": 1.0, "seed": 7, "sequence": 0, "position": 12}
    seeds = [{"seed": seed} for seed in (8, 7 + 2**32, 2**63 - 1, 2**64 - 1)]
    changed = [{}, *seeds, {"sequence": 1}, {"position": 13}, {"position": 12 + 2**32}]
    tokens = [one(level, logits, Row(**base | change)).token_id for change in changed]
    assert len(set(tokens)) == len(tokens)
    assert one(level, logits, Row(**base, num_logprobs=3)).token_id == tokens[0]
    # Flat logits: the token is where u says, so that this also pins the arithmetic across levels.
    assert tokens[0] == int(uniform(7, 0, 12) * 5000)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "row", [Row(), Row(temperature=1.0), Row(temperature=1.0, top_p=0.9), Row(temperature=1.0, top_k=5, min_p=0.1)]
)
def test_rows_without_an_answer(level: str, row: Row) -> None:
    """NaN counts as -inf; a row with nothing left is flagged, and its neighbours are not touched."""
    vocab = 600
    good = np.random.default_rng(0).standard_normal(vocab).astype(np.float32)
    broken = np.full(vocab, np.nan, np.float32)
    broken[::2] = -np.inf
    one_left = broken.copy()
    one_left[413] = -1e30
    banned = dataclasses.replace(row, allowed=np.zeros(vocab, bool))
    reporting = dataclasses.replace(row, num_logprobs=5)
    results = run(
        level,
        np.stack([broken, good, one_left, good, broken, broken]),
        [row, row, reporting, banned, banned, reporting],
    )
    assert [result.status for result in results] == [1, 0, 0, 2, 1, 1]
    assert results[0].token_id == results[3].token_id == 0
    assert (results[2].token_id, results[2].rank, results[2].logprob) == (413, 1, 0.0)
    assert results[1] == one(level, good, row)
    assert [value for _, value in results[5].top] == [LEAST_LOGPROB] * 5
    assert all(np.isfinite(value) for result in results for _, value in [*result.top, (0, result.logprob)])


@pytest.mark.parametrize("level", LEVELS)
def test_penalties_see_what_they_should(level: str) -> None:
    """Presence and frequency charge the output only; repetition is sign-aware and sees the prompt's tokens too."""
    logits = np.float32([2.0, -2.0, 1.9, -1.0, 0.0])

    def best(**changes: Any) -> int:
        return one(level, logits, Row(**changes)).token_id

    prompt = {0: 0, 1: 0}
    assert best(counts=prompt, presence_penalty=2.0, frequency_penalty=2.0) == 0
    assert best(counts={0: 1}, presence_penalty=0.2) == 2
    assert best(counts={0: 3}, frequency_penalty=0.05) == 2
    assert best(counts={0: 1}, frequency_penalty=0.05) == 0
    assert best(counts=prompt, repetition_penalty=1.5) == 2
    # -2 * 1.5 = -3 falls, where a division would raise it above -1.9.
    low = Row(
        counts=prompt, repetition_penalty=1.5, allowed=np.array([False, True, False, True, False]), bias=[(3, -1.5)]
    )
    assert one(level, logits, low).token_id == 3


@pytest.mark.parametrize("level", LEVELS)
def test_reported_logprobs_are_raw(level: str) -> None:
    """Whatever is masked, biased or cut: chosen and alternatives have the model's own logprobs, all finite."""
    logits = np.random.default_rng(5).standard_normal(400).astype(np.float32)
    row = Row(
        temperature=0.5, top_k=1, num_logprobs=5, bias=[(7, 100.0)], allowed=np.arange(400) % 7 == 0, counts={7: 4}
    )
    result = one(level, logits, row)
    assert result.token_id == 7
    check(result, logits, row)
    for limit in ({}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        for temperature in (0.5, 1.0, 2.0):
            row = Row(**{"temperature": temperature, "num_logprobs": 2, "seed": 4} | limit)
            check(one(level, logits, row), logits, row)


@pytest.mark.parametrize("level", LEVELS)
def test_a_large_vocabulary(level: str) -> None:
    """A quarter of a million tokens, flat and peaked, through every filter."""
    generator = np.random.default_rng(6)
    for scale in (0.01, 4.0):
        logits = (generator.standard_normal(262_144) * scale).astype(np.float32)
        for limit in ({}, {"top_p": 0.95}, {"top_k": 50}, {"top_k": 20_000, "top_p": 0.9}, {"min_p": 0.02}):
            row = Row(**{"temperature": 1.0, "seed": 3, "num_logprobs": 20} | limit)
            check(one(level, logits, row), logits, row)


def test_drafts_are_counted_for_their_row_only() -> None:
    logits = np.float32([[1.0, 0.9, 0.5]])
    counts = _native.TokenCounts(np.array([2], np.int32))
    inputs = inputs_for([Row(presence_penalty=0.3)] * 3, 3)
    inputs.source[:] = 0
    for r, drafts in enumerate(([], [0], [0, 1])):
        inputs.set_penalties(r, counts, drafts)
    level = _native.select_isa()
    _native.sample(level, POOLS[1], logits, inputs)
    assert inputs.token_ids.tolist() == [0, 1, 0]
    counts.add(0)  # the first row sees it without being set again; rows with drafts are a copy
    _native.sample(level, POOLS[1], logits, inputs)
    assert inputs.token_ids.tolist() == [1, 1, 0]


def test_wrong_sizes_are_refused() -> None:
    isa, logits = _native.select_isa(), np.zeros((1, 8), np.float32)
    inputs = inputs_for([Row()], 8)
    inputs.source[0] = 1
    with pytest.raises(IndexError, match="row 1 of 1 rows"):
        _native.sample(isa, POOLS[1], logits, inputs)
    inputs.source[0] = 0
    inputs.rows = 2
    with pytest.raises(IndexError, match="room for 1 rows, not 2"):
        _native.sample(isa, POOLS[1], logits, inputs)
    inputs.rows = 1
    with pytest.raises(ValueError, match="scratch for 1 threads, the pool has 2"):
        _native.sample(isa, POOLS[2], logits, inputs)
    with pytest.raises(ValueError, match="9 columns, the sampler has 8"):
        _native.sample(isa, POOLS[1], np.zeros((1, 9), np.float32), inputs)
    with pytest.raises(IndexError, match="no row 1"):
        inputs.clear_lists(1)
    for ids in ([99], [-1]):  # ids outside of the vocabulary touch nothing
        inputs.set_bias(0, np.array(ids, np.int32), np.array([5.0], np.float32))
        _native.sample(isa, POOLS[1], logits, inputs)
        assert inputs.token_ids[0] == 0
