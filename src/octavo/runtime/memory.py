"""What memory there is: of the machine, and of the control group that this process lives in."""

from __future__ import annotations

from pathlib import Path

from octavo.runtime.cgroup import groups, read_number

# A cgroup without a limit says "max" (v2) or a number beyond any machine (v1).
NO_LIMIT = 1 << 60
# By version: limit, usage, and what memory.stat calls the page cache that nobody uses.
FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


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
    result = []
    for version, group in groups(root, "memory"):
        limit_name, usage_name, cache_key = FILES[version]
        limit, usage = read_number(group / limit_name), read_number(group / usage_name)
        if limit is not None and limit < NO_LIMIT and usage is not None:
            result.append(max(0, limit - usage + _read_stat(group / "memory.stat", cache_key)))
    return result


def _read_stat(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except OSError:
        pass
    return 0
