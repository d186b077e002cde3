"""The processors that this process may use: their cores and nodes, what its cgroups grant of them, which thread goes
where.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.runtime.cgroup import groups, read_number

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"


@dataclass(frozen=True)
class Node:
    """Processors that are near the same memory: the logical ones that this process may use, by core."""

    number: int
    cores: tuple[tuple[int, ...], ...]


def read_nodes(root: Path = Path("/")) -> tuple[Node, ...]:
    """The nodes that have a processor for this process; where the system tells of none, they are all on node 0.

    `root` stands for the file system's root, so that recorded trees can be read. A cpuset shows in the affinity mask.
    """
    allowed = _allowed(root)
    places: dict[int, int] = {}
    for folder in (root / NODES).glob("node[0-9]*"):
        for cpu in _read_list(folder / "cpulist"):
            places[cpu] = int(folder.name.removeprefix("node"))
    nodes: dict[int, set[tuple[int, ...]]] = {}
    for cpu in allowed:
        nodes.setdefault(places.get(cpu, 0), set()).add(_core(root, cpu, allowed))
    return tuple(Node(number, tuple(sorted(cores))) for number, cores in sorted(nodes.items()))


def default_threads(nodes: Sequence[Node], root: Path = Path("/")) -> int:
    """The cores of the nodes, and no more than the quotas of processor time that this process's cgroups have.

    One thread a core: two of them that share its units compute no more than one, and wait for each other.
    """
    cores = sum(len(node.cores) for node in nodes)
    return max(1, min([cores, *(-(-quota // period) for quota, period in _quotas(root))]))


def place_threads(threads: int, nodes: Sequence[Node]) -> list[list[int]]:
    """The processors of each thread: those of a node, which has threads as it has cores, the first ones first.

    Empty where there is one node: the system's scheduler knows better then.
    """
    if len(nodes) < 2:
        return []
    homes = [node for node in nodes for _ in node.cores]
    return [
        sorted(cpu for core in homes[thread * len(homes) // threads].cores for cpu in core) for thread in range(threads)
    ]


def _allowed(root: Path) -> set[int]:
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("Cpus_allowed_list:"):
            allowed = set(_parse_list(line.partition(":")[2]))
            # A process that nobody has bound may use processors that are off, or not there yet, too: once they are on.
            return allowed & set(_read_list(root / CPUS / "online")) or allowed
    return os.sched_getaffinity(0)


def _core(root: Path, cpu: int, allowed: set[int]) -> tuple[int, ...]:
    """The logical processors of a core that may be used."""
    topology = root / CPUS / f"cpu{cpu}" / "topology"
    # The name of version 5.3 and later, and the one before.
    siblings = _read_list(topology / "core_cpus_list") or _read_list(topology / "thread_siblings_list")
    return tuple(sorted({cpu, *siblings} & allowed))


def _read_list(path: Path) -> list[int]:
    try:
        return list(_parse_list(path.read_text()))
    except (OSError, ValueError):
        return []


def _parse_list(text: str) -> Iterator[int]:
    """The numbers of a list as the kernel writes them: 0-3,8."""
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def _quotas(root: Path) -> list[tuple[int, int]]:
    """(time, of each period) that this process's group and those around it may compute, where they are limited."""
    found = []
    for version, group in groups(root, "cpu"):
        if version == 1:
            quota, period = read_number(group / "cpu.cfs_quota_us"), read_number(group / "cpu.cfs_period_us")
        else:
            try:
                quota, period = map(int, (group / "cpu.max").read_text().split())
            except (OSError, ValueError):  # "max 100000": no limit
                continue
        if quota is not None and period:  # a quota of -1 is no number here: no limit
            found.append((quota, period))
    return found
