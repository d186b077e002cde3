"""The decoder over the reference backend computes what transformers computes, and reads every fact of its config."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from steps import Runner, greedy

from octavo.model.architectures import Model, resolve_model
from octavo.model.decoder import decoder
from octavo.model.description import Description
from octavo.model.model_config import LayerConfig, ModelConfig, weight_shapes

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 1e-5  # of the largest logit: the goldens are float32 results, which measure 1.3e-6 from float64


def load(name: str) -> tuple[Model, dict[str, np.ndarray]]:
    stored = tiny.make_weights(name)
    model = resolve_model(Description(tiny.CONFIGS[name], frozenset(stored)))
    return model, {weight: stored[tensor].astype(np.float64) for weight, tensor in model.weight_names.items()}


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"tiny_{name}.npz") as file:
        return dict(file)


def error(logits: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference at every tenth position, relative to the largest logit there is."""
    return float(np.abs(logits[9::10] - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_equal_transformers_whole_and_chunked(name: str) -> None:
    model, weights = load(name)
    expected = golden(name)["logits"]
    prompt = tiny.prompt(name)
    whole = Runner(model.config, weights).step([("a", prompt)])[0]
    assert error(whole, expected) < TOLERANCE
    runner = Runner(model.config, weights, seed=1)
    cuts = [0, 1, 18, 32, 33, 34, 60, 100]
    chunks = [runner.step([("a", prompt[a:b])])[0] for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(np.concatenate(chunks), whole, rtol=0, atol=1e-10 * np.abs(whole).max())


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_greedy_tokens_equal_transformers(name: str) -> None:
    model, weights = load(name)
    expected = golden(name)["greedy"].tolist()
    assert len(set(expected)) > 4, "a golden of one repeated token proves little"
    assert greedy(Runner(model.config, weights), "a", tiny.prompt(name), len(expected)) == expected


def test_a_sequence_does_not_depend_on_the_batch() -> None:
    model, weights = load("gemma3")
    prompts = {"a": tiny.prompt("gemma3"), "b": tiny.prompt("llama")[:37], "c": tiny.prompt("qwen2")[:5]}
    alone = {name: Runner(model.config, weights).step([(name, ids)])[0] for name, ids in prompts.items()}
    runner = Runner(model.config, weights, seed=2)
    mixed = [
        *zip("ab", runner.step([("a", prompts["a"][:50]), ("b", prompts["b"])]), strict=True),
        *zip("ca", runner.step([("c", prompts["c"]), ("a", prompts["a"][50:])]), strict=True),
    ]
    for name, ids in prompts.items():
        together = np.concatenate([logits for other, logits in mixed if other == name])
        assert len(together) == len(ids)
        np.testing.assert_allclose(together, alone[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_narrower_cache_stays_close(dtype: str) -> None:
    model, weights = load("mistral")
    exact = Runner(model.config, weights).step([("a", tiny.prompt("mistral"))])[0]
    rounded = Runner(model.config, weights, dtype).step([("a", tiny.prompt("mistral"))])[0]
    unit = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    difference = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 0 < difference < 16 * unit


# A checkpoint and another value for each fact that its logits depend on.
CHANGES: list[tuple[str, str, Any]] = [
    ("llama", "num_kv_heads", None),
    ("qwen2", "num_heads", None),
    ("llama", "activation", "gelu"),
    ("qwen2", "activation", "silu"),
    ("qwen3", "activation", "gelu_tanh"),
    ("gemma3", "activation", "gelu"),
    ("qwen3", "norm_eps", 1e-3),
    ("gemma2", "norm_eps", 1e-5),
    ("gemma3", "attention_scale", 24**-0.5),
    ("gemma3", "norm_offset", 0.0),
    ("qwen3", "qk_norm", False),
    ("gemma3", "qk_norm", False),
    ("llama", "qkv_bias", False),
    ("qwen2", "qkv_bias", False),
    ("llama", "o_bias", False),
    ("llama", "mlp_bias", False),
    ("gemma2", "sandwich_norm", False),
    ("gemma2", "embedding_scale", 1.0),
    ("gemma2", "attention_softcap", 0.0),
    ("gemma2", "logit_softcap", 0.0),
    ("llama", "tied_head", True),
]
# Facts that no logit depends on: the first only names, the second bounds, the last two belong to the tokenizer and the
# stop rule.
SILENT = {"architecture", "max_position", "bos_token_id", "eos_token_ids"}
# Facts that are the sizes of the weights themselves: another value does not fit them.
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "head_dim", "layers"}


def test_every_fact_is_changed_by_a_test() -> None:
    facts = {field.name for field in dataclasses.fields(ModelConfig)}
    assert facts == {fact for _, fact, _ in CHANGES} | SILENT | SIZES


@pytest.mark.parametrize(("name", "fact", "value"), CHANGES)
def test_a_changed_fact_breaks_parity(name: str, fact: str, value: Any) -> None:
    model, weights = load(name)
    config = model.config
    if fact in ("num_heads", "num_kv_heads"):
        # Half as many heads of twice the size: the weights still fit, the heads are others.
        config = dataclasses.replace(
            config,
            num_heads=config.num_heads // 2,
            num_kv_heads=config.num_kv_heads // 2,
            head_dim=2 * config.head_dim,
        )
    else:
        config = dataclasses.replace(config, **{fact: value})
    assert weight_shapes(config).keys() <= weights.keys()
    logits = Runner(config, weights).step([("a", tiny.prompt(name))])[0]
    assert error(logits, golden(name)["logits"]) > 10 * TOLERANCE


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma2", "gemma3"])
@pytest.mark.parametrize("window", [0, 31, 33])
def test_a_changed_window_breaks_parity(name: str, window: int) -> None:
    model, weights = load(name)
    layers = tuple(LayerConfig(layer.rope, window if layer.window else 0) for layer in model.config.layers)
    logits = Runner(dataclasses.replace(model.config, layers=layers), weights).step([("a", tiny.prompt(name))])[0]
    assert error(logits, golden(name)["logits"]) > 10 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"inv_freq": True}),
        ("mistral", {"inv_freq": True}),
        ("mistral", {"scale": 1.0}),
        ("qwen2", {"interleaved": True}),
        ("gemma3", {"inv_freq": True}),
    ],
)
def test_a_changed_rope_breaks_parity(name: str, change: dict[str, Any]) -> None:
    """`inv_freq`: the lowest frequency of one layer is doubled."""
    model, weights = load(name)
    first = model.config.layers[0].rope
    if "inv_freq" in change:
        change = {"inv_freq": (*first.inv_freq[:3], 2 * first.inv_freq[3], *first.inv_freq[4:])}
    layers = (
        LayerConfig(dataclasses.replace(first, **change), model.config.layers[0].window),
        *model.config.layers[1:],
    )
    logits = Runner(dataclasses.replace(model.config, layers=layers), weights).step([("a", tiny.prompt(name))])[0]
    assert error(logits, golden(name)["logits"]) > 10 * TOLERANCE


def test_cuts_stand_between_layers() -> None:
    """A recording of the names of the operations shows where a program may be cut."""
    model, _ = load("qwen2")

    class Recorder:
        def __init__(self) -> None:
            self.calls: list[str] = []

        def __getattr__(self, name: str) -> Any:
            return lambda *args: self.calls.append(name) or name

    def record(cuts: tuple[int, ...]) -> list[str]:
        recorder = Recorder()
        decoder(model.config, dict.fromkeys(weight_shapes(model.config)), recorder, cuts)
        return recorder.calls

    plain, cut = record(()), record((1, 2))
    assert "cut" not in plain
    assert [name for name in cut if name != "cut"] == plain
    segments = " ".join(cut).split("cut")
    assert [segment.split().count("attention") for segment in segments] == [1, 1, 1]
