"""Structured output: constraints compiled by llguidance, and which tokens they allow next. Imported when first used."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cached_property
from typing import Any

import llguidance
import llguidance._lib
import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.errors import ConfigError, EngineFullError, RequestError
from octavo.runtime.constraint import grammar_of, reply_grammar, starts_with_space
from octavo.runtime.grammars import unusable
from octavo.structured_outputs import CallGrammar, StructuredOutputsParams
from octavo.text.lark import WIDEST
from octavo.text.markers import SPACE
from octavo.text.reasoning import Preamble
from octavo.text.tokenizer import Tokenizer

COMPILE_SECONDS = 10.0
COMPILE_THREADS = 2
# The compiler descends once for each rule or reference of a chain: 400 of them took less than 8 MiB.
COMPILE_STACK_BYTES = 2**28
MAX_COMPILED = 32
MAX_REASON_CHARACTERS = 500
# Of the processor's time, for one mask of one sequence. Text costs 0.1 ms, a busy schema 1 ms; ambiguous grammars and
# great repetitions take longer with every token, and all sequences of the step wait for them.
MAX_FIRST_MASK_SECONDS = 0.25
SLOW_MASK_SECONDS = 0.02
MAX_SLOW_SECONDS = 1.0  # that slow masks of one sequence may take together
SLOW_STEP_SECONDS = 0.1
WATCHED_STEPS = 16
# The library's are 3 to 10 times as high: a regular expression with a million repetitions took 7 s for its first mask.
LIMITS = {
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 10_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 50_000,
}
# Parts of the vocabulary that a mask takes as a whole where a state allows all of their tokens: words by their length,
# which are most of what a regular expression with classes of letters lets through, and the texts of JSON strings. Parts
# for words of up to 3, 6, 9 and any letters took 1.5 times as long for words that are bounded: of the first part that
# does not fit, all tokens are walked through. Each part adds 1/20 to the time that a vocabulary takes to prepare.
SLICES = [
    *(f"{space}[a-z]{{{length}}}" for space in ("", " ") for length in range(1, 13)),
    *llguidance.LLTokenizer.general_slices()[1:3],
]
LIMIT_NAMES = (  # as they stand in the C interface
    "max_items_in_row", "initial_lexer_fuel", "step_lexer_fuel", "step_max_items", "max_lexer_states",
    "max_grammar_size", "precompute_large_lexemes", "verbose_errors",
)  # fmt: skip
SPACES = tuple(character.encode() for character in SPACE)
SPECIAL = b"\xff"  # in front of the text of a token that is no text
TOO_SLOW = "Its grammar takes too long: {:.1f} s were spent on choosing its tokens. Use a simpler one."


# What a reply is held to, the reasoning before it, the calls that may be made in its place.
Asked = tuple[StructuredOutputsParams, Preamble | None, CallGrammar | None]


class Compilation:
    """A grammar that is being compiled, or has been, and how many wait for it."""

    def __init__(self, future: Future[CompiledGrammar]) -> None:
        self.future = future
        self.num_waiting = 0

    @property
    def is_useless(self) -> bool:
        future = self.future
        if not future.done():
            return False
        if future.cancelled():
            return True
        error = future.exception()
        return future.result().is_worn if error is None else not isinstance(error, RequestError)


class GrammarCompiler:
    """Compiles constraints for one model, and keeps the last ones. Safe to share between threads."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int], pool: _native.ThreadPool
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(token_id for token_id in eos_token_ids if token_id < vocab_size)
        if not self._eos_token_ids:
            raise ConfigError("the model has no end-of-sequence token, so that no such reply could end.")
        self._vocabulary, self._cutter = _vocabulary(tokenizer, vocab_size, self._eos_token_ids)
        self._mask_words = -(-vocab_size // 32)
        begins = np.zeros(32 * self._mask_words, np.bool_)
        begins[:vocab_size] = [tokenizer.token_bytes(token_id).startswith(SPACES) for token_id in range(vocab_size)]
        self._spaces = np.packbits(begins, bitorder="little").view("<u4")  # the tokens that begin with white space
        self._masks = MaskWriter(pool)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Asked, Compilation] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def compile(
        self,
        params: StructuredOutputsParams,
        reasoning: Preamble | None = None,
        calls: CallGrammar | None = None,
        given_up: Future[None] | None = None,
    ) -> CompiledGrammar:
        """Blocks until it is compiled, to hold after reasoning, unless the reply is one of `calls`.

        RequestError: why it cannot be enforced. EngineFullError: its turn did not come in time. CancelledError:
        `given_up` was done before it.
        """
        compilation = self._join((params, reasoning, calls))
        try:
            ends: list[Future[Any]] = [compilation.future, *filter(None, [given_up])]
            wait(ends, COMPILE_SECONDS, FIRST_COMPLETED)
            if given_up is not None and given_up.done():
                raise CancelledError
            error = compilation.future.exception(0)
            if isinstance(error, RequestError):
                # One of its own for each who asked: the one that is kept would keep the frames of all of them.
                raise RequestError(str(error), error.param)
            return compilation.future.result()
        except FutureTimeoutError:
            if not (compilation.future.running() or compilation.future.done()):
                raise EngineFullError(
                    f"Constraints of other requests took all of {COMPILE_SECONDS:g} s to compile, so that this one's "
                    "turn did not come. Try again."
                ) from None
            raise RequestError(
                f"structured_outputs took more than {COMPILE_SECONDS:g} s to compile. Use a simpler one.",
                "structured_outputs",
            ) from None
        finally:
            self._leave(compilation)

    def _join(self, asked: Asked) -> Compilation:
        with self._lock:
            compilation = self._compiled.pop(asked, None)
            if compilation is None or compilation.is_useless:
                while len(self._compiled) >= MAX_COMPILED:
                    self._compiled.popitem(last=False)
                compilation = Compilation(self._submit(asked))
            compilation.num_waiting += 1
            self._compiled[asked] = compilation
            return compilation

    def _leave(self, compilation: Compilation) -> None:
        """The last to leave takes what has not begun with it; what has begun goes on, within the compiler's limits."""
        with self._lock:
            compilation.num_waiting -= 1
            if not compilation.num_waiting:
                compilation.future.cancel()

    def _submit(self, asked: Asked) -> Future[CompiledGrammar]:
        """The thread that this may start gets a stack of its own size: it is set for all threads that start."""
        before = threading.stack_size(COMPILE_STACK_BYTES)
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(COMPILE_THREADS, "grammar")
            return self._pool.submit(self._compile, *asked)
        finally:
            threading.stack_size(before)

    def _compile(
        self, params: StructuredOutputsParams, reasoning: Preamble | None, calls: CallGrammar | None
    ) -> CompiledGrammar:
        """White space may part an answer from reasoning where none begins with some. Where only what is compiled says
        whether one does, it is compiled to be parted, and once more if one does.
        """
        answer, keeps_space = self._text(params), starts_with_space(params)
        try:
            asked, instead = (params, None) if calls is None else (calls, self._text(calls))
            start, mask = self._start(asked, answer, instead, reasoning, parted=not keeps_space)
        except RequestError:
            if calls is not None:
                self._compile(params, reasoning, None)  # fails where the calls are not at fault
            raise
        if keeps_space is None:
            keeps_space = bool((mask & self._spaces).any())
            if keeps_space and reasoning is not None:
                start, _ = self._start(asked, answer, instead, reasoning, parted=False)
        return CompiledGrammar(start, self._eos_token_ids, self._masks, keeps_space)

    def _text(self, params: StructuredOutputsParams) -> str:
        text = grammar_of(params, self._tokenizer.control_texts)
        if "\0" in text:
            raise RequestError(f"{params.field} holds a NUL character.", "structured_outputs")
        return text

    def _start(
        self,
        asked: StructuredOutputsParams,
        answer: str,
        calls: str | None,
        reasoning: Preamble | None,
        parted: bool,
    ) -> tuple[_native.GrammarMatcher, NDArray[np.uint32]]:
        """The beginning of a grammar, and which tokens may be the first of an answer: after reasoning that has nothing
        in it, and as much white space as may part them.
        """
        text = reply_grammar(answer, calls, reasoning, self._tokenizer.control_texts, parted)
        start = _native.compile_grammar(self._vocabulary, text, **LIMITS)
        first = start.copy()
        if reasoning is not None and not start.error:
            for token_id in self._before(reasoning, parted):
                first.consume(token_id)
        mask = np.zeros((1, self._mask_words), np.uint32)
        began = time.thread_time()
        if not first.error:
            _native.write_masks(None, [(first, 0, ())], mask)
        spent = time.thread_time() - began
        reason = first.error
        if not reason and spent > MAX_FIRST_MASK_SECONDS:
            reason = f"the choice of its first token alone takes {spent:.1f} s"
        if reason:
            raise RequestError(f"{asked.field} cannot be enforced: {_brief(reason)}", asked.field.partition(".")[0])
        return start, mask

    def _before(self, reasoning: Preamble, parted: bool) -> list[int]:
        """The tokens of reasoning without a thought, and of the white space after it."""
        texts = [reasoning.format.end] if reasoning.inside else [reasoning.format.begin, reasoning.format.end]
        texts += [WIDEST] if parted else []
        control_texts = self._tokenizer.control_texts
        return [
            token_id
            for text in texts
            for token_id in ([control_texts[text]] if text in control_texts else self._cutter(text))
        ]


def _vocabulary(
    tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]
) -> tuple[_native.GrammarVocabulary, _Cutter]:
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
    cutter = _Cutter(tokenizer, tokens)
    special = tokenizer.control_ids | eos_token_ids
    marked = [SPECIAL + token if token_id in special else token for token_id, token in enumerate(tokens)]
    try:
        vocabulary = _native.GrammarVocabulary(llguidance._lib.__file__, marked, sorted(eos_token_ids), cutter, SLICES)
    except RuntimeError as error:
        raise ConfigError(unusable(str(error))) from None
    known = llguidance.LLParserLimits()
    if vocabulary.default_limits != tuple(getattr(known, name) for name in LIMIT_NAMES):
        raise ConfigError(unusable("its C interface has another layout."))
    return vocabulary, cutter


class _Cutter:
    """How a text that a grammar forces is cut into tokens."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def __call__(self, text: str) -> list[int]:
        """As the model's tokenizer cuts it where that gives back the text; one that adds a space in front does not."""
        token_ids = self._tokenizer.encode_plain(text)
        if all(token_id < len(self._tokens) for token_id in token_ids):
            spelled = b"".join(self._tokens[token_id] for token_id in token_ids)
            if spelled == text.encode():
                return token_ids
        return self._longest_first(text.encode())

    def _longest_first(self, data: bytes) -> list[int]:
        token_ids, at = [], 0
        while at < len(data):
            end = min(len(data), at + self._longest)
            while end > at + 1 and data[at:end] not in self._ids:
                end -= 1
            if data[at:end] not in self._ids:
                break  # what a vocabulary cannot spell is not forced
            token_ids.append(self._ids[data[at:end]])
            at = end
        return token_ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        special = self._tokenizer.control_ids
        return {token: i for i, token in reversed(list(enumerate(self._tokens))) if token and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)


class CompiledGrammar:
    """A constraint at its beginning, and what all its sequences have in common."""

    def __init__(
        self, start: _native.GrammarMatcher, eos_token_ids: frozenset[int], masks: MaskWriter, keeps_space: bool
    ) -> None:
        self._start = start
        self.keeps_space = keeps_space
        self.eos_token_ids = eos_token_ids
        self.write_masks = masks.write
        self.is_worn = False  # a limit was met, perhaps of the lexer that all share: not to be used again

    def matcher(self) -> GrammarMatcher:
        return GrammarMatcher(self, self._start.copy())


class GrammarMatcher:
    """Where one sequence stands."""

    __slots__ = ("grammar", "ll", "slow_seconds")

    def __init__(self, grammar: CompiledGrammar, ll: _native.GrammarMatcher) -> None:
        self.grammar = grammar
        self.ll = ll
        self.slow_seconds = 0.0  # spent on masks that took long

    @property
    def is_complete(self) -> bool:
        return self.ll.is_stopped

    def accept(self, token_id: int) -> bool:
        if token_id in self.grammar.eos_token_ids and self.ll.is_accepting:
            return True
        # A limit that is met here, at an allowed token, is told with the next mask, if one is wanted.
        if not self.ll.consume(token_id) and not self.fault():
            raise ValueError(f"The grammar does not allow token {token_id}.")
        return False

    def count_allowed(self, token_ids: Sequence[int]) -> int:
        end = next((i for i, token_id in enumerate(token_ids) if token_id in self.grammar.eos_token_ids), None)
        return self.ll.count_allowed(token_ids[:end]) if not self.ll.is_stopped else 0

    def fault(self) -> str:
        """Why no mask of this matcher counts any more; "" where they do."""
        reason = self.ll.error
        if reason:
            self.grammar.is_worn = True
            return f"Its grammar failed: {_brief(reason)}"
        return TOO_SLOW.format(self.slow_seconds) if self.slow_seconds > MAX_SLOW_SECONDS else ""


class MaskWriter:
    """Writes the masks of a step on the threads of the pool, with the interpreter's lock released.

    A step that takes long is followed by some whose masks are computed and timed one by one: a sequence whose masks
    are slow may spend so much time and no more. It is the processor's time, which a busy machine does not change.
    """

    def __init__(self, pool: _native.ThreadPool) -> None:
        self._pool = pool
        self._watched_steps = 0

    def write(self, rows: Sequence[tuple[GrammarMatcher, int, Sequence[int]]], mask: Any) -> dict[int, str]:
        for _, row, drafts in rows:
            if drafts:
                mask[row : row + len(drafts) + 1] = 0xFFFF_FFFF  # those after an end are left out
        entries = [(matcher.ll, row, drafts) for matcher, row, drafts in rows]
        if self._watched_steps:
            self._watched_steps -= 1
            for (matcher, _, _), entry in zip(rows, entries, strict=True):
                began = time.thread_time()
                _native.write_masks(None, [entry], mask)
                spent = time.thread_time() - began
                if spent > SLOW_MASK_SECONDS:
                    matcher.slow_seconds += spent
        else:
            started = time.perf_counter()
            _native.write_masks(self._pool if len(entries) > 1 else None, entries, mask)
            if time.perf_counter() - started > SLOW_STEP_SECONDS:
                self._watched_steps = WATCHED_STEPS
        return {place: fault for place, (matcher, _, _) in enumerate(rows) if (fault := matcher.fault())}


def _brief(reason: str) -> str:
    """The compiler's words without what follows them of its own state."""
    reason = reason.partition("<backtrace>")[0].partition("<non-verbose/>")[0].strip()
    return reason if len(reason) <= MAX_REASON_CHARACTERS else reason[: MAX_REASON_CHARACTERS - 3] + "..."
