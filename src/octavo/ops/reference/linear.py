"""The definitions of linear layers: the exact one, and the arithmetic of each kind of stored weight.

A plain array multiplies exactly, in float64. `Bf16Weight` and `QuantizedWeight` define what a kernel of that format
computes; a kernel may differ from them by the rounding of its float32 sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.ops.reference.numbers import Values, round_to

ACTIVATION_GROUP = 32  # values along K whose activation scales are multiples of one
ACTIVATION_HALF = 16  # values along K that share an activation scale
MOST_FACTOR = 64  # the largest of these multiples
ACTIVATION_SPAN = 64  # or so many, with weights that have a scale for as many


@dataclass(frozen=True, slots=True)
class Bf16Weight:
    """values [N, K], each a bf16 number. Activations are rounded to bf16 first; products and sums are exact here."""

    values: Values


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """w[n, k] = scale[n, k / group] * q[n, k] + minimum[n, k / group], with integer q [N, K] of 4 or 8 bits.

    scale and minimum (None: 0) are [N, K / group]; `group` is a multiple of ACTIVATION_HALF; the last may be cut
    short. activations: how those are quantised, with a scale for each half of a group or for each span.
    """

    q: npt.NDArray[np.integer[Any]]
    scale: Values
    minimum: Values | None
    group: int
    activations: Literal["halves", "spans"] = "halves"


Weights = Values | Bf16Weight | QuantizedWeight


def dequantize(weight: Weights) -> Values:
    """The values [N, K] that a weight stands for."""
    if isinstance(weight, Bf16Weight):
        return weight.values
    if isinstance(weight, QuantizedWeight):
        k = weight.q.shape[-1]
        values = weight.q.astype(np.float64) * np.repeat(weight.scale, weight.group, axis=-1)[..., :k]
        return values if weight.minimum is None else values + np.repeat(weight.minimum, weight.group, axis=-1)
    return np.asarray(weight, np.float64)


def quantize_activations(x: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """x [*, K] as int8 q [*, K] and float32 scale [*, K / 16], with x about q * scale.

    Per token, in float32. A group of 32 has the step s, the least power of two from 2^-126 on that reaches max|x| /
    (127 * 64); either half of it has the scale s * f, f being the least integer from 1 to 64 with which it reaches the
    half's own max|x| / 127. So an outlier costs its neighbours in one half their precision, not all 32, and kernels may
    still add up both halves as integers, and multiply the sum by a power of two. q = x * (1 / scale), rounded to the
    nearest, halves to even. A group with a value that is not finite, or whose s is above 2^104, has NaN for its scales.
    """
    halves = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, ACTIVATION_GROUP // ACTIVATION_HALF, ACTIVATION_HALF)
    largest = np.abs(halves).max(axis=-1)
    whole = largest.max(axis=-1, keepdims=True)
    is_finite = np.isfinite(whole)
    mantissa, exponent = np.frexp(np.where(is_finite, whole, np.float32(0)) * np.float32(1 / (127 * MOST_FACTOR)))
    exponent = np.where(mantissa == 0, -126, exponent - (mantissa == 0.5))
    step = np.ldexp(np.float32(1), np.maximum(exponent, -126))
    exact = largest * np.float32(1 / 127) * (np.float32(1) / step)
    factor = np.clip(np.ceil(exact), 1, MOST_FACTOR)
    scale = np.where(is_finite & (step <= 2.0**104), step * factor, np.float32(np.nan))
    q = np.rint(np.where(np.isnan(scale)[..., None], np.float32(0), halves * (np.float32(1) / scale)[..., None]))
    return q.astype(np.int8).reshape(x.shape), scale.reshape(*x.shape[:-1], -1)


def quantize_spans(x: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """x [*, K] as int8 q [*, K] and, float32 [*, K / 64 rounded up], the scale of each span of K.

    In float32: scale = max|x| / 127 and q = x * (1 / scale), rounded to the nearest, halves to even; a reciprocal that
    overflows counts as 0. A span with a value that is not finite has NaN for its scale.
    """
    k, span = x.shape[-1], ACTIVATION_SPAN
    spans = np.asarray(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % span)]), np.float32)
    spans = spans.reshape(*x.shape[:-1], -1, span)
    largest = np.abs(spans).max(axis=-1)
    is_finite = np.isfinite(largest)
    scale = np.where(is_finite, largest / np.float32(127), np.float32(np.nan))
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    inverse = np.where(np.isfinite(inverse), inverse, np.float32(0))
    q = np.rint(np.where(is_finite[..., None], spans, np.float32(0)) * inverse[..., None])
    return q.astype(np.int8).reshape(*x.shape[:-1], -1)[..., :k], scale


def quantize_weights(values: npt.NDArray[Any]) -> QuantizedWeight:
    """values [N, K] in 8 bits with a scale for each span of K, as activations have them."""
    q, scale = quantize_spans(values)
    return QuantizedWeight(q, scale.astype(np.float64), None, ACTIVATION_SPAN, "spans")


def linear(x: Values, weight: Weights, bias: Values | None = None) -> Values:
    """x [*, K] times weight [N, K] transposed, plus bias [N], in the arithmetic of the weight's kind."""
    if isinstance(weight, QuantizedWeight):
        # Sums of products within a group are exact integers, and scales are applied to them: in float64 that equals
        # multiplying what both sides stand for.
        spans = weight.activations == "spans"
        q, scale = quantize_spans(x) if spans else quantize_activations(x)
        repeated = np.repeat(scale.astype(np.float64), ACTIVATION_SPAN if spans else ACTIVATION_HALF, axis=-1)
        x = q.astype(np.float64) * repeated[..., : x.shape[-1]]
    elif isinstance(weight, Bf16Weight):
        x = round_to(x, "bf16")
    product = x @ dequantize(weight).T
    return product if bias is None else product + bias
