"""Q5_1: 32 values of 5 bits, a scale and a minimum; the fifth bits lie together."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bits, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    values = nibbles(blocks["low"]) | bits(blocks["high"]) << 4
    return column(blocks["scale"]) * values.astype(np.float32) + column(blocks["minimum"])


Q5_1 = Format(
    "q5_1",
    np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]),
    32,
    7,
    dequantize,
)
