"""The vocabulary of operations: what a decoder may say, and what every backend must do.

An `Array` is a backend's own handle (a recorded buffer, a NumPy array, a torch tensor) of float32 values with a row
per token (T), per sequence (S) or per output row (R). Row counts are symbolic while a Program is recorded: a decoder
never compares or branches on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Array = Any
Weight = Any
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One rotary embedding: angle(position, i) = position * inv_freq[i]; cos and sin are multiplied by `scale`.

    Only the first 2 * len(inv_freq) values of a head are rotated. `interleaved` pairs (2i, 2i+1); otherwise (i, i +
    len(inv_freq)).
    """

    inv_freq: tuple[float, ...]
    scale: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The facts of one layer's attention. `window` 0 means full; key j is seen by query i iff j <= i and i - j <
    window.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


class Ops(Protocol):
    """About twenty operations. Inputs of the step (token ids, positions, block tables, ...) are the backend's own and
    implicit.
    """

    def embed(self, weight: Weight, scale: float = 1.0) -> Array:
        """Rows of `weight` [V, H] at the step's token ids, times `scale`: [T, H]."""

    def linear(self, x: Array, weight: Weight, bias: Weight | None = None) -> Array:
        """x [*, K] times weight [N, K] transposed, plus bias [N]: [*, N]."""

    def rms_norm(self, x: Array, weight: Weight, eps: float, offset: float = 0.0) -> Array:
        """x / sqrt(mean(x^2) + eps) * (weight + offset), over groups of len(weight) values: [*, G * len(weight)]
        keeps its shape.
        """

    def rope(self, x: Array, spec: RopeSpec, head_dim: int) -> Array:
        """Rotates each head of x [T, heads * head_dim] by the step's positions."""

    def attention(self, q: Array, k: Array, v: Array, layer: int, spec: AttentionSpec) -> Array:
        """Writes k, v [T, kv_heads * head_dim] into the cache of `layer`, then attends from q [T, heads * head_dim]."""

    def gated_activation(self, gate: Array, up: Array, kind: Activation) -> Array:
        """activation(gate) * up, elementwise."""

    def activation(self, x: Array, kind: Activation) -> Array:
        """activation(x), elementwise."""

    def add(self, a: Array, b: Array) -> Array:
        """a + b, elementwise, of equal shapes."""

    def scale(self, x: Array, factor: float) -> Array:
        """x * factor, elementwise."""

    def select_rows(self, x: Array) -> Array:
        """The rows of x [T, H] that this step's output rows name: [R, H]."""

    def logits(self, x: Array, weight: Weight, softcap: float = 0.0, scale: float = 1.0) -> Array:
        """softcap(x [R, H] times weight [V, H] transposed, times scale): [R, V], float32, kept for the sampler."""

    def pool(self, x: Array) -> None:
        """Says that vectors of prompts are pooled from the rows of x [T, H], which stay readable to the step's end.
        Requests say whose and how. A decoder that names no such array makes no vectors.
        """

    def call(self, function: Callable[..., Any], *arrays: Array) -> Array:
        """A host break: function gets the NumPy values of `arrays` and returns an array shaped like the first."""

    def cut(self) -> None:
        """Ends a segment: a Program may be run up to here, and from here on."""
