"""/openapi.json: what each route takes and every answer that it may give, made of the routes and their schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from octavo._version import __version__
from octavo.server import reply_schema
from octavo.server.auth import OPEN_PATHS
from octavo.server.context import ServerContext
from octavo.server.embeddings_wire import EmbeddingRequest
from octavo.server.messages_wire import CountTokensRequest, MessagesRequest
from octavo.server.responses_wire import ResponsesRequest
from octavo.server.wire import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from octavo.server.wire_schema import NULL, TEXT, TOKEN_ID, Schema, object_of

WIRE_MODELS = (
    CompletionRequest,
    ChatRequest,
    ResponsesRequest,
    MessagesRequest,
    CountTokensRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
DESCRIPTIONS = {
    200: "What was asked for",
    400: "A field is wrong, or the body is no JSON; param names the field",
    401: "There is no key, or one that is not known",
    404: "The model does not exist",
    408: "The body came too slowly",
    413: "The body is too large",
    429: "The queue is full",
    500: "The server met an error of its own",
    503: "The server is shutting down, or its engine has stopped",
    504: "The request's timeout passed",
}
BODY = (400, 404, 408, 413, 500)  # of a route that takes a body
RUN = (*BODY, 429, 503, 504)  # of one that runs the model
HEADERS = {
    401: {"www-authenticate": "The scheme of the key."},
    429: {"retry-after": "Seconds after which to try again."},
}


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def describes(
    gives: str | Schema,
    takes: type[BaseModel] | None = None,
    fails: Iterable[int] = (500,),
    events: Schema | None = None,
    error: str = "Error",
) -> dict[str, Any]:
    """What OpenAPI is told of a route: the schema of its reply, of its body, of each event where it streams."""
    content = {"application/json": {"schema": reference(gives)}} if isinstance(gives, str) else gives
    if events is not None:
        content["text/event-stream"] = {"schema": events}
    operation: dict[str, Any] = {"responses": {"200": response(200, content)}}
    for status in (401, *fails):  # 401 where there are keys
        operation["responses"][str(status)] = failure(status, error)
    if takes is not None:
        body = {"application/json": {"schema": reference(takes.__name__)}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def response(status: int, content: Schema) -> dict[str, Any]:
    headers = {"x-request-id": "The client's own, where it is well formed."} | HEADERS.get(status, {})
    named = {name: {"description": text, "required": True, "schema": TEXT} for name, text in headers.items()}
    return {"description": DESCRIPTIONS[status], "headers": named} | ({"content": content} if content else {})


def failure(status: int, error: str = "Error") -> dict[str, Any]:
    return response(status, {"application/json": {"schema": reference(error)}})


def data_events(chunk: str) -> Schema:
    """Events without a name: chunks, an error where the reply fails under way, and a mark at the end."""
    either = {"anyOf": [reference(chunk), reference("Error")]}
    return {"anyOf": [object_of({"data": {"const": "[DONE]"}}), object_of({"data": _json(either)})]}


def named_events(kind: str) -> Schema:
    return object_of({"event": TEXT, "data": _json(reference(kind))})


def _json(schema: Schema) -> Schema:
    return {**TEXT, "contentMediaType": "application/json", "contentSchema": schema}


def document(context: ServerContext, routers: Iterable[APIRouter]) -> dict[str, Any]:
    """The document of a server: names and vocabulary are those of its model."""
    config, service = context.config, context.service
    _, definitions = models_json_schema(
        [(model, "validation") for model in WIRE_MODELS], ref_template="#/components/schemas/{model}"
    )
    schemas = definitions["$defs"] | reply_schema.NAMED
    for part in _parts(schemas):
        if part.get("title") == TOKEN_ID["title"]:
            part["maximum"] = service.tokenizer.vocab_size - 1
    for model in WIRE_MODELS:
        schemas[model.__name__]["properties"]["model"] = {"enum": [None, *service.model_names]}
    nested, size = service.embedding.nested, service.embedding.size
    schemas["EmbeddingRequest"]["properties"]["dimensions"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": size}, NULL]
        if nested is None
        else [{"enum": [None, *sorted(nested)]}]
    }
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "octavo",
            "version": __version__,
            "description": "An OpenAI-compatible server. Paths have no trailing slash.",
        },
        "paths": {},
        "components": {"schemas": schemas},
    }
    if config.root_path:
        described["servers"] = [{"url": config.root_path}]
    has_keys = bool(config.api_key or config.api_key_file)
    if has_keys:
        described["security"] = [{"bearer": []}, {"header": []}]
        described["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    for route in (route for router in routers for route in router.routes):
        if not isinstance(route, APIRoute) or not route.include_in_schema:
            continue
        path = described["paths"].setdefault(route.path_format, {})
        for method in sorted(map(str.lower, route.methods or ())):
            path[method] = _operation(route, method, has_keys)
    return described


def _operation(route: APIRoute, method: str, has_keys: bool) -> dict[str, Any]:
    told = route.openapi_extra or {}
    operation: dict[str, Any] = {
        "tags": route.tags,
        "summary": route.summary or route.name.replace("_", " ").capitalize(),
        "description": route.description,
        "operationId": f"{route.name}{route.path_format}_{method}".translate(str.maketrans("/{}", "___")),
        **told,
    }
    is_open = route.path_format in OPEN_PATHS
    if has_keys and is_open:
        operation["security"] = []
    if is_open or not has_keys:
        operation["responses"] = {key: value for key, value in operation["responses"].items() if key != "401"}
    if method == "head":
        operation["responses"] = {
            status: {key: value for key, value in answer.items() if key != "content"}
            for status, answer in operation["responses"].items()
        }
    return operation


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _parts(item)
