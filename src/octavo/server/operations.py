"""Routes for whoever runs the server: health, version, load and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import Response

from octavo._version import __version__
from octavo.server.context import ServerContext
from octavo.server.metrics import EngineCollector
from octavo.server.openapi import describes, response
from octavo.server.reply import json_reply


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter(tags=["operations"])
    registry = CollectorRegistry()
    registry.register(EngineCollector(context.service))

    async def health() -> Response:
        """200 while the engine makes progress and takes requests, 503 otherwise. Needs no key."""
        healthy = context.service.engine.is_healthy() and not context.draining
        return Response(status_code=200 if healthy else 503)

    up_or_down = {"responses": {str(status): response(status, {}) for status in (200, 503)}}
    for path, methods in (("/health", ["GET", "HEAD"]), ("/ping", ["GET", "HEAD", "POST"])):
        routes.add_api_route(path, health, methods=methods, openapi_extra=up_or_down)

    @routes.get("/version", openapi_extra=describes("Version"))
    async def version() -> Response:
        """The version of octavo."""
        return json_reply({"version": __version__})

    @routes.get("/load", openapi_extra=describes("Load"))
    async def load() -> Response:
        """How many requests run or wait."""
        return json_reply({"server_load": context.service.engine.num_live})

    if context.config.enable_dev_mode:

        @routes.post("/reset_prefix_cache", openapi_extra=describes({}, fails=(500, 503)))
        async def reset_prefix_cache() -> Response:
            """Later requests find nothing in the cache that was computed before."""
            await context.service.engine.reset_prefix_cache()
            return Response()

    @routes.get("/metrics", openapi_extra=describes({"text/plain": {"schema": {"type": "string"}}}))
    async def metrics(http: Request) -> Response:
        """Prometheus metrics of the engine."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes
