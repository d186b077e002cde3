"""Q4_1: 32 values of 4 bits, a scale and a minimum."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    return column(blocks["scale"]) * nibbles(blocks["low"]).astype(np.float32) + column(blocks["minimum"])


Q4_1 = Format("q4_1", np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("low", "u1", 16)]), 32, 3, dequantize)
