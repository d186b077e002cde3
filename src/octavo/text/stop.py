"""Stop strings found in a stream of text, character by character and in linear time."""

from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """Holds text back while it could be the beginning of a stop string.

    A match is the stop string whose last character comes first; of several that end there, the longest. That needs
    no look-ahead and does not depend on how the text was cut into pieces.
    """

    def __init__(self, stop: Sequence[str], include_stop_str_in_output: bool = False) -> None:
        self.matched: str | None = None
        self._include = include_stop_str_in_output
        self._stop = sorted(set(stop), key=len, reverse=True)
        self._failure = [_failure_table(s) for s in self._stop]
        self._state = [0] * len(self._stop)
        self._held = ""

    def feed(self, text: str, may_match: bool = True) -> str:
        """The text that is now certain to be output. With `may_match` False a stop string may not end in `text`."""
        if not self._stop or self.matched is not None:
            return text if self.matched is None else ""
        buffer = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            if (stop := self._advance(char)) and may_match:
                self.matched, self._held = stop, ""
                return buffer[: end if self._include else end - len(stop)]
        keep = max(self._state)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The text held back; called when no more comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Moves every stop string's automaton (Knuth, Morris, Pratt) by one character; the longest that ends here."""
        found = None
        for k, stop in enumerate(self._stop):
            failure, state = self._failure[k], self._state[k]
            while state and stop[state] != char:
                state = failure[state]
            if stop[state] == char:
                state += 1
            if state == len(stop):
                found = found or stop
                state = failure[state]
            self._state[k] = state
        return found


@lru_cache(256)
def _failure_table(stop: str) -> tuple[int, ...]:
    """For each length n: the longest proper prefix of `stop` that is a suffix of its first n characters.

    Kept, since all sequences of a request have the same stop strings.
    """
    table = [0, 0]
    for char in stop[1:]:
        n = table[-1]
        while n and stop[n] != char:
            n = table[n]
        table.append(n + 1 if stop[n] == char else 0)
    return tuple(table)
