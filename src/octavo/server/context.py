"""What the routes of one server share."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from starlette.requests import Request as HttpRequest

from octavo.config import ServerConfig
from octavo.engine.request import Request, Tenant
from octavo.server.body import BodyReader
from octavo.server.errors import ApiError
from octavo.server.generation import Generation
from octavo.server.service import Service
from octavo.server.streaming import ClientGone, unless_client_leaves
from octavo.server.tools import Dialect
from octavo.server.wire import WireModel
from octavo.threads import in_thread

logger = logging.getLogger("octavo.server")

Args = ParamSpec("Args")
Result = TypeVar("Result")

# Rendering and tokenising hold the interpreter lock for part of their time: more threads would only take turns. Large
# bodies take turns among themselves, so that small ones never wait behind a queue of them.
TEXT_THREADS = 2
LARGE_BYTES = 64 << 10
# A request that constrains its output may wait for seconds until a grammar is compiled, and would keep a thread from
# all others meanwhile.
CONSTRAINED_THREADS = 8


@dataclass(frozen=True, slots=True)
class Call:
    """What is constant in a reply and in all chunks of a stream."""

    id: str
    created: int
    model: str
    tenant: Tenant
    timeout: float | None  # of requests that bring none
    given_up: Future[None] = field(default_factory=Future)  # done when its client left before it was admitted


class ServerContext:
    """The service, the server's options, and threads for text."""

    def __init__(self, service: Service, config: ServerConfig) -> None:
        self.service = service
        self.config = config
        self.dialect = Dialect.of(service.tokenizer, config)
        self.reader = BodyReader(config.max_body_size)
        self.draining = False
        self._threads = ThreadPoolExecutor(TEXT_THREADS, "octavo-text")
        self._large = ThreadPoolExecutor(1, "octavo-large-text")
        self._constrained = ThreadPoolExecutor(CONSTRAINED_THREADS, "octavo-constrained")

    async def off_loop(
        self, body: WireModel, function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
    ) -> Result:
        """Runs the text work of a call where it cannot hold up other streams."""
        threads = self._large if body.num_bytes > LARGE_BYTES else self._threads
        return await in_thread(threads, function, *args, **kwargs)

    async def admit(
        self,
        http: HttpRequest,
        body: WireModel,
        call: Call,
        function: Callable[Args, Result],
        *args: Args.args,
        **kwargs: Args.kwargs,
    ) -> Result:
        """The same for what makes requests of a body: those that may wait for a grammar hold up none but their like.
        ClientGone as soon as the client leaves: what was not begun is not done, and no thread waits for it any more.
        """
        if body.is_constrained and body.num_bytes <= LARGE_BYTES:
            work = in_thread(self._constrained, function, *args, **kwargs)
        else:
            work = self.off_loop(body, function, *args, **kwargs)
        try:
            return await unless_client_leaves(http, work)
        except (ClientGone, asyncio.CancelledError):
            call.given_up.set_result(None)
            raise

    def call(self, prefix: str, model: str | None, tenant: Tenant, joint: str = "-") -> Call:
        """A new call; its id is made here, whatever the client sent. Raises ApiError: unknown model, shutting down."""
        if self.draining:
            raise ApiError(503, "The server is shutting down.", headers={"retry-after": "10"})
        call_id = f"{prefix}{joint}{uuid.uuid4().hex}"
        return Call(call_id, int(time.time()), self.model_name(model), tenant, self.config.request_timeout)

    def model_name(self, name: str | None) -> str:
        """The name to echo. Absent means the first served name."""
        names = self.service.model_names
        if name is None:
            return names[0]
        if name not in names:
            shown = name if len(name) <= 200 else name[:200] + "..."
            raise ApiError(404, f"The model {shown!r} does not exist here; served: {', '.join(names)}.", "model")
        return name

    def start(self, requests: Sequence[Request]) -> Generation:
        """Hands admitted requests to the engine. Raises EngineFullError, EngineDeadError."""
        if self.config.enable_log_requests:
            for request in requests:
                logger.info(
                    "request %s: %d prompt tokens, %.500s",
                    request.request_id,
                    len(request.prompt_token_ids),
                    request.params,
                )
        return Generation(self.service.engine, requests)

    def close(self) -> None:
        for threads in (self._threads, self._large, self._constrained):
            threads.shutdown(wait=False, cancel_futures=True)
