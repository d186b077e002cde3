"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes around what chat does."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic_core import from_json
from starlette.responses import Response

from octavo.engine.outputs import CompletionOutput, SequenceOutput
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request, render_chat, sampling_params
from octavo.server.errors import ApiError, anthropic_error_object, renamed
from octavo.server.generation import Generation, raise_for_failure, split_failures
from octavo.server.messages_wire import CountTokensRequest, MessagesRequest
from octavo.server.openapi import BODY, RUN, describes, named_events
from octavo.server.parts import Change, Part, Parts
from octavo.server.reply import json_reply, stream_reply
from octavo.server.streaming import event, unless_client_leaves
from octavo.text.splitter import ReplyFormat
from octavo.text.tool_calls.values import is_json

CHAT_NAMES = {
    "stop": "stop_sequences",
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    "response_format": "output_config.format",
}
# How a block grows, by its kind: the type of the delta, and the field of its text.
DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["generate"])

    told = describes("AnthropicMessage", MessagesRequest, RUN, named_events("AnthropicEvent"), "AnthropicError")

    @routes.post("/v1/messages", openapi_extra=told)
    async def create_message(http: Request) -> Response:
        """Answers a conversation in Anthropic's shapes. With stream=true the reply is a stream of named events."""
        body = await context.reader.read(http, MessagesRequest)
        call = context.call("msg", body.model, tenant_of(http), "_")
        request, format = await context.admit(http, body, call, message_request, context, body, call)
        generation = context.start([request])
        if body.stream:
            events = message_events(call, body, format, generation)
            return stream_reply(context, generation, events, failure=error_event, end=b"")
        (whole,) = await unless_client_leaves(http, generation.whole())
        output, parts = whole.outputs[0], Parts(format.splitter())
        await context.off_loop(body, parts.feed, output.text, last=True)
        reply = message(call, request) | ending(body, request, output, parts)
        reply["content"] = [block(part) for part in parts.all]
        reply["usage"] = usage(request, whole.num_cached_tokens, len(output.token_ids))
        return json_reply(reply)

    told = describes("InputTokens", CountTokensRequest, BODY, error="AnthropicError")

    @routes.post("/v1/messages/count_tokens", openapi_extra=told)
    async def count_tokens(http: Request) -> Response:
        """How many tokens the prompt of a message has."""
        body = await context.reader.read(http, CountTokensRequest)
        context.model_name(body.model)
        count = context.off_loop(body, num_input_tokens, context, body)
        return json_reply({"input_tokens": await unless_client_leaves(http, count)})

    return routes


def message_request(context: ServerContext, body: MessagesRequest, call: Call) -> tuple[EngineRequest, ReplyFormat]:
    with renamed(CHAT_NAMES):
        chat = body.chat(stop=body.stop_sequences, max_tokens=body.max_tokens)
        return chat_request(context.service, context.dialect, chat, call, max_n=1)


def num_input_tokens(context: ServerContext, body: CountTokensRequest) -> int:
    with renamed(CHAT_NAMES):
        chat = body.chat()
        # What POST /v1/messages would refuse is refused here; the limit of tokens is not asked for.
        sampling_params(context.service, chat, max_tokens=None)
        return len(render_chat(context.service, chat, False))


def message(call: Call, request: EngineRequest) -> dict[str, Any]:
    """A message that has not begun."""
    return {
        "id": call.id,
        "type": "message",
        "role": "assistant",
        "model": call.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "seed": request.used_seed,
    }


def block(part: Part, begun: bool = True) -> dict[str, Any]:
    """The block that a part is, empty before it has begun."""
    text = part.text if begun else ""
    match part.kind:
        case "text":
            return {"type": "text", "text": text}
        case "reasoning":
            return {"type": "thinking", "thinking": text, "signature": ""}
        case "call":
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": arguments(text)}


def arguments(text: str) -> orjson.Fragment:
    """As the model wrote them, numbers of any size included; of a call that was cut short what came before the cut, as
    Anthropic's client makes of a stream's pieces."""
    if is_json(text):
        return orjson.Fragment(text)
    try:
        return orjson.Fragment(json.dumps(from_json(text, allow_partial=True)))
    except ValueError:
        return orjson.Fragment("{}")


def ending(
    body: MessagesRequest, request: EngineRequest, output: SequenceOutput | CompletionOutput, parts: Parts
) -> dict[str, str | None]:
    if output.finish_reason == "length":
        cut_short = request.max_tokens < body.max_tokens
        return {"stop_reason": "model_context_window_exceeded" if cut_short else "max_tokens", "stop_sequence": None}
    if isinstance(output.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
    return {"stop_reason": "tool_use" if parts.splitter.has_called else "end_turn", "stop_sequence": None}


def usage(request: EngineRequest, num_cached: int, num_output: int) -> dict[str, int]:
    """Tokens of the prompt count either as cached or as input, as Anthropic has it."""
    return {
        "input_tokens": len(request.prompt_token_ids) - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": num_output,
    }


def named(kind: str, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)


def error_event(error: ApiError) -> bytes:
    return event(anthropic_error_object(error), "error")


def told(change: Change) -> bytes:
    part = change.part
    match change.what:
        case "begin":
            return named("content_block_start", index=part.index, content_block=block(part, begun=False))
        case "grow":
            kind, name = DELTAS[part.kind]
            return named("content_block_delta", index=part.index, delta={"type": kind, name: change.text})
        case "end":
            return named("content_block_stop", index=part.index)


async def message_events(
    call: Call, body: MessagesRequest, format: ReplyFormat, generation: Generation
) -> AsyncGenerator[bytes, None]:
    """The message, its blocks piece by piece, and how it ended. It begins with the first step's outputs, which know
    what of the prompt was cached.
    """
    (request,) = generation.requests
    parts = Parts(format.splitter())
    num_output, begun = 0, False
    async for _, outputs in generation.outputs():
        outputs, failed = split_failures(outputs)
        data = b""
        for output in outputs:
            num_output += len(output.token_ids)
            counts = usage(request, output.num_cached_tokens, num_output)
            if not begun:
                begun = True
                data += named("message_start", message=message(call, request) | {"usage": counts})
                data += named("ping")
            last = output.finish_reason is not None
            data += b"".join(told(change) for change in parts.feed(output.text, last))
            if last:
                data += named("message_delta", delta=ending(body, request, output, parts), usage=counts)
                data += named("message_stop")
        if data:
            yield data
        raise_for_failure(failed)
