"""The limits of a step, and what the cache needs to keep to them."""

from dataclasses import dataclass

from octavo.engine.block_tables import CacheGroup
from octavo.errors import ConfigError

# Chunks are not cut below this many tokens by what lies before them: the matrices that a step reads are worth more.
SHORTEST_CHUNK = 16


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The limits of a step. `enable_chunked_prefill` off: a prompt is computed whole in one step, or waits."""

    max_num_seqs: int
    max_num_batched_tokens: int  # the token budget of a step
    max_model_len: int
    max_output_rows: int  # rows that a step samples or scores; at least the n of any request
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    # What a prompt's token costs more for each position before it, as a share of what the first one costs. A chunk far
    # into a long prompt is as much shorter, so that its step lasts no longer than others. 0: tokens are just counted.
    context_cost: float = 0.0
    long_prefill_token_threshold: int = 0  # most tokens of one sequence in a step; 0: the budget
    max_num_queued: int = 0  # requests that may wait; 0: no bound. Both are kept by the async engine
    max_num_queued_tokens: int = 0  # of prompts that may wait; 0: no bound
    kv_dtype: str = ""  # in the key of every block

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_output_rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                "Without chunked prefill a prompt is computed in one step, so that max_num_batched_tokens="
                f"{self.max_num_batched_tokens} must be at least max_model_len={self.max_model_len}. Raise it, or "
                "leave chunked prefill on."
            )


def check_windows(config: SchedulerConfig, groups: list[CacheGroup]) -> None:
    """Whether each window group has the blocks that the longest step of one sequence takes. Raises ConfigError."""
    longest_chunk = min(config.max_num_batched_tokens, config.max_model_len)
    for group in groups:
        # A chunk, the window before it, and a block cut at each end; never more than the whole context.
        most = -(-min(group.window + longest_chunk, config.max_model_len) // group.block_size) + 1
        if group.window and group.num_blocks < most:
            raise ConfigError(
                f"A window of {group.window} tokens and steps of up to {longest_chunk} need {most} blocks of "
                f"{group.block_size}, got {group.num_blocks}. "
                "Lower max_num_batched_tokens, or give the KV cache more memory."
            )
