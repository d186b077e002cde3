"""A checkpoint's description becomes facts, or a sentence that names what is wrong with it."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import tiny

from octavo.errors import ModelError
from octavo.model.architectures import (
    HF_ARCHITECTURES,
    Architecture,
    Model,
    load_architecture_file,
    resolve_model,
)
from octavo.model.description import Description
from octavo.model.model_config import ModelConfig, weight_shapes

LLAMA, MISTRAL, QWEN2, QWEN3 = (tiny.CONFIGS[name] for name in ("llama", "mistral", "qwen2", "qwen3"))
GEMMA3 = tiny.CONFIGS["gemma3"]


def facts(config: dict[str, Any], **changes: Any) -> ModelConfig:
    """Keys that are changed to Ellipsis are taken out."""
    config = {key: value for key, value in (config | changes).items() if value is not ...}
    return HF_ARCHITECTURES[config["architectures"][0]].facts(Description(config, frozenset()))


def resolve(name: str, add: tuple[str, ...] = (), drop: tuple[str, ...] = (), **changes: Any) -> Model:
    names = (set(tiny.make_weights(name)) | set(add)) - set(drop)
    return resolve_model(Description(tiny.CONFIGS[name] | changes, frozenset(names)))


def test_absent_key_value_heads_are_as_many_as_the_heads() -> None:
    assert facts(LLAMA, num_key_value_heads=...).num_kv_heads == 4
    assert facts(LLAMA, num_key_value_heads=None).num_kv_heads == 4


def test_head_dim_is_explicit_or_derived() -> None:
    assert facts(LLAMA, head_dim=...).head_dim == 16
    assert facts(LLAMA, head_dim=None).head_dim == 16
    assert facts(LLAMA, head_dim=20).attention_spec(0).scale == 20**-0.5
    assert facts(LLAMA, head_dim=20, num_attention_heads=6).head_dim == 20  # hidden_size 64 is not a multiple of 6
    with pytest.raises(ModelError, match=r"hidden_size 64 .* num_attention_heads 6"):
        facts(LLAMA, num_attention_heads=6)


def test_heads_must_be_a_multiple_of_key_value_heads() -> None:
    with pytest.raises(ModelError, match="4 attention heads and 3 key-value heads"):
        facts(LLAMA, num_key_value_heads=3)


def test_an_absurd_max_position_allocates_nothing() -> None:
    tracemalloc.start()
    try:
        started = time.perf_counter()
        assert facts(LLAMA, max_position_embeddings=10**12).max_position == 10**12
        assert time.perf_counter() - started < 1
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_nested_text_config_is_read() -> None:
    text = {key: value for key, value in GEMMA3.items() if key not in ("architectures", "eos_token_id")}
    nested = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text | {"eos_token_id": None},
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        "eos_token_id": [1, 106],
    }
    config = facts(nested)
    assert config.eos_token_ids == (1, 106)
    assert config.layers == facts(GEMMA3).layers
    assert config.hidden_size == 64


def test_the_sparse_config_of_a_published_gemma_has_its_family_s_defaults() -> None:
    config = facts(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
        }
    )
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert [i for i, layer in enumerate(config.layers) if not layer.window] == [5, 11, 17, 23, 29]
    assert config.cache_groups[1][0] == 1024
    full, sliding = config.layers[5].rope, config.layers[0].rope
    assert full.inv_freq[0] == 1 / 8
    assert sliding.inv_freq[0] == 1
    assert full.inv_freq[-1] * 8 == pytest.approx(1e6 ** -(254 / 256))
    assert sliding.inv_freq[-1] == pytest.approx(1e4 ** -(254 / 256))


def test_both_forms_of_gemma_s_rope_agree() -> None:
    new = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
    written = facts(GEMMA3, rope_parameters=new, rope_scaling=..., rope_theta=..., rope_local_base_freq=...)
    assert written.layers == facts(GEMMA3).layers


def test_windows() -> None:
    def windows(config: ModelConfig) -> list[int]:
        return [layer.window for layer in config.layers]

    assert windows(facts(MISTRAL)) == [32, 32, 32]
    assert windows(facts(MISTRAL, sliding_window=None)) == [0, 0, 0]
    assert windows(facts(QWEN2)) == [0, 32, 32]
    assert windows(facts(QWEN2, use_sliding_window=False)) == [0, 0, 0]
    assert windows(facts(QWEN2, layer_types=["sliding_attention", "full_attention", "full_attention"])) == [32, 0, 0]
    assert windows(facts(GEMMA3)) == [32, 32, 0, 32]
    assert facts(GEMMA3).cache_groups == ((0, (2,)), (32, (0, 1, 3)))
    with pytest.raises(ModelError, match="'chunked_attention'"):
        facts(QWEN2, layer_types=["chunked_attention"] * 3)
    with pytest.raises(ModelError, match="list of 3"):
        facts(QWEN2, layer_types=["full_attention"])


def test_token_ids() -> None:
    assert facts(LLAMA).eos_token_ids == (257,)
    assert facts(LLAMA, eos_token_id=[1, 2]).eos_token_ids == (1, 2)
    assert facts(LLAMA, eos_token_id=None).eos_token_ids == ()
    assert facts(LLAMA, bos_token_id=...).bos_token_id is None
    with pytest.raises(ModelError, match=r"eos_token_id\[1\].*'2'"):
        facts(LLAMA, eos_token_id=[1, "2"])


@pytest.mark.parametrize(
    ("config", "key", "value", "message"),
    [
        (LLAMA, "hidden_act", "mish", "'mish' is not supported; supported activations: silu"),
        (GEMMA3, "hidden_activation", "xielu", "'xielu'"),
        (GEMMA3, "use_bidirectional_attention", True, "use_bidirectional_attention"),
        (GEMMA3, "attn_logit_softcapping", 50.0, "attn_logit_softcapping"),
        (LLAMA, "hidden_size", ..., "config.json has no hidden_size"),
        (LLAMA, "vocab_size", None, "config.json has no vocab_size"),
        (LLAMA, "num_hidden_layers", 0, "num_hidden_layers .* 0.* at least 1"),
        (LLAMA, "num_hidden_layers", 10**12, "at most 10000"),
        (LLAMA, "head_dim", 10**12, "from 2 to 65536"),
        (LLAMA, "rms_norm_eps", 10**400, "rms_norm_eps"),
        (LLAMA, "num_hidden_layers", True, "num_hidden_layers .*True"),
        (LLAMA, "intermediate_size", "112", "intermediate_size .*'112'"),
        (LLAMA, "rms_norm_eps", 0, "rms_norm_eps"),
        (LLAMA, "rope_theta", float("nan"), "rope_theta .*finite"),
        (LLAMA, "rope_scaling", "llama3", "must be objects"),
        (LLAMA, "attention_bias", 1, "attention_bias .*true or false"),
        (LLAMA, "head_dim", 15, "even number"),
        (LLAMA, "text_config", [1], "text_config"),
    ],
)
def test_wrong_facts_are_named(config: dict[str, Any], key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        facts(config, **{key: value})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; .*LlamaForCausalLM"),
        ({}, "names no architecture.*LlamaForCausalLM"),
        ({"architectures": []}, "names no architecture"),
        ({"architectures": [None]}, "None is not supported"),
        ({"general.architecture": "mamba"}, "mamba is not supported; supported ones: llama, qwen2"),
    ],
)
def test_an_unknown_architecture_is_refused_with_the_supported_ones(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_model(Description(config, frozenset()))


def test_every_weight_has_the_shape_that_the_checkpoint_gives_it() -> None:
    for name in tiny.CONFIGS:
        weights, model = tiny.make_weights(name), resolve(name)
        assert set(model.weight_names.values()) == set(weights)
        assert {weight: weights[tensor].shape for weight, tensor in model.weight_names.items()} == model.weight_shapes


def test_a_missing_tensor_is_named_with_its_shape() -> None:
    with pytest.raises(
        ModelError, match=r"lacks model.layers.1.mlp.up_proj.weight \[112, 64\], which LlamaForCausalLM"
    ):
        resolve("llama", drop=("model.layers.1.mlp.up_proj.weight",))


def test_an_unknown_tensor_is_refused() -> None:
    """A bias that the config does not speak of would be dropped in silence otherwise."""
    with pytest.raises(ModelError, match=r"has model.layers.0.self_attn.q_proj.bias, which"):
        resolve("qwen3", add=("model.layers.0.self_attn.q_proj.bias",))
    assert resolve("qwen3", add=("model.layers.0.self_attn.rotary_emb.inv_freq",))


def test_tied_heads() -> None:
    assert "head" not in resolve("qwen2").weight_names
    assert resolve("qwen2").spare_head is None
    spare = resolve("qwen2", add=("lm_head.weight",))
    assert spare.spare_head == "lm_head.weight"
    assert spare.weight_names == resolve("qwen2").weight_names
    with pytest.raises(ModelError, match=r"lacks lm_head.weight"):
        resolve("llama", drop=("lm_head.weight",))


def test_other_savers_prefixes() -> None:
    plain = tiny.make_weights("gemma3")
    for prefix in ("language_model.model.", "model.language_model."):
        names = {name.replace("model.", prefix, 1) for name in plain} | {"model.vision_tower.x.weight"}
        config = GEMMA3 | {"architectures": ["Gemma3ForConditionalGeneration"]}
        model = resolve_model(Description(config, frozenset(names)))
        assert model.weight_names["layers.0.q"] == prefix + "layers.0.self_attn.q_proj.weight"
    names = {name.removeprefix("model.") for name in tiny.make_weights("qwen2")}
    assert resolve_model(Description(QWEN2, frozenset(names))).weight_names["embed"] == "embed_tokens.weight"


USER_FILE = """
from dataclasses import replace
from octavo.model.architectures import HF_ARCHITECTURES, Architecture
from octavo.model.decoder import decoder
from octavo.model.hf_facts import llama

def facts(description):
    return replace(llama(description), architecture="TwiceForCausalLM")

def twice(config, weights, ops, cuts=()):
    return ops.scale(decoder(config, weights, ops, cuts), 2.0)

names = HF_ARCHITECTURES["LlamaForCausalLM"].weight_names
ARCHITECTURES = {"TwiceForCausalLM": Architecture(facts, names, decoder=twice)}
"""


def test_a_user_s_own_architecture(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(USER_FILE)
    config = LLAMA | {"architectures": ["TwiceForCausalLM"]}
    description = Description(config, frozenset(tiny.make_weights("llama")))
    with pytest.raises(ModelError, match="TwiceForCausalLM is not supported"):
        resolve_model(description)
    extra = load_architecture_file(path)
    assert isinstance(extra["TwiceForCausalLM"], Architecture)
    model = resolve_model(description, extra)
    assert model.config.architecture == "TwiceForCausalLM"
    assert getattr(model.decoder, "__name__", None) == "twice"
    assert model.weight_shapes == weight_shapes(model.config)
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*TwiceForCausalLM"):
        resolve_model(Description({"architectures": ["MambaForCausalLM"]}, frozenset()), extra)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_module", "failed when executed: ModuleNotFoundError: .*no_such_module"),
        ("x = (", "SyntaxError"),
        ("x = 1", "must define ARCHITECTURES"),
        ("ARCHITECTURES = {'A': 1}", "must define ARCHITECTURES"),
        (None, "is not a Python file"),
    ],
)
def test_a_broken_architecture_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        load_architecture_file(path)
    assert "broken.py" in str(caught.value)
