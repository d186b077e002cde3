"""Rounding to the storage types, element by element, on values held as float64."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
StorageType = Literal["f64", "f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int16"]
LARGEST_F16 = np.float32(65504)
INTEGERS = {"int8": 127, "int16": 4095}  # largest: products of int16 are summed up in 32 bits
# Bits of mantissa, exponent of the least normal, largest value.
FP8 = {"fp8_e4m3": (3, -6, 448.0), "fp8_e5m2": (2, -14, 57344.0)}


def round_to(x: npt.NDArray[Any], dtype: StorageType) -> Values:
    """x as it reads back from a store of `dtype`, by way of float32, as every backend computes in it before storing.

    What is beyond the largest value of f16 or fp8 is that value, infinity too, as in a cache. int8 and int16 have a
    scale for each vector, along the last axis.
    """
    if dtype == "f64":
        return np.asarray(x, np.float64)
    single = np.asarray(x, np.float32)
    if dtype == "bf16":
        single = round_bf16(single)
    elif dtype == "f16":
        single = np.clip(single, -LARGEST_F16, LARGEST_F16).astype(np.float16).astype(np.float32)
    elif dtype in FP8:
        return round_fp8(single.astype(np.float64), *FP8[dtype])
    elif dtype in INTEGERS:
        single = round_integers(single, np.float32(INTEGERS[dtype]))
    return single.astype(np.float64)


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the nearest of the float32 values whose lower 16 bits are zero, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
        np.float32
    )
    return np.where(np.isnan(x), x, rounded)


def round_fp8(x: Values, mantissa: int, least_exponent: int, largest: float) -> Values:
    """To the nearest, ties to even; beyond the largest value, infinity too, to that; NaN stays NaN."""
    exponent = np.maximum(np.frexp(x)[1] - 1, least_exponent)  # of infinity, whatever it is
    step = np.ldexp(1.0, exponent - mantissa)
    rounded: Values = np.clip(np.rint(x / step) * step, -largest, largest)
    return rounded


def round_integers(x: npt.NDArray[np.float32], most: np.float32) -> npt.NDArray[np.float32]:
    """A vector (last axis) is integers of up to `most` times one scale; all NaN where one of it is not finite.

    In float32, as the kernels do it: which of two integers is nearer may hang on it.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        largest = abs(x).max(axis=-1, keepdims=True)
        vanishes = largest < most * np.float32(2.0**-126)
        inverse = np.where(vanishes, np.float32(0), most / largest)
        scale = np.where(vanishes, np.float32(0), largest / most)
        scale = np.where(np.isfinite(largest), scale, np.float32(np.nan))
        return np.rint(x * inverse) * scale
