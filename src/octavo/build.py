"""The composition root: from an EngineConfig to a model that is ready to take requests. The only module that sees
every part.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from octavo import _native
from octavo._version import __version__
from octavo.config import EngineConfig, SpeculativeConfig
from octavo.embedding import Embedding
from octavo.engine.admission import Limits
from octavo.engine.drafter import Drafter, NgramDrafter, RunnerDrafts
from octavo.engine.engine import Engine
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.speculation import Speculation
from octavo.errors import ConfigError
from octavo.loaded_model import LoadedModel, make_detokenizer
from octavo.model.architectures import Model
from octavo.model_files import (
    check_draft_model,
    check_vocabulary,
    draft_model_config,
    open_files,
    open_tokenizer,
    read_chat_template,
    sampling_defaults,
)
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
    group_specs,
    least_budget,
    measured_budget,
    plan_pool,
    weight_bytes,
)
from octavo.runtime.topology import default_threads, place_threads, read_nodes
from octavo.sampling_params import MAX_BEAM_STOPS, MAX_N
from octavo.text.tokenizer import Tokenizer
from octavo.weights.packing import Packed, pack_weights
from octavo.weights.pooling import nested_sizes, pooling_type
from octavo.weights.quantization import Target, exceptions, packed_bytes
from octavo.weights.sources import ModelSource
from octavo.weights.tensor import Tensor

logger = logging.getLogger("octavo")


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
    nodes = read_nodes()
    threads = config.threads or default_threads(nodes)
    try:
        pool = _native.ThreadPool(threads, place_threads(threads, nodes))
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
    groups = [(part, window, layers) for part in parts for window, layers in part.model.config.cache_groups]
    # Of the row of a beam as many alternatives are needed as there may be beams and ids that end them.
    most_logprobs = max(config.max_logprobs, min(config.max_num_seqs, MAX_N) + MAX_BEAM_STOPS)
    # Of each model its own, so that rows are kept from step to step.
    samplings = [_native.SampleInputs(max_rows, model.config.vocab_size, most_logprobs, threads) for _ in parts]
    first_groups = (0, len(model.config.cache_groups))

    def step_sizes(budget: int, longest: int) -> tuple[int, int, int, list[int]]:
        blocks = -(-longest // config.block_size)
        return budget, config.max_num_seqs, max_rows, [blocks] * len(groups)

    def plan_steps(budget: int) -> tuple[list[tuple[NativeOps, Buffer]], CachePlan]:
        capacity: dict[Rows, int] = {"T": budget, "S": config.max_num_seqs, "R": max_rows}
        recorded = [
            record(part.model, packed, sampling, first, isa, capacity, threads)
            for part, packed, sampling, first in zip(parts, weights, samplings, first_groups, strict=False)
        ]

        def workspace(longest: int) -> int:
            workspaces = sum(ops.workspace_bytes(longest) for ops, _ in recorded)
            arrays = samplings[0].bytes + _native.StepInputs.bytes(*step_sizes(budget, longest))
            return workspaces + len(parts) * arrays

        return recorded, plan_pool(config, specs, available, sum(sizes), workspace, max_model_len, budget)

    budget = measured_budget(config, max_model_len, weights, isa, pool)
    try:
        recorded, plan = plan_steps(budget)
    except ConfigError:
        if budget == least:
            raise
        # Longer steps need a larger workspace, and more blocks behind a window.
        budget = least
        recorded, plan = plan_steps(budget)
    caches = [
        _native.KVCache(
            len(layers),
            blocks,
            config.block_size,
            of.model.config.num_kv_heads,
            of.model.config.head_dim,
            of.kv_type,
            [node.number for node in nodes] if len(nodes) > 1 else [],
        )
        for (of, _, layers), blocks in zip(groups, plan.num_blocks, strict=True)
    ]
    runners = []
    for (ops, logits), sampling in zip(recorded, samplings, strict=True):
        inputs = _native.StepInputs(*step_sizes(budget, plan.max_model_len))
        runners.append(
            NativeRunner(
                ops.build(pool, inputs, caches, plan.max_model_len),
                InputWriter(inputs, config.block_size),
                BatchSampler(sampling),
                (logits.offset, logits.width),
                ops.pooled if ops is recorded[0][0] else None,
            )
        )

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
        pool=pool,
    )


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
    drafter: Drafter
    if asked.model is not None:
        drafter = RunnerDrafts()
    else:
        drafter = NgramDrafter(asked.prompt_lookup_max, asked.prompt_lookup_min)
    return Speculation(drafter, asked.num_speculative_tokens, drafter_cost=draft_cost)


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
