"""A server over the successor model as a process: python small_server.py FOLDER [options]."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from server_world import small_service

from octavo.config import ServerConfig
from octavo.server.run import bind, serve


class Fatal(BaseException):
    """What no step recovers from."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--shutdown-timeout", type=float, default=10.0)
    parser.add_argument("--die-at-step", type=int)
    args = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    service, _ = small_service(args.folder, step_seconds=args.step_seconds)
    if args.die_at_step is not None:
        engine = service.engine._engine
        launch = engine.runner.launch

        def fatal(batch):  # type: ignore[no-untyped-def]
            if batch.step >= args.die_at_step:
                raise Fatal
            return launch(batch)

        engine.runner.launch = fatal  # type: ignore[method-assign]
    config = ServerConfig(shutdown_timeout=args.shutdown_timeout)
    return serve(service, config, bind("127.0.0.1", 0))


if __name__ == "__main__":
    sys.exit(main())
