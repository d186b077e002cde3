"""A request as the admission gate leaves it, and the sequences of tokens that grow from it."""

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from octavo.engine.grammar import Grammar, Matcher
from octavo.sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from octavo.engine.batch import ScheduledRange
    from octavo.engine.beams import BeamSearch
    from octavo.engine.fair_share import Share


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who shares the machine with whom. A server has one for each of its keys; without keys everyone is one."""

    name: str = "everyone"  # unique; never a key
    weight: float = 1.0  # of its share, beside other tenants'
    priority_ceiling: int | None = None  # the lowest number, that is the highest priority, it may ask for


EVERYONE = Tenant()


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked, checked and resolved; immutable, made by `admission.admit` only."""

    request_id: str  # made by the server, unique; a client's own id is a label elsewhere
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams  # as asked
    seed: int  # resolved, 64 bits
    max_tokens: int  # resolved: prompt + max_tokens never passes the context limit
    stop_token_ids: frozenset[int]  # EOS ids (none with ignore_eos) and params.stop_token_ids
    eos_token_ids: frozenset[int]
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    prompt: str | None = None
    arrival_time: float = 0.0  # time.monotonic() seconds
    priority: int = 0  # lower goes first
    cache_salt: str | None = None
    pooling: str | None = None
    adapter: str | None = None
    tenant: Tenant = EVERYONE
    user: bytes = b""  # of the tenant: a digest of the name that the client gave
    timeout: float | None = None  # seconds from its arrival to its end
    beams: BeamSearchParams | None = None  # a beam search, of which params.n sequences are shown
    grammar: Grammar | None = None  # compiled from params.structured_outputs
    constraint: str = "structured_outputs"  # what errors of the grammar call it: the client's own field

    @property
    def num_logprobs(self) -> int:
        """How many alternatives a sampled row has to bring; -1: not even the log-probability of its token."""
        shown = self.params.logprobs
        if self.beams is not None:
            # Of all continuations of a beam these are enough: behind them stand as many that go on as there are beams.
            return max(shown or 0, self.beams.beam_width + len(self.stop_token_ids))
        return shown if shown is not None else 0 if self.params.ranks else -1

    @property
    def used_seed(self) -> int | None:
        """What repeats its tokens; None where chance has no part in them."""
        return None if self.params.is_greedy else self.seed


@dataclass(slots=True)
class TokenOutput:
    """One token and, where logprobs were asked for, its natural logprob, its rank (from 1) and the alternatives."""

    token_id: int
    logprob: float = 0.0
    rank: int = 0
    top: list[tuple[int, float]] = field(default_factory=list)


def _decodes_from(request: Request) -> int:
    """The position from which on a step computes one token of the request, samples one, and nothing else is asked."""
    params = request.params
    if request.num_logprobs >= 0 or params.has_penalties or request.bad_word_ids or request.grammar or request.pooling:
        return sys.maxsize
    return len(request.prompt_token_ids) + params.min_tokens


class Status(Enum):
    WAITING = "waiting"  # owns no block
    RUNNING = "running"  # owns the blocks of its tables
    FINISHED = "finished"  # owns no block, never scheduled again


class Sequence:
    """One line of tokens of a request: what is known, how far it is computed, and the blocks that hold it.

    There are no phases: a sequence is behind by `len(token_ids) - num_computed_tokens`, and each step lets it catch
    up. `num_computed_tokens` counts what has been scheduled, so that the next step can be scheduled while one is in
    flight; a token that a step in flight will sample stands as -1 in `token_ids` once the step that consumes it is
    scheduled.
    """

    __slots__ = (
        "block_keys",
        "block_tables",
        "cumulative_logprob",
        "decode",
        "decodes_from",
        "draft_chance",
        "draft_token_ids",
        "finish_reason",
        "has_penalties",
        "index",
        "matcher",
        "max_length",
        "min_length",
        "ngrams",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_logprobs",
        "num_pending_samples",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published_blocks",
        "num_reserved_tokens",
        "num_samples",
        "order",
        "prompt_logprobs",
        "request",
        "scheduled_time",
        "search",
        "share",
        "shares_tail",
        "status",
        "stop_reason",
        "token_ids",
        "waits_for",
    )

    def __init__(self, request: Request, index: int, arrival: int, num_groups: int) -> None:
        self.request = request
        self.index = index
        self.order = (request.priority, arrival, index)  # who goes first: lower; once its turn has come, the turn
        self.share: Share  # whose work it is; set when it first waits
        self.token_ids = list(request.prompt_token_ids)
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.min_length = self.num_prompt_tokens + request.params.min_tokens  # up to which nothing stops it
        self.max_length = self.num_prompt_tokens + request.max_tokens
        self.has_penalties = request.params.has_penalties
        self.num_logprobs = request.num_logprobs
        self.num_samples = int(request.pooling is None)  # that its last row yields: of one that will fork, several
        self.search: BeamSearch | None = None  # the beam search whose beam it is, or that grows from it
        # In the grammar, past the committed tokens: kept as they are when the sequence is preempted.
        self.matcher: Matcher | None = request.grammar.matcher() if request.grammar is not None else None
        self.decodes_from = _decodes_from(request)
        self.decode: ScheduledRange | None = None  # while it is one of the plain decodes (see Batch)
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0  # of the prompt, found in the cache at the first admission
        self.num_pending_samples = 0  # sampled by steps that are not committed yet
        self.num_preemptions = 0
        self.num_published_blocks = 0
        self.num_reserved_tokens = 0  # that the tables have slots for
        self.block_tables: list[list[int]] = [[] for _ in range(num_groups)]  # -1: freed behind a window, never read
        self.block_keys: list[bytes] = []  # of the full blocks of token_ids, as far as they were needed
        self.shares_tail = False  # the last partial block may be in other tables too: copy before writing
        self.draft_token_ids: list[int] = []  # guesses of the tokens after token_ids
        self.draft_chance: float | None = None  # of one to be kept, as far as is known
        self.ngrams: tuple[dict[tuple[int, ...], int], array[int]] | None = None  # kept by a drafter
        self.waits_for: bytes | None = None  # key of a block that another sequence is computing
        self.status = Status.WAITING
        self.finish_reason: str | None = None  # stop, length, abort, error, timeout
        self.stop_reason: int | str | None = None  # the stop id or string, None for EOS
        self.cumulative_logprob = 0.0
        self.prompt_logprobs: list[TokenOutput] = []  # entry p scores prompt token p + 1
        self.scheduled_time = 0.0  # of the first admission, time.monotonic()

    @property
    def num_known_tokens(self) -> int:
        """Tokens of the prompt and committed ones."""
        known = len(self.token_ids)
        while self.token_ids[known - 1] < 0:
            known -= 1
        return known

    @property
    def num_output_tokens(self) -> int:
        """Committed generated tokens."""
        return self.num_known_tokens - self.num_prompt_tokens

    def write(self, position: int, samples: list[TokenOutput]) -> tuple[list[int], str | None, int | None]:
        """Writes tokens from `position` on until one ends the sequence: those written, and why it ends, if it does.

        The second reason is that of a stop id, as in `stop_reason`.
        """
        request, token_ids, taken = self.request, self.token_ids, list[int]()
        reason: str | None = "length" if request.max_tokens == 0 else None
        stop: int | None = None
        for sample in samples:
            if reason is not None:
                break
            token_id = sample.token_id
            if position < len(token_ids):
                token_ids[position] = token_id
            else:
                token_ids.append(token_id)
            taken.append(token_id)
            position += 1
            if token_id in request.stop_token_ids and position > self.min_length:
                reason, stop = "stop", None if token_id in request.eos_token_ids else token_id
            # The end of a grammar is an end even with ignore_eos or before min_tokens: nothing may follow it.
            elif self.matcher is not None and self.matcher.accept(token_id):
                reason = "stop"
            elif position >= self.max_length:
                reason = "length"
        return taken, reason, stop

    def reset(self) -> None:
        """Back to nothing computed; keeps what is committed. The scheduler has taken the blocks."""
        while self.token_ids[-1] < 0:
            self.token_ids.pop()
        self.draft_token_ids.clear()
        self.num_computed_tokens = self.num_published_blocks = self.num_reserved_tokens = self.num_pending_samples = 0
        self.shares_tail = False
        self.waits_for = None

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id}/{self.index} {self.status.value} "
            f"{self.num_computed_tokens}/{len(self.token_ids)})"
        )
