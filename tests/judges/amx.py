"""The AMX kernel table against the scalar one, natively or under emulation; and which processor gets which table."""

from __future__ import annotations

import argparse

from tests.judges.report import Verdict, run_script


def run(options: argparse.Namespace) -> Verdict:
    return run_script("judge_x86.py", "amx", "dispatch")
