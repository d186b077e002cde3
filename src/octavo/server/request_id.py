"""A client's x-request-id, sent back as a label; the engine's own ids are made by the server."""

from __future__ import annotations

import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What may be echoed in a header: printable, short, without separators.
LABEL = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """Wraps an ASGI app: every answer carries x-request-id, the client's own where it is well formed."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        label = given if LABEL.fullmatch(given) else uuid.uuid4().hex.encode()

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", label)]
            await send(message)

        await self.app(scope, receive, labelled)
