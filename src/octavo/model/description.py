"""What a checkpoint says of itself, before an architecture has made sense of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Description:
    """The input of every architecture's facts function.

    config: the parsed config.json, or the metadata of a GGUF file. tensor_names: all tensors of the checkpoint.
    rope_factors: the values of a GGUF file's rope_freqs tensor. max_model_len: the context length that will be served;
    None for what the model was made for.
    """

    config: Mapping[str, Any]
    tensor_names: frozenset[str]
    rope_factors: tuple[float, ...] = ()
    max_model_len: int | None = None
