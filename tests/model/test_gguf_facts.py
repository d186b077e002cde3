"""A model described by GGUF metadata and tensor names computes what its Hugging Face folder computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from steps import Runner

from octavo.errors import ModelError
from octavo.model.architectures import GGUF_ARCHITECTURES, GGUF_WEIGHTS, HF_ARCHITECTURES, resolve_model
from octavo.model.description import Description
from octavo.model.model_config import ModelConfig

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window_pattern": "attention.sliding_window_pattern",
}


def metadata(name: str, arch: str) -> dict[str, Any]:
    config = tiny.CONFIGS[name]
    found: dict[str, Any] = {
        "general.architecture": arch,
        "tokenizer.ggml.tokens": ["x"] * config["vocab_size"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.eot_token_id": 258,
    }
    found |= {f"{arch}.{key}": config[hf] for hf, key in KEYS.items() if hf in config}
    if "query_pre_attn_scalar" in config:
        found[f"{arch}.attention.scale"] = config["query_pre_attn_scalar"] ** -0.5
    scaling = config.get("rope_scaling", {})
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in ("linear", "yarn"):
        found |= {f"{arch}.rope.scaling.type": kind, f"{arch}.rope.scaling.factor": scaling["factor"]}
        if original := scaling.get("original_max_position_embeddings"):
            found[f"{arch}.rope.scaling.original_context_length"] = original
    return found


def rope_factors(name: str) -> tuple[float, ...]:
    """What a converter writes as rope_freqs for llama3: by how much each wavelength is stretched."""
    scaling = tiny.CONFIGS[name].get("rope_scaling", {})
    if scaling.get("rope_type") != "llama3":
        return ()
    low, high, original = (
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
        tiny.LLAMA3_ROPE["original_max_position_embeddings"],
    )
    factors = []
    for i in range(0, 16, 2):
        wavelength = 2 * math.pi * tiny.CONFIGS[name]["rope_theta"] ** (i / 16)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return tuple(factors)


def converted(name: str, arch: str) -> dict[str, np.ndarray]:
    """The weights by their GGUF names, changed as converters change them."""
    config = tiny.CONFIGS[name]
    architecture = HF_ARCHITECTURES[config["architectures"][0]]
    gguf_of_hf = {hf: GGUF_WEIGHTS[canonical] for canonical, hf in architecture.weight_names.items()}
    weights = {}
    for stored, values in tiny.make_weights(name).items():
        parts = stored.split(".")
        layer = parts[2] if parts[1] == "layers" else ""
        target = gguf_of_hf[".".join([*parts[:2], "{i}", *parts[3:]]) if layer else stored].replace("{i}", layer)
        if arch == "llama" and ("attn_q." in target or "attn_k." in target):
            heads = config["num_attention_heads" if "attn_q." in target else "num_key_value_heads"]
            halves = values.reshape(heads, 2, len(values) // heads // 2, -1)  # value i of both halves become neighbours
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if arch.startswith("gemma") and target.endswith("norm.weight"):
            values = values + 1
        weights[target] = values.astype(np.float64)
    return weights


# The golden of `mistral` has its window in all layers; that of `qwen2` has a pattern, and relu, which GGUF cannot say.
CASES = [("llama", "llama"), ("mistral", "llama"), ("gemma2", "gemma2"), ("gemma3", "gemma3")]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_logits_equal_transformers(name: str, arch: str) -> None:
    weights = converted(name, arch)
    model = resolve_model(Description(metadata(name, arch), frozenset(weights), rope_factors(name)))
    hf = resolve_model(Description(tiny.CONFIGS[name], frozenset(tiny.make_weights(name))))
    for fact in ("vocab_size", "num_heads", "num_kv_heads", "head_dim", "max_position", "tied_head", "bos_token_id"):
        assert getattr(model.config, fact) == getattr(hf.config, fact), fact
    assert model.config.eos_token_ids == (257, 258)
    assert model.config.cache_groups == hf.config.cache_groups
    canonical = {weight: weights[tensor] for weight, tensor in model.weight_names.items()}
    logits = Runner(model.config, canonical).step([("a", tiny.prompt(name))])[0]
    with np.load(GOLDEN / f"tiny_{name}.npz") as file:
        expected = file["logits"]
    assert np.abs(logits[9::10] - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.parametrize(("name", "arch"), [("qwen2", "qwen2"), ("qwen3", "qwen3")])
def test_qwen_facts_equal_those_of_the_folder(name: str, arch: str) -> None:
    """GGUF fixes silu for these; every other fact is told."""
    described = metadata(name, arch)
    if name == "qwen2":
        described["qwen2.attention.sliding_window_pattern"] = [False, True, True]
    model = resolve_model(Description(described, frozenset(converted(name, arch))))
    hf = resolve_model(Description(tiny.CONFIGS[name], frozenset(tiny.make_weights(name)))).config
    got = model.config
    for fact in ModelConfig.__dataclass_fields__:
        if fact not in ("architecture", "activation", "eos_token_ids"):
            assert getattr(got, fact) == getattr(hf, fact), fact
    assert got.activation == "silu"


def gguf(arch: str = "llama", **changes: Any) -> ModelConfig:
    """Facts of a small file; keyword `a__b` stands for key arch.a.b."""
    base = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 10,
    }
    base |= {key.replace("__", "."): value for key, value in changes.items()}
    described = {f"{arch}.{key}": value for key, value in base.items() if value is not None}
    return GGUF_ARCHITECTURES[arch].facts(Description(described, frozenset({"output.weight"})))


def test_q_and_k_of_llama_files_only_are_interleaved() -> None:
    for arch in GGUF_ARCHITECTURES:
        assert gguf(arch).layers[0].rope.interleaved == (arch == "llama")


def test_per_layer_counts_must_agree() -> None:
    assert gguf(attention__head_count_kv=[2, 2]).num_kv_heads == 2
    assert gguf().num_kv_heads == 4
    with pytest.raises(ModelError, match=r"attention.head_count_kv .*differs between layers"):
        gguf(attention__head_count_kv=[2, 4])


def test_the_scale_of_the_27b_gemmas() -> None:
    assert gguf("gemma3", attention__key_length=32).attention_scale == 32**-0.5
    assert gguf("gemma3", block_count=62, attention__key_length=32).attention_scale == 16**-0.5
    assert gguf("gemma2", block_count=46, attention__key_length=32).attention_scale == 16**-0.5


def test_yarn_temperature() -> None:
    scaling = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 16,
    }
    temperature = 0.1 * math.log(4.0) + 1.0
    assert gguf(**scaling).layers[0].rope.scale == pytest.approx(temperature)
    assert gguf(**scaling, rope__scaling__attn_factor=0.5).layers[0].rope.scale == pytest.approx(temperature / 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_count": 8}, "8 experts"),
        ({"attention__value_length": 32}, "keys of 16 values and values of 32"),
        ({"embedding_length": 66}, "embedding_length 66 is not a multiple of the 4 heads"),
        ({"attention__layer_norm_rms_epsilon": None}, "has no attention.layer_norm_rms_epsilon"),
        ({"context_length": None}, "has no context_length"),
        ({"vocab_size": None}, "vocab_size .* 0"),
        ({"rope__scaling__type": "longrope"}, "longrope in a GGUF file"),
        ({"rope__scaling__type": "abc"}, "'abc' is not supported"),
        (
            {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__yarn_ext_factor": 0.5},
            "yarn_ext",
        ),
        ({"attention__sliding_window": 16, "attention__sliding_window_pattern": [True]}, "2 entries"),
        ({"rope__dimension_count": 32}, "rotates 32 values of a head of 16"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        gguf(**changes)


def test_a_window_without_layers_is_refused() -> None:
    with pytest.raises(ModelError, match="sliding window of 16, but does not say which layers"):
        gguf("qwen3", attention__sliding_window=16)
    assert gguf("llama", attention__sliding_window=16).cache_groups == ((16, (0, 1)),)
