"""What leaves the engine: the news of a step per sequence, and the whole of a request that it adds up to."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from octavo.engine.batch import ScheduledRange
from octavo.engine.request import Request, Sequence, TokenOutput


@dataclass(slots=True)
class Logprob:
    """Natural log-probability of a token at a position, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class Contradiction(str):
    """An error that is the request's own: what it asks for, by `param` where it is one field, cannot be had."""

    param: str | None

    def __new__(cls, text: str, param: str | None = None) -> Self:
        self = super().__new__(cls, text)
        self.param = param
        return self


Logprobs = dict[int, Logprob]  # by token id; the chosen or given token first


@dataclass
class SequenceOutput:
    """What a step added to one sequence; the one with a finish_reason is the last of its sequence.

    Most have a token and its text, and are made in a third of the time that eleven fields would take: the others are
    read off the class until they are set.
    """

    request_id: str
    index: int
    token_ids: list[int]  # new
    num_cached_tokens: int = 0
    text: str = field(default="", init=False)  # new
    logprobs: list[Logprobs] | None = field(default=None, init=False)  # new, aligned with token_ids
    finish_reason: str | None = field(default=None, init=False)  # stop, length, abort, error, timeout
    stop_reason: int | str | None = field(default=None, init=False)
    # Whole, once, with the first token; entry 0 is None.
    prompt_logprobs: list[Logprobs | None] | None = field(default=None, init=False)
    cumulative_logprob: float | None = field(default=None, init=False)  # of the whole sequence, from a beam search
    vector: Any = field(default=None, init=False)
    error: str | None = field(default=None, init=False)  # why, where it is "error" or "timeout"


@dataclass(slots=True)
class News:
    """What a step brought: a token each to plain decodes that go on, which is most of it, and all else."""

    decodes: list[ScheduledRange]  # the batch's, or the ones of the next where some of those have left
    token_ids: list[int]  # one of each
    others: list[SequenceOutput]

    def __iter__(self) -> Iterator[SequenceOutput]:
        """All of it, as outputs without text."""
        for scheduled, token_id in zip(self.decodes, self.token_ids, strict=True):
            sequence = scheduled.sequence
            yield SequenceOutput(sequence.request.request_id, sequence.index, [token_id], sequence.num_cached_tokens)
        yield from self.others


@dataclass(slots=True)
class CompletionOutput:
    """One sequence of a request."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Logprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request and everything generated for it so far."""

    request_id: str
    prompt: str | None  # None where it was given as token ids, or has been truncated
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool = False
    metrics: Any = None
    num_cached_tokens: int = 0
    seed: int | None = None  # that its tokens were drawn with; None where they were not drawn
    vector: Any = None  # of the prompt, where the request asks for one: as the runner pooled it
    error: str | None = None  # why a sequence has finish_reason "error" or "timeout"

    @classmethod
    def empty(cls, request: Request) -> "RequestOutput":
        wants_logprobs = request.params.logprobs is not None
        outputs = [
            CompletionOutput(index, cumulative_logprob=0.0, logprobs=[]) if wants_logprobs else CompletionOutput(index)
            for index in range(request.params.n)
        ]
        ids = list(request.prompt_token_ids)
        return cls(request.request_id, request.prompt, ids, None, outputs, seed=request.used_seed)

    def apply(self, news: SequenceOutput) -> None:
        """Adds what a step brought; streamed and whole replies are the same sum of the same pieces."""
        output = self.outputs[news.index]
        output.text += news.text
        output.token_ids += news.token_ids
        if news.logprobs is not None and output.logprobs is not None and output.cumulative_logprob is not None:
            output.logprobs += news.logprobs
            output.cumulative_logprob += sum(
                entry[token_id].logprob for token_id, entry in zip(news.token_ids, news.logprobs, strict=True)
            )
        if news.cumulative_logprob is not None:
            output.cumulative_logprob = news.cumulative_logprob
        output.finish_reason = news.finish_reason
        output.stop_reason = news.stop_reason
        self.error = self.error or news.error
        if news.vector is not None:
            self.vector = news.vector
        if news.prompt_logprobs is not None:
            self.prompt_logprobs = news.prompt_logprobs
        if news.index == 0:
            self.num_cached_tokens = news.num_cached_tokens
        self.finished = all(output.finish_reason is not None for output in self.outputs)


@dataclass(slots=True)
class BeamSearchSequence:
    """A hypothesis of a beam search, in vLLM's form: tokens and text are those of the prompt and what follows it."""

    tokens: list[int]
    logprobs: list[Logprobs]  # of the generated tokens
    cum_logprob: float
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The best hypotheses of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


def end_of(request_id: str, index: int, reason: str, error: str | None = None) -> SequenceOutput:
    """The last output of a sequence that brings nothing else."""
    output = SequenceOutput(request_id, index, [])
    output.finish_reason, output.error = reason, error
    return output


def logprobs_of(token: TokenOutput) -> Logprobs:
    """The chosen (or given) token and its best alternatives, by token id."""
    entry = {token.token_id: Logprob(token.logprob, token.rank)}
    for rank, (token_id, logprob) in enumerate(token.top, 1):
        entry.setdefault(token_id, Logprob(logprob, rank))
    return entry


def news_of(sequence: Sequence, token_ids: list[int], samples: list[TokenOutput], first: bool) -> SequenceOutput:
    """What a step brought, as it leaves the scheduler: without text. `samples` begin with those of `token_ids`."""
    request = sequence.request
    news = SequenceOutput(request.request_id, sequence.index, token_ids, sequence.num_cached_tokens)
    if sequence.finish_reason is not None:
        news.finish_reason, news.stop_reason = sequence.finish_reason, sequence.stop_reason
    if sequence.num_logprobs >= 0:
        news.logprobs = [logprobs_of(sample) for sample in samples[: len(token_ids)]]
        sequence.cumulative_logprob += sum(sample.logprob for sample in samples[: len(token_ids)])
    if first and sequence.index == 0 and request.params.prompt_logprobs is not None:
        news.prompt_logprobs = [None, *map(logprobs_of, sequence.prompt_logprobs)]
    return news
