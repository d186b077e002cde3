"""Tiny random checkpoints of every supported architecture, the same bits wherever and whenever they are made."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from octavo.model.architectures import HF_ARCHITECTURES
from octavo.model.description import Description
from octavo.model.model_config import weight_shapes

BASE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 24,
    "query_pre_attn_scalar": 20,
    "sliding_window": 32,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# One checkpoint each; together they use every fact of ModelConfig. The window is shorter than the prompt of the
# goldens.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_scaling": LLAMA3_ROPE,
    },
    "mistral": BASE
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "head_dim": 40,
        "sliding_window": 32,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "qwen2": BASE
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "relu",
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": BASE
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "gelu",
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rms_norm_eps": 1e-2,
    },
    "gemma2": BASE
    | GEMMA
    | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 0.3,
    },
    "gemma3": BASE
    | GEMMA
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "sliding_window_pattern": 3,
        "rope_theta": 100000.0,
        "rope_local_base_freq": 1000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
PROMPT_LENGTH = 100


def prompt(name: str) -> list[int]:
    """The random prompt of a checkpoint's goldens."""
    config = CONFIGS[name]
    ids = np.random.RandomState(seed_of(name) + 1).randint(0, 256, PROMPT_LENGTH - 1)
    return [config["bos_token_id"], *map(int, ids)]


def seed_of(name: str) -> int:
    return sum(name.encode())


def make_weights(name: str) -> dict[str, np.ndarray]:
    """Float32 weights by their name in the file: matrices of standard deviation 1 / sqrt(inputs), norms about 1, biases
    of 0.1.
    """
    # RandomState, whose streams NumPy has frozen; those of Generator may change between versions, and the goldens would
    # be lost.
    random = np.random.RandomState(seed_of(name))
    architecture = HF_ARCHITECTURES[CONFIGS[name]["architectures"][0]]
    config = architecture.facts(Description(CONFIGS[name], frozenset()))
    weights = {}
    for weight, shape in weight_shapes(config).items():
        values = random.standard_normal(shape)
        if len(shape) == 2:
            # A small embedding leaves the residual stream to the blocks: else a tied head would repeat the last token
            # for ever.
            values *= 1 / math.sqrt(shape[1]) if weight != "embed" else 0.1 / config.embedding_scale
        elif weight.endswith("norm"):
            values = 1.0 - config.norm_offset + 0.3 * values
        else:
            values *= 0.1
        stored = architecture.weight_names[template(weight)].replace(
            "{i}", weight.split(".")[1] if "." in weight else ""
        )
        weights[stored] = values.astype(np.float32)
    return weights


def template(weight: str) -> str:
    parts = weight.split(".")
    return ".".join(["layers", "{i}", *parts[2:]]) if len(parts) > 2 else weight


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Float32 tensors in the safetensors format: header length, JSON header, data."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def write_checkpoint(name: str, folder: Path) -> Path:
    """A folder as Hugging Face's: config.json, generation_config.json, model.safetensors, tokenizer.json,
    tokenizer_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[name]
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": [config["eos_token_id"], 258]}
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation)
    write_json(folder / "tokenizer.json", tokenizer())
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write_safetensors(folder / "model.safetensors", make_weights(name))
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<end>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SPECIAL_TOKENS = ("<s>", "</s>", "<end>")


def tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer without merges: ids 0 to 255 are the bytes, 256 to 258 the special tokens, the rest fill
    the vocabulary.
    """
    letters = byte_letters()
    vocab = {letters[byte]: byte for byte in range(256)}
    vocab |= {token: 256 + i for i, token in enumerate(SPECIAL_TOKENS)}  # else `tokenizers` gives them new ids
    vocab |= {f"filler{i}": i for i in range(259, BASE["vocab_size"])}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}},
            ],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level vocabularies: printable Latin-1 as it is, the others from 256
    on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters, others = [], 0
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + others))
            others += 1
    return letters
