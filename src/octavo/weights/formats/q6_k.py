"""Q6_K: 256 values of 6 bits around 32 in sixteen groups of 16, each with an 8-bit scale that is a multiple of the
block's.
"""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bit_pairs, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    scales = (column(blocks["scale"]) * blocks["group"].astype(np.float32))[..., None]
    # Either half of the block, 128 values, has 64 bytes of low bits and 32 bytes whose bit pairs are the high bits of
    # its four quarters.
    low = nibbles(blocks["low"].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = bit_pairs(blocks["high"]).reshape(-1, 2, 4, 32)
    values = (low | high << 4).astype(np.float32) - 32
    return (scales * values.reshape(-1, 16, 16)).reshape(-1, 256)


Q6_K = Format(
    "q6_k",
    np.dtype([("low", "u1", 128), ("high", "u1", 64), ("group", "i1", 16), ("scale", "<f2")]),
    256,
    14,
    dequantize,
)
