"""Every weight format against the gguf package's own dequantisation."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weight_files import GGUF_TYPES, random_blocks

from octavo.weights.formats import FORMATS
from octavo.weights.tensor import Tensor, dequantize

# Zeros, the smallest and largest subnormal, the smallest normal, ones, the largest, infinities and a NaN.
EXTREME_HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00], np.uint16
)
SCALE_FIELDS = ("scale", "minimum")


def as_tensor(name: str, data: np.ndarray) -> Tensor:
    layout = FORMATS[name.lower()]
    shape = (*data.shape[:-1], data.shape[-1] // layout.bytes_per_block * layout.block_size)
    return Tensor("t", shape, layout.name, data, Path("memory"))


def check(name: str, data: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(data, gguf.GGMLQuantizationType[name])
    values = dequantize(as_tensor(name, data))
    assert values.dtype == np.float32 and values.shape == expected.shape
    # The sign and payload of a NaN made by arithmetic are no one's contract.
    same = (values.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(values) & np.isnan(expected))
    assert same.all()


def test_every_format_is_compared() -> None:
    assert {name.lower() for name in GGUF_TYPES} == set(FORMATS)


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_sizes(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    layout = FORMATS[name.lower()]
    assert (layout.block_size, layout.bytes_per_block) == gguf.GGML_QUANT_SIZES[kind]
    assert layout.gguf_type == kind


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_random_blocks(name: str) -> None:
    for seed in range(3):
        check(name, random_blocks(name, 7, 513, seed))


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_extreme_scales(name: str) -> None:
    layout = FORMATS[name.lower()]
    fields = [field for field in SCALE_FIELDS if field in layout.block.names] or []
    data = random_blocks(name, 1, len(EXTREME_HALVES) ** 2, 9)
    blocks = data.reshape(-1).view(layout.block)
    pairs = np.array(np.meshgrid(EXTREME_HALVES, EXTREME_HALVES)).reshape(2, -1)
    for field, halves in zip(fields, pairs, strict=False):
        blocks[field] = halves.view(np.float16)
    if not fields:
        data = np.tile(EXTREME_HALVES.view(np.uint8), 8)[None, :]
    check(name, data)


@pytest.mark.parametrize("name", GGUF_TYPES)
@given(data=st.data())
def test_any_block(name: str, data: st.DataObject) -> None:
    size = FORMATS[name.lower()].bytes_per_block
    block = data.draw(st.binary(min_size=size, max_size=size))
    check(name, np.frombuffer(block, np.uint8)[None, :])


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_data_may_lie_anywhere(name: str) -> None:
    """Mapped data need not be aligned to anything."""
    data = random_blocks(name, 1, 3)
    shifted = np.concatenate([np.zeros(1, np.uint8), data[0]])[1:][None, :]
    np.testing.assert_array_equal(dequantize(as_tensor(name, shifted)), dequantize(as_tensor(name, data)))


def test_a_row_is_whole_blocks() -> None:
    with pytest.raises(ValueError, match="blocks of 32"):
        FORMATS["q4_0"].row_bytes(33)
