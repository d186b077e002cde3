"""POST /v1/embeddings: texts or token ids in, a vector for each out."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.embedding import PoolingParams
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import Request as EngineRequest
from octavo.server.auth import tenant_of
from octavo.server.context import Call, ServerContext
from octavo.server.convert import encode_prompt, split_prompts, standing
from octavo.server.embeddings_wire import EmbeddingRequest
from octavo.server.errors import bad_request, renamed
from octavo.server.openapi import RUN, describes
from octavo.server.reply import json_reply
from octavo.server.service import Service
from octavo.server.streaming import unless_client_leaves

MAX_INPUTS = 2048  # of one call, as OpenAI has it


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/embeddings", tags=["embed"], openapi_extra=describes("Embeddings", EmbeddingRequest, RUN))
    async def create_embeddings(http: Request) -> Response:
        """The vector of each input, of length 1."""
        body = await context.reader.read(http, EmbeddingRequest)
        call = context.call("embd", body.model, tenant_of(http))
        requests, params = await context.admit(http, body, call, embedding_requests, context.service, body, call)
        outputs = await unless_client_leaves(http, in_turns(context, requests))
        reply = await context.off_loop(body, embedding_reply, call, params, outputs, body.encoding_format == "base64")
        return json_reply(reply)

    return routes


def embedding_requests(
    service: Service, body: EmbeddingRequest, call: Call
) -> tuple[list[EngineRequest], PoolingParams]:
    """One request for each input, all admitted or none, and what is to become of their vectors."""
    service.embedding.check(body.dimensions)
    params = PoolingParams(
        dimensions=body.dimensions,
        use_activation=body.use_activation is not False,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
    )
    asked, truncated = params.for_prompt(), body.truncate_prompt_tokens is not None
    with renamed({"prompt": "input"}):
        entries = split_prompts(body.input)
        if len(entries) > MAX_INPUTS:
            raise bad_request(f"input holds {len(entries)} texts; it may hold {MAX_INPUTS} at most.", "input")
        prompts = [encode_prompt(service, entry, body.add_special_tokens is not False, truncated) for entry in entries]
        requests = [
            service.admit(
                f"{call.id}-{position}",
                prompt.token_ids,
                asked,
                prompt=prompt.text,
                **standing(call, body),
                pooling=service.embedding.pooling,
            )
            for position, prompt in enumerate(prompts)
        ]
    return requests, params


async def in_turns(context: ServerContext, requests: Sequence[EngineRequest]) -> list[RequestOutput]:
    """The outputs of many requests, of which only so many are in the engine at once as any call may bring there."""
    outputs: list[RequestOutput] = []
    for start in range(0, len(requests), context.config.max_n):
        outputs += await context.start(requests[start : start + context.config.max_n]).whole()
    return outputs


def embedding_reply(
    call: Call, params: PoolingParams, outputs: Sequence[RequestOutput], as_base64: bool
) -> dict[str, Any]:
    """Numbers as they are written shortest for float32, or the bytes of little-endian float32."""
    vectors = [params.embedding(output.vector) for output in outputs]
    num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    return {
        "id": call.id,
        "object": "list",
        "created": call.created,
        "model": call.model,
        "data": [
            {
                "index": index,
                "object": "embedding",
                "embedding": base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector,
            }
            for index, vector in enumerate(vectors)
        ],
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
