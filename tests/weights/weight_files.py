"""Small model files for the tests, written without octavo's readers."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

GGUF_TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def random_blocks(name: str, rows: int, blocks: int, seed: int = 0) -> np.ndarray:
    """Random bytes of one GGUF type: [rows, bytes of a row]."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), np.uint8)


def write_gguf(path: Path, types: tuple[str, ...] = GGUF_TYPES, vocabulary: int = 50) -> dict[str, np.ndarray]:
    """A GGUF file with all kinds of metadata and a tensor of each type, of six rows; the bytes of each tensor."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_int64("test.negative", -5)
    writer.add_uint8("test.byte", 250)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float64("test.pi", np.pi)
    writer.add_bool("test.yes", True)
    writer.add_string("general.name", "Größe ✓")
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, 1.5])
    writer.add_array("test.flags", [True, False])
    writer.add_array("tokenizer.ggml.tokens", [f"▁token{i}" for i in range(vocabulary)])
    tensors = {}
    for index, name in enumerate(types):
        data = random_blocks(name, 6, 1 if name.endswith("_K") else 8, index)
        tensors[f"{name}.weight"] = data
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def safetensors_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """A safetensors file of name -> (dtype, shape, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def f32_tensor(values: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", values.shape, values.astype("<f4").tobytes()


def write_folder(path: Path, config: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """A Hugging Face folder of two shards with an index; the tensors."""
    path.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal((4, 8), np.float32) for name in ("a", "b", "c")}
    shards = {"model-00001-of-00002.safetensors": ("a", "b"), "model-00002-of-00002.safetensors": ("c",)}
    for file, names in shards.items():
        (path / file).write_bytes(safetensors_bytes({name: f32_tensor(tensors[name]) for name in names}))
    weight_map = {name: file for file, names in shards.items() for name in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (path / "config.json").write_text(json.dumps(config or {"architectures": ["LlamaForCausalLM"]}))
    return tensors
