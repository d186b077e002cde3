"""LangChain: its own tests of chat models and embeddings, for its OpenAI classes on a server with SmolLM2."""

from __future__ import annotations

import argparse

from tests.judges.report import Verdict, require, run_pytest, versions

BUDGET = 1800.0  # seconds
# One event loop for all tests, as a program has: the client keeps its connections from one to the next.
ONE_LOOP = (
    "asyncio_mode=auto",
    "asyncio_default_test_loop_scope=session",
    "asyncio_default_fixture_loop_scope=session",
)


def run(options: argparse.Namespace) -> Verdict:
    require("langchain_openai", "langchain_tests")
    verdict = run_pytest("check_langchain.py", BUDGET, *(part for value in ONE_LOOP for part in ("-o", value)))
    return Verdict(verdict.passed, [versions("langchain-tests", "langchain-openai", "openai"), "", *verdict.lines])
