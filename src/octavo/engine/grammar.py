"""What the engine knows of a grammar: that it can say which tokens may come next, and be told which one came."""

from collections.abc import Sequence
from typing import Any, Protocol


class Matcher(Protocol):
    """Where one sequence stands in its grammar. For the engine's thread alone."""

    @property
    def is_complete(self) -> bool:
        """Whether only an end-of-sequence token may follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """Goes past the next token; whether that was the end. ValueError where the grammar forbids it."""
        ...

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, in their order, may come next; none from an end-of-sequence token on."""
        ...


class Grammar(Protocol):
    """What an output must be, compiled; shared by all sequences that it constrains."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """What ends an output where the grammar lets it end."""
        ...

    @property
    def keeps_space(self) -> bool:
        """Whether an output may begin with white space that is its own."""
        ...

    def matcher(self) -> Matcher:
        """A new one, at the beginning."""
        ...

    def write_masks(self, rows: Sequence[tuple[Any, int, Sequence[int]]], mask: Any) -> dict[int, str]:
        """Writes which tokens may come next: (matcher, row, drafts) fill `mask[row]` and a row after each draft.

        The matchers may be of any grammar of the same model. Returns why those that failed did, by position in
        `rows`; they are of no further use.
        """
        ...
