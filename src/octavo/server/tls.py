"""The certificate and key of https, tried before anything that takes time."""

from __future__ import annotations

import ssl

from octavo.config import ServerConfig
from octavo.errors import ConfigError


def check_tls(config: ServerConfig) -> None:
    """Raises ConfigError where the server could not listen with what it is given."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return
    for name in ("ssl_certfile", "ssl_keyfile"):
        path = getattr(config, name)
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{name} = {path!r} cannot be read: {error.strerror}.") from None
    try:
        # Without a password of ours, OpenSSL would ask on the terminal.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, password=_refuse)
    except ssl.SSLError as error:
        why = (error.reason or "they cannot be read").lower().replace("_", " ")
        raise ConfigError(
            f"ssl_certfile = {config.ssl_certfile!r} and ssl_keyfile = {config.ssl_keyfile!r} are no certificate and "
            f"its key, in PEM: {why}."
        ) from None


def _refuse() -> str:
    raise ConfigError("ssl_keyfile is encrypted; give a key without a password.")
