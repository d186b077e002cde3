"""The facts of each architecture, read from the metadata of a GGUF file and the names of its tensors.

The metadata leaves out what a converter folded into the tensors: Gemma's norm weights have their 1 added already, and
whether there are biases or a head is told by the tensors alone. The q and k rows of `llama` files are ordered for
interleaved rope, those of the others are not.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.errors import ModelError
from octavo.model.description import Description
from octavo.model.fields import MAX_LAYERS, Fields
from octavo.model.model_config import LayerConfig, ModelConfig
from octavo.model.rope import extended_length, rope_spec


def llama(description: Description) -> ModelConfig:
    return common("llama", description, sliding_period=1, interleaved=True)


def qwen2(description: Description) -> ModelConfig:
    return common("qwen2", description)


def qwen3(description: Description) -> ModelConfig:
    return common("qwen3", description, qk_norm=True)


def gemma2(description: Description) -> ModelConfig:
    fields = arch_fields("gemma2", description)
    return gemma(
        "gemma2",
        description,
        large=46,
        sliding_period=2,
        attention_softcap=fields.number("attn_logit_softcapping", 50.0),
        logit_softcap=fields.number("final_logit_softcapping", 30.0),
    )


def gemma3(description: Description) -> ModelConfig:
    fields = arch_fields("gemma3", description)
    return gemma(
        "gemma3",
        description,
        large=62,
        sliding_period=6,
        local_theta=fields.positive("rope.freq_base_swa", 1e4),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        qk_norm=True,
    )


def gemma(arch: str, description: Description, large: int, **facts: Any) -> ModelConfig:
    """`large` is the number of layers of the family's 27B model, whose attention scale is not that of its head size."""
    fields = arch_fields(arch, description)
    hidden = fields.integer("embedding_length")
    if fields.integer("block_count") == large:
        facts["attention_scale"] = (hidden / uniform(fields, "attention.head_count")) ** -0.5
    return common(
        arch, description, activation="gelu_tanh", embedding_scale=math.sqrt(hidden), sandwich_norm=True, **facts
    )


def common(
    arch: str,
    description: Description,
    sliding_period: int = 0,
    local_theta: float | None = None,
    interleaved: bool = False,
    **facts: Any,
) -> ModelConfig:
    """What all families say alike; `facts` are the fields of ModelConfig that a family sets itself.

    sliding_period: where the file gives a window but no pattern, the last layer of every so many has full attention; 1
    means that none has, 0 that the family has no rule. local_theta: the rope base of the windowed layers, which are
    then not scaled.
    """
    fields = arch_fields(arch, description)
    if fields.integer("expert_count", 0, minimum=0):
        raise ModelError(
            f"{arch} with {fields.integer('expert_count')} experts is not supported: mixtures of experts are not yet."
        )
    heads, hidden = uniform(fields, "attention.head_count"), fields.integer("embedding_length")
    if not fields.has("attention.key_length") and hidden % heads:
        raise ModelError(
            f"{arch}.embedding_length {hidden} is not a multiple of the {heads} heads, and there is no key_length."
        )
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if (value_dim := fields.integer("attention.value_length", head_dim)) != head_dim:
        raise ModelError(
            f"{arch} has keys of {head_dim} values and values of {value_dim}; different sizes are not supported."
        )
    max_position = fields.integer("context_length")
    num_layers = fields.integer("block_count", maximum=MAX_LAYERS)
    window = fields.integer("attention.sliding_window", 0, minimum=0)
    names = description.tensor_names

    def layer(is_sliding: bool) -> LayerConfig:
        local = is_sliding and local_theta is not None
        rope = rope_spec(
            {"rope_theta": local_theta} if local else rope_parameters(fields),
            fields.integer("rope.dimension_count", head_dim),
            max_position,
            description.max_model_len,
            () if local else description.rope_factors,
            interleaved,
        )
        return LayerConfig(rope, window if is_sliding else 0)

    full, sliding = layer(False), layer(True)
    found: dict[str, Any] = {
        "architecture": arch,
        "vocab_size": fields.integer("vocab_size", len(description.config.get("tokenizer.ggml.tokens", ()))),
        "hidden_size": hidden,
        "intermediate_size": uniform(fields, "feed_forward_length"),
        "num_heads": heads,
        "num_kv_heads": uniform(fields, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "layers": tuple(sliding if s else full for s in sliding_layers(fields, num_layers, window, sliding_period)),
        "max_position": extended_length(rope_parameters(fields), max_position),
        "activation": "silu",
        "norm_eps": fields.positive("attention.layer_norm_rms_epsilon"),
        "attention_scale": fields.positive("attention.scale", head_dim**-0.5),
        "qkv_bias": "blk.0.attn_q.bias" in names,
        "o_bias": "blk.0.attn_output.bias" in names,
        "mlp_bias": "blk.0.ffn_gate.bias" in names,
        "tied_head": "output.weight" not in names,
    }
    return ModelConfig(**(found | token_facts(description) | facts))


def arch_fields(arch: str, description: Description) -> Fields:
    """The keys of one architecture, without their prefix."""
    prefix = f"{arch}."
    values = {key.removeprefix(prefix): v for key, v in description.config.items() if key.startswith(prefix)}
    return Fields(values, f"the {arch} metadata of the GGUF file")


def token_facts(description: Description) -> dict[str, Any]:
    tokens = Fields(description.config, "the GGUF metadata")
    bos = tokens.token_ids("tokenizer.ggml.bos_token_id")
    ends = (tokens.token_ids(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return {
        "bos_token_id": next(iter(bos), None),
        "eos_token_ids": tuple(dict.fromkeys(i for ids in ends for i in ids)),
    }


def uniform(fields: Fields, key: str, default: int | None = None) -> int:
    """A count that the file may give per layer; all layers must agree."""
    value = fields.get(key)
    if not isinstance(value, list | tuple):
        return fields.integer(key, default)
    if len(set(value)) != 1:
        raise ModelError(f"{key} in {fields.origin} differs between layers, which is not supported.")
    return Fields({key: value[0]}, fields.origin).integer(key)


def sliding_layers(fields: Fields, num_layers: int, window: int, period: int) -> list[bool]:
    """Which layers attend within the window."""
    if not window:
        return [False] * num_layers
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list | tuple):
        if len(pattern) != num_layers:
            raise ModelError(
                f"attention.sliding_window_pattern in {fields.origin} must have {num_layers} entries, one per layer."
            )
        return [bool(entry) for entry in pattern]
    if pattern is not None:
        period = fields.integer("attention.sliding_window_pattern")
    if period == 0:
        raise ModelError(f"{fields.origin} has a sliding window of {window}, but does not say which layers have it.")
    return [period == 1 or (i + 1) % period != 0 for i in range(num_layers)]


def rope_parameters(fields: Fields) -> dict[str, Any]:
    """The file's rope keys in the words of rope.rope_spec."""
    parameters: dict[str, Any] = {"rope_theta": fields.positive("rope.freq_base", 1e4)}
    kind = fields.string("rope.scaling.type", "linear" if fields.has("rope.scale_linear") else "none")
    if kind == "none":
        return parameters
    if kind == "longrope":
        raise ModelError("longrope in a GGUF file is not supported; the model's safetensors files are.")
    factor = fields.positive("rope.scaling.factor", fields.positive("rope.scale_linear", 1.0))
    parameters |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        if fields.number("rope.scaling.yarn_ext_factor", 1.0) != 1.0 or fields.number(
            "rope.scaling.yarn_log_multiplier", 0.0
        ):
            raise ModelError("yarn_ext_factor other than 1 and yarn_log_multiplier are not supported.")
        for key in ("yarn_beta_fast", "yarn_beta_slow"):
            parameters[key.removeprefix("yarn_")] = fields.number(f"rope.scaling.{key}", 0.0)
        if fields.has("rope.scaling.original_context_length"):
            parameters["original_max_position_embeddings"] = fields.integer("rope.scaling.original_context_length")
        # ggml multiplies its attn_factor onto YaRN's own temperature; a Hugging Face config replaces the temperature by
        # it.
        temperature = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
        parameters["attention_factor"] = temperature * fields.positive("rope.scaling.attn_factor", 1.0)
    return parameters
