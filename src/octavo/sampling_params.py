"""How the tokens of a request are chosen: vLLM's names and defaults, checked when the object is made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any, Literal, cast

from octavo.errors import RequestError
from octavo.structured_outputs import StructuredOutputsParams

# What vLLM called it before.
GuidedDecodingParams = StructuredOutputsParams

# Bounds on what one request may ask for, so that its size in memory is known before it is queued.
MAX_N = 128
MAX_BEAM_STOPS = 32  # token ids that end a beam, EOS ids among them
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 256
# The least and the most that a field may be; the published schema says the same.
INTEGERS: Mapping[str, tuple[int, int]] = {
    "n": (1, MAX_N),
    "best_of": (1, MAX_N),
    "top_k": (-1, 2**63 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (0, 2**63 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "truncate_prompt_tokens": (-1, 2**63 - 1),
}
NUMBERS: Mapping[str, tuple[float, float]] = {
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, 1e6),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
}
LENGTH_PENALTIES = (-16.0, 16.0)  # they keep length ** length_penalty finite for any length
ABOVE = frozenset({"repetition_penalty"})  # greater than the least
NULLABLE = frozenset({"best_of", "seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"})
MAX_TOKEN_ID = 2**31 - 1
MAX_LOGIT_BIAS = 100.0
# Below this temperature the arg-max is taken: logits divided by less would overflow, and vLLM's rule of raising such
# values to 0.01 makes 1e-4 differ from greedy on near ties.
GREEDY_TEMPERATURE = 0.01


class OutputKind(Enum):
    """What each output of a stream holds."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new
    FINAL_ONLY = 2  # nothing until the end


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request; every value out of range raises `RequestError` naming the field.

    Documented choices where engines differ: temperature below 0.01, top_k = 1, top_p = 0 and min_p = 1 are greedy;
    top_k 0 and -1 mean no limit; seed None and -1 mean a fresh seed; max_tokens None means the rest of the context, 0
    computes the prompt only, and a value past the context is cut to it; presence and frequency penalties see
    generated tokens only, the repetition penalty sees the prompt too; neither stop ids nor stop strings act before
    min_tokens; truncate_prompt_tokens -1 cuts the prompt to the context less max_tokens, where max_tokens is below the
    context. Of best_of sequences the n with the highest mean log-probability per token are returned, the best first,
    and usage counts the tokens of these n.

    `kept_special_token_ids` stay in the text although special tokens are skipped: markers that the caller looks for.

    After construction `stop`, `stop_token_ids`, `allowed_token_ids`, `kept_special_token_ids` and `bad_words` hold
    tuples (None only for `allowed_token_ids`, where it means every token), and `logit_bias` a dict of int to float.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    kept_special_token_ids: Sequence[int] | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = OutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | Mapping[str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None  # vLLM's older name; None after construction

    def __post_init__(self) -> None:
        normal: dict[str, Any] = {
            "stop": _strings("stop", self.stop, MAX_STOP_STRINGS),
            "bad_words": _strings("bad_words", self.bad_words, MAX_BAD_WORDS),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKEN_IDS),
            "kept_special_token_ids": _token_ids("kept_special_token_ids", self.kept_special_token_ids, 1024),
            "logit_bias": _logit_bias(self.logit_bias),
        }
        for name, bounds in INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in NULLABLE:
                normal[name] = _integer(name, value, *bounds)
        for name, limits in NUMBERS.items():
            normal[name] = _number(name, getattr(self, name), *limits, above=name in ABOVE)
        normal["top_k"] = max(0, normal["top_k"])
        if self.seed == -1:
            normal["seed"] = None
        if self.allowed_token_ids is not None:
            normal["allowed_token_ids"] = _token_ids("allowed_token_ids", self.allowed_token_ids, 2**22)
            if not normal["allowed_token_ids"]:
                raise RequestError("allowed_token_ids must name at least one token id.", "allowed_token_ids")
        if self.truncate_prompt_tokens == 0:
            raise RequestError(
                "truncate_prompt_tokens must be at least 1, or -1 for the context limit, got 0.",
                "truncate_prompt_tokens",
            )
        if self.guided_decoding is not None:
            if self.structured_outputs is not None:
                raise RequestError("Give structured_outputs or guided_decoding, not both.", "guided_decoding")
            normal |= {"structured_outputs": self.guided_decoding, "guided_decoding": None}
        for name, value in normal.items():
            object.__setattr__(self, name, value)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {_show(getattr(self, name))}.", name)
        if self.spaces_between_special_tokens is not True:
            raise RequestError(
                "spaces_between_special_tokens can only be true: tokens are decoded as they are.",
                "spaces_between_special_tokens",
            )
        if not isinstance(self.output_kind, OutputKind):
            raise RequestError(f"output_kind must be an OutputKind, got {_show(self.output_kind)}.", "output_kind")
        for name in ("structured_outputs", "guided_decoding"):
            if not isinstance(getattr(self, name), StructuredOutputsParams | None):
                raise RequestError(f"{name} must be a StructuredOutputsParams, got {_show(getattr(self, name))}.", name)
        if self.num_sequences < self.n:
            raise RequestError(f"best_of must be at least n={self.n}, got {self.best_of}.", "best_of")
        if self.ranks and self.output_kind is OutputKind.DELTA:
            raise RequestError(
                f"best_of={self.best_of} with n={self.n} cannot be streamed: which sequences are best is known at "
                "their end. Leave out stream, or best_of.",
                "best_of",
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must not exceed max_tokens={self.max_tokens}, got {self.min_tokens}.", "min_tokens"
            )
        if self.stop_strings and not self.detokenize:
            raise RequestError("stop needs text, so that it cannot be combined with detokenize=false.", "stop")

    @property
    def num_sequences(self) -> int:
        """Sequences that are generated; `n` of them are shown."""
        return self.n if self.best_of is None else self.best_of

    @property
    def ranks(self) -> bool:
        """Whether the best of the sequences are to be found, by their log-probabilities."""
        return self.num_sequences > self.n

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as the tuple it is after construction."""
        return cast("tuple[str, ...]", self.stop)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token (ties: the lowest id) is always taken."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0 or self.min_p == 1.0

    @property
    def has_penalties(self) -> bool:
        """Whether a row's logits depend on which tokens came before, beyond the model."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """A beam search with vLLM's names and defaults, and the meaning that transformers gives them.

    The score of a hypothesis is its cumulative log-probability / its generated tokens (EOS too) ** length_penalty. The
    search ends when beam_width hypotheses have ended and, with early_stopping False, the best beam would not be better
    than the worst of them if it ended now; with "never", if it ended at its best length (max_tokens, where
    length_penalty is above 0); with True, at once. The temperature changes nothing, as in vLLM: the scores are the
    model's own log-probabilities.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        _integer("beam_width", self.beam_width, 1, MAX_N)
        _integer("max_tokens", self.max_tokens, 1, 2**63 - 1)
        _number("temperature", self.temperature, *NUMBERS["temperature"])
        _number("length_penalty", self.length_penalty, *LENGTH_PENALTIES)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise RequestError(
                f'early_stopping must be true, false or "never", got {_show(self.early_stopping)}.', "early_stopping"
            )
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {_show(getattr(self, name))}.", name)


def _show(value: object) -> str:
    """The value as an error message quotes it: short, whatever the client sent."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python prints
        text = f"a {type(value).__name__} too large to print"
    return text if len(text) <= 60 else text[:57] + "..."


def _integer(name: str, value: object, low: int, high: int) -> int:
    # bool is an int to Python, but n=true is a client's mistake; numpy integers are Integral.
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise RequestError(f"{name} must be an integer, got {_show(value)}.", name)
    number = int(value)
    if not low <= number <= high:
        raise RequestError(f"{name} must be between {low} and {high}, got {_show(number)}.", name)
    return number


def _number(name: str, value: object, low: float, high: float, *, above: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise RequestError(f"{name} must be a number, got {_show(value)}.", name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # The comparison is written so that NaN fails it.
    if not ((low < number if above else low <= number) and number <= high):
        bound = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be {bound}, got {_show(value)}.", name)
    return number


def _strings(name: str, value: object, most: int) -> tuple[str, ...]:
    if value is None:
        return ()
    entries = (value,) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple):
        raise RequestError(f"{name} must be a string or a list of strings, got {_show(value)}.", name)
    if len(entries) > most:
        raise RequestError(f"{name} may hold at most {most} strings, got {len(entries)}.", name)
    for entry in entries:
        if not isinstance(entry, str) or not entry:
            raise RequestError(f"{name} must hold non-empty strings, got {_show(entry)}.", name)
        if len(entry) > MAX_STOP_CHARACTERS:
            raise RequestError(
                f"{name} strings may have at most {MAX_STOP_CHARACTERS} characters, got one of {len(entry)}.", name
            )
    return tuple(entries)


def _token_ids(name: str, value: object, most: int) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple | set | frozenset | range):
        raise RequestError(f"{name} must be a list of token ids, got {_show(value)}.", name)
    if len(value) > most:
        raise RequestError(f"{name} may hold at most {most} token ids, got {len(value)}.", name)
    return tuple(_integer(name, entry, 0, MAX_TOKEN_ID) for entry in value)


def _logit_bias(value: object) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {_show(value)}.", "logit_bias")
    if len(value) > MAX_LOGIT_BIASES:
        raise RequestError(f"logit_bias may hold at most {MAX_LOGIT_BIASES} token ids, got {len(value)}.", "logit_bias")
    biases = {}
    for key, bias in value.items():
        # JSON has string keys only. Eleven digits hold any id: int() of a long string is quadratic.
        token_id = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 11 else key
        biases[_integer("logit_bias", token_id, 0, MAX_TOKEN_ID)] = _number(
            "logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS
        )
    return biases
