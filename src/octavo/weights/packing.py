"""The last pass over the weights: matrices into the kernels' panels, vectors into float32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.weights.quantization import Target
from octavo.weights.tensor import Tensor, dequantize

# Below this a model packs in about a second, and a bar would only flicker.
PROGRESS_BYTES = 1 << 30
Packed = _native.PackedWeight | NDArray[np.float32]
# Packed by one call, for which the interpreter's lock is given up once: between calls a tokenizer that is being built
# holds it for a tenth of a second at a time.
BATCH_BYTES = 1 << 28


def pack_weights(
    tensors: Mapping[str, Tensor], targets: Mapping[str, Target], isa: _native.KernelTable, pool: _native.ThreadPool
) -> dict[str, Packed]:
    """Each matrix [n, k] packed as its target for `isa`, each vector as a float32 array."""
    total = sum(tensor.data.nbytes for tensor in tensors.values())
    packed: dict[str, Packed] = {}
    with progress(total) as done:
        for batch in batches(tensors):
            jobs = {name: job(tensor, targets[name]) for name, tensor in batch.items() if name in targets}
            packed.update(zip(jobs, _native.pack_all(isa, pool, list(jobs.values())), strict=True))
            vectors = {name: tensor for name, tensor in batch.items() if name not in jobs}
            packed.update((name, np.ascontiguousarray(dequantize(tensor))) for name, tensor in vectors.items())
            done(sum(tensor.data.nbytes for tensor in batch.values()))
    return packed


def job(tensor: Tensor, target: Target) -> tuple[str, str, Any, int, int, int]:
    n, k = tensor.shape
    return (target.format, tensor.format, tensor.data.reshape(-1), n, k, target.group)


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
