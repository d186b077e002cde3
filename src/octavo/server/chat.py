"""POST /v1/chat/completions: messages in, one message (or n) out, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import RequestOutput, SequenceOutput
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request, last_text
from octavo.server.docs import takes
from octavo.server.generation import Generation, UsageCount, raise_for_failure, split_failures
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.reply import json_reply, stream_reply
from octavo.server.streaming import TEXT, TextEvents, event, unless_client_leaves
from octavo.server.wire import ChatRequest


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", tags=["generate"], openapi_extra=takes(ChatRequest))
    async def create_chat_completion(http: Request) -> Response:
        """Answers a conversation. With stream=true the reply is a stream of server-sent events."""
        body = await context.reader.read(http, ChatRequest)
        call = context.call("chatcmpl", body.model, tenant_of(http))
        request = await context.off_loop(body, chat_request, context.service, body, call, context.config.max_n)
        generation = context.start([request])
        if body.stream:
            return stream_reply(context, generation, chat_events(context, body, call, generation))
        (output,) = await unless_client_leaves(http, generation.whole())
        return json_reply(await context.off_loop(body, chat_reply, context, body, call, output))

    return routes


def chat_reply(context: ServerContext, body: ChatRequest, call: Call, whole: RequestOutput) -> dict[str, Any]:
    tokenizer = context.service.tokenizer
    prefix = last_text(body.messages) if body.echo else ""
    choices = []
    for output in whole.outputs:
        choice: dict[str, Any] = {
            "index": output.index,
            "message": {"role": "assistant", "content": prefix + output.text, "refusal": None},
            "logprobs": _logprobs(context, body, output.token_ids, output.logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if whole.seed is not None:
            choice["seed"] = whole.seed
        if body.return_token_ids:
            choice["token_ids"] = output.token_ids
        choices.append(choice)
    reply: dict[str, Any] = {
        "id": call.id,
        "object": "chat.completion",
        "created": call.created,
        "model": call.model,
        "choices": choices,
        "usage": UsageCount.of_whole([whole]),
        "system_fingerprint": context.service.fingerprint,
    }
    if body.prompt_logprobs is not None and whole.prompt_logprobs is not None:
        reply["prompt_logprobs"] = prompt_logprobs(tokenizer, whole.prompt_logprobs)
    if body.return_token_ids:
        reply["prompt_token_ids"] = whole.prompt_token_ids
    return reply


def _logprobs(context: ServerContext, body: ChatRequest, token_ids: list[int], entries: Any) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    as_ids = bool(body.return_tokens_as_token_ids)
    return chat_logprobs(context.service.tokenizer, token_ids, entries or [], body.top_logprobs or 0, as_ids)


async def chat_events(
    context: ServerContext, body: ChatRequest, call: Call, generation: Generation
) -> AsyncGenerator[bytes, None]:
    """Per choice: the role, the echo if asked, what each step adds, the last with the finish reason; then the usage."""
    frame = {"id": call.id, "object": "chat.completion.chunk", "created": call.created, "model": call.model}
    (request,) = generation.requests
    count = UsageCount(generation.requests)

    def chunk(choice: dict[str, Any], last: bool = False) -> bytes:
        value: dict[str, Any] = {**frame, "choices": [choice]}
        if body.continuous_usage:
            value["usage"] = count.report()
        if last:
            value["system_fingerprint"] = context.service.fingerprint
        return event(value)

    def opening() -> bytes:
        pieces = []
        for index in range(request.params.n):
            delta = {"role": "assistant", "content": ""}
            choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            value: dict[str, Any] = {**frame, "choices": [choice]}
            if body.return_token_ids:
                value["prompt_token_ids"] = list(request.prompt_token_ids)
            if body.continuous_usage:
                value["usage"] = count.report()
            pieces.append(event(value))
        if body.echo and (text := last_text(body.messages)):
            for index in range(request.params.n):
                delta = {"content": text}
                pieces.append(chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}))
        return b"".join(pieces)

    def piece(output: SequenceOutput) -> bytes:
        choice: dict[str, Any] = {
            "index": output.index,
            "delta": {"content": output.text} if output.text or output.finish_reason is None else {},
            "logprobs": _logprobs(context, body, output.token_ids, output.logprobs) if output.token_ids else None,
            "finish_reason": output.finish_reason,
        }
        if body.return_token_ids:
            choice["token_ids"] = output.token_ids
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
            if request.used_seed is not None:
                choice["seed"] = request.used_seed
        return chunk(choice, last=output.finish_reason is not None)

    more = body.logprobs or body.return_token_ids or body.continuous_usage
    plain: dict[int, TextEvents] = {}  # of choices that have begun

    def piece_of(output: SequenceOutput) -> bytes:
        if output.finish_reason is not None or more:
            return piece(output)
        if output.index not in plain:
            choice = {"index": output.index, "delta": {"content": TEXT}, "logprobs": None, "finish_reason": None}
            plain[output.index] = TextEvents({**frame, "choices": [choice]})
        return plain[output.index].event(output.text)

    begun = False
    async for position, outputs in generation.outputs():
        outputs, failed = split_failures(outputs)
        data = [] if begun else [opening()]
        begun = True
        count.add(position, outputs)
        # A step that only completes part of a character brings nothing to show, unless logprobs or ids were asked for.
        quiet = not (body.logprobs or body.return_token_ids)
        data += [piece_of(one) for one in outputs if one.text or one.finish_reason is not None or not quiet]
        if data:
            yield b"".join(data)
        raise_for_failure(failed)
    if body.include_usage:
        yield event({**frame, "choices": [], "usage": count.report()})
