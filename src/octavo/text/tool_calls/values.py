"""JSON text of values that models write in other ways."""

from __future__ import annotations

import json
from typing import NoReturn


def json_text(text: str) -> str:
    """A JSON string, with its own characters unless they are no Unicode text."""
    return json.dumps(text, ensure_ascii=any("\ud800" <= char <= "\udfff" for char in text))


def as_json(text: str) -> str | None:
    """`text`, if it is JSON (which NaN is not)."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return text


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
