"""The control groups that this process lives in: its own and all around it, of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MOUNT = "sys/fs/cgroup"


def groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of each group that limits this process, the innermost first; a limit of any of them holds.

    `root` stands for the file system's root, so that recorded trees can be read.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            version, base = 2, root / MOUNT
        elif controller in controllers.split(","):
            # The folder has the names of all controllers of the hierarchy; each name alone is a link to it, mostly.
            version, base = 1, root / MOUNT / controllers
            base = base if base.is_dir() else root / MOUNT / controller
        else:
            continue
        folder = base / path.lstrip("/")
        # Inside a container the path is the host's, while the mount shows the container's own group at its root.
        for group in (folder, *folder.parents):
            yield version, group
            if group == base:
                break


def read_number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or it says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
