"""Calls found in a stream of text. A call is told when it is whole; what turns out to be none stays text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from octavo.text.events import CallArguments, CallBegin, Content, Event
from octavo.text.markers import SPACE, MarkerSearch, Spaced
from octavo.text.tool_calls.formats import CallFormat
from octavo.text.tool_calls.reader import Draft, Malformed, Read, Reader, Reading


class CallParser:
    """Turns pieces of text into events. How the text was cut does not change what they add up to.

    With `eager` a call is told from its name on, as it is written, which suits what a grammar makes: it cannot turn out
    to be malformed, only be cut short. With `only_calls` the grammar makes nothing else, so that what stands around
    calls is no content. `most` is how many calls are told; later ones are passed over.
    """

    def __init__(
        self,
        format: CallFormat,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        eager: bool = False,
        only_calls: bool = False,
        most: int | None = None,
    ) -> None:
        self.num_calls = 0
        self._format = format
        self._tools = tools
        self._eager = eager
        self._only_calls = only_calls
        self._most = most
        self._search = MarkerSearch(format.markers) if format.markers else None
        self._begun = not format.bare  # whether the reply's first character has come
        self._content = Spaced()
        self._events: list[Event] = []
        self._reader: Reader | None = None
        self._reading: Reading[None] | None = None
        self._raw: list[str] = []  # since the last whole call
        self._draft: Draft | None = None  # the call that is being told
        self._sent = 0  # pieces of its arguments

    def feed(self, text: str) -> list[Event]:
        at = 0
        while at < len(text):
            if self._reading is not None:
                at += self._read(text[at])
            elif self._begun:
                at = self._look(text, at)
            else:
                at = self._first(text, at)
        return self._told()

    def finish(self) -> list[Event]:
        """The events of what is still held: the text has ended."""
        while self._reading is not None:
            self._read("")
        if self._search is not None:
            self._pass(self._search.flush())
        self._say(self._content.flush())
        return self._told()

    def _first(self, text: str, at: int) -> int:
        """At the reply's beginning, where calls may stand without a marker."""
        rest = text[at:].lstrip(SPACE)
        skipped = text[at : len(text) - len(rest)]
        self._pass(skipped)
        if rest:
            self._begun = True
            if rest[0] in self._format.bare:
                self._start(self._format.bare[rest[0]], "")
        return at + len(skipped)

    def _look(self, text: str, at: int) -> int:
        if self._search is None:
            self._pass(text[at:])
            return len(text)
        passed, marker, at = self._search.feed(text, at)
        self._pass(passed)
        if marker is not None:
            self._start(self._format.markers[marker], marker)
        return at

    def _start(self, read: Read, marker: str) -> None:
        self._reader = Reader(self._tools)
        self._reading = read(self._reader)
        self._raw = [marker]
        next(self._reading)

    def _read(self, char: str) -> int:
        """Hands one character on ("" is the end); returns whether it was taken."""
        assert self._reader is not None and self._reading is not None
        self._raw.append(char)
        try:
            self._reading.send(char)
        except Malformed:
            self._raw.pop()
            self._end(malformed=True)
            return 0
        except StopIteration:
            taken = self._reader.waiting is None
            self._end(malformed=False)
            return int(taken)
        self._tell()
        return 1

    def _end(self, malformed: bool) -> None:
        assert self._reader is not None
        self._tell()
        raw = "".join(self._raw)
        self._reader = self._reading = None
        if malformed and self._draft is None:
            self._pass(raw)
        self._draft = None

    def _tell(self) -> None:
        """Tells the calls that are certain."""
        assert self._reader is not None
        drafts = self._reader.drafts
        while drafts and (drafts[0].complete or (self._eager and drafts[0].name is not None)):
            draft = drafts[0]
            if self._draft is not draft:
                self._draft, self._sent = draft, 0
                self._content.marker()
                self._begin(draft.name or "")
            if self._is_told():
                index = self.num_calls - 1
                self._events += [CallArguments(index, piece) for piece in draft.arguments[self._sent :]]
            self._sent = len(draft.arguments)
            if not draft.complete:
                return
            drafts.pop(0)
            self._draft = None
            self._raw = []

    def _begin(self, name: str) -> None:
        self.num_calls += 1
        if self._is_told():
            self._events.append(CallBegin(self.num_calls - 1, self._format.make_id(), name))

    def _is_told(self) -> bool:
        return self._most is None or self.num_calls <= self._most

    def _pass(self, text: str) -> None:
        self._say(self._content.feed(text))

    def _say(self, text: str) -> None:
        if text and not self._only_calls:
            self._events.append(Content(text))

    def _told(self) -> list[Event]:
        told, self._events = merged(self._events), []
        return told


def merged(events: Iterable[Event]) -> list[Event]:
    """Neighbours of one kind joined, so that a piece of text makes as few events as it can."""
    whole: list[Event] = []
    for (kind, index), group in groupby(events, lambda event: (type(event), getattr(event, "index", None))):
        if kind is Content:
            whole.append(Content("".join(event.text for event in group if isinstance(event, Content))))
        elif kind is CallArguments and index is not None:
            whole.append(CallArguments(index, "".join(e.text for e in group if isinstance(e, CallArguments))))
        else:
            whole += group
    return whole
