"""GET /v1/models and /v1/models/{id}: exactly the names that requests may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from octavo.server.context import ServerContext
from octavo.server.openapi import describes
from octavo.server.reply import json_reply


def router(context: ServerContext) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/models", tags=["models"], openapi_extra=describes("Models"))
    async def list_models() -> Response:
        """The names that this server takes as model."""
        cards = [model_card(context, name) for name in context.service.model_names]
        return json_reply({"object": "list", "data": cards})

    # A name may hold slashes, as hub ids do.
    parameter = {"name": "name", "in": "path", "required": True, "schema": {"enum": list(context.service.model_names)}}
    told = describes("Model", fails=(404, 500)) | {"parameters": [parameter]}

    @routes.get("/v1/models/{name:path}", tags=["models"], openapi_extra=told)
    async def get_model(name: str) -> Response:
        """One of them."""
        return json_reply(model_card(context, context.model_name(name)))

    return routes


def model_card(context: ServerContext, name: str) -> dict[str, Any]:
    service = context.service
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "octavo",
        "root": service.model_root,
        "parent": None,
        "max_model_len": service.max_model_len,
        "permission": [],
    }
