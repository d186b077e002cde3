"""The kernel tables that most machines of this kind can run, against the scalar table.

Of two levels that few machines have, the linear kernels run here too, with their instructions computed by others.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from isa_program import EMULATED, build

NOT_SUPPORTED = 77
X86 = ["avx2", "avx2_vnni_emulated"]
TABLES = {"x86_64": X86, "AMD64": X86, "aarch64": ["neon"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("isa_check")


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("table", [*TABLES.get(platform.machine(), []), "amx_emulated"])
def test_table_agrees_with_scalar(table: str, folder: Path) -> None:
    program = build(table, folder, optimize="-O1")  # half the time of -O3, and the same text
    group = ["linear"] if table in EMULATED else []
    done = subprocess.run([program, *group], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == NOT_SUPPORTED:
        pytest.skip(done.stdout.strip())
    failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0, "\n".join(failed) + done.stderr
    assert "checks hold, 0 do not" in failed[-1]
