"""KV cache: what each --kv-cache-dtype costs, beside octavo itself with keys and values in float32, and saves."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.judges.parity import MODELS, Figures, log_softmax, measure, run_texts, tokenize
from tests.judges.report import Verdict

from octavo.config import EngineConfig
from octavo.weights.sources import resolve

POOL = 1 << 30
# Most that the perplexity may be of that with float32, for each type.
TYPES = {"bf16": 1.005, "f16": 1.005, "int16": 1.005, "int8": 1.01, "fp8_e4m3": 1.03, "fp8_e5m2": 1.1}


def run(options: argparse.Namespace) -> Verdict:
    """For each model and type: figures over all texts, weights in float32, against the logits with a float32 cache."""
    lines = [
        "| model | KV cache | tokens a GiB | mean KL | 99 % | same best | perplexity | of f32 | |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    passed = True
    for name in options.model or MODELS:
        model = str(resolve(name).path)
        prompts = tokenize(model)
        with tempfile.TemporaryDirectory() as folder:
            own, reference = record(config_of(model, "f32"), prompts, Path(folder))
            lines.append(row(name, "f32", own, own.perplexity, ""))
            print(lines[-1], flush=True)
            for kind, limit in TYPES.items():
                figures = measure(config_of(model, kind), prompts, reference)
                fine = figures.perplexity <= limit * own.perplexity
                lines.append(row(name, kind, figures, own.perplexity, "pass" if fine else "FAIL"))
                print(lines[-1], flush=True)
                passed &= fine
    return Verdict(passed, lines)


def config_of(model: str, kind: str) -> EngineConfig:
    # Activations in 8 bits would answer the least change of a key with changes of their own, of about 0.005 nats.
    return EngineConfig(
        model=model, dtype="float32", quantization="none", kv_cache_dtype=kind, kv_cache_memory=POOL, max_model_len=8192
    )


def record(
    config: EngineConfig, prompts: dict[str, list[int]], folder: Path
) -> tuple[Figures, dict[str, npt.NDArray[np.float32]]]:
    """The logits of every position of each text but its last, in files of `folder`, and the losses of that run."""
    figures, kept = Figures(), {}

    def keep(name: str, position: int, logits: npt.NDArray[np.float32]) -> None:
        if name not in kept:
            shape = (len(prompts[name]) - 1, len(logits))
            kept[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        kept[name][position] = logits
        figures.loss.append(-float(log_softmax(logits)[prompts[name][position + 1]]))

    run_texts(config, prompts, keep, figures)
    return figures, kept


def row(name: str, kind: str, figures: Figures, wide: float, verdict: str) -> str:
    compared = " | | "
    if figures.kl:
        compared = f"{np.mean(figures.kl):.5f} | {np.percentile(figures.kl, 99):.4f} | {np.mean(figures.same_best):.1%}"
    return (
        f"| {name} | {kind} | {figures.cache_tokens:,} | {compared} "
        f"| {figures.perplexity:.4f} | {figures.perplexity / wide:.4f} | {verdict} |"
    )
