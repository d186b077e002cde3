"""The memory that can be had, read off recorded /proc and cgroup trees."""

from pathlib import Path

import pytest
from recorded import tree

from octavo.runtime.memory import available_memory

GIB = 1 << 30


MEMINFO = {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree:  1024 kB\nMemAvailable:    8388608 kB\n"}


def test_without_cgroup_the_machine_decides(tmp_path: Path) -> None:
    assert available_memory(tree(tmp_path, MEMINFO)) == 8 * GIB


def test_unlimited_cgroup_takes_nothing_away(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "0::/a\n",
        "sys/fs/cgroup/a/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.current": "1000\n",
    }
    assert available_memory(tree(tmp_path, files)) == 8 * GIB


@pytest.mark.parametrize("limited", ["a", "a/b"])
def test_v2_limit_of_the_group_or_an_ancestor_counts(tmp_path: Path, limited: str) -> None:
    files = MEMINFO | {"proc/self/cgroup": "0::/a/b\n"}
    for group in ("a", "a/b"):
        files[f"sys/fs/cgroup/{group}/memory.max"] = f"{4 * GIB}\n" if group == limited else "max\n"
        files[f"sys/fs/cgroup/{group}/memory.current"] = f"{1 * GIB}\n"
        # Page cache that nobody uses is given up before anything is refused.
        files[f"sys/fs/cgroup/{group}/memory.stat"] = f"anon 5\ninactive_file {GIB // 2}\n"
    assert available_memory(tree(tmp_path, files)) == 3 * GIB + GIB // 2


def test_v1_limit_inside_a_container(tmp_path: Path) -> None:
    # The path names the host's group; what is mounted is the container's own, at the root.
    files = MEMINFO | {
        "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert available_memory(tree(tmp_path, files)) == GIB


def test_a_group_beyond_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = MEMINFO | {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    }
    assert available_memory(tree(tmp_path, files)) == 0
