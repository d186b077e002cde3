"""POST /v1/responses: OpenAI's newer shapes around what chat does. Nothing is kept: a response is told once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import CompletionOutput, SequenceOutput
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request
from octavo.server.errors import ApiError, renamed
from octavo.server.generation import Generation, raise_for_failure, split_failures
from octavo.server.logprobs import chat_logprobs
from octavo.server.openapi import RUN, describes, named_events
from octavo.server.parts import Change, Part, Parts
from octavo.server.reply import json_reply, stream_reply
from octavo.server.responses_wire import ResponsesRequest
from octavo.server.service import Service
from octavo.server.streaming import event, unless_client_leaves
from octavo.text.splitter import ReplyFormat
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_calls.values import is_json

CHAT_NAMES = {
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
# The beginnings of the ids of what a response is made of, by its parts.
ID_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["generate"])

    told = describes("Response", ResponsesRequest, RUN, named_events("ResponseEvent"))

    @routes.post("/v1/responses", openapi_extra=told)
    async def create_response(http: Request) -> Response:
        """Answers a text or a conversation. With stream=true the reply is a stream of numbered, typed events."""
        body = await context.reader.read(http, ResponsesRequest)
        call = context.call("resp", body.model, tenant_of(http), "_")
        request, format = await context.admit(http, body, call, response_request, context, body, call)
        generation = context.start([request])
        reply = Reply(context.service, body, call, request, format)
        if body.stream:
            return stream_reply(context, generation, reply.events(generation), failure=reply.failure, end=b"")
        with renamed(CHAT_NAMES):
            (whole,) = await unless_client_leaves(http, generation.whole())
        await context.off_loop(body, reply.add, whole.outputs[0], whole.num_cached_tokens)
        return json_reply(reply.response())

    @routes.api_route("/v1/responses/{response_id:path}", methods=["GET", "POST", "DELETE"], include_in_schema=False)
    async def find_response(response_id: str) -> Response:
        raise ApiError(404, f"There is no response {response_id[:80]!r}: responses are not kept on this server.")

    return routes


def response_request(context: ServerContext, body: ResponsesRequest, call: Call) -> tuple[EngineRequest, ReplyFormat]:
    with renamed(CHAT_NAMES):
        return chat_request(context.service, context.dialect, body.chat(), call, max_n=1)


class Reply:
    """A response as it grows: messages, reasoning and calls in their order, told whole or by events."""

    def __init__(
        self, service: Service, body: ResponsesRequest, call: Call, request: EngineRequest, format: ReplyFormat
    ) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._call = call
        self._request = request
        self._format = format
        self._parts = Parts(format.splitter())
        self._status = "in_progress"
        # Of all tokens, as chat has them; there is one message at most where they are asked for.
        self._logprobs: list[dict[str, Any]] = []
        self._num_told = 0  # of them, by events
        self._token_ids: list[int] = []
        self._num_cached = 0
        self._error: dict[str, str] | None = None
        self._sequence_number = 0

    def add(self, output: SequenceOutput | CompletionOutput, num_cached: int) -> list[Change]:
        """Takes what came, and returns what it changes."""
        if self._body.includes_logprobs:
            count = self._body.top_logprobs or 0
            entries = chat_logprobs(self._tokenizer, output.token_ids, output.logprobs or [], count, False)
            self._logprobs += entries["content"]
        self._token_ids += output.token_ids
        self._num_cached = num_cached
        if output.finish_reason is not None:
            self._status = "incomplete" if output.finish_reason == "length" else "completed"
        return self._parts.feed(output.text, output.finish_reason is not None)

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
            "output": [self._item(part, self._status_of(part)) for part in self._parts.all] if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
            "safety_identifier": body.safety_identifier,
            "seed": self._request.used_seed,
            "store": False,
            "temperature": params.temperature,
            "text": {"format": body.text_format},
            "tool_choice": body.tool_choice or "auto",
            "tools": [{"parameters": None, "strict": None, **tool.model_dump()} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
            "user": body.user,
        }

    def _status_of(self, part: Part) -> str:
        """Of a part that has ended."""
        cut = self._status == "incomplete" and part is self._parts.all[-1]
        return "incomplete" if cut and not (part.kind == "call" and is_json(part.text)) else "completed"

    def _id(self, part: Part) -> str:
        return f"{ID_PREFIXES[part.kind]}_{self._call.id.partition('_')[2]}{part.index:02}"

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        """The item of the output that a part is; it is empty while it is in progress."""
        begun = status != "in_progress"
        item = {"id": self._id(part), "status": status}
        match part.kind:
            case "text":
                return {**item, "type": "message", "role": "assistant", "content": [self._content(part)] * begun}
            case "reasoning":
                return {**item, "type": "reasoning", "summary": [], "content": [self._content(part)] * begun}
            case "call":
                arguments = part.text if begun else ""
                call = {"call_id": part.call_id, "name": part.name, "arguments": arguments}
                return {**item, "type": "function_call", **call}

    def _content(self, part: Part, begun: bool = True) -> dict[str, Any]:
        text = part.text if begun else ""
        if part.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = self._logprobs if begun else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _usage(self) -> dict[str, Any]:
        num_input, num_output = len(self._request.prompt_token_ids), len(self._token_ids)
        return {
            "input_tokens": num_input,
            "input_tokens_details": {"cached_tokens": self._num_cached, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning()},
            "total_tokens": num_input + num_output,
        }

    def _num_reasoning(self) -> int:
        """Tokens up to the end of the reasoning, its markers included."""
        if self._format.reasoning is None or all(part.kind != "reasoning" for part in self._parts.all):
            return 0
        return count_up_to(self._tokenizer, self._token_ids, self._format.reasoning.end.encode())

    # As a stream.

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The response begins at once; its items open, grow and close; it ends with the whole of it again."""
        yield self._event("created", response=self.response()) + self._event("in_progress", response=self.response())
        async for _, outputs in generation.outputs():
            outputs, failed = split_failures(outputs)
            data = b""
            for output in outputs:
                data += b"".join(self._told(change) for change in self.add(output, output.num_cached_tokens))
                if output.finish_reason is not None:
                    data += self._event(self._status, response=self.response())
            if data:
                yield data
            raise_for_failure(failed)

    def _told(self, change: Change) -> bytes:
        part = change.part
        place: dict[str, Any] = {"item_id": self._id(part), "output_index": part.index}
        if part.kind != "call":
            place["content_index"] = 0
        match change.what:
            case "begin":
                told = self._event("output_item.added", output_index=part.index, item=self._item(part, "in_progress"))
                if part.kind != "call":
                    told += self._event("content_part.added", **place, part=self._content(part, begun=False))
                return told
            case "grow":
                return self._delta(part, place, change.text)
            case "end":
                # A token that ends a message may have no text.
                late = part.kind == "text" and self._num_told < len(self._logprobs)
                told = self._delta(part, place, "") if late else b""
                if part.kind == "call":
                    told += self._event("function_call_arguments.done", **place, name=part.name, arguments=part.text)
                else:
                    told += (
                        self._event("output_text.done", **place, text=part.text, logprobs=self._logprobs)
                        if part.kind == "text"
                        else self._event("reasoning_text.done", **place, text=part.text)
                    ) + self._event("content_part.done", **place, part=self._content(part))
                item = self._item(part, self._status_of(part))
                return told + self._event("output_item.done", output_index=part.index, item=item)

    def _delta(self, part: Part, place: dict[str, Any], text: str) -> bytes:
        match part.kind:
            case "text":
                shown, self._num_told = self._logprobs[self._num_told :], len(self._logprobs)
                return self._event("output_text.delta", **place, delta=text, logprobs=shown)
            case "reasoning":
                return self._event("reasoning_text.delta", **place, delta=text)
            case "call":
                return self._event("function_call_arguments.delta", **place, delta=text)

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


def count_up_to(tokenizer: Tokenizer, token_ids: Sequence[int], end: bytes) -> int:
    """How many tokens it takes until their text holds `end`; all of them if it never does."""
    data = b""
    for count, token_id in enumerate(token_ids, 1):
        data = data[-len(end) :] + tokenizer.token_bytes(token_id)
        if end in data:
            return count
    return len(token_ids)
