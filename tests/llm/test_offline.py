"""Once a model is on the machine, no network is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.model
def test_the_default_model_runs_without_a_network() -> None:
    if subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not permit unshare -n")
    command = [sys.executable, "-m", "octavo", "generate", "The capital of France is"]
    command += ["--max-tokens", "2", "--temperature", "0", "--max-model-len", "512"]
    # Kept by an earlier run; where it is not, this one fetches it.
    subprocess.run(command, capture_output=True, check=True, timeout=250)
    done = subprocess.run(["unshare", "-n", *command], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" Paris")
