"""Safetensors files: tensors memory-mapped from one file, or from the shards that an index names."""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import ModelError, listed
from octavo.json_file import parse_object, read_object
from octavo.weights.formats import FORMATS
from octavo.weights.mapping import map_file
from octavo.weights.tensor import Tensor, data_shape

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# The format itself limits its header so.
MAX_HEADER_BYTES = 100_000_000
SHARD_NAME = re.compile(r".*-\d+-of-\d+\.safetensors")
FORMAT_OF_DTYPE = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
SUPPORTED = f"supported types: {', '.join(FORMAT_OF_DTYPE)}"
# A file may hold any of these, as long as nothing asks for one that is not read.
DTYPE_BYTES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "I32": 4,
    "U32": 4,
    "I16": 2,
    "U16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
}
PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class SafetensorsFile:
    """The tensors of one file. Raises ModelError that names the file and what in it is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = map_file(path)
        if len(data) < 8:
            raise self.fail(f"it has only {len(data)} bytes")
        (header_bytes,) = struct.unpack_from("<Q", data)
        if header_bytes > min(len(data) - 8, MAX_HEADER_BYTES):
            raise self.fail(f"its header claims {header_bytes} bytes, but the file has {len(data)}")
        self._start = 8 + header_bytes
        self._data = np.frombuffer(data, np.uint8)
        self.entries = self.checked_entries(parse_object(bytes(data[8 : self._start]), f"the header of {path}"))

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is not a sound safetensors file: {what}.")

    def checked_entries(self, header: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
        """Name -> dtype, shape, begin and end within the data, which the tensors must fill without gap or overlap."""
        entries = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            try:
                dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            except (TypeError, KeyError, ValueError):
                raise self.fail(f"tensor {name} lacks dtype, shape or data_offsets") from None
            if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or len(shape) > 8:
                raise self.fail(f"tensor {name} has the shape {list(shape)} and offsets {[begin, end]}")
            if not isinstance(dtype, str) or (size := DTYPE_BYTES.get(dtype)) is None:
                raise ModelError(f"{self.path}: tensor {name} is of the unknown type {dtype}; {SUPPORTED}.")
            if end - begin != math.prod(shape) * size:
                raise self.fail(f"tensor {name} of shape {list(shape)} in {dtype} has {end - begin} bytes")
            entries[name] = (dtype, shape, begin, end)
        at, available = 0, len(self._data) - self._start
        for name, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
            if end > available:
                raise ModelError(
                    f"{self.path} is cut short: tensor {name} ends at byte {self._start + end}, "
                    f"but the file at {len(self._data)}."
                )
            if begin != at:
                raise self.fail(f"tensor {name} begins at {begin} of the data, where {at} was due")
            at = end
        if at != available:
            raise self.fail(f"its tensors take {at} bytes, but {available} follow the header")
        return entries

    def tensor(self, name: str) -> Tensor:
        dtype, shape, begin, end = self.entries[name]
        if dtype not in FORMAT_OF_DTYPE:
            raise ModelError(f"{self.path}: tensor {name} is of type {dtype}, which is not supported; {SUPPORTED}.")
        layout = FORMATS[FORMAT_OF_DTYPE[dtype]]
        data = self._data[self._start + begin : self._start + end].reshape(data_shape(shape, layout))
        return Tensor(name, shape, layout.name, data, self.path)


def open_safetensors(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the open file that holds it, for all tensors of a model's folder.

    An index names all files that are read; others are left alone, unless they look like shards. Raises ModelError if
    the index and the files disagree, or if it is open which files are the model.
    """
    present = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".safetensors"))
    if (folder / INDEX_FILE).exists():
        return open_shards(folder, present)
    if SINGLE_FILE in present:
        present = [SINGLE_FILE]
    if not present:
        raise ModelError(no_weights(folder))
    if len(present) > 1 or SHARD_NAME.fullmatch(present[0]):
        raise ModelError(f"{folder} has {listed(present)}, but no {INDEX_FILE} that says which belong to the model.")
    file = SafetensorsFile(folder / present[0])
    return dict.fromkeys(file.entries, file)


def open_shards(folder: Path, present: list[str]) -> dict[str, SafetensorsFile]:
    index = folder / INDEX_FILE
    weight_map = read_object(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise ModelError(f"{index} must have a weight_map from tensor names to file names.")
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise ModelError(
                f"{index} names {shard!r}, which is not the name of a safetensors file in the same folder."
            )
    if missing := [shard for shard in shards if shard not in present]:
        raise ModelError(f"{folder} lacks {listed(missing)}, named by {INDEX_FILE}; fetch the missing files again.")
    stray = [name for name in present if name not in shards and (name == SINGLE_FILE or SHARD_NAME.fullmatch(name))]
    if stray:
        raise ModelError(
            f"{folder} has {listed(stray)} beside the files that {INDEX_FILE} names; "
            "remove those that are not the model."
        )
    files = {}
    for shard in shards:
        file = SafetensorsFile(folder / shard)
        indexed = {tensor for tensor, owner in weight_map.items() if owner == shard}
        if odd := sorted(indexed ^ file.entries.keys()):
            raise ModelError(f"{index} is not of these files: it and {shard} do not both have {listed(odd)}.")
        files.update(dict.fromkeys(file.entries, file))
    return files


def no_weights(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    if pickled := [name for name in names if name.endswith(PICKLED_SUFFIXES)]:
        return (
            f"{folder} has its weights only as pickle ({listed(pickled)}), which can run code when read, "
            "so octavo does not read it; use a safetensors or GGUF version of the model."
        )
    return f"{folder} has no weights: neither {SINGLE_FILE}, {INDEX_FILE} nor a .gguf file."
