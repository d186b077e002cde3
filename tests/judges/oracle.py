"""The judges' other side: transformers in float32. Runs in an interpreter that has torch, which octavo's need not have.

oracle.py gguf FILE IDS FOLDER [--round PIECE ...]   logits of every position of each list of token ids
oracle.py folder MODEL IDS FOLDER                    the same, and the tokens that follow greedily
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers.models.llama.modeling_llama import eager_attention_forward

from octavo.model.architectures import GEMMA_WEIGHTS, GGUF_WEIGHTS, HF_WEIGHTS
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.passes import unpermute_rope_rows
from octavo.weights.tensor import dequantize

NEW_TOKENS = 64
PIECES = ("activations", "head", "keys", "values")
GROUP = 32  # activations that share a scale in octavo's integer kernels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("gguf", "folder"))
    parser.add_argument("model", type=Path)
    parser.add_argument("ids", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--round", nargs="*", default=[], choices=PIECES)
    options = parser.parse_args()
    torch.set_num_threads(2 if options.kind == "gguf" else 1)  # tiny models have no work for two
    if options.kind == "gguf":
        model = from_gguf(options.model, set(options.round))
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.float32, attn_implementation="eager"
        )
    record(model.eval(), json.loads(options.ids.read_text()), options.out, greedy=options.kind == "folder")


@torch.no_grad()
def record(model: Any, prompts: dict[str, list[int]], out: Path, greedy: bool) -> None:
    """Writes NAME.npy, float32 [tokens, V], for each prompt, and with `greedy` greedy.json."""
    followed: dict[str, list[int]] = {}
    for name, ids in prompts.items():
        # Without a cache every token is computed by the definition, and a window is a mask.
        np.save(out / f"{name}.npy", model(torch.tensor([ids]), use_cache=False).logits[0].numpy())
        tokens: list[int] = []
        while greedy and len(tokens) < NEW_TOKENS:
            tokens.append(int(model(torch.tensor([ids + tokens]), use_cache=False).logits[0, -1].argmax()))
        followed[name] = tokens
    if greedy:
        (out / "greedy.json").write_text(json.dumps(followed))


def from_gguf(path: Path, rounded: set[str]) -> Any:
    """The model of a GGUF file with its weights dequantised to float32.

    rounded: where octavo's arithmetic is imitated, to see what each approximation costs: `activations` of linears (and
    of the `head`) to 8 bits, cached `keys` and `values` to bfloat16.
    """
    checkpoint = open_checkpoint(path)
    arch = checkpoint.config["general.architecture"]
    facts = {key.removeprefix(f"{arch}."): value for key, value in checkpoint.config.items()}
    config = {"llama": llama_config, "gemma3": gemma3_config}[arch](facts, checkpoint.config)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    names = HF_WEIGHTS if arch == "llama" else GEMMA_WEIGHTS
    hf_name = {stored: names[weight] for weight, stored in GGUF_WEIGHTS.items() if weight in names}
    state = {}
    for stored in checkpoint.names():
        tensor = checkpoint.tensor(stored)
        parts = stored.split(".")
        layer = parts[1] if parts[0] == "blk" else ""
        template = ".".join(["blk", "{i}", *parts[2:]]) if layer else stored
        if arch == "llama" and parts[-2] in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if parts[-2] == "attn_q" else config.num_key_value_heads
            tensor = unpermute_rope_rows(tensor, heads)
        values = dequantize(tensor)
        if arch == "gemma3" and stored.endswith("norm.weight"):
            values = values - 1  # the converter has added the 1 that the model adds again
        state[hf_name[template].replace("{i}", layer)] = torch.from_numpy(np.array(values))
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    # The buffers of the rotary embedding are not in the state: made again, off the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if arch == "gemma3":
        model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)
    round_pieces(model, rounded)
    return model


def llama_config(facts: dict[str, Any], metadata: dict[str, Any]) -> Any:
    return transformers.LlamaConfig(
        vocab_size=facts["vocab_size"],
        hidden_size=facts["embedding_length"],
        intermediate_size=facts["feed_forward_length"],
        num_hidden_layers=facts["block_count"],
        num_attention_heads=facts["attention.head_count"],
        num_key_value_heads=facts["attention.head_count_kv"],
        max_position_embeddings=facts["context_length"],
        rms_norm_eps=facts["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["rope.freq_base"]},
        tie_word_embeddings=True,
    )


def gemma3_config(facts: dict[str, Any], metadata: dict[str, Any]) -> Any:
    return transformers.Gemma3TextConfig(
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        hidden_size=facts["embedding_length"],
        intermediate_size=facts["feed_forward_length"],
        num_hidden_layers=facts["block_count"],
        num_attention_heads=facts["attention.head_count"],
        num_key_value_heads=facts["attention.head_count_kv"],
        head_dim=facts["attention.key_length"],
        query_pre_attn_scalar=facts["attention.key_length"],
        max_position_embeddings=facts["context_length"],
        rms_norm_eps=facts["attention.layer_norm_rms_epsilon"],
        sliding_window=facts["attention.sliding_window"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": facts["rope.freq_base"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        tie_word_embeddings=True,
    )


def round_pieces(model: Any, rounded: set[str]) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ("head" if name == "lm_head" else "activations") in rounded:
            module.register_forward_pre_hook(lambda _, inputs: (to_int8(inputs[0]),))
    if not rounded & {"keys", "values"}:
        return

    def attention(module: Any, query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        key = key.bfloat16().float() if "keys" in rounded else key
        value = value.bfloat16().float() if "values" in rounded else value
        return eager_attention_forward(module, query, key, value, *arguments, **options)

    transformers.AttentionInterface.register("rounded", attention)
    transformers.AttentionMaskInterface.register(
        "rounded", transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    )
    model.set_attn_implementation("rounded")


def to_int8(x: Any) -> Any:
    """x as octavo's kernels see it: 8 bits for each of 32 values that share a scale."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.round(groups / scale.clamp_min(1e-30)) * scale).reshape(x.shape)


if __name__ == "__main__":
    main()
