"""Q4_0: 32 values of 4 bits around 8, one scale."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    return column(blocks["scale"]) * (nibbles(blocks["low"]).astype(np.float32) - 8)


Q4_0 = Format("q4_0", np.dtype([("scale", "<f2"), ("low", "u1", 16)]), 32, 2, dequantize)
