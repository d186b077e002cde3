"""From batches to the sampler's rows and back, with the real kernel: what a request asks is what its tokens show."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.engine.batch import Batch, RangeOutput, ScheduledRange, TokenOutput
from octavo.engine.request import Request, Sequence
from octavo.ops.reference.sampler import Row, logprobs, sample
from octavo.runtime.inputs import RangeFault
from octavo.runtime.sampler import BatchSampler
from octavo.sampling_params import SamplingParams

VOCAB = 300
EOS = 299
POOL = _native.ThreadPool(2)
NUMBERS = itertools.count()


def model(tokens: list[int]) -> np.ndarray:
    """Logits that depend on every token before, as a model's do."""
    seed = hash(tuple(tokens)) & 0xFFFFFFFF
    return (np.random.default_rng(seed).standard_normal(VOCAB) * 3).astype(np.float32)


def make(
    prompt: list[int], *, index: int = 0, bad: Any = (), stop: Any = (EOS,), seed: int = 7, **params: Any
) -> Sequence:
    asked = SamplingParams(**{"max_tokens": 64} | params)
    request = Request(
        request_id=f"r{next(NUMBERS)}", prompt_token_ids=tuple(prompt), params=asked, seed=seed, max_tokens=64,
        stop_token_ids=frozenset(stop), eos_token_ids=frozenset({EOS}), bad_word_ids=tuple(map(tuple, bad)),
    )  # fmt: skip
    return Sequence(request, index, 0, 1)


class World:
    """A sampler and the kernel, driven by ranges; the model's logits stand in for a Program."""

    def __init__(self, max_rows: int = 32) -> None:
        self.inputs = _native.SampleInputs(max_rows, VOCAB, 20, POOL.threads)
        self.sampler = BatchSampler(self.inputs)

    def run(self, *others: ScheduledRange, decodes: tuple[ScheduledRange, ...] = ()) -> list[Any]:
        rows = []
        for scheduled in (*decodes, *others):
            tokens = scheduled.sequence.token_ids + scheduled.sequence.draft_token_ids
            end = scheduled.start + scheduled.num_tokens
            positions = list(range(*scheduled.prompt_logprob_rows))
            if scheduled.sample_indices:
                positions += range(end - scheduled.num_drafts - 1, end)
            rows += [model(tokens[: position + 1]) for position in positions]
        batch = Batch(0, list(others), [], [[]], decodes=list(decodes))
        self.sampler.write(batch)
        _native.sample(_native.select_isa(), POOL, np.stack(rows), self.inputs)
        return self.sampler.read(batch)


def step(sequence: Sequence) -> ScheduledRange:
    """All of a sequence's tokens, so that the next is sampled."""
    return ScheduledRange(sequence, 0, len(sequence.token_ids), (sequence.index,))


def generate(sequence: Sequence, count: int, world: World | None = None) -> list[TokenOutput]:
    world = world or World()
    outputs = []
    for _ in range(count):
        outputs.append(world.run(step(sequence))[0].samples[0])
        sequence.token_ids.append(outputs[-1].token_id)
    return outputs


def ids(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs]


def reference(sequence: Sequence, tokens: list[int], **more: Any) -> int:
    """The token that the definition samples after `tokens`, from the parameters as the API documents them."""
    params = sequence.request.params
    outputs = tokens[sequence.num_prompt_tokens :]
    counts = {t: outputs.count(t) for t in set(tokens)} if params.has_penalties else {}
    row = Row(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p,
        repetition_penalty=params.repetition_penalty, presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty, seed=sequence.request.seed, sequence=sequence.index,
        position=len(tokens), counts=counts, **more,
    )  # fmt: skip
    return sample(model(tokens), row).token_id


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "presence_penalty": 2.0, "frequency_penalty": 1.0},
        {"temperature": 0.0, "repetition_penalty": 1.8},
        {"temperature": 1.0, "repetition_penalty": 0.7, "frequency_penalty": -1.5},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_tokens_meet_the_definition(params: dict[str, Any]) -> None:
    """Penalties count prompt and output apart, and keep up as tokens come."""
    sequence = make([5, 5, 8, 250], **params)
    tokens = list(sequence.token_ids)
    for output in generate(sequence, 30):
        assert output == TokenOutput(reference(sequence, tokens))
        tokens.append(output.token_id)


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3, 4, 5, 6, 7]])
def test_min_tokens_counts_output_only(prompt: list[int]) -> None:
    """Four other tokens, then the forced EOS, whatever the prompt's length; ids past the vocabulary do no harm."""
    sequence = make(prompt, temperature=0.0, min_tokens=4, logit_bias={EOS: 100.0}, stop=(EOS, 10**9, 2**31 - 1))
    tokens = ids(generate(sequence, 5))
    assert EOS not in tokens[:4]
    assert tokens[4] == EOS


def test_min_tokens_goes_by_position_while_a_token_is_in_flight() -> None:
    world, sequence = World(), make([1, 2], temperature=0.0, min_tokens=2, logit_bias={EOS: 100.0})
    sequence.token_ids += [-1, -1]  # not committed, and not needed
    assert world.run(ScheduledRange(sequence, 2, 1, (0,)))[0].samples[0].token_id != EOS
    assert world.run(ScheduledRange(sequence, 3, 1, (0,)))[0].samples[0].token_id == EOS


def test_logit_bias_and_allowed_ids() -> None:
    assert set(ids(generate(make([1], temperature=1.0, logit_bias={9: 100.0}), 10))) == {9}
    assert 9 not in ids(generate(make([1], temperature=2.0, logit_bias={9: -100.0}), 40))
    allowed = [3, 31, 32, 63, 298]
    tokens = ids(generate(make([1], temperature=2.0, allowed_token_ids=[*allowed, 10**6]), 60))
    assert set(tokens) == set(allowed)


def test_rows_of_plain_decodes_move_with_what_was_asked() -> None:
    """Sequences leave and join: each yields in every step what it yields alone, whichever row it has had."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0, "logit_bias": {9: 100.0}}, {"allowed_token_ids": [3, 64, 298]}, {}, {"top_k": 5},
        {"temperature": 0.5, "logit_bias": {8: 4.0, 7: 5.0}, "allowed_token_ids": [7, 8, 31]}, {"min_p": 0.1},
    ]  # fmt: skip
    shuffle, world = random.Random(1), World()
    running: list[ScheduledRange] = []
    tokens: dict[int, list[int]] = {}
    for _ in range(60):
        for gone in [scheduled for scheduled in running if shuffle.random() < 0.15]:
            running.remove(gone)
        while len(running) < shuffle.randint(1, 8):
            seed = len(tokens)
            sequence = make([seed, 5], seed=seed, **kinds[seed % len(kinds)])
            tokens[seed] = []
            running.insert(shuffle.randint(0, len(running)), ScheduledRange(sequence, 1, 1, (0,)))
        outputs = world.run(decodes=tuple(running))
        for scheduled, output in zip(running, outputs, strict=True):
            assert isinstance(output, int)
            scheduled.sequence.token_ids.append(output)
            scheduled.start += 1
            tokens[scheduled.sequence.request.seed].append(output)
    assert len(tokens) > 40
    for seed, sampled in tokens.items():
        assert ids(generate(make([seed, 5], seed=seed, **kinds[seed % len(kinds)]), len(sampled))) == sampled


def test_bad_words_end_is_banned_after_their_beginning() -> None:
    force = {"temperature": 0.0, "logit_bias": {10: 40.0, 11: 100.0, 12: 70.0}}
    assert ids(generate(make([1], bad=[[11]], **force), 3)) == [12, 12, 12]
    # 11 is fine at first, and 11 after 11 is not; the prompt's own 11 does not count.
    assert ids(generate(make([11], bad=[[11, 11]], **force), 4)) == [11, 12, 11, 12]
    assert ids(generate(make([1], bad=[[11, 12], [11, 11], [11, 10, 11]], **force), 6)) == [11, 10, 12, 11, 10, 12]


def test_greedy_limits_and_tiny_temperatures() -> None:
    """Each of these is greedy."""
    greedy = ids(generate(make([4, 4], temperature=0.0), 12))
    for params in (
        {"temperature": 1e-4},
        {"temperature": 1e-12},
        {"temperature": 5e-324},
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
    ):
        assert ids(generate(make([4, 4], **params), 12)) == greedy
    assert ids(generate(make([4, 4], top_k=10**9), 12)) == ids(generate(make([4, 4]), 12))


def test_a_seed_decides_alone() -> None:
    """The same tokens alone and among seven others, in any row; another seed or index gives others."""
    alone = ids(generate(make([1, 2, 3], seed=7), 16))
    world, target = World(), make([1, 2, 3], seed=7)
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.0}, {"top_p": 0.5}, {"repetition_penalty": 1.3}, {"logprobs": 3},
        {"allowed_token_ids": [1, 2]}, {"min_tokens": 5},
    ]  # fmt: skip
    others = [make([i, i], seed=i, **kind) for i, kind in enumerate(kinds)]
    together = []
    shuffle = random.Random(0)
    for _ in range(16):
        batch = [*others, target]
        shuffle.shuffle(batch)
        for sequence, output in zip(batch, world.run(*map(step, batch)), strict=True):
            sequence.token_ids.append(output.samples[0].token_id)
            if sequence is target:
                together.append(output.samples[0].token_id)
    assert together == alone
    assert ids(generate(make([1, 2, 3], seed=8), 16)) != alone
    assert ids(generate(make([1, 2, 3], seed=7, index=1), 16)) != alone
    for seed in (2**63 - 1, 2**64 - 1, 0):
        assert len(ids(generate(make([1, 2, 3], seed=seed), 4))) == 4


def test_lines_of_one_request_share_the_prompts_row() -> None:
    """n = 4: each line's first token is the one that it would sample alone with its index."""
    params: dict[str, Any] = {"n": 4, "repetition_penalty": 1.5, "logprobs": 2}
    sequence = make([3, 1, 4], **params)
    world = World()
    other = make([9], temperature=0.0)
    outputs = world.run(step(other), ScheduledRange(sequence, 0, 3, (0, 1, 2, 3)), step(other))
    alone = [generate(make([3, 1, 4], index=i, **params), 1)[0] for i in range(4)]
    assert outputs[1].samples == alone
    assert outputs[0] == outputs[2] == RangeOutput(generate(other, 1))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0, "frequency_penalty": 2.0, "repetition_penalty": 1.3},
        {"min_tokens": 3, "logit_bias": {EOS: 100.0}},
        {"bad": [[7, 7], [7]], "logit_bias": {7: 50.0}},
    ],
)
def test_drafts_change_nothing(params: dict[str, Any]) -> None:
    """A row behind drafts yields what it yields once they are tokens; rows that held drafts then serve others."""
    slow = make([2, 2, 6], **params)
    expected = generate(slow, 6)
    for drafts in range(1, 5):
        world = World()
        quick = make([2, 2, 6], **params)
        generate(quick, 1, world)
        quick.draft_token_ids = ids(expected[1 : drafts + 1])
        outputs = world.run(ScheduledRange(quick, 3, drafts + 1, (0,), num_drafts=drafts))
        assert outputs[0].samples == expected[1 : drafts + 2]
        quick.token_ids += quick.draft_token_ids
        quick.draft_token_ids = []
        assert generate(quick, 1, world)[0] == expected[drafts + 1]


def test_a_wrong_draft_is_forgotten() -> None:
    params: dict[str, Any] = {"temperature": 0.0, "frequency_penalty": 2.0, "logit_bias": {8: 15.0, 9: 14.0}}
    expected = generate(make([2], **params), 12)
    world, sequence = World(), make([2], **params)
    for output in expected:
        sequence.draft_token_ids = [8, 9]
        drafted = ScheduledRange(sequence, 0, len(sequence.token_ids) + 2, (0,), num_drafts=2)
        assert world.run(drafted)[0].samples[0] == output
        sequence.draft_token_ids = []
        assert generate(sequence, 1, world) == [output]


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_prompt_logprobs(chunk: int) -> None:
    """Each prompt token but the first, scored by the logits before it, however the prompt is cut."""
    prompt = [random.Random(1).randrange(VOCAB) for _ in range(40)]
    sequence, world = make(prompt, prompt_logprobs=3, logprobs=0, temperature=0.0), World(64)
    found: list[TokenOutput] = []
    for start in range(0, 40, chunk):
        end = min(40, start + chunk)
        rows = (start, min(end, 39))
        scheduled = ScheduledRange(sequence, start, end - start, (0,) if end == 40 else (), prompt_logprob_rows=rows)
        other = make([5], temperature=0.0)
        outputs = world.run(step(other), scheduled) if rows[0] < rows[1] or end == 40 else world.run(step(other))
        if len(outputs) > 1:
            found += outputs[1].prompt_logprobs
            assert len(outputs[1].samples) == (end == 40)
    assert ids(found) == prompt[1:]
    for position, output in enumerate(found):
        values = logprobs(model(prompt[: position + 1]))
        order = np.argsort(-values, kind="stable")
        assert output.logprob == pytest.approx(values[output.token_id], abs=1e-4)
        assert order[output.rank - 1] == output.token_id
        assert [token for token, _ in output.top] == order[:3].tolist()


def test_number_of_logprobs() -> None:
    """0 is the token's own alone, 5 gives five, None none; all are finite, whatever is masked."""
    for asked, entries in ((None, 0), (0, 0), (5, 5), (20, 20)):
        output = generate(make([1], logprobs=asked, top_k=1, allowed_token_ids=[5]), 1)[0]
        assert len(output.top) == entries
        assert (output.rank > 0) == (asked is not None)
        assert all(np.isfinite(value) for value in [output.logprob, *(value for _, value in output.top)])


def test_rows_are_patched_as_if_written_anew() -> None:
    """Sequences of every kind come, go, miss steps and change rows; each token is what a fresh sampler gives."""
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.0}, {"logprobs": 2}, {"top_k": 3, "top_p": 0.5}, {"frequency_penalty": 1.5},
        {"min_tokens": 6, "logit_bias": {EOS: 100.0}}, {"repetition_penalty": 1.7, "temperature": 0.0},
        {"bad": [[4], [5, 6]], "temperature": 2.0}, {"allowed_token_ids": list(range(40))}, {"min_p": 0.2},
        {"prompt_logprobs": 1},
    ]  # fmt: skip
    choose = random.Random(3)
    world, alive = World(12), [make([i, i + 1], seed=i, **kind) for i, kind in enumerate(kinds)]
    for _ in range(60):
        if choose.random() < 0.3:
            at = choose.randrange(len(alive))
            alive[at] = make([choose.randrange(VOCAB)] * 3, seed=choose.randrange(99), **choose.choice(kinds))
        ranges = []
        for sequence in choose.sample(alive, choose.randrange(1, len(alive))):
            scheduled = step(sequence)
            if len(sequence.token_ids) == 2 and sequence.request.params.prompt_logprobs:
                scheduled.prompt_logprob_rows = (0, 1)
            ranges.append(scheduled)
        outputs = world.run(*ranges)
        assert outputs == [World().run(scheduled)[0] for scheduled in ranges]
        for scheduled, output in zip(ranges, outputs, strict=True):
            scheduled.sequence.token_ids.append(output.samples[0].token_id)


def test_failures_name_the_range() -> None:
    """What bans every token fails its own range, and says why."""
    world = World()
    good, bad = make([1], temperature=0.0), make([1], allowed_token_ids=[EOS], min_tokens=2)
    outputs = world.run(step(good), step(bad), step(good))
    assert [output.error is not None for output in outputs] == [False, True, False]
    assert "No token may be sampled" in str(outputs[1].error)
    assert outputs[0] == outputs[2]
    assert world.run(step(good))[0].error is None


def test_a_step_without_rows() -> None:
    world, sequence = World(), make([1, 2, 3])
    batch = Batch(0, [ScheduledRange(sequence, 0, 2, ())], [], [[]])
    world.sampler.write(batch)
    assert world.inputs.rows == 0
    assert world.sampler.read(batch) == [RangeOutput([])]


def test_more_rows_than_made_for_are_refused() -> None:
    sequence = make([1, 2, 3], n=8)
    with pytest.raises(RangeFault, match="at least 8 rows; the sampler was made for 4"):
        World(4).run(ScheduledRange(sequence, 0, 3, tuple(range(8))))
