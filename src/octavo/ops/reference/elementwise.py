"""The definitions of the operations that treat rows one by one."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.ops.interface import Activation, RopeSpec
from octavo.ops.reference.numbers import Values


def rms_norm(x: Values, weight: Values, eps: float, offset: float = 0.0) -> Values:
    """Over groups of len(weight) values of the last axis: x / sqrt(mean(x^2) + eps) * (weight + offset)."""
    groups = x.reshape(*x.shape[:-1], -1, len(weight))
    normalised = groups / np.sqrt(np.mean(groups**2, axis=-1, keepdims=True) + eps)
    out: Values = (normalised * (weight + offset)).reshape(x.shape)
    return out


def rope(x: Values, positions: npt.NDArray[np.int32], spec: RopeSpec, head_dim: int) -> Values:
    """Rotates the pairs of every head of x [T, heads * head_dim] by position * inv_freq."""
    half = len(spec.inv_freq)
    angles = positions.astype(np.float64)[:, None, None] * np.asarray(spec.inv_freq)
    cos, sin = np.cos(angles) * spec.scale, np.sin(angles) * spec.scale
    heads = x.reshape(len(x), -1, head_dim)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if spec.interleaved else (slice(0, half), slice(half, 2 * half))
    )
    rotated = heads.copy()
    rotated[..., first] = heads[..., first] * cos - heads[..., second] * sin
    rotated[..., second] = heads[..., second] * cos + heads[..., first] * sin
    return rotated.reshape(x.shape)


def activation(x: Values, kind: Activation) -> Values:
    if kind == "silu":
        return x * 0.5 * (1.0 + np.tanh(0.5 * x))  # x * sigmoid(x), without an exp that overflows
    if kind == "gelu":
        return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))
    if kind == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return np.maximum(x, 0.0)


def erf(x: Values) -> Values:
    return np.fromiter(map(math.erf, x.ravel()), np.float64, x.size).reshape(x.shape)


def softcap(x: Values, cap: float) -> Values:
    """cap * tanh(x / cap); a cap of 0 leaves x as it is."""
    return cap * np.tanh(x / cap) if cap else x


def pool(x: Values, kind: str) -> Values:
    """The vector of a prompt from the states of all its tokens: the last one's, or their mean."""
    vector: Values = x[-1] if kind == "last" else x.mean(axis=0)
    return vector
