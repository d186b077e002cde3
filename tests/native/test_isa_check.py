"""Each kernel table that this machine can run, against the scalar table."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from isa_program import build

NOT_SUPPORTED = 77


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="avx2 is an instruction set of x86-64")
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_avx2_agrees_with_scalar(tmp_path: Path) -> None:
    program = build("avx2", tmp_path, optimize="-O1")  # half the time of -O3, and the same text
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode == NOT_SUPPORTED:
        pytest.skip(done.stdout.strip())
    failed = [line for line in done.stdout.splitlines() if not line.startswith("ok ")]
    assert done.returncode == 0, "\n".join(failed) + done.stderr
    assert "checks hold, 0 do not" in failed[-1]
