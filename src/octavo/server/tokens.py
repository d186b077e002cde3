"""/tokenize, /detokenize, /tokenizer_info: what the generating routes make of a text or a conversation, and by what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo.server.context import ServerContext
from octavo.server.convert import check_ids, encode_prompt, render_chat
from octavo.server.errors import bad_request
from octavo.server.logprobs import token_text
from octavo.server.openapi import BODY, describes
from octavo.server.reply import json_reply
from octavo.server.service import Service
from octavo.server.streaming import unless_client_leaves
from octavo.server.wire import DetokenizeRequest, TokenizeRequest


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    @routes.post("/tokenize", tags=["tokens"], openapi_extra=describes("Tokens", TokenizeRequest, BODY))
    async def create_tokens(http: Request) -> Response:
        """Token ids of a prompt, or of messages by way of the chat template."""
        body = await context.reader.read(http, TokenizeRequest)
        context.model_name(body.model)
        return json_reply(await unless_client_leaves(http, context.off_loop(body, tokenize, context.service, body)))

    @routes.post("/detokenize", tags=["tokens"], openapi_extra=describes("Text", DetokenizeRequest, BODY))
    async def create_text(http: Request) -> Response:
        """Text of token ids, control tokens included."""
        body = await context.reader.read(http, DetokenizeRequest)
        context.model_name(body.model)
        return json_reply(await unless_client_leaves(http, context.off_loop(body, detokenize, context.service, body)))

    if context.config.enable_tokenizer_info_endpoint:

        @routes.get("/tokenizer_info", tags=["tokens"], openapi_extra=describes("TokenizerInfo"))
        async def tokenizer_info() -> Response:
            """The special tokens and the chat template, under the names that transformers gives them."""
            tokenizer = context.service.tokenizer
            known = {"model_max_length": context.service.max_model_len, "chat_template": tokenizer.chat_template}
            return json_reply({"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens, **known})

    return routes


def tokenize(service: Service, body: TokenizeRequest) -> dict[str, Any]:
    if body.prompt is not None:
        ids = encode_prompt(service, body.prompt, body.add_special_tokens is not False).token_ids
    else:
        ids = render_chat(service, body.chat(), bool(body.add_special_tokens))
    texts = [token_text(service.tokenizer, token_id, False) for token_id in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": service.max_model_len, "tokens": ids, "token_strs": texts}


def detokenize(service: Service, body: DetokenizeRequest) -> dict[str, Any]:
    if not isinstance(body.tokens, list):
        raise bad_request("tokens must be a list of token ids.", "tokens")
    check_ids(body.tokens, "tokens")
    size = service.tokenizer.vocab_size
    if bad := [token_id for token_id in body.tokens if not 0 <= token_id < size][:1]:
        raise bad_request(f"tokens holds {bad[0]}, but the vocabulary has ids from 0 to {size - 1}.", "tokens")
    return {"prompt": service.tokenizer.decode(body.tokens, skip_special_tokens=False)}
