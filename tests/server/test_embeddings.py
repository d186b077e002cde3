"""POST /v1/embeddings over a tiny model, raw and by the official client."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse
from server_world import World, strict, wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

import tiny

from octavo.async_llm import AsyncLLM

URL = "/v1/embeddings"
TEXTS = ["one", "another text", "a" * 60]


def tiny_world(folder: Path, engine: dict[str, Any], **server: Any) -> World:
    path = tiny.write_checkpoint("llama", folder)
    return World(folder, service=AsyncLLM(path, threads=1, kv_cache_memory="4MiB", **engine), **server)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    options = {"served_model_name": "tiny", "pooling_type": "mean"}
    world = tiny_world(tmp_path_factory.mktemp("embedder"), options, max_n=4)
    yield world
    world.close()


def vectors(reply: dict[str, Any]) -> list[list[float]]:
    assert [entry["index"] for entry in reply["data"]] == list(range(len(reply["data"])))
    return [entry["embedding"] for entry in reply["data"]]


def test_a_vector_for_each_text(embedder: World) -> None:
    reply = strict(CreateEmbeddingResponse, embedder.post(URL, model="tiny", input=TEXTS))
    assert reply["object"] == "list" and reply["model"] == "tiny" and reply["id"].startswith("embd-")
    assert all(entry["object"] == "embedding" and len(entry["embedding"]) == 64 for entry in reply["data"])
    np.testing.assert_allclose(np.linalg.norm(vectors(reply), axis=1), 1, rtol=1e-6)
    tokens = sum(len(embedder.tokenizer.encode(text)) for text in TEXTS)
    assert reply["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    wait_until(embedder.is_idle)


def test_every_form_of_input_and_both_encodings_say_the_same(embedder: World) -> None:
    ids = [embedder.tokenizer.encode(text) for text in TEXTS]
    expected = vectors(embedder.post(URL, input=TEXTS))
    assert vectors(embedder.post(URL, input=ids)) == expected
    assert vectors(embedder.post(URL, input=TEXTS[1])) == vectors(embedder.post(URL, input=ids[1])) == [expected[1]]
    encoded = vectors(embedder.post(URL, input=TEXTS, encoding_format="base64"))
    for text, vector in zip(encoded, expected, strict=True):
        assert np.array_equal(np.frombuffer(base64.b64decode(text), "<f4"), np.array(vector, np.float32))


def test_the_official_client_gets_the_bits_that_numbers_have(embedder: World) -> None:
    """It asks for base64 unless it is told otherwise."""
    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="EMPTY") as client:
        plain = client.embeddings.create(model="tiny", input=TEXTS)
        floats = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
        for one, other in zip(plain.data, floats.data, strict=True):
            assert np.array_equal(np.array(one.embedding, np.float32), np.array(other.embedding, np.float32))
        with pytest.raises(openai.BadRequestError, match="Matryoshka") as caught:
            client.embeddings.create(model="tiny", input="x", dimensions=8)
        assert caught.value.param == "dimensions"


def test_raw_vectors_and_other_ways_to_ask(embedder: World) -> None:
    (raw,) = vectors(embedder.post(URL, input="abc", use_activation=False))
    (unit,) = vectors(embedder.post(URL, input="abc", use_activation=True, user="me", embed_dtype="float32"))
    np.testing.assert_allclose(np.array(raw) / np.linalg.norm(raw), unit, atol=1e-6)
    cut = embedder.post(URL, input="a" * 5000, truncate_prompt_tokens=-1)
    assert cut["usage"]["prompt_tokens"] == embedder.max_model_len
    bare = embedder.post(URL, input="abc", add_special_tokens=False)
    assert bare["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ""}, None),
        ({"input": ["a", 1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": [[1, -1]]}, "input"),
        ({"input": [[10**6]]}, "input"),
        ({"input": "a" * 5000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "endianness"),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "priority": 3}, "priority"),
    ],
)
def test_what_is_refused(embedder: World, body: dict[str, Any], param: str | None) -> None:
    status, reply = embedder.raw(URL, **body)
    if param is None:  # a text of no characters is one control token here
        assert status == 200
        return
    assert status == 400 and reply["error"]["param"].partition("[")[0] == param
    assert param in reply["error"]["message"] or "prompt" in reply["error"]["message"]


def test_a_model_that_pools_nothing_says_so(world: World) -> None:
    status, reply = world.raw(URL, input="a")
    assert status == 400 and "no vectors" in reply["error"]["message"]


def test_more_inputs_than_a_call_may_run_at_once_take_turns(embedder: World) -> None:
    texts = [f"text {i}" for i in range(19)]
    most = 0

    async def main() -> list[list[float]]:
        nonlocal most
        async with openai.AsyncOpenAI(base_url=embedder.url + "/v1", api_key="EMPTY") as client:
            asking = asyncio.ensure_future(client.embeddings.create(model="tiny", input=texts, encoding_format="float"))
            while not asking.done():
                most = max(most, embedder.service.engine.num_live)
                await asyncio.sleep(0.001)
            return [entry.embedding for entry in (await asking).data]

    together = asyncio.run(main())
    assert 0 < most <= 4
    assert together == [vectors(embedder.post(URL, input=text))[0] for text in texts]


def test_a_client_that_leaves_gives_its_blocks_back(tmp_path: Path) -> None:
    world = tiny_world(tmp_path, {"max_num_batched_tokens": 16, "enable_prefix_caching": False})

    async def main() -> None:
        async with httpx.AsyncClient(base_url=world.url) as client:
            asking = asyncio.ensure_future(client.post(URL, json={"input": ["a" * 400] * 100}))
            while not world.service.engine.num_live:
                await asyncio.sleep(0.001)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    try:
        asyncio.run(main())
        # The engine may not have taken the requests yet when their client leaves: it is idle before, too.
        wait_until(lambda: world.metric("request_success_total", finished_reason="abort") > 0)
        wait_until(world.is_idle)
    finally:
        world.close()
