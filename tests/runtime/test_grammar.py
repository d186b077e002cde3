"""The native form of a vocabulary and the masks of grammars, against llguidance's own Python interface."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import llguidance
import numpy as np
import pytest
from llguidance.numpy import fill_next_token_bitmask

from octavo import _native
from octavo.runtime import grammar

LIBRARY = llguidance._lib.__file__
EOS = [256, 257]
WORDS = [bytes([byte]) for byte in range(256)] + [b"\xff</s>", b"\xff<end>"]
WORDS += [word.encode() for word in ("ab", "abc", " the", " a", '":', '"a"', "12", "é", "\n\n", "thought", " Bcd")]
GRAMMARS = [
    r"start: /([A-Z]?[a-z]{1,5}( [a-z]{1,3}){1,4}\. ){1,9}/",
    llguidance.LLMatcher.grammar_from_json_schema({"type": "object"}),
    'start: e\ne: t ("+" t)*\nt: /[0-9]{1,3}/ | "(" e ")"',
    'TEXT: /(.|\\n)*/\nthinking[lazy]: TEXT "</think>"\nstart: thinking ("yes" | "no")',
]


def cut(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture(scope="module")
def vocabulary() -> _native.GrammarVocabulary:
    return _native.GrammarVocabulary(LIBRARY, WORDS, EOS, cut, grammar.SLICES)


class Words:
    is_tokenizer_wrapper = True
    tokens = WORDS
    special_token_ids = EOS
    eos_token_id = EOS[0]
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return cut(text)


@pytest.mark.parametrize("text", GRAMMARS)
def test_masks_are_the_librarys_whatever_the_slices_threads_and_drafts(
    vocabulary: _native.GrammarVocabulary, text: str
) -> None:
    pool = _native.ThreadPool(2)
    other = llguidance.LLTokenizer(Words(), eos_token=EOS, slices=[])  # type: ignore[arg-type]
    start = _native.compile_grammar(vocabulary, text, **grammar.LIMITS)
    assert not start.error
    random.seed(1)
    width = -(-len(WORDS) // 32)
    mask = np.zeros((9, width), np.uint32)
    expected = np.zeros((1, width), np.int32)
    for _ in range(4):
        matcher, twin = start.copy(), llguidance.LLMatcher(other, text, log_level=0)
        known: list[tuple[np.ndarray[Any, Any], int]] = []
        for _ in range(25):
            fill_next_token_bitmask(twin, expected)
            rest = start.copy()
            _native.write_masks(pool, [(matcher, 2, ()), (rest, 0, ())], mask)
            assert (mask[2] == expected[0].view(np.uint32)).all()
            allowed = np.flatnonzero(np.unpackbits(mask[2].view(np.uint8), bitorder="little"))
            token = int(random.choice(allowed))
            if matcher.is_stopped or token in EOS:
                break
            assert matcher.count_allowed([token]) == 1 == twin.validate_tokens([token])
            known.append((mask[2].copy(), token))
            assert matcher.consume(token) and twin.consume_token(token)
            assert (matcher.is_stopped, matcher.is_accepting) == (twin.is_stopped(), twin.is_accepting())
        again = start.copy()
        drafts = [token for _, token in known[:8]]
        for _ in range(2):  # where it stands is as before
            mask[:] = 0
            _native.write_masks(pool, [(again, 0, drafts)], mask)
            assert all((mask[place] == known[place][0]).all() for place in range(len(drafts)))


def test_what_cannot_be_is_refused(vocabulary: _native.GrammarVocabulary) -> None:
    start = _native.compile_grammar(vocabulary, GRAMMARS[0], **grammar.LIMITS)
    width = -(-len(WORDS) // 32)
    for row, drafts, shape in ((1, (), (1, width)), (0, (97,), (1, width)), (0, (), (1, width + 1))):
        with pytest.raises(ValueError, match="array"):
            _native.write_masks(None, [(start, row, drafts)], np.zeros(shape, np.uint32))
    with pytest.raises(ValueError, match="NUL"):
        _native.compile_grammar(vocabulary, "start: /a\0/", **grammar.LIMITS)
    with pytest.raises(RuntimeError, match="nowhere"):
        _native.GrammarVocabulary("/nowhere.so", WORDS, EOS, cut, [])
    with pytest.raises(RuntimeError, match="EOS"):
        _native.GrammarVocabulary(LIBRARY, WORDS, [len(WORDS)], cut, [])
    assert not start.consume(ord("!")) and start.error


def test_other_threads_go_on_while_a_vocabulary_is_prepared() -> None:
    words = WORDS + [f"{number:x}".encode() for number in range(300, 60_000)]
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    _native.GrammarVocabulary(LIBRARY, words, EOS, cut, grammar.SLICES)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(began < at < ended for at in ticks) > 5


def test_a_forced_text_that_the_tokenizer_spells_in_another_way_is_cut_longest_first() -> None:
    class Spacing:
        control_ids = frozenset(EOS)

        def encode_plain(self, text: str) -> list[int]:
            return [ord(" "), *text.encode()]

    cutter = grammar._Cutter(Spacing(), WORDS)  # type: ignore[arg-type]
    assert [WORDS[i] for i in cutter("abcab thé</s>")] == [
        b"abc", b"ab", b" ", b"t", b"h", "é".encode(), b"<", b"/", b"s", b">"
    ]  # fmt: skip
