"""The facts of each architecture, read from a Hugging Face config.json.

A key that is absent has the value that the model's authors gave it as default, for published files leave such keys out;
absent key-value heads are as many as the heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import ModelError
from octavo.model.description import Description
from octavo.model.fields import MAX_LAYERS, Fields
from octavo.model.model_config import LayerConfig, ModelConfig
from octavo.model.rope import extended_length, rope_spec
from octavo.ops.interface import Activation

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
FULL, SLIDING = "full_attention", "sliding_attention"


def llama(description: Description) -> ModelConfig:
    fields = text_fields(description)
    bias = fields.boolean("attention_bias", False)
    return common(
        "LlamaForCausalLM",
        fields,
        description,
        layer_types(fields, lambda i: False),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def mistral(description: Description) -> ModelConfig:
    fields = text_fields(description, {"sliding_window": 4096})
    return common(
        "MistralForCausalLM", fields, description, layer_types(fields, lambda i: fields.has("sliding_window"))
    )


def qwen2(description: Description) -> ModelConfig:
    fields = text_fields(description, {"sliding_window": 4096})
    return common("Qwen2ForCausalLM", fields, description, qwen_layer_types(fields), qkv_bias=True)


def qwen3(description: Description) -> ModelConfig:
    fields = text_fields(description, {"head_dim": 128, "sliding_window": 4096})
    bias = fields.boolean("attention_bias", False)
    return common(
        "Qwen3ForCausalLM", fields, description, qwen_layer_types(fields), qk_norm=True, qkv_bias=bias, o_bias=bias
    )


GEMMA_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def gemma2(description: Description) -> ModelConfig:
    defaults = {
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }
    fields = text_fields(description, GEMMA_DEFAULTS | defaults)
    return gemma(
        "Gemma2ForCausalLM",
        fields,
        description,
        layer_types(fields, lambda i: i % 2 == 0),
        attention_softcap=fields.number("attn_logit_softcapping", 0.0),
    )


def gemma3(description: Description) -> ModelConfig:
    fields = text_fields(description, GEMMA_DEFAULTS | {"vocab_size": 262208, "max_position_embeddings": 131072})
    if fields.has("attn_logit_softcapping"):
        raise ModelError("attn_logit_softcapping is not supported for Gemma 3: no published model was trained with it.")
    period = fields.integer("sliding_window_pattern", 6)
    return gemma(
        "Gemma3ForCausalLM",
        fields,
        description,
        layer_types(fields, lambda i: (i + 1) % period != 0),
        thetas={FULL: 1e6, SLIDING: fields.positive("rope_local_base_freq", 1e4)},
        qk_norm=True,
    )


def gemma(name: str, fields: Fields, description: Description, types: list[str], **facts: Any) -> ModelConfig:
    if fields.boolean("use_bidirectional_attention", False):
        raise ModelError("use_bidirectional_attention is not supported: octavo's attention is causal.")
    bias = fields.boolean("attention_bias", False)
    return common(
        name,
        fields,
        description,
        types,
        activation=activation(fields.string("hidden_activation")),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        embedding_scale=math.sqrt(fields.integer("hidden_size")),
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
        norm_offset=1.0,
        qkv_bias=bias,
        o_bias=bias,
        sandwich_norm=True,
        **facts,
    )


def common(
    name: str,
    fields: Fields,
    description: Description,
    types: list[str],
    thetas: Mapping[str, float] | None = None,
    **facts: Any,
) -> ModelConfig:
    """What all families say alike; `facts` are the fields of ModelConfig that a family sets itself.

    types: each layer's attention. thetas: the default rope base of each type; a type other than FULL named here is not
    scaled by the config's rope_scaling.
    """
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if not fields.has("head_dim") and hidden % heads:
        raise ModelError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and config.json has no head_dim."
        )
    head_dim = fields.integer("head_dim", hidden // heads)
    max_position = fields.integer("max_position_embeddings")
    layers, reach = {}, max_position
    for kind in dict.fromkeys(types):
        parameters = rope_parameters(fields, kind, thetas or {})
        rope = rope_spec(parameters, head_dim, max_position, description.max_model_len)
        reach = max(reach, extended_length(parameters, max_position, description.max_model_len))
        layers[kind] = LayerConfig(rope, fields.integer("sliding_window") if kind == SLIDING else 0)
    found: dict[str, Any] = {
        "architecture": name,
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "layers": tuple(layers[kind] for kind in types),
        "max_position": reach,
        "activation": facts.get("activation") or activation(fields.string("hidden_act", "silu")),
        "norm_eps": fields.positive("rms_norm_eps", 1e-6),
        "attention_scale": head_dim**-0.5,
        "tied_head": fields.boolean("tie_word_embeddings", False),
        "bos_token_id": next(iter(fields.token_ids("bos_token_id")), None),
        "eos_token_ids": fields.token_ids("eos_token_id"),
    }
    return ModelConfig(**(found | facts))


def text_fields(description: Description, defaults: Mapping[str, Any] | None = None) -> Fields:
    """config.json as one mapping: `text_config` over the top level over `defaults`. A null does not hide a value
    further out.
    """
    top = dict(description.config)
    text = top.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise ModelError(f"text_config in config.json is {text!r}; it must be an object.")
    inner = {key: value for key, value in text.items() if value is not None or key not in top}
    return Fields({**(defaults or {}), **top, **inner}, "config.json")


def layer_types(fields: Fields, is_sliding: Callable[[int], bool]) -> list[str]:
    """The attention of each layer: the config's own list, else the family's rule."""
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    types = fields.get("layer_types")
    if types is None:
        return [SLIDING if is_sliding(i) else FULL for i in range(num_layers)]
    if not isinstance(types, list | tuple) or len(types) != num_layers:
        raise ModelError(f"layer_types in config.json must be a list of {num_layers} names, one per layer.")
    for kind in types:
        if kind not in (FULL, SLIDING):
            raise ModelError(f"layer type {kind!r} is not supported; supported types: {FULL}, {SLIDING}.")
    return list(types)


def qwen_layer_types(fields: Fields) -> list[str]:
    if not fields.boolean("use_sliding_window", False) or not fields.has("sliding_window"):
        # Such configs may carry a list of layer types; without use_sliding_window it has no window to speak of.
        return [FULL] * fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    first = fields.integer("max_window_layers", 28, minimum=0)
    return layer_types(fields, lambda i: i >= first)


def activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not supported; supported activations: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def rope_parameters(fields: Fields, kind: str, thetas: Mapping[str, float]) -> dict[str, Any]:
    """The rope parameters of one type of layer, from any of the forms that config.json has had.

    They are `rope_parameters` (flat, or one mapping per layer type), or `rope_scaling` beside `rope_theta`.
    """
    written = fields.get("rope_parameters", {})
    scaling = fields.get("rope_scaling", {})
    if not isinstance(written, Mapping) or not isinstance(scaling, Mapping):
        raise ModelError("rope_parameters and rope_scaling in config.json must be objects.")
    local = kind in thetas and kind != FULL
    theta = thetas[kind] if local else fields.positive("rope_theta", thetas.get(kind, 1e4))
    if any(isinstance(value, Mapping) for value in written.values()):
        parameters = dict(written.get(kind) or {})
    else:
        parameters = {} if local else dict(written)
    if not local:
        parameters |= scaling
    parameters.setdefault("rope_theta", theta)
    partial = parameters.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelError(
            f"partial_rotary_factor {partial} is not supported: octavo's architectures rotate whole heads."
        )
    if fields.has("original_max_position_embeddings"):
        parameters["original_max_position_embeddings"] = fields.integer("original_max_position_embeddings")
    return parameters
