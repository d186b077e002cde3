"""The last pass: what each weight becomes, in however many calls it is packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from weight_files import random_blocks

from octavo import _native
from octavo.weights import packing
from octavo.weights.formats import FORMATS
from octavo.weights.tensor import Tensor, data_shape

SHAPES = {"a": (40, 64), "b": (3, 256), "c": (17, 32)}
STORED = {"a": "q4_1", "b": "q6_k", "c": "q8_0"}


def tensors() -> dict[str, Tensor]:
    made = {}
    for seed, (name, shape) in enumerate(SHAPES.items()):
        layout = FORMATS[STORED[name]]
        data = random_blocks(layout.name.upper(), shape[0], shape[-1] // layout.block_size, seed)
        made[name] = Tensor(name, shape, layout.name, data.reshape(data_shape(shape, layout)), Path("memory"))
    made["norm"] = Tensor("norm", (64,), "f32", np.ones(64, np.float32).view(np.uint8), Path("memory"))
    return made


@pytest.mark.parametrize("batch", [1, 2000, 1 << 28])
def test_weights_packed_together_are_as_each_alone(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "BATCH_BYTES", batch)
    isa, pool = _native.select_isa(), _native.ThreadPool(2)
    given = tensors()
    packed = packing.pack_weights(given, "bf16", isa, pool)
    assert packed.keys() == given.keys()
    np.testing.assert_array_equal(packed.pop("norm"), np.ones(64))
    for name, weight in packed.items():
        tensor = given[name]
        target = _native.default_format(tensor.format)
        alone = _native.pack(isa, pool, target, tensor.format, tensor.data.reshape(-1), *tensor.shape)
        np.testing.assert_array_equal(_native.unpack(weight), _native.unpack(alone))


def test_a_large_model_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packing, "PROGRESS_BYTES", 0)
    packing.pack_weights(tensors(), "bf16", _native.select_isa(), _native.ThreadPool(1))
    assert "Loading weights: 100%" in capsys.readouterr().err
