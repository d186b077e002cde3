"""Judges x86-64 tables on any such machine: natively where it has the instructions, under emulation where not.

Usage: judge_x86.py [TABLE ...], by default all of TABLES; `dispatch` is which table it gives to which processor. Prints
a line for every check that does not hold, and a sum for each table. Exit status: 0 when all hold, 1 when one does not,
2 when a table could not be run.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from emulate import missing_tools, processors, run
from isa_program import EMULATED, build, build_dispatch, compiler

# Models of Bochs that have what the table needs, best first. Bochs 2.7 lacks arrow_lake and sapphire_rapids: then this
# machine runs the linear kernels of a table that computes vpdpbusd, or tiles, without them.
PROCESSORS = {
    "avx2_vnni": ["arrow_lake"],
    "avx512": ["corei7_icelake_u"],
    "avx512_bf16": ["sapphire_rapids", "corei7_icelake_u"],
    "amx": ["sapphire_rapids"],
}
# What dispatch gives to a model that does, or does not, let a program use AMX.
GIVEN = [
    ("corei7_haswell_4770", True, "avx2"),
    ("arrow_lake", True, "avx2_vnni"),
    ("corei7_icelake_u", True, "avx512"),
    ("sapphire_rapids", False, "avx512"),  # which outruns avx512_bf16 there
    ("sapphire_rapids", True, "amx"),
]
TABLES = [*PROCESSORS, "dispatch"]
BUDGET = 1800.0  # seconds for a table under emulation; a quiet machine needs a tenth of it
NOT_SUPPORTED = 77


def run_natively(program: Path, arguments: list[str]) -> tuple[int | None, str, str]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, "natively"


def run_table(table: str, folder: Path) -> tuple[int | None, str, str]:
    """Exit status, output and where it ran."""
    program = build(table, folder, static=True)
    natively = run_natively(program, [])
    if natively[0] != NOT_SUPPORTED:
        return natively
    missing = missing_tools()
    model = None if missing else next((name for name in PROCESSORS[table] if name in processors()), None)
    if model:
        return *run(program, ["--emulated"], cpu=model, timeout=BUDGET), f"under emulation as {model}"
    if f"{table}_emulated" not in EMULATED:
        return None, f"This machine lacks the instructions, and for their emulation {', '.join(missing)}.", "nowhere"
    return run_natively(build(f"{table}_emulated", folder, static=True), ["linear"])


def judge(table: str, folder: Path) -> int:
    """Exit status for one table."""
    start = time.monotonic()
    status, output, where = run_table(table, folder)
    print("\n".join(line for line in output.splitlines() if not line.startswith("ok ")))
    print(f"{table}: ran {where}, in {time.monotonic() - start:.0f} s with its build")
    return status if status in (0, 1) else 2


def judge_dispatch(folder: Path) -> int:
    """Whether each processor that Bochs knows gets its best table."""
    if missing := missing_tools():
        print(f"dispatch: this machine lacks {', '.join(missing)}.")
        return 2
    program, known, wrong = build_dispatch(folder, compiler()), processors(), 0
    for model, permits_tiles, table in GIVEN:
        if model in known:
            _, output = run(program, [], cpu=model, timeout=BUDGET, permits_tiles=permits_tiles)
            wrong += output.strip() != table
            print(f"dispatch: {model}{'' if permits_tiles else ', AMX refused,'} gets {output.strip()}")
    return int(wrong > 0)


def main() -> int:
    tables = sys.argv[1:] or TABLES
    if unknown := set(tables) - set(TABLES):
        sys.exit(f"There is no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return max([judge_dispatch(folder) if table == "dispatch" else judge(table, folder) for table in tables])


if __name__ == "__main__":
    sys.exit(main())
