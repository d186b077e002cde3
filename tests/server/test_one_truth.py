"""Every way in sees the same prompt and the same limit: chat, completions, responses, messages, tokenize and `LLM`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_world import World

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

import tiny

from octavo import LLM, SamplingParams
from octavo.async_llm import AsyncLLM

BOS = tiny.BASE["bos_token_id"]
LIMIT = 96
CONVERSATION = [
    {"role": "user", "content": "say hi"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "again"},
]
OPTIONS: dict[str, Any] = {"threads": 1, "kv_cache_memory": "4MiB", "max_model_len": LIMIT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template writes BOS, and so does its tokenizer."""
    return tiny.write_checkpoint("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[World]:
    world = World(folder, service=AsyncLLM(folder, **OPTIONS))
    yield world
    world.close()


def test_a_conversation_is_the_same_tokens_by_every_way_in(server: World, folder: Path) -> None:
    chat = server.post("/v1/chat/completions", messages=CONVERSATION, max_tokens=1, return_token_ids=True)
    ids = chat["prompt_token_ids"]
    assert ids.count(BOS) == 1 and ids[0] == BOS
    assert server.post("/tokenize", messages=CONVERSATION)["tokens"] == ids
    with LLM(folder, **OPTIONS) as llm:
        (offline,) = llm.chat(CONVERSATION, SamplingParams(max_tokens=1))
    assert offline.prompt_token_ids == ids
    # All of them count it alike.
    response = server.post("/v1/responses", input=CONVERSATION, max_output_tokens=1)
    message = server.post("/v1/messages", messages=CONVERSATION, max_tokens=1)
    counted = server.post("/v1/messages/count_tokens", messages=CONVERSATION)
    told = message["usage"]
    assert chat["usage"]["prompt_tokens"] == response["usage"]["input_tokens"] == counted["input_tokens"] == len(ids)
    assert told["input_tokens"] + told["cache_read_input_tokens"] == len(ids)


def test_a_rendered_text_given_to_completions_gets_no_second_bos(server: World) -> None:
    ids = server.post("/tokenize", messages=CONVERSATION)["tokens"]
    text = server.post("/detokenize", tokens=ids)["prompt"]
    assert text.startswith("<s>")
    for special in (None, True, False):
        reply = server.post(
            "/v1/completions", prompt=text, max_tokens=1, add_special_tokens=special, return_token_ids=True
        )
        assert reply["choices"][0]["prompt_token_ids"] == ids


def test_a_limit_past_the_context_is_cut_to_it_by_every_way_in(server: World, folder: Path) -> None:
    count = len(server.post("/tokenize", messages=CONVERSATION)["tokens"])
    body: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    with LLM(folder, **OPTIONS) as llm:
        for limit in (LIMIT, 10**9):
            chat = server.post("/v1/chat/completions", messages=CONVERSATION, max_tokens=limit, **body)
            response = server.post("/v1/responses", input=CONVERSATION, max_output_tokens=limit, **body)
            message = server.post("/v1/messages", messages=CONVERSATION, max_tokens=limit, **body)
            (offline,) = llm.chat(CONVERSATION, SamplingParams(max_tokens=limit, **body))
            lengths = [
                chat["usage"]["completion_tokens"],
                response["usage"]["output_tokens"],
                message["usage"]["output_tokens"],
                len(offline.outputs[0].token_ids),
            ]
            assert lengths == [LIMIT - count] * 4
            assert chat["choices"][0]["finish_reason"] == offline.outputs[0].finish_reason == "length"
            assert response["status"] == "incomplete" and message["stop_reason"] == "model_context_window_exceeded"


def test_a_prompt_past_the_context_is_told_its_length_by_every_way_in(server: World, folder: Path) -> None:
    long = [{"role": "user", "content": "x" * 200}]
    count = len(server.post("/tokenize", messages=long)["tokens"])
    said = []
    for path, body in (
        ("/v1/chat/completions", {"messages": long}),
        ("/v1/responses", {"input": long}),
        ("/v1/messages", {"messages": long, "max_tokens": 5}),
        ("/v1/completions", {"prompt": [97] * count}),
    ):
        status, reply = server.raw(path, **body)
        assert status == 400
        said.append(reply["error"]["message"])
    with LLM(folder, **OPTIONS) as llm, pytest.raises(ValueError) as refusal:
        llm.chat(long, SamplingParams(max_tokens=5))
    for message in (*said, str(refusal.value)):
        assert f"maximum context length is {LIMIT} tokens" in message and f"requested {count} tokens" in message
        assert "-" not in message
