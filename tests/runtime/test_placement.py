"""On a machine of several nodes weights lie where they are read: whoever will read a panel is given it to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from recorded import tree
from test_topology import CPUSET, EPYC, UNLIKE

from octavo import _native
from octavo.build import build
from octavo.config import EngineConfig
from octavo.model_files import open_files
from octavo.ops.native import NativeOps
from octavo.runtime import machine
from octavo.runtime.reads import matrix_reads
from octavo.runtime.topology import Node, place_threads, read_nodes
from octavo.sampling_params import SamplingParams
from octavo.weights.packing import pack_weights

LEVELS = [name for name, supported, _ in _native.isa_levels() if supported]
THREADS = [1, 2, 3, 8, 16]
POOL = _native.ThreadPool(1)
K = 64
X, OUT = 0, 1 << 12  # places in a workspace of zeros
# Columns of gate and up whose product is prepared together, by the weights that take it.
PARTS = {"f32": 1, "i4": 32, "i8s": 64}
Columns = list[list[int]]  # of each weight of an op


def weights_of(isa: Any, shapes: Sequence[tuple[str, int]]) -> list[_native.PackedWeight]:
    jobs = [(target, "f32", np.zeros(4 * n * K, np.uint8), n, K, 32 * (target == "i4")) for target, n in shapes]
    return _native.pack_all(isa, POOL, [(jobs, None)])


def program_of(isa: Any, threads: int) -> _native.Program:
    inputs = _native.StepInputs(1, 1, 1, [])
    inputs.tokens = 1
    return _native.Program(isa, _native.ThreadPool(threads), inputs, 1 << 16)


def linear_reads(isa: Any, threads: int, weights: Sequence[_native.PackedWeight]) -> list[Columns]:
    """Of each share of one op: the columns that it computes."""
    program, count = program_of(isa, threads), len(weights)
    places = [OUT + 4 * sum(w.n for w in weights[:i]) for i in range(count)]
    program.linear("T", [X] * count, weights, [None] * count, places, [False] * count)

    def written(number: int) -> Columns:
        outs = [program.floats(place, 1, w.n)[0] for place, w in zip(places, weights, strict=True)]
        for out in outs:
            out[:] = np.nan
        program.run_share(0, number)
        return [np.flatnonzero(~np.isnan(out)).tolist() for out in outs]

    return [written(number) for number in range(threads)]


def gated_reads(isa: Any, threads: int, gate_up: Sequence[_native.PackedWeight], product: int, part: int) -> Any:
    program, n = program_of(isa, threads), gate_up[0].n
    program.gated_linear("T", 0, [X, X], gate_up, [None, None], product, OUT)
    parts = -(-n // part)

    def written(number: int) -> Columns:
        row = program.floats(OUT, 1, _native.act_bytes(isa, product, n) // 4)[0].view(np.uint32).reshape(parts, -1)
        row[:] = 0xFFFFFFFF
        program.run_share(0, number)
        found = np.flatnonzero((row != 0xFFFFFFFF).any(1)).tolist()
        return [[column for i in found for column in range(i * part, min(n, (i + 1) * part))]] * 2

    return [written(number) for number in range(threads)]


def placed(weights: Sequence[_native.PackedWeight], product: int | None, threads: int) -> list[Columns]:
    """Of each thread: the columns that it is given to pack."""
    shares = [_native.columns_of(weights, product, number, threads) for number in range(threads)]
    return [[list(range(first, end)) for first, end in share] for share in shares]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", [(512, 128, 128), (320, 320, 320), (9, 600, 70), (640,), (1, 1)])
def test_a_thread_packs_what_it_reads_of_a_linear(level: str, sizes: tuple[int, ...]) -> None:
    isa = _native.select_isa(level)
    # q and k of one format, v of another, as in files of mixed quantisation.
    for formats in (("i4", "i4", "i8s"), ("bf16", "bf16", "bf16"), ("i8s", "f32", "i4")):
        weights = weights_of(isa, list(zip(formats, sizes, strict=False)))
        for threads in THREADS:
            assert linear_reads(isa, threads, weights) == placed(weights, None, threads)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("takes", PARTS)
@pytest.mark.parametrize("n", [64, 70, 640, 1376])
def test_a_thread_packs_what_it_reads_of_gate_and_up(level: str, takes: str, n: int) -> None:
    isa = _native.select_isa(level)
    product = _native.act_of(isa, weights_of(isa, [(takes, 1)])[0].format)
    for formats in (("i4", "i4"), ("bf16", "i8s")):
        weights = weights_of(isa, [(target, n) for target in formats])
        for threads in THREADS:
            assert gated_reads(isa, threads, weights, product, PARTS[takes]) == placed(weights, product, threads)


def homes(columns_by_thread: Sequence[Columns], nodes: Sequence[int]) -> list[dict[int, int]]:
    """Of each weight: the node of each column."""
    return [
        {column: node for columns, node in zip(columns_by_thread, nodes, strict=True) for column in columns[i]}
        for i in range(len(columns_by_thread[0]))
    ]


@pytest.mark.parametrize(("files", "apart"), [(UNLIKE, 1 / 3), (EPYC, 1 / 3), (CPUSET, 0)])
def test_every_byte_of_q_k_and_v_is_on_the_node_of_its_reader(
    files: dict[str, str], apart: float, tmp_path: Path
) -> None:
    isa, nodes = _native.select_isa(), read_nodes(tree(tmp_path, files))
    numbers = {cpu: node.number for node in nodes for core in node.cores for cpu in core}
    sizes = (2048, 512, 512)
    weights = weights_of(isa, [("i4", n) for n in sizes])
    for threads in (2, 8, 16, 17):
        of_thread = [numbers[cpus[0]] for cpus in place_threads(threads, nodes)]
        read = homes(linear_reads(isa, threads, weights), of_thread)
        assert homes(placed(weights, None, threads), of_thread) == read
        assert [len(columns) for columns in read] == list(sizes)
        # Each matrix by parts of its own: what would lie on other nodes.
        alone = [homes(placed([weight], None, threads), of_thread)[0] for weight in weights]
        wrong = sum(node != one[column] for one, op in zip(alone, read, strict=True) for column, node in op.items())
        assert wrong >= apart * sum(sizes)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_what_ops_read_is_known_before_it_is_packed(name: str, quantization: str, tmp_path: Path) -> None:
    config = EngineConfig(model=str(tiny.write_checkpoint(name, tmp_path / name)), quantization=quantization)
    files, isa = open_files(config), _native.select_isa()
    reads = matrix_reads(files.model, files.tensors, files.targets, isa)
    weights = pack_weights(files.tensors, files.targets, isa, POOL, reads)
    names = {id(weight): name for name, weight in weights.items()}
    layers = files.model.config.num_layers
    ops = NativeOps(isa, {"T": 8, "S": 2, "R": 2}, [(0, layer) for layer in range(layers)], 1, 1)
    files.model.decoder(files.model.config, weights, ops)
    assert reads == [([names[id(weight)] for weight in read], product) for read, product in ops.linears()]
    assert [[f"layers.0.{one}" for one in op] for op in (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))] == [
        read.names for read in reads[:4]
    ]
    assert [read.product is not None for read in reads[:4]] == [False, False, True, False]


def test_a_model_on_two_nodes_is_packed_as_it_is_read_and_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[int] = []
    pack_all = _native.pack_all

    def watched(isa: Any, pool: Any, ops: Any) -> Any:
        packed.extend(len(jobs) for jobs, _ in ops)
        return pack_all(isa, pool, ops)

    monkeypatch.setattr(_native, "pack_all", watched)
    path = str(tiny.write_checkpoint("llama", tmp_path / "llama"))
    said = []
    for nodes in ((Node(0, ((0,), (1,))),), (Node(0, ((0,),)), Node(1, ((1,),)))):
        packed.clear()
        monkeypatch.setattr(machine, "read_nodes", lambda nodes=nodes: nodes)
        model = build(EngineConfig(model=path, threads=2, kv_cache_memory=1 << 24))
        model.engine.add(model.admit("a", tiny.prompt("llama"), SamplingParams(max_tokens=8, temperature=0)))
        tokens: list[int] = []
        while model.engine.has_work():
            tokens += [token for news in model.engine.step() for token in news.token_ids]
        model.close()
        said.append(tokens)
        ops = [3, 1, 2, 1] * 3 + [1, 1]
        assert packed == (ops if len(nodes) == 2 else [1] * sum(ops))
    assert said[0] == said[1] and said[0]
