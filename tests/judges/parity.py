"""Parity: octavo's logits for a quantised model, beside those of float32 over the same dequantised weights."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tests.judges.report import Verdict, ask_oracle

from octavo.build import build
from octavo.config import EngineConfig
from octavo.engine.batch import Batch
from octavo.loaded_model import LoadedModel
from octavo.sampling_params import SamplingParams
from octavo.weights.sources import resolve

BUDGET = 600.0  # seconds of the oracle
MODELS = ("smollm2-135m", "gemma3-270m")
TEXTS = sorted((Path(__file__).parents[1] / "data").glob("*.txt"))
LEAST_TOKENS = 2000
MAX_KL = 0.01  # nats, the mean over positions
MAX_PERPLEXITY_RATIO = 1.01
# --quantization and its group size; the first is what the others are held against.
QUANTIZATIONS = (("none", 32), ("auto", 32), ("int8", 32), ("int4", 32))
MAX_INT8_RATIO = 1.01  # of the perplexity of int8 to that of bfloat16
BYSTANDERS = 4  # requests that are decoded at the same time

Listen = Callable[[str, int, npt.NDArray[np.float32]], None]  # a text, a position of it, its logits


def run(options: argparse.Namespace) -> Verdict:
    """For each model: figures over all texts, and the verdict over all models."""
    lines = [
        "| model | dtype | tokens | steps | mean KL | 99 % | max | same best | perplexity | of float32 | ratio | |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    quantized = [
        "",
        "The same of `--quantization`, from the same file; the last ratio is to the perplexity of `none`, in bfloat16:",
        "",
        "| model | quantization | weights | mean KL | 99 % | same best | perplexity | of none | |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    passed = True
    for name in options.model or MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(options.reference) / name if options.reference else Path(temporary)
            model = str(resolve(name).path)
            prompts = tokenize(model)
            reference = ask(options.oracle, model, prompts, folder)
            for dtype in options.dtype:
                figures = measure(EngineConfig(model=model, dtype=dtype), prompts, reference)
                print(figures.row(name, dtype), flush=True)
                lines.append(figures.row(name, dtype))
                passed &= figures.passed
            wide = 0.0
            for kind, group in QUANTIZATIONS:
                config = EngineConfig(model=model, quantization=kind, quantization_group_size=group)
                figures = measure(config, prompts, reference)
                wide = wide or figures.perplexity
                fine = kind != "int8" or figures.perplexity <= MAX_INT8_RATIO * wide
                quantized.append(figures.quantized_row(name, kind, wide, fine))
                print(quantized[-1], flush=True)
                passed &= fine
    return Verdict(passed, lines + quantized)


def ask(
    oracle: str | None, model: str, prompts: dict[str, list[int]], folder: Path
) -> dict[str, npt.NDArray[np.float32]]:
    """The oracle's logits [tokens, V] of each text, which stay in `folder`; those that are there are not made again."""
    paths = {text: folder / f"{text}.npy" for text in prompts}
    if not all(path.exists() for path in paths.values()):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ids.json").write_text(json.dumps(prompts))
        ask_oracle(oracle, ["gguf", model, str(folder / "ids.json"), str(folder)], BUDGET)
    return {text: np.load(path, mmap_mode="r") for text, path in paths.items()}


def tokenize(model: str) -> dict[str, list[int]]:
    """Each text's tokens with whatever the model begins a text with."""
    loaded = build(EngineConfig(model=model, max_model_len=64, kv_cache_memory=1 << 26))
    prompts = {path.stem: loaded.tokenizer.encode(path.read_text(encoding="utf-8")) for path in TEXTS}
    loaded.close()
    if sum(map(len, prompts.values())) < LEAST_TOKENS:
        raise SystemExit(f"The texts have fewer than {LEAST_TOKENS} tokens.")
    return prompts


def measure(
    config: EngineConfig, prompts: dict[str, list[int]], reference: dict[str, npt.NDArray[np.float32]]
) -> Figures:
    """How a model's logits of all texts compare."""
    figures = Figures()

    def compare(name: str, position: int, logits: npt.NDArray[np.float32]) -> None:
        figures.add(logits, reference[name][position], prompts[name][position + 1])

    run_texts(config, prompts, compare, figures)
    return figures


def run_texts(config: EngineConfig, prompts: dict[str, list[int]], listen: Listen, figures: Figures) -> None:
    """Runs all texts at once, in company; `listen` hears the logits of each position that has a next token."""
    model = build(config)
    figures.weight_bytes = model.weight_bytes
    figures.cache_tokens = model.engine.scheduler.tables.pools[0].num_blocks * config.block_size
    listener = Listener(model.engine.runner, listen)
    model.engine.runner = listener
    add_bystanders(model)
    for name, ids in prompts.items():
        model.engine.add(model.admit(name, ids, SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)))
    while model.engine.has_work():
        if any(news.finish_reason == "error" for news in model.engine.step()):
            raise SystemExit("A request ended with an error.")
        figures.steps += 1
    model.close()
    if listener.positions != sum(len(ids) - 1 for ids in prompts.values()):
        raise SystemExit("Not every position was compared.")


def add_bystanders(model: LoadedModel) -> None:
    for i in range(BYSTANDERS):
        params = SamplingParams(max_tokens=64, temperature=1.0, seed=i, ignore_eos=True)
        model.engine.add(model.admit(f"bystander{i}", model.tokenizer.encode(f"Once upon a time {i}"), params))


@dataclass
class Figures:
    """One entry a position that has a next token in its text."""

    weight_bytes: int = 0
    cache_tokens: int = 0
    steps: int = 0
    kl: list[float] = field(default_factory=list)
    same_best: list[bool] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    reference_loss: list[float] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return float(np.exp(np.mean(self.loss)))

    @property
    def reference_perplexity(self) -> float:
        return float(np.exp(np.mean(self.reference_loss)))

    @property
    def ratio(self) -> float:
        return self.perplexity / self.reference_perplexity

    @property
    def passed(self) -> bool:
        return bool(np.mean(self.kl) <= MAX_KL and 1 / MAX_PERPLEXITY_RATIO <= self.ratio <= MAX_PERPLEXITY_RATIO)

    def add(self, logits: npt.NDArray[np.float32], reference: npt.NDArray[np.float32], target: int) -> None:
        mine, other = log_softmax(logits), log_softmax(reference)
        self.kl.append(float(np.sum(np.exp(other) * (other - mine))))
        self.same_best.append(bool(mine.argmax() == other.argmax()))
        self.loss.append(-float(mine[target]))
        self.reference_loss.append(-float(other[target]))

    def row(self, name: str, dtype: str) -> str:
        return (
            f"| {name} | {dtype} | {len(self.kl)} | {self.steps} | {np.mean(self.kl):.5f} "
            f"| {np.percentile(self.kl, 99):.4f} | {max(self.kl):.4f} "
            f"| {np.mean(self.same_best):.1%} | {self.perplexity:.4f} | {self.reference_perplexity:.4f} "
            f"| {self.ratio:.4f} | {'pass' if self.passed else 'FAIL'} |"
        )

    def quantized_row(self, name: str, kind: str, wide: float, fine: bool) -> str:
        return (
            f"| {name} | {kind} | {self.weight_bytes / 1e6:.0f} MB | {np.mean(self.kl):.5f} "
            f"| {np.percentile(self.kl, 99):.4f} | {np.mean(self.same_best):.1%} | {self.perplexity:.4f} "
            f"| {self.perplexity / wide:.4f} | {'pass' if fine else 'FAIL'} |"
        )


class Listener:
    """A runner around the runner, which hands on the logits of the texts' positions before a step overwrites them."""

    def __init__(self, runner: Any, listen: Listen) -> None:
        self._runner, self._listen = runner, listen
        self.positions = 0

    def launch(self, batch: Batch) -> Any:
        pending = self._runner.launch(batch)
        logits = self._runner.logits()
        row = 0
        for scheduled in batch.ranges:
            name = scheduled.sequence.request.request_id
            for position in range(*scheduled.prompt_logprob_rows):
                self._listen(name, position, logits[row])
                self.positions += 1
                row += 1
            row += bool(scheduled.sample_indices)
        return pending

    def close(self) -> None:
        self._runner.close()


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max()
    return x - np.log(np.exp(x).sum())
