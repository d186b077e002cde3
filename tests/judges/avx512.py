"""The AVX-512 kernel tables against the scalar one: natively where the processor can, else under emulation."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.judges.report import Verdict

JUDGE = Path(__file__).parents[1] / "native" / "judge_avx512.py"


def run(options: argparse.Namespace) -> Verdict:
    done = subprocess.run([sys.executable, str(JUDGE)], capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return Verdict(done.returncode == 0, lines)
