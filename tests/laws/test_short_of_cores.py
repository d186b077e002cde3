"""The same bits, and an end of each step, while the system takes cores away: by a quota, by a thread that it lets wait
at any moment, by one core for all; and no processor time between steps.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import steady_child
from world import write_gguf

CGROUPS = Path("/sys/fs/cgroup")
CHILD = Path(__file__).with_name("steady_child.py")
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
ALL_THREADS = 0x40000000  # of waitpid: not of the thread alone that began to trace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", "Q8_0")


class Child:
    """A process that answers the same requests each time it is asked."""

    def __init__(self, model: Path, threads: int, looks_ahead: bool = False, cpus: set[int] | None = None):
        command = [sys.executable, str(CHILD), str(model), str(threads), str(looks_ahead)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
        )
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def answers(self) -> str:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answers, rested = json.loads(self.read())
        assert rested < steady_child.REST / 10, "threads sleep between steps"
        return str(answers)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            assert self.process.wait(60) == 0 or any(error)
        finally:
            self.process.kill()
            self.process.stdout.close()


@pytest.fixture(scope="module")
def answers(model: Path) -> str:
    with Child(model, 1) as child:
        return child.answers()


@contextmanager
def half_a_core() -> Iterator[tuple[Path, Callable[[], int]]]:
    """A cgroup of 50 ms in each 100 ms, and how often it has been throttled."""
    name = f"octavo-test-{os.getpid()}"
    if (CGROUPS / "cgroup.controllers").exists():
        group, limits = CGROUPS / name, {"cpu.max": "50000 100000"}
    else:
        group, limits = CGROUPS / "cpu" / name, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            for file, value in limits.items():
                (group / file).write_text(value)
        except OSError as error:  # version 2 where the parent does not hand the controller down
            pytest.skip(f"a cgroup here has no quota of processor time: {error}")

        def throttled() -> int:
            lines = (group / "cpu.stat").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("nr_throttled"))

        yield group / "cgroup.procs", throttled
    finally:
        group.rmdir()


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_quota_of_half_a_core(model: Path, answers: str, looks_ahead: bool) -> None:
    with half_a_core() as (members, throttled), Child(model, 2, looks_ahead) as child:
        members.write_text(str(child.process.pid))
        assert child.answers() == answers
        for _ in range(8):
            assert child.answers() == answers
            if throttled() > 1:
                return
        pytest.skip("other work leaves less of this machine than the quota does")


def trace(request: int, thread: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return bool(libc.ptrace(request, thread, None, None) == 0)


def hold(thread: int, seconds: float) -> bool:
    """Lets a thread of a child wait, whatever it is at; False where that is refused."""
    if not trace(SEIZE, thread):
        return False
    if trace(INTERRUPT, thread):
        os.waitpid(thread, ALL_THREADS)
        time.sleep(seconds)
    trace(DETACH, thread)
    return True


@pytest.mark.parametrize(("threads", "looks_ahead"), [(2, False), (2, True), (4, True)])
def test_threads_that_wait_at_any_moment(model: Path, answers: str, threads: int, looks_ahead: bool) -> None:
    with Child(model, threads, looks_ahead) as child:
        tasks = Path(f"/proc/{child.process.pid}/task")
        over, held = threading.Event(), []

        def take_away() -> None:
            choose = random.Random(threads)
            while not over.is_set():
                thread = int(choose.choice(sorted(path.name for path in tasks.iterdir())))
                with suppress(ChildProcessError, ProcessLookupError):
                    held.append(hold(thread, choose.choice([0.0, 0.001, 0.01])))
                time.sleep(choose.choice([0.0, 0.0005, 0.003]))

        thief = threading.Thread(target=take_away)
        thief.start()
        try:
            given = [child.answers() for _ in range(3)]
        finally:
            over.set()
            thief.join()
        if not any(held):
            pytest.skip("no thread of another process may be traced here")
        assert given == [answers] * 3


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_one_core_for_all_threads(model: Path, answers: str, threads: int) -> None:
    with Child(model, threads, cpus={min(os.sched_getaffinity(0))}) as child:
        assert child.answers() == answers
