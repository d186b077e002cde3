"""Encoding, BOS and EOS rules, plain text, and loading from a folder."""

import json
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from toy_tokenizers import CHATML, CONTROL, TEXT_TOKENS, byte_level, byte_level_backend, sentencepiece

from octavo.errors import ModelError, RequestError
from octavo.text.tokenizer import ANCHOR, Tokenizer, tokenizer_from_folder

BYTE_LEVEL = byte_level()
texts = st.lists(st.sampled_from([*CONTROL, *TEXT_TOKENS, "the ", " cat", "\n", "漢", "🤗"]) | st.text(max_size=5)).map(
    "".join
)


@given(texts)
def test_encode_is_the_library_s(text: str) -> None:
    assert BYTE_LEVEL.encode(text, add_special_tokens=False) == BYTE_LEVEL.backend.encode(text).ids


@given(texts)
def test_plain_text_has_no_control_token_and_comes_back(text: str) -> None:
    ids = BYTE_LEVEL.encode_plain(text)
    assert not BYTE_LEVEL.control_ids.intersection(ids)
    assert BYTE_LEVEL.decode(ids) == text


@given(st.text(max_size=30))
def test_plain_is_encode_where_no_control_token_is(text: str) -> None:
    assert BYTE_LEVEL.encode_plain(text) == BYTE_LEVEL.encode(text, add_special_tokens=False)


def test_text_tokens_are_found_in_plain_text_under_their_own_id() -> None:
    think = BYTE_LEVEL.backend.token_to_id("<think>")
    assert think in BYTE_LEVEL.encode_plain("<s><think>x")
    assert not BYTE_LEVEL.is_special(think)


def test_a_control_shape_counts_without_the_special_mark() -> None:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("<|forgotten|>", normalized=False)])
    tokenizer = Tokenizer(backend)
    assert tokenizer.is_special(backend.token_to_id("<|forgotten|>"))
    assert tokenizer.decode(tokenizer.encode_plain("<|forgotten|>")) == "<|forgotten|>"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_plain_text_after_a_control_token_keeps_the_pre_tokenizer_s_view(scheme: str) -> None:
    vocab = {"<unk>": 0, "<c>": 1, "▁": 2, "a": 3, "▁a": 4, "<": 5, "c": 6, ">": 7}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    backend.add_special_tokens([AddedToken("<c>", special=True, normalized=False)])
    tokenizer = Tokenizer(backend)
    # "\ue000" stands for a "<": the second <c> is a user's text.
    hidden = tokenizer.encode_chat("a<c>a\ue000c>a", {"\ue000": "<"})
    assert hidden.count(1) == 1
    cut = hidden.index(1)
    assert hidden[: cut + 2] == tokenizer.encode("a<c>a", add_special_tokens=False)[: cut + 2]


def test_bytes_of_all_ids_spell_the_vocabulary() -> None:
    for tokenizer in (BYTE_LEVEL, sentencepiece()):
        for i in range(tokenizer.vocab_size):
            text = tokenizer.backend.decode([i], skip_special_tokens=False)
            data = tokenizer.token_bytes(i)
            if "\ufffd" not in text and not tokenizer.strips_leading_space:
                assert data.decode() == text
            if tokenizer.strips_leading_space and len(data) != 1:
                assert data.decode().removeprefix(" ") == text
        assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""
        assert {bytes([b]) for b in range(256)} <= {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}


def test_unpaired_surrogate_is_refused() -> None:
    for encode in (BYTE_LEVEL.encode, BYTE_LEVEL.encode_plain):
        with pytest.raises(RequestError, match=r"unpaired surrogate, U\+D800, at character 2"):
            encode("ab\ud800")


def test_reserved_noncharacters_are_refused_only_beside_a_hidden_control_token() -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode_plain(ANCHOR)) == ANCHOR
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode_chat(ANCHOR, {})) == ANCHOR
    with pytest.raises(RequestError, match="noncharacters"):
        BYTE_LEVEL.encode_chat(ANCHOR + "\ue000s>", {"\ue000": "<"})


@pytest.mark.parametrize("encode", [BYTE_LEVEL.encode, BYTE_LEVEL.encode_plain])
def test_other_threads_run_while_a_long_text_is_encoded(encode: Callable[[str], list[int]]) -> None:
    beats: list[float] = []
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.001):
            beats.append(time.perf_counter())

    thread = threading.Thread(target=beat)
    thread.start()
    start = time.perf_counter()
    encode("the cat sat <x> " * 100_000)
    end = time.perf_counter()
    done.set()
    thread.join()
    times = [start, *(b for b in beats if start < b < end), end]
    assert max(b - a for a, b in pairwise(times)) < 0.5 * (end - start)


class TestBos:
    def test_config_decides(self) -> None:
        bos, eos = BYTE_LEVEL.bos_token_id, min(BYTE_LEVEL.eos_token_ids)
        assert bos not in BYTE_LEVEL.encode("a")
        with_bos = byte_level(add_bos=True, add_eos=True)
        assert with_bos.encode("a") == [bos, *with_bos.encode("a", add_special_tokens=False), eos]

    def test_post_processor_decides_without_config(self) -> None:
        backend = byte_level_backend()
        bos = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
        tokenizer = Tokenizer(backend, bos_token_id=bos)
        assert tokenizer.encode("a the cat") == backend.encode("a the cat").ids
        assert Tokenizer(backend, bos_token_id=bos, add_bos=False).encode("a").count(bos) == 0

    def test_text_that_begins_with_bos_gets_no_second_and_warns_once(self, caplog: pytest.LogCaptureFixture) -> None:
        tokenizer = byte_level(add_bos=True)
        with caplog.at_level(logging.WARNING):
            ids = [tokenizer.encode("<s>a"), tokenizer.encode("<s>a")]
        assert [i.count(tokenizer.bos_token_id) for i in ids] == [1, 1]
        assert len(caplog.records) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


class TestFolder:
    def test_eos_is_the_union_of_all_configs(self, folder: Path) -> None:
        write(folder, "generation_config.json", {"eos_token_id": [3, 4]})
        write(folder, "config.json", {"eos_token_id": 5, "text_config": {"eos_token_id": 6}})
        write(folder, "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<s>"})
        tokenizer = tokenizer_from_folder(folder)
        ids = {text: tokenizer.backend.token_to_id(text) for text in ("<|im_end|>", "<s>")}
        assert tokenizer.eos_token_ids == {3, 4, 5, 6, ids["<|im_end|>"]}
        assert tokenizer.bos_token_id == ids["<s>"]

    def test_special_tokens_of_the_config_are_special(self, tmp_path: Path) -> None:
        vocab = {"a": 0, "</s>": 1, "<x>": 2, "/": 3, "<": 4, ">": 5, "s": 6, "x": 7}
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
        backend.save(str(tmp_path / "tokenizer.json"))
        special = {"eos_token": "</s>", "pad_token": "<absent>", "additional_special_tokens": ["<x>"]}
        write(tmp_path, "tokenizer_config.json", special)
        tokenizer = tokenizer_from_folder(tmp_path)
        assert tokenizer.encode("a</s><x>") == [0, 1, 2]
        assert tokenizer.encode_plain("</s>") == [4, 3, 6, 5]
        assert tokenizer.vocab_size == len(vocab)
        assert (tokenizer.eos_token_ids, tokenizer.decode([0, 1, 2])) == ({1}, "a")

    def test_chat_template_of_a_file_goes_first(self, folder: Path) -> None:
        write(folder, "tokenizer_config.json", {"chat_template": "config"})
        assert tokenizer_from_folder(folder).chat_template == "config"
        write(folder, "chat_template.json", {"chat_template": "json"})
        assert tokenizer_from_folder(folder).chat_template == "json"
        (folder / "chat_template.jinja").write_text("jinja")
        assert tokenizer_from_folder(folder).chat_template == "jinja"

    def test_template_for_tools_is_used_with_tools(self, folder: Path) -> None:
        templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        write(folder, "tokenizer_config.json", {"chat_template": templates})
        tokenizer = tokenizer_from_folder(folder)
        messages = [{"role": "user", "content": "x"}]
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert tokenizer.decode(tokenizer.apply_chat_template(messages)) == "plain"
        assert tokenizer.decode(tokenizer.apply_chat_template(messages, tools=tools)) == "tools"

    def test_only_another_tokenizer_file(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        with pytest.raises(ModelError, match=r"tokenizer\.model is a tokenizer file that octavo does not read"):
            tokenizer_from_folder(tmp_path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
            tokenizer_from_folder(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", '{"model": {"type": "BPE"}}', ""])
    def test_broken_file(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelError, match=r"tokenizer\.json is broken"):
            tokenizer_from_folder(tmp_path)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("{", "is not valid JSON"),
            ("[]", "must be a JSON object, not list"),
            ('{"a": 1, "a": 2}', "'a' appears twice"),
        ],
    )
    def test_broken_config(self, folder: Path, text: str, says: str) -> None:
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(ModelError, match=rf"tokenizer_config\.json.*{says}"):
            tokenizer_from_folder(folder)

    def test_padding_and_truncation_of_the_file_are_off(self, tmp_path: Path) -> None:
        backend = byte_level_backend()
        backend.enable_truncation(4)
        backend.enable_padding(length=16)
        backend.save(str(tmp_path / "tokenizer.json"))
        assert (
            tokenizer_from_folder(tmp_path).encode("a b c d e f g") == byte_level_backend().encode("a b c d e f g").ids
        )

    def test_unknown_decoder_is_named(self, tmp_path: Path) -> None:
        backend = byte_level_backend()
        backend.decoder = decoders.CTC()
        backend.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ModelError, match="CTC"):
            tokenizer_from_folder(tmp_path)

    def test_normalizer_applies_to_plain_text_too(self, tmp_path: Path) -> None:
        backend = byte_level_backend()
        backend.normalizer = normalizers.NFC()
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = tokenizer_from_folder(tmp_path)
        assert tokenizer.encode_plain("e\u0301") == tokenizer.encode("\u00e9")

    def test_chat_works_end_to_end(self, folder: Path) -> None:
        write(folder, "tokenizer_config.json", {"chat_template": CHATML})
        tokenizer = tokenizer_from_folder(folder)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "the cat"}])
        expected = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected
        assert ids == tokenizer.encode(expected)
