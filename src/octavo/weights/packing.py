"""The last pass over the weights: matrices into the kernels' panels, vectors into float32."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class Read(NamedTuple):
    """Matrices that one op reads together, by name, and the form that it prepares their product as, where they are gate
    and up.
    """

    names: Sequence[str]
    product: int | None = None


def pack_weights(
    tensors: Mapping[str, Tensor],
    targets: Mapping[str, Target],
    isa: _native.KernelTable,
    pool: _native.ThreadPool,
    reads: Sequence[Read] = (),
) -> dict[str, Packed]:
    """Each matrix [n, k] packed as its target for `isa`, each vector as a float32 array.

    Each thread writes what it will read, so that this is near it. Matrices that are not among `reads` are read alone.
    """
    total = sum(tensor.data.nbytes for tensor in tensors.values())
    packed: dict[str, Packed] = {}
    with progress(total) as done:
        for batch in batches(first_reads(targets, reads), tensors):
            jobs = [([job(tensors[name], targets[name]) for name in names], product) for names, product in batch]
            names = [name for read in batch for name in read.names]
            packed.update(zip(names, _native.pack_all(isa, pool, jobs), strict=True))
            done(sum(tensors[name].data.nbytes for name in names))
        for name, tensor in tensors.items():
            if name not in targets:
                packed[name] = np.ascontiguousarray(dequantize(tensor))
                done(tensor.data.nbytes)
    return packed


def first_reads(targets: Mapping[str, Target], reads: Sequence[Read]) -> Iterator[Read]:
    """The reads of matrices that no read before has, and then each matrix that has none."""
    left = set(targets)
    for names, product in [*reads, *(Read([name]) for name in targets)]:
        first = [name for name in names if name in left]
        left.difference_update(first)
        if first:
            yield Read(first, product)


def job(tensor: Tensor, target: Target) -> tuple[str, str, Any, int, int, int]:
    n, k = tensor.shape
    return (target.format, tensor.format, tensor.data.reshape(-1), n, k, target.group)


def batches(reads: Iterable[Read], tensors: Mapping[str, Tensor]) -> Iterator[list[Read]]:
    """The reads in their order, in parts of about BATCH_BYTES."""
    batch: list[Read] = []
    size = 0
    for read in reads:
        batch.append(read)
        size += sum(tensors[name].data.nbytes for name in read.names)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
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
