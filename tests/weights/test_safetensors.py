"""The safetensors reader, its index, and folders that lack or have too much of something."""

from __future__ import annotations

import json
import pickle
import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weight_files import f32_tensor, safetensors_bytes, write_folder

from octavo.errors import ModelError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.safetensors import SafetensorsFile
from octavo.weights.tensor import dequantize

INDEX = "model.safetensors.index.json"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_values_of_each_type(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((5, 6), np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    path = tmp_path / "m.safetensors"
    path.write_bytes(
        safetensors_bytes(
            {
                "half": ("F16", (5, 6), values.astype("<f2").tobytes()),
                "odd": ("U8", (3,), b"abc"),  # what follows is not aligned
                "brain": ("BF16", (30,), upper.tobytes()),
                "full": f32_tensor(values),
                "scalar": ("F32", (), struct.pack("<f", 2.5)),
                "none": ("F32", (0, 4), b""),
            }
        )
    )
    file = SafetensorsFile(path)
    np.testing.assert_array_equal(dequantize(file.tensor("full")), values)
    np.testing.assert_array_equal(dequantize(file.tensor("half")), values.astype(np.float16).astype(np.float32))
    brain = (upper.astype(np.uint32) << 16).view(np.float32).reshape(-1)
    np.testing.assert_array_equal(dequantize(file.tensor("brain")), brain)
    assert dequantize(file.tensor("scalar")) == 2.5
    assert dequantize(file.tensor("none")).shape == (0, 4)
    assert file.tensor("full").data.shape == (5, 24) and not file.tensor("full").data.flags.writeable
    with pytest.raises(ModelError, match=r"m\.safetensors: tensor odd is of type U8"):
        file.tensor("odd")


def header_file(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "header of 2^63 bytes": (header_file({}, size=1 << 63), str(1 << 63)),
    "header longer than the file": (header_file({}, size=3), "claims 3 bytes"),
    "not JSON": (header_file(b"{nonsense"), "not valid JSON"),
    "not UTF-8": (header_file(b'{"\xff": 1}'), "not valid JSON"),
    "not an object": (header_file([]), "must be a JSON object"),
    "deep": (header_file(b"[" * 200_000), "not valid JSON"),
    "name twice": (header_file(b'{"w": {}, "w": {}}'), "'w' appears twice"),
    "entry a number": (header_file({"w": 1}), "lacks dtype"),
    "no offsets": (header_file({"w": {"dtype": "F32", "shape": [2]}}), "lacks dtype, shape or data_offsets"),
    "three offsets": (header_file(entry(offsets=(0, 8, 8)), bytes(8)), "lacks dtype, shape or data_offsets"),
    "negative shape": (header_file(entry(shape=(-1, -2)), bytes(8)), r"\[-1, -2\]"),
    "fractional shape": (header_file(entry(shape=(2.0,)), bytes(8)), r"\[2.0\]"),
    "shape overflows": (header_file(entry(shape=(1 << 32, 1 << 32, 2)), bytes(8)), "has 8 bytes"),
    "offsets reversed": (header_file(entry(offsets=(8, 0)), bytes(8)), "-8 bytes"),
    "offsets negative": (header_file(entry(offsets=(-8, 0)), bytes(8)), "offsets"),
    "past the end": (header_file(entry(shape=(4,), offsets=(0, 16)), bytes(8)), "cut short"),
    "gap": (header_file(entry(offsets=(8, 16)), bytes(16)), "where 0 was due"),
    "more data than tensors": (header_file(entry(), bytes(12)), "12 follow"),
    "unknown type": (header_file(entry(dtype="F3"), bytes(8)), "unknown type F3"),
    "type a list": (header_file(entry(dtype=["F32"]), bytes(8)), "unknown type"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_at_once(case: str, tmp_path: Path) -> None:
    data, says = BROKEN[case]
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    before = time.process_time()
    with pytest.raises(ModelError, match=says) as error:
        SafetensorsFile(path)
    assert time.process_time() - before < 1
    assert "broken.safetensors" in str(error.value)


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "mutated.safetensors"
    seed = safetensors_bytes({name: f32_tensor(np.ones((3, 4), np.float32)) for name in ("a", "b", "c")})
    for _ in range(1000):
        data = bytearray(seed)
        for _ in range(rng.choice([1, 2, 4])):
            data[rng.randrange(len(seed) - 144)] = rng.randrange(256)
        path.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        try:
            file = SafetensorsFile(path)
            for name in file.entries:
                dequantize(file.tensor(name))
        except ModelError as error:
            assert "mutated.safetensors" in str(error)


@given(shapes=st.dictionaries(st.text(), st.lists(st.integers(0, 5), max_size=3), max_size=5))
def test_any_names_and_shapes(shapes: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    shapes.pop("__metadata__", None)
    arrays = {
        name: np.random.default_rng(0).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.unlink(missing_ok=True)
    path.write_bytes(safetensors_bytes({name: f32_tensor(np.asarray(array)) for name, array in arrays.items()}))
    file = SafetensorsFile(path)
    assert file.entries.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(dequantize(file.tensor(name)), array)


def test_shards(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.kind == "folder" and set(checkpoint.names()) == set(tensors)
    for name, values in tensors.items():
        np.testing.assert_array_equal(dequantize(checkpoint.tensor(name)), values)
    assert checkpoint.tensor("c").source.name == SECOND
    with pytest.raises(ModelError, match="no tensor d"):
        checkpoint.tensor("d")


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": f32_tensor(np.ones((2, 2), np.float32))}))
    (tmp_path / "consolidated.safetensors").write_bytes(b"another layout of the same model")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.names() == ["a"] and checkpoint.config == {"architectures": ["X"]}
    assert checkpoint.generation_config == {}


def test_missing_shards_are_all_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / FIRST).unlink()
    with pytest.raises(ModelError, match=f"lacks {FIRST}"):
        open_checkpoint(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(ModelError, match=f"lacks {FIRST}, {SECOND}"):
        open_checkpoint(tmp_path)


def change_index(folder: Path, change: dict[str, str | None]) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {k: v for k, v in (index["weight_map"] | change).items() if v is not None}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "change", [{"d": SECOND}, {"a": None}, {"a": SECOND}], ids=["not in the shard", "not in the index", "elsewhere"]
)
def test_a_stale_index_is_named(tmp_path: Path, change: dict[str, str | None]) -> None:
    write_folder(tmp_path)
    change_index(tmp_path, change)
    with pytest.raises(ModelError, match=rf"{INDEX} is not of these files.*{next(iter(change))}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("extra", ["model.safetensors", "model-00001-of-00003.safetensors"])
def test_two_copies_of_a_model_are_refused(tmp_path: Path, extra: str) -> None:
    write_folder(tmp_path)
    (tmp_path / extra).write_bytes((tmp_path / FIRST).read_bytes())
    with pytest.raises(ModelError, match=f"has {extra} beside the files that {INDEX} names"):
        open_checkpoint(tmp_path)


def test_consolidated_beside_shards_is_left_alone(tmp_path: Path) -> None:
    tensors = write_folder(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes((tmp_path / FIRST).read_bytes())
    assert set(open_checkpoint(tmp_path).names()) == set(tensors)


def test_shards_without_an_index(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(ModelError, match=f"no {INDEX}"):
        open_checkpoint(tmp_path)
    (tmp_path / FIRST).unlink()
    with pytest.raises(ModelError, match=f"no {INDEX}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin"])
def test_an_index_stays_in_its_folder(tmp_path: Path, file: str) -> None:
    write_folder(tmp_path)
    change_index(tmp_path, {"a": file})
    with pytest.raises(ModelError, match=INDEX):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"])
def test_a_broken_index(tmp_path: Path, text: str) -> None:
    write_folder(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelError, match=INDEX):
        open_checkpoint(tmp_path)


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt"])
def test_pickle_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    folder, ran = tmp_path / "model", tmp_path / "ran"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(pickle.dumps(Payload(ran)))
    for path in (folder, folder / name):
        with pytest.raises(ModelError, match=f"(?s){name}.*pickle|pickle.*{name}") as error:
            open_checkpoint(path)
        assert "run code" in str(error.value)
    assert not ran.exists()


def test_no_weights_and_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no weights"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_broken_json_is_named(tmp_path: Path, file: str) -> None:
    write_folder(tmp_path)
    (tmp_path / file).write_text('{"a": ')
    with pytest.raises(ModelError, match=file):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"quantization_config": {"quant_method": "gptq"}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
        {"compression_config": {"quant_method": "compressed-tensors"}},
    ],
)
def test_quantised_folders_are_refused_by_name(tmp_path: Path, config: dict[str, Any]) -> None:
    write_folder(tmp_path, config)
    part = config.get("text_config", config)
    with pytest.raises(ModelError, match=next(iter(part.values()))["quant_method"]):
        open_checkpoint(tmp_path)


def test_a_file_of_a_folder_is_no_model(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.raises(ModelError, match="give its folder"):
        open_checkpoint(tmp_path / FIRST)
