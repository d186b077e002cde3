"""What one step computes, the only thing handed to the runner, and what the runner hands back."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.engine.request import Sequence, Status, TokenOutput

__all__ = ["Batch", "BlockCopy", "Output", "Pending", "RangeOutput", "Runner", "ScheduledRange", "TokenOutput"]


@dataclass(slots=True, eq=False)
class ScheduledRange:
    """Positions [start, start + num_tokens) of a sequence, computed in one step.

    The token at position p is `(sequence.token_ids + sequence.draft_token_ids)[p]`; -1 stands for what the runner
    itself sampled last for this sequence, in a step that is not committed yet. The runner reads the sequence in
    `launch` only: tables and tokens may have moved on by the time the step ends.

    A range that samples takes one row of logits, plus one for each draft, plus its prompt rows. With several sample
    indices (the step that ends the prompt of a request with n > 1) all of them sample from the one last row.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample_indices: tuple[int, ...]  # sequence indices for the random key; () where nothing is sampled
    num_drafts: int = 0  # the last num_drafts tokens are drafts; rows for the last num_drafts + 1 positions
    prompt_logprob_rows: tuple[int, int] = (0, 0)  # half-open positions p whose logits score token p + 1
    epoch: int = 0  # sequence.num_preemptions when scheduled

    @property
    def is_current(self) -> bool:
        """Whether the sequence still stands where the step left it, neither finished nor preempted since."""
        return self.sequence.status is Status.RUNNING and self.sequence.num_preemptions == self.epoch


@dataclass(slots=True)
class BlockCopy:
    """Copy a whole block within a cache group."""

    group: int
    src: int
    dst: int


@dataclass(slots=True)
class Batch:
    """The ranges of one step, and what to do to the cache before.

    Order within a step: read every `src` of `copies`, zero-fill `opened`, write every `dst`, compute. A `src` may be
    opened in the same step. In a window group's table, -1 stands for a block behind the window: the table keeps its
    length, and no position of the range may read or write there.

    Most ranges are plain decodes: the one last token of a sequence, of which one token is sampled and nothing else
    asked. The same object stands for a sequence in every step as long as its blocks stay what they are but for new
    ones, and `decodes` is the same list where each of them just goes on, so that a runner sees what has not changed.
    """

    step: int
    others: list[ScheduledRange]
    copies: list[BlockCopy]
    opened: list[list[int]]  # per group, newly opened blocks
    num_tokens: int = 0
    num_rows: int = 0
    context_tokens: int = 0  # what attention to long contexts costs beside, in tokens
    decodes: list[ScheduledRange] = field(default_factory=list)  # plain ones

    @property
    def ranges(self) -> list[ScheduledRange]:
        """All of them, the plain decodes first."""
        return [*self.decodes, *self.others]


@dataclass(slots=True)
class RangeOutput:
    """What a range yielded: a token per sample index, or with drafts one per row (num_drafts + 1)."""

    samples: list[TokenOutput]
    prompt_logprobs: list[TokenOutput] = field(
        default_factory=list
    )  # of prompt_logprob_rows; token_id = the given token
    vector: Any = None
    error: str | None = None  # why no token could be sampled: the request ends with it


Output = RangeOutput | int  # of a plain decode the sampled token alone will do


class Pending(Protocol):
    """A launched step."""

    def outputs(self) -> list[Output]:
        """Outputs aligned with `batch.ranges`; blocks until the step has finished."""
        ...


class Runner(Protocol):
    """Computes batches, in the order in which they are launched."""

    def launch(self, batch: Batch) -> Pending: ...

    def close(self) -> None: ...
