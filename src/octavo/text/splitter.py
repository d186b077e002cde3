"""From the text of a reply to its content, its reasoning and its calls of tools, streamed and whole alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.text.events import CallArguments, CallBegin, Content, Event, Reasoning
from octavo.text.reasoning import ReasoningFormat, ReasoningSplitter
from octavo.text.tool_calls.formats import CallFormat
from octavo.text.tool_calls.parser import CallParser


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What the replies to one request are made of; each of them gets a splitter of its own."""

    reasoning: ReasoningFormat | None = None
    inside: bool = False  # the prompt ends within reasoning
    include_reasoning: bool = True
    calls: CallFormat | None = None
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> schema of its parameters
    forced: bool = False  # a grammar makes calls, and nothing else but reasoning
    strict: frozenset[str] = frozenset()  # tools whose calls, if they are made, a grammar makes
    or_answer: bool = False  # a grammar makes calls, or else an answer: what does not begin with their first marker
    most_calls: int | None = None
    keeps_space: bool = False  # white space after the reasoning is content

    @property
    def eager(self) -> bool:
        """Whether a grammar makes all calls, see CallParser."""
        return self.forced or bool(self.strict) or self.or_answer

    def splitter(self) -> ReplySplitter:
        return ReplySplitter(self)


class ReplySplitter:
    """Pieces of a reply's text in, events out; what they add up to does not depend on the pieces."""

    def __init__(self, format: ReplyFormat) -> None:
        self._include_reasoning = format.include_reasoning
        self._reasoning: ReasoningSplitter | None = None
        if format.reasoning is not None:
            self._reasoning = ReasoningSplitter(format.reasoning, format.inside, format.keeps_space)
        self._calls: CallParser | None = None
        self._marker = ""  # which tells calls from an answer, until it is known which of them the reply is
        self._begin = ""
        if format.calls is not None:
            only_calls = format.forced or format.or_answer
            self._calls = CallParser(
                format.calls, format.tools, eager=format.eager, only_calls=only_calls, most=format.most_calls
            )
            self._marker = (format.calls.first_marker or "") if format.or_answer else ""

    @property
    def has_called(self) -> bool:
        return self._calls is not None and self._calls.num_calls > 0

    def feed(self, text: str) -> list[Event]:
        return self._further(self._reasoning.feed(text) if self._reasoning else [Content(text)])

    def finish(self) -> list[Event]:
        """What was held back; the reply has ended."""
        told = self._further(self._reasoning.finish() if self._reasoning else [])
        if self._marker and self._begin:
            told.append(Content(self._begin))  # an answer, or a call that was cut, which nothing tells from one
        return told + (self._calls.finish() if self._calls else [])

    def _further(self, events: list[Event]) -> list[Event]:
        told: list[Event] = []
        for event in events:
            if isinstance(event, Content):
                told += self._say(event.text)
            elif self._include_reasoning:
                told.append(event)
        return told

    def _say(self, text: str) -> list[Event]:
        if self._marker:
            self._begin += text
            if len(self._begin) < len(self._marker) and self._marker.startswith(self._begin):
                return []
            if not self._begin.startswith(self._marker):
                self._calls = None
            text, self._marker = self._begin, ""
        return self._calls.feed(text) if self._calls else [Content(text)] if text else []


@dataclass(slots=True)
class Call:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """The events of a whole reply, added up."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Reply:
        reply = cls()
        for event in events:
            match event:
                case Content():
                    reply.content += event.text
                case Reasoning():
                    reply.reasoning += event.text
                case CallBegin():
                    reply.calls.append(Call(event.id, event.name))
                case CallArguments():
                    reply.calls[event.index].arguments += event.text
        return reply
