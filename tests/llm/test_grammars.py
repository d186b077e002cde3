"""Compiling constraints: what several wait for together, and an installation that cannot do it."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from server_world import wait_until

from octavo import LLM, SamplingParams, StructuredOutputsParams, _native
from octavo.errors import EngineFullError, RequestError
from octavo.runtime import grammar, grammars
from octavo.runtime.grammar import GrammarCompiler
from octavo.structured_outputs import CallGrammar
from octavo.text.reasoning import THINK, Preamble

PROMPT = [72, 105]
ASKED = StructuredOutputsParams(regex="[ab]{7}")
OTHERS = [StructuredOutputsParams(regex=f"c{{{i}}}") for i in range(1, 1 + grammar.COMPILE_THREADS)]


class Gate:
    """Holds up all that is compiled until it is opened, and knows what was."""

    def __init__(self, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiler = compiler
        self.begun: list[str] = []
        self.open = threading.Event()
        self._threads = ThreadPoolExecutor(8)
        self._monkeypatch = monkeypatch
        compile_grammar = _native.compile_grammar

        def gated(vocabulary: Any, text: str, **limits: Any) -> Any:
            self.begun.append(text)
            assert self.open.wait(60)
            return compile_grammar(vocabulary, text, **limits)

        monkeypatch.setattr(_native, "compile_grammar", gated)

    def waits(self, params: StructuredOutputsParams, seconds: float = 60) -> Any:
        """Asks on another thread, and returns once that waits."""
        self._monkeypatch.setattr(grammar, "COMPILE_SECONDS", seconds)
        waiting = self.num_waiting(params)
        future = self._threads.submit(self.compiler.compile, params)
        wait_until(lambda: self.num_waiting(params) > waiting or future.done())
        return future

    def num_waiting(self, params: StructuredOutputsParams) -> int:
        compilation = self.compiler._compiled.get((params, None, None))
        return compilation.num_waiting if compilation else 0

    def fill(self) -> list[Any]:
        """Takes all threads that compile."""
        held = [self.waits(params) for params in OTHERS]
        wait_until(lambda: len(self.begun) == len(OTHERS))
        return held


@pytest.fixture
def gate(make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(make()._loaded().grammars.compiler(), monkeypatch)
    yield gate
    gate.open.set()
    gate._threads.shutdown()


def test_who_stops_waiting_takes_nothing_from_the_others(gate: Gate) -> None:
    held = gate.fill()
    patient = gate.waits(ASKED)
    with pytest.raises(EngineFullError, match="turn did not come"):
        gate.waits(ASKED, 0.05).result()
    assert not patient.done() and gate.num_waiting(ASKED) == 1
    gate.open.set()
    compiled = patient.result(60)
    assert gate.compiler.compile(ASKED) is compiled
    assert len(gate.begun) == len(OTHERS) + 1 and all(future.result(60) for future in held)


def test_what_nobody_waits_for_is_not_begun(gate: Gate) -> None:
    held = gate.fill()
    for _ in range(2):
        with pytest.raises(EngineFullError):
            gate.waits(ASKED, 0.05).result()
    gate.open.set()
    assert all(future.result(60) for future in held) and len(gate.begun) == len(OTHERS)
    gate.waits(ASKED).result(60)  # and may be asked for again
    assert len(gate.begun) == len(OTHERS) + 1


def test_what_has_begun_is_kept_though_nobody_waits(gate: Gate) -> None:
    with pytest.raises(RequestError, match=r"more than 0\.05 s to compile"):
        gate.waits(ASKED, 0.05).result()
    later = gate.waits(ASKED)
    gate.open.set()
    assert gate.compiler.compile(ASKED) is later.result(60)
    assert len(gate.begun) == 1


@pytest.mark.parametrize(
    ("asked", "again"),
    [
        ({"json": {"type": "object"}}, 0),
        ({"json_object": True}, 0),
        ({"choice": ["a", "b"]}, 0),
        ({"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}}, 0),
        ({"regex": "[ab]{7}"}, 0),
        ({"grammar": 'start: "a"'}, 0),
        ({"regex": " ?[ab]"}, 1),  # only once it is compiled is it known to begin with white space
        ({"grammar": 'start: "\\n\\n\\n\\n\\na" | "b"'}, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("inside", [False, True])
def test_after_reasoning_no_more_is_compiled_than_is_needed(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], again: int, inside: bool
) -> None:
    gate = Gate(make()._loaded().grammars.compiler(), monkeypatch)
    gate.open.set()
    params = StructuredOutputsParams(**asked)
    compiled = [gate.compiler.compile(params, Preamble(THINK, inside)) for _ in range(2)]
    assert len(gate.begun) == again + 1 and compiled[0] is compiled[1]
    gate.compiler.compile(params)
    assert len(gate.begun) == again + 2


def test_calls_beside_an_answer_are_compiled_with_it_and_kept(gate: Gate) -> None:
    gate.open.set()
    answer = StructuredOutputsParams(json={"const": 1})
    calls = [CallGrammar(grammar=f'start: "<call>" "{name}"') for name in "ab"]
    compiled = [gate.compiler.compile(answer, None, one) for one in (*calls, *calls)]
    assert compiled[:2] == compiled[2:] and compiled[0] is not compiled[1] and len(gate.begun) == 2
    for one, letter in zip(compiled, "ab", strict=False):
        for text, allowed in ((f"<call>{letter}", True), ("1", True), ("<call>c", False), ("1<", False)):
            assert (one.matcher().count_allowed(list(text.encode())) == len(text)) is allowed
    with pytest.raises(RequestError, match="unknown name") as caught:
        gate.compiler.compile(answer, None, CallGrammar(grammar="start: x"))
    assert caught.value.param == "tools"


BEGINNINGS: list[dict[str, Any]] = [
    *(
        {"regex": text}
        for text in (r"\n{4}a", r"(\n\n\n\nx|y)", r"[ \t]+x", r"\r\nx", r"\fx", r"[^a]b", "a?", "", r"\n*", "[^ \n]")
    ),
    {"grammar": 'start: A B\nA: /[\\n ]{0,2}/\nB: "x"'},
    {"grammar": 'start: (s "b")?\ns: "\\n" s | ""'},
    {"grammar": "start: a\na[lazy]: /[ \\n]*x/"},
    {"grammar": 'root ::= ws "a"\nws ::= [ \\t]*'},
    {"grammar": 'start: "b"\n%ignore / +/'},
]


@pytest.mark.parametrize("inside", [False, True])
def test_what_an_answer_may_begin_with_is_the_same_after_reasoning(make: Callable[..., LLM], inside: bool) -> None:
    compiler = make()._loaded().grammars.compiler()
    for asked in BEGINNINGS:
        params = StructuredOutputsParams(**asked)
        after = compiler.compile(params, Preamble(THINK, inside))
        assert after.keeps_space is compiler.compile(params).keeps_space, asked


@pytest.mark.parametrize("inside", [False, True])
def test_a_first_token_that_takes_too_long_is_refused_after_reasoning_too(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """What takes long is the answer's first token: the reasoning's is free text."""
    seconds = iter(range(0, 1000, 10))
    compiler = make()._loaded().grammars.compiler()
    write_masks, places = _native.write_masks, []

    def written(pool: Any, rows: Any, mask: Any) -> None:
        write_masks(pool, rows, mask)
        places.append(np.unpackbits(mask.view(np.uint8)).sum())

    monkeypatch.setattr(_native, "write_masks", written)
    compiler.compile(StructuredOutputsParams(choice=["red"]), Preamble(THINK, inside))
    assert 0 < places[-1] < 9  # the beginnings of one word
    monkeypatch.setattr(grammar.time, "thread_time", lambda: next(seconds))
    with pytest.raises(RequestError, match="first token alone takes"):
        compiler.compile(StructuredOutputsParams(choice=["blue"]), Preamble(THINK, inside))


@pytest.mark.parametrize(
    "asked",
    [
        {"json": {}},
        {"json": {"enum": [" a", 1]}, "whitespace_pattern": " ?"},
        {"json": {"type": "string", "pattern": "^ *$"}, "whitespace_pattern": "[ \n]+"},
        {"json": {"anyOf": [{"type": "array"}, {"type": "object"}]}, "disable_any_whitespace": True},
        {"json_object": True, "whitespace_pattern": "[ \n]*"},
        {"choice": ["a", " b"]},
        {"choice": ["a", "\nb"]},
        {"choice": ["a", "\tb", ""]},
        {"choice": ["a ", "b"]},
        {"choice": [""]},
    ],
    ids=str,
)
def test_what_may_begin_with_white_space_is_what_its_first_tokens_say(
    make: Callable[..., LLM], asked: dict[str, Any]
) -> None:
    llm = make()
    tokenizer = llm.get_tokenizer()
    compiled = llm._loaded().grammars.compiler().compile(StructuredOutputsParams(**asked))
    mask = np.zeros((1, compiler_words(llm)), np.uint32)
    compiled.write_masks([(compiled.matcher(), 0, ())], mask)
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    texts = [tokenizer.token_bytes(token_id) for token_id in map(int, allowed) if token_id < tokenizer.vocab_size]
    assert compiled.keeps_space == any(text[:1].isspace() for text in texts)


def compiler_words(llm: LLM) -> int:
    return llm._loaded().grammars.compiler()._mask_words


@pytest.mark.parametrize("installed", ["1.8.4", "1.10.0", "2.0", "0.9", "odd", None])
def test_another_version_is_told_at_start_and_never_tried(
    make: Callable[..., LLM], installed: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(grammars, "version", version)
    monkeypatch.setattr(grammar, "GrammarCompiler", pytest.fail)
    llm = make()
    assert llm.generate([PROMPT], SamplingParams(max_tokens=3), use_tqdm=False)  # the rest works
    assert "Structured output is not possible" in caplog.text
    for _ in range(2):
        with pytest.raises(RequestError, match=re.escape("llguidance>=1.9,<1.10")) as caught:
            llm.generate([PROMPT], SamplingParams(structured_outputs=ASKED), use_tqdm=False)
        assert caught.value.param == "structured_outputs" and (installed or "not installed") in str(caught.value)


def test_a_library_of_another_layout_is_loaded_once(make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    class Other:
        default_limits = (1, 2, 3)

        def __init__(self, *_: Any) -> None:
            tries.append(self)

    monkeypatch.setattr(_native, "GrammarVocabulary", Other)
    llm = make()
    assert not tries
    for _ in range(3):
        with pytest.raises(RequestError, match="another layout"):
            llm.generate([PROMPT], SamplingParams(structured_outputs=ASKED), use_tqdm=False)
    assert len(tries) == 1


def test_the_versions_are_those_that_are_installed_with_octavo() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"llguidance{grammars.RANGE}"' in project and grammars.version_fault() == ""


def test_what_is_refused_again_and_again_keeps_nothing_of_who_asked(make: Callable[..., LLM]) -> None:
    compiler = make()._loaded().grammars.compiler()
    lengths = []
    for _ in range(5):
        with pytest.raises(RequestError):
            compiler.compile(StructuredOutputsParams(json={"type": "array", "uniqueItems": True}))
        ((compilation),) = compiler._compiled.values()
        error = compilation.future.exception()
        assert error is not None
        lengths.append(len(list(traceback.walk_tb(error.__traceback__))))
    assert len(set(lengths)) == 1


def test_a_fault_of_ours_is_not_kept_as_the_constraints(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make()._loaded().grammars.compiler()
    with monkeypatch.context() as patch:
        patch.setattr(_native, "compile_grammar", lambda *asked, **limits: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            compiler.compile(ASKED)
    assert compiler.compile(ASKED).matcher() is not None
