"""JSON text of values that models write in other ways."""

from __future__ import annotations

import json
from typing import NoReturn

from octavo.text.tool_calls.reader import Malformed, Reader


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


def is_json(text: str) -> bool:
    """Whether the arguments of a call have come to their end, however deep they are and long their numbers."""
    try:
        json.loads(text, parse_int=float)
    except RecursionError:  # which a reader, slower by far, does not know
        return _is_whole(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    reading = Reader({}).json_value([])
    next(reading)
    at = 0
    try:
        while at < len(text):
            reading.send(text[at])
            at += 1
    except Malformed:
        return False
    except StopIteration:
        return at == len(text) - 1
    return False


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
