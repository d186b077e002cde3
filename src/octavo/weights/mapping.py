"""Mapping a file into memory, read-only."""

from __future__ import annotations

import mmap
from pathlib import Path

from octavo.errors import ModelError


def map_file(path: Path) -> mmap.mmap | bytes:
    """The bytes of `path`, mapped. An empty file, which cannot be mapped, gives b""."""
    try:
        with open(path, "rb") as file:
            if file.seek(0, 2) == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error
