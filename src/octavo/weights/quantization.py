"""What each matrix is packed as: what its file has, widened floats, or integers that it is quantised to at load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from octavo import _native
from octavo.weights.tensor import Tensor

FLOAT_FORMATS = ("f32", "f16", "bf16")
GROUP_SIZES = (128, 64, 32)
# Of the embedding and the head, int4 would cost more in quality than it saves: peers keep them finer too.
NEVER_INT4 = ("embed", "head")
BITS = {"f32": 32, "f16": 16, "bf16": 16, "i8s": 8.5}


@dataclass(frozen=True, slots=True)
class Target:
    """A packed format; group: the values along K that share a scale and a minimum, where a matrix is quantised as i4.

    i8s: 8 bits with a scale for each 64 values.
    """

    format: str
    group: int = 0


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


def choose_targets(
    tensors: Mapping[str, Tensor], floats: str, quantization: str = "auto", group_size: int = 32
) -> dict[str, Target]:
    """Of each matrix, by name.

    floats: the format of floating point matrices, and with `none` of all. int4: groups of `group_size` or, where that
    does not divide the columns, the largest smaller one that does; where none does, int8.
    """

    def target(name: str, tensor: Tensor) -> Target:
        if quantization == "int4" and name not in NEVER_INT4:
            for group in GROUP_SIZES:
                if group <= group_size and tensor.shape[-1] % group == 0:
                    return Target("i4", group)
        if quantization in ("int8", "int4"):
            return Target("i8s")
        if quantization == "none" or tensor.format in FLOAT_FORMATS:
            return Target(floats)
        return Target(_native.default_format(tensor.format))

    return {name: target(name, tensor) for name, tensor in tensors.items() if len(tensor.shape) > 1}


def packed_bytes(tensors: Mapping[str, Tensor], targets: Mapping[str, Target]) -> int:
    """About what the tensors take when they are packed. Rows that fill a panel up come on top, 63 of a matrix at most,
    which is little of any that is large; the cache is planned by what packing took.
    """
    total = 0.0
    for name, tensor in tensors.items():
        target = targets.get(name, Target("f32"))
        bits: float | None = BITS.get(target.format)
        if target.group:
            bits = 4 + 32 / target.group
        total += tensor.data.nbytes if bits is None else math.prod(tensor.shape) * bits / 8
    return int(total)


def exceptions(
    tensors: Mapping[str, Tensor], targets: Mapping[str, Target], quantization: str, group_size: int
) -> Iterator[str]:
    """What int4 had to do otherwise than asked, a sentence for each number of columns."""
    if quantization != "int4":
        return
    groups: dict[int, int] = {}
    counts: dict[int, int] = {}
    for name, target in targets.items():
        columns = tensors[name].shape[-1]
        if name not in NEVER_INT4 and target.group != group_size:
            groups[columns] = target.group
            counts[columns] = counts.get(columns, 0) + 1
    for columns, group in groups.items():
        became = f"groups of {group}" if group else "int8, as neither 32, 64 nor 128 divides them"
        yield f"int4: {counts[columns]} matrices of {columns} columns get {became}."
