"""Q3_K: 256 values of 3 bits around 4 in sixteen groups of 16, each with a 6-bit scale around 32 that is a multiple of
the block's.
"""

import numpy as np

from octavo.weights.formats.format import Blocks, Floats, Format, bit_pairs, bits, column, nibbles


def dequantize(blocks: Blocks) -> Floats:
    # The low four bits of the scales are nibbles of 8 bytes, the other two bit pairs of 4.
    high = np.concatenate([blocks["group"][:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    groups = (nibbles(blocks["group"][:, :8]) | high << 4).astype(np.float32) - 32
    scales = (column(blocks["scale"]) * groups)[..., None]
    # Bit g of byte i belongs to value i of the 32 with number g.
    third = bits(blocks["high"]).reshape(-1, 32, 8).swapaxes(1, 2).reshape(-1, 256)
    values = (bit_pairs(blocks["low"]) | third << 2).astype(np.float32) - 4
    return (scales * values.reshape(-1, 16, 16)).reshape(-1, 256)


Q3_K = Format(
    "q3_k",
    np.dtype([("high", "u1", 32), ("low", "u1", 64), ("group", "u1", 12), ("scale", "<f2")]),
    256,
    11,
    dequantize,
)
