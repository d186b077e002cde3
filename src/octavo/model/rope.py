"""Rotary embeddings: from a model's parameters to one inverse frequency per pair of values.

Every variant is evaluated once, for the context length that is served, so that an angle depends on its position and the
resolved config only. Where the published method picks frequencies by the length of each sequence (dynamic, longrope), a
sequence's keys would otherwise mean something else as it grows, and could not be cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelError
from octavo.model.fields import Fields
from octavo.ops.interface import RopeSpec

# Far past any model: the frequencies of an absurd head would not fit in memory.
MAX_ROTARY_DIM = 65_536
Frequencies = npt.NDArray[np.float64]


def rope_spec(
    parameters: Mapping[str, Any],
    rotary_dim: int,
    max_position: int,
    max_model_len: int | None = None,
    factors: tuple[float, ...] = (),
    interleaved: bool = False,
) -> RopeSpec:
    """The RopeSpec of `parameters`, in the words of a Hugging Face config (rope_type or type, rope_theta, factor, ...).

    rotary_dim: values of a head that are rotated. max_position: the config's max_position_embeddings. max_model_len:
    the context length served (default max_position): past max_position it raises the base of `dynamic`; past the
    original length it selects the long factors of `longrope`. factors: divisors of the frequencies, one per pair (the
    rope_freqs tensor of a GGUF file). Raises ModelError for an unknown type and for a missing or wrong parameter.
    """
    fields = Fields(parameters, "the rope parameters")
    kind = rope_type(parameters)
    if kind not in VARIANTS:
        raise ModelError(f"rope type {kind!r} is not supported; supported types: {', '.join(VARIANTS)}.")
    if not 2 <= rotary_dim <= MAX_ROTARY_DIM or rotary_dim % 2:
        raise ModelError(
            f"rope rotates {rotary_dim} values of a head; it must be an even number from 2 to {MAX_ROTARY_DIM}."
        )
    length = max_position if max_model_len is None else max_model_len
    inv_freq, scale = VARIANTS[kind](fields, rotary_dim, max_position, length)
    if factors:
        if len(factors) != rotary_dim // 2 or not all(math.isfinite(f) and f > 0 for f in factors):
            raise ModelError(f"the rope factors must be {rotary_dim // 2} positive numbers; there are {len(factors)}.")
        inv_freq = inv_freq / np.asarray(factors, np.float64)
    return RopeSpec(tuple(inv_freq.tolist()), scale, interleaved)


def rope_type(parameters: Mapping[str, Any]) -> str:
    """The variant's name, under either of its keys; `su` is the first name of longrope."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return "longrope" if kind == "su" else str(kind)


def extended_length(parameters: Mapping[str, Any], max_position: int, max_model_len: int | None = None) -> int:
    """The longest sequence that a config means. YaRN is often added to one whose max_position is still the original
    length; `dynamic` reaches up to `factor` times as far where max_model_len asks for it.
    """
    kind, fields = rope_type(parameters), Fields(parameters, "the rope parameters")
    if kind == "dynamic":
        return max(max_position, min(max_model_len or 0, int(max_position * fields.positive("factor"))))
    if kind != "yarn":
        return max_position
    original = fields.integer("original_max_position_embeddings", max_position)
    return max(max_position, int(original * fields.positive("factor", 1.0)))


def powers(theta: float, dim: int) -> Frequencies:
    """theta ** (2i / dim) for i in [0, dim / 2)."""
    return theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)


def default(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    return 1.0 / powers(fields.positive("rope_theta"), dim), 1.0


def linear(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    return default(fields, dim, max_position, length)[0] / fields.positive("factor"), 1.0


def dynamic(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    """NTK scaling: the base grows with the part of `length` past max_position, and is untouched below it."""
    theta, factor = fields.positive("rope_theta"), fields.positive("factor")
    if dim > 2:
        theta *= (factor * max(length, max_position) / max_position - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / powers(theta, dim), 1.0


def yarn(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    """YaRN (arXiv 2309.00071): what turns less than beta_slow times in the original length is interpolated."""
    theta = fields.positive("rope_theta")
    original = fields.integer("original_max_position_embeddings", max_position)
    factor = fields.positive("factor", max_position / original)

    def dimension_of(key: str, default: float) -> float:
        turns = fields.number(key, default) or default  # 0 stands for "not set" in configs that are about
        if turns < 0 or theta <= 1:
            raise ModelError(f"yarn needs rope_theta > 1 and {key} > 0; they are {theta} and {turns}.")
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension_of("beta_fast", 32.0), dimension_of("beta_slow", 1.0)
    if fields.boolean("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the width of the ramp divides
    ramp = np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    inv_freq = 1.0 / powers(theta, dim)
    return inv_freq / factor * ramp + inv_freq * (1.0 - ramp), yarn_attention_factor(fields, factor)


def yarn_attention_factor(fields: Fields, factor: float) -> float:
    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if fields.has("attention_factor"):
        return fields.number("attention_factor")
    mscale, mscale_all_dim = fields.number("mscale", 0.0), fields.number("mscale_all_dim", 0.0)
    if mscale and mscale_all_dim:
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)


def longrope(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    """LongRoPE (arXiv 2402.13753): a divisor per frequency, from one of two sets: `length` past the original or not."""
    original = fields.integer("original_max_position_embeddings", max_position)
    divisors = fields.numbers("long_factor" if length > original else "short_factor", dim // 2)
    if min(divisors) <= 0:
        raise ModelError(f"a longrope factor is {min(divisors)}; it must be greater than 0.")
    factor = fields.positive("factor", max_position / original)
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    if fields.has("attention_factor"):
        scale = fields.number("attention_factor")
    return 1.0 / (np.asarray(divisors) * powers(fields.positive("rope_theta"), dim)), scale


def llama3(fields: Fields, dim: int, max_position: int, length: int) -> tuple[Frequencies, float]:
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    inv_freq, scale = default(fields, dim, max_position, length)
    factor = fields.positive("factor")
    low, high = fields.positive("low_freq_factor"), fields.positive("high_freq_factor")
    if high <= low:
        raise ModelError(f"llama3 rope needs high_freq_factor > low_freq_factor; they are {high} and {low}.")
    turns = fields.integer("original_max_position_embeddings", max_position) * inv_freq / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return inv_freq * (kept + (1.0 - kept) / factor), scale


VARIANTS: dict[str, Callable[[Fields, int, int, int], tuple[Frequencies, float]]] = {
    "default": default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
}
