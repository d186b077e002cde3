"""What the engine remembers of a request that has not ended."""

import math
from collections.abc import Mapping
from typing import Protocol

from octavo.engine.best_of import BestOf
from octavo.engine.request import Request, Sequence


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text, and holds back what may yet become a stop string."""

    stop_reason: str | None  # the stop string that has been found
    # What the next token adds, by its id, where that is known without `append`, which may be left out then; else None.
    texts: Mapping[int, str | None]

    def append(self, token_ids: list[int]) -> str:
        """New text that is certain; cut at a stop string."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...

    def decode_token(self, token_id: int) -> str: ...


class Live:
    """A request that has not ended."""

    __slots__ = (
        "best_of",
        "detokenizers",
        "first_time",
        "last_times",
        "num_tokens",
        "open",
        "request",
        "sequence",
        "started",
    )

    def __init__(self, request: Request, sequence: Sequence, detokenizers: list[Detokenizer]) -> None:
        self.request = request
        self.sequence = sequence  # the first one
        self.detokenizers = detokenizers  # by sequence index; none where no text is asked for
        self.best_of = BestOf(request) if request.params.ranks else None
        self.open = set(range(request.params.num_sequences))  # indices of those that have not ended
        self.started = False  # the prompt has been computed and counted
        self.first_time = 0.0
        self.last_times = [0.0] * request.params.num_sequences
        self.num_tokens = 0

    @property
    def deadline(self) -> tuple[float, str]:
        """When its time is over, and its id; for ever without a timeout."""
        return self.request.arrival_time + (self.request.timeout or math.inf), self.request.request_id
