"""A running server for tests: the real engine, scheduler, tokenizer and HTTP stack over the successor model."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pydantic
from fastapi import FastAPI
from fastapi.routing import APIRoute
from scripted import ScriptRunner
from successor import CYCLE, TEMPLATE, SuccessorModel, SuccessorRunner, small_tokenizer

from octavo.config import ServerConfig
from octavo.embedding import Embedding
from octavo.engine import admission
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.loaded_model import make_detokenizer
from octavo.sampling_params import SamplingParams
from octavo.server.context import ServerContext
from octavo.server.run import Server, bind
from octavo.text.tokenizer import Tokenizer


@dataclass
class SmallService:
    """What the composition root hands to the server, put together by hand."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    limits: admission.Limits
    model_names: Sequence[str] = ("small", "org/other-name")
    model_root: str = "tests"
    created: int = 1_700_000_000
    fingerprint: str = "octavo-test"
    sampling_defaults: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    embedding: Embedding = field(default_factory=lambda: Embedding(None, 0))

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @property
    def max_token_bytes(self) -> int:
        return max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        reasoning: Any = None,
        calls: Any = None,
        given_up: Any = None,
        **facts: Any,
    ) -> Request:
        words: Sequence[str] = params.bad_words or ()
        bad = tuple(tuple(self.tokenizer.encode(word, add_special_tokens=False)) for word in words)
        request = admission.admit(
            request_id,
            prompt_token_ids,
            params,
            self.limits,
            prompt=prompt,
            bad_word_ids=bad,
            **facts,
        )
        self.engine._engine.scheduler.check_fits(request)
        return request


def small_service(
    folder: Path,
    *,
    max_model_len: int = 1024,
    num_blocks: int = 1024,
    max_num_seqs: int = 64,
    max_num_queued: int = 1024,
    max_num_queued_tokens: int = 0,
    step_seconds: float = 0.0,
    poison: str | None = None,
    template: str | None = TEMPLATE,
    takes_priority: bool = False,
    texts: Sequence[str] | None = None,
    special: Sequence[str] = (),
    **facts: Any,
) -> tuple[SmallService, SuccessorModel]:
    tokenizer = small_tokenizer(folder, template, special)
    model = SuccessorModel(tokenizer)
    runner = SuccessorRunner(model, step_seconds, ord(poison) if poison else None)
    if texts is not None:
        runner = ScriptRunner(model, tokenizer, texts)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=256,
        max_model_len=max_model_len,
        max_output_rows=256,
        max_num_queued=max_num_queued,
        max_num_queued_tokens=max_num_queued_tokens,
    )
    scheduler = Scheduler(config, [CacheGroup("full", num_blocks, 16)])

    limits = admission.Limits(
        tokenizer.vocab_size,
        max_model_len,
        num_blocks * 16,
        tokenizer.eos_token_ids,
        takes_priority=takes_priority,
    )
    engine = AsyncEngine(Engine(scheduler, runner, lambda request, index: make_detokenizer(tokenizer, request)))
    return SmallService(engine, tokenizer, limits, **facts), model


def post_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A request as it goes over a socket."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


class World:
    """The server on a thread of its own, and ways to talk to it."""

    def __init__(
        self, folder: Path, *, engine: Mapping[str, Any] | None = None, service: Any = None, **server: Any
    ) -> None:
        """Over the successor model, or over `service`, which is then closed with the server."""
        if service is None:
            service, self.model = small_service(folder, **(engine or {}))
        self.service = service
        self.tokenizer = self.service.tokenizer
        self.max_model_len = self.service.max_model_len
        self.cycle_text = (b"".join(CYCLE) * 3).decode()
        config = ServerConfig(max_body_size=1 << 20, shutdown_timeout=0.2, **server)
        self.context = ServerContext(self.service, config)
        self.server = Server(self.context, config)
        self.key = config.api_key[0] if config.api_key else None
        bound = bind("127.0.0.1", 0)
        self.port: int = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        self.client = httpx.Client(base_url=self.url, timeout=30, headers=headers)
        self.anonymous = httpx.Client(base_url=self.url, timeout=30)
        self._thread = threading.Thread(target=self.server.run, args=([bound],))
        self._thread.start()
        wait_until(lambda: self.server.started)

    def close(self) -> None:
        self.client.close()
        self.anonymous.close()
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.context.close()
        self.service.engine.close()

    # Requests.

    def raw(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        return self.send(path, json.dumps(body).encode())

    def send(self, path: str, content: Any, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
        response = self.client.post(path, content=content, headers={"content-type": content_type})
        return response.status_code, response.json()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        status, reply = self.raw(path, **body)
        assert status == 200, reply
        return reply

    def get(self, path: str, status: int = 200) -> httpx.Response:
        response = self.client.get(path)
        assert response.status_code == status, response.text
        return response

    def stream(self, path: str, **body: Any) -> Iterator[str]:
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            yield from response.iter_lines()

    def whole(self, path: str, streamed: bool, **body: Any) -> dict[str, Any]:
        """A reply in its whole form, added up from a stream where asked."""
        if not streamed:
            return self.post(path, **body)
        return joined(chunks(self.stream(path, stream_options={"include_usage": True}, **body)))

    # What the server says of itself.

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels, as /metrics has it."""
        total = 0.0
        for line in self.get("/metrics").text.splitlines():
            if line.partition("{")[0] == f"octavo:{name}" and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def running(self) -> int:
        return self.service.engine.stats().num_running

    def waiting(self) -> int:
        return self.service.engine.stats().num_waiting

    def is_idle(self) -> bool:
        now = self.service.engine.stats()
        return now.num_running == now.num_waiting == now.kv_cache_usage == 0

    def counts(self) -> tuple[int, int]:
        """Tokens that the engine has computed so far."""
        totals = self.service.engine.stats().totals
        return totals.generation_tokens, totals.prompt_tokens

    def probe(self) -> None:
        """Healthy, idle, no block held, and a fixed completion as ever."""
        wait_until(self.is_idle)
        assert self.get("/health").content == b""
        reply = self.post("/v1/completions", prompt="abc", max_tokens=4, temperature=0)
        assert reply["choices"][0]["text"] == "defg"
        wait_until(self.is_idle)

    @staticmethod
    def routes(app: FastAPI) -> Iterator[APIRoute]:
        def walk(routes: Iterable[Any]) -> Iterator[APIRoute]:
            for route in routes:
                if isinstance(route, APIRoute):
                    yield route
                inner = getattr(route, "original_router", None) or getattr(route, "router", None)
                if inner is not None:
                    yield from walk(inner.routes)

        return walk(app.routes)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not come about in time"
        time.sleep(0.02)


def strict(kind: type[pydantic.BaseModel], value: dict[str, Any]) -> dict[str, Any]:
    """The value, after the official client's own type has taken it without any coercion."""
    kind.model_validate_json(json.dumps(value), strict=True)
    return value


def events(lines: Iterable[str]) -> Iterator[str]:
    """The data of each event of a stream."""
    for line in lines:
        if line:
            assert line.startswith("data: ")
            yield line[6:]


def chunks(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        data = line.removeprefix("data: ")
        if data and data != "[DONE]":
            chunk: dict[str, Any] = json.loads(data)
            assert "error" not in chunk, chunk
            yield chunk


def joined(stream: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The whole reply that the chunks of a stream add up to."""
    choices: dict[int, dict[str, Any]] = {}
    reply: dict[str, Any] = {}
    for chunk in stream:
        reply = {**chunk, "usage": chunk.get("usage")}
        for piece in chunk["choices"]:
            whole = choices.setdefault(piece["index"], {"index": piece["index"], "logprobs": None, "stop_reason": None})
            if "text" in piece:
                whole["text"] = whole.get("text", "") + piece["text"]
            else:
                message = whole.setdefault("message", {"role": None, "content": "", "refusal": None})
                add_delta(message, piece["delta"])
            if piece.get("logprobs") is not None:
                whole["logprobs"] = whole["logprobs"] or {key: [] for key in piece["logprobs"]}
                for key, values in piece["logprobs"].items():
                    whole["logprobs"][key] = whole["logprobs"][key] + values if values is not None else None
            if "token_ids" in piece:
                whole["token_ids"] = whole.get("token_ids", []) + piece["token_ids"]
            if piece["finish_reason"] is not None:
                whole["finish_reason"] = piece["finish_reason"]
            for key in ("stop_reason", "seed", "prompt_token_ids"):
                if key in piece:
                    whole[key] = piece[key]
    for whole in choices.values():
        message = whole.get("message", {})
        if not message.get("content", True) and len(message) > 3:
            message["content"] = None  # as a whole reply says of a message that is only calls or reasoning
    return {**reply, "choices": [choices[index] for index in sorted(choices)]}


def add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    message["role"] = delta.get("role", message["role"])
    for key in ("content", "reasoning", "reasoning_content"):
        if key in delta:
            message[key] = message.get(key, "") + delta[key]
    for piece in delta.get("tool_calls", ()):
        calls = message.setdefault("tool_calls", [])
        if piece["index"] == len(calls):
            calls.append({"id": piece["id"], "type": piece["type"], "function": {"name": piece["function"]["name"]}})
        function = calls[piece["index"]]["function"]
        function["arguments"] = function.get("arguments", "") + piece["function"]["arguments"]
