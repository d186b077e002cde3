"""A runner that computes in integers, an oracle that knows what every request must yield, and a world that steps both.

The fake cache stores in every slot what a real one holds: something that depends on the token, the position and all
that was visible when it was written. Rows read it back through the block tables, so that a stale, foreign or lost
block is a wrong token.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from octavo.engine.batch import Batch, RangeOutput, TokenOutput
from octavo.engine.block_pool import block_key, root_key
from octavo.engine.request import EVERYONE, Request, Sequence, Status, Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.speculation import Speculation
from octavo.sampling_params import BeamSearchParams, SamplingParams

VOCAB = 50
MASK = (1 << 61) - 1


def mix(*values: int) -> int:
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ (value + 0x7F4A7C15)) * 0x100000001B3 + (state >> 29)) & MASK
    return state


def value_at(token_ids: list[int], position: int, window: int, memo: dict[int, int]) -> int:
    """What the cache of a group holds at a position: a chain over the prefix (full), or a hash over the window."""
    if position not in memo:
        if window:
            memo[position] = mix(position, *token_ids[max(0, position - window + 1) : position + 1])
        else:
            before = value_at(token_ids, position - 1, window, memo) if position else 1
            memo[position] = mix(before, token_ids[position], position)
    return memo[position]


def choose(state: int, request: Request, index: int, position: int) -> int:
    """The token sampled after `position`, from a hash of everything visible there."""
    token_id = mix(state, request.seed, index, position) % VOCAB
    if position + 1 - len(request.prompt_token_ids) < request.params.min_tokens:
        while token_id in request.stop_token_ids:
            token_id = (token_id + 1) % VOCAB
    return token_id


def ranked(state: int) -> list[tuple[int, float]]:
    """All tokens that may follow for a beam, the most likely first; some are equally likely."""
    logprobs = [(token_id, -(mix(state, token_id) % 500) / 100.0) for token_id in range(VOCAB)]
    return sorted(logprobs, key=lambda pair: (-pair[1], pair[0]))


def row_state(values_by_group: list[list[int]]) -> int:
    return mix(*(mix(*values) for values in values_by_group))


class Oracle:
    """The tokens of each sequence of a request, computed from its own tokens alone."""

    def __init__(self, windows: list[int]) -> None:
        self.windows = windows

    def state(self, token_ids: list[int], position: int, memos: list[dict[int, int]]) -> int:
        rows = []
        for window, memo in zip(self.windows, memos, strict=True):
            first = max(0, position - window + 1) if window else 0
            rows.append([value_at(token_ids, p, window, memo) for p in range(first, position + 1)])
        return row_state(rows)

    def run(self, request: Request, index: int) -> tuple[list[int], str]:
        token_ids = list(request.prompt_token_ids)
        memos: list[dict[int, int]] = [{} for _ in self.windows]
        output: list[int] = []
        while len(output) < request.max_tokens:
            position = len(token_ids) - 1
            token_id = choose(self.state(token_ids, position, memos), request, index, position)
            output.append(token_id)
            token_ids.append(token_id)
            if token_id in request.stop_token_ids and len(output) > request.params.min_tokens:
                return output, "stop"
        return output, "length"

    def beams(self, request: Request) -> list[tuple[list[int], str, float]]:
        """Tokens, reason and cumulative log-probability of the best hypotheses, over the whole vocabulary each time."""
        params, prompt = request.beams, list(request.prompt_token_ids)
        memos: list[dict[int, int]] = [{} for _ in self.windows]
        live = [(0.0, list[int](), memos)]  # score, generated tokens, what the oracle remembers of them
        ended: list[tuple[float, float, list[int], str]] = []
        for length in range(1, request.max_tokens + 1):
            every = []
            for order, (score, output, memos) in enumerate(live):
                state = self.state(prompt + output, len(prompt) + length - 2, memos)
                for rank, (token_id, logprob) in enumerate(ranked(state)):
                    every.append((-(score + logprob), order, rank, [*output, token_id]))
            every.sort()
            for cost, _, _, output in every[: params.beam_width]:
                if output[-1] in request.stop_token_ids or length == request.max_tokens:
                    reason = "stop" if output[-1] in request.stop_token_ids else "length"
                    ended.append((-cost / length**params.length_penalty, -cost, output, reason))
            ended = sorted(ended, key=lambda one: -one[0])[: params.beam_width]
            going_on = [entry for entry in every if entry[3][-1] not in request.stop_token_ids]
            live = [
                (-cost, output, [dict(memo) for memo in live[order][2]])
                for cost, order, _, output in going_on[: params.beam_width]
            ]
            if len(ended) == params.beam_width:
                if params.early_stopping is True:
                    break
                longest = params.early_stopping == "never" and params.length_penalty > 0
                reach = request.max_tokens if longest else length
                if live[0][0] / reach**params.length_penalty <= ended[-1][0]:
                    break
        return [(output, reason, cumulative) for _, cumulative, output, reason in ended[: request.params.n]]

    def prompt_logprobs(self, request: Request) -> list[float]:
        token_ids, memos = list(request.prompt_token_ids), [dict[int, int]() for _ in self.windows]
        return [-(self.state(token_ids, p, memos) % 1000) / 100.0 for p in range(len(token_ids) - 1)]


@dataclass
class Launched:
    results: list[RangeOutput]

    def outputs(self) -> list[RangeOutput]:
        return self.results


class FakeRunner:
    def __init__(self, groups: list[CacheGroup]) -> None:
        self.groups = groups
        # (position, token, value) per slot
        self.slots: list[list[tuple[int, int, int] | None]] = [[None] * (g.num_blocks * g.block_size) for g in groups]
        self.last_sampled: dict[tuple[str, int], int] = {}
        self.num_computed = 0
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def launch(self, batch: Batch) -> Launched:
        sizes = [group.block_size for group in self.groups]
        read = [self.slots[c.group][c.src * sizes[c.group] : (c.src + 1) * sizes[c.group]] for c in batch.copies]
        for group, blocks in enumerate(batch.opened):
            for block in blocks:
                self.slots[group][block * sizes[group] : (block + 1) * sizes[group]] = [None] * sizes[group]
        for copy, content in zip(batch.copies, read, strict=True):
            size = sizes[copy.group]
            self.slots[copy.group][copy.dst * size : (copy.dst + 1) * size] = content
        assert sum(r.num_tokens for r in batch.ranges) == batch.num_tokens
        assert len({id(r.sequence) for r in batch.ranges}) == len(batch.ranges)
        for scheduled in batch.ranges:  # all writes of a step come before its reads, as in a layer
            self._write(scheduled.sequence, scheduled.start, scheduled.num_tokens)
        tokens = [self._rows(scheduled).samples[0].token_id for scheduled in batch.decodes]
        return Launched([*tokens, *map(self._rows, batch.others)])

    def _slot(self, sequence: Sequence, group: int, position: int) -> int:
        size = self.groups[group].block_size
        block = sequence.block_tables[group][position // size]
        assert block >= 0, "a position behind the window was touched"
        return block * size + position % size

    def _write(self, sequence: Sequence, start: int, count: int) -> None:
        tokens = sequence.token_ids + sequence.draft_token_ids
        for position in range(start, start + count):
            token = tokens[position]
            if token == -1:
                token = self.last_sampled[sequence.request.request_id, sequence.index]
            self.num_computed += 1
            for group, spec in enumerate(self.groups):
                slots = self.slots[group]
                if spec.window:
                    seen = [
                        self._read(sequence, group, p)[1] for p in range(max(0, position - spec.window + 1), position)
                    ]
                    value = mix(position, *seen, token)
                else:
                    before = self._read(sequence, group, position - 1)[2] if position else 1
                    value = mix(before, token, position)
                slots[self._slot(sequence, group, position)] = (position, token, value)

    def _read(self, sequence: Sequence, group: int, position: int) -> tuple[int, int, int]:
        entry = self.slots[group][self._slot(sequence, group, position)]
        assert entry is not None, f"{sequence} reads position {position} before it was written"
        assert entry[0] == position, f"{sequence} reads position {entry[0]} for {position}"
        return entry

    def _state(self, sequence: Sequence, position: int) -> int:
        rows = []
        for group, spec in enumerate(self.groups):
            first = max(0, position - spec.window + 1) if spec.window else 0
            rows.append([self._read(sequence, group, p)[2] for p in range(first, position + 1)])
        return row_state(rows)

    def _rows(self, scheduled) -> RangeOutput:
        sequence, request = scheduled.sequence, scheduled.sequence.request
        end = scheduled.start + scheduled.num_tokens
        samples = []
        if scheduled.sample_indices:
            for position in range(end - 1 - scheduled.num_drafts, end):
                state = self._state(sequence, position)
                if request.beams is not None:
                    top = ranked(state)[: request.num_logprobs]
                    samples.append(TokenOutput(*top[0], 1, top))
                    continue
                for index in scheduled.sample_indices:
                    token_id = choose(state, request, index, position)
                    samples.append(TokenOutput(token_id, -(state % 1000) / 100.0, 1))
                    self.last_sampled[request.request_id, index] = token_id
        prompt = []
        for position in range(*scheduled.prompt_logprob_rows):
            state = self._state(sequence, position)
            prompt.append(TokenOutput(sequence.token_ids[position + 1], -(state % 1000) / 100.0, 1))
        return RangeOutput(samples, prompt)


def request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 8,
    stop: frozenset[int] = frozenset(),
    eos: frozenset[int] = frozenset(),
    seed: int = 0,
    priority: int = 0,
    salt: str | None = None,
    tenant: Tenant = EVERYONE,
    user: bytes = b"",
    arrival_time: float = 0.0,
    timeout: float | None = None,
    beams: BeamSearchParams | None = None,
    **params,
) -> Request:
    return Request(
        request_id,
        tuple(prompt),
        SamplingParams(max_tokens=max_tokens, **params),
        seed,
        max_tokens,
        stop | eos,
        eos,
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=salt,
        tenant=tenant,
        user=user,
        timeout=timeout,
        beams=beams,
    )


@dataclass
class Collected:
    tokens: list[int] = field(default_factory=list)
    reason: str | None = None
    prompt_logprobs: list | None = None
    num_cached: int = 0
    cumulative: float | None = None


class Guesses(Speculation):
    """Drafts that are right, wrong or half right, for sequences that have no token in flight."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.world = world

    def draft(self, running: list[Sequence], next_in: Sequence | None, config: SchedulerConfig) -> list[Sequence]:
        world, drafted = self.world, []
        for sequence in running:
            caught_up = sequence.num_computed_tokens == len(sequence.token_ids) - 1
            if sequence.search is not None or sequence.num_pending_samples:
                continue
            if not sequence.num_output_tokens or not caught_up:
                continue
            tokens, _ = world.oracle.run(sequence.request, sequence.index)
            guess = tokens[sequence.num_output_tokens :][: world.random.randint(0, world.drafts)]
            if guess and world.random.random() < 0.5:
                guess[world.random.randrange(len(guess))] = world.random.randrange(VOCAB)
            sequence.draft_token_ids = guess
            if guess:
                drafted.append(sequence)
        return drafted


class World:
    """A scheduler, a fake runner and up to `ahead` steps in flight beyond the one being committed."""

    def __init__(self, config: SchedulerConfig, groups: list[CacheGroup], *, ahead: int = 0, drafts: int = 0, seed=0):
        self.scheduler = Scheduler(config, groups, Guesses(self) if drafts else None)
        self.runner = FakeRunner(groups)
        self.oracle = Oracle([group.window for group in groups])
        self.ahead = ahead
        self.drafts = drafts
        self.random = random.Random(seed)
        self.in_flight: deque[tuple[Batch, Launched]] = deque()
        self.requests: dict[str, Request] = {}
        self.results: dict[tuple[str, int], Collected] = {}
        self.tables: dict[tuple[Sequence, int], list[list[int]]] = {}
        self.prefixes: dict[bytes, list[int]] = {}
        self.num_steps = self.num_copies = self.num_gathered = 0
        self.batches: list[list[tuple[str, int, int, int]]] = []  # per step: request, index, start, tokens
        self.check_every = 10  # steps between looks at the content of all published blocks

    def add(self, new: Request) -> None:
        self.scheduler.add(new)
        self.requests[new.request_id] = new
        for index in range(new.params.n):
            self.results[new.request_id, index] = Collected()

    def abort(self, request_id: str, reason: str = "abort") -> None:
        self._collect(self.scheduler.abort(request_id, reason))

    def step(self) -> bool:
        """Schedules one step and commits the oldest in flight where there are enough; False where nothing happened."""
        self.num_steps += 1
        head = self.scheduler.waiting.first()
        first = self.scheduler.running[0] if self.scheduler.running else None
        batch = self.scheduler.schedule()
        if first is not None and (head is None or head.order[0] >= first.order[0]):
            assert first.status is Status.RUNNING, "the first one gave way to its own class"
        if batch is not None:
            self._check_batch(batch)
            self.in_flight.append((batch, self.runner.launch(batch)))
            self.check()
        if self.in_flight and (len(self.in_flight) > self.ahead or batch is None):
            committed, launched = self.in_flight.popleft()
            self._collect(self.scheduler.commit(committed, launched.outputs()))
            self.check()
            return True
        return batch is not None

    def run(self, limit: int = 100_000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work():
                break
            assert self.step(), "the scheduler is stuck"
        assert not self.scheduler.has_work(), "not done within the limit"
        self.check()

    def _collect(self, news) -> None:
        for new in news:
            result = self.results[new.request_id, new.index]
            assert result.reason is None, "output after the end"
            result.tokens += new.token_ids
            result.reason = new.finish_reason
            result.num_cached = new.num_cached_tokens
            result.cumulative = new.cumulative_logprob
            if new.finish_reason is not None:
                asked = self.requests[new.request_id]
                self._remember(asked, [*asked.prompt_token_ids, *result.tokens])
            if new.prompt_logprobs is not None:
                assert result.prompt_logprobs is None
                result.prompt_logprobs = new.prompt_logprobs

    def _check_batch(self, batch: Batch) -> None:
        config = self.scheduler.config
        self.num_copies += len(batch.copies)
        self.num_gathered += sum(r.sequence.num_samples == 0 and r.sequence.search is not None for r in batch.ranges)
        self.batches.append(
            [(r.sequence.request.request_id, r.sequence.index, r.start, r.num_tokens) for r in batch.ranges]
        )
        assert 0 < batch.num_tokens <= config.max_num_batched_tokens, (batch, config)
        assert batch.num_rows <= config.max_output_rows
        assert len(self.scheduler.running) <= config.max_num_seqs
        assert all(scheduled.num_tokens > 0 for scheduled in batch.ranges)
        rows = sum(len(range(*r.prompt_logprob_rows)) + len(r.sample_indices) + r.num_drafts for r in batch.ranges)
        assert rows == batch.num_rows
        dst = {(copy.group, copy.dst) for copy in batch.copies}
        assert not any((group, block) in dst for group, blocks in enumerate(batch.opened) for block in blocks)
        copied = {(copy.group, copy.src): copy.dst for copy in batch.copies}
        for sequence in self.scheduler.running:  # tables are append-only, but for copies and blocks behind a window
            key = (sequence, sequence.num_preemptions)
            if sequence.search is not None:  # it may be dropped before the next look at published blocks
                self._remember(sequence.request, sequence.token_ids)
            for group, (old, new) in enumerate(
                zip(self.tables.get(key, sequence.block_tables), sequence.block_tables, strict=True)
            ):
                assert len(old) <= len(new)
                for before, after in zip(old, new, strict=False):
                    assert after in (before, -1) or (group, before) in copied
        self.tables = {
            (s, s.num_preemptions): [list(table) for table in s.block_tables] for s in self.scheduler.running
        }

    def check(self) -> None:
        self.scheduler.check()
        if self.num_steps % self.check_every == 0:
            self._check_published()

    def _remember(self, asked: Request, token_ids: list[int]) -> None:
        size, key = self.scheduler.tables.block_size, root_key(None, asked.cache_salt, "")
        for first in range(0, len(token_ids) - size + 1, size):
            key = block_key(key, token_ids[first : first + size])
            self.prefixes.setdefault(key, token_ids[: first + size])

    def _check_published(self) -> None:
        """The content of every block that can be found is that of its key, recomputed here from tokens."""
        size = self.scheduler.tables.block_size
        for line in self.scheduler.requests.values():
            for sequence in line:
                self._remember(sequence.request, sequence.token_ids)
        for group, pool in enumerate(self.scheduler.tables.pools):
            window = self.scheduler.tables.groups[group].window
            for key, block in pool._published.items():
                prefix, memo = self.prefixes[key], dict[int, int]()
                for offset in range(size):
                    position = len(prefix) - size + offset
                    expected = (position, prefix[position], value_at(prefix, position, window, memo))
                    assert self.runner.slots[group][block * size + offset] == expected, "a published block is wrong"

    def verify(self) -> None:
        """Every finished sequence has exactly its own tokens; aborted ones a prefix of them."""
        for (request_id, index), result in self.results.items():
            asked = self.requests[request_id]
            if asked.beams is not None:
                if result.reason not in ("abort", "error", "timeout"):
                    found = (result.tokens, result.reason, result.cumulative)
                    assert found == self.oracle.beams(asked)[index], f"{request_id}/{index}"
            else:
                tokens, reason = self.oracle.run(asked, index)
            if result.reason in ("abort", "error", "timeout"):
                assert result.tokens == ([] if asked.beams else tokens[: len(result.tokens)])
                continue
            assert asked.beams or (result.tokens, result.reason) == (tokens, reason), f"{request_id}/{index}"
            assert result.num_cached < len(asked.prompt_token_ids)
            if asked.params.prompt_logprobs is not None and index == 0:
                given = [next(iter(entry.items())) for entry in result.prompt_logprobs[1:]]
                assert result.prompt_logprobs[0] is None
                assert [token for token, _ in given] == list(asked.prompt_token_ids[1:])
                assert [entry.logprob for _, entry in given] == self.oracle.prompt_logprobs(asked)
