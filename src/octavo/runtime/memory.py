"""What memory there is: of the machine, and of the control group that this process lives in."""

from __future__ import annotations

from pathlib import Path

# A cgroup without a limit says "max" (v2) or a number beyond any machine (v1).
NO_LIMIT = 1 << 60


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping: the smaller of MemAvailable and what each enclosing cgroup leaves.

    `root` stands for the file system's root, so that recorded trees can be read.
    """
    return min([_mem_available(root), *_cgroup_headroom(root)])


def _mem_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return NO_LIMIT


def _cgroup_headroom(root: Path) -> list[int]:
    """limit - usage of this process's memory cgroup and of its ancestors; reclaimable page cache counts as free."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    result = []
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            base, limit_name, usage_name, cache_key = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base, limit_name, usage_name = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache_key = "total_inactive_file"
        else:
            continue
        folder = root / base / path.lstrip("/")
        # Inside a container the path is the host's, while the mount shows the container's own group at its root.
        for group in (folder, *folder.parents):
            limit = _read_number(group / limit_name)
            usage = _read_number(group / usage_name)
            if limit is not None and limit < NO_LIMIT and usage is not None:
                result.append(max(0, limit - usage + _read_stat(group / "memory.stat", cache_key)))
            if group == root / base:
                break
    return result


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_stat(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except OSError:
        pass
    return 0
