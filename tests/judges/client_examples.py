"""Clients: the examples for litellm, LlamaIndex and LangChain's VLLMOpenAI, on a server with SmolLM2."""

from __future__ import annotations

import argparse

from tests.judges.report import Verdict, require, run_pytest, versions

BUDGET = 600.0  # seconds


def run(options: argparse.Namespace) -> Verdict:
    require("litellm", "llama_index", "langchain_community")
    verdict = run_pytest("check_clients.py", BUDGET)
    packages = ("litellm", "llama-index-llms-openai-like", "langchain-community", "openai")
    return Verdict(verdict.passed, [versions(*packages), "", *verdict.lines])
