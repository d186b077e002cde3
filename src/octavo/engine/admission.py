"""The admission gate: everything a client can get wrong about a request is found here, before the engine sees it."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from numbers import Integral

from octavo.engine.request import EVERYONE, Request, Tenant
from octavo.errors import RequestError
from octavo.sampling_params import MAX_BEAM_STOPS, BeamSearchParams, SamplingParams

MAX_SALT_CHARACTERS = 1024
MAX_TIMEOUT = 86400  # seconds
# What a seed drawn from the server's seed depends on, beside the prompt: the parameters that shape a distribution. Not
# how much is asked or how it is shown, so that a longer answer begins with the shorter one.
_SEEDED_BY = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k", "min_p",
    "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs",
)  # fmt: skip
# What changes the distribution or the text that a beam is scored by, or picks at random.
_NOT_WITH_BEAMS = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p", "logit_bias",
    "allowed_token_ids", "bad_words", "min_tokens", "stop", "best_of", "structured_outputs",
)  # fmt: skip
_DEFAULTS = SamplingParams()


@dataclass(frozen=True, slots=True)
class Limits:
    """What the resolved config allows of any request; shared by every route and the offline API."""

    vocab_size: int
    max_model_len: int  # prompt and generated tokens together
    max_sequence_tokens: int  # that the KV cache can hold for one sequence
    eos_token_ids: frozenset[int] = frozenset()
    seed: int | None = None  # of the server
    takes_priority: bool = False  # whether requests may bring a priority of their own
    pooling: frozenset[str] = frozenset()  # kinds of vectors that the runner makes of a whole prompt


def admit(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    limits: Limits,
    *,
    prompt: str | None = None,
    bad_word_ids: tuple[tuple[int, ...], ...] = (),
    priority: int | None = None,
    cache_salt: str | None = None,
    pooling: str | None = None,
    adapter: str | None = None,
    tenant: Tenant = EVERYONE,
    user: str | None = None,
    timeout: float | None = None,
    beams: BeamSearchParams | None = None,
) -> Request:
    """A request that the engine can finish, or RequestError naming the field.

    max_tokens is cut to what the context leaves (None: all of it); the prompt is never cut unless
    truncate_prompt_tokens asks for it: then its last tokens stay, and `prompt`, which is no longer their text, goes.
    priority None is 0, or the highest that the tenant may ask for where that is lower.
    """
    token_ids = _prompt(prompt_token_ids, params, limits)
    room = limits.max_model_len - len(token_ids)
    wants_tokens = params.max_tokens != 0 and pooling is None
    if room < wants_tokens:
        raise RequestError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{len(token_ids)} tokens in the prompt{', which leaves none to generate' if room == 0 else ''}. "
            "Shorten the prompt.",
            "prompt",
        )
    # The token that is sampled last is not computed, so that it needs no slot.
    held = limits.max_sequence_tokens + 1 - len(token_ids)
    max_tokens = min(room, max(held, 1)) if params.max_tokens is None else min(params.max_tokens, room)
    max_tokens = max_tokens if wants_tokens else 0
    if max(max_tokens, 1) > held:
        raise RequestError(
            f"The KV cache holds {limits.max_sequence_tokens} tokens, but the prompt has {len(token_ids)} and "
            f"max_tokens is {max_tokens}. Ask for less, or start with a larger KV cache.",
            "max_tokens" if held > 0 else "prompt",
        )
    for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
        for token_id in getattr(params, name) or ():
            if token_id >= limits.vocab_size:
                raise RequestError(
                    f"{name} holds token id {token_id}, but the vocabulary has {limits.vocab_size} tokens.", name
                )
    priority = _priority(priority, tenant, limits)
    if timeout is not None:
        # Written so that NaN fails it.
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not is_number or not 0 < timeout <= MAX_TIMEOUT:
            raise RequestError(
                f"timeout must be a number of seconds above 0 and up to {MAX_TIMEOUT}, got {timeout!r:.60}.", "timeout"
            )
    if cache_salt is not None and not (isinstance(cache_salt, str) and 0 < len(cache_salt) <= MAX_SALT_CHARACTERS):
        raise RequestError(
            f"cache_salt must be a string of 1 to {MAX_SALT_CHARACTERS} characters, got {cache_salt!r:.60}.",
            "cache_salt",
        )
    if pooling is not None and pooling not in limits.pooling:
        raise RequestError(
            f"pooling = {pooling!r:.60} is not possible: this model makes {', '.join(sorted(limits.pooling)) or 'no'} "
            "vectors of prompts.",
            "pooling",
        )
    if pooling is not None and params.num_sequences != 1:
        name = "n" if params.n != 1 else "best_of"
        raise RequestError(f"{name} must be 1 where a vector is asked for, got {params.num_sequences}.", name)
    eos_token_ids = frozenset() if params.ignore_eos else limits.eos_token_ids
    stop_token_ids = eos_token_ids.union(params.stop_token_ids or ())
    if beams is not None:
        _check_beams(params, beams, len(stop_token_ids), limits)
    return Request(
        request_id,
        token_ids,
        params,
        _seed(token_ids, params, limits.seed),
        max_tokens,
        stop_token_ids,
        eos_token_ids,
        bad_word_ids,
        prompt if len(token_ids) == len(prompt_token_ids) else None,
        time.monotonic(),
        priority,
        cache_salt,
        pooling,
        adapter,
        tenant,
        # Of one size, whatever clients send: the queue remembers users.
        sha256(user.encode("utf-8", "surrogatepass")).digest()[:16] if user else b"",
        timeout,
        beams,
    )


def _priority(priority: int | None, tenant: Tenant, limits: Limits) -> int:
    ceiling = tenant.priority_ceiling
    if priority is None:
        return max(0, ceiling) if ceiling is not None and limits.takes_priority else 0
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must be an integer of 32 bits, got {priority!r:.60}.", "priority")
    if priority and not limits.takes_priority:
        raise RequestError(
            'priority needs scheduling_policy="priority" (--scheduling-policy priority), '
            f"without which requests go by arrival; got {priority}.",
            "priority",
        )
    if ceiling is not None and priority < ceiling and limits.takes_priority:
        raise RequestError(
            f"priority {priority} is above what this key may ask for, where lower numbers go first: use {ceiling} or "
            "more, or leave it out.",
            "priority",
        )
    return priority


def _prompt(prompt_token_ids: Sequence[int], params: SamplingParams, limits: Limits) -> tuple[int, ...]:
    token_ids = tuple(prompt_token_ids)
    if not token_ids:
        raise RequestError("The prompt has no tokens.", "prompt")
    # The whole at once in C; a look at each id only where something is wrong, or they are numpy's.
    if set(map(type, token_ids)) != {int}:
        for token_id in token_ids:
            if isinstance(token_id, bool) or not isinstance(token_id, Integral):
                raise RequestError(f"The prompt must hold token ids, got {token_id!r:.60}.", "prompt")
        token_ids = tuple(map(int, token_ids))
    worst = min(token_ids) if min(token_ids) < 0 else max(token_ids)
    if not 0 <= worst < limits.vocab_size:
        raise RequestError(
            f"The prompt holds token id {_digits(worst)}, but ids go from 0 to {limits.vocab_size - 1}: the vocabulary "
            f"has {limits.vocab_size} tokens.",
            "prompt",
        )
    cut = params.truncate_prompt_tokens
    if cut == -1:
        # The model's limit, less what is asked to be generated. Whoever asks for as much as the context or more asks
        # for what the prompt leaves: that takes no more of it than the first token needs.
        asked = params.max_tokens
        cut = limits.max_model_len - (asked if asked is not None and asked < limits.max_model_len else 1)
    return token_ids if cut is None else token_ids[-cut:]


def _check_beams(params: SamplingParams, beams: BeamSearchParams, num_stops: int, limits: Limits) -> None:
    for name in _NOT_WITH_BEAMS:
        if getattr(params, name) not in (getattr(_DEFAULTS, name), {}):
            raise RequestError(f"{name} cannot be combined with a beam search; leave it out.", name)
    if params.n > beams.beam_width:
        raise RequestError(f"A beam search has a width of at least n={params.n}, got {beams.beam_width}.", "beam_width")
    if num_stops > MAX_BEAM_STOPS:
        raise RequestError(
            f"A beam search ends at up to {MAX_BEAM_STOPS} token ids, EOS among them; got {num_stops}.",
            "stop_token_ids",
        )
    if beams.beam_width + num_stops > limits.vocab_size:
        raise RequestError(
            f"A beam search of width {beams.beam_width} that ends at {num_stops} token ids needs a vocabulary of as "
            f"many together; it has {limits.vocab_size}.",
            "beam_width",
        )


def _digits(number: int) -> str:
    return str(number) if abs(number) < 10**30 else "of more than 30 digits"


def _seed(token_ids: tuple[int, ...], params: SamplingParams, server_seed: int | None) -> int:
    """64 bits: the client's; else fixed by the server's seed and what is asked, not when; else random.

    Those that are not the client's have 53 bits: they are told, and JavaScript's numbers hold no more.
    """
    if params.seed is not None:
        return params.seed % 2**64
    if server_seed is None:
        return secrets.randbits(53)
    bias = sorted((params.logit_bias or {}).items())
    content = [bias if name == "logit_bias" else getattr(params, name) for name in _SEEDED_BY]
    return int.from_bytes(sha256(ascii((server_seed, token_ids, content)).encode()).digest()[:8], "little") >> 11
