"""A checkpoint: what a model's files say of it and the tensors they hold, whichever format they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from octavo.errors import ModelError, listed
from octavo.json_file import read_if_there, read_object
from octavo.weights.gguf import GgufFile
from octavo.weights.safetensors import PICKLED_SUFFIXES, open_safetensors
from octavo.weights.tensor import Tensor


class Checkpoint(Protocol):
    """kind: "folder" for a Hugging Face folder, "gguf" for a GGUF file. config: the parsed config.json, or the
    metadata of the file.
    """

    @property
    def kind(self) -> Literal["folder", "gguf"]: ...
    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def generation_config(self) -> dict[str, Any]:
        """The parsed generation_config.json; empty where there is none."""

    def names(self) -> list[str]:
        """The tensors, as named in the files."""

    def tensor(self, name: str) -> Tensor:
        """One tensor, mapped and not yet read. Raises ModelError if there is none of the name or its type is not
        supported.
        """


class Folder:
    """A Hugging Face folder with config.json and safetensors files as a Checkpoint. Raises ModelError if a file is
    missing or unsound.
    """

    kind: Literal["folder"] = "folder"

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is not a model's folder: it has no config.json.")
        self.config = read_object(path / "config.json")
        refuse_quantised(self.config, path)
        self.generation_config = read_if_there(path / "generation_config.json")
        self._files = open_safetensors(path)

    def names(self) -> list[str]:
        return list(self._files)

    def tensor(self, name: str) -> Tensor:
        if name not in self._files:
            raise ModelError(f"{self.path} has no tensor {name}.")
        return self._files[name].tensor(name)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint in a folder or a .gguf file. Raises ModelError."""
    path = Path(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist.")
    if path.is_dir():
        try:
            gguf = gguf_of_folder(path)
            return GgufFile(gguf) if gguf else Folder(path)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror or error}.") from error
    if path.suffix == ".safetensors":
        raise ModelError(
            f"{path} is one file of a model; give its folder, which must also have config.json: {path.parent}."
        )
    if path.suffix in PICKLED_SUFFIXES:
        raise ModelError(
            f"{path} is pickle, which can run code when it is read; use a safetensors or GGUF version of the model."
        )
    return GgufFile(path)


def gguf_of_folder(folder: Path) -> Path | None:
    """The GGUF file of a folder that has no safetensors files. None for a Hugging Face folder."""
    names = sorted(entry.name for entry in folder.iterdir())
    found = [name for name in names if name.endswith(".gguf")]
    if not found or any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
        return None
    if len(found) > 1:
        raise ModelError(f"{folder} has several models: {listed(found)}; give the path of one of them.")
    return folder / found[0]


def refuse_quantised(config: dict[str, Any], path: Path) -> None:
    parts = [config, *(part for part in (config.get("text_config"),) if isinstance(part, dict))]
    for part in parts:
        for key in ("quantization_config", "compression_config", "quantization"):
            if part.get(key):
                value = part[key]
                method = value.get("quant_method") or value.get("quant_algo") if isinstance(value, dict) else value
                raise ModelError(
                    f"{path} is quantised by {method or 'a method it does not name'} ({key} in config.json), which is "
                    "not supported yet; use the unquantised model or a GGUF file."
                )
