"""octavo generate: one prompt, its continuation on stdout as it comes."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from octavo.cli.options import add_flags, read_flags
from octavo.config import EngineConfig

# A model that is not tuned for chat may never end by itself.
DEFAULT_MAX_TOKENS = 128


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="continue one prompt",
        description="Continues a prompt. The text goes to stdout as it is generated, everything else to stderr.",
        usage="octavo generate PROMPT [options]",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", help="The prompt; - reads it from stdin.")
    add_sampling_flags(parser, DEFAULT_MAX_TOKENS)
    parser.add_argument(
        "--chat", action="store_true", help="Take the prompt as a user's message: apply the chat template."
    )
    add_flags(parser, EngineConfig, "engine")
    parser.set_defaults(run=run)


def add_sampling_flags(parser: argparse.ArgumentParser, max_tokens: int | None) -> None:
    """max_tokens: the default; None stands for the rest of the context."""
    group = parser.add_argument_group("sampling")
    shown = "the rest of the context" if max_tokens is None else max_tokens
    group.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"Most tokens to generate. Default: {shown}.",
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy. Default: the model's own, or 1.")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="Sample from the likeliest tokens that add up to this probability."
    )
    group.add_argument("--top-k", type=int, metavar="K", help="Sample from this many likeliest tokens.")
    group.add_argument(
        "--min-p", type=float, metavar="P", help="Leave out tokens below this share of the likeliest one's probability."
    )
    group.add_argument(
        "--repetition-penalty", type=float, metavar="R", help="Above 1: make tokens that came before less likely."
    )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="Stop before this text; may be given several times."
    )
    group.add_argument("--ignore-eos", action="store_true", default=None, help="Go on past the model's own end.")


SAMPLING_FLAGS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "stop", "ignore_eos")


def sampling_values(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of SamplingParams as far as they were given; max_tokens None is the rest of the context."""
    given = {name: value for name in SAMPLING_FLAGS if (value := getattr(args, name)) is not None}
    return {"max_tokens": None, **given}


def run(args: argparse.Namespace) -> int:
    config = read_flags(args, EngineConfig)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt

    from octavo.cli.session import Session

    with Session(config) as session:
        token_ids = (
            session.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
            if args.chat
            else session.tokenizer.encode(prompt)
        )
        for text in session.stream(token_ids, sampling_values(args)):
            print(text, end="", flush=True)
    print()
    return 0
