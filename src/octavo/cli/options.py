"""Flags out of the fields of an option class: the same names, defaults and checks as everywhere else."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any, TypeVar

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.options import Options, optional_boolean

Kind = TypeVar("Kind", bound=Options)


def add_flags(parser: argparse.ArgumentParser, kind: type[Options], title: str) -> None:
    """A flag for each field. Absent ones leave no trace, so that every default stays in one place."""
    group = parser.add_argument_group(title)
    for entry in fields(kind):
        facts = entry.metadata["option"]
        flags = ["--" + name.replace("_", "-") for name in (entry.name, *facts.aliases)]
        shown = facts.help.replace("%", "%%")
        common: dict[str, Any] = {"dest": entry.name, "default": argparse.SUPPRESS}
        if isinstance(entry.default, bool) or facts.parse is optional_boolean:
            default = f" Default: {'on' if entry.default else 'off'}." if entry.default is not None else ""
            group.add_argument(*flags, action=argparse.BooleanOptionalAction, help=shown + default, **common)
        elif isinstance(entry.default, tuple):
            group.add_argument(*flags, nargs="+", action="extend", metavar="TEXT", help=shown, **common)
        else:
            default = "" if entry.default in (None, "") else f" Default: {entry.default}."
            number = "N" if isinstance(entry.default, int) else "X" if isinstance(entry.default, float) else None
            group.add_argument(*flags, metavar=number or facts.metavar, help=shown + default, **common)


def read_flags(args: argparse.Namespace, kind: type[Kind], **more: Any) -> Kind:
    """The option object of what was given. Raises ConfigError."""
    given = {name: getattr(args, name) for name in kind.options() if hasattr(args, name)}
    return kind.from_options(**{**more, **given})


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help="The model; the same as --model.")


def read_engine_flags(args: argparse.Namespace) -> EngineConfig:
    positional = getattr(args, "model_argument", None)
    if positional is None:
        return read_flags(args, EngineConfig)
    if getattr(args, "model", positional) != positional:
        raise ConfigError(f"Two models are named, {positional} and --model {args.model}; name one.")
    args.model = positional
    return read_flags(args, EngineConfig)
