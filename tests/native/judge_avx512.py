"""Judges the AVX-512 tables on any x86-64 machine: natively where it has the instructions, under emulation where not.

Usage: judge_avx512.py [TABLE ...], by default avx512 and avx512_bf16. Prints a line for every check that does not hold,
and a sum for each table. Exit status: 0 when all hold, 1 when one does not, 2 when a table could not be run.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulate import missing_tools, run
from isa_program import build

TABLES = ["avx512", "avx512_bf16"]
BUDGET = 600.0  # seconds for a table under emulation; a quiet machine needs a tenth of it
NOT_SUPPORTED = 77


def judge(table: str) -> int:
    """Exit status for one table."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        program = build(table, Path(folder), static=True)
        built = time.monotonic()
        native = subprocess.run([program], capture_output=True, text=True, check=False)
        status: int | None = native.returncode
        output, where = native.stdout, "natively"
        if status == NOT_SUPPORTED:
            if missing := missing_tools():
                print(f"{table}: this machine lacks the instructions, and for their emulation {', '.join(missing)}.")
                return 2
            status, output = run(program, ["--emulated"], timeout=BUDGET)
            where = "under emulation"
        ended = time.monotonic()
    print("\n".join(line for line in output.splitlines() if not line.startswith("ok ")))
    print(f"{table}: ran {where}; built in {built - start:.0f} s, checked in {ended - built:.0f} s")
    return status if status in (0, 1) else 2


if __name__ == "__main__":
    tables = sys.argv[1:] or TABLES
    if unknown := set(tables) - set(TABLES):
        sys.exit(f"There is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}.")
    sys.exit(max([judge(table) for table in tables]))
