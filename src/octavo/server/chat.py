"""POST /v1/chat/completions: messages in, one message (or n) out, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import RequestOutput, SequenceOutput
from octavo.server.auth import tenant_of
from octavo.server.chat_message import delta, finish_reason, message
from octavo.server.context import Call, ServerContext
from octavo.server.convert import chat_request, last_text
from octavo.server.generation import Generation, UsageCount, raise_for_failure, split_failures
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openapi import RUN, data_events, describes
from octavo.server.reply import json_reply, stream_reply
from octavo.server.streaming import TEXT, TextEvents, event, unless_client_leaves
from octavo.server.wire import ChatRequest
from octavo.text.events import Content
from octavo.text.splitter import Reply, ReplyFormat


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    told = describes("ChatCompletion", ChatRequest, RUN, data_events("ChatCompletionChunk"))

    @routes.post("/v1/chat/completions", tags=["generate"], openapi_extra=told)
    async def create_chat_completion(http: Request) -> Response:
        """Answers a conversation. With stream=true the reply is a stream of server-sent events."""
        body = await context.reader.read(http, ChatRequest)
        call = context.call("chatcmpl", body.model, tenant_of(http))
        request, format = await context.admit(
            http, body, call, chat_request, context.service, context.dialect, body, call, context.config.max_n
        )
        generation = context.start([request])
        if body.stream:
            return stream_reply(context, generation, chat_events(context, body, call, format, generation))
        (output,) = await unless_client_leaves(http, generation.whole())
        return json_reply(await context.off_loop(body, chat_reply, context, body, call, format, output))

    return routes


def chat_reply(
    context: ServerContext, body: ChatRequest, call: Call, format: ReplyFormat, whole: RequestOutput
) -> dict[str, Any]:
    tokenizer = context.service.tokenizer
    prefix = last_text(body.messages) if body.echo else ""
    choices = []
    for output in whole.outputs:
        splitter = format.splitter()
        reply = Reply.of([Content(prefix), *splitter.feed(output.text), *splitter.finish()])
        choice: dict[str, Any] = {
            "index": output.index,
            "message": message(reply),
            "logprobs": _logprobs(context, body, output.token_ids, output.logprobs),
            "finish_reason": finish_reason(output.finish_reason, splitter, body.tool_choice),
            "stop_reason": output.stop_reason,
        }
        if whole.seed is not None:
            choice["seed"] = whole.seed
        if body.return_token_ids:
            choice["token_ids"] = output.token_ids
        choices.append(choice)
    whole_reply: dict[str, Any] = {
        "id": call.id,
        "object": "chat.completion",
        "created": call.created,
        "model": call.model,
        "choices": choices,
        "usage": UsageCount.of_whole([whole]),
        "system_fingerprint": context.service.fingerprint,
    }
    if body.prompt_logprobs is not None and whole.prompt_logprobs is not None:
        whole_reply["prompt_logprobs"] = prompt_logprobs(tokenizer, whole.prompt_logprobs)
    if body.return_token_ids:
        whole_reply["prompt_token_ids"] = whole.prompt_token_ids
    return whole_reply


def _logprobs(context: ServerContext, body: ChatRequest, token_ids: list[int], entries: Any) -> dict[str, Any] | None:
    if not body.logprobs:
        return None
    as_ids = bool(body.return_tokens_as_token_ids)
    return chat_logprobs(context.service.tokenizer, token_ids, entries or [], body.top_logprobs or 0, as_ids)


async def chat_events(
    context: ServerContext, body: ChatRequest, call: Call, format: ReplyFormat, generation: Generation
) -> AsyncGenerator[bytes, None]:
    """Per choice: the role, the echo if asked, what each step adds, the last with the finish reason; then the usage."""
    frame = {"id": call.id, "object": "chat.completion.chunk", "created": call.created, "model": call.model}
    (request,) = generation.requests
    count = UsageCount(generation.requests)
    splitters = [format.splitter() for _ in range(request.params.n)]

    def chunk(choice: dict[str, Any], last: bool = False) -> bytes:
        value: dict[str, Any] = {**frame, "choices": [choice]}
        if body.continuous_usage:
            value["usage"] = count.report()
        if last:
            value["system_fingerprint"] = context.service.fingerprint
        return event(value)

    def opening() -> bytes:
        openings = []
        for index in range(request.params.n):
            delta = {"role": "assistant", "content": ""}
            choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            value: dict[str, Any] = {**frame, "choices": [choice]}
            if body.return_token_ids:
                value["prompt_token_ids"] = list(request.prompt_token_ids)
            if body.continuous_usage:
                value["usage"] = count.report()
            openings.append(event(value))
        if body.echo and (text := last_text(body.messages)):
            for index in range(request.params.n):
                delta = {"content": text}
                openings.append(chunk({"index": index, "delta": delta, "logprobs": None, "finish_reason": None}))
        return b"".join(openings)

    def pieces(output: SequenceOutput) -> Iterator[bytes]:
        splitter = splitters[output.index]
        told = splitter.feed(output.text)
        if output.finish_reason is not None:
            told += splitter.finish()
        # A step that shows nothing, such as one that completes part of a character, still has its logprobs and ids.
        asked = bool(body.logprobs or body.return_token_ids)
        deltas = [delta(one) for one in told] or ([{}] if asked or output.finish_reason is not None else [])
        for position, content in enumerate(deltas):
            last = output.finish_reason is not None and position == len(deltas) - 1
            if not last and not asked and not body.continuous_usage and content.keys() == {"content"}:
                yield plain_event(output.index, content["content"])
                continue
            choice: dict[str, Any] = {"index": output.index, "delta": content, "logprobs": None, "finish_reason": None}
            if position == 0:
                if output.token_ids:
                    choice["logprobs"] = _logprobs(context, body, output.token_ids, output.logprobs)
                if body.return_token_ids:
                    choice["token_ids"] = output.token_ids
            if last:
                choice["finish_reason"] = finish_reason(output.finish_reason, splitter, body.tool_choice)
                choice["stop_reason"] = output.stop_reason
                if request.used_seed is not None:
                    choice["seed"] = request.used_seed
            yield chunk(choice, last)

    plain: dict[int, TextEvents] = {}  # of choices that have begun

    def plain_event(index: int, text: str) -> bytes:
        if index not in plain:
            choice = {"index": index, "delta": {"content": TEXT}, "logprobs": None, "finish_reason": None}
            plain[index] = TextEvents({**frame, "choices": [choice]})
        return plain[index].event(text)

    begun = False
    async for position, outputs in generation.outputs():
        outputs, failed = split_failures(outputs)
        data = [] if begun else [opening()]
        begun = True
        count.add(position, outputs)
        for output in outputs:
            data += pieces(output)
        if data:
            yield b"".join(data)
        raise_for_failure(failed)
    if body.include_usage or context.config.enable_force_include_usage:
        yield event({**frame, "choices": [], "usage": count.report()})
