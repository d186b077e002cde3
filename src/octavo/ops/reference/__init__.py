"""The reference backend: every operation by its definition, in NumPy and float64, on one step's inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.ops.interface import Activation, AttentionSpec, RopeSpec
from octavo.ops.reference import elementwise
from octavo.ops.reference.attention import PagedCache, paged_attention
from octavo.ops.reference.inputs import StepInputs
from octavo.ops.reference.linear import Bf16Weight, QuantizedWeight, Weights, dequantize, linear
from octavo.ops.reference.numbers import Values

__all__ = ["Bf16Weight", "PagedCache", "QuantizedWeight", "ReferenceOps", "StepInputs"]


class ReferenceOps:
    """The Ops protocol over one step: arrays are float64, weights are float64 arrays, Bf16Weight or QuantizedWeight.

    Made anew for each step; the cache outlives it. Making it applies the step's block copies.
    """

    def __init__(self, inputs: StepInputs, cache: PagedCache) -> None:
        self.inputs = inputs
        self.cache = cache
        self.pooled: Values | None = None
        cache.copy_blocks(inputs.copies)

    def embed(self, weight: Weights, scale: float = 1.0) -> Values:
        return dequantize(weight)[self.inputs.token_ids] * scale

    def linear(self, x: Values, weight: Weights, bias: Values | None = None) -> Values:
        return linear(x, weight, bias)

    def rms_norm(self, x: Values, weight: Values, eps: float, offset: float = 0.0) -> Values:
        return elementwise.rms_norm(x, weight, eps, offset)

    def rope(self, x: Values, spec: RopeSpec, head_dim: int) -> Values:
        return elementwise.rope(x, self.inputs.positions, spec, head_dim)

    def attention(self, q: Values, k: Values, v: Values, layer: int, spec: AttentionSpec) -> Values:
        self.cache.store(layer, k, v, self.inputs.slot_mapping[self.cache.layer_groups[layer]])
        return paged_attention(q, self.cache, layer, self.inputs, spec)

    def gated_activation(self, gate: Values, up: Values, kind: Activation) -> Values:
        return elementwise.activation(gate, kind) * up

    def activation(self, x: Values, kind: Activation) -> Values:
        return elementwise.activation(x, kind)

    def add(self, a: Values, b: Values) -> Values:
        return a + b

    def scale(self, x: Values, factor: float) -> Values:
        return x * factor

    def select_rows(self, x: Values) -> Values:
        return x[self.inputs.output_rows]

    def logits(self, x: Values, weight: Weights, softcap: float = 0.0, scale: float = 1.0) -> Values:
        return elementwise.softcap(linear(x, weight) * scale, softcap)

    def pool(self, x: Values) -> None:
        self.pooled = x

    def call(self, function: Callable[..., Any], *arrays: Values) -> Values:
        result = np.asarray(function(*arrays), np.float64)
        if result.shape != arrays[0].shape:
            raise ValueError(f"a called function returned shape {result.shape} for an input of shape {arrays[0].shape}")
        return result

    def cut(self) -> None:
        pass
