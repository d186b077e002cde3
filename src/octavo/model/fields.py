"""Typed reading of a checkpoint's own description, with errors that name the key."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError

# Far past any model, and small enough that a list of so many costs nothing.
MAX_LAYERS = 10_000


class Fields:
    """A mapping of a checkpoint (config.json, GGUF metadata or a part of them) whose values are checked when read.

    A key that is absent or null takes the default; without a default it raises ModelError. `origin` is what errors call
    the mapping.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.values = values
        self.origin = origin

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, minimum: int = 1, maximum: int | None = None) -> int:
        value = self._required(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ModelError(f"{key} in {self.origin} is {value!r}; it must be an integer of at least {minimum}.")
        if maximum is not None and value > maximum:
            raise ModelError(f"{key} in {self.origin} is {value}; it may be at most {maximum}.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise ModelError(f"{key} in {self.origin} is {value!r}; it must be a finite number.")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value <= 0:
            raise ModelError(f"{key} in {self.origin} is {value}; it must be greater than 0.")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{key} in {self.origin} is {value!r}; it must be true or false.")
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._required(key, default)
        if not isinstance(value, str):
            raise ModelError(f"{key} in {self.origin} is {value!r}; it must be a string.")
        return value

    def numbers(self, key: str, length: int) -> tuple[float, ...]:
        value = self._required(key, None)
        if not isinstance(value, list | tuple) or len(value) != length:
            raise ModelError(f"{key} in {self.origin} must be a list of {length} numbers.")
        items = Fields(dict(enumerate_keys(key, value)), self.origin)
        return tuple(items.number(name) for name in items.values)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """The ids under `key`: one, a list of them, or none."""
        value = self.get(key, [])
        items = Fields(dict(enumerate_keys(key, value if isinstance(value, list | tuple) else [value])), self.origin)
        return tuple(items.integer(name, minimum=0) for name in items.values)

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise ModelError(f"{self.origin} has no {key}.")
        return value


def enumerate_keys(key: str, items: list[Any] | tuple[Any, ...]) -> list[tuple[str, Any]]:
    """The items of a list under names that an error can show: key[0], key[1], ..."""
    return [(f"{key}[{i}]", item) for i, item in enumerate(items)]
