"""From files on disk to logits: a folder and a GGUF file of the same model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
from steps import Runner
from test_gguf_facts import converted, metadata, rope_factors

from octavo.errors import ModelError
from octavo.model.architectures import Model, resolve_model
from octavo.model.description import Description
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.passes import load_weights
from octavo.weights.tensor import dequantize

GOLDEN = Path(__file__).parents[1] / "golden"


def describe(checkpoint: Checkpoint) -> Description:
    names = frozenset(checkpoint.names())
    factors = dequantize(checkpoint.tensor("rope_freqs.weight")).tolist() if "rope_freqs.weight" in names else []
    return Description(checkpoint.config, names, tuple(factors))


def read(path: Path) -> tuple[Model, dict[str, np.ndarray]]:
    checkpoint = open_checkpoint(path)
    model = resolve_model(describe(checkpoint))
    tensors = load_weights(checkpoint, model.weight_names, model.weight_shapes)
    return model, {name: dequantize(tensor).astype(np.float64) for name, tensor in tensors.items()}


def check(name: str, path: Path) -> None:
    model, weights = read(path)
    logits = Runner(model.config, weights).step([("a", tiny.prompt(name))])[0]
    with np.load(GOLDEN / f"tiny_{name}.npz") as file:
        expected = file["logits"]
    assert np.abs(logits[9::10] - expected).max() / np.abs(expected).max() < 1e-5


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_a_folder(name: str, tmp_path: Path) -> None:
    check(name, tiny.write_checkpoint(name, tmp_path / name))


@pytest.mark.parametrize(("name", "arch"), [("llama", "llama"), ("gemma3", "gemma3")])
def test_a_gguf_file(name: str, arch: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", arch)
    for key, value in metadata(name, arch).items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    for tensor, values in converted(name, arch).items():
        writer.add_tensor(tensor, values.astype(np.float32))
    if factors := rope_factors(name):
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    check(name, tmp_path / "tiny.gguf")


def test_an_embedding_of_another_size_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_checkpoint("qwen2", tmp_path)
    tiny.write_json(folder / "config.json", tiny.CONFIGS["qwen2"] | {"vocab_size": 384})
    with pytest.raises(ModelError, match=r"model.embed_tokens.weight of shape \[320, 64\] instead of \[384, 64\]"):
        read(folder)
