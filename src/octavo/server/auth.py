"""Authentication around the whole app, but for a short open list; a key says whose share a request takes."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.config import ServerConfig
from octavo.engine.request import EVERYONE, Tenant
from octavo.errors import ConfigError
from octavo.server.errors import ApiError, error_response

# Probes of load balancers carry no key; neither route runs the model or tells anything but up or down.
OPEN_PATHS = frozenset({"/health", "/ping"})
TENANT = "octavo.tenant"  # in the scope of a request that has shown a key


class Authentication:
    """Wraps an ASGI app: every path needs `Authorization: Bearer KEY` or `x-api-key: KEY`, except OPEN_PATHS."""

    def __init__(self, app: ASGIApp, keys: Mapping[bytes, Tenant]) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and _route(scope) not in OPEN_PATHS:
            tenant = self._tenant(scope)
            if tenant is None:
                text = 'A key is needed: send the header "Authorization: Bearer KEY", or "x-api-key: KEY".'
                error = ApiError(401, text)
                error.headers["www-authenticate"] = "Bearer"
                await error_response(error, scope["path"])(scope, receive, send)
                return
            scope[TENANT] = tenant
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant | None:
        # Digests make the comparison's time independent of the key's length too; all keys are compared, always.
        digest = hashlib.sha256(_key(scope)).digest()
        matches = [tenant for known, tenant in self.keys.items() if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None


def tenant_of(request: Request) -> Tenant:
    """Whose request it is. Where the server has no keys, everyone's."""
    tenant: Tenant = request.scope.get(TENANT, EVERYONE)
    return tenant


def read_keys(config: ServerConfig) -> dict[bytes, Tenant]:
    """The tenant of each key, by the key's digest: the key itself is kept nowhere. Raises ConfigError."""
    keys: dict[bytes, Tenant] = {}
    for number, key in enumerate(config.api_key, 1):
        keys[_digest(key)] = Tenant(f"api-key-{number}")
    for number, table in enumerate(_tables(config.api_key_file) if config.api_key_file else (), 1):
        where = f"api_key_file = {config.api_key_file!r}, [[keys]] number {number}"
        key, tenant = _read_table(table, where)
        if _digest(key) in keys:
            raise ConfigError(f"{where}: its key is given before, in this file or by --api-key; give each key once.")
        if any(tenant.name == other.name for other in keys.values()):
            raise ConfigError(f"{where}: the name {tenant.name!r} is taken; each key needs a name of its own.")
        keys[_digest(key)] = tenant
    return keys


def _tables(path: str) -> list[Any]:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"api_key_file = {path!r} cannot be read: {error.strerror}.") from None
    except ValueError:  # not TOML, not UTF-8; the parser's own message may hold a part of a key
        raise ConfigError(f"api_key_file = {path!r} is not TOML.") from None
    tables = content.pop("keys", None)
    if content or not isinstance(tables, list) or not tables:
        raise ConfigError(f"api_key_file = {path!r} must hold one table [[keys]] or more, and nothing beside them.")
    return tables


def _read_table(table: Any, where: str) -> tuple[str, Tenant]:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: it must be a table with a key and a name.")
    if table.keys() - {"key", "name", "weight", "priority_ceiling"}:  # not shown: a misplaced key may be among them
        raise ConfigError(f"{where}: it may hold key, name, weight and priority_ceiling, and nothing else.")
    key, name, weight = table.get("key"), table.get("name"), table.get("weight", 1)
    ceiling = table.get("priority_ceiling")
    if not isinstance(key, str) or not key or not key.isascii() or key != key.strip():
        raise ConfigError(f"{where}: key must be a text of ASCII characters without space around it.")
    if not isinstance(name, str) or not 0 < len(name) <= 64 or key in name:
        raise ConfigError(f"{where}: name must be a text of up to 64 characters, without the key in it.")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1e-3 <= weight <= 1e3:
        raise ConfigError(f"{where}: weight must be a number from 0.001 to 1000.")
    if ceiling is not None and (type(ceiling) is not int or not -(2**31) <= ceiling < 2**31):
        raise ConfigError(f"{where}: priority_ceiling must be an integer of 32 bits.")
    return key, Tenant(name, float(weight), ceiling)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _key(scope: Scope) -> bytes:
    """The bearer token; without one, the header that Anthropic's clients send."""
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of a name counts
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token if scheme == b"Bearer" else headers.get(b"x-api-key", b"")


def _route(scope: Scope) -> str:
    """The path as the routes know it: without the prefix that a proxy adds (--root-path)."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
