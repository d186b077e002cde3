"""octavo collect-env: what a bug report needs to say about the machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo._version import __version__

PACKAGES = ("numpy", "tokenizers", "jinja2", "huggingface_hub", "fastapi", "uvicorn", "orjson", "prometheus-client")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("collect-env", help="print versions and what this machine can do", allow_abbrev=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for name, value in facts():
        print(f"{name:<16} {value}")
    return 0


def facts() -> Iterator[tuple[str, str]]:
    import platform
    from importlib import metadata

    yield "octavo", __version__
    yield "python", f"{platform.python_version()} ({sys.executable})"
    yield "system", platform.platform()
    yield "processor", _first_value("/proc/cpuinfo", "model name") or platform.processor() or "unknown"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cores", f"{usable} usable of {os.cpu_count()}; quota of the cgroup: {_cgroup('cpu.max') or 'none'}"
    yield (
        "memory",
        (
            f"{_first_value('/proc/meminfo', 'MemAvailable') or 'unknown'} available of "
            f"{_first_value('/proc/meminfo', 'MemTotal') or 'unknown'}; "
            f"limit of the cgroup: {_cgroup('memory.max') or 'none'}"
        ),
    )
    yield from _kernels()
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            yield package, "not installed"


def _kernels() -> Iterator[tuple[str, str]]:
    """The levels of the native kernels, best first: the first that this machine supports is taken."""
    try:
        from octavo import _native
    except ImportError as error:
        yield "kernels", f"not built: {error}"
        return
    taken = False
    for name, supported, needs in _native.isa_levels():
        state = "supported" if supported else "not supported here"
        if supported and not taken:
            state, taken = "taken", True
        yield f"isa {name}", f"{state} (needs {needs})" if needs else state


def _first_value(file: str, key: str) -> str:
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cgroup(file: str) -> str:
    try:
        value = Path("/sys/fs/cgroup", file).read_text().strip()
    except OSError:
        return ""
    return "" if value.startswith("max") else value
