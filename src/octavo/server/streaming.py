"""Server-sent events: one JSON object each, a bound on how long a reader may stall, an abort when the client leaves."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

logger = logging.getLogger("octavo.server")

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"
ABORT_EXTENSION = "octavo.abort"  # a protocol's way to drop a connection whose buffer will never empty


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


TEXT = uuid.uuid4().hex  # stands for the text of an event, see TextEvents


def encode(value: Any) -> bytes:
    """As JSON. Line breaks that JSON lets through are escaped: clients that split by Unicode lines cut there."""
    encoded = orjson.dumps(value)
    if not encoded.isascii():
        encoded = encoded.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        encoded = encoded.replace(b"\xc2\x85", b"\\u0085")
    return encoded


def event(value: dict[str, Any], name: str = "") -> bytes:
    """One event, with its name where the API has names."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + encode(value) + b"\n\n"


class TextEvents:
    """Events that differ in a text only, as most of a stream do: the rest is encoded once."""

    def __init__(self, value: dict[str, Any]) -> None:
        """`value` has TEXT in the place of the text."""
        self._before, self._after = event(value).split(encode(TEXT))

    def event(self, text: str) -> bytes:
        return self._before + encode(text) + self._after


async def client_left(receive: Receive) -> None:
    """Returns when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; cancels it and raises ClientGone when the connection closes first."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(client_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        await _end(working, leaving)


class EventStream(Response):
    """Sends what `events` yields. However it ends, and if it never began, `close` is awaited: nothing stays behind."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes], close: Callable[[], Awaitable[None]], stall_timeout: float
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.events = events
        self.close = close
        self.stall_timeout = stall_timeout
        self._write_start: float | None = None  # of a write that has not ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(client_left(receive))
        stalling = asyncio.ensure_future(self._stall())
        try:
            await asyncio.wait({sending, leaving, stalling}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif stalling.done():
                logger.info("a client left its stream unread for %g s; aborted", self.stall_timeout)
                scope.get("extensions", {}).get(ABORT_EXTENSION, lambda: None)()
                await asyncio.wait({leaving}, timeout=1.0)
        finally:
            await _end(sending, leaving, stalling)
            await self.events.aclose()
            await self.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        async for data in self.events:
            # `send` returns at once while the socket takes data, and waits while the client does not read.
            self._write_start = loop.time()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._write_start = None
        self._write_start = loop.time()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stall(self) -> None:
        """Returns when a write has waited for too long. One timer for all of them: most need none."""
        loop = asyncio.get_running_loop()
        while True:
            start = self._write_start
            left = self.stall_timeout - (loop.time() - start if start is not None else 0.0)
            if left <= 0:
                return
            await asyncio.sleep(left)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """The answer that nobody reads; the status is nginx's for a client that left."""
    return Response(status_code=499)
