"""What a Program refuses: no array, index, count or place that a caller hands in reaches a kernel unchecked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from octavo import _native

ISA, POOL = _native.select_isa(), _native.ThreadPool(2)
VOCAB, WIDTH = 10, 16
BLOCKS, BLOCK_SIZE = 5, 16


def pack(rows: int = VOCAB, columns: int = WIDTH) -> _native.PackedWeight:
    data = np.arange(rows * columns, dtype=np.float32)
    return _native.pack(ISA, POOL, "f32", "f32", data.view(np.uint8), rows, columns)


def cache(**shape: Any) -> _native.KVCache:
    facts = {"num_layers": 2, "num_blocks": BLOCKS, "block_size": BLOCK_SIZE, "kv_heads": 1, "head_dim": WIDTH}
    return _native.KVCache(**facts | shape, type="f32")


class World:
    """Two sequences of 1 and 3 tokens; an embedding, attention in a window of 16, the head and the sampler."""

    def __init__(self) -> None:
        self.inputs = _native.StepInputs(8, 2, 4, [3])
        self.sampling = _native.SampleInputs(4, VOCAB, 2, 2)
        self.program = p = _native.Program(ISA, POOL, self.inputs, 1 << 20)
        self.cache = cache()
        p.update_cache(0, self.cache)
        p.embed(pack(), 1.0, 0)
        p.attention(0, self.cache, 0, 0, 0, 0, 1, 16, 1.0, 0.0, 48, 1 << 16, 1 << 10)
        p.select_rows(1 << 10, WIDTH, 1 << 11)
        p.linear("R", [1 << 11], [pack()], [None], [1 << 12], [False])
        p.sample(1 << 12, VOCAB, self.sampling)
        p.cut()
        step, group = self.inputs, self.inputs.groups[0]
        step.tokens, step.seqs, step.rows, self.sampling.rows = 4, 2, 2, 2
        step.token_ids[:4] = 9, 0, 1, 2
        step.positions[:4] = 40, 0, 1, 2
        step.query_start[:] = 0, 1, 4
        step.seq_lens[:] = 41, 3
        step.output_rows[:2] = 0, 3
        group.block_table[:] = [[-1, 1, 2], [4, -1, -1]]  # the first lies wholly behind the window
        group.slot_mapping[:4] = 40, 64, 65, -1
        group.set_opened([4])
        group.copy_source[0], group.copy_target[0], group.num_copies = 0, 3, 1


def fill(name: str, index: Any, value: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        group = world.inputs.groups[0]
        getattr(group if hasattr(group, name) else world.inputs, name)[index] = value

    return change


def count(name: str, value: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        setattr(world.inputs.groups[0] if name == "num_copies" else world.inputs, name, value)

    return change


def test_what_is_right_runs() -> None:
    world = World()
    world.program.run()
    assert world.sampling.status[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (count("tokens", 9), "tokens"),
        (count("tokens", -1), "tokens"),
        (count("tokens", 3), "query_start"),
        (count("seqs", 3), "seqs"),
        (count("rows", 5), "rows"),
        (count("num_copies", 3), "num_copies"),
        (fill("query_start", 0, 1), "query_start"),
        (fill("query_start", 1, -5), "query_start"),
        (fill("query_start", 2, 5), "query_start"),
        (fill("token_ids", 1, VOCAB), "token_ids"),
        (fill("token_ids", 1, -1), "token_ids"),
        (fill("output_rows", 1, 4), "output_rows"),
        (fill("output_rows", 0, -1), "output_rows"),
        (fill("seq_lens", 0, 49), "seq_lens"),
        (fill("seq_lens", 1, 2), "seq_lens"),
        (fill("block_table", (0, 1), -1), "block_table"),
        (fill("block_table", (1, 0), BLOCKS), "block_table"),
        (fill("slot_mapping", 2, BLOCKS * BLOCK_SIZE), "slot_mapping"),
        (fill("slot_mapping", 2, -2), "slot_mapping"),
        (fill("copy_source", 0, BLOCKS), "copy_source"),
        (fill("copy_target", 0, -1), "copy_target"),
        (lambda world: world.inputs.groups[0].set_opened([0, BLOCKS]), "opened"),
        (lambda world: world.sampling.source.__setitem__(1, 2), "row 2 of 2"),
        (lambda world: setattr(world.sampling, "rows", 5), "room for 4 rows"),
    ],
)
def test_a_step_that_names_what_is_not_there_is_refused_and_the_next_one_runs(
    change: Callable[[World], Any], named: str
) -> None:
    world = World()
    world.program.run()
    expected = world.sampling.token_ids.tolist()
    good = {name: getattr(world.inputs, name) for name in ("tokens", "seqs", "rows")}
    change(world)
    with pytest.raises(IndexError, match=named):
        world.program.run()
    fresh = World()
    for name, value in good.items():
        setattr(world.inputs, name, value)
    for name in ("token_ids", "query_start", "seq_lens", "output_rows"):
        getattr(world.inputs, name)[:] = getattr(fresh.inputs, name)
    ours, theirs = world.inputs.groups[0], fresh.inputs.groups[0]
    for name in ("slot_mapping", "block_table", "copy_source", "copy_target"):
        getattr(ours, name)[:] = getattr(theirs, name)
    ours.num_copies, world.sampling.rows, world.sampling.source[1] = 1, 2, 1
    ours.set_opened([4])
    world.program.run()
    assert world.sampling.token_ids.tolist() == expected


OUT = (1 << 20) - 4 * WIDTH  # room for one row, and a step may have more


@pytest.mark.parametrize(
    "record",
    [
        lambda p: p.embed(pack(), 1.0, OUT),
        lambda p: p.embed(pack(), 1.0, -64),
        lambda p: p.quantize("T", 0, 0, WIDTH, OUT),
        lambda p: p.quantize("T", 99, 0, WIDTH, 1 << 10),
        lambda p: p.linear("T", [0], [pack()], [None], [OUT], [False]),
        lambda p: p.linear("T", [OUT], [pack()], [None], [0], [False]),
        lambda p: p.linear("T", [], [], [], [], []),
        lambda p: p.linear("T", [0] * 9, [pack()] * 9, [None] * 9, [1 << 10] * 9, [False] * 9),
        lambda p: p.linear("T", [0], [pack(), pack()], [None, None], [0, 0], [False, False]),
        lambda p: p.linear("T", [0], [pack()], [], [1 << 10], [False]),
        lambda p: p.linear("T", [0], [pack()], [np.ones(VOCAB - 1, np.float32)], [1 << 10], [False]),
        lambda p: p.rms_norm("T", 0, np.ones(WIDTH, np.float32), 1e-5, 0.0, 0, 1 << 10),
        lambda p: p.rms_norm("T", 0, np.ones(WIDTH, np.float32), 1e-5, 0.0, 1, OUT),
        lambda p: p.rms_norm("T", 0, np.ones(0, np.float32), 1e-5, 0.0, 1, 1 << 10),
        lambda p: p.rope_angles(np.ones(8), 1.0, OUT),
        lambda p: p.rope(0, 1 << 10, 1, WIDTH, WIDTH, False),
        lambda p: p.rope(0, OUT, 1, WIDTH, 8, False),
        lambda p: p.activation("T", 4, 0, -1, WIDTH, 1 << 10),
        lambda p: p.activation("T", 0, 0, OUT, WIDTH, 1 << 10),
        lambda p: p.add("T", 0, OUT, 1.0, WIDTH, 1 << 10),
        lambda p: p.select_rows(0, WIDTH, OUT),
        lambda p: p.select_rows(0, -1, 1 << 10),
        lambda p: p.softcap("R", OUT, WIDTH, 1.0, 1.0),
        lambda p: p.update_cache(1, cache()),
        lambda p: p.update_cache(-1, cache()),
        lambda p: p.attention(1, cache(), 0, 0, 0, 0, 1, 0, 1.0, 0.0, 48, 1 << 16, 1 << 10),
        lambda p: p.attention(0, cache(), 2, 0, 0, 0, 1, 16, 1.0, 0.0, 48, 1 << 16, 1 << 10),
        lambda p: p.attention(0, cache(kv_heads=2), 0, 0, 0, 0, 1, 16, 1.0, 0.0, 48, 1 << 16, 1 << 10),
        lambda p: p.attention(0, cache(), 0, 0, 0, 0, 1, 16, 1.0, 0.0, 48, OUT, 1 << 10),
        lambda p: p.attention(0, cache(num_blocks=9), 0, 0, 0, 0, 1, 16, 1.0, 0.0, 48, 1 << 16, 1 << 10),
        lambda p: p.attention(0, cache(), 0, 0, 0, 0, 1, 32, 1.0, 0.0, 48, 1 << 16, 1 << 10),
        lambda p: p.sample(0, VOCAB, _native.SampleInputs(4, VOCAB + 1, 2, 2)),
        lambda p: p.sample(0, VOCAB, _native.SampleInputs(4, VOCAB, 2, 1)),
        lambda p: p.sample(OUT, VOCAB, _native.SampleInputs(4, VOCAB, 2, 2)),
        lambda p: p.call(print, [], 0),
        lambda p: p.call(print, [("T", OUT, WIDTH)], 0),
        lambda p: p.call(print, [("T", 0, WIDTH)], OUT),
        lambda p: p.floats(OUT, 2, WIDTH),
        lambda p: p.floats(0, -1, WIDTH),
        lambda p: p.floats(0, 1 << 62, 4),
    ],
)
def test_an_op_outside_its_arrays_is_not_recorded(record: Callable[[Any], Any]) -> None:
    world = World()
    names = world.program.op_names
    with pytest.raises((ValueError, IndexError)):
        record(world.program)
    assert world.program.op_names == names


@pytest.mark.skipif(sum(supported for _, supported, _ in _native.isa_levels()) < 2, reason="this machine has one level")
def test_a_weight_of_another_level_is_refused() -> None:
    other = _native.pack(_native.select_isa("scalar"), POOL, "f32", "f32", np.zeros(640, np.uint8), VOCAB, WIDTH)
    for record in (
        lambda p: p.embed(other, 1.0, 0),
        lambda p: p.linear("T", [0], [other], [None], [1 << 10], [False]),
    ):
        with pytest.raises(ValueError, match="instruction set"):
            record(World().program)


def test_a_bias_lives_as_long_as_the_program() -> None:
    """However the caller's list changes."""
    world = World()
    biases: list[Any] = [np.full(VOCAB, 7.0, np.float32)]
    program = _native.Program(ISA, POOL, world.inputs, 1 << 12)
    program.linear("R", [0], [pack()], biases, [1 << 10], [False])
    program.cut()
    biases.clear()
    for _ in range(10):
        np.full(VOCAB, 3.0, np.float32)  # would take the freed memory
    program.floats(0, 2, WIDTH)[:] = 0.0
    program.run()
    assert program.floats(1 << 10, 2, VOCAB).tolist() == [[7.0] * VOCAB] * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: _native.StepInputs(-1, 1, 1, [1]),
        lambda: _native.StepInputs(1, 0, 1, [1]),
        lambda: _native.StepInputs(1, 1 << 17, 1, [1]),
        lambda: _native.StepInputs(1, 1, 1, [-1]),
        lambda: _native.SampleInputs(1, 2**31 - 1, 0, 1),
        lambda: cache(num_layers=2**31 - 1),
        lambda: cache(num_blocks=2**31 - 1, num_layers=1 << 16, kv_heads=1 << 16, block_size=128),
        lambda: _native.KVCache.bytes_per_block(-1, 16, 1, 16),
        lambda: _native.act_of(ISA, 99),
        lambda: _native.act_bytes(ISA, 99, 32),
        lambda: _native.act_bytes(ISA, 0, -1),
        lambda: _native.attention_scratch(ISA, 1, 1, 1, 512, 16, 1),
        lambda: _native.probe_read(POOL, -1, 1),
        lambda: _native.probe_linear(ISA, POOL, [pack(), pack(20)], 1, 1),
        lambda: _native.linear(ISA, POOL, [], np.ones((1, WIDTH), np.float32)),
        lambda: cache(num_blocks=1).copy_blocks(np.zeros(65537, np.int32), np.zeros(65537, np.int32)),
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, IndexError)):
        make()


def test_none_is_no_object() -> None:
    with pytest.raises(TypeError):
        _native.Program(ISA, POOL, None, 64)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        World().program.sample(0, VOCAB, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        World().program.embed(None, 1.0, 0)  # type: ignore[arg-type]


def test_steps_run_one_after_another_and_take_what_the_one_before_has_sampled() -> None:
    worlds = [World(), World()]
    thread = _native.StepThread([(world.program, world.sampling) for world in worlds])
    thread.start(0, [])
    thread.wait(0)
    expected = worlds[0].sampling.token_ids[:2].tolist()
    for _ in range(20):  # both before and after the first one is over
        worlds[1].inputs.token_ids[[0, 3]] = 1, 0  # rows
        thread.start(0, [])
        thread.start(1, [0, 3])
        thread.wait(1)
        thread.wait(0)
        assert worlds[1].inputs.token_ids[[0, 3]].tolist() == expected[::-1]
    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.start(0, [])


def test_a_step_that_cannot_run_fails_alone() -> None:
    worlds = [World(), World()]
    turns = [(world.program, world.sampling) for world in worlds]
    thread = _native.StepThread(turns)
    for turn in (-1, 2):
        with pytest.raises(IndexError, match="turn"):
            thread.start(turn, [])
    thread.start(0, [0])  # of which step?
    with pytest.raises(IndexError, match="0 rows"):
        thread.wait(0)
    for token, row in [(4, 0), (-1, 0), (0, 2), (0, -1)]:
        thread.start(0, [])
        worlds[1].inputs.token_ids[0] = row
        thread.start(1, [token])
        with pytest.raises(IndexError, match="names none of the 2 rows"):
            thread.wait(1)
        thread.wait(0)
    worlds[0].inputs.tokens = 9
    thread.start(0, [])
    with pytest.raises(IndexError, match="tokens"):
        thread.wait(0)
    thread.wait(0)  # it has been told
    thread.close()
    for bad in ([], [(worlds[0].program, None)]):
        with pytest.raises((TypeError, ValueError)):
            _native.StepThread(bad)  # type: ignore[arg-type]
