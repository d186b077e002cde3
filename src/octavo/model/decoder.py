"""The decoder that all architectures share: a transformer of sequential blocks, read off a ModelConfig."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.model.model_config import ModelConfig
from octavo.ops.interface import Array, Ops, Weight


def decoder(config: ModelConfig, weights: Mapping[str, Weight], ops: Ops, cuts: Collection[int] = ()) -> Array:
    """The logits [R, V] of a step's output rows, from the step's tokens.

    weights: by canonical name, all of weight_shapes(config). cuts: layers before which the program may be cut into
    stages.
    """
    x = ops.embed(weights["embed"], config.embedding_scale)
    for layer in range(config.num_layers):
        if layer in cuts:
            ops.cut()
        x = ops.add(x, attention(config, weights, ops, layer, x))
        x = ops.add(x, mlp(config, weights, ops, layer, x))
    x = norm(config, weights["final_norm"], ops, x)
    ops.pool(x)
    return ops.logits(ops.select_rows(x), weights["embed" if config.tied_head else "head"], config.logit_softcap)


def attention(config: ModelConfig, weights: Mapping[str, Weight], ops: Ops, layer: int, x: Array) -> Array:
    prefix, rope = f"layers.{layer}.", config.layers[layer].rope
    x = norm(config, weights[prefix + "attn_norm"], ops, x)
    q = linear(weights, ops, prefix + "q", x, config.qkv_bias)
    k = linear(weights, ops, prefix + "k", x, config.qkv_bias)
    v = linear(weights, ops, prefix + "v", x, config.qkv_bias)
    if config.qk_norm:
        q = norm(config, weights[prefix + "q_norm"], ops, q)
        k = norm(config, weights[prefix + "k_norm"], ops, k)
    q = ops.rope(q, rope, config.head_dim)
    k = ops.rope(k, rope, config.head_dim)
    x = ops.attention(q, k, v, layer, config.attention_spec(layer))
    x = linear(weights, ops, prefix + "o", x, config.o_bias)
    return norm(config, weights[prefix + "post_attn_norm"], ops, x) if config.sandwich_norm else x


def mlp(config: ModelConfig, weights: Mapping[str, Weight], ops: Ops, layer: int, x: Array) -> Array:
    prefix = f"layers.{layer}."
    x = norm(config, weights[prefix + "mlp_norm"], ops, x)
    gate = linear(weights, ops, prefix + "gate", x, config.mlp_bias)
    up = linear(weights, ops, prefix + "up", x, config.mlp_bias)
    x = ops.gated_activation(gate, up, config.activation)
    x = linear(weights, ops, prefix + "down", x, config.mlp_bias)
    return norm(config, weights[prefix + "post_mlp_norm"], ops, x) if config.sandwich_norm else x


def norm(config: ModelConfig, weight: Weight, ops: Ops, x: Array) -> Array:
    return ops.rms_norm(x, weight, config.norm_eps, config.norm_offset)


def linear(weights: Mapping[str, Weight], ops: Ops, name: str, x: Array, has_bias: bool) -> Array:
    return ops.linear(x, weights[name], weights[name + "_bias"] if has_bias else None)
