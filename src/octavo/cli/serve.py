"""octavo serve: the HTTP server."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from octavo.cli.options import add_flags, add_model, read_engine_flags, read_flags
from octavo.config import EngineConfig, ServerConfig
from octavo.errors import ConfigError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, in OpenAI's API",
        description="Serves a model over HTTP, in OpenAI's API.",
        usage="octavo serve [MODEL] [options]",
        allow_abbrev=False,
    )
    add_model(parser)
    add_flags(parser, ServerConfig, "server")
    add_flags(parser, EngineConfig, "engine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    keys = [key] if (key := os.environ.get("OCTAVO_API_KEY")) else []
    config = read_flags(args, ServerConfig, api_key=keys)
    engine_config = read_engine_flags(args)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )

    from octavo.server.auth import read_keys
    from octavo.server.tls import check_tls

    check_tls(config)
    for tenant in read_keys(config).values():
        if tenant.priority_ceiling is not None and engine_config.scheduling_policy != "priority":
            raise ConfigError(
                f"The key {tenant.name!r} has a priority_ceiling, which needs --scheduling-policy priority."
            )
    from octavo.server.run import bind, serve

    # The port is taken before the model is loaded: a second server fails at once, not after minutes.
    with bind(config.host, config.port) as bound:
        from octavo.async_llm import AsyncLLM

        return serve(AsyncLLM.from_config(engine_config), config, bound)
