"""What a reply is made of, as it comes: content, reasoning and calls of tools. The same for every route."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A new call of a tool; `index` counts the calls of one reply."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call `index`: all of them joined are JSON text."""

    index: int
    text: str


Event = Content | Reasoning | CallBegin | CallArguments
