"""Passes over named tensors: what they check, and the reordering of rope rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from weight_files import f32_tensor, random_blocks, safetensors_bytes

from octavo.errors import ModelError
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.formats import FORMATS
from octavo.weights.passes import check_head, load_weights, same_values, unpermute_rope_rows
from octavo.weights.tensor import Tensor, dequantize

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def checkpoint_of(folder: Path, arrays: Mapping[str, np.ndarray | tuple[str, tuple[int, ...], bytes]]) -> Checkpoint:
    tensors = {name: value if isinstance(value, tuple) else f32_tensor(value) for name, value in arrays.items()}
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return open_checkpoint(folder)


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def as_tensor(name: str, data: np.ndarray, rows_first: tuple[int, ...]) -> Tensor:
    return Tensor("w", rows_first, name, data, Path("memory"))


def test_renames_and_checks_shapes(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {"w.q": values(4, 6), "w.norm": values(6)})
    weights = load_weights(checkpoint, {"q": "w.q", "norm": "w.norm"}, {"q": (4, 6), "norm": (6,)})
    np.testing.assert_array_equal(dequantize(weights["q"]), values(4, 6))
    assert weights["norm"].name == "w.norm"


def test_all_missing_tensors_are_named_with_their_shapes(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {"a": values(4, 6)})
    names = {"a": "a", "b": "layers.0.b", "c": "layers.0.c"}
    with pytest.raises(ModelError, match=r"lacks layers\.0\.b \[2, 3\], layers\.0\.c \[5\]"):
        load_weights(checkpoint, names, {"a": (4, 6), "b": (2, 3), "c": (5,)})


def test_all_wrong_shapes_are_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {"a": values(4, 6), "b": values(3), "c": values(2)})
    with pytest.raises(ModelError) as error:
        load_weights(checkpoint, {n: n for n in "abc"}, {"a": (6, 4), "b": (3, 1), "c": (2,)})
    assert "a of shape [4, 6] instead of [6, 4], b of shape [3] instead of [3, 1]" in str(error.value)
    assert str(tmp_path) in str(error.value) and "c of" not in str(error.value)


def test_a_type_that_is_not_supported_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {"a": ("F8_E4M3", (2, 2), bytes(4))})
    with pytest.raises(ModelError, match="tensor a is of type F8_E4M3"):
        load_weights(checkpoint, {"a": "a"}, {"a": (2, 2)})


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, {EMBED: values(8, 4)})
    with pytest.raises(ModelError, match=r"no lm_head\.weight"):
        check_head(checkpoint, False, EMBED, HEAD)
    check_head(checkpoint, True, EMBED, HEAD)


def test_a_tied_head_may_be_there_if_it_is_equal(tmp_path: Path) -> None:
    check_head(checkpoint_of(tmp_path, {EMBED: values(8, 4), HEAD: values(8, 4)}), True, EMBED, HEAD)
    differs = checkpoint_of(tmp_path, {EMBED: values(8, 4), HEAD: values(8, 4, seed=1)})
    with pytest.raises(ModelError, match=r"lm_head\.weight that differs"):
        check_head(differs, True, EMBED, HEAD)
    check_head(differs, False, EMBED, HEAD)


def test_equal_values_in_different_formats() -> None:
    halves = values(70, 2048).astype(np.float16)
    a = as_tensor("f16", halves.view(np.uint8), halves.shape)
    b = as_tensor("f32", halves.astype(np.float32).view(np.uint8), halves.shape)
    assert same_values(a, b)
    changed = halves.astype(np.float32)
    changed[69, 2047] += 1
    assert not same_values(a, as_tensor("f32", changed.view(np.uint8), halves.shape))
    assert not same_values(a, as_tensor("f32", changed[:69].view(np.uint8), (69, 2048)))


def permuted(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """The order that llama GGUF files have: row i of a head's first half comes at 2i, of its second half at 2i + 1."""
    half = weights.shape[0] // num_heads // 2
    result = np.empty_like(weights)
    for head in range(num_heads):
        for i in range(half):
            result[2 * (head * half + i)] = weights[2 * head * half + i]
            result[2 * (head * half + i) + 1] = weights[2 * head * half + half + i]
    return result


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("num_heads", [1, 3])
def test_unpermuting_rope_rows(name: str, num_heads: int) -> None:
    data = random_blocks(name.upper(), num_heads * 8, 2)
    shape = (len(data), 2 * FORMATS[name].block_size)
    stored = as_tensor(name, permuted(data, num_heads), shape)
    result = unpermute_rope_rows(stored, num_heads)
    np.testing.assert_array_equal(result.data, data)
    assert (result.shape, result.format) == (shape, name)
    kind = gguf.GGMLQuantizationType[name.upper()]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(dequantize(result), gguf.dequantize(data, kind).reshape(shape))


def test_unpermuting_a_bias() -> None:
    bias = values(24)
    stored = as_tensor("f32", permuted(bias[:, None], 3).reshape(-1).view(np.uint8), (24,))
    np.testing.assert_array_equal(dequantize(unpermute_rope_rows(stored, 3)), bias)


def test_what_cannot_be_unpermuted() -> None:
    matrix = as_tensor("f32", values(6, 2).view(np.uint8), (6, 2))
    for num_heads in (0, 2, 6):
        with pytest.raises(ModelError, match="heads of an even size"):
            unpermute_rope_rows(matrix, num_heads)
    with pytest.raises(ModelError, match="vector in q8_0"):
        unpermute_rope_rows(as_tensor("q8_0", random_blocks("Q8_0", 1, 1)[0], (32,)), 1)
