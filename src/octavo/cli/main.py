"""Parsing of the command line, and how its errors end the process. Imports stay light: --help answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from octavo._version import __version__
from octavo.cli import chat, collect_env, generate, serve
from octavo.errors import ConfigError, ModelError, OctavoError, RequestError

COMMANDS = (serve, generate, chat, collect_env)

EXAMPLES = """examples, with a small model that is fetched on first use:
  octavo generate "The capital of France is"
  octavo chat
  octavo serve --port 8000
"octavo COMMAND --help" lists the options of a command."""

FAILED = 1
WRONG_USE = 2  # argparse's own status too
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "octavo",
        description="An LLM inference and serving engine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def run(arguments: Sequence[str]) -> int:
    """Runs a command; the exit status. Options and models that are wrong end in one sentence on stderr and status 2."""
    args = build_parser().parse_args([_dashed(argument) for argument in arguments])
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except (ConfigError, ModelError, RequestError) as error:
        print(f"octavo: {error}", file=sys.stderr)
        return WRONG_USE
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left; what the interpreter would still flush has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dashed(argument: str) -> str:
    """--max_model_len is taken for --max-model-len."""
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value
