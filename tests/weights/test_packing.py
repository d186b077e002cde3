"""The last pass: what each weight becomes, in however many calls it is packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from weight_files import random_blocks

from octavo import _native
from octavo.weights import packing
from octavo.weights.formats import FORMATS
from octavo.weights.quantization import FLOAT_FORMATS, Target, choose_targets, exceptions, packed_bytes
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
    packed = packing.pack_weights(given, choose_targets(given, "bf16"), isa, pool)
    assert packed.keys() == given.keys()
    np.testing.assert_array_equal(packed.pop("norm"), np.ones(64))
    for name, weight in packed.items():
        tensor = given[name]
        target = _native.default_format(tensor.format)
        alone = _native.pack(isa, pool, target, tensor.format, tensor.data.reshape(-1), *tensor.shape)
        np.testing.assert_array_equal(_native.unpack(weight), _native.unpack(alone))


def test_a_large_model_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(packing, "PROGRESS_BYTES", 0)
    given = tensors()
    packing.pack_weights(given, choose_targets(given, "bf16"), _native.select_isa(), _native.ThreadPool(1))
    assert "Loading weights: 100%" in capsys.readouterr().err


def tensor(name: str, shape: tuple[int, ...], stored: str) -> Tensor:
    data = np.zeros(data_shape(shape, FORMATS[stored]), np.uint8)
    return Tensor(name, shape, stored, data, Path("memory"))


def model(columns: int = 384) -> dict[str, Tensor]:
    """Its rows fill the panels of every level, the widest of which have 64."""
    made = {
        "embed": tensor("embed", (128, columns), "q8_0" if columns % 32 == 0 else "f16"),
        "layers.0.q": tensor("layers.0.q", (64, columns), "f32"),
        "layers.0.down": tensor("layers.0.down", (64, 96), "q4_1"),
        "norm": tensor("norm", (64,), "f32"),
    }
    return made


@pytest.mark.parametrize(
    ("quantization", "embed", "q", "down"),
    [
        ("auto", Target("i8"), Target("bf16"), Target("i4")),
        ("gguf", Target("i8"), Target("bf16"), Target("i4")),
        ("none", Target("bf16"), Target("bf16"), Target("bf16")),
        ("int8", Target("i8s"), Target("i8s"), Target("i8s")),
        ("int4", Target("i8s"), Target("i4", 64), Target("i4", 32)),
    ],
)
def test_what_each_matrix_becomes(quantization: str, embed: Target, q: Target, down: Target) -> None:
    given = model()
    targets = choose_targets(given, "bf16", quantization, 64)
    assert targets == {"embed": embed, "layers.0.q": q, "layers.0.down": down}
    for level in [name for name, supported, _ in _native.isa_levels() if supported]:
        packed = packing.pack_weights(given, targets, _native.select_isa(level), _native.ThreadPool(2))
        taken = sum(weight.bytes for name, weight in packed.items() if name != "norm") + 64 * 4  # type: ignore[union-attr]
        assert 0.97 * taken <= packed_bytes(given, targets) <= taken


@pytest.mark.parametrize("stored", FORMATS)
def test_what_a_model_will_take_is_known_before_it_is_packed(stored: str) -> None:
    given = {"q": tensor("q", (128, 512), stored)}
    targets = choose_targets(given, "bf16")
    taken = packing.pack_weights(given, targets, _native.select_isa(), _native.ThreadPool(1))["q"].bytes  # type: ignore[union-attr]
    assert packed_bytes(given, targets) <= taken <= 1.05 * packed_bytes(given, targets)
    if stored not in FLOAT_FORMATS:
        assert targets["q"].format == f"i{stored[1]}"
        assert given["q"].data.nbytes <= taken <= 1.05 * given["q"].data.nbytes


def test_what_int4_cannot_do_as_asked_is_said() -> None:
    given = model()
    said = list(exceptions(given, choose_targets(given, "bf16", "int4", 128), "int4", 128))
    assert said == ["int4: 1 matrices of 96 columns get groups of 32."]
    given = model(columns=40)
    targets = choose_targets(given, "bf16", "int4", 32)
    assert targets["layers.0.q"] == Target("i8s")
    assert list(exceptions(given, targets, "int4", 32)) == [
        "int4: 1 matrices of 40 columns get int8, as neither 32, 64 nor 128 divides them."
    ]
    assert list(exceptions(given, choose_targets(given, "bf16", "int8"), "int8", 32)) == []
