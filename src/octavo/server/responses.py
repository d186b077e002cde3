"""POST /v1/responses: OpenAI's newer shapes around what chat does. Nothing is kept: a response is told once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import Logprobs
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request
from octavo.server.docs import takes
from octavo.server.errors import ApiError, renamed
from octavo.server.generation import Generation, raise_for_failure, split_failures
from octavo.server.logprobs import chat_logprobs
from octavo.server.reply import json_reply, stream_reply
from octavo.server.responses_wire import ResponsesRequest
from octavo.server.service import Service
from octavo.server.streaming import event, unless_client_leaves

CHAT_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["generate"])

    @routes.post("/v1/responses", openapi_extra=takes(ResponsesRequest))
    async def create_response(http: Request) -> Response:
        """Answers a text or a conversation. With stream=true the reply is a stream of numbered, typed events."""
        body = await context.reader.read(http, ResponsesRequest)
        call = context.call("resp", body.model, tenant_of(http), "_")
        request = await context.off_loop(body, response_request, context, body, call)
        generation = context.start([request])
        reply = Reply(context.service, body, call, request)
        if body.stream:
            return stream_reply(context, generation, reply.events(generation), failure=reply.failure, end=b"")
        (whole,) = await unless_client_leaves(http, generation.whole())
        output = whole.outputs[0]
        reply.add(output.text, output.token_ids, output.logprobs, whole.num_cached_tokens)
        reply.end(output.finish_reason)
        return json_reply(reply.response())

    @routes.api_route("/v1/responses/{response_id:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def find_response(response_id: str) -> Response:
        raise ApiError(404, f"There is no response {response_id[:80]!r}: responses are not kept on this server.")

    return routes


def response_request(context: ServerContext, body: ResponsesRequest, call: Call) -> EngineRequest:
    with renamed(CHAT_NAMES):
        request, _ = chat_request(context.service, context.dialect, body.chat(), call, max_n=1)
    return request


class Reply:
    """A response as it grows: one message with one part of text, told whole or by events."""

    def __init__(self, service: Service, body: ResponsesRequest, call: Call, request: EngineRequest) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._call = call
        self._request = request
        self._item_id = "msg_" + call.id.partition("_")[2]
        self._status = "in_progress"
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []
        self._num_output = self._num_cached = 0
        self._error: dict[str, str] | None = None
        self._sequence_number = 0

    def add(
        self, text: str, token_ids: list[int], logprobs: Sequence[Logprobs] | None, num_cached: int
    ) -> list[dict[str, Any]]:
        """Takes what came; returns the log-probabilities of it, which are empty unless they are included."""
        shown: list[dict[str, Any]] = []
        if self._body.includes_logprobs:
            count = self._body.top_logprobs or 0
            shown = chat_logprobs(self._tokenizer, token_ids, logprobs or [], count, False)["content"]
        self._text += text
        self._logprobs += shown
        self._num_output += len(token_ids)
        self._num_cached = num_cached
        return shown

    def end(self, finish_reason: str | None) -> None:
        self._status = "incomplete" if finish_reason == "length" else "completed"

    def response(self) -> dict[str, Any]:
        body, params, status = self._body, self._request.params, self._status
        ended = status in ("completed", "incomplete")
        return {
            "id": self._call.id,
            "object": "response",
            "created_at": self._call.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._call.model,
            "output": [self._item()] if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
            "safety_identifier": body.safety_identifier,
            "seed": self._request.used_seed,
            "store": False,
            "temperature": params.temperature,
            "text": {"format": body.text_format},
            "tool_choice": (body.model_extra or {}).get("tool_choice") or "auto",
            "tools": [],
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": body.user,
        }

    def _item(self) -> dict[str, Any]:
        begun = self._status != "in_progress" or bool(self._num_output)
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": self._status,
            "content": [self._part()] if begun else [],
        }

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._logprobs}

    def _usage(self) -> dict[str, Any]:
        num_input = len(self._request.prompt_token_ids)
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": self._num_cached, "cache_write_tokens": 0},
            "output_tokens": self._num_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_input + self._num_output,
        }

    # As a stream.

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The response begins at once; its message opens, grows and closes; it ends with the whole of it again."""
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        item = {"output_index": 0, "item": self._item()}
        yield (
            self._event("created", response=self.response())
            + self._event("in_progress", response=self.response())
            + self._event("output_item.added", **item)
            + self._event("content_part.added", **place, part=self._part())
        )
        async for _, outputs in generation.outputs():
            outputs, failed = split_failures(outputs)
            data = b""
            for output in outputs:
                shown = self.add(output.text, output.token_ids, output.logprobs, output.num_cached_tokens)
                if output.text or shown:
                    data += self._event("output_text.delta", **place, delta=output.text, logprobs=shown)
                if output.finish_reason is not None:
                    self.end(output.finish_reason)
                    data += self._event("output_text.done", **place, text=self._text, logprobs=self._logprobs)
                    data += self._event("content_part.done", **place, part=self._part())
                    data += self._event("output_item.done", output_index=0, item=self._item())
                    data += self._event(self._status, response=self.response())
            if data:
                yield data
            raise_for_failure(failed)

    def failure(self, error: ApiError) -> bytes:
        self._status = "failed"
        self._error = {
            "code": "rate_limit_exceeded" if error.status == 429 else "server_error",
            "message": error.message,
        }
        return self._event("failed", response=self.response())

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence_number
        self._sequence_number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": number, **fields}, name)
