"""Every error that a client can meet, in OpenAI's shape, or in Anthropic's on Anthropic's paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import EngineDeadError, EngineFullError, RequestError

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}


ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer other than 200; `param` names the field at fault."""

    def __init__(
        self, status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = headers or {}


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an exception; anything unforeseen is a 500 that gives nothing away."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, str(error), error.param)
        case EngineFullError():
            # openai's clients honour retry-after; the finer header is theirs too.
            headers = {"retry-after": str(error.retry_after), "retry-after-ms": str(1000 * error.retry_after)}
            return ApiError(429, str(error), headers=headers)
        case EngineDeadError():
            return ApiError(503, str(error) or "The engine has stopped.")
        case _:
            return ApiError(500, "The server met an error of its own; its log says more.")


def error_object(error: ApiError) -> dict[str, Any]:
    kind = TYPES.get(error.status) or HTTPStatus(error.status).phrase
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def anthropic_error_object(error: ApiError) -> dict[str, Any]:
    kind = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_response(error: ApiError, path: str) -> Response:
    shape = anthropic_error_object if ANTHROPIC_PATH in path else error_object
    return Response(orjson.dumps(shape(error)), error.status, error.headers, media_type="application/json")


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Tells of a fault by the name that the field at fault has on the route, where the engine has another for it.

    The engine's names are patterns: the first that matches is replaced.
    """
    try:
        yield
    except (RequestError, ApiError) as error:
        for ours, theirs in names.items():
            if re.match(rf"{ours}\b", error.param or ""):
                message, param = (re.sub(rf"^{ours}\b", theirs, text) for text in (str(error), error.param or ""))
                raise bad_request(message, param) from None
        raise


async def on_error(request: Request, error: Exception) -> Response:
    return error_response(as_api_error(error), request.url.path)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers of the framework itself: unknown path, wrong method."""
    status: int = getattr(error, "status_code", 500)
    headers: dict[str, str] = dict(getattr(error, "headers", None) or {})
    path = request.url.path if len(request.url.path) <= 200 else request.url.path[:200] + "..."
    if status == 404:
        message = f"There is no {path} here; /docs lists what there is."
    elif status == 405:
        allowed = headers.get("Allow") or headers.get("allow") or "another"
        message = f"{path} does not take {request.method}; it takes {allowed}."
    else:
        message = str(getattr(error, "detail", "")) or HTTPStatus(status).phrase
    return error_response(ApiError(status, message, headers=headers), path)
