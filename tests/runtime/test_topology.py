"""Cores, nodes and quotas as machines tell of them, and where threads and memory go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded import tree

from octavo import _native
from octavo.runtime.topology import Node, default_threads, place_threads, read_nodes

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def machine(allowed: str, cores: list[str], nodes: dict[int, str], name: str = "core_cpus_list") -> dict[str, str]:
    """The files of a machine: the logical processors of each core, those of each node, and which of them we may use."""
    files = {"proc/self/status": f"Name:\tpython3\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nThreads:\t1\n"}
    for core in cores:
        files |= {f"{CPU}/cpu{cpu}/topology/{name}": core + "\n" for cpu in numbers(core)}
    files |= {f"{NODE}/node{number}/cpulist": cpus + "\n" for number, cpus in nodes.items()}
    return files | {f"{NODE}/online": "0\n", f"{NODE}/has_cpu": "0\n"} if nodes else files


# Four cores of two threads, siblings side by side.
LAPTOP = machine("0-7", ["0-1", "2-3", "4-5", "6-7"], {0: "0-7"})
# Two sockets of 64 cores as four nodes each (NPS4); the second threads of all cores come after the first ones of all.
EPYC_CORES = [f"{i},{i + 128}" for i in range(128)]
EPYC_NODES = {node: f"{16 * node}-{16 * node + 15},{16 * node + 128}-{16 * node + 143}" for node in range(8)}
EPYC = machine("0-255", EPYC_CORES, EPYC_NODES)
# One thread a core, one node; an older kernel's name of the file.
ARM = machine("0-79", [str(i) for i in range(80)], {0: "0-79"}, "thread_siblings_list")
# A container with a cpuset of half a node of the EPYC and one core of another: /sys shows the whole machine.
CPUSET = machine("16-23,144-151,100,228", EPYC_CORES, EPYC_NODES)
# A guest that may grow to 64 processors, and has four; those that are off have no topology.
GROWING = machine("0-63", ["0", "1", "2", "3"], {0: "0-3"}) | {f"{CPU}/online": "0-3\n"}
# Second threads are switched off: the lists of siblings name those that are on, and the process may use any.
SMT_OFF = machine("0-7", ["0", "2", "4", "6"], {0: "0,2,4,6"}) | {f"{CPU}/online": "0,2,4,6\n"}
# Two nodes of processors, of which the second has no memory of its own, and two of memory alone.
UNLIKE = machine("0-7", ["0-1", "2-3", "4-5", "6-7"], {0: "0-3", 1: "4-7", 2: "", 3: ""}) | {
    f"{NODE}/has_memory": "0,2-3\n"
}
WSL = machine("0-7", ["0-1", "2-3", "4-5", "6-7"], {})
BARE = {"proc/self/status": "Name:\tpython3\nCpus_allowed_list:\t0-3\n"}  # a sandbox without /sys
V2 = {"proc/self/cgroup": "0::/\n"}
HALF = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}
HALF_V1 = {
    "proc/self/cgroup": "4:cpu,cpuacct:/docker/a\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
}


@pytest.mark.parametrize(
    ("files", "threads", "nodes"),
    [
        (LAPTOP, 4, {0: 4}),
        (EPYC, 128, dict.fromkeys(range(8), 16)),
        (ARM, 80, {0: 80}),
        (CPUSET, 9, {1: 8, 6: 1}),
        (LAPTOP | HALF, 1, {0: 4}),
        (LAPTOP | HALF_V1, 1, {0: 4}),
        (EPYC | V2 | {"sys/fs/cgroup/cpu.max": "1200000 100000\n"}, 12, dict.fromkeys(range(8), 16)),
        (GROWING, 4, {0: 4}),
        (SMT_OFF, 4, {0: 4}),
        (machine("8-11", ["0", "1"], {0: "0-1"}) | {f"{CPU}/online": "0-1\n"}, 4, {0: 4}),  # lists that contradict
        (UNLIKE, 4, {0: 2, 1: 2}),
        (UNLIKE | HALF, 1, {0: 2, 1: 2}),
        (WSL, 4, {0: 4}),
        (BARE, 4, {0: 4}),
        (machine("1,3,5", ["0-1", "2-3", "4-5", "6-7"], {0: "0-7"}), 3, {0: 3}),  # one thread of each of three cores
        (
            LAPTOP | {f"{CPU}/cpu2/topology/core_cpus_list": "?\n"},
            5,
            {0: 5},
        ),  # what cannot be read is a core of its own
    ],
)
def test_threads_are_the_cores_within_mask_and_quota(
    files: dict[str, str], threads: int, nodes: dict[int, int], tmp_path: Path
) -> None:
    root = tree(tmp_path, files)
    assert default_threads(read_nodes(root), root) == threads
    assert {node.number: len(node.cores) for node in read_nodes(root)} == nodes


def test_without_any_files_the_mask_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 2, 5})
    assert default_threads(read_nodes(tmp_path), tmp_path) == 3


def test_a_cpuset_shows_the_second_threads_of_its_cores_only(tmp_path: Path) -> None:
    nodes = read_nodes(tree(tmp_path, CPUSET))
    assert nodes[0].cores[0] == (16, 144) and nodes[1] == Node(6, ((100, 228),))


def test_threads_go_to_nodes_as_these_have_cores(tmp_path: Path) -> None:
    epyc = read_nodes(tree(tmp_path / "epyc", EPYC))
    for threads in (1, 5, 8, 64, 128, 200):
        places = place_threads(threads, epyc)
        homes = [
            next(node.number for node in epyc if (place[0],) in [core[:1] for core in node.cores]) for place in places
        ]
        assert len(places) == threads and homes == sorted(homes)  # neighbours in number are neighbours in memory
        counts = [homes.count(node) for node in range(8)]
        assert max(counts) - min(counts) <= 1
        assert all(place == numbers(EPYC_NODES[home]) for place, home in zip(places, homes, strict=True))
    uneven = read_nodes(tree(tmp_path / "cpuset", CPUSET))
    assert [len(place) for place in place_threads(9, uneven)] == [16] * 8 + [2]


@pytest.mark.parametrize("files", [LAPTOP, ARM, WSL, BARE])
def test_on_one_node_nothing_is_placed(files: dict[str, str], tmp_path: Path) -> None:
    assert place_threads(4, read_nodes(tree(tmp_path, files))) == []


def test_this_machine() -> None:
    nodes = read_nodes()
    assert {cpu for node in nodes for core in node.cores for cpu in core} == os.sched_getaffinity(0)
    assert 1 <= default_threads(nodes) <= len(os.sched_getaffinity(0))


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="the kernel tells of no memory policies")
def test_a_cache_on_several_nodes_takes_its_pages_from_them_in_turn() -> None:
    def policies() -> int:
        return Path("/proc/self/numa_maps").read_text().count(" interleave:")

    before = policies()
    plain = _native.KVCache(2, 4, 16, 2, 64)
    assert policies() == before
    spread = _native.KVCache(2, 4, 16, 2, 64, "bf16", [0])
    if policies() == before:
        pytest.skip("memory policies are refused here")
    assert policies() == before + 1
    # A node that is not there: the cache works all the same.
    absent = _native.KVCache(2, 4, 16, 2, 64, "bf16", [1000])
    assert policies() == before + 1
    assert plain.bytes == spread.bytes == absent.bytes


def test_a_pool_needs_the_processors_of_all_its_threads_or_of_none() -> None:
    with pytest.raises(ValueError, match="each thread"):
        _native.ThreadPool(2, [[0]])


QUOTA_V1 = {
    "proc/self/cgroup": "11:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "250000\n",
    "sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000\n",
}
# As in a container: the path is the host's, the mount shows the container's group.
QUOTA_V1_ROOT = {
    "proc/self/cgroup": "4:cpuacct,cpu:/docker/a\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}
QUOTA_V2 = {
    "proc/self/cgroup": "0::/user.slice/octavo.service\n",
    "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
    "sys/fs/cgroup/user.slice/octavo.service/cpu.max": "max 100000\n",
}


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        (QUOTA_V1, 3),
        (QUOTA_V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us": "-1\n"}, 8),
        (QUOTA_V1_ROOT, 2),
        (QUOTA_V2, 8),
        (QUOTA_V2 | {"sys/fs/cgroup/user.slice/octavo.service/cpu.max": "150000 100000\n"}, 2),
        (QUOTA_V2 | {"sys/fs/cgroup/user.slice/cpu.max": "300000 100000\n"}, 3),
        # Of nested groups with limits the smallest holds, wherever it is.
        (
            QUOTA_V2
            | {
                "sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/user.slice/octavo.service/cpu.max": "600000 100000\n",
            },
            2,
        ),
        (
            QUOTA_V2
            | {
                "sys/fs/cgroup/user.slice/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/user.slice/octavo.service/cpu.max": "100000 50000\n",
            },
            2,
        ),
        (
            QUOTA_V1
            | {
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        # Both versions at once: the controller of version 1 has the quota, the hierarchy of version 2 has none.
        (QUOTA_V1 | {"sys/fs/cgroup/unified/cgroup.procs": "1\n"}, 3),
        (QUOTA_V2 | {"sys/fs/cgroup/user.slice/octavo.service/cpu.max": "5000 100000\n"}, 1),
        (QUOTA_V2 | {"sys/fs/cgroup/user.slice/octavo.service/cpu.max": "3200000 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "\n"}, 8),
    ],
)
def test_threads_are_the_cores_that_every_group_around_the_process_leaves(
    files: dict[str, str], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    root = tree(tmp_path, files)
    assert default_threads(read_nodes(root), root) == threads
