"""A named tensor as its file stores it, and its values in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.weights.formats import FORMATS, Format

# Blocks dequantised at a time: few enough that the temporaries stay in the cache.
CHUNK_VALUES = 1 << 16


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint.

    shape: rows first, as (out, in) for a linear's weight. format: a name of formats.FORMATS. data: the stored bytes,
    uint8 and C-contiguous, [*shape[:-1], bytes of a row]; read-only, and mapped from `source` unless a pass has made
    new bytes.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: npt.NDArray[np.uint8]
    source: Path

    @property
    def layout(self) -> Format:
        return FORMATS[self.format]


def dequantize(tensor: Tensor) -> npt.NDArray[np.float32]:
    """The values of `tensor` in float32, of its shape."""
    layout = tensor.layout
    blocks = tensor.data.reshape(-1).view(layout.block)
    values = np.empty((len(blocks), layout.block_size), np.float32)
    step = max(1, CHUNK_VALUES // layout.block_size)
    with np.errstate(invalid="ignore", over="ignore"):  # a stored infinity or NaN is passed on, and is no news here
        for start in range(0, len(blocks), step):
            values[start : start + step] = layout.dequantize(blocks[start : start + step])
    return values.reshape(tensor.shape)


def data_shape(shape: tuple[int, ...], layout: Format) -> tuple[int, ...]:
    """The shape of Tensor.data: rows of bytes. A tensor without dimensions is a row of one value."""
    return (*shape[:-1], layout.row_bytes(shape[-1])) if shape else (layout.row_bytes(1),)


def stored_bytes(shape: tuple[int, ...], layout: Format) -> int:
    """Bytes of a tensor; Python's integers do not overflow, however large a file says the dimensions are."""
    return math.prod(data_shape(shape, layout))
