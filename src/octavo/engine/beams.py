"""Beam search: the beams of one request, which advance together, and the hypotheses that have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import merge

from octavo.engine.block_tables import CacheGroup
from octavo.engine.outputs import SequenceOutput, logprobs_of
from octavo.engine.request import Request, Sequence, TokenOutput
from octavo.engine.scheduler_config import SchedulerConfig
from octavo.errors import RequestError
from octavo.sampling_params import BeamSearchParams

Fork = Callable[[Sequence, int], Sequence]  # of a parent and an index: a running child with the parent's blocks
Drop = Callable[[Sequence], None]  # ends a sequence, and gives back its blocks


@dataclass(slots=True)
class Beam:
    """A text that may go on: a sequence, or only its tokens while all beams are gathered in one."""

    sequence: Sequence
    score: float = 0.0  # cumulative log-probability of the generated tokens
    logprobs: list[TokenOutput] = field(default_factory=list)  # of the generated tokens, where they are to be shown
    sample: TokenOutput | None = None  # what may come next, best first; None until it has been computed


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A text that has ended."""

    score: float  # cumulative / length ** length_penalty
    cumulative: float
    token_ids: list[int]  # generated
    logprobs: list[TokenOutput]
    finish_reason: str
    stop_reason: int | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A beam with one more token."""

    beam: Beam
    token_id: int
    logprob: float
    rank: int
    score: float


class BeamSearch:
    """Each beam is a sequence of its own, which shares the blocks of what it has in common with others.

    A beam whose next tokens are known waits until they are known of all; then the best go on. Where one parent has
    several children, the last takes over its sequence and the others fork from it; a beam without children is dropped
    at once. So between two steps there are `width` running sequences, or, before the end of the prompt, one.

    What preempts one beam preempts all: beams that held blocks while they wait for one that was preempted could keep
    two searches from ever having the room that each needs. A preempted search waits as a single sequence of the tokens
    that all its beams share, computes these, and forks into the beams again, which compute what they have alone: so
    blocks are never shared less than the prompt's, and `check_fits` knows the most that a search can hold.
    """

    def __init__(self, first: Sequence) -> None:
        assert first.request.beams is not None
        self.request: Request = first.request
        self.params = first.request.beams
        self.width = self.params.beam_width
        self.first = first
        self.beams = [Beam(first)]  # the best first
        self.ended: list[Hypothesis] = []  # at most `width`, the best first
        self.is_over = False
        self._gathered: Sequence | None = first

    @property
    def num_promised(self) -> int:
        """Places among the running that the beams to come will take."""
        return self.width - 1 if self._gathered is not None else 0

    def take(self, sequence: Sequence, sample: TokenOutput) -> bool:
        """Notes what may follow a beam; whether that is known of all beams now."""
        for beam in self.beams:
            if beam.sequence is sequence:
                beam.sample = sample
        return all(beam.sample is not None for beam in self.beams)

    def advance(self, fork: Fork, drop: Drop) -> None:
        """One token more for the best beams; afterwards the search may be over, and its sequences are to be ended."""
        chosen = self._choose()
        if self.is_over:
            return
        num_children = Counter(id(candidate.beam) for candidate in chosen)
        for beam in self.beams:
            if not num_children[id(beam)]:
                drop(beam.sequence)
        kept = {beam.sequence.index for beam in self.beams if num_children[id(beam)]}
        indices = (index for index in range(self.width) if index not in kept)
        self._gathered = None
        beams = []
        for candidate in chosen:
            parent = candidate.beam
            num_children[id(parent)] -= 1
            sequence = fork(parent.sequence, next(indices)) if num_children[id(parent)] else parent.sequence
            beams.append(Beam(sequence, candidate.score, self._logprobs(candidate)))
        for beam, candidate in zip(beams, chosen, strict=True):
            beam.sequence.token_ids.append(candidate.token_id)
        self.beams = beams

    def gather(self, num_groups: int) -> Sequence:
        """The one sequence that a search waits as whose beams have been dropped."""
        lines = [beam.sequence.token_ids for beam in self.beams]
        low, high = min(lines), max(lines)  # what these two share is in all between them
        shared = next(place for place, pair in enumerate(zip(low, high, strict=True)) if pair[0] != pair[1])
        first = self.first
        root = Sequence(self.request, 0, first.order[1], num_groups)
        root.token_ids = low[:shared]
        root.num_samples = 0
        root.search = self
        root.prompt_logprobs = first.prompt_logprobs
        root.num_cached_tokens, root.scheduled_time = first.num_cached_tokens, first.scheduled_time
        for beam in self.beams:
            beam.sample = None
        self._gathered = root
        return root

    def spread(self, fork: Fork) -> None:
        """Makes the beams of a gathered search sequences again."""
        root = self._gathered
        assert root is not None
        for index, beam in reversed(list(enumerate(self.beams))):
            token_ids = beam.sequence.token_ids
            beam.sequence = fork(root, index) if index else root
            beam.sequence.token_ids = token_ids
            beam.sequence.num_samples = 1
        self._gathered = None

    def outputs(self) -> list[SequenceOutput]:
        """The best hypotheses, whole."""
        shown, news = self.request.params.logprobs, []
        for index, one in enumerate(self.ended[: self.request.params.n]):
            output = SequenceOutput(self.request.request_id, index, one.token_ids)
            output.finish_reason, output.stop_reason = one.finish_reason, one.stop_reason
            output.cumulative_logprob = one.cumulative
            output.num_cached_tokens = self.first.num_cached_tokens
            if shown is not None:
                output.logprobs = [logprobs_of(token) for token in one.logprobs]
            news.append(output)
        if self.request.params.prompt_logprobs is not None:
            news[0].prompt_logprobs = [None, *map(logprobs_of, self.first.prompt_logprobs)]
        return news

    def _choose(self) -> list[Candidate]:
        """The beams of the next step, the best first; none where the search is over.

        As in transformers' generate: a candidate that ends is a hypothesis where it is among the `width` best of all
        candidates, and as many go on that do not end. Equal scores are in the order of their beams, then in the
        sampler's: by falling logit, then rising id.
        """
        request = self.request
        length = len(self.beams[0].sequence.token_ids) - len(request.prompt_token_ids) + 1
        is_last = length >= request.max_tokens
        chosen: list[Candidate] = []
        for place, (*_, candidate) in enumerate(merge(*map(_continuations, range(len(self.beams)), self.beams))):
            if is_last or candidate.token_id in request.stop_token_ids:
                if place < self.width:
                    self._end(candidate, length)
            elif len(chosen) < self.width:
                chosen.append(candidate)
            if place + 1 >= self.width and (is_last or len(chosen) == self.width):
                break
        self.ended = sorted(self.ended, key=lambda one: -one.score)[: self.width]
        self.is_over = not chosen or (len(self.ended) == self.width and not self._may_improve(chosen[0], length))
        return chosen

    def _may_improve(self, best: Candidate, length: int) -> bool:
        params = self.params
        if params.early_stopping is True:
            return False
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self.request.max_tokens
        return normalised(best.score, length, params) > self.ended[-1].score

    def _end(self, candidate: Candidate, length: int) -> None:
        request, token_id = self.request, candidate.token_id
        stops = token_id in request.stop_token_ids
        self.ended.append(
            Hypothesis(
                normalised(candidate.score, length, self.params),
                candidate.score,
                [*candidate.beam.sequence.token_ids[len(request.prompt_token_ids) :], token_id],
                self._logprobs(candidate),
                "stop" if stops else "length",
                token_id if stops and token_id not in request.eos_token_ids else None,
            )
        )

    def _logprobs(self, candidate: Candidate) -> list[TokenOutput]:
        """The log-probabilities to be shown of a beam with one more token."""
        shown, sample = self.request.params.logprobs, candidate.beam.sample
        if shown is None or sample is None:
            return []
        token = TokenOutput(candidate.token_id, candidate.logprob, candidate.rank, sample.top[:shown])
        return [*candidate.beam.logprobs, token]


def _continuations(order: int, beam: Beam) -> Iterator[tuple[float, int, int, Candidate]]:
    """A beam's candidates with what they are sorted by, in that order."""
    assert beam.sample is not None
    for rank, (token_id, logprob) in enumerate(beam.sample.top, 1):
        score = beam.score + logprob
        yield -score, order, rank, Candidate(beam, token_id, logprob, rank, score)


def normalised(score: float, length: int, params: BeamSearchParams) -> float:
    penalty: float = length**params.length_penalty
    return score / penalty


def check_fits(request: Request, config: SchedulerConfig, groups: list[CacheGroup]) -> None:
    """Raises RequestError where the beams of a request could never run together."""
    if request.beams is None:
        return
    width = request.beams.beam_width
    for limit in ("max_num_seqs", "max_output_rows"):
        if width > (most := getattr(config, limit)):
            raise RequestError(
                f"A beam search of width {width} runs as many sequences at once; {limit} is {most}.", "beam_width"
            )
    num_prompt = len(request.prompt_token_ids)
    for group in groups:
        needed = most_blocks(group, width, num_prompt, request.max_tokens, config.max_num_batched_tokens)
        if needed > group.num_blocks:
            raise RequestError(
                f"A beam search of width {width} needs up to {needed} blocks of the KV cache for a prompt of "
                f"{num_prompt} tokens and max_tokens = {request.max_tokens}; it has {group.num_blocks}. Ask for fewer "
                "beams or tokens, or start with a larger KV cache.",
                "beam_width",
            )


def most_blocks(group: CacheGroup, width: int, num_prompt: int, max_tokens: int, budget: int) -> int:
    """Blocks of a group that a search may hold: all beams share the full ones of the prompt, and perhaps no other."""
    size = group.block_size
    shared = num_prompt // size
    most = shared + width * (-(-(num_prompt + max_tokens - 1) // size) - shared)
    if group.window:
        # A beam that comes after a preemption computes several of its tokens in a step.
        longest = min(budget, max_tokens)
        most = min(most, width * (-(-(group.window - 1 + longest) // size) + 1))
    return most
