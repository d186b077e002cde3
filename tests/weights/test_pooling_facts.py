"""How a GGUF file says that its vectors of prompts are pooled; folders are tested through LLM.embed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest

from octavo.errors import ModelError
from octavo.weights.pooling import pooling_type

KINDS = gguf.PoolingType


@pytest.mark.parametrize(
    ("number", "expected"), [(None, "last"), (KINDS.NONE, "last"), (KINDS.MEAN, "mean"), (KINDS.LAST, "last")]
)
def test_a_file_says_how_it_is_pooled(number: Any, expected: str) -> None:
    assert pooling_type(file(number)) == expected


def test_what_is_not_built_stops_the_start() -> None:
    with pytest.raises(ModelError, match="--pooling-type"):
        pooling_type(file(KINDS.CLS))


def file(number: Any) -> Any:
    config = {"general.architecture": "llama"} | ({} if number is None else {"llama.pooling_type": int(number)})
    return SimpleNamespace(kind="gguf", path=Path("m.gguf"), config=config)
