"""The supported architectures: a dict from a name in a checkpoint to facts and weight names."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from octavo.errors import ModelError, listed
from octavo.model import gguf_facts, hf_facts
from octavo.model.decoder import decoder
from octavo.model.description import Description
from octavo.model.model_config import ModelConfig, weight_shapes
from octavo.ops.interface import Array, Ops, Weight


class Decoder(Protocol):
    """A model as a function over the operations; see decoder.decoder, which most architectures share."""

    def __call__(
        self, config: ModelConfig, weights: Mapping[str, Weight], ops: Ops, cuts: Collection[int] = (), /
    ) -> Array: ...


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture.

    facts: reads a checkpoint's description. weight_names: canonical weight name -> tensor name in the checkpoint, both
    with `{i}` for the layer. ignored: patterns (as in fnmatch) of tensors that may be present and are not used.
    prefixes: tensor name prefixes that other savers wrote -> the prefix in weight_names. decoder and shapes: for
    architectures that the shared decoder cannot express.
    """

    facts: Callable[[Description], ModelConfig]
    weight_names: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    prefixes: Mapping[str, str] = field(default_factory=dict)
    decoder: Decoder = decoder
    shapes: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = weight_shapes


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint understood.

    weight_names: canonical name -> tensor name; each is there. weight_shapes: what the shape of each must be.
    spare_head: the stored copy of a head that the config ties to the embedding, if there is one; it is not among the
    weights.
    """

    config: ModelConfig
    weight_names: dict[str, str]
    weight_shapes: dict[str, tuple[int, ...]]
    decoder: Decoder
    spare_head: str | None = None


HF_WEIGHTS = {
    "embed": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "final_norm": "model.norm.weight",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.q_bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.k_bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.v_bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.o_bias": "model.layers.{i}.self_attn.o_proj.bias",
    "layers.{i}.q_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.k_norm": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down": "model.layers.{i}.mlp.down_proj.weight",
    "layers.{i}.gate_bias": "model.layers.{i}.mlp.gate_proj.bias",
    "layers.{i}.up_bias": "model.layers.{i}.mlp.up_proj.bias",
    "layers.{i}.down_bias": "model.layers.{i}.mlp.down_proj.bias",
}
GEMMA_WEIGHTS = HF_WEIGHTS | {
    "layers.{i}.post_attn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.mlp_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "layers.{i}.post_mlp_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}
GGUF_WEIGHTS = {
    "embed": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
    "layers.{i}.attn_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.q": "blk.{i}.attn_q.weight",
    "layers.{i}.k": "blk.{i}.attn_k.weight",
    "layers.{i}.v": "blk.{i}.attn_v.weight",
    "layers.{i}.o": "blk.{i}.attn_output.weight",
    "layers.{i}.q_bias": "blk.{i}.attn_q.bias",
    "layers.{i}.k_bias": "blk.{i}.attn_k.bias",
    "layers.{i}.v_bias": "blk.{i}.attn_v.bias",
    "layers.{i}.o_bias": "blk.{i}.attn_output.bias",
    "layers.{i}.q_norm": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.k_norm": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.post_attn_norm": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.mlp_norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.down": "blk.{i}.ffn_down.weight",
    "layers.{i}.gate_bias": "blk.{i}.ffn_gate.bias",
    "layers.{i}.up_bias": "blk.{i}.ffn_up.bias",
    "layers.{i}.down_bias": "blk.{i}.ffn_down.bias",
    "layers.{i}.post_mlp_norm": "blk.{i}.post_ffw_norm.weight",
}
HF_IGNORED = ("*.rotary_emb.inv_freq",)
GGUF_IGNORED = ("rope_freqs.weight",)
# Files saved from the model without its head have no leading `model.`.
BARE = {"layers.": "model.layers.", "embed_tokens.": "model.embed_tokens.", "norm.": "model.norm."}
# The text part of an image-and-text model, in the two orders that savers have used.
NESTED = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
IMAGE_PARTS = ("*vision_tower.*", "*multi_modal_projector.*")

HF_ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(hf_facts.llama, HF_WEIGHTS, HF_IGNORED, BARE),
    "MistralForCausalLM": Architecture(hf_facts.mistral, HF_WEIGHTS, HF_IGNORED, BARE),
    "Qwen2ForCausalLM": Architecture(hf_facts.qwen2, HF_WEIGHTS, HF_IGNORED, BARE),
    "Qwen3ForCausalLM": Architecture(hf_facts.qwen3, HF_WEIGHTS, HF_IGNORED, BARE),
    "Gemma2ForCausalLM": Architecture(hf_facts.gemma2, GEMMA_WEIGHTS, HF_IGNORED, BARE),
    "Gemma3ForCausalLM": Architecture(hf_facts.gemma3, GEMMA_WEIGHTS, HF_IGNORED, BARE),
    "Gemma3ForConditionalGeneration": Architecture(hf_facts.gemma3, GEMMA_WEIGHTS, HF_IGNORED + IMAGE_PARTS, NESTED),
}
GGUF_ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(gguf_facts.llama, GGUF_WEIGHTS, GGUF_IGNORED),
    "qwen2": Architecture(gguf_facts.qwen2, GGUF_WEIGHTS, GGUF_IGNORED),
    "qwen3": Architecture(gguf_facts.qwen3, GGUF_WEIGHTS, GGUF_IGNORED),
    "gemma2": Architecture(gguf_facts.gemma2, GGUF_WEIGHTS, GGUF_IGNORED),
    "gemma3": Architecture(gguf_facts.gemma3, GGUF_WEIGHTS, GGUF_IGNORED),
}


def resolve_model(description: Description, extra: Mapping[str, Architecture] | None = None) -> Model:
    """The model that a checkpoint describes; its tensors are matched by name, missing and unknown ones refused.

    extra: a user's own architectures, which come before the built-in ones. Raises ModelError.
    """
    name, architecture = find_architecture(description.config, extra or {})
    config = architecture.facts(description)
    shapes = architecture.shapes(config)
    stored = {canonical_prefix(tensor, architecture.prefixes): tensor for tensor in description.tensor_names}
    spare_head = stored.pop(architecture.weight_names.get("head", ""), None) if config.tied_head else None
    names = match_weights(name, architecture, stored, shapes)
    return Model(config, names, shapes, architecture.decoder, spare_head)


def find_architecture(config: Mapping[str, Any], extra: Mapping[str, Architecture]) -> tuple[str, Architecture]:
    """The first supported architecture that the config names; one with general.architecture is GGUF metadata."""
    if "general.architecture" in config:
        known, names = {**GGUF_ARCHITECTURES, **extra}, [config["general.architecture"]]
    else:
        known, names = {**HF_ARCHITECTURES, **extra}, config.get("architectures") or []
    names = names if isinstance(names, list | tuple) else [names]
    for name in names:
        if isinstance(name, str) and name in known:
            return name, known[name]
    supported = ", ".join(known)
    if not names:
        raise ModelError(f"config.json names no architecture under `architectures`; supported ones: {supported}.")
    raise ModelError(f"architecture {', '.join(map(str, names))} is not supported; supported ones: {supported}.")


def match_weights(
    name: str, architecture: Architecture, stored: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    """Canonical name -> stored name for each weight of `shapes`; every other tensor must be known to be of no use.

    stored: the checkpoint's tensors, by their name in the words of architecture.weight_names.
    """
    wanted = {}
    for weight in shapes:
        parts = weight.split(".")
        layer = parts[1] if parts[0] == "layers" and len(parts) > 2 else ""
        template = ".".join(["layers", "{i}", *parts[2:]]) if layer else weight
        if template not in architecture.weight_names:
            raise ModelError(f"{name} has no tensor name for its weight {template}.")
        wanted[weight] = architecture.weight_names[template].replace("{i}", layer)
    missing = [f"{tensor} {list(shapes[weight])}" for weight, tensor in wanted.items() if tensor not in stored]
    if missing:
        raise ModelError(f"the checkpoint lacks {listed(missing)}, which {name} needs.")
    rest = sorted(stored.keys() - set(wanted.values()))
    unknown = [tensor for tensor in rest if not any(fnmatchcase(tensor, pattern) for pattern in architecture.ignored)]
    if unknown:
        names = listed([stored[tensor] for tensor in unknown])
        raise ModelError(f"the checkpoint has {names}, which octavo's {name} does not know and will not leave out.")
    return {weight: stored[tensor] for weight, tensor in wanted.items()}


def canonical_prefix(tensor: str, prefixes: Mapping[str, str]) -> str:
    for written, meant in prefixes.items():
        if tensor.startswith(written):
            return meant + tensor.removeprefix(written)
    return tensor


def load_architecture_file(path: str | Path) -> dict[str, Architecture]:
    """The ARCHITECTURES dict of a Python file that the user named; the file is executed. Raises ModelError.

    Only a file named on the command line may come here, never one that a model's folder brings along.
    """
    path = Path(path)
    spec = importlib.util.spec_from_file_location(f"octavo_architecture_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModelError(f"{path} is not a Python file; an architecture file must be one, with a dict ARCHITECTURES.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ModelError(f"{path} failed when executed: {type(error).__name__}: {error}") from error
    found = getattr(module, "ARCHITECTURES", None)
    if not isinstance(found, dict) or not all(isinstance(entry, Architecture) for entry in found.values()):
        raise ModelError(
            f"{path} must define ARCHITECTURES, a dict from names to octavo.model.architectures.Architecture."
        )
    return found
