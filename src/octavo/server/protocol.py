"""HTTP/1.1 connections with bounded headers, and no reading on of bodies that are answered: uvicorn bounds neither."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import ref

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.errors import ApiError, error_object
from octavo.server.streaming import ABORT_EXTENSION

MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 100
HEADER_TIMEOUT = 30.0  # seconds from the first byte of a request to the end of its headers
LINGER = 1.0  # seconds in which a refused client may take its answer; what it still sends is dropped


class AnswerTransport(asyncio.Transport):
    """The transport as an answer sees it: when that closes it, a client may be in the midst of its body.

    It holds neither the protocol nor the request, which hold it: they end with the connection, not with a collection.
    """

    def __init__(self, protocol: BoundedProtocol, cycle: RequestResponseCycle) -> None:
        self._transport = protocol.transport
        self._protocol, self._cycle = ref(protocol), ref(cycle)

    def write(self, data: Any) -> None:
        self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        protocol, cycle = self._protocol(), self._cycle()
        if protocol is not None and cycle is not None and cycle.more_body:
            protocol.linger()
        else:
            self._transport.close()


class BoundedProtocol(HttpToolsProtocol):
    """Closes a connection whose headers are too many (431), too large (431) or too slow (408), and one whose request is
    answered before its body has come, as one too large is: the rest of that is not read.
    """

    _header_bytes = 0  # received while no header section was complete
    _field_bytes = 0  # of the names and values of this request
    _in_headers = True  # also before the first byte: an idle new connection is cut as well
    _refused = False
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._in_headers:
            super().data_received(data)
            return
        # Fed in pieces, so that one that holds a body too is not counted as headers as a whole.
        for start in range(0, len(data), MAX_HEADER_BYTES):
            piece = data[start : start + MAX_HEADER_BYTES]
            if self._in_headers:
                self._header_bytes += len(piece)
            super().data_received(piece)
            if self._in_headers and self._header_bytes > MAX_HEADER_BYTES:
                self._refuse_size()
            if self._refused or self.transport.is_closing():
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._field_bytes = 0
        if self._header_timer is None:
            self._start_timer()
        # The type of scope has no place for extensions of a server's own.
        scope: Any = self.scope
        scope["extensions"] = {ABORT_EXTENSION: self.transport.abort}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > MAX_HEADER_BYTES:
            self._refuse_size()
            return
        if len(self.headers) >= MAX_HEADERS:
            self._refuse(431, f"There are more than {MAX_HEADERS} headers.")
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._stop_timer()
        if not self._refused:
            super().on_headers_complete()
            self._watch_answer()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def _watch_answer(self) -> None:
        self.cycle.transport = AnswerTransport(self, self.cycle)
        answered = ref(self.cycle)

        async def answer(message: Any) -> None:
            cycle = answered()
            assert cycle is not None  # what sends is its own coroutine
            if cycle.more_body:
                cycle.keep_alive = False  # the answer says so too
            await type(cycle).send(cycle, message)

        self.cycle.send = answer  # type: ignore[method-assign]

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            HEADER_TIMEOUT, self._refuse, 408, f"The headers did not arrive within {HEADER_TIMEOUT:.0f} seconds."
        )

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse_size(self) -> None:
        self._refuse(431, f"The headers are larger than {MAX_HEADER_BYTES} bytes.")

    def _refuse(self, status: int, message: str) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._stop_timer()
        body = orjson.dumps(error_object(ApiError(status, message)))
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.linger()

    def linger(self) -> None:
        self._refused = True
        # Closing at once, with bytes of the client unread, would reset the connection and take the answer with it.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)
