"""Q5_K: as Q4_K, with a fifth bit for each value in 32 bytes of their own."""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bits, column, k_scales, nibbles


def dequantize(blocks: Blocks) -> Floats:
    group_scales, group_minima = k_scales(blocks["group"])
    scales = column(blocks["scale"])[..., None] * group_scales
    minima = column(blocks["minimum"])[..., None] * group_minima
    low = nibbles(blocks["low"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit g of byte i belongs to value i of group g.
    high = bits(blocks["high"]).reshape(-1, 32, 8).swapaxes(1, 2)
    return (scales * (low | high << 4).astype(np.float32) - minima).reshape(-1, 256)


Q5_K = Format(
    "q5_k",
    np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("group", "u1", 12), ("high", "u1", 32), ("low", "u1", 128)]),
    256,
    13,
    dequantize,
)
