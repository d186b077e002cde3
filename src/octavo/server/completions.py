"""POST /v1/completions: text or token ids in, text out, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import completion_requests
from octavo.server.generation import Generation, UsageCount, raise_for_failure, split_failures
from octavo.server.logprobs import CompletionLogprobs, prompt_logprobs
from octavo.server.openapi import RUN, data_events, describes
from octavo.server.reply import json_reply, stream_reply
from octavo.server.streaming import TEXT, TextEvents, event, unless_client_leaves
from octavo.server.wire import CompletionRequest
from octavo.text.tokenizer import Tokenizer


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    told = describes("Completion", CompletionRequest, RUN, data_events("CompletionChunk"))

    @routes.post("/v1/completions", tags=["generate"], openapi_extra=told)
    async def create_completion(http: Request) -> Response:
        """Continues one prompt or several. With stream=true the reply is a stream of server-sent events."""
        body = await context.reader.read(http, CompletionRequest)
        call = context.call("cmpl", body.model, tenant_of(http))
        requests = await context.admit(
            http, body, call, completion_requests, context.service, body, call, context.config.max_n
        )
        generation = context.start(requests)
        if body.stream:
            return stream_reply(context, generation, completion_events(context, body, call, generation))
        outputs = await unless_client_leaves(http, generation.whole())
        return json_reply(await context.off_loop(body, completion_reply, context, body, call, outputs))

    return routes


def completion_reply(
    context: ServerContext, body: CompletionRequest, call: Call, outputs: list[RequestOutput]
) -> dict[str, Any]:
    tokenizer = context.service.tokenizer
    choices = [
        _choice(tokenizer, body, request_output, output, position * len(request_output.outputs) + output.index)
        for position, request_output in enumerate(outputs)
        for output in request_output.outputs
    ]
    return {
        "id": call.id,
        "object": "text_completion",
        "created": call.created,
        "model": call.model,
        "choices": choices,
        "usage": UsageCount.of_whole(outputs),
        "system_fingerprint": context.service.fingerprint,
    }


def _choice(
    tokenizer: Tokenizer, body: CompletionRequest, whole: RequestOutput, output: CompletionOutput, index: int
) -> dict[str, Any]:
    text, logprobs = output.text, None
    if body.echo:
        text = echoed(tokenizer, whole.prompt, whole.prompt_token_ids) + text
    if body.logprobs is not None:
        builder = CompletionLogprobs(tokenizer, body.logprobs, bool(body.return_tokens_as_token_ids))
        before = (whole.prompt_token_ids, whole.prompt_logprobs or []) if body.echo else ([], [])
        logprobs = builder.piece([*before[0], *output.token_ids], [*before[1], *(output.logprobs or [])])
    choice: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if whole.seed is not None:
        choice["seed"] = whole.seed
    if body.return_token_ids:
        choice["prompt_token_ids"] = whole.prompt_token_ids
        choice["token_ids"] = output.token_ids
    if body.prompt_logprobs is not None and whole.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs(tokenizer, whole.prompt_logprobs)
    return choice


def echoed(tokenizer: Tokenizer, prompt: str | None, token_ids: list[int]) -> str:
    """The prompt as it was sent; token ids as their text, control tokens included."""
    return prompt if prompt is not None else tokenizer.decode(token_ids, skip_special_tokens=False)


async def completion_events(
    context: ServerContext, body: CompletionRequest, call: Call, generation: Generation
) -> AsyncGenerator[bytes, None]:
    """Chunks in the order of the engine's steps; per choice the last has the finish reason. Then usage, if asked."""
    frame = {"id": call.id, "object": "text_completion", "created": call.created, "model": call.model}
    choices = _StreamedChoices(context.service.tokenizer, body, generation.requests)
    count = UsageCount(generation.requests)
    more = body.logprobs is not None or body.return_token_ids or body.continuous_usage
    plain: dict[tuple[int, int], TextEvents] = {}  # of choices that have begun
    async for position, outputs in generation.outputs():
        outputs, failed = split_failures(outputs)
        count.add(position, outputs)
        pieces = []
        for output in outputs:
            texts = plain.get((position, output.index))
            if texts is not None and output.finish_reason is None:
                pieces.append(texts.event(output.text))
                continue
            chunk: dict[str, Any] = {**frame, "choices": [choices.piece(position, output)]}
            if body.continuous_usage:
                chunk["usage"] = count.report()
            if output.finish_reason is not None:
                chunk["system_fingerprint"] = context.service.fingerprint
            pieces.append(event(chunk))
            if texts is None and not more:
                chunk["choices"][0]["text"] = TEXT
                plain[position, output.index] = TextEvents(chunk)
        if pieces:
            yield b"".join(pieces)
        raise_for_failure(failed)
    if body.include_usage or context.config.enable_force_include_usage:
        yield event({**frame, "choices": [], "usage": count.report()})


class _StreamedChoices:
    """What the choices of a stream need from one chunk to the next: which prompts were echoed, and text offsets."""

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, requests: Sequence[EngineRequest]) -> None:
        self.tokenizer = tokenizer
        self.body = body
        self.requests = requests
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._prompt_logprobs: dict[int, list[Any]] = {}
        self._begun: set[int] = set()

    def piece(self, position: int, output: Any) -> dict[str, Any]:
        body, request = self.body, self.requests[position]
        index = position * request.params.n + output.index
        first = index not in self._begun
        self._begun.add(index)
        text, token_ids, entries = output.text, output.token_ids, output.logprobs or []
        if output.prompt_logprobs is not None:
            self._prompt_logprobs[position] = output.prompt_logprobs
        if first and body.echo:
            prompt_ids = list(request.prompt_token_ids)
            text = echoed(self.tokenizer, request.prompt, prompt_ids) + text
            if body.logprobs is not None:
                token_ids = [*prompt_ids, *token_ids]
                entries = [*self._prompt_logprobs[position], *entries]
        logprobs = None
        if body.logprobs is not None:
            builder = self._logprobs.get(index)
            if builder is None:
                as_ids = bool(body.return_tokens_as_token_ids)
                builder = self._logprobs[index] = CompletionLogprobs(self.tokenizer, body.logprobs, as_ids)
            logprobs = builder.piece(token_ids, entries)
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
        }
        if output.finish_reason is not None:
            choice["stop_reason"] = output.stop_reason
            if request.used_seed is not None:
                choice["seed"] = request.used_seed
        if body.return_token_ids:
            choice["token_ids"] = output.token_ids
            if first:
                choice["prompt_token_ids"] = list(request.prompt_token_ids)
        return choice
