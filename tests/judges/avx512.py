"""The AVX-512 kernel tables against the scalar one: natively where the processor can, else under emulation."""

from __future__ import annotations

import argparse

from tests.judges.report import Verdict, run_script


def run(options: argparse.Namespace) -> Verdict:
    return run_script("judge_x86.py", "avx512", "avx512_bf16")
