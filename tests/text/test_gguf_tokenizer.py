"""Tokenizers built from GGUF metadata, against ids recorded from SentencePiece and llama.cpp."""

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tokenizers import HERE, sentencepiece, sentencepiece_metadata

from octavo.errors import ModelError
from octavo.text.gguf_tokenizer import WORD_PATTERNS, tokenizer_from_gguf
from octavo.text.tokenizer import CHAR_OF_BYTE, Tokenizer

SENTENCEPIECE = json.loads((HERE / "sentencepiece.json").read_text())


def test_ids_equal_sentencepiece() -> None:
    tokenizer = sentencepiece()
    different = [text for text, ids in SENTENCEPIECE["rows"] if tokenizer.encode_plain(text) != ids]
    assert len(SENTENCEPIECE["rows"]) >= 200
    assert different == []


def by_scores(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's rule, word for word: join the adjacent pair with the best score, the leftmost of equals."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    score = {token: scores[i] for token, i in ids.items() if metadata["tokenizer.ggml.token_type"][i] == 1}
    pieces = list(("▁" + text).replace(" ", "▁")) if text else []
    while pairs := [(-score[a + b], k) for k, (a, b) in enumerate(pairwise(pieces)) if a + b in score]:
        k = min(pairs)[1]
        pieces[k : k + 2] = [pieces[k] + pieces[k + 1]]
    return [i for p in pieces for i in ([ids[p]] if p in score else [ids[f"<0x{b:02X}>"] for b in p.encode()])]


PARTS = ["the", "lib", "rary", " ", "  ", "s", "qu", "are", "é", "漢", "12", "\n"]


@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=4)))
def test_ids_follow_the_scores(parts: list[str]) -> None:
    text = "".join(parts)
    metadata = SENTENCEPIECE["metadata"]
    assert sentencepiece_once().encode_plain(text) == by_scores(text, metadata)


@settings(max_examples=25)
@given(st.randoms(use_true_random=False))
def test_ids_follow_scores_that_no_training_made(rng: random.Random) -> None:
    letters = ["a", "b", "c", "▁"]
    words = {"".join(rng.choices(letters, k=rng.randint(2, 5))) for _ in range(25)}
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", *bytes_, *letters, *sorted(words)]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": rng.sample(range(-1000, 0), len(tokens)),
        "tokenizer.ggml.token_type": [2, *[6] * 256, *[1] * (len(tokens) - 257)],
        "tokenizer.ggml.unknown_token_id": 0,
    }
    text = "".join(rng.choices("abc ", k=20))
    assert tokenizer_from_gguf(metadata).encode_plain(text) == by_scores(text, metadata)


_ONCE: list[Tokenizer] = []


def sentencepiece_once() -> Tokenizer:
    if not _ONCE:
        _ONCE.append(sentencepiece())
    return _ONCE[0]


def test_text_that_spells_a_byte_or_control_token_stays_text() -> None:
    tokenizer = sentencepiece()
    for text in ("<0x41>", "<s>", "</s><unk>"):
        assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_bos_and_space_rules_come_from_the_metadata() -> None:
    bos = SENTENCEPIECE["metadata"]["tokenizer.ggml.bos_token_id"]
    assert sentencepiece().encode("the")[0] == bos
    changed = sentencepiece(**{"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False})
    ids = changed.encode(" the")
    assert ids[0] != bos
    assert changed.decode(ids) == " the"
    assert ids == sentencepiece().encode("the")[1:]


def byte_level_metadata(pre: str, **changes: Any) -> dict[str, Any]:
    """The bytes, `ab` and `abc` as tokens (`abc` without a merge), a control token, and one with its mark missing."""
    tokens = [*CHAR_OF_BYTE.values(), "ab", "abc", "<|eot_id|>", "<tool>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*[1] * 258, 3, 4],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 258,
        **changes,
    }


@pytest.mark.parametrize("pre", sorted(WORD_PATTERNS))
@settings(max_examples=20)
@given(text=st.text(max_size=30))
def test_every_word_pattern_keeps_all_of_the_text(pre: str, text: str) -> None:
    if pre not in _BY_PRE:
        _BY_PRE[pre] = tokenizer_from_gguf(byte_level_metadata(pre))
    tokenizer = _BY_PRE[pre]
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text


_BY_PRE: dict[str, Tokenizer] = {}


def test_whole_words_and_bos_of_llama3() -> None:
    llama3, gpt2 = (tokenizer_from_gguf(byte_level_metadata(pre)) for pre in ("llama-bpe", "gpt-2"))
    abc = llama3.backend.token_to_id("abc")
    assert llama3.encode("abc") == [258, abc]
    assert gpt2.encode("abc") == [gpt2.backend.token_to_id("ab"), gpt2.backend.token_to_id("c")]


def test_end_of_turn_tokens_are_found() -> None:
    metadata = byte_level_metadata("gpt-2", **{"tokenizer.ggml.eos_token_id": 3})
    assert tokenizer_from_gguf(metadata).eos_token_ids == {3, 258}


def test_user_defined_tokens_match_in_plain_text() -> None:
    tokenizer = tokenizer_from_gguf(byte_level_metadata("gpt-2"))
    assert tokenizer.encode_plain("<tool>") == [259]
    assert not tokenizer.is_special(259)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv'"),
        ({"tokenizer.ggml.pre": "made-up"}, r"tokenizer\.ggml\.pre is 'made-up'"),
        ({"tokenizer.ggml.tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"tokenizer.ggml.tokens": []}, r"tokenizer\.ggml\.tokens is empty"),
        ({"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]}, "1 of them are repeated"),
        ({"tokenizer.ggml.token_type": [1]}, r"token_type must hold 260 numbers"),
        ({"tokenizer.ggml.merges": None}, r"tokenizer\.ggml\.merges is missing"),
        ({"tokenizer.ggml.merges": ["a x9"]}, r"tokenizer\.ggml\.merges does not fit"),
        ({"tokenizer.ggml.merges": [1]}, r"tokenizer\.ggml\.merges is not a list of strings"),
        ({"tokenizer.ggml.bos_token_id": 260}, r"bos_token_id is 260, but there are 260 tokens"),
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.scores is missing"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tokenizer_from_gguf(byte_level_metadata("gpt-2", **changes))


def test_metadata_of_sentencepiece_needs_numbers() -> None:
    with pytest.raises(ModelError, match="scores must hold"):
        tokenizer_from_gguf(sentencepiece_metadata() | {"tokenizer.ggml.scores": ["x"]})
