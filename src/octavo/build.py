"""The composition root: from an EngineConfig to a model that is ready to take requests. The only module that sees
every part.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from octavo import _native
from octavo._version import __version__
from octavo.config import EngineConfig, SpeculativeConfig
from octavo.embedding import Embedding
from octavo.engine.admission import Limits
from octavo.engine.batch import Runner
from octavo.engine.drafter import Drafter, NgramDrafter, RunnerDrafts
from octavo.engine.engine import Engine
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.speculation import Speculation
from octavo.errors import ConfigError
from octavo.loaded_model import LoadedModel, make_detokenizer
from octavo.model_files import (
    Files,
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
from octavo.runtime.grammars import Grammars
from octavo.runtime.inputs import InputWriter
from octavo.runtime.kv_cache import CachePlan, GroupSpec
from octavo.runtime.machine import Machine, take_machine
from octavo.runtime.memory import available_memory
from octavo.runtime.overlap import OverlappedRunner
from octavo.runtime.pooler import KINDS, Pooler
from octavo.runtime.reads import matrix_reads
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
from octavo.sampling_params import MAX_BEAM_STOPS, MAX_N
from octavo.text.tokenizer import Tokenizer
from octavo.weights.packing import Packed, pack_weights
from octavo.weights.pooling import nested_sizes, pooling_type
from octavo.weights.quantization import exceptions, packed_bytes

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


@dataclass(frozen=True, eq=False)
class Part:
    """A model of an engine: the one that answers, or the one that drafts for it."""

    files: Files
    weights: Mapping[str, Packed]
    weight_bytes: int
    samplings: Sequence[_native.SampleInputs]  # of its own, so that rows are kept; one for each Program of it
    first_group: int  # its cache groups are numbered from here on

    @property
    def groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Window and layers of each of its cache groups."""
        return self.files.model.config.cache_groups


Recorded = tuple[NativeOps, Buffer]  # a model's step, and where its logits are


@uncollected()
def build(config: EngineConfig) -> LoadedModel:
    """Loads the model that `config` names. Raises ModelError and ConfigError, before any weight is read where what is
    wrong can be known by then.
    """
    started = time.monotonic()
    files = open_files(config)
    draft_config = draft_model_config(config)
    draft = open_files(draft_config) if draft_config else None
    opened = [files, draft] if draft else [files]
    machine = take_machine(config)
    scheduling = least_scheduling(config, files)
    if draft is not None:
        check_draft_model(draft, files.model, scheduling.max_model_len)
    available = available_memory()
    check_fit(config, opened, scheduling, available)
    defaults = sampling_defaults(files.checkpoint, config)
    pooling = config.pooling_type or pooling_type(files.checkpoint)
    chat_template = read_chat_template(config.chat_template) if config.chat_template is not None else None

    def open_checked_tokenizer() -> Tokenizer:
        tokenizer = open_tokenizer(files.checkpoint, config, chat_template)
        if draft_config and draft:
            check_vocabulary(tokenizer, open_tokenizer(draft.checkpoint, draft_config, None), draft.source)
        return tokenizer

    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(open_checked_tokenizer)
        if files.checkpoint.kind == "folder" or config.tokenizer is not None:
            reading.result()  # quick, and what is wrong with it is said before any weight is read
        # A GGUF file's tokenizer has to be built, which takes about as long as packing the weights of a small model.
        parts = load(config, opened, machine, scheduling.max_output_rows)
        tokenizer = reading.result()

    recorded, scheduling, plan = plan_steps(config, parts, machine, scheduling, available)
    caches = make_caches(config, parts, machine, plan)
    sizes = input_sizes(config, parts, scheduling, plan.max_model_len)
    runners = [
        make_runners(config, part, step, sizes, machine, caches, plan.max_model_len)
        for part, step in zip(parts, recorded, strict=True)
    ]
    windows = [window for part in parts for window, _ in part.groups]
    scheduler = Scheduler(
        scheduling,
        [
            CacheGroup("window" if window else "full", blocks, config.block_size, window)
            for window, blocks in zip(windows, plan.num_blocks, strict=True)
        ],
        speculate(config.speculative_config, sum(part.weight_bytes for part in parts[1:]) / parts[0].weight_bytes),
    )
    runner: Runner = runners[0][0]
    if draft:
        runner = DraftingRunner(runners[0][0], runners[1][0])
    elif machine.looks_ahead:
        runner = OverlappedRunner(runners[0], parts[0].samplings)
    engine = Engine(
        scheduler,
        runner,
        lambda request, index: make_detokenizer(tokenizer, request),
        lookahead=int(machine.looks_ahead),
    )
    model = files.model.config
    limits = Limits(
        vocab_size=model.vocab_size,
        max_model_len=plan.max_model_len,
        max_sequence_tokens=scheduler.max_sequence_tokens,
        eos_token_ids=frozenset(tokenizer.eos_token_ids | set(model.eos_token_ids)),
        seed=config.seed,
        takes_priority=config.scheduling_policy == "priority",
        pooling=KINDS if recorded[0][0].pooled is not None else frozenset(),
    )
    report(config, parts, machine, scheduling, plan, caches, time.monotonic() - started)
    return LoadedModel(
        engine=engine,
        tokenizer=tokenizer,
        limits=limits,
        sampling_defaults=defaults,
        embedding=Embedding(pooling if limits.pooling else None, model.hidden_size, nested_sizes(files.checkpoint)),
        model_names=config.served_model_name or (files.source.name,),
        model_root=files.source.origin or str(files.source.path),
        fingerprint=f"octavo-{__version__}-{machine.isa.name}-{files.source.digest[:12]}",
        created=int(time.time()),
        max_logprobs=config.max_logprobs,
        cache_bytes=plan.bytes,
        weight_bytes=sum(part.weight_bytes for part in parts),
        pool=machine.pool,
        grammars=Grammars(tokenizer, limits.vocab_size, limits.eos_token_ids, machine.pool),
    )


def least_scheduling(config: EngineConfig, files: Files) -> SchedulerConfig:
    """The limits of a step as asked, with the least token budget that may come of it."""
    max_model_len = context_limit(files.model, config)
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=least_budget(config, max_model_len),
        max_model_len=max_model_len,
        max_output_rows=max(config.max_num_seqs, MAX_N),  # what sequences leave of them, drafts may take
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_num_queued=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens or 0,
        kv_dtype=files.kv_type,
    )


def check_fit(config: EngineConfig, opened: Sequence[Files], scheduling: SchedulerConfig, available: int) -> None:
    """Refuses weights that memory cannot hold, and a cache that it could not even where nothing else took any."""
    check_weights_fit(sum(packed_bytes(files.tensors, files.targets) for files in opened), available)
    least, longest = scheduling.max_num_batched_tokens, scheduling.max_model_len
    plan_pool(config, specs_of(config, opened), available, 0, lambda length: 0, longest, least)


def specs_of(config: EngineConfig, opened: Sequence[Files]) -> list[GroupSpec]:
    return [spec for files in opened for spec in group_specs(files.model, config.block_size, files.kv_type)]


def load(config: EngineConfig, opened: Sequence[Files], machine: Machine, max_rows: int) -> list[Part]:
    """Packs the weights of each model."""
    # Of the row of a beam as many alternatives are needed as there may be beams and ids that end them.
    most_logprobs = max(config.max_logprobs, min(config.max_num_seqs, MAX_N) + MAX_BEAM_STOPS)
    parts: list[Part] = []
    first_group = 0
    for files in opened:
        model = files.model.config
        # On one node it is near every thread, whoever writes it.
        several = len(machine.nodes) > 1
        reads = matrix_reads(files.model, files.tensors, files.targets, machine.isa) if several else ()
        weights = pack_weights(files.tensors, files.targets, machine.isa, machine.pool, reads)
        samplings = [
            _native.SampleInputs(max_rows, model.vocab_size, most_logprobs, machine.threads)
            for _ in range(1 + machine.looks_ahead)
        ]
        parts.append(Part(files, weights, weight_bytes(weights), samplings, first_group))
        first_group += len(model.cache_groups)
    return parts


def plan_steps(
    config: EngineConfig, parts: Sequence[Part], machine: Machine, scheduling: SchedulerConfig, available: int
) -> tuple[list[Recorded], SchedulerConfig, CachePlan]:
    """Each model's step, the limits of a step, and the cache that they leave room for."""

    def plan_for(budget: int) -> tuple[list[Recorded], SchedulerConfig, CachePlan]:
        limits = replace(scheduling, max_num_batched_tokens=budget)
        recorded = [record(part, machine, limits) for part in parts]

        def workspace(longest: int) -> int:
            inputs = _native.StepInputs.bytes(*input_sizes(config, parts, limits, longest))
            return sum(
                ops.workspace_bytes(longest) + len(part.samplings) * (part.samplings[0].bytes + inputs)
                for (ops, _), part in zip(recorded, parts, strict=True)
            )

        weights = sum(part.weight_bytes for part in parts)
        specs = specs_of(config, [part.files for part in parts])
        plan = plan_pool(config, specs, available, weights, workspace, limits.max_model_len, budget)
        return recorded, replace(limits, max_model_len=plan.max_model_len), plan

    least = scheduling.max_num_batched_tokens
    models = [(part.files.model.config, part.weights, part.files.kv_type) for part in parts]
    budget, context_cost = measured_budget(config, scheduling.max_model_len, models, machine.isa, machine.pool)
    scheduling = replace(scheduling, context_cost=context_cost)
    try:
        return plan_for(budget)
    except ConfigError:
        if budget == least:
            raise
        # Longer steps need a larger workspace, and more blocks behind a window.
        return plan_for(least)


def input_sizes(
    config: EngineConfig, parts: Sequence[Part], limits: SchedulerConfig, longest: int
) -> tuple[int, int, int, list[int]]:
    """What StepInputs are made for: tokens, sequences, rows of logits, and blocks of a sequence in each cache group."""
    blocks = -(-longest // config.block_size)
    num_groups = sum(len(part.groups) for part in parts)
    return limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_output_rows, [blocks] * num_groups


def record(part: Part, machine: Machine, limits: SchedulerConfig) -> Recorded:
    capacity: dict[Rows, int] = {
        "T": limits.max_num_batched_tokens,
        "S": limits.max_num_seqs,
        "R": limits.max_output_rows,
    }
    model = part.files.model
    groups = list(enumerate(part.groups, part.first_group))
    places = {layer: (group, index) for group, (_, layers) in groups for index, layer in enumerate(layers)}
    layers = [places[i] for i in range(model.config.num_layers)]
    ops = NativeOps(machine.isa, capacity, layers, len(groups), machine.threads, first_group=part.first_group)
    logits = model.decoder(model.config, part.weights, ops)
    ops.sample(logits, part.samplings)
    return ops, logits


def make_caches(
    config: EngineConfig, parts: Sequence[Part], machine: Machine, plan: CachePlan
) -> list[_native.KVCache]:
    """The cache groups of all models, over every node of memory."""
    nodes = [node.number for node in machine.nodes] if len(machine.nodes) > 1 else []
    groups = [(part.files, layers) for part in parts for _, layers in part.groups]
    return [
        _native.KVCache(
            len(layers),
            blocks,
            config.block_size,
            files.model.config.num_kv_heads,
            files.model.config.head_dim,
            files.kv_type,
            nodes,
        )
        for (files, layers), blocks in zip(groups, plan.num_blocks, strict=True)
    ]


def make_runners(
    config: EngineConfig,
    part: Part,
    step: Recorded,
    sizes: tuple[int, int, int, list[int]],
    machine: Machine,
    caches: Sequence[_native.KVCache],
    longest: int,
) -> list[NativeRunner]:
    """A runner for each Program of a model."""
    ops, logits = step
    drafts = part.first_group > 0  # and is asked for no vector
    inputs = [_native.StepInputs(*sizes) for _ in part.samplings]
    programs = ops.build(machine.pool, inputs, caches, longest)
    pooler = Pooler()
    return [
        NativeRunner(
            program,
            InputWriter(arrays, config.block_size),
            BatchSampler(sampling),
            (logits.offset, logits.width),
            None if drafts else ops.pooled,
            pooler,
        )
        for program, arrays, sampling in zip(programs, inputs, part.samplings, strict=True)
    ]


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
    parts: Sequence[Part],
    machine: Machine,
    scheduling: SchedulerConfig,
    plan: CachePlan,
    caches: Sequence[_native.KVCache],
    seconds: float,
) -> None:
    """Says at start what has been decided."""
    for part in parts[1:]:
        logger.info(
            "%s (%s) drafts: %.2f GiB of the weights and %.2f GiB of the KV pool are its own",
            part.files.source.name, part.files.model.config.architecture, part.weight_bytes / GIB,
            sum(cache.bytes for cache in caches[part.first_group :]) / GIB,
        )  # fmt: skip
    files = parts[0].files
    formats = [tensor.format for tensor in files.tensors.values() if len(tensor.shape) > 1]
    most = max(sorted(set(formats)), key=formats.count)
    if config.quantization in ("int8", "int4"):
        most += f" as {config.quantization}"
    elif config.quantization == "none":
        most += f" as {files.targets['embed'].format}"
    for sentence in exceptions(files.tensors, files.targets, config.quantization, config.quantization_group_size):
        logger.info(sentence)
    logger.info(
        "%s (%s, mostly %s) on %s with %d threads%s: weights %.2f GiB, KV pool (%s) %.2f GiB = %s blocks = %s tokens, "
        "longest context %d, steps of up to %d tokens, ready in %.2f s",
        files.source.name, files.model.config.architecture, most, machine.isa.name, machine.threads,
        " and each step prepared while one runs" if machine.looks_ahead else "",
        sum(part.weight_bytes for part in parts) / GIB, files.kv_type, plan.bytes / GIB,
        " + ".join(f"{count:,}" for count in plan.num_blocks), f"{plan.num_tokens:,}", plan.max_model_len,
        scheduling.max_num_batched_tokens, seconds,
    )  # fmt: skip
