"""Q8_0: 32 signed bytes, one scale."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, column


def dequantize(blocks: Blocks) -> Floats:
    return column(blocks["scale"]) * blocks["value"].astype(np.float32)


Q8_0 = Format("q8_0", np.dtype([("scale", "<f2"), ("value", "i1", 32)]), 32, 8, dequantize)
