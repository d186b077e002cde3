"""F16: IEEE half precision."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, column


def dequantize(blocks: Blocks) -> Floats:
    return column(blocks["value"])


F16 = Format("f16", np.dtype([("value", "<f2")]), 1, 1, dequantize)
