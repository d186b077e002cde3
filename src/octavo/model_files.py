"""What a model's files say, opened and checked before any weight is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo import _native
from octavo.config import KV_CACHE_TYPES, EngineConfig
from octavo.errors import ConfigError, ModelError, RequestError
from octavo.model.architectures import Model, load_architecture_file, resolve_model
from octavo.model.description import Description
from octavo.runtime.machine import select_isa
from octavo.sampling_params import SamplingParams
from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer, tokenizer_from_folder
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.passes import check_head, load_weights
from octavo.weights.quantization import Target, choose_targets, float_format
from octavo.weights.sources import ModelSource, resolve
from octavo.weights.tensor import Tensor, dequantize

GENERATION_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, eq=False)
class Files:
    """A model as its files describe it, and what its matrices are to be packed as."""

    source: ModelSource
    checkpoint: Checkpoint
    model: Model
    tensors: Mapping[str, Tensor]
    kv_type: str  # what keys and values are kept in
    targets: Mapping[str, Target]


def open_files(config: EngineConfig) -> Files:
    source = resolve(config.model, config.revision, config.download_dir)
    checkpoint = open_checkpoint(source.path)
    check_format(checkpoint, config)
    model = describe(checkpoint, config)
    tensors = load_weights(checkpoint, model.weight_names, model.weight_shapes)
    if model.spare_head is not None:
        check_head(checkpoint, True, model.weight_names["embed"], model.spare_head)
    floats = float_format(config.dtype, tensors)
    targets = choose_targets(tensors, floats, config.quantization, config.quantization_group_size)
    kv_type = KV_CACHE_TYPES.get(config.kv_cache_dtype) or default_kv_type(floats, select_isa(config))
    return Files(source, checkpoint, model, tensors, kv_type, targets)


def default_kv_type(floats: str, isa: _native.KernelTable) -> str:
    """What keys and values are kept in for a model that computes in `floats`: that, or where the machine multiplies
    these faster, integers of 16 bits, which err by less than bfloat16.
    """
    return "int16" if floats != "f32" and isa.fastest_as_int16 else floats


def check_format(checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Whether the files are what load_format and quantization say they are."""
    found = "gguf" if checkpoint.kind == "gguf" else "safetensors"
    if config.load_format not in ("auto", found):
        raise ConfigError(f"load_format = {config.load_format}, but {checkpoint.path} holds {found}; leave it out.")
    if config.quantization == "gguf" and found != "gguf":
        raise ConfigError(f"quantization = {config.quantization}, but {checkpoint.path} holds {found}; leave it out.")


def describe(checkpoint: Checkpoint, config: EngineConfig) -> Model:
    """The checkpoint's architecture and weights, by name."""
    names = frozenset(checkpoint.names())
    factors: tuple[float, ...] = ()
    if checkpoint.kind == "gguf" and "rope_freqs.weight" in names:
        factors = tuple(float(value) for value in dequantize(checkpoint.tensor("rope_freqs.weight")))
    asked = config.max_model_len if config.max_model_len and config.max_model_len > 0 else None
    extra = load_architecture_file(config.architecture) if config.architecture else None
    try:
        return resolve_model(Description(checkpoint.config, names, factors, asked), extra)
    except ModelError as error:
        raise ModelError(f"{checkpoint.path}: {error}") from None


def draft_model_config(config: EngineConfig) -> EngineConfig | None:
    """What a draft model is opened with: the model's options, but for those that speak of the model's files."""
    asked = config.speculative_config
    if asked is None or asked.model is None:
        return None
    quantization = "auto" if config.quantization == "gguf" else config.quantization
    return replace(
        config, model=asked.model, revision=None, tokenizer=None, load_format="auto", quantization=quantization
    )


def check_draft_model(draft: Files, model: Model, max_model_len: int) -> None:
    theirs = draft.model.config
    if theirs.vocab_size != model.config.vocab_size:
        raise ConfigError(
            f"The draft model {draft.source.name} has {theirs.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; a draft model needs the same vocabulary."
        )
    if theirs.max_position < max_model_len:
        raise ConfigError(
            f"The draft model {draft.source.name} was made for {theirs.max_position} positions, and max_model_len is "
            f"{max_model_len}; use --max-model-len {theirs.max_position}."
        )


def check_vocabulary(tokenizer: Tokenizer, draft: Tokenizer, source: ModelSource) -> None:
    difference = tokenizer.difference(draft)
    if difference is not None:
        raise ConfigError(
            f"The draft model {source.name} has another vocabulary than the model: {difference}. "
            "A draft model needs the same one."
        )


def open_tokenizer(checkpoint: Checkpoint, config: EngineConfig, chat_template: str | None) -> Tokenizer:
    """The model's tokenizer, or the one that `config` names, with the operator's chat template where one is given."""
    tokenizer = tokenizer_of(checkpoint, config)
    if chat_template is not None:
        tokenizer.chat_templates = {"default": chat_template}
    return tokenizer


def read_chat_template(path: str) -> str:
    """The source of a template, tried for syntax here so that a broken one stops the start and not the first chat."""
    from octavo.text.chat_template import ChatTemplate

    try:
        with open(os.path.expanduser(path), encoding="utf-8") as file:
            source = file.read()
        ChatTemplate(source)
    except OSError as error:
        raise ConfigError(f"chat_template = {path!r} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, RequestError) as error:
        raise ConfigError(f"chat_template = {path!r} is no chat template: {error}.") from None
    return source


def tokenizer_of(checkpoint: Checkpoint, config: EngineConfig) -> Tokenizer:
    if config.tokenizer is not None:
        other = resolve(config.tokenizer, None, config.download_dir)
        if other.kind == "folder":
            return tokenizer_from_folder(other.path)
        checkpoint = open_checkpoint(other.path)
    if checkpoint.kind == "gguf":
        return tokenizer_from_gguf(checkpoint.config)
    return tokenizer_from_folder(checkpoint.path)


def sampling_defaults(checkpoint: Checkpoint, config: EngineConfig) -> dict[str, Any]:
    """SamplingParams keywords that the model's publisher recommends, unless the user asked for vLLM's own defaults."""
    if config.generation_config != "auto":
        return {}
    given = checkpoint.generation_config
    defaults = {ours: given[theirs] for theirs, ours in GENERATION_KEYS.items() if given.get(theirs) is not None}
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise ModelError(
            f"{checkpoint.path}: generation_config.json asks for what is not possible: {error} "
            "Mend it, or use --generation-config vllm."
        ) from None
    return defaults
