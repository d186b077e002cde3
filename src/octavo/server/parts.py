"""A reply as the parts that it is made of, in their order, for the APIs that list them; streamed and whole alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo.text.events import CallArguments, CallBegin, Content, Event, Reasoning
from octavo.text.splitter import ReplySplitter

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Part:
    index: int
    kind: Kind
    name: str = ""  # of the tool that is called
    call_id: str = ""
    text: str = ""  # of a call, its arguments


@dataclass(frozen=True, slots=True)
class Change:
    """A part begins, grows by a text, or ends. Parts follow one another: at most one is open."""

    what: Literal["begin", "grow", "end"]
    part: Part
    text: str = ""


class Parts:
    """The parts so far. A reply that has ended has one at least, which may be an empty text."""

    def __init__(self, splitter: ReplySplitter) -> None:
        self.splitter = splitter
        self.all: list[Part] = []
        self._open: Part | None = None

    def feed(self, text: str, last: bool) -> list[Change]:
        """What more of the reply's text changes; `last`: the reply has ended."""
        changes: list[Change] = []
        for event in [*self.splitter.feed(text), *(self.splitter.finish() if last else ())]:
            changes += self._take(event)
        if last:
            changes += self._end() if self.all else [*self._begin("text"), *self._end()]
        return changes

    def _take(self, event: Event) -> list[Change]:
        match event:
            case CallBegin():
                return self._begin("call", event.name, event.id)
            case CallArguments():
                return self._grow("call", event.text)
            case Content():
                return self._grow("text", event.text)
            case Reasoning():
                return self._grow("reasoning", event.text)

    def _begin(self, kind: Kind, name: str = "", call_id: str = "") -> list[Change]:
        ended = self._end()
        self._open = Part(len(self.all), kind, name, call_id)
        self.all.append(self._open)
        return [*ended, Change("begin", self._open)]

    def _grow(self, kind: Kind, text: str) -> list[Change]:
        if not text:
            return []
        begun = [] if self._open is not None and self._open.kind == kind else self._begin(kind)
        part = self.all[-1]
        part.text += text
        return [*begun, Change("grow", part, text)]

    def _end(self) -> list[Change]:
        ended, self._open = self._open, None
        return [] if ended is None else [Change("end", ended)]
