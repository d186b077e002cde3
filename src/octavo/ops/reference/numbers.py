"""Rounding to the storage types, element by element, on values held as float64."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
StorageType = Literal["f64", "f32", "f16", "bf16"]


def round_to(x: npt.NDArray[Any], dtype: StorageType) -> Values:
    """x as it reads back from a store of `dtype`, by way of float32, as every backend computes in it before storing."""
    if dtype == "f64":
        return np.asarray(x, np.float64)
    single = np.asarray(x, np.float32)
    if dtype == "bf16":
        single = round_bf16(single)
    elif dtype == "f16":
        with np.errstate(over="ignore"):  # past the largest float16 is infinity, by definition
            single = single.astype(np.float16).astype(np.float32)
    return single.astype(np.float64)


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """To the nearest of the float32 values whose lower 16 bits are zero, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
        np.float32
    )
    return np.where(np.isnan(x), x, rounded)
