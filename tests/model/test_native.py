"""The native backend, end to end, computes what transformers computes: paged, in chunks, and in company."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny

from octavo import _native
from octavo.build import build
from octavo.config import EngineConfig
from octavo.engine.batch import Batch
from octavo.loaded_model import LoadedModel
from octavo.runtime.runner import NativeRunner
from octavo.sampling_params import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
ISAS = [name for name, supported, _ in _native.isa_levels() if supported]
TOLERANCE = 1e-4  # of the largest logit, for float32
NEW_TOKENS = 64


class Recorder:
    """A runner around the runner, which keeps the logits of each position of each request."""

    def __init__(self, runner: Any) -> None:
        self.logits: dict[tuple[str, int], npt.NDArray[np.float32]] = {}
        self._runner = runner

    def launch(self, batch: Batch) -> Any:
        pending = self._runner.launch(batch)
        logits, row = self._runner.logits(), 0
        for scheduled in batch.ranges:
            last = scheduled.start + scheduled.num_tokens - 1
            positions = [*range(*scheduled.prompt_logprob_rows), *([last] if scheduled.sample_indices else [])]
            for position in positions:
                self.logits[scheduled.sequence.request.request_id, position] = logits[row].copy()
                row += 1
        return pending

    def close(self) -> None:
        self._runner.close()


def load(path: Path, **options: Any) -> LoadedModel:
    return build(EngineConfig(model=str(path), dtype="float32", kv_cache_memory=1 << 24, threads=2, **options))


def add(model: LoadedModel, name: str, ids: list[int], **params: Any) -> None:
    model.engine.add(model.admit(name, ids, SamplingParams(ignore_eos=True, **params)))


def finish(model: LoadedModel) -> dict[str, list[int]]:
    """Steps until all is done; the new tokens of each request."""
    tokens: dict[str, list[int]] = {}
    while model.engine.has_work():
        for news in model.engine.step():
            assert news.finish_reason != "error"
            tokens.setdefault(news.request_id, []).extend(news.token_ids)
    return tokens


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, isa: str, tmp_path: Path) -> None:
    model = load(tiny.write_checkpoint(name, tmp_path / name), isa=isa, max_num_batched_tokens=32)
    recorder = model.engine.runner = Recorder(model.engine.runner)
    ids = tiny.prompt(name)
    add(model, "beside", ids[40:55], max_tokens=NEW_TOKENS, temperature=1.0, seed=1)
    add(model, "asked", ids, max_tokens=NEW_TOKENS, temperature=0, prompt_logprobs=0)
    add(model, "behind", ids[:70], max_tokens=NEW_TOKENS, temperature=1.0, seed=2)
    tokens = finish(model)
    model.close()
    with np.load(GOLDEN / f"tiny_{name}.npz") as golden:
        expected, greedy = golden["logits"], golden["greedy"].tolist()
    logits = np.stack([recorder.logits["asked", position] for position in range(9, len(ids), 10)])
    assert np.abs(logits - expected).max() / np.abs(expected).max() < TOLERANCE
    assert tokens["asked"] == greedy


def test_a_step_is_one_native_call(tmp_path: Path) -> None:
    model = load(tiny.write_checkpoint("gemma3", tmp_path), max_num_batched_tokens=32)
    runner = model.engine.runner
    assert isinstance(runner, NativeRunner)
    program = runner.program
    for i in range(3):
        add(model, f"r{i}", tiny.prompt("gemma3")[i:], max_tokens=8, n=1 + i, temperature=1.0, seed=i)
    before, steps = program.runs, 0
    while model.engine.has_work():
        model.engine.step()
        steps += 1
        assert program.runs == before + steps
    assert steps > 8


def test_python_does_the_same_work_for_two_layers_and_for_thirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for layers in (2, 30):
        monkeypatch.setitem(tiny.CONFIGS, "llama", tiny.CONFIGS["llama"] | {"num_hidden_layers": layers})
        model = load(tiny.write_checkpoint("llama", tmp_path / str(layers)))
        for i in range(4):
            # One token for both models: text that comes in parts of characters takes more calls.
            add(model, f"r{i}", tiny.prompt("llama")[: 20 + i], max_tokens=32, allowed_token_ids=[65])
        for _ in range(4):
            model.engine.step()
        counts.append(calls_of(model.engine.step))
        model.close()
    assert counts[0] == counts[1] > 0


def calls_of(function: Any) -> int:
    """Calls of Python and of C functions that `function` makes."""
    count = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # a collection in the middle would run finalisers of others
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count
