"""octavo chat: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from octavo.cli.generate import add_sampling_flags, sampling_values
from octavo.cli.options import add_flags, add_model, read_engine_flags
from octavo.config import EngineConfig


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with a model in the terminal",
        description="Talks with a model in the terminal. An empty line or the end of the input ends it.",
        usage="octavo chat [MODEL] [options]",
        allow_abbrev=False,
    )
    add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="A system message to begin with.")
    add_sampling_flags(parser, None)
    add_flags(parser, EngineConfig, "engine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    config = read_engine_flags(args)

    from octavo.cli.session import Session

    messages = [{"role": "system", "content": args.system}] if args.system else []
    with Session(config) as session:
        while line := _ask():
            messages.append({"role": "user", "content": line})
            reply = ""
            for text in session.stream(session.tokenizer.apply_chat_template(messages), sampling_values(args)):
                print(text, end="", flush=True)
                reply += text
            print()
            messages.append({"role": "assistant", "content": reply})
    return 0


def _ask() -> str:
    print("> ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
