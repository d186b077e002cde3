"""Reasoning before an answer: split off, streamed and whole alike, with tool calls after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from call_cases import TOOLS
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import LATER_REASONING_PARSERS, REASONING_PARSERS
from octavo.text.reasoning import FORMATS, THINK, is_open, recognise
from octavo.text.splitter import Reply, ReplyFormat
from octavo.text.tool_calls.formats import HERMES


def read(pieces: Iterable[str], **options: Any) -> tuple[str, str]:
    splitter = ReplyFormat(THINK, **options).splitter()
    events = [event for piece in pieces for event in splitter.feed(piece)] + splitter.finish()
    reply = Reply.of(events)
    return reply.reasoning, reply.content


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nbecause", False, "why", "because"),
        ("\n<think>why</think>", False, "why", ""),
        ("why\nnot\n</think>\n\nbecause\n", True, "why\nnot", "because\n"),
        ("why", True, "why", ""),
        ("<think>why </thin", False, "why </thin", ""),
        ("<think></think>because", False, "", "because"),
        ("plain <think>no</think>", False, "", "plain <think>no</think>"),
        ("  plain", False, "", "  plain"),
        ("<thing>", False, "", "<thing>"),
        ("<thi", False, "", "<thi"),
        ("", False, "", ""),
        ("", True, "", ""),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
    ],
)
def test_reasoning_is_split_off(text: str, inside: bool, reasoning: str, content: str) -> None:
    for place in range(len(text) + 1):
        assert read([text[:place], text[place:]], inside=inside) == (reasoning, content)
    assert read(text, inside=inside) == (reasoning, content)


@given(reasoning=st.text("ab \n", max_size=4), content=st.text("ab \n", max_size=6), inside=st.booleans())
def test_content_whose_white_space_counts_comes_as_it_is(reasoning: str, content: str, inside: bool) -> None:
    text = f"{'' if inside else '<think>'}{reasoning}</think>{content}"
    for place in range(len(text) + 1):
        got = read([text[:place], text[place:]], inside=inside, keeps_space=True)
        assert got == (reasoning.strip(), content)


def test_what_follows_white_space_that_counts_is_no_reasoning() -> None:
    text = "\n<think>a</think> b"
    for place in range(len(text) + 1):
        assert read([text[:place], text[place:]], inside=False, keeps_space=True) == ("", text)


@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<think", ">", "</", " ", "\n", "a", "é"]), max_size=20),
    inside=st.booleans(),
)
def test_how_the_text_is_cut_changes_nothing_and_nothing_is_lost(pieces: list[str], inside: bool) -> None:
    text = "".join(pieces)
    reasoning, content = read([text], inside=inside)
    assert read(pieces, inside=inside) == read(text, inside=inside) == (reasoning, content)
    without = text.replace("<think>", "", int(not inside)).replace("</think>", "", 1)
    if not reasoning and content == text:
        return
    assert "".join((reasoning + content).split()) == "".join(without.split())


def test_reasoning_can_be_left_out() -> None:
    assert read("<think>why</think>because", include_reasoning=False) == ("", "because")


def test_calls_follow_reasoning_and_calls_within_it_are_none() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    splitter = ReplyFormat(THINK, calls=HERMES, tools=TOOLS).splitter()
    reply = Reply.of([*splitter.feed(f"<think>perhaps {call}</think>\n{call}"), *splitter.finish()])
    assert (reply.reasoning, reply.content) == (f"perhaps {call}", "")
    assert [call.name for call in reply.calls] == ["now"]


def test_templates_give_reasoning_away() -> None:
    assert recognise("{{ content.split('</think>')[-1] }}") is THINK
    assert recognise("[THINK]") is FORMATS["mistral"]
    assert recognise("{{ messages }}") is None


def test_a_text_can_end_within_reasoning() -> None:
    assert is_open("<think>a", THINK) and is_open("<think>a</think><think>", THINK)
    assert not is_open("<think>a</think>", THINK) and not is_open("", THINK)


def test_the_flag_knows_them_all() -> None:
    assert set(REASONING_PARSERS) == {"auto", "none", *FORMATS}
    assert not set(LATER_REASONING_PARSERS) & set(FORMATS)
