"""The last pass over the weights: matrices into the kernels' panels, vectors into float32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.weights.tensor import Tensor, dequantize

FLOAT_FORMATS = ("f32", "f16", "bf16")
# Below this a model packs in about a second, and a bar would only flicker.
PROGRESS_BYTES = 1 << 30
Packed = _native.PackedWeight | NDArray[np.float32]
# Packed by one call, for which the interpreter's lock is given up once: between calls a tokenizer that is being built
# holds it for a tenth of a second at a time.
BATCH_BYTES = 1 << 28


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
    packed: dict[str, Packed] = {}
    with progress(total) as done:
        for batch in batches(tensors):
            jobs = {name: job(tensor, floats) for name, tensor in batch.items() if len(tensor.shape) > 1}
            packed.update(zip(jobs, _native.pack_all(isa, pool, list(jobs.values())), strict=True))
            vectors = {name: tensor for name, tensor in batch.items() if name not in jobs}
            packed.update((name, np.ascontiguousarray(dequantize(tensor))) for name, tensor in vectors.items())
            done(sum(tensor.data.nbytes for tensor in batch.values()))
    return packed


def job(tensor: Tensor, floats: str) -> tuple[str, str, Any, int, int, int]:
    target = floats if tensor.format in FLOAT_FORMATS else _native.default_format(tensor.format)
    n, k = tensor.shape
    return (target, tensor.format, tensor.data.reshape(-1), n, k, 0)


def batches(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The tensors in their order, in parts of about BATCH_BYTES."""
    batch: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        batch[name] = tensor
        size += tensor.data.nbytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], Any]]:
    """What to tell of bytes that are done."""
    if total < PROGRESS_BYTES:
        yield lambda count: None
        return
    from tqdm import tqdm  # a twelfth of the start of a small model, which has no bar

    with tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, file=sys.stderr) as bar:
        yield bar.update
