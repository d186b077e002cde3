"""How a reply leaves: as one JSON body, or as a stream whose failure is told within it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
from starlette.responses import Response

from octavo.errors import OctavoError
from octavo.server.context import ServerContext
from octavo.server.errors import ApiError, as_api_error, error_object
from octavo.server.generation import Generation
from octavo.server.streaming import DONE, EventStream, event

logger = logging.getLogger("octavo.server")


def json_reply(value: Any) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")


def error_event(error: ApiError) -> bytes:
    return event(error_object(error))


def stream_reply(
    context: ServerContext,
    generation: Generation,
    events: AsyncGenerator[bytes, None],
    failure: Callable[[ApiError], bytes] = error_event,
    end: bytes = DONE,
) -> EventStream:
    """`failure` writes the event that tells of an error, `end` is the mark behind the last event."""
    return EventStream(_guarded(events, failure, end), generation.close, context.config.stall_timeout)


async def _guarded(
    events: AsyncGenerator[bytes, None], failure: Callable[[ApiError], bytes], end: bytes
) -> AsyncGenerator[bytes, None]:
    """The events, an error event where they fail, and the end mark."""
    try:
        async for data in events:
            yield data
    except Exception as error:
        if not isinstance(error, ApiError | OctavoError):
            logger.exception("a stream failed")
        yield failure(as_api_error(error))
    finally:
        await events.aclose()
    if end:
        yield end
