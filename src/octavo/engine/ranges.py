"""The ranges of a step: how many tokens of a sequence fit into it, and how they are put there."""

from collections.abc import Iterable

from octavo.engine.batch import Batch, ScheduledRange
from octavo.engine.request import Sequence
from octavo.engine.scheduler_config import SHORTEST_CHUNK, SchedulerConfig


def room(config: SchedulerConfig, batch: Batch) -> int:
    """How many more plain decodes the step has room for: each is a token and a row."""
    return min(config.max_num_batched_tokens - batch.num_tokens, config.max_output_rows - batch.num_rows)


def least_rows(sequences: Iterable[Sequence]) -> int:
    """The rows that a step must have room for, so that each of these can go on in it."""
    return sum(max(1, sequence.num_samples) for sequence in sequences)


def count_tokens(config: SchedulerConfig, sequence: Sequence, batch: Batch) -> int:
    """How many of the tokens that the sequence is behind go into the step."""
    budget = config.max_num_batched_tokens - batch.num_tokens
    rows = config.max_output_rows - batch.num_rows
    if budget < 1 or rows < 1:
        return 0
    known = len(sequence.token_ids) - sequence.num_computed_tokens
    if sequence.num_pending_samples or known == 0:
        return int(may_run_ahead(sequence))
    if config.enable_chunked_prefill:
        if config.context_cost and known > 1:
            budget = min(budget, longest_chunk(config, sequence.num_computed_tokens, budget - batch.context_tokens))
        if config.long_prefill_token_threshold:
            budget = min(budget, config.long_prefill_token_threshold)
    request, num_prompt = sequence.request, sequence.num_prompt_tokens
    # Nearly every position of the prompt takes a row.
    scores = request.params.prompt_logprobs is not None and sequence.num_computed_tokens < num_prompt
    num_samples = sequence.num_samples or 1
    if rows < num_samples:
        # The prompt's end waits for a step that has room for all of its samples.
        return min(known - 1, budget, rows if scores else budget) if config.enable_chunked_prefill else 0
    rows -= num_samples - 1
    if known == 1 and not sequence.draft_token_ids:
        return 1
    if scores:
        budget = min(budget, rows)
    elif known > budget and not config.enable_chunked_prefill:
        return 0
    num_outputs = len(sequence.token_ids) - num_prompt
    most_drafts = min(rows, request.max_tokens - num_outputs) - 1 if num_outputs else 0
    return min(known + max(0, min(len(sequence.draft_token_ids), most_drafts)), budget)


def longest_chunk(config: SchedulerConfig, start: int, room: int) -> int:
    """The tokens of a prompt that cost, from `start` on, what `room` tokens cost at its beginning."""
    return max(int(room / (1 + config.context_cost * start)), min(room, SHORTEST_CHUNK), 0)


def may_run_ahead(sequence: Sequence) -> bool:
    """Whether the position after a token that is still being sampled may be computed already."""
    num_outputs = len(sequence.token_ids) - sequence.num_prompt_tokens
    goes_on = sequence.num_pending_samples > 0 and num_outputs + 1 < sequence.request.max_tokens
    return goes_on and not awaits_token(sequence)


def awaits_token(sequence: Sequence) -> bool:
    """Whether a sequence goes on only when the token that is being sampled is committed: what comes next needs it on
    the host, or it will fork.
    """
    return sequence.num_pending_samples > 0 and (
        sequence.has_penalties
        or sequence.matcher is not None
        or bool(sequence.request.bad_word_ids)
        or bool(sequence.draft_token_ids)
        or sequence.num_samples != 1
        or sequence.search is not None
    )


def put(config: SchedulerConfig, sequence: Sequence, count: int, batch: Batch) -> None:
    """Puts `count` reserved tokens of a sequence into the step and counts them as computed."""
    request, token_ids, start = sequence.request, sequence.token_ids, sequence.num_computed_tokens
    num_samples, num_prompt, end = sequence.num_samples, sequence.num_prompt_tokens, start + count
    rows_before = batch.num_rows
    if start == len(token_ids):
        token_ids.append(-1)
    num_drafts = 0
    if sequence.draft_token_ids:
        num_drafts = max(0, end - len(token_ids))
        del sequence.draft_token_ids[num_drafts:]
    indices: tuple[int, ...] = ()
    if end >= len(token_ids) and num_samples:
        indices = tuple(range(num_samples)) if num_samples > 1 else (sequence.index,)
        sequence.num_pending_samples += 1
        batch.num_rows += len(indices) + num_drafts
    rows = (0, 0)
    if start < num_prompt and request.params.prompt_logprobs is not None:
        first, last = max(start, len(sequence.prompt_logprobs)), min(end, num_prompt - 1)
        rows = (first, last) if first < last else rows
        batch.num_rows += rows[1] - rows[0]
    batch.others.append(ScheduledRange(sequence, start, count, indices, num_drafts, rows, sequence.num_preemptions))
    batch.num_tokens += count
    if count - num_drafts > 1:
        batch.context_tokens += int(count * config.context_cost * start)
    sequence.share.charge(count, batch.num_rows - rows_before)
    sequence.num_computed_tokens = end
