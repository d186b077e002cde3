"""The kernel table that most machines of this kind can run, against the scalar table."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from isa_program import build

NOT_SUPPORTED = 77
TABLE = {"x86_64": "avx2", "AMD64": "avx2", "aarch64": "neon"}.get(platform.machine(), "")


@pytest.mark.skipif(not TABLE, reason="there is no table for this machine but the scalar one")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_table_agrees_with_scalar(tmp_path: Path) -> None:
    program = build(TABLE, tmp_path, optimize="-O1")  # half the time of -O3, and the same text
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == NOT_SUPPORTED:
        pytest.skip(done.stdout.strip())
    failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0, "\n".join(failed) + done.stderr
    assert "checks hold, 0 do not" in failed[-1]
