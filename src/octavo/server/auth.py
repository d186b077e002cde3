"""Authentication around the whole app, but for a short open list."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.errors import ApiError, error_response

# Probes of load balancers carry no key; neither route runs the model or tells anything but up or down.
OPEN_PATHS = frozenset({"/health", "/ping"})


class Authentication:
    """Wraps an ASGI app: every path needs `Authorization: Bearer KEY`, whatever is routed inside, except OPEN_PATHS."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self.app = app
        self.digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and _route(scope) not in OPEN_PATHS and not self._admits(scope):
            error = ApiError(401, 'A key is needed: send the header "Authorization: Bearer KEY".')
            error.headers["www-authenticate"] = "Bearer"
            await error_response(error)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = header.partition(b" ")
        # Digests make the comparison's time independent of the key's length too; all keys are compared, always.
        digest = hashlib.sha256(key).digest()
        matches = [hmac.compare_digest(digest, known) for known in self.digests]
        return scheme == b"Bearer" and any(matches)


def _route(scope: Scope) -> str:
    """The path as the routes know it: without the prefix that a proxy adds (--root-path)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
