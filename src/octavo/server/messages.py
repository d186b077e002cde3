"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes around what chat does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import CompletionOutput, SequenceOutput
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request, render_chat
from octavo.server.docs import takes
from octavo.server.errors import ApiError, anthropic_error_object, renamed
from octavo.server.generation import Generation, raise_for_failure, split_failures
from octavo.server.messages_wire import CountTokensRequest, MessagesRequest
from octavo.server.reply import json_reply, stream_reply
from octavo.server.streaming import event, unless_client_leaves


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["generate"])

    @routes.post("/v1/messages", openapi_extra=takes(MessagesRequest, "AnthropicError"))
    async def create_message(http: Request) -> Response:
        """Answers a conversation in Anthropic's shapes. With stream=true the reply is a stream of named events."""
        body = await context.reader.read(http, MessagesRequest)
        call = context.call("msg", body.model, tenant_of(http), "_")
        request = await context.off_loop(body, message_request, context, body, call)
        generation = context.start([request])
        if body.stream:
            events = message_events(call, body, generation)
            return stream_reply(context, generation, events, failure=error_event, end=b"")
        (whole,) = await unless_client_leaves(http, generation.whole())
        reply = message(call, request) | ending(body, request, whole.outputs[0])
        reply["content"] = [{"type": "text", "text": whole.outputs[0].text}]
        reply["usage"] = usage(request, whole.num_cached_tokens, len(whole.outputs[0].token_ids))
        return json_reply(reply)

    @routes.post("/v1/messages/count_tokens", openapi_extra=takes(CountTokensRequest, "AnthropicError"))
    async def count_tokens(http: Request) -> Response:
        """How many tokens the prompt of a message has."""
        body = await context.reader.read(http, CountTokensRequest)
        context.model_name(body.model)
        ids = await context.off_loop(body, lambda: render_chat(context.service, body.chat(), False))
        return json_reply({"input_tokens": len(ids)})

    return routes


def message_request(context: ServerContext, body: MessagesRequest, call: Call) -> EngineRequest:
    with renamed({"stop": "stop_sequences"}):
        chat = body.chat(stop=body.stop_sequences, max_tokens=body.max_tokens)
        request, _ = chat_request(context.service, context.dialect, chat, call, max_n=1)
    return request


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


def ending(
    body: MessagesRequest, request: EngineRequest, output: SequenceOutput | CompletionOutput
) -> dict[str, str | None]:
    if output.finish_reason == "length":
        cut_short = request.max_tokens < body.max_tokens
        return {"stop_reason": "model_context_window_exceeded" if cut_short else "max_tokens", "stop_sequence": None}
    if isinstance(output.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": output.stop_reason}
    return {"stop_reason": "end_turn", "stop_sequence": None}


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


async def message_events(call: Call, body: MessagesRequest, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The message, one block of text piece by piece, and how it ended. It begins with the first step's outputs, which
    know what of the prompt was cached.
    """
    (request,) = generation.requests
    num_output, begun = 0, False
    async for _, outputs in generation.outputs():
        outputs, failed = split_failures(outputs)
        data = b""
        for output in outputs:
            num_output += len(output.token_ids)
            if not begun:
                begun = True
                counts = usage(request, output.num_cached_tokens, num_output)
                data += named("message_start", message=message(call, request) | {"usage": counts})
                data += named("content_block_start", index=0, content_block={"type": "text", "text": ""})
                data += named("ping")
            if output.text:
                data += named("content_block_delta", index=0, delta={"type": "text_delta", "text": output.text})
            if output.finish_reason is not None:
                counts = usage(request, output.num_cached_tokens, num_output)
                data += named("content_block_stop", index=0)
                data += named("message_delta", delta=ending(body, request, output), usage=counts)
                data += named("message_stop")
        if data:
            yield data
        raise_for_failure(failed)
