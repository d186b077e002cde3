"""Incremental detokenisation: pieces join to the whole, whatever the tokens and the chunks."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_tokenizers import byte_level, sentencepiece

from octavo.text.detokenizer import UNKNOWN, Detokenizer
from octavo.text.tokenizer import Tokenizer

TOKENIZERS = {"byte-level": byte_level(), "sentencepiece": sentencepiece()}
tokenizers = st.sampled_from(sorted(TOKENIZERS)).map(TOKENIZERS.__getitem__)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Tokenizer, list[int], list[list[int]]]:
    """A tokenizer, output ids (single bytes, controls and unknown ids among them), and the same ids in chunks."""
    tokenizer = draw(tokenizers)
    any_id = st.integers(0, tokenizer.vocab_size + 2)
    of_text = st.text(max_size=6).map(tokenizer.encode_plain)
    ids = [i for part in draw(st.lists(any_id.map(lambda i: [i]) | of_text, max_size=20)) for i in part]
    chunks, rest = [], ids
    while rest:
        size = draw(st.integers(1, 5))
        chunks.append(rest[:size])
        rest = rest[size:]
    return tokenizer, ids, chunks


@given(outputs(), st.booleans())
def test_stream_equals_whole(output: tuple[Tokenizer, list[int], list[list[int]]], skip: bool) -> None:
    tokenizer, ids, chunks = output
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    deltas = [detokenizer.append(chunk) for chunk in chunks]
    deltas.append(detokenizer.finish())
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas) == whole
    assert sum(d.count("\ufffd") for d in deltas) == whole.count("\ufffd")
    assert detokenizer.num_tokens == len(ids)


@given(outputs(), st.booleans(), st.lists(st.text("the ca\n漢", min_size=1, max_size=4), max_size=1), st.integers(0, 3))
def test_a_known_text_is_what_the_token_would_add(
    output: tuple[Tokenizer, list[int], list[list[int]]], skip: bool, stop: list[str], prompt: int
) -> None:
    """Whoever takes the text from the table, wherever it has one, gets what one that is given all tokens says."""
    tokenizer, ids, _ = output
    options = {"skip_special_tokens": skip, "stop": stop, "prompt_token_ids": ids[:prompt]}
    told, asked = Detokenizer(tokenizer, **options), Detokenizer(tokenizer, **options)
    deltas = []
    for token_id in ids:
        known = told.texts[token_id]
        assert known is None or not stop
        deltas.append(told.append([token_id]) if known is None else known)
    asked.texts = UNKNOWN  # so that a single token is looked at too
    assert "".join(deltas) == asked.append(ids)
    assert told.finish() == asked.finish()


@given(outputs(), st.booleans())
def test_valid_text_is_what_the_tokenizers_library_decodes(
    output: tuple[Tokenizer, list[int], list[list[int]]], skip: bool
) -> None:
    tokenizer, ids, _ = output
    ids = [i for i in ids if tokenizer.backend.id_to_token(i) is not None]
    text = tokenizer.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text:
        assert text == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@given(tokenizers, st.text(max_size=40))
def test_text_comes_back_character_by_character(tokenizer: Tokenizer, text: str) -> None:
    text = text.replace("▁", " ") if tokenizer.strips_leading_space else text
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.append([i]) for i in tokenizer.encode_plain(text)]
    assert "".join(deltas) == text
    assert detokenizer.finish() == ""
    assert "\ufffd" in text or not any("\ufffd" in delta for delta in deltas)


@given(outputs(), st.lists(st.text("the ca\n漢", min_size=1, max_size=4), max_size=3), st.booleans(), st.integers(0, 6))
def test_stop_strings_do_not_depend_on_chunks(
    output: tuple[Tokenizer, list[int], list[list[int]]], stop: list[str], include: bool, min_tokens: int
) -> None:
    tokenizer, ids, chunks = output
    options = {"stop": stop, "include_stop_str_in_output": include, "min_tokens": min_tokens}
    one, many = Detokenizer(tokenizer, **options), Detokenizer(tokenizer, **options)
    whole = one.append(ids) + one.finish()
    text = "".join(many.append(chunk) for chunk in chunks) + many.finish()
    assert (text, many.stop_reason, many.num_tokens) == (whole, one.stop_reason, one.num_tokens)
    plain = tokenizer.decode(ids)
    if one.stop_reason is None:
        assert text == plain
    else:
        assert one.num_tokens > min_tokens
        assert plain.startswith(text if include else text + one.stop_reason)
        assert text.endswith(one.stop_reason) or not include
    if not include and min_tokens == 0:
        assert not any(s in text for s in stop)


def test_stop_string_across_tokens_tells_the_tokens_consumed() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = [tokenizer.backend.token_to_id(c) for c in "ABCDEFGH"]
    detokenizer = Detokenizer(tokenizer, stop=["DEF"])
    assert [detokenizer.append(ids[:4]), detokenizer.append(ids[4:])] == ["ABC", ""]
    assert (detokenizer.stop_reason, detokenizer.num_tokens, detokenizer.finish()) == ("DEF", 6, "")


def test_min_tokens_puts_stop_strings_off() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    x, y = (tokenizer.backend.token_to_id(c) for c in "xy")
    detokenizer = Detokenizer(tokenizer, stop=["y"], min_tokens=20)
    text = detokenizer.append([x, y] * 15)
    assert (text, detokenizer.num_tokens) == ("xy" * 10 + "x", 22)


def test_special_tokens_are_left_out_or_shown() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    a, control, b = tokenizer.encode("a<|im_start|>b")
    assert tokenizer.is_special(control)
    for skip, text in ((True, "ab"), (False, "a<|im_start|>b")):
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
        assert "".join(detokenizer.append([i]) for i in (a, control, b)) == text
    assert Detokenizer(tokenizer).decode_token(control) == "<|im_start|>"


def test_first_space_is_kept_where_the_output_continues_a_text() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    mark = tokenizer.backend.token_to_id("▁")
    ids = [*tokenizer.encode("the", add_special_tokens=False), mark, mark]
    bos = tokenizer.bos_token_id
    assert bos is not None
    fresh, after_bos = Detokenizer(tokenizer), Detokenizer(tokenizer, prompt_token_ids=[bos])
    continued = Detokenizer(tokenizer, prompt_token_ids=tokenizer.encode("a book"))
    assert [d.append(ids) for d in (fresh, after_bos, continued)] == ["the  ", "the  ", " the  "]
    assert tokenizer.decode(tokenizer.encode("a book") + ids) == "a book the  "


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
def test_emoji_of_many_tokens_comes_whole(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = "é漢👩\u200d👩\u200d👧\u200d👦ß"
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.append([i]) for i in tokenizer.encode_plain(text)]
    assert "".join(deltas) == text
    assert set("".join(deltas)) == set(text)
    assert all(ord(c) < 0xD800 or ord(c) > 0xDFFF for d in deltas for c in d)


def test_time_is_linear() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = [tokenizer.backend.token_to_id(c) for c in "abcdefgh"] * 1000

    def seconds(detokenizer: Detokenizer, part: list[int]) -> float:
        start = time.perf_counter()
        for i in part:
            detokenizer.append([i])
        return time.perf_counter() - start

    ratios = []
    for _ in range(5):
        detokenizer = Detokenizer(tokenizer, stop=["zz", "hh"])
        times = [seconds(detokenizer, ids[k : k + 1000]) for k in range(0, 8000, 1000)]
        ratios.append(times[-1] / times[0])
    assert min(ratios) < 3
