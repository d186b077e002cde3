"""Tiny: transformers and octavo side by side on freshly seeded tiny checkpoints of each architecture, in float32."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.judges.report import ROOT, Verdict, ask_oracle

from octavo.build import build
from octavo.config import EngineConfig
from octavo.sampling_params import SamplingParams

sys.path.insert(0, str(ROOT / "tests" / "model"))
import tiny

BUDGET = 120.0  # seconds of the oracle, for each checkpoint
TOLERANCE = 1e-4  # of the largest logit
NEW_TOKENS = 64


def run(options: argparse.Namespace) -> Verdict:
    """One row for each checkpoint: the largest difference of logits, and how many greedy tokens are equal."""
    seed = secrets.randbelow(1 << 30) if options.seed is None else options.seed
    # The seed of a checkpoint's weights and of its prompt; the recorded goldens have the sum of its name's letters.
    tiny.seed_of = lambda name: (seed + sum(name.encode())) % (1 << 32)
    lines = [f"Seed {seed}.", "", "| checkpoint | largest difference | equal greedy tokens | |", "|---|--:|--:|---|"]
    passed = True
    for name in tiny.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            difference, equal = compare(name, Path(folder), options.oracle)
        good = difference < TOLERANCE and equal == NEW_TOKENS
        lines.append(f"| {name} | {difference:.1e} | {equal} of {NEW_TOKENS} | {'pass' if good else 'FAIL'} |")
        passed &= good
    return Verdict(passed, lines)


def compare(name: str, folder: Path, oracle: str | None) -> tuple[float, int]:
    """The largest difference of logits relative to the largest logit, and the number of equal greedy tokens."""
    path = tiny.write_checkpoint(name, folder / "model")
    prompt = tiny.prompt(name)
    (folder / "ids.json").write_text(json.dumps({"prompt": prompt}))
    ask_oracle(oracle, ["folder", str(path), str(folder / "ids.json"), str(folder)], BUDGET)
    expected = np.load(folder / "prompt.npy")
    greedy = json.loads((folder / "greedy.json").read_text())["prompt"]
    model = build(EngineConfig(model=str(path), dtype="float32", max_num_batched_tokens=32, kv_cache_memory=1 << 24))
    recorder = Recorder(model.engine.runner)
    model.engine.runner = recorder
    beside = SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=1, ignore_eos=True)
    asked = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, prompt_logprobs=0)
    model.engine.add(model.admit("beside", prompt[:20], beside))
    model.engine.add(model.admit("asked", prompt, asked))
    tokens: list[int] = []
    while model.engine.has_work():
        for news in model.engine.step():
            tokens += news.token_ids if news.request_id == "asked" else []
    model.close()
    logits = np.stack([recorder.rows[position] for position in range(len(prompt))])
    difference = float(np.abs(logits - expected).max() / np.abs(expected).max())
    return difference, sum(a == b for a, b in zip(tokens, greedy, strict=True))


class Recorder:
    """A runner around the runner, which keeps the logits of each position of the request that is asked about."""

    def __init__(self, runner: Any) -> None:
        self.rows: dict[int, Any] = {}
        self._runner = runner

    def launch(self, batch: Any) -> Any:
        pending = self._runner.launch(batch)
        logits, row = self._runner.logits(), 0
        for scheduled in batch.ranges:
            last = scheduled.start + scheduled.num_tokens - 1
            for position in [*range(*scheduled.prompt_logprob_rows), *([last] if scheduled.sample_indices else [])]:
                if scheduled.sequence.request.request_id == "asked":
                    self.rows[position] = logits[row].copy()
                row += 1
        return pending

    def close(self) -> None:
        self._runner.close()
