"""What a weight format is: a block of bytes that stands for a fixed number of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[Any]  # one-dimensional, of the format's structured block type
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    block: the layout of a block, little-endian and without padding. block_size: values in a block. gguf_type: its
    number in GGUF files. dequantize: blocks [B] -> float32 values [B, block_size].
    """

    name: str
    block: np.dtype[Any]
    block_size: int
    gguf_type: int
    dequantize: Callable[[Blocks], Floats]

    @property
    def bytes_per_block(self) -> int:
        return self.block.itemsize

    def row_bytes(self, values: int) -> int:
        """Bytes of a row of `values` values, which must be whole blocks."""
        blocks, rest = divmod(values, self.block_size)
        if rest:
            raise ValueError(f"a row of {values} values is not made of whole {self.name} blocks of {self.block_size}")
        return blocks * self.bytes_per_block


def column(values: npt.NDArray[Any]) -> Floats:
    """One value a block [B], as a float32 column [B, 1] that multiplies the block's values."""
    return values.astype(np.float32)[:, None]


def nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., n] bytes -> [..., 2 n] values from 0 to 15: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def bits(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[B, n] bytes -> [B, 8 n] values 0 or 1, lowest bit first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")


def bit_pairs(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[B, 32 n] bytes -> [B, 128 n] values from 0 to 3: of each 32 bytes all lowest pairs of bits, then the next."""
    parts = packed.reshape(len(packed), -1, 32)
    return np.stack([parts >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(len(packed), -1)


def k_scales(packed: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """The eight 6-bit scales and minima that Q4_K and Q5_K keep in 12 bytes: [B, 12] -> two of [B, 8, 1].

    The first four of each are the low bits of bytes 0-3 and 4-7, whose top two bits belong to the last four; bytes
    8-11 hold the rest of those, the scale in the low half and the minimum in the high half.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return scales.astype(np.float32)[..., None], minima.astype(np.float32)[..., None]
