"""Q5_0: 32 values of 5 bits around 16, one scale; the fifth bits lie together."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bits, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    values = nibbles(blocks["low"]) | bits(blocks["high"]) << 4
    return column(blocks["scale"]) * (values.astype(np.float32) - 16)


Q5_0 = Format("q5_0", np.dtype([("scale", "<f2"), ("high", "u1", 4), ("low", "u1", 16)]), 32, 6, dequantize)
