"""The ASGI application: routes, with identification, origins and authentication wrapped around all of them."""

from __future__ import annotations

from functools import cache

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from octavo.errors import OctavoError
from octavo.server import (
    chat,
    completions,
    docs,
    embeddings,
    messages,
    models,
    openapi,
    operations,
    responses,
    tokens,
)
from octavo.server.auth import Authentication, read_keys
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError, on_error, on_http_error
from octavo.server.request_id import RequestIds
from octavo.server.streaming import ClientGone, on_client_gone


def create_app(context: ServerContext) -> FastAPI:
    """All routes of the server. Nothing here knows how the engine works."""
    config = context.config
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None if config.disable_docs else "/openapi.json",
        redirect_slashes=False,
    )
    areas = (completions, chat, responses, messages, embeddings, models, tokens, operations)
    routers = [area.router(context) for area in areas]
    for routes in routers:
        app.include_router(routes)
    if not config.disable_docs:
        app.openapi = cache(lambda: openapi.document(context, routers))  # type: ignore[method-assign]
        app.include_router(docs.router())
    for kind in (ApiError, OctavoError, Exception):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(HTTPException, on_http_error)
    for kind in (ClientGone, ClientDisconnect):
        app.add_exception_handler(kind, on_client_gone)
    # The one added last is the outermost. Preflights carry no key, so that origins are outside of authentication.
    if config.api_key or config.api_key_file:
        app.add_middleware(Authentication, keys=read_keys(config))
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
            expose_headers=["x-request-id"],
        )
    app.add_middleware(RequestIds)
    return app
