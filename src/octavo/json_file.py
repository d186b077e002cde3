"""JSON files of a model, read so that whatever is wrong with one ends in an error that names it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from octavo.errors import ModelError


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError."""
    try:
        return parse_object(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error


def read_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, {} where there is no such file. Raises ModelError."""
    return read_object(path) if path.is_file() else {}


def parse_object(text: bytes, what: str) -> dict[str, Any]:
    """The JSON object `text`; a name that appears twice is an error, since readers differ on which one counts."""
    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is not valid JSON: {str(error) or type(error).__name__}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{what} must be a JSON object, not {type(value).__name__}.")
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{name!r} appears twice")
    return values
