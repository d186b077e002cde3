"""The composition root: from an EngineConfig to a model that is ready to take requests. The only module that sees
every part.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from octavo import _native
from octavo._version import __version__
from octavo.config import KV_CACHE_TYPES, EngineConfig, SpeculativeConfig
from octavo.embedding import Embedding
from octavo.engine.admission import Limits, admit
from octavo.engine.drafter import Drafter, NgramDrafter, RunnerDrafts
from octavo.engine.engine import Engine
from octavo.engine.request import EVERYONE, Request, Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.speculation import Speculation
from octavo.errors import ConfigError, ModelError, RequestError
from octavo.model.architectures import Model, load_architecture_file, resolve_model
from octavo.model.description import Description
from octavo.ops.native import NativeOps
from octavo.ops.passes import Buffer, Rows
from octavo.runtime.draft_model import DraftingRunner
from octavo.runtime.inputs import InputWriter
from octavo.runtime.kv_cache import CachePlan
from octavo.runtime.memory import available_memory
from octavo.runtime.pooler import KINDS
from octavo.runtime.runner import NativeRunner
from octavo.runtime.sampler import BatchSampler
from octavo.runtime.sizing import (
    GIB,
    check_weights_fit,
    context_limit,
    default_threads,
    group_specs,
    least_budget,
    measured_budget,
    plan_pool,
    weight_bytes,
)
from octavo.sampling_params import MAX_BEAM_STOPS, MAX_N, BeamSearchParams, SamplingParams
from octavo.text.detokenizer import Detokenizer
from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer, tokenizer_from_folder
from octavo.weights.checkpoint import Checkpoint, open_checkpoint
from octavo.weights.packing import Packed, pack_weights
from octavo.weights.passes import check_head, load_weights
from octavo.weights.pooling import nested_sizes, pooling_type
from octavo.weights.quantization import Target, choose_targets, exceptions, float_format, packed_bytes
from octavo.weights.sources import ModelSource, resolve
from octavo.weights.tensor import Tensor, dequantize

if TYPE_CHECKING:
    from octavo.runtime.grammar import GrammarCompiler

logger = logging.getLogger("octavo")

GENERATION_KEYS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run: what the offline API steps itself, and a server steps on a thread."""

    engine: Engine
    tokenizer: Tokenizer
    limits: Limits
    sampling_defaults: Mapping[str, Any]
    embedding: Embedding
    model_names: Sequence[str]
    model_root: str
    fingerprint: str
    created: int
    max_logprobs: int
    cache_bytes: int
    weight_bytes: int
    threads: int

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @cached_property
    def max_token_bytes(self) -> int:
        return max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))

    @cached_property
    def grammars(self) -> GrammarCompiler:
        # llguidance takes 40 ms to import, and its own form of the vocabulary longer.
        from octavo.runtime.grammar import GrammarCompiler

        return GrammarCompiler(self.tokenizer, self.limits.vocab_size, self.limits.eos_token_ids, self.threads)

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int | None = None,
        cache_salt: str | None = None,
        tenant: Tenant = EVERYONE,
        user: str | None = None,
        timeout: float | None = None,
        beams: BeamSearchParams | None = None,
        pooling: str | None = None,
    ) -> Request:
        """The admission gate, with what it needs to know of this model. Raises RequestError."""
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and asked > self.max_logprobs:
                raise RequestError(f"{name} is {asked}; this server gives at most {self.max_logprobs}.", name)
        request = admit(
            request_id,
            prompt_token_ids,
            params,
            self.limits,
            prompt=prompt,
            bad_word_ids=bad_word_ids(self.tokenizer, params.bad_words or ()),
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            user=user,
            timeout=timeout,
            beams=beams,
            pooling=pooling,
        )
        self.engine.scheduler.check_fits(request)
        if params.structured_outputs is None:
            return request
        return replace(request, grammar=self.grammars.compile(params.structured_outputs))

    def close(self) -> None:
        """Frees weights, cache and workspace."""
        self.engine.close()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector: what a start makes is there to stay, and looking through it again and again took
    30 ms of a small model's start, and a quarter of the time of a tokenizer with 500,000 merges.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@dataclass(frozen=True, eq=False)
class Files:
    """A model as its files describe it, and what its matrices are to be packed as."""

    source: ModelSource
    checkpoint: Checkpoint
    model: Model
    tensors: Mapping[str, Tensor]
    kv_type: str  # what keys and values are kept in: of itself the type that the model computes in
    targets: Mapping[str, Target]


@uncollected()
def build(config: EngineConfig) -> LoadedModel:
    """Loads the model that `config` names. Raises ModelError and ConfigError, before any weight is read where what is
    wrong can be known by then.
    """
    started = time.monotonic()
    files = open_files(config)
    checkpoint, model, tensors, targets = files.checkpoint, files.model, files.tensors, files.targets
    draft_config = draft_model_config(config)
    draft = open_files(draft_config) if draft_config else None
    try:
        isa = _native.select_isa(config.isa or "")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    threads = config.threads or default_threads()
    try:
        pool = _native.ThreadPool(threads)
    except RuntimeError as error:
        raise ConfigError(f"{threads} threads cannot be had: {error}. Use fewer with --threads.") from None
    max_model_len = context_limit(model, config)
    max_rows = max(config.max_num_seqs, MAX_N)  # what sequences leave of them, drafts may take
    if draft is not None:
        check_draft_model(draft, model, max_model_len)
    parts = [files, draft] if draft else [files]
    least = least_budget(config, max_model_len)
    scheduling = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=least,
        max_model_len=max_model_len,
        max_output_rows=max_rows,
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_num_queued=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens or 0,
        kv_dtype=files.kv_type,
    )
    available = available_memory()
    check_weights_fit(sum(packed_bytes(part.tensors, part.targets) for part in parts), available)
    # A cache that is refused although nothing else takes memory need not wait for the weights.
    specs = [spec for part in parts for spec in group_specs(part.model, config.block_size, part.kv_type)]
    plan_pool(config, specs, available, 0, lambda longest: 0, max_model_len, least)
    defaults = sampling_defaults(checkpoint, config)
    pooling = config.pooling_type or pooling_type(checkpoint)
    chat_template = read_chat_template(config.chat_template) if config.chat_template is not None else None

    def open_checked_tokenizer() -> Tokenizer:
        tokenizer = open_tokenizer(checkpoint, config, chat_template)
        if draft_config and draft:
            check_vocabulary(tokenizer, open_tokenizer(draft.checkpoint, draft_config, None), draft.source)
        return tokenizer

    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(open_checked_tokenizer)
        if checkpoint.kind == "folder" or config.tokenizer is not None:
            reading.result()  # quick, and what is wrong with it is said before any weight is read
        # A GGUF file's tokenizer has to be built, which takes about as long as packing the weights of a small model.
        weights = [pack_weights(part.tensors, part.targets, isa, pool) for part in parts]
        tokenizer = reading.result()

    sizes = [weight_bytes(packed) for packed in weights]
    budget = measured_budget(config, max_model_len, weights[0], isa, pool)
    if budget > least:
        try:  # longer steps need more blocks behind a window
            plan_pool(config, specs, available, sum(sizes), lambda longest: 0, max_model_len, budget)
        except ConfigError:
            budget = least
    groups = [(part, window, layers) for part in parts for window, layers in part.model.config.cache_groups]
    capacity: dict[Rows, int] = {"T": budget, "S": config.max_num_seqs, "R": max_rows}
    # Of the row of a beam as many alternatives are needed as there may be beams and ids that end them.
    most_logprobs = max(config.max_logprobs, min(config.max_num_seqs, MAX_N) + MAX_BEAM_STOPS)
    sampling = _native.SampleInputs(max_rows, model.config.vocab_size, most_logprobs, threads)
    first_groups = (0, len(model.config.cache_groups))
    recorded = [
        record(part.model, packed, sampling, first, isa, capacity, threads)
        for part, packed, first in zip(parts, weights, first_groups, strict=False)
    ]

    def step_sizes(longest: int) -> tuple[int, int, int, list[int]]:
        blocks = -(-longest // config.block_size)
        return budget, config.max_num_seqs, max_rows, [blocks] * len(groups)

    def workspace(longest: int) -> int:
        workspaces = sum(ops.workspace_bytes(longest) for ops, _ in recorded)
        return workspaces + sampling.bytes + _native.StepInputs.bytes(*step_sizes(longest))

    plan = plan_pool(config, specs, available, sum(sizes), workspace, max_model_len, budget)
    inputs = _native.StepInputs(*step_sizes(plan.max_model_len))
    caches = [
        _native.KVCache(
            len(layers), blocks, config.block_size, of.model.config.num_kv_heads, of.model.config.head_dim, of.kv_type
        )
        for (of, _, layers), blocks in zip(groups, plan.num_blocks, strict=True)
    ]
    writer, sampler = InputWriter(inputs, config.block_size), BatchSampler(sampling)
    runners = [
        NativeRunner(
            ops.build(pool, inputs, caches, plan.max_model_len),
            writer,
            sampler,
            (logits.offset, logits.width),
            ops.pooled if ops is recorded[0][0] else None,
        )
        for ops, logits in recorded
    ]

    scheduler = Scheduler(
        replace(scheduling, max_model_len=plan.max_model_len, max_num_batched_tokens=budget),
        [
            CacheGroup("window" if window else "full", blocks, config.block_size, window)
            for (_, window, _), blocks in zip(groups, plan.num_blocks, strict=True)
        ],
        speculate(config.speculative_config, sum(sizes[1:]) / sizes[0]),
    )
    runner = DraftingRunner(*runners) if draft else runners[0]
    engine = Engine(scheduler, runner, lambda request, index: make_detokenizer(tokenizer, request))
    eos = tokenizer.eos_token_ids | set(model.config.eos_token_ids)
    limits = Limits(
        vocab_size=model.config.vocab_size,
        max_model_len=plan.max_model_len,
        max_sequence_tokens=scheduler.max_sequence_tokens,
        eos_token_ids=frozenset(eos),
        seed=config.seed,
        takes_priority=config.scheduling_policy == "priority",
        pooling=KINDS if recorded[0][0].pooled is not None else frozenset(),
    )
    source = files.source
    if draft is not None:
        logger.info(
            "%s (%s) drafts: %.2f GiB of the weights and %.2f GiB of the KV pool are its own",
            draft.source.name, draft.model.config.architecture, sizes[1] / GIB,
            sum(cache.bytes for (part, _, _), cache in zip(groups, caches, strict=True) if part is draft) / GIB,
        )  # fmt: skip
    report(
        config,
        source,
        model,
        tensors,
        targets,
        isa.name,
        threads,
        sum(sizes),
        files.kv_type,
        plan,
        budget,
        time.monotonic() - started,
    )
    return LoadedModel(
        engine=engine,
        tokenizer=tokenizer,
        limits=limits,
        sampling_defaults=defaults,
        embedding=Embedding(pooling if limits.pooling else None, model.config.hidden_size, nested_sizes(checkpoint)),
        model_names=config.served_model_name or (source.name,),
        model_root=source.origin or str(source.path),
        fingerprint=f"octavo-{__version__}-{isa.name}-{source.digest[:12]}",
        created=int(time.time()),
        max_logprobs=config.max_logprobs,
        cache_bytes=plan.bytes,
        weight_bytes=sum(sizes),
        threads=threads,
    )


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
    kv_type = KV_CACHE_TYPES.get(config.kv_cache_dtype, floats)
    return Files(source, checkpoint, model, tensors, kv_type, targets)


def record(
    model: Model,
    weights: Mapping[str, Packed],
    sampling: _native.SampleInputs,
    first_group: int,
    isa: _native.KernelTable,
    capacity: Mapping[Rows, int],
    threads: int,
) -> tuple[NativeOps, Buffer]:
    """The steps of a model whose cache groups are numbered from `first_group` on, and where their logits are."""
    groups = list(enumerate(model.config.cache_groups, first_group))
    places = {layer: (group, index) for group, (_, layers) in groups for index, layer in enumerate(layers)}
    layers = [places[i] for i in range(model.config.num_layers)]
    ops = NativeOps(isa, capacity, layers, len(groups), threads, first_group=first_group)
    logits = model.decoder(model.config, weights, ops)
    ops.sample(logits, sampling)
    return ops, logits


def speculate(asked: SpeculativeConfig | None, draft_cost: float) -> Speculation:
    if asked is None:
        return Speculation()
    drafter: Drafter = NgramDrafter(asked.prompt_lookup_max, asked.prompt_lookup_min)
    if asked.model is not None:
        drafter = RunnerDrafts()
    return Speculation(drafter, asked.num_speculative_tokens, drafter_cost=draft_cost)


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


def make_detokenizer(tokenizer: Tokenizer, request: Request) -> Detokenizer:
    params = request.params
    return Detokenizer(
        tokenizer,
        stop=params.stop_strings,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        kept_special_token_ids=params.kept_special_token_ids or (),
        min_tokens=params.min_tokens,
        prompt_token_ids=request.prompt_token_ids,
    )


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, at the start of a text and within one (after a space): both spellings are banned."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        # Of white space alone nothing would be left.
        for spelling in (word.strip(), " " + word.strip()) if word.strip() else (word,):
            ids = tuple(tokenizer.encode(spelling, add_special_tokens=False))
            if ids:
                found[ids] = None
    return tuple(found)


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


def report(
    config: EngineConfig,
    source: ModelSource,
    model: Model,
    tensors: Mapping[str, Tensor],
    targets: Mapping[str, Target],
    isa: str,
    threads: int,
    weights: int,
    kv_type: str,
    plan: CachePlan,
    budget: int,
    seconds: float,
) -> None:
    formats = [tensor.format for tensor in tensors.values() if len(tensor.shape) > 1]
    most = max(sorted(set(formats)), key=formats.count)
    if config.quantization in ("int8", "int4"):
        most += f" as {config.quantization}"
    elif config.quantization == "none":
        most += f" as {targets['embed'].format}"
    for sentence in exceptions(tensors, targets, config.quantization, config.quantization_group_size):
        logger.info(sentence)
    logger.info(
        "%s (%s, mostly %s) on %s with %d threads: weights %.2f GiB, KV pool (%s) %.2f GiB = %s blocks = %s tokens, "
        "longest context %d, steps of up to %d tokens, ready in %.2f s",
        source.name, model.config.architecture, most, isa, threads, weights / GIB, kv_type, plan.bytes / GIB,
        " + ".join(f"{count:,}" for count in plan.num_blocks), f"{plan.num_tokens:,}", plan.max_model_len, budget,
        seconds,
    )  # fmt: skip
