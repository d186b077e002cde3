"""Q4_K: 256 values of 4 bits in eight groups of 32, each with a 6-bit scale and minimum that are multiples of the
block's two.
"""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, column, k_scales, nibbles


def dequantize(blocks: Blocks) -> Floats:
    group_scales, group_minima = k_scales(blocks["group"])
    scales = column(blocks["scale"])[..., None] * group_scales
    minima = column(blocks["minimum"])[..., None] * group_minima
    # 32 bytes hold two groups: the one in their low halves, then the one in their high halves.
    values = nibbles(blocks["low"].reshape(-1, 4, 32)).reshape(-1, 8, 32).astype(np.float32)
    return (scales * values - minima).reshape(-1, 256)


Q4_K = Format(
    "q4_k",
    np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("group", "u1", 12), ("low", "u1", 128)]),
    256,
    12,
    dequantize,
)
