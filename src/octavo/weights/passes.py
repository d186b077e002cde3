"""Passes over named tensors: choosing and checking them, and changing the order of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from octavo.errors import ModelError, listed
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.tensor import CHUNK_VALUES, Tensor, dequantize


def load_weights(
    checkpoint: Checkpoint, names: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Canonical name -> tensor, for every entry of `names` (canonical name -> name in the files).

    shapes: what the shape of each must be, by canonical name. Nothing is read yet but the descriptions. Raises
    ModelError that lists all missing tensors, or all of a wrong shape.
    """
    present = set(checkpoint.names())
    missing = [f"{stored} {list(shapes[weight])}" for weight, stored in names.items() if stored not in present]
    if missing:
        raise ModelError(f"{checkpoint.path} lacks {listed(missing)}.")
    weights = {weight: checkpoint.tensor(stored) for weight, stored in names.items()}
    wrong = [
        f"{tensor.name} of shape {list(tensor.shape)} instead of {list(shapes[weight])}"
        for weight, tensor in weights.items()
        if tensor.shape != tuple(shapes[weight])
    ]
    if wrong:
        raise ModelError(f"{checkpoint.path} has {listed(wrong)}, which its config asks for.")
    return weights


def check_head(checkpoint: Checkpoint, tied: bool, embed: str, head: str) -> None:
    """Checks a config's word on the output head against the files; `embed` and `head` are names in the files.

    An untied head must be there. A tied one may be there as well, if it equals the embedding. Raises ModelError.
    """
    present = head in checkpoint.names()
    if not tied and not present:
        raise ModelError(
            f"{checkpoint.path} has no {head}, though its config says that the head is not tied to {embed}."
        )
    if tied and present and not same_values(checkpoint.tensor(embed), checkpoint.tensor(head)):
        raise ModelError(
            f"{checkpoint.path} has a {head} that differs from {embed}, though its config says that the two are tied; "
            "set tie_word_embeddings to false if the head is the model's own."
        )


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have equal values; NaN equals NaN. Compared in pieces, so that no copy of either is made."""
    if a.shape != b.shape:
        return False
    if not a.shape:
        return np.array_equal(dequantize(a), dequantize(b), equal_nan=True)
    if a.format == b.format:
        return np.array_equal(a.data, b.data)
    step = max(1, CHUNK_VALUES // max(1, a.shape[-1]))
    return all(
        np.array_equal(dequantize(rows(a, i, i + step)), dequantize(rows(b, i, i + step)), equal_nan=True)
        for i in range(0, a.shape[0], step)
    )


def rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows [start, stop) of a tensor of at least two dimensions, without a copy."""
    data = tensor.data[start:stop]
    return replace(tensor, shape=(len(data), *tensor.shape[1:]), data=data)


def unpermute_rope_rows(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows ordered for interleaved rope (2i, 2i + 1), as q and k of `llama` GGUF files, reordered for (i, i +
    head_dim / 2).

    Works on [out, in] of any format, since rows stay whole, and on biases [out] whose blocks are single values.
    Copies the bytes.
    """
    layout = tensor.layout
    if len(tensor.shape) == 1 and layout.block_size > 1:
        raise ModelError(
            f"{tensor.source}: {tensor.name} is a vector in {layout.name}, whose values cannot be reordered."
        )
    if not tensor.shape or num_heads <= 0 or tensor.shape[0] % (2 * num_heads):
        raise ModelError(
            f"{tensor.source}: {tensor.name} of shape {list(tensor.shape)} has no {num_heads} heads of an even size."
        )
    pairs = tensor.data.reshape(num_heads, tensor.shape[0] // num_heads // 2, 2, -1)
    data = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.data.shape)
    data.flags.writeable = False
    return replace(tensor, data=data)
