"""F32: float32 values as they are."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format


def dequantize(blocks: Blocks) -> Floats:
    return blocks["value"].astype(np.float32)[:, None]


F32 = Format("f32", np.dtype([("value", "<f4")]), 1, 0, dequantize)
