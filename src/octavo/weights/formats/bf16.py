"""BF16: the upper half of a float32."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format


def dequantize(blocks: Blocks) -> Floats:
    return (blocks["upper"].astype(np.uint32) << 16).view(np.float32)[:, None]


BF16 = Format("bf16", np.dtype([("upper", "<u2")]), 1, 30, dequantize)
