"""Which matrices an op reads together, before they are packed: by recording the model with what stands for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo import _native
from octavo.model.architectures import Model
from octavo.ops.interface import Weight
from octavo.ops.native import NativeOps
from octavo.weights.packing import Read
from octavo.weights.quantization import Target
from octavo.weights.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A matrix as recording sees it."""

    name: str
    n: int
    k: int
    format: _native.Format


def matrix_reads(
    model: Model, tensors: Mapping[str, Tensor], targets: Mapping[str, Target], isa: _native.KernelTable
) -> Sequence[Read]:
    """Of each linear op of a step, in its order."""

    def stand_in(name: str, tensor: Tensor) -> Weight:
        if name not in targets:
            return np.ones(tensor.shape, np.float32)
        n, k = tensor.shape
        return Unpacked(name, n, k, getattr(_native.Format, targets[name].format))

    layers = [(0, layer) for layer in range(model.config.num_layers)]
    ops = NativeOps(isa, {"T": 1, "S": 1, "R": 1}, layers, 0, 1)
    model.decoder(model.config, {name: stand_in(name, tensor) for name, tensor in tensors.items()}, ops)
    return [Read([weight.name for weight in weights], product) for weights, product in ops.linears()]
