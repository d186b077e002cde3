"""Judges the Arm tables on any machine: natively where it has the instructions, under qemu where not.

Usage: judge_neon.py [TABLE ...], by default neon and neon_i8mm. Prints a line for every check that does not hold, and a
sum for each table; then whether dispatch gives each processor its best table, and each object exports no more than its
table. Exit status: 0 when all hold, 1 when one does not, 2 when something could not be run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from isa_program import HERE, ON_ARM, arm_compiler, build, build_dispatch

# Of those that qemu knows: each has what the table needs, and the first two lack what the next table needs.
PROCESSORS = {"scalar": "cortex-a53", "neon": "neoverse-n1", "neon_i8mm": "max"}
TABLES = ["neon", "neon_i8mm"]
QEMU = next((name for name in ("qemu-aarch64-static", "qemu-aarch64") if shutil.which(name)), None)
BUDGET = 600.0  # seconds for a table under emulation
NOT_SUPPORTED = 77


def emulate(program: Path, processor: str) -> subprocess.CompletedProcess[str]:
    command = [str(QEMU), "-cpu", processor, str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUDGET)


def judge_table(table: str, folder: Path) -> int:
    """Exit status for one table."""
    start = time.monotonic()
    program = build(table, folder, static=True)
    built = time.monotonic()
    done, where = None, "natively"
    if ON_ARM:
        done = subprocess.run([program], capture_output=True, text=True, check=False)
    if done is None or done.returncode == NOT_SUPPORTED:
        if QEMU is None:
            print(f"{table}: this machine lacks the instructions, and for their emulation qemu-aarch64.")
            return 2
        done, where = emulate(program, PROCESSORS[table]), f"under qemu as {PROCESSORS[table]}"
    ended = time.monotonic()
    print("\n".join(line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("ok ")))
    print(f"{table}: ran {where}; built in {built - start:.0f} s, checked in {ended - built:.0f} s")
    return done.returncode if done.returncode in (0, 1) else 2


def judge_dispatch(folder: Path) -> int:
    """Whether each processor gets its best table: a program that asks for it, run as each."""
    if QEMU is None:
        return 2
    program = build_dispatch(folder, arm_compiler())
    given = {table: emulate(program, processor).stdout.strip() for table, processor in PROCESSORS.items()}
    print("dispatch: " + ", ".join(f"{PROCESSORS[table]} gets {name}" for table, name in given.items()))
    return int(any(table != name for table, name in given.items()))


def judge_symbols() -> int:
    script = HERE.parent.parent / "scripts" / "check-symbols"
    environment = os.environ | {"CXX": arm_compiler()}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    print((done.stdout + done.stderr).strip())
    return int(done.returncode != 0)


def main() -> int:
    tables = sys.argv[1:] or TABLES
    if unknown := set(tables) - set(TABLES):
        sys.exit(f"There is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}.")
    if not shutil.which(arm_compiler()):
        print(f"There is no {arm_compiler()}; CXX_AARCH64 names another compiler for Arm.")
        return 2
    with tempfile.TemporaryDirectory() as name:
        results = [judge_table(table, Path(name)) for table in tables]
        if tables == TABLES:
            results += [judge_dispatch(Path(name)), judge_symbols()]
    return max(results)


if __name__ == "__main__":
    sys.exit(main())
