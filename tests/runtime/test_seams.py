"""What later parts will attach to: host functions, cuts, pooled outputs, a user's decoder, steps in flight, drafts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny

from octavo.build import build
from octavo.config import EngineConfig
from octavo.engine.batch import Batch, RangeOutput
from octavo.engine.engine import Engine
from octavo.errors import RequestError
from octavo.loaded_model import LoadedModel
from octavo.model.architectures import resolve_model
from octavo.model.description import Description
from octavo.ops.reference import PagedCache, ReferenceOps, StepInputs, elementwise
from octavo.sampling_params import SamplingParams

NAME = "gemma3"  # windows and full attention: two cache groups
HEADER = """
from dataclasses import replace
from octavo.model.architectures import HF_ARCHITECTURES
from octavo.model.decoder import attention, decoder, mlp, norm

SEEN = []
"""
FOOTER = """
ARCHITECTURES = {"Gemma3ForCausalLM": replace(HF_ARCHITECTURES["Gemma3ForCausalLM"], decoder=users)}
"""
PARALLEL = """
def users(config, weights, ops, cuts=()):
    # Attention and MLP side by side: no built-in architecture has it.
    x = ops.embed(weights["embed"], config.embedding_scale)
    for layer in range(config.num_layers):
        branches = ops.add(attention(config, weights, ops, layer, x), mlp(config, weights, ops, layer, x))
        x = ops.scale(ops.add(x, branches), 0.5)
    x = norm(config, weights["final_norm"], ops, ops.select_rows(x))
    return ops.logits(x, weights["embed"], softcap=3.0, scale=0.25)
"""
CALLS = """
class Calling:
    # The vocabulary, with a host function behind every embedding and every attention.
    def __init__(self, ops):
        self.ops = ops

    def __getattr__(self, name):
        return getattr(self.ops, name)

    def embed(self, weight, scale=1.0):
        return self.ops.call(see("embed"), self.ops.embed(weight, scale))

    def attention(self, q, k, v, layer, spec):
        return self.ops.call(see("attention"), self.ops.attention(q, k, v, layer, spec), k)

def see(name):
    def function(x, *others):
        SEEN.append((name, x.copy(), [other.copy() for other in others]))
        return x
    return function

def users(config, weights, ops, cuts=()):
    return decoder(config, weights, Calling(ops), cuts)
"""
FAILS = """
def users(config, weights, ops, cuts=()):
    x = ops.embed(weights["embed"], config.embedding_scale)
    x = ops.call(fail_on_three_tokens, x)
    return ops.logits(ops.select_rows(x), weights["embed"])

def fail_on_three_tokens(x):
    if len(x) == 3:
        raise RuntimeError("three tokens")
    return x
"""
POOLS = """
def users(config, weights, ops, cuts=()):
    x = ops.embed(weights["embed"], config.embedding_scale)
    x = ops.add(x, attention(config, weights, ops, 0, x))
    ops.pool(x)
    return ops.logits(ops.select_rows(ops.scale(x, 0.5)), weights["embed"])
"""
CUT = """
def users(config, weights, ops, cuts=()):
    return decoder(config, weights, ops, (1,))
"""
Logits = dict[tuple[str, int], npt.NDArray[np.float32]]


class Recorder:
    """A runner around the runner, which keeps the logits that each request's samples come from."""

    def __init__(self, runner: Any) -> None:
        self.logits: Logits = {}
        self.drafts = 0
        self._runner = runner

    def launch(self, batch: Batch) -> Any:
        pending = self._runner.launch(batch)
        logits, row = self._runner.logits(), 0
        for scheduled in batch.ranges:
            if scheduled.sample_indices:
                self.drafts += scheduled.num_drafts
                last = scheduled.start + scheduled.num_tokens - 1
                # A position that was a rejected draft is computed again, with the right token: the later one counts.
                for position in range(last - scheduled.num_drafts, last + 1):
                    self.logits[scheduled.sequence.request.request_id, position] = logits[row].copy()
                    row += 1
        return pending

    def close(self) -> None:
        self._runner.close()


def load(path: Path, users: str = "", **options: Any) -> LoadedModel:
    """The tiny checkpoint, with a decoder of the user's if `users` is the text of one."""
    if not (path / "config.json").exists():
        tiny.write_checkpoint(NAME, path)
    if users:
        (path / "mine.py").write_text(HEADER + users + FOOTER)
        options["architecture"] = str(path / "mine.py")
    options = {"dtype": "float32", "kv_cache_memory": 1 << 24, "threads": 2, "max_num_batched_tokens": 32} | options
    return build(EngineConfig(model=str(path), **options))


def seen() -> list[Any]:
    """What the functions of the user's file have noted."""
    noted: list[Any] = sys.modules["octavo_architecture_mine"].SEEN
    return noted


def add_requests(model: LoadedModel, engine: Engine | None = None) -> None:
    ids = tiny.prompt(NAME)
    greedy = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    drawn = SamplingParams(max_tokens=24, temperature=1.0, seed=7, ignore_eos=True)
    for name, prompt, params in [("a", ids, greedy), ("b", ids[:50], drawn), ("c", ids[7:9], greedy)]:
        (engine or model.engine).add(model.admit(name, prompt, params))


def finish(engine: Engine, between: Callable[[], None] = lambda: None) -> dict[str, list[int]]:
    """Steps until all is done; the new tokens of each request. `between` runs before each step."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work():
        between()
        for news in engine.step():
            assert news.finish_reason != "error"
            tokens.setdefault(news.request_id, []).extend(news.token_ids)
        engine.scheduler.check()
    return tokens


def plain_run(path: Path) -> tuple[dict[str, list[int]], Logits]:
    """Tokens and logits of the same requests without whatever is tested."""
    model = load(path)
    recorder = model.engine.runner = Recorder(model.engine.runner)
    add_requests(model)
    tokens = finish(model.engine)
    model.close()
    return tokens, recorder.logits


def same_bits(logits: Logits, expected: Logits) -> bool:
    return logits.keys() == expected.keys() and all(np.array_equal(logits[key], expected[key]) for key in logits)


def reference(users: Callable[..., Any], ids: list[int], output_rows: Collection[int]) -> npt.NDArray[np.float64]:
    """What a decoder yields by the definitions, for one sequence computed whole, in float64."""
    stored = tiny.make_weights(NAME)
    model = resolve_model(Description(tiny.CONFIGS[NAME], frozenset(stored)))
    weights = {weight: stored[tensor].astype(np.float64) for weight, tensor in model.weight_names.items()}
    config = model.config
    windows = [window for window, _ in config.cache_groups]
    blocks = -(-len(ids) // 16)
    groups = [windows.index(layer.window) for layer in config.layers]
    cache = PagedCache(groups, [blocks] * len(windows), 16, config.num_kv_heads, config.head_dim)
    inputs = StepInputs(
        token_ids=np.array(ids, np.int32),
        positions=np.arange(len(ids), dtype=np.int32),
        query_start=np.array([0, len(ids)], np.int32),
        seq_lens=np.array([len(ids)], np.int32),
        block_tables=tuple(np.arange(blocks, dtype=np.int32)[None] for _ in windows),
        slot_mapping=tuple(np.arange(len(ids)) for _ in windows),
        output_rows=np.array(list(output_rows), np.int32),
    )
    result: npt.NDArray[np.float64] = users(config, weights, ReferenceOps(inputs, cache))
    return result


def close_to(value: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    return bool(np.abs(value - expected).max() <= 1e-4 * np.abs(expected).max())


def test_a_decoder_of_the_users_own(tmp_path: Path) -> None:
    """End to end, under an architecture name that octavo does not know."""
    tiny.write_checkpoint(NAME, tmp_path)
    config = tiny.CONFIGS[NAME] | {"architectures": ["MineForCausalLM"]}
    tiny.write_json(tmp_path / "config.json", config)
    (tmp_path / "mine.py").write_text(HEADER + PARALLEL + FOOTER.replace('{"Gemma3', '{"Mine'))
    model = load(tmp_path, architecture=str(tmp_path / "mine.py"))
    recorder = model.engine.runner = Recorder(model.engine.runner)
    add_requests(model)
    tokens = finish(model.engine)
    model.close()
    users = sys.modules["octavo_architecture_mine"].users
    for name, prompt in [("a", tiny.prompt(NAME)), ("c", tiny.prompt(NAME)[7:9])]:
        ids = prompt + tokens[name][:-1]
        rows = range(len(prompt) - 1, len(ids))
        expected = reference(users, ids, rows)
        assert close_to(np.stack([recorder.logits[name, position] for position in rows]), expected)


def test_host_functions_see_the_right_arrays_and_change_nothing(tmp_path: Path) -> None:
    tokens, expected = plain_run(tmp_path)
    model = load(tmp_path, CALLS)
    recorder = model.engine.runner = Recorder(model.engine.runner)
    program = recorder._runner.program
    add_requests(model)
    assert finish(model.engine) == tokens
    assert same_bits(recorder.logits, expected)
    layers, runs = tiny.CONFIGS[NAME]["num_hidden_layers"], program.runs
    model.close()
    noted = seen()
    assert [name for name, _, _ in noted] == (["embed"] + ["attention"] * layers) * runs
    table = tiny.make_weights(NAME)["model.embed_tokens.weight"] * np.float32(np.sqrt(64))
    ids = tiny.prompt(NAME)
    np.testing.assert_allclose(noted[0][1], table[ids[:32]], rtol=1e-6)
    config = tiny.CONFIGS[NAME]
    width = config["head_dim"] * config["num_attention_heads"]
    assert noted[1][1].shape == (32, width)
    assert [other.shape for other in noted[1][2]] == [(32, config["head_dim"] * config["num_key_value_heads"])]


def test_an_exception_of_a_host_function_ends_its_requests_only(tmp_path: Path) -> None:
    model = load(tmp_path, FAILS)
    for prompt, reason in [([1, 2], "length"), ([1, 2, 3], "error"), ([1, 2, 3, 4], "length")]:
        model.engine.add(model.admit("r", prompt, SamplingParams(max_tokens=2, ignore_eos=True)))
        reasons = []
        while model.engine.has_work():
            reasons += [news.finish_reason for news in model.engine.step()]
        assert reasons[-1] == reason
        model.engine.scheduler.check()


def test_what_cannot_be_written_ends_its_request_and_leaves_the_others_their_tokens(tmp_path: Path) -> None:
    """Whichever of a step's arrays it is, and with what the other rows count from step to step."""
    counted = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, repetition_penalty=1.5)

    def run(breaks: dict[int, Callable[[LoadedModel], None]]) -> dict[str, list[int]]:
        model = load(tmp_path)
        ids = tiny.prompt(NAME)
        for name in ("bad input", "bad sampling"):
            if breaks:
                # Its row of the sampler is written at first, and when stop ids are no longer banned.
                params = SamplingParams(max_tokens=24, min_tokens=12, temperature=0, ignore_eos=True)
                model.engine.add(model.admit(name, ids[3:9], params))
        add_requests(model)
        model.engine.add(model.admit("counted", ids[:9], counted))
        tokens: dict[str, list[int]] = {}
        errors = []
        step = 0
        while model.engine.has_work():
            if change := breaks.get(step := step + 1):
                change(model)
            for news in model.engine.step():
                if news.finish_reason == "error":
                    errors.append((news.request_id, news.error))
                tokens.setdefault(news.request_id, []).extend(news.token_ids)
            model.engine.scheduler.check()
        assert {name for name, _ in errors} == {name for name in tokens if name.startswith("bad")}
        assert all(error and "Overflow" in error for _, error in errors)
        assert model.engine.snapshot().kv_cache_usage == 0.0
        model.close()
        return {name: ids for name, ids in tokens.items() if not name.startswith("bad")}

    def spoil_input(model: LoadedModel) -> None:
        model.engine.scheduler.requests["bad input"][0].token_ids[-1] = 1 << 40

    def spoil_sampling(model: LoadedModel) -> None:
        params = model.engine.scheduler.requests["bad sampling"][0].request.params
        object.__setattr__(params, "logit_bias", {1 << 40: 1.0})

    assert run({9: spoil_input, 11: spoil_sampling}) == run({})
    assert run({1: spoil_sampling, 11: spoil_input}) == run({})


def test_a_program_in_two_stages_is_the_program_in_one(tmp_path: Path) -> None:
    """Segments: the update of the cache, the blocks before the cut, those after it with the head, the sampler."""
    tokens, expected = plain_run(tmp_path)

    class Staged:
        def __init__(self, program: Any, first: int) -> None:
            self._program, self._first = program, first

        def __getattr__(self, name: str) -> Any:
            return getattr(self._program, name)

        def run(self) -> None:
            self._program.run(0, self._first)
            self._program.run(self._first, -1)

    for first in range(5):
        model = load(tmp_path, CUT)
        runner: Any = model.engine.runner
        assert runner.program.segments == 4
        runner.program = Staged(runner.program, first)
        recorder = model.engine.runner = Recorder(runner)
        add_requests(model)
        assert finish(model.engine) == tokens
        assert same_bits(recorder.logits, expected)
        model.close()


def test_vectors_are_pooled_from_the_array_that_a_decoder_names(tmp_path: Path) -> None:
    """A residual sum here, which a pass makes the epilogue of a linear; and none where a decoder names no array."""
    model = load(tmp_path, POOLS)
    prompts = {"a": tiny.prompt(NAME), "b": tiny.prompt(NAME)[50:], "c": [5]}
    params = SamplingParams(max_tokens=0, detokenize=False)
    for name, ids in prompts.items():
        for kind in ("last", "mean"):
            model.engine.add(model.admit(f"{name} {kind}", ids, params, pooling=kind))
    vectors = {}
    while model.engine.has_work():
        vectors |= {news.request_id: news.vector for news in model.engine.step()}
    model.close()

    def states(config: Any, weights: Any, ops: ReferenceOps) -> Any:
        sys.modules["octavo_architecture_mine"].users(config, weights, ops)
        return ops.pooled

    for name, ids in prompts.items():
        for kind in ("last", "mean"):
            assert close_to(vectors[f"{name} {kind}"], elementwise.pool(reference(states, ids, [0]), kind))
    model = load(tmp_path, PARALLEL)
    with pytest.raises(RequestError, match="no vectors"):
        model.admit("r", [5], params, pooling="mean")
    model.close()


def test_a_step_is_scheduled_before_the_last_one_is_committed(tmp_path: Path) -> None:
    """The runner's own record of what it sampled stands in for tokens that the scheduler has not seen yet."""
    tokens, expected = plain_run(tmp_path)
    model = load(tmp_path)
    recorder = Recorder(model.engine.runner)
    launched, committed, most, placeholders = 0, 0, 0, 0

    class Delayed:
        """Hands a step's outputs over only when they are asked for."""

        def launch(self, batch: Batch) -> Delayed.Pending:
            nonlocal launched, most, placeholders
            launched += 1
            most = max(most, launched - committed)
            placeholders += sum(scheduled.sequence.token_ids[-1] < 0 for scheduled in batch.ranges)
            return Delayed.Pending(recorder.launch(batch))

        def close(self) -> None:
            recorder.close()

        class Pending:
            def __init__(self, pending: Any) -> None:
                self._pending = pending

            def outputs(self) -> list[RangeOutput]:
                nonlocal committed
                committed += 1
                results: list[RangeOutput] = self._pending.outputs()
                return results

    engine = Engine(model.engine.scheduler, Delayed(), lookahead=1)
    add_requests(model, engine)
    assert finish(engine) == tokens
    assert most == 2
    assert placeholders > 20
    assert same_bits(recorder.logits, expected)
    model.close()


@pytest.mark.parametrize("right", [0, 2, 4])
def test_drafts_change_nothing_whether_they_are_right_or_wrong(right: int, tmp_path: Path) -> None:
    """Before every step each sequence that runs is given 4 guesses, of which the first `right` are what comes."""
    tokens, expected = plain_run(tmp_path)
    model = load(tmp_path)
    recorder = model.engine.runner = Recorder(model.engine.runner)
    add_requests(model)

    def guess() -> None:
        for sequence in model.engine.scheduler.running:
            done = sequence.num_output_tokens
            if done:
                coming = tokens[sequence.request.request_id][done : done + right]
                wrong = [(token + 1) % 256 for token in tokens[sequence.request.request_id][done + right : done + 4]]
                sequence.draft_token_ids = coming + wrong

    assert finish(model.engine, guess) == tokens
    assert recorder.drafts > 20
    assert same_bits({key: recorder.logits[key] for key in expected}, expected)
    model.close()
