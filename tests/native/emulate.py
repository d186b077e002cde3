"""Runs a static Linux program under Bochs, an emulator of processors with AVX-512, without booting an operating system.

`emulator/` holds the kernel of a machine for one program. Needs: bochs with its terminal display (Debian: bochs,
bochs-term, bochsbios, vgabios), g++, ld and objcopy.
"""

import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

KERNEL = Path(__file__).parent / "emulator"
KERNEL_FLAGS = [
    *(
        "-std=c++20",
        "-Os",
        "-Wall",
        "-Wextra",
        "-ffreestanding",
        "-fno-pic",
        "-fno-pie",
        "-fno-exceptions",
        "-fno-rtti",
    ),
    *("-mno-red-zone", "-mgeneral-regs-only"),  # a system call keeps the program's vector registers
    *("-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-threadsafe-statics"),
]
LINK_FLAGS = [
    "-nostdlib",
    "-static",
    "-z",
    "noexecstack",
    "-Ttext=0x8000",
    "--section-start=.boot=0x7c00",
    "-e",
    "start",
]
SECTOR = 512
KERNEL_SECTORS = 64  # the boot sector's included
CYLINDER = 16 * 63  # sectors

# No sound: without a card, ALSA ends Bochs with a buffer overflow before it starts.
CONFIG = """\
memory: guest=2048, host=2048
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
cpu: model={cpu}, count=1, ips=4000000, reset_on_triple_fault=0
clock: sync=none
ata0-master: type=disk, path={folder}/disk, mode=flat, cylinders={cylinders}, heads=16, spt=63
boot: disk
com1: enabled=1, mode=file, dev={folder}/serial
log: {folder}/log
panic: action=fatal
error: action=report
info: action=ignore
display_library: term
sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy
"""


def missing_tools() -> list[str]:
    """What the machine here lacks."""
    tools = ["bochs", "g++", "ld", "objcopy"]
    files = ["/usr/share/bochs/BIOS-bochs-latest", "/usr/share/vgabios/vgabios.bin"]
    return [t for t in tools if not shutil.which(t)] + [f for f in files if not os.path.exists(f)]


def processors() -> list[str]:
    """The models that the Bochs here knows."""
    done = subprocess.run(["bochs", "--help", "cpu"], capture_output=True, text=True, check=False)
    return re.findall(r"^\w+$", done.stdout + done.stderr, re.MULTILINE)


def build_kernel(folder: Path) -> bytes:
    """The kernel, as the first sectors of a disk."""
    subprocess.run(["g++", *KERNEL_FLAGS, "-c", KERNEL / "kernel.cpp", "-o", folder / "kernel.o"], check=True)
    subprocess.run(["g++", "-c", KERNEL / "boot.S", "-o", folder / "boot.o"], check=True)
    subprocess.run(["ld", *LINK_FLAGS, folder / "boot.o", folder / "kernel.o", "-o", folder / "kernel.elf"], check=True)
    subprocess.run(["objcopy", "-O", "binary", folder / "kernel.elf", folder / "kernel"], check=True)
    image = (folder / "kernel").read_bytes()
    if len(image) > KERNEL_SECTORS * SECTOR:
        raise ValueError(f"The kernel takes {len(image)} bytes of {KERNEL_SECTORS * SECTOR}.")
    return image.ljust(KERNEL_SECTORS * SECTOR, b"\0")


def run(
    program: Path,
    arguments: list[str],
    cpu: str = "corei7_icelake_u",
    timeout: float = 600.0,
    permits_tiles: bool = True,
) -> tuple[int | None, str]:
    """Exit status and output of a static program on a fresh machine, which lets it use AMX or not; status None: it was
    not done in time, or the machine stopped."""
    with tempfile.TemporaryDirectory(prefix="emulate") as name:
        folder = Path(name)
        words = b"".join(a.encode() + b"\0" for a in [program.name, *arguments])
        code = program.read_bytes()
        disk = (
            build_kernel(folder) + struct.pack("<III500s", len(code), 1 + len(arguments), permits_tiles, words) + code
        )
        cylinders = len(disk) // (CYLINDER * SECTOR) + 1
        (folder / "disk").write_bytes(disk.ljust(cylinders * CYLINDER * SECTOR, b"\0"))
        (folder / "config").write_text(CONFIG.format(cpu=cpu, folder=folder, cylinders=cylinders))
        (folder / "commands").write_text("c\n")  # a Bochs with a debugger starts in it
        return _run_bochs(folder, timeout)


def _run_bochs(folder: Path, timeout: float) -> tuple[int | None, str]:
    pid, terminal = pty.fork()  # its display is a terminal
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execvp("bochs", ["bochs", "-q", "-f", str(folder / "config"), "-rc", str(folder / "commands")])
    end = time.monotonic() + timeout
    try:
        os.set_blocking(terminal, False)
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)  # bochs may be a script that starts it
                os.waitpid(pid, 0)
                break
            time.sleep(0.05)
            _drain(terminal)
    finally:
        os.close(terminal)
    output = (folder / "serial").read_text(errors="replace") if (folder / "serial").exists() else ""
    found = re.search(r"\nexit (\d+)\n\Z", output)
    if found:
        return int(found[1]), output[: found.start()]
    return None, output + "\n" + (folder / "log").read_text(errors="replace")[-2000:]


def _drain(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except (BlockingIOError, OSError):
        pass
