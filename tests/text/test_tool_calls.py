"""Calls in the text of replies: every format, however the text is cut; what is no call stays text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from call_cases import CASES, TOOLS, Case
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import LATER_TOOL_CALL_PARSERS, TOOL_CALL_PARSERS
from octavo.text.events import CallArguments, CallBegin, Content
from octavo.text.splitter import Reply, ReplyFormat
from octavo.text.tool_calls.formats import FORMATS, SIGNS, call_format, recognise

ALL = sorted(FORMATS)


def read(name: str, pieces: Iterable[str], **options: Any) -> Reply:
    splitter = ReplyFormat(calls=FORMATS[name], tools=TOOLS, **options).splitter()
    events = [event for piece in pieces for event in splitter.feed(piece)] + splitter.finish()
    begun = [event.index for event in events if isinstance(event, CallBegin)]
    assert begun == list(range(len(begun)))
    assert all(event.text for event in events if isinstance(event, Content | CallArguments))
    return Reply.of(events)


def said(reply: Reply) -> tuple[str, list[tuple[str, str]]]:
    return reply.content, [(call.name, call.arguments) for call in reply.calls]


def cut(text: str, places: Iterable[int]) -> list[str]:
    return [text[i:j] for i, j in pairwise([0, *sorted({p % (len(text) + 1) for p in places}), len(text)])]


def ids(case: Case) -> str:
    return f"{case.format}-{CASES.index(case)}"


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_each_format_is_read(case: Case) -> None:
    reply = read(case.format, [case.text])
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == case.calls
    assert reply.content == case.content
    assert len({call.id for call in reply.calls}) == len(reply.calls)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_how_the_text_is_cut_changes_nothing(case: Case) -> None:
    whole = said(read(case.format, [case.text]))
    assert said(read(case.format, case.text)) == whole
    for place in range(len(case.text)):
        assert said(read(case.format, cut(case.text, [place]))) == whole


@given(data=st.data())
def test_nor_do_several_cuts_or_an_early_end(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    text = case.text[: data.draw(st.integers(0, len(case.text)))]
    places = data.draw(st.lists(st.integers(0, 10**4), max_size=12))
    eager = data.draw(st.booleans())
    whole, pieces = read(case.format, [text], forced=eager), read(case.format, cut(text, places), forced=eager)
    assert said(whole) == said(pieces)
    for call in whole.calls[: -1 if eager else None]:
        json.loads(call.arguments)


MALFORMED = [
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": }}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "x"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1.}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": +1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1-2}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "\\x"}}</tool_call>'),
    ("hermes", "<tool_call>hello there"),
    ("hermes", "a <tool_call> b </tool_call> c <tool"),
    ("hermes", "a <tool_cal"),
    ("hermes", "<tool_call>" + "[" * 100),
    ("llama3_json", '{"name": "Ann", "age": 3}'),
    ("llama3_json", 'Here: {"name": "now", "parameters": {}}'),
    ("generic", "[1, 2] is a list\n"),
    ("generic", "{"),
    ("mistral", "[TOOL_CALLS]nothing[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]now[ARG]{}"),
    ("deepseek_v3", "<\uff5ctool▁calls▁begin\uff5c> then text"),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n1"),
    ("pythonic", "[now(1)]"),
    ("pythonic", "[now(a=b)]"),
    ("pythonic", "[now(a=0x10)]"),
    ("functiongemma", "<start_function_call>call:now{a:<escape>x"),
    ("glm45", "<tool_call>later\n</tool_call>"),
]


@pytest.mark.parametrize(("name", "text"), MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_no_call_stays_text(name: str, text: str) -> None:
    for pieces in ([text], text):
        assert said(read(name, pieces)) == (text, [])


def test_a_good_call_after_a_bad_one_is_a_call() -> None:
    bad = '<tool_call>{"name" '
    reply = read("hermes", bad + '<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert said(reply) == (bad.strip(), [("now", "{}")])
    good_first = '<tool_call>{"name": "now", "arguments": {}}</tool_call> <tool_call>{"name": "other"}'
    assert said(read("hermes", good_first)) == ('<tool_call>{"name": "other"}', [("now", "{}")])


def test_a_whole_call_counts_without_its_closing_marker() -> None:
    assert said(read("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n')) == ("", [("now", "{}")])


def test_line_feeds_that_a_model_forgot_to_escape_are_escaped() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "a\n\tb"}}</tool_call>'
    (call,) = read("hermes", text).calls
    assert json.loads(call.arguments) == {"city": "a\n\tb"}


def test_arguments_are_the_model_s_own_text() -> None:
    text = '{"city":"\\u00e9",  "days": 1.50, "days": 12345678901234567890}'
    (call,) = read("hermes", f'<tool_call>{{"name": "get_weather", "arguments": {text}}}</tool_call>').calls
    assert call.arguments == text


@pytest.mark.parametrize("value", ["1" * 300, "[" * 70 + "]" * 70])
def test_numbers_may_be_long_and_lists_deep(value: str) -> None:
    (call,) = read("hermes", f'<tool_call>{{"name": "now", "arguments": {{"a": {value}}}}}</tool_call>').calls
    assert call.arguments == f'{{"a": {value}}}'


def test_calls_beyond_the_most_are_passed_over() -> None:
    for case in CASES:
        reply, all_of_it = read(case.format, case.text, most_calls=1), read(case.format, case.text)
        assert said(reply) == (all_of_it.content, said(all_of_it)[1][:1])


def test_eager_calls_are_told_as_they_come() -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
    splitter = ReplyFormat(calls=FORMATS["hermes"], tools=TOOLS, forced=True).splitter()
    counts = [sum(isinstance(event, CallArguments) for event in splitter.feed(char)) for char in text]
    assert sum(counts) > 20
    cut_short = read("hermes", text[: text.index(', "days"')], forced=True)
    assert said(cut_short) == ("", [("get_weather", '{"city": "Paris"')])


alphabet = st.sampled_from(
    [*(marker for f in FORMATS.values() for marker in f.texts), "```json\n", "functions.now:0", "call:now",
     "now", "get_weather", '"name"', '"arguments"', '"parameters"', ": ", ", ", "{", "}", "[", "]", "(", ")", '"', "'",
     "\\", "\\u12", "1", "-", "e", "true", "null", "=", ">", "</parameter>", "<parameter=", "</function>", " ", "\n",
     "word", "é", ";", "<escape>", "a=", "<"]
)  # fmt: skip


@given(name=st.sampled_from(ALL), pieces=st.lists(alphabet, max_size=40), eager=st.booleans())
def test_no_text_raises_or_is_lost(name: str, pieces: list[str], eager: bool) -> None:
    text = "".join(pieces)
    by_piece, by_char = read(name, pieces, forced=eager), read(name, text, forced=eager)
    assert said(by_piece) == said(by_char)
    if eager:
        assert by_char.content == ""
    else:
        assert by_char.calls or by_char.content == text
        assert all(isinstance(json.loads(call.arguments), dict) for call in by_char.calls)


def floods(name: str, size: int) -> list[str]:
    openers = [*FORMATS[name].markers, *FORMATS[name].bare]
    inside = {
        "<tool_call>": ["<function=get_weather><parameter=city>" + "</paramete" * (size // 10)],
        "[": ["now(a=" + "(" * size, "now(a='" + "\\" * size],
        "<start_function_call>": ["call:now{a:<escape>" + "<escap" * (size // 6)],
        "[TOOL_CALLS]": ["n" * size],
        "<\uff5ctool▁calls▁begin\uff5c>": ["<\uff5ctool▁call▁begin\uff5c>" + "<\uff5ctool▁sep" * size],
    }
    objects = ["[" * size, '{"name": "now", "arguments": {"a": "' + "x" * size]
    objects.append('{"name": "now", "arguments": {}},' * size)
    return [
        *(opener * (size // len(opener)) for opener in openers),
        *((opener[:-1] or " ") * (size // len(opener)) for opener in openers),
        *(opener + more[:size] for opener in openers for more in [*objects, *inside.get(opener, [])]),
        " " * size,
    ]


def steps(name: str, text: str) -> int:
    """Calls of functions, which do not depend on how busy the machine is."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        read(name, [text])
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ALL)
def test_floods_take_linear_time(name: str) -> None:
    for text, twice in zip(floods(name, 1000), floods(name, 2000), strict=True):
        assert steps(name, twice) < 2.2 * steps(name, text) + 100


def test_long_floods_and_calls_with_many_arguments_are_quick() -> None:
    many = '<tool_call>{"name": "get_weather", "arguments": {' + ", ".join(f'"k{i}": 1' for i in range(22))
    assert seconds("hermes", many[:150]) < 0.05
    for name in ("hermes", "mistral", "qwen3_coder", "pythonic"):
        for text in floods(name, 25_000):
            assert seconds(name, text) < 0.5


def seconds(name: str, text: str) -> float:
    """Of this thread alone, whatever else the machine does; the least of three: one may collect garbage."""
    spent = []
    for _ in range(3):
        start = time.thread_time()
        read(name, [text])
        spent.append(time.thread_time() - start)
    return min(spent)


class TestFormats:
    def test_the_flag_knows_them_all(self) -> None:
        assert set(TOOL_CALL_PARSERS) == {"auto", *FORMATS}
        assert not set(LATER_TOOL_CALL_PARSERS) & set(FORMATS)

    def test_no_marker_is_the_beginning_of_another(self) -> None:
        for known in FORMATS.values():
            markers = list(known.markers)
            assert not any(a != b and b.startswith(a) for a in markers for b in markers)

    @pytest.mark.parametrize(
        ("template", "name"),
        [
            ("{% if tools %}<tools>{{ tools }}</tools> <tool_call>{...}</tool_call>", "hermes"),
            ("{{ tools }} <tool_call>\n<function=f>\n<parameter=p>", "qwen3_coder"),
            ("{{ tools }}{{ '[TOOL_CALLS] ' }}", "mistral"),
            ("{{ tools }}<|python_tag|> ipython", "llama3_json"),
            ("{{ tools }}<|python_start|>", "llama4_pythonic"),
            ("{{ '<\uff5ctool▁calls▁begin\uff5c>' }}", "deepseek_v31"),
            ("<start_function_call>", "functiongemma"),
            ("{{ messages }}", "generic"),
        ],
    )
    def test_templates_give_their_format_away(self, template: str, name: str) -> None:
        assert recognise(template) == name

    def test_signs_stand_for_formats(self) -> None:
        assert {name for _, name in SIGNS} <= set(FORMATS)

    def test_a_grammar_follows_the_template(self) -> None:
        assert call_format("mistral", "[TOOL_CALLS] [").writing != call_format("mistral", "[ARGS]").writing
        assert call_format("deepseek_v31", "```json") == FORMATS["deepseek_v3"]

    def test_mistral_s_ids_are_nine_letters_or_digits(self) -> None:
        (call,) = read("mistral", "[TOOL_CALLS]now[ARGS]{}").calls
        assert len(call.id) == 9 and call.id.isalnum()

    @pytest.mark.parametrize("name", [name for name in ALL if FORMATS[name].writing])
    def test_what_a_grammar_writes_is_read(self, name: str) -> None:
        writing = FORMATS[name].writing
        assert writing is not None
        calls = [("now", "{}"), ("get_weather", '{"city": "a"}'), ("now", "{}")]
        written = writing.between.join(f"{writing.name}{n}{writing.arguments}{a}{writing.end}" for n, a in calls)
        for eager in (False, True):
            assert said(read(name, writing.first + written + writing.last, forced=eager)) == ("", calls)
