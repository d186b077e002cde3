"""The GGUF reader: against the gguf package's reader on sound files, and on files that are not."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from weight_files import GGUF_TYPES, write_gguf

from octavo.errors import ModelError
from octavo.weights.gguf import GgufFile
from octavo.weights.tensor import dequantize

STRING, ARRAY, U32 = 8, 9, 4


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def described(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file_bytes(
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, pair_count = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, pair_count) + b"".join(pairs + tensors)
    return head + b"\0" * (-len(head) % 32) + data


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "sound.gguf")
    return tmp_path / "sound.gguf"


def test_reads_what_the_gguf_package_reads(sound: Path) -> None:
    ours, theirs = GgufFile(sound), gguf.GGUFReader(sound)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.config == expected
    assert all(type(ours.config[key]) is type(value) for key, value in expected.items())
    assert ours.names() == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        read = ours.tensor(tensor.name)
        assert read.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert read.format == tensor.tensor_type.name.lower()
        assert read.source == sound
        assert read.data.flags.c_contiguous and not read.data.flags.writeable
        np.testing.assert_array_equal(read.data.reshape(-1), tensor.data.view(np.uint8).reshape(-1))


def test_data_is_what_was_written(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "m.gguf")
    file = GgufFile(tmp_path / "m.gguf")
    for name, data in written.items():
        np.testing.assert_array_equal(file.tensor(name).data, data)


def test_version_2_and_another_alignment(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = (pair("general.alignment", U32, struct.pack("<I", 64)),)
    tensors = (described("a", (3, 2)), described("b", (2,), offset=64))
    head = b"GGUF" + struct.pack("<IQQ", 2, 2, 1) + b"".join(pairs + tensors)
    values = np.arange(6, dtype="<f4").tobytes()
    path.write_bytes(head + b"\0" * (-len(head) % 64) + values + b"\0" * (64 - len(values)) + values[:8])
    file = GgufFile(path)
    np.testing.assert_array_equal(dequantize(file.tensor("a")), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(dequantize(file.tensor("b")), [0, 1])


def test_unknown_tensor_name(sound: Path) -> None:
    with pytest.raises(ModelError, match=r"sound\.gguf has no tensor nowhere"):
        GgufFile(sound).tensor("nowhere")


HUGE = 1 << 60
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "begins with b''"),
    "magic": (b"GGML" + bytes(64), "begins with b'GGML'"),
    "only the magic": (b"GGUF", "the version"),
    "version 1": (file_bytes(version=1), "version 1"),
    "version 4": (file_bytes(version=4), "version 4"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "2^63 keys": (file_bytes(counts=(0, 1 << 63)), f"{1 << 63} metadata keys"),
    "2^63 tensors": (file_bytes(counts=(1 << 63, 0)), f"{1 << 63} tensors"),
    "one key too many": (file_bytes(counts=(0, 1), data=bytes(4)), "metadata key"),
    "key of 2^60 bytes": (file_bytes(pairs=(struct.pack("<Q", HUGE) + bytes(8),)), f"{HUGE} bytes"),
    "string of 2^60 bytes": (file_bytes(pairs=(pair("k", STRING, struct.pack("<Q", HUGE)),)), "'k'"),
    "string of 2^64-1 bytes": (file_bytes(pairs=(pair("k", STRING, b"\xff" * 8),)), "'k'"),
    "array of 2^60 strings": (
        file_bytes(pairs=(pair("k", ARRAY, struct.pack("<IQ", STRING, HUGE)),)),
        "strings of 'k'",
    ),
    "array of 2^62 numbers": (file_bytes(pairs=(pair("k", ARRAY, struct.pack("<IQ", U32, 1 << 62)),)), "values of 'k'"),
    "array with a string of 2^63 bytes": (
        file_bytes(pairs=(pair("k", ARRAY, struct.pack("<IQQ", STRING, 1, 1 << 63)),)),
        "string 0 of 'k'",
    ),
    "array of arrays": (file_bytes(pairs=(pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1)),)), "array of arrays"),
    "value type": (file_bytes(pairs=(pair("k", 77, bytes(8)),)), "unknown value type 77"),
    "key twice": (file_bytes(pairs=(pair("k", U32, bytes(4)),) * 2), "'k' appears twice"),
    "key not UTF-8": (file_bytes(pairs=(text(b"\xff\xfe") + bytes(16),)), "UTF-8"),
    "token not UTF-8": (
        file_bytes(pairs=(pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xff")),)),
        "string 0 of 'k' at offset 57 is not valid UTF-8",
    ),
    "alignment 0": (file_bytes(pairs=(pair("general.alignment", U32, bytes(4)),)), "power of two"),
    "alignment 3": (file_bytes(pairs=(pair("general.alignment", U32, b"\3\0\0\0"),)), "power of two"),
    "alignment a string": (file_bytes(pairs=(pair("general.alignment", STRING, text("x")),)), "power of two"),
    "split": (file_bytes(pairs=(pair("split.count", U32, b"\3\0\0\0"),)), "3 parts"),
    "offset past the end": (file_bytes(tensors=(described("w", (2, 2), offset=1 << 40),), data=bytes(64)), "cut short"),
    "offset wraps around": (
        file_bytes(tensors=(described("w", (2, 2), offset=(1 << 64) - 32),), data=bytes(64)),
        "cut short",
    ),
    "offset unaligned": (file_bytes(tensors=(described("w", (2,), offset=4),), data=bytes(64)), "alignment 32"),
    "dimensions overflow 64 bits": (
        file_bytes(tensors=(described("w", (1 << 32, 1 << 32, 4)),), data=bytes(64)),
        "tensor w",
    ),
    "dimensions multiply to 2^64 + 16": (
        file_bytes(tensors=(described("w", ((1 << 62) + 4, 4)),), data=bytes(64)),
        "tensor w",
    ),
    "no dimensions": (file_bytes(tensors=(described("w", ()) + bytes(8),), data=bytes(64)), "0 dimensions"),
    "2^32-1 dimensions": (
        file_bytes(tensors=(text("w") + b"\xff" * 4 + bytes(40),), data=bytes(64)),
        f"{(1 << 32) - 1} dimensions",
    ),
    "dimension 0": (file_bytes(tensors=(described("w", (0, 4)),), data=bytes(64)), r"\[4, 0\]"),
    "not whole blocks": (file_bytes(tensors=(described("w", (33,), 2),), data=bytes(64)), "blocks of 32"),
    "tensor twice": (file_bytes(tensors=(described("w", (2,)),) * 2, data=bytes(64)), "w appears twice"),
    "type IQ2_XXS": (file_bytes(tensors=(described("w", (256,), 16),), data=bytes(99)), "type IQ2_XXS"),
    "type 12345": (file_bytes(tensors=(described("w", (256,), 12345),), data=bytes(99)), "number 12345"),
    "data cut": (file_bytes(tensors=(described("w", (64, 64)),), data=bytes(100)), "cut short"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_at_once(case: str, tmp_path: Path) -> None:
    data, says = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    before = time.process_time()
    with pytest.raises(ModelError, match=says) as error:
        GgufFile(path)
    assert time.process_time() - before < 1
    assert "broken.gguf" in str(error.value) and len(str(error.value)) < 500


def test_every_type_of_the_gguf_package_is_read_or_refused_by_name(tmp_path: Path) -> None:
    for kind in gguf.GGMLQuantizationType:
        path = tmp_path / f"{kind.name}.gguf"
        path.write_bytes(file_bytes(tensors=(described("w", (256,), int(kind)),), data=bytes(4096)))
        if kind.name in GGUF_TYPES:
            assert GgufFile(path).tensor("w").format == kind.name.lower()
        else:
            with pytest.raises(ModelError, match=kind.name):
                GgufFile(path)


def test_every_cut_is_refused(sound: Path) -> None:
    """However short a file is cut, it is refused: the last tensor ends where the file does, but for its padding."""
    data = sound.read_bytes()
    last = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(sound).tensors)
    rng = random.Random(3)
    for size in [last - 1, *(rng.randrange(last) for _ in range(200))]:
        sound.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"sound\.gguf"):
            GgufFile(sound)


def overwrite(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at] = rng.randrange(256)


def overwrite_number(data: bytearray, rng: random.Random) -> None:
    size, layout = rng.choice([(4, "<I"), (8, "<Q")])
    at = rng.randrange(len(data) - size)
    number = rng.choice([0, 1, 1 << 31, 1 << 60, 1 << 63, (1 << 64) - 1, (1 << 64) - 32, rng.randrange(1 << 16)])
    struct.pack_into(layout, data, at, number % (1 << (8 * size)))


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def remove(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 64)]


def insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.randrange(1, 64))


def repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 256)]


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [overwrite, overwrite_number, cut, remove, insert, repeat]


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    """2,000 mutations, most of them in the header: never another error, never much time or memory."""
    write_gguf(tmp_path / "seed.gguf", vocabulary=20)
    seed = (tmp_path / "seed.gguf").read_bytes()
    header = min(tensor.data_offset for tensor in gguf.GGUFReader(tmp_path / "seed.gguf").tensors)
    rng, path = random.Random(175), tmp_path / "mutated.gguf"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for _ in range(2000):
        data = bytearray(seed[:header]) if rng.random() < 0.9 else bytearray(seed)
        for _ in range(rng.choice([1, 1, 2, 5])):
            if len(data) > 16:
                rng.choice(MUTATIONS)(data, rng)
        path.write_bytes(bytes(data) + (seed[header:] if len(data) <= header + 512 else b""))
        start = time.process_time()
        try:
            file = GgufFile(path)
            for name in file.names():
                dequantize(file.tensor(name))
        except ModelError as error:
            refused += 1
            assert "mutated.gguf" in str(error)
        assert time.process_time() - start < 1
    assert 200 < refused < 2000  # the mutations are neither all harmless nor all caught by the first check
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
