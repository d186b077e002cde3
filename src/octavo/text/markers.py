"""Markers found in a stream of text, which is held back while it could be the beginning of one."""

from __future__ import annotations

import re
from collections.abc import Iterable

SPACE = " \t\r\n"


class MarkerSearch:
    """Looks for the first of some markers; none is the beginning of another."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(markers)
        self._first = re.compile("[" + re.escape("".join({marker[0] for marker in self.markers})) + "]")
        self._held = ""

    def feed(self, text: str, start: int = 0) -> tuple[str, str | None, int]:
        """Text that is certain to come before any marker, the marker found, and where in `text` to go on after it."""
        passed: list[str] = []
        at = start
        while at < len(text):
            if not self._held:
                found = self._first.search(text, at)
                end = found.start() if found else len(text)
                passed.append(text[at:end])
                at = end
                if not found:
                    break
            self._held += text[at]
            at += 1
            if self._held in self.markers:
                marker, self._held = self._held, ""
                return "".join(passed), marker, at
            while not any(marker.startswith(self._held) for marker in self.markers):
                passed.append(self._held[0])
                self._held = self._held[1:]
        return "".join(passed), None, at

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Spaced:
    """Text without the white space that stands beside markers, which is the format's and not the text's.

    Where a marker parts two pieces of text, a line feed takes its place.
    """

    def __init__(self) -> None:
        self._held = ""
        self._after_marker = False
        self._has_text = False

    def feed(self, text: str) -> str:
        """What can be passed on; white space at the end waits for what follows it."""
        if self._after_marker:
            text = text.lstrip(SPACE)
            if not text:
                return ""
            self._after_marker = False
            self._held = "\n" if self._has_text else ""
        text = self._held + text
        kept = text.rstrip(SPACE)
        self._held = text[len(kept) :]
        self._has_text = self._has_text or bool(kept)
        return kept

    def marker(self) -> None:
        """A marker has come."""
        self._held, self._after_marker = "", True

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held
