"""The last pass over the weights: matrices into the kernels' panels, vectors into float32."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from octavo import _native
from octavo.weights.tensor import Tensor, dequantize

FLOAT_FORMATS = ("f32", "f16", "bf16")
# Below this a model packs in about a second, and a bar would only flicker.
PROGRESS_BYTES = 1 << 30
Packed = _native.PackedWeight | NDArray[np.float32]


def float_format(dtype: str, tensors: Mapping[str, Tensor]) -> str:
    """The packed type of floating point matrices for `--dtype`.

    auto keeps the type that most of them are stored in, except that float32 becomes bfloat16, as peers do; a file
    without any gets bfloat16.
    """
    names = {"half": "f16", "float16": "f16", "bfloat16": "bf16", "float": "f32", "float32": "f32"}
    if dtype != "auto":
        return names[dtype]
    stored = [tensor.format for tensor in tensors.values() if len(tensor.shape) > 1 and tensor.format in FLOAT_FORMATS]
    most = max(sorted(set(stored)), key=stored.count) if stored else "bf16"
    return "bf16" if most == "f32" else most


def pack_weights(
    tensors: Mapping[str, Tensor], floats: str, isa: _native.KernelTable, pool: _native.ThreadPool
) -> dict[str, Packed]:
    """Each matrix [n, k] packed for `isa`, each vector as a float32 array.

    floats: the packed type of floating point matrices. Quantised matrices keep their bits; see _native.default_format.
    """
    total = sum(tensor.data.nbytes for tensor in tensors.values())
    # Even a disabled bar imports multiprocessing, a fifth of a second: for small models there is none.
    bar = (
        tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, file=sys.stderr)
        if total >= PROGRESS_BYTES
        else None
    )
    packed: dict[str, Packed] = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1:
            packed[name] = np.ascontiguousarray(dequantize(tensor))
        else:
            target = floats if tensor.format in FLOAT_FORMATS else _native.default_format(tensor.format)
            n, k = tensor.shape
            packed[name] = _native.pack(isa, pool, target, tensor.format, tensor.data.reshape(-1), n, k)
        if bar is not None:
            bar.update(tensor.data.nbytes)
    if bar is not None:
        bar.close()
    return packed
