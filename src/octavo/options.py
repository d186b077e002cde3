"""What an option is: a field that knows its help, its other names, and how a value as users write it is read."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self

from octavo.errors import ConfigError

Parse = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """What a field says about itself: `parse` brings a value (typed, or text) to its one form or raises ValueError."""

    help: str
    parse: Parse
    aliases: tuple[str, ...] = ()
    secret: bool = False
    metavar: str = "VALUE"


def option(default: Any, help: str, parse: Parse, **facts: Any) -> Any:
    return field(default=default, metadata={"option": Option(help, parse, **facts)})


def whole_number(low: int | None = None, high: int | None = None, multiple_of: int = 1) -> Parse:
    """An int, or text such as 2048, 2k (2000), 2K (2048), 1.5k (1500), within [low, high]."""

    def parse(value: Any) -> int:
        number = _human_int(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError("must be a whole number" + _limits(low, high))
        if (low is not None and number < low) or (high is not None and number > high):
            raise ValueError("must be a whole number" + _limits(low, high))
        if number % multiple_of:
            raise ValueError(f"must be a multiple of {multiple_of}" + _limits(low, high))
        return number

    return parse


def real_number(low: float, high: float, low_open: bool = False) -> Parse:
    def parse(value: Any) -> float:
        text = f"must be a number {'above' if low_open else 'from'} {low:g}" + (
            f" to {high:g}" if high < math.inf else ""
        )
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(text)
        try:
            number = float(value)
        except ValueError:
            raise ValueError(text) from None
        if not math.isfinite(number) or number > high or number < low or (low_open and number == low):
            raise ValueError(text)
        return number

    return parse


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("must be true or false")


def optional_boolean(value: Any) -> bool | None:
    return None if value is None else boolean(value)


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value


def path_text(value: Any) -> str:
    return text(value.__fspath__() if hasattr(value, "__fspath__") else value)


def names(value: Any) -> tuple[str, ...]:
    """A name or several; duplicates are dropped, order is kept."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, Iterable) or isinstance(values, Mapping):
        raise ValueError("must be a name or a list of names")
    return tuple(dict.fromkeys(text(entry) for entry in values))


def choice(allowed: tuple[str, ...], later: tuple[str, ...] = ()) -> Parse:
    """One of `allowed`; names in `later` are known and refused as not implemented yet."""

    def parse(value: Any) -> str:
        if value in allowed:
            return str(value)
        if value in later:
            raise ValueError(f"is not implemented yet; use {_one_of(allowed)}")
        raise ValueError(f"must be {_one_of(allowed)}")

    return parse


def one_of_numbers(*allowed: int) -> Parse:
    def parse(value: Any) -> int:
        for number in allowed:
            if value == number or value == str(number):
                return number
        raise ValueError(f"must be {_one_of(tuple(map(str, allowed)))}")

    return parse


def one_device(value: Any) -> int:
    number: int = whole_number(1)(value)
    if number > 1:
        raise ValueError("asks for several devices, which is not implemented yet; use 1")
    return number


def memory_size(value: Any) -> int:
    """Bytes, as a whole number or as text such as 64MiB, 4GiB, 500MB; K, M, G and T alone count in 1024."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?B)?|B)?\s*", value, re.IGNORECASE)
        if match is None:
            raise ValueError("must be a number of bytes such as 4GiB or 512MiB")
        number, unit, suffix = match.groups()
        base = 1000 if suffix and suffix.lower() == "b" else 1024
        value = int(float(number) * base ** ("KMGT".index(unit.upper()) + 1)) if unit else int(float(number))
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a number of bytes above 0 such as 4GiB or 512MiB")
    return value


def optional(parse: Parse, *none_words: str) -> Parse:
    return lambda value: None if value is None or value in none_words else parse(value)


def or_default(default: str, parse: Parse) -> Parse:
    """None, with which vLLM's callers leave a choice open, is `default`."""
    return lambda value: parse(default if value is None else value)


def context_length(value: Any) -> int:
    """-1 stands for "as long as fits in memory"; "auto" is its name."""
    if value == "auto" or value in (-1, "-1"):
        return -1
    try:
        number: int = whole_number(1)(value)
    except ValueError:
        raise ValueError(
            "must be a whole number from 1 (8192, 8k, 32K), or auto for the longest that fits in memory"
        ) from None
    return number


class Options:
    """Base of the frozen option classes: parses every field on construction."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for name, facts in self.options().items():
            value = getattr(self, name)
            try:
                # Frozen means "never changes after construction"; this is construction.
                object.__setattr__(self, name, facts.parse(value))
            except ValueError as error:
                shown = "(hidden)" if facts.secret else repr(value)
                raise ConfigError(f"{name} = {shown} is not possible: it {error}.") from None

    @classmethod
    def options(cls) -> dict[str, Option]:
        return {entry.name: entry.metadata["option"] for entry in fields(cls)}

    @classmethod
    def from_options(cls, **values: Any) -> Self:
        """From keywords as users write them: aliases count; an unknown name is refused with the nearest known one."""
        known = cls.options()
        alias_of = {alias: name for name, facts in known.items() for alias in facts.aliases}
        resolved: dict[str, Any] = {}
        for given, value in values.items():
            name = alias_of.get(given, given)
            if name not in known:
                near = difflib.get_close_matches(given, [*known, *alias_of], n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}."
                raise ConfigError(f"There is no option {given}; {hint}")
            if name in resolved:
                raise ConfigError(f"{name} is given twice (also as {given}); give it once.")
            resolved[name] = value
        return cls(**resolved)


def _human_int(value: str) -> int | None:
    """2048 | 2k = 2000 | 2K = 2048 | 25.6k = 25600; None for anything else."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG]?)", value.strip())
    if match is None:
        return None
    number, unit = match.groups()
    if not unit:
        return int(number) if "." not in number else None
    scaled = float(number) * (1000 if unit.islower() else 1024) ** ("kmg".index(unit.lower()) + 1)
    return round(scaled) if abs(scaled - round(scaled)) < 1e-6 else None


def _limits(low: int | None, high: int | None) -> str:
    if low is None:
        return ""
    return f" from {low}" + (f" to {high}" if high is not None else "")


def _one_of(allowed: tuple[str, ...]) -> str:
    return allowed[0] if len(allowed) == 1 else ", ".join(allowed[:-1]) + " or " + allowed[-1]
