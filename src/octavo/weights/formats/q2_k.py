"""Q2_K: 256 values of 2 bits in sixteen groups of 16, each with a 4-bit scale and minimum that are multiples of the
block's two.
"""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bit_pairs, column


def dequantize(blocks: Blocks) -> Floats:
    scales = (column(blocks["scale"]) * (blocks["group"] & 15).astype(np.float32))[..., None]
    minima = (column(blocks["minimum"]) * (blocks["group"] >> 4).astype(np.float32))[..., None]
    values = bit_pairs(blocks["low"]).astype(np.float32).reshape(-1, 16, 16)
    return (scales * values - minima).reshape(-1, 256)


Q2_K = Format(
    "q2_k",
    np.dtype([("group", "u1", 16), ("low", "u1", 64), ("scale", "<f2"), ("minimum", "<f2")]),
    256,
    10,
    dequantize,
)
