"""From the bytes of a request to a checked wire model: bounded in size, depth and time, and off the loop when large."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from octavo.server.errors import ApiError, bad_request
from octavo.server.wire import FieldError, WireModel
from octavo.threads import in_thread

logger = logging.getLogger("octavo.server")

Wire = TypeVar("Wire", bound=WireModel)

# Parsing 64 KiB takes well under a millisecond; larger bodies go to a thread so that other streams keep their pace.
INLINE_BYTES = 64 << 10
BODY_TIMEOUT = 60.0
MOST_NAMES_REMEMBERED = 1024


class BodyReader:
    """Reads and checks bodies; remembers which unknown fields were logged, so that each is logged once."""

    def __init__(self, max_body_size: int) -> None:
        self.max_body_size = max_body_size
        self._logged: set[str] = set()

    async def read(self, request: Request, model: type[Wire]) -> Wire:
        """Raises ApiError 400 (not JSON, or a field is wrong), 408 (too slow) or 413 (too large)."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise bad_request("The body must be JSON, with the header Content-Type: application/json.")
        raw = await self._bytes(request)
        if len(raw) <= INLINE_BYTES:
            parsed = parse(raw, model)
        else:
            parsed = await in_thread(None, parse, raw, model)
        parsed.num_bytes = len(raw)
        self._log_unknown(parsed)
        return parsed

    async def _bytes(self, request: Request) -> bytes:
        too_large = ApiError(413, f"The body is larger than the limit of {self.max_body_size} bytes (--max-body-size).")
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.max_body_size:
            raise too_large
        raw = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for piece in request.stream():
                    raw += piece
                    if len(raw) > self.max_body_size:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"The body did not arrive within {BODY_TIMEOUT:.0f} seconds.") from None
        except ClientDisconnect:
            raise bad_request("The connection closed before the body was complete.") from None
        return bytes(raw)

    def _log_unknown(self, parsed: BaseModel) -> None:
        for name in parsed.model_extra or ():
            label = name[:64]
            if label not in self._logged and len(self._logged) < MOST_NAMES_REMEMBERED:
                self._logged.add(label)
                logger.info("field %r of %s is unknown and ignored", label, type(parsed).__name__)


def parse(raw: bytes, model: type[Wire]) -> Wire:
    """JSON by the strict rules (no NaN, no lone surrogates, bounded depth), then the model's own."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    return checked(model, value)


def checked(model: type[Wire], value: dict[str, Any]) -> Wire:
    """The form that `value` is, or a 400 that names the first fault."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _field_error(error) from None


def _field_error(error: ValidationError) -> ApiError:
    """What a client is told of the first fault."""
    # Input values stay out of what is sent and logged: they may be prompts.
    detail = error.errors(include_url=False, include_input=False)[0]
    path = field_path(detail["loc"])
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return bad_request(f"{path} is missing.", path)
        case "value_error":
            # Our own validators write whole sentences.
            cause = context.get("error")
            if isinstance(cause, FieldError):
                path = field_path((*detail["loc"], cause.field))
            return bad_request(str(cause) if path in str(cause) else f"{path}: {cause}", path or None)
        case "int_type" | "int_from_float" | "int_parsing":
            text = "must be a whole number"
        case "float_type" | "float_parsing":
            text = "must be a number"
        case "bool_type" | "bool_parsing":
            text = "must be true or false"
        case "string_type":
            text = "must be a string"
        case "list_type":
            text = "must be a list"
        case "dict_type" | "model_type" | "model_attributes_type":
            text = "must be an object"
        case "too_short" | "string_too_short":
            text = "must not be empty"
        case "too_long" | "string_too_long":
            text = f"must not be longer than {context.get('max_length')}"
        case "string_pattern_mismatch":
            text = f"must match {context.get('pattern')}"
        case "literal_error":
            text = f"must be {context.get('expected')}"
        case _:
            text = detail["msg"].replace("Input should", "must", 1)
    return bad_request(f"{path} {text}.", path)


def field_path(parts: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") -> messages[0].role"""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part[:64]}" if path else part[:64]
    return path
