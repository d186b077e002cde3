"""Tokenizers of published GGUF files, against the ids that llama.cpp gives for them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from toy_tokenizers import HERE

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.published import PUBLISHED
from octavo.weights.sources import resolve

pytestmark = pytest.mark.model

GEMMA = "gemma3-270m"
GEMMA_IS_HERE = any(Path("~/.cache/octavo").expanduser().rglob(PUBLISHED[GEMMA].file))
MODELS = [
    pytest.param(("smollm2", "smollm2-135m"), id="smollm2"),
    pytest.param(
        ("gemma3", GEMMA),
        id="gemma3",
        marks=pytest.mark.skipif(not GEMMA_IS_HERE, reason="250 MB, not fetched for a test"),
    ),
]
# llama.cpp takes </s> for the end of a text in every vocabulary; in Gemma's it is a tag of HTML, and a text token.
NOT_TEXT_IN_LLAMA_CPP = ["<s></s>"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], Tokenizer]:
    name, source = request.param
    metadata = open_checkpoint(resolve(source).path).config
    return name, metadata, tokenizer_from_gguf(metadata)


def test_ids_equal_llama_cpp(model: tuple[str, dict[str, Any], Tokenizer]) -> None:
    name, _, tokenizer = model
    rows = json.loads((HERE / f"gguf_ids_{name}.json").read_text())
    assert len(rows) >= 200
    assert [text for text, ids, _ in rows if tokenizer.encode(text, add_special_tokens=False) != ids] == []
    different = [text for text, _, plain in rows if tokenizer.encode_plain(text) != plain]
    assert [text for text in different if text not in NOT_TEXT_IN_LLAMA_CPP] == []


def test_texts_come_back(model: tuple[str, dict[str, Any], Tokenizer]) -> None:
    name, _, tokenizer = model
    for text, *_ in json.loads((HERE / f"gguf_ids_{name}.json").read_text()):
        # SentencePiece writes a space as U+2581, and cannot tell the two apart.
        expected = text.replace("▁", " ") if name == "gemma3" else text
        assert tokenizer.decode(tokenizer.encode_plain(text), skip_special_tokens=False) == expected


def test_special_ids(model: tuple[str, dict[str, Any], Tokenizer]) -> None:
    name, metadata, tokenizer = model
    assert metadata["tokenizer.ggml.eos_token_id"] in tokenizer.eos_token_ids
    assert all(tokenizer.is_special(i) for i in tokenizer.eos_token_ids)
    assert tokenizer.vocab_size == len(metadata["tokenizer.ggml.tokens"])
    assert (tokenizer.encode("x")[0] == tokenizer.bos_token_id) == (name == "gemma3")


def test_building_is_fast(model: tuple[str, dict[str, Any], Tokenizer]) -> None:
    name, metadata, _ = model
    times = []
    for _ in range(3):
        start = time.process_time()
        tokenizer_from_gguf(metadata)
        times.append(time.process_time() - start)
    assert min(times) < {"smollm2": 0.5, "gemma3": 6}[name]
