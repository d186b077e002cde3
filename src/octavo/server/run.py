"""From a bound socket to an orderly end: the life of the server process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from types import FrameType

import uvicorn

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.context import ServerContext
from octavo.server.protocol import BoundedProtocol
from octavo.server.service import Service

logger = logging.getLogger("octavo.server")

# What replies may take to leave once the engine has ended them.
FLUSH_TIMEOUT = 3


def bind(host: str, port: int) -> socket.socket:
    """A socket that holds host:port but refuses connections until the server listens. ConfigError names the port.

    Bound without SO_REUSEADDR, it excludes a second server even while this one still loads its model. Only where old
    connections of an ended server linger is it bound with it; a server that listens excludes either.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:  # the latter where a label is empty or too long
        why = getattr(error, "strerror", None) or "it is no host name"
        raise ConfigError(f"host = {host!r} is not an address of this machine: {why}.") from None
    for reuse in (0, 1):
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            bound.bind(address)
            if reuse:
                # bind() alone lets two sockets share a port as long as none listens; listen() does not.
                bound.listen()
            return bound
        except OSError as error:
            bound.close()
            cause = error
    raise ConfigError(
        f"Port {port} on {host} cannot be used: {os.strerror(cause.errno or 0)}. "
        f"Stop the process that has it, or choose another with --port."
    )


class Server(uvicorn.Server):
    """Ends in three stages: no new requests; running ones finish, up to shutdown_timeout; the rest is told."""

    def __init__(self, context: ServerContext, config: ServerConfig) -> None:
        app = create_app(context)
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=config.log_level,
                access_log=False,
                server_header=False,
                root_path=config.root_path,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
                timeout_graceful_shutdown=FLUSH_TIMEOUT,
            )
        )
        self.context = context
        self.shutdown_timeout = config.shutdown_timeout
        self.engine_died = False
        self._forced: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._forced = asyncio.Event()
        await super().startup(sockets)
        for bound in sockets or ():
            host, port = bound.getsockname()[:2]
            scheme = "https" if self.config.ssl else "http"
            logger.info("Listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)

    async def on_tick(self, counter: int) -> bool:
        engine = self.context.service.engine
        # A dead engine has told its last clients and has no streams left; what never returns from a step keeps some.
        if not engine.is_healthy() and engine.num_live == 0 and not self.should_exit:
            logger.critical("The engine has stopped, and so does the server.")
            self.engine_died = True
            return True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.context.draining = True
        for server in self.servers:
            server.close()
        draining = asyncio.ensure_future(self.context.service.engine.drain(self.shutdown_timeout))
        assert self._forced is not None
        forced = asyncio.ensure_future(self._forced.wait())
        # The engine itself waits for a step in flight; a step that never ends must not keep the process.
        patience = self.shutdown_timeout + FLUSH_TIMEOUT
        await asyncio.wait({draining, forced}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        forced.cancel()
        await asyncio.gather(draining, forced, return_exceptions=True)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signal again at the end, and so would exit with its status instead of 0.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends in order, the second without waiting, the third at once."""
        if self.force_exit:
            os._exit(1)
        if self.should_exit:
            self.force_exit = True
            if self._loop is not None and self._forced is not None:
                self._loop.call_soon_threadsafe(self._forced.set)
        self.should_exit = True


def serve(service: Service, config: ServerConfig, bound: socket.socket) -> int:
    """Serves until a signal comes (status 0) or the engine dies (status 1); the engine is closed when it returns."""
    with contextlib.closing(service.engine), contextlib.closing(ServerContext(service, config)) as context:
        server = Server(context, config)
        # Vocabulary, modules and model stay until the end. A full collection that walks them stops all streams for
        # 0.1 s and more, some thousand requests apart.
        gc.freeze()
        server.run([bound])
        return int(server.engine_died)
