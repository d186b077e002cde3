"""GGUF files, versions 2 and 3: metadata and memory-mapped tensors, each length checked against the file before it is
used.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np

from octavo import _native
from octavo.errors import ModelError
from octavo.weights.formats import FORMATS, Format
from octavo.weights.mapping import map_file
from octavo.weights.tensor import Tensor, data_shape, stored_bytes

MAGIC = b"GGUF"
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
FORMAT_OF_TYPE: dict[int, Format] = {format.gguf_type: format for format in FORMATS.values()}
# Types that exist and are not read, so that the refusal can name them.
OTHER_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}

# Types of metadata values.
SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
STRING = 8
ARRAY = 9
# The fewest bytes that a key with its value, and the description of a tensor, can take.
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


class GgufFile:
    """A checkpoint (see checkpoint.Checkpoint) in one GGUF file.

    config: metadata key -> number, bool, str or list of these. Raises ModelError that names the file and what in it
    is wrong.
    """

    kind: Literal["gguf"] = "gguf"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        reader = Reader(self.path)
        tensor_count = reader.header()
        self.config: dict[str, Any] = reader.metadata()
        self.generation_config: dict[str, Any] = {}
        alignment = checked_alignment(self.config, self.path)
        self._tensors = reader.tensors(tensor_count, alignment)

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise ModelError(f"{self.path} has no tensor {name}.") from None


class Reader:
    """A cursor over the mapped bytes of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: mmap.mmap | bytes = map_file(path)
        self.end = len(self.data)
        self.at = 0
        self.key_count = 0

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is not a sound GGUF file: {what}.")

    def take(self, size: int, what: str) -> int:
        """Moves past `size` bytes; their offset."""
        at = self.at
        if size > self.end - at:
            raise self.fail(f"{what} takes {size} bytes at offset {at}, but the file ends at {self.end}")
        self.at = at + size
        return at

    def unpack(self, layout: str, what: str) -> Any:
        return struct.unpack_from(layout, self.data, self.take(struct.calcsize(layout), what))[0]

    def count(self, what: str, min_bytes: int) -> int:
        """A count of things that take at least `min_bytes` each, so that a count past the file's end is found before
        the first.
        """
        count: int = self.unpack("<Q", f"the number of {what}")
        if count * min_bytes > self.end - self.at:
            raise self.fail(f"it claims {count} {what}, more than its {self.end} bytes can hold")
        return count

    def string(self, what: str) -> str:
        size = self.unpack("<Q", f"the length of {what}")
        at = self.take(size, what)
        try:
            return str(self.data[at : at + size], "utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} at offset {at} is not valid UTF-8") from None

    def header(self) -> int:
        """Checks magic and version; the number of tensors."""
        if self.data[:4] != MAGIC:
            raise self.fail(f"it begins with {bytes(self.data[:4])!r}, not {MAGIC!r}")
        self.take(4, "the magic")
        version = self.unpack("<I", "the version")
        if version not in (2, 3):
            if version and version & 0xFFFF == 0:
                raise ModelError(f"{self.path} is a big-endian GGUF file; only little-endian ones are supported.")
            raise ModelError(f"{self.path} is of GGUF version {version}; only versions 2 and 3 are supported.")
        tensor_count: int = self.count("tensors", MIN_TENSOR_BYTES)
        self.key_count = self.count("metadata keys", MIN_KEY_BYTES)
        return tensor_count

    def metadata(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for index in range(self.key_count):
            key = self.string(f"metadata key {index}")
            if key in values:
                raise self.fail(f"metadata key {key!r} appears twice")
            kind = self.unpack("<I", f"the type of {key!r}")
            values[key] = self.array(key) if kind == ARRAY else self.value(kind, key)
        return values

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string(repr(key))
        dtype = self.scalar_type(kind, key)
        return np.frombuffer(self.data, dtype, 1, self.take(dtype.itemsize, repr(key))).item()

    def array(self, key: str) -> list[Any]:
        kind = self.unpack("<I", f"the type of the values of {key!r}")
        if kind == ARRAY:
            raise self.fail(f"{key!r} is an array of arrays, which is not supported")
        if kind == STRING:
            return self.strings(self.count(f"strings of {key!r}", 8), key)
        dtype = self.scalar_type(kind, key)
        count = self.count(f"values of {key!r}", dtype.itemsize)
        values: list[Any] = np.frombuffer(
            self.data, dtype, count, self.take(count * dtype.itemsize, repr(key))
        ).tolist()
        return values

    def strings(self, count: int, key: str) -> list[str]:
        """`count` strings, read natively: a vocabulary has 100,000 and more, at a microsecond each in Python."""
        strings, self.at = _native.read_strings(np.frombuffer(self.data, np.uint8), self.at, count)
        if len(strings) < count:
            self.string(f"string {len(strings)} of {key!r}")  # raises: what is wrong with it is why the reading ended
        return strings

    def scalar_type(self, kind: int, key: str) -> np.dtype[Any]:
        if kind not in SCALARS:
            raise self.fail(f"{key!r} has the unknown value type {kind}")
        return SCALARS[kind]

    def tensors(self, count: int, alignment: int) -> dict[str, Tensor]:
        described = [self.description(index) for index in range(count)]
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, shape, layout, offset in described:
            if name in tensors:
                raise self.fail(f"tensor {name} appears twice")
            if offset % alignment:
                raise self.fail(
                    f"tensor {name} has the offset {offset}, which is not a multiple of the alignment {alignment}"
                )
            size = stored_bytes(shape, layout)
            begin = start + offset
            if begin + size > self.end:
                raise ModelError(
                    f"{self.path} is cut short: tensor {name} of shape {list(shape)} in {layout.name} ends at byte "
                    f"{begin + size}, but the file at {self.end}."
                )
            data = np.frombuffer(self.data, np.uint8, size, begin).reshape(data_shape(shape, layout))
            tensors[name] = Tensor(name, shape, layout.name, data, self.path)
        return tensors

    def description(self, index: int) -> tuple[str, tuple[int, ...], Format, int]:
        """Name, shape (rows first), format and offset of one tensor."""
        name = self.string(f"the name of tensor {index}")
        rank = self.unpack("<I", f"the number of dimensions of {name}")
        if not 1 <= rank <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name} has {rank} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        at = self.take(8 * rank, f"the dimensions of {name}")
        shape = struct.unpack_from(f"<{rank}Q", self.data, at)[::-1]
        kind = self.unpack("<I", f"the type of {name}")
        offset = self.unpack("<Q", f"the offset of {name}")
        if kind not in FORMAT_OF_TYPE:
            called = OTHER_TYPES.get(kind, f"number {kind}, which is unknown")
            supported = ", ".join(format.name.upper() for format in FORMAT_OF_TYPE.values())
            raise ModelError(f"{self.path}: tensor {name} is of type {called}; supported types: {supported}.")
        layout = FORMAT_OF_TYPE[kind]
        if not all(shape) or shape[-1] % layout.block_size:
            raise self.fail(
                f"tensor {name} has the shape {list(shape)}, "
                f"which {layout.name} blocks of {layout.block_size} cannot have"
            )
        return name, shape, layout, offset


def checked_alignment(metadata: dict[str, Any], path: Path) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 30:
        raise ModelError(f"{path} has general.alignment {alignment!r}, which must be a power of two.")
    if metadata.get("split.count", 0) not in (0, 1):
        raise ModelError(
            f"{path} is one of {metadata['split.count']} parts of a split model; merge them into one file first."
        )
    return alignment
