"""Running the programs in examples/ as a user would, and reading what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    return printed_by([sys.executable, str(EXAMPLES / name), *arguments])


def printed_by(command: list[str], cwd: Path | None = None) -> str:
    """What a command prints; it has to end well."""
    done = subprocess.run(command, capture_output=True, timeout=250, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def told(text: str) -> dict[str, str]:
    """Lines of the form "name: value"."""
    return {name: value for name, colon, value in (line.partition(": ") for line in text.splitlines()) if colon}
