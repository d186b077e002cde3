"""Paged attention at every instruction set level: against its definition, and bit for bit against itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from octavo import _native
from octavo.ops.interface import AttentionSpec
from octavo.ops.reference.attention import attend
from octavo.ops.reference.numbers import round_to

ISAS = [name for name, supported, _ in _native.isa_levels() if supported]
POOLS = {threads: _native.ThreadPool(threads) for threads in (1, 2)}
TYPES = ["f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int16"]
PAIRED = ("avx512_bf16", "neon_i8mm", "scalar")  # levels that multiply pairs of bf16, or do as if
NEVER_PAIRED = ("f32", "f16", "int8", "int16")


@dataclass
class Sequence:
    """All queries, keys and values of one sequence, and how far it has been computed."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    out: list[np.ndarray] = field(default_factory=list)

    @property
    def output(self) -> np.ndarray:
        return np.concatenate(self.out)


def make_sequence(rng: np.random.Generator, length: int, spec: AttentionSpec, spread: float = 1.0) -> Sequence:
    def normal(heads: int, factor: float) -> np.ndarray:
        return (rng.standard_normal((length, heads * spec.head_dim)) * factor).astype(np.float32)

    return Sequence(normal(spec.num_heads, spread), normal(spec.num_kv_heads, 1.0), normal(spec.num_kv_heads, 1.0))


def copy_of(sequence: Sequence) -> Sequence:
    return Sequence(sequence.q, sequence.k, sequence.v)


class Engine:
    """A cache whose blocks are all NaN until opened, handed out in random order; steps of any mixture of sequences."""

    def __init__(
        self, isa: str, spec: AttentionSpec, rng: np.random.Generator, dtype: str, block_size: int, tokens: int
    ):
        self.isa, self.spec, self.rng = _native.select_isa(isa), spec, rng
        self.block_size = block_size
        num_blocks = tokens // block_size + 24
        self.cache = _native.KVCache(2, num_blocks, block_size, spec.num_kv_heads, spec.head_dim, dtype)
        self.free = [int(block) for block in rng.permutation(num_blocks)]
        slots = np.arange(num_blocks * block_size)
        nan = np.full((len(slots), spec.num_kv_heads * spec.head_dim), np.nan, np.float32)
        for layer in range(2):
            _native.store(self.isa, POOLS[1], self.cache, layer, nan, nan, slots)

    def step(self, work: list[tuple[Sequence, int]], threads: int = 1, shares: int = 0) -> None:
        """Computes the next `count` tokens of each sequence."""
        window = self.spec.window
        tables, slots = [], []
        for sequence, count in work:
            end = sequence.computed + count
            while len(sequence.blocks) * self.block_size < end:
                sequence.blocks.append(self.free.pop())
                self.cache.clear_blocks(np.array(sequence.blocks[-1:], np.int32))
            positions = np.arange(sequence.computed, end)
            blocks = np.array(sequence.blocks, np.int32)
            slots.append(
                blocks[positions // self.block_size].astype(np.int64) * self.block_size + positions % self.block_size
            )
            if window:
                blocks[: max(0, sequence.computed - window + 1) // self.block_size] = -1
            tables.append(blocks)
        table = np.full((len(work), max(map(len, tables)) + int(self.rng.integers(3))), -1, np.int32)
        for row, blocks in zip(table, tables, strict=True):
            row[: len(blocks)] = blocks
        counts = [count for _, count in work]

        def rows(name: str) -> np.ndarray:
            return np.concatenate([getattr(s, name)[s.computed : s.computed + count] for s, count in work])

        out = _native.attention(
            self.isa, POOLS[threads], self.cache, 1, rows("q"), rows("k"), rows("v"), np.concatenate(slots),
            np.cumsum([0, *counts]).astype(np.int32),
            np.array([s.computed + count for s, count in work], np.int32), table,
            self.spec.num_heads, self.spec.scale, self.spec.window, self.spec.softcap, shares=shares,
        )  # fmt: skip
        for (sequence, count), piece in zip(work, np.split(out, np.cumsum(counts)[:-1]), strict=True):
            sequence.out.append(piece)
            sequence.computed += count


def definition(sequence: Sequence, spec: AttentionSpec, dtype: str, isa: str) -> tuple[np.ndarray, np.ndarray]:
    """The output by the NumPy definition, and how far each value may be from it.

    Each dot product of n terms may be off by n units of 2^-24 of the sum of its absolute terms. An error of d in the
    scores is a relative error of 2d in the weights. Where bf16 pairs are multiplied, q and p carry a rounding of
    2^-9 each. Scales, where there are any, add two roundings to the scores and one to the weights. A weight of less
    than 2^-126 of the largest may be none. Keys and values of integers meet integers of up to 8191: q in units of its
    largest, and weights in units of the largest in a range, times its value's scale; each is half a unit off at most.
    """
    length, group = len(sequence.q), spec.num_heads // spec.num_kv_heads
    q = sequence.q.astype(np.float64).reshape(length, spec.num_heads, spec.head_dim)
    k, v = (round_to(x.reshape(length, spec.num_kv_heads, spec.head_dim), dtype) for x in (sequence.k, sequence.v))
    positions = np.arange(length)
    out = attend(q, k, v, positions, positions, spec)
    unit = 2.0**-24
    rounding = 2.0**-9 if isa in PAIRED and dtype not in NEVER_PAIRED else 0.0
    norms = np.repeat(np.linalg.norm(k, axis=-1).max(axis=0), group)  # sum |q||k| <= |q| |k|
    magnitude = np.linalg.norm(q, axis=-1) * norms * abs(spec.scale)
    score_error = magnitude * ((spec.head_dim + 8) * unit + rounding) + spec.softcap * 8 * unit
    if dtype in ("int8", "int16"):
        largest_q, sum_of_k = abs(q).max(axis=-1), np.repeat(abs(k).sum(axis=-1).max(axis=0), group)
        score_error += largest_q * sum_of_k * abs(spec.scale) / (2 * 8191)
    weight_error = 2 * score_error + 2 * rounding + (256 + length // 256 + 16) * unit
    spread = attend(q, k, abs(v), positions, positions, spec)
    vanished = length * 2.0**-126 * abs(v).max()
    error = spread * weight_error[:, :, None] + vanished
    if dtype in ("int8", "int16"):
        each = np.repeat(np.eye(length)[:, None], spec.num_kv_heads, axis=1)
        largest_v = np.maximum(abs(v).max(axis=-1, keepdims=True), 1e-30)
        weights = attend(
            q, k, each * largest_v, positions, positions, spec
        )  # [tokens, heads, keys], times their values
        sums = np.repeat(np.cumsum(abs(v) / largest_v, axis=0), group, axis=1)
        error += weights.max(axis=-1, keepdims=True) * sums / (2 * 8191)
    return out.reshape(length, -1), error.reshape(length, -1)


def check(sequence: Sequence, spec: AttentionSpec, dtype: str, isa: str) -> None:
    expected, tolerance = definition(sequence, spec, dtype, isa)
    error = abs(sequence.output - expected)
    assert not np.isnan(error).any()
    assert (error <= tolerance).all(), f"{(error / tolerance).max():.3g} times the tolerance"


def make_spec(heads: int, kv_heads: int, head_dim: int, window: int = 0, softcap: float = 0.0) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, window, softcap)


def random_chunks(rng: np.random.Generator, length: int) -> list[int]:
    cuts = np.unique(rng.integers(1, length, size=int(rng.integers(1, 7)))) if length > 1 else []
    return [int(size) for size in np.diff([0, *cuts, length])]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
class TestAgainstDefinition:
    @pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 80, 96, 128, 256])
    def test_head_sizes(self, isa: str, dtype: str, head_dim: int) -> None:
        spec, rng = make_spec(4, 2, head_dim), np.random.default_rng(head_dim)
        engine, sequence = Engine(isa, spec, rng, dtype, 16, 300), make_sequence(rng, 277, spec)
        engine.step([(sequence, 277)])
        check(sequence, spec, dtype, isa)

    @pytest.mark.parametrize("heads, kv_heads", [(2, 2), (6, 2), (4, 1), (16, 2), (9, 3), (7, 1), (25, 1)])
    def test_groups(self, isa: str, dtype: str, heads: int, kv_heads: int) -> None:
        spec, rng = make_spec(heads, kv_heads, 32), np.random.default_rng(heads)
        engine, sequence = Engine(isa, spec, rng, dtype, 32, 300), make_sequence(rng, 261, spec)
        for chunk in (250, 1, 1, 5, 4):
            engine.step([(sequence, chunk)], threads=2)
        check(sequence, spec, dtype, isa)

    @pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 700])
    def test_lengths(self, isa: str, dtype: str, length: int) -> None:
        spec, rng = make_spec(3, 1, 64), np.random.default_rng(length)
        engine, sequence = Engine(isa, spec, rng, dtype, 64, length), make_sequence(rng, length, spec, spread=4.0)
        engine.step([(sequence, length)])
        check(sequence, spec, dtype, isa)

    @pytest.mark.parametrize("window, block_size", [(1, 16), (7, 128), (32, 48), (512, 64)])
    def test_windows(self, isa: str, dtype: str, window: int, block_size: int) -> None:
        spec, rng = make_spec(4, 2, 32, window), np.random.default_rng(window)
        engine, sequence = Engine(isa, spec, rng, dtype, block_size, 700), make_sequence(rng, 640, spec)
        for chunk in (*random_chunks(rng, 600), *[1] * 38, 2):
            engine.step([(sequence, chunk)])
        check(sequence, spec, dtype, isa)

    @pytest.mark.parametrize("softcap", [2.0, 50.0])
    def test_softcap(self, isa: str, dtype: str, softcap: float) -> None:
        spec, rng = make_spec(4, 2, 64, 0, softcap), np.random.default_rng(1)
        engine, sequence = Engine(isa, spec, rng, dtype, 32, 300), make_sequence(rng, 300, spec, spread=8.0)
        engine.step([(sequence, 300)])
        check(sequence, spec, dtype, isa)

    def test_scores_far_apart(self, isa: str, dtype: str) -> None:
        """Keys that win by hundreds, in ranges that come before and after: all weights but one vanish."""
        spec, rng = make_spec(2, 1, 32), np.random.default_rng(2)
        engine, sequence = Engine(isa, spec, rng, dtype, 16, 800), make_sequence(rng, 800, spec, spread=100.0)
        engine.step([(sequence, 800)])
        check(sequence, spec, dtype, isa)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
class TestOwnBits:
    """A row of the output is the same bits however it comes to be computed."""

    @pytest.mark.parametrize(
        "spec",
        [
            make_spec(3, 1, 64),
            make_spec(8, 2, 32, window=300),
            make_spec(4, 4, 80, softcap=20.0),
            make_spec(7, 1, 16, window=9),
        ],
        ids=["gqa3", "gqa4-window300", "mha-softcap", "mqa7-window9"],
    )
    def test_chunks_batches_threads_and_blocks(self, isa: str, dtype: str, spec: AttentionSpec) -> None:
        rng = np.random.default_rng(3)
        lengths = [530, 257, 40, 1]
        sequences = [make_sequence(rng, length, spec) for length in lengths]
        whole = [copy_of(sequence) for sequence in sequences]
        for sequence in whole:
            Engine(isa, spec, rng, dtype, 64, len(sequence.q)).step([(sequence, len(sequence.q))])

        batched = [copy_of(sequence) for sequence in sequences]
        Engine(isa, spec, rng, dtype, 16, sum(lengths)).step([(s, len(s.q)) for s in batched], threads=2)

        for threads, block_size, shares in ((1, 32, 0), (2, 48, 0), (1, 16, 3), (1, 128, 13)):
            mixed = [copy_of(sequence) for sequence in sequences]
            idle = make_sequence(rng, 1, spec)
            engine = Engine(isa, spec, rng, dtype, block_size, sum(lengths))
            chunks = [random_chunks(rng, length) for length in lengths]
            while any(chunks):
                ready = [i for i in rng.permutation(len(mixed)) if chunks[i] and rng.random() < 0.7]
                if ready:
                    engine.step([(idle, 0), *((mixed[i], chunks[i].pop()) for i in ready), (idle, 0)], threads, shares)
            for a, b in zip(whole, mixed, strict=True):
                np.testing.assert_array_equal(a.output.view(np.uint32), b.output.view(np.uint32))
        for a, b in zip(whole, batched, strict=True):
            np.testing.assert_array_equal(a.output.view(np.uint32), b.output.view(np.uint32))

    @pytest.mark.parametrize("spec", [make_spec(3, 1, 64), make_spec(4, 2, 32, window=300)], ids=["full", "window"])
    def test_decode_equals_prefill(self, isa: str, dtype: str, spec: AttentionSpec) -> None:
        rng = np.random.default_rng(4)
        prefill = make_sequence(rng, 530, spec)
        decode = copy_of(prefill)
        Engine(isa, spec, rng, dtype, 32, 530).step([(prefill, 530)], threads=2)
        engine = Engine(isa, spec, rng, dtype, 16, 530)
        engine.step([(decode, 240)])
        for position in range(240, 530):
            engine.step([(decode, 1)], threads=1 + position % 2)
        np.testing.assert_array_equal(prefill.output.view(np.uint32), decode.output.view(np.uint32))

    @pytest.mark.parametrize("shares", [2, 3, 5, 8, 40])
    def test_shares_of_long_sequences(self, isa: str, dtype: str, shares: int) -> None:
        """Few items, many ranges: whoever computes the partials, the merge is the same."""
        spec, rng = make_spec(3, 1, 32), np.random.default_rng(shares)
        first, second = make_sequence(rng, 1500, spec), make_sequence(rng, 600, spec)
        outputs = []
        for count in (0, shares):
            pair = [copy_of(first), copy_of(second)]
            engine = Engine(isa, spec, rng, dtype, 64, 2100)
            for sequence, split in zip(pair, (1500, 600), strict=True):
                engine.step([(sequence, split - 21)], threads=2)
            engine.step([(pair[0], 20), (pair[1], 1)], shares=count)
            engine.step([(pair[0], 1), (pair[1], 20)], shares=count)
            outputs.append(np.concatenate([sequence.output for sequence in pair]))
        np.testing.assert_array_equal(outputs[0].view(np.uint32), outputs[1].view(np.uint32))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("isa", ISAS)
class TestCache:
    def test_store_reads_back_rounded(self, isa: str, dtype: str) -> None:
        rng = np.random.default_rng(5)
        cache = _native.KVCache(2, 6, 48, 3, 40, dtype)
        k, v = rng.standard_normal((2, 100, 120)).astype(np.float32)
        slots = rng.permutation(6 * 48)[:100].astype(np.int64)
        slots[[3, 50]] = -1
        _native.store(_native.select_isa(isa), POOLS[2], cache, 1, k, v, slots)
        for x, index in ((k, 0), (v, 1)):
            expected = np.zeros((6 * 48, 120))
            expected[slots[slots >= 0]] = round_to(x.reshape(100, 3, 40), dtype).reshape(100, 120)[slots >= 0]
            got = np.concatenate([cache.read_block(1, block)[index] for block in range(6)]).reshape(6 * 48, 120)
            np.testing.assert_array_equal(got, expected)
            assert not any(cache.read_block(0, block)[index].any() for block in range(6))

    def test_copies_read_before_they_write(self, isa: str, dtype: str) -> None:
        rng = np.random.default_rng(6)
        cache = _native.KVCache(3, 5, 16, 2, 24, dtype)
        for layer in range(3):
            k, v = rng.standard_normal((2, 80, 48)).astype(np.float32)
            _native.store(_native.select_isa(isa), POOLS[1], cache, layer, k, v, np.arange(80))
        before = [[cache.read_block(layer, block) for block in range(5)] for layer in range(3)]
        cache.copy_blocks(np.array([0, 1, 2, 0], np.int32), np.array([1, 2, 0, 4], np.int32))
        for layer in range(3):
            for block, source in enumerate([2, 0, 1, 3, 0]):
                np.testing.assert_array_equal(cache.read_block(layer, block), before[layer][source])

    @pytest.mark.parametrize("blocks", [70, 1500])
    def test_many_copies_read_before_they_write(self, isa: str, dtype: str, blocks: int) -> None:
        """However many there are: a permutation of all blocks, in which each is both source and destination."""
        rng = np.random.default_rng(7)
        cache = _native.KVCache(1, blocks, 16, 1, 16, dtype)
        k, v = rng.integers(0, 100, (2, 16 * blocks, 16)).astype(np.float32)
        _native.store(_native.select_isa(isa), POOLS[1], cache, 0, k, v, np.arange(16 * blocks))
        target = rng.permutation(blocks).astype(np.int32)
        cache.copy_blocks(np.arange(blocks, dtype=np.int32), target)
        got = [np.stack(parts) for parts in zip(*(cache.read_block(0, block) for block in target), strict=True)]
        for values, expected in zip(got, (k, v), strict=True):
            np.testing.assert_array_equal(values, round_to(expected.reshape(blocks, 16, 1, 16), dtype))

    def test_clear(self, isa: str, dtype: str) -> None:
        cache = _native.KVCache(2, 3, 32, 2, 16, dtype)
        ones = np.ones((96, 32), np.float32)
        for layer in range(2):
            _native.store(_native.select_isa(isa), POOLS[1], cache, layer, ones, ones, np.arange(96))
        cache.clear_blocks(np.array([1], np.int32))
        one = round_to(ones[0], dtype)[0]
        for layer in range(2):
            for block, expected in enumerate([one, 0, one]):
                assert all((values == expected).all() for values in cache.read_block(layer, block))

    def test_what_is_not_finite(self, isa: str, dtype: str) -> None:
        """NaN stays NaN; infinity does, or becomes the largest value, or all of its head and token becomes NaN."""
        cache = _native.KVCache(1, 1, 16, 2, 24, dtype)
        k = np.random.default_rng(8).standard_normal((16, 48)).astype(np.float32)
        k[[1, 4], [3, 30]], k[2, 23], k[3, 24] = np.nan, np.inf, -np.inf
        k[5, :24], k[6, 24:], k[7], k[8] = 0, 1e-45, 3e38, 3e-36
        _native.store(_native.select_isa(isa), POOLS[1], cache, 0, k, -k, np.arange(16))
        expected = round_to(k.reshape(16, 2, 24), dtype)
        keys, values = cache.read_block(0, 0)
        np.testing.assert_array_equal(keys, expected)
        np.testing.assert_array_equal(values, -expected)


@pytest.mark.parametrize("isa", ISAS)
def test_f16_saturates(isa: str) -> None:
    cache = _native.KVCache(1, 1, 16, 1, 16, "f16")
    x = np.resize(np.float32([65503, 65504, 65519, 65520, 1e5, np.inf, np.nan, 1]), (16, 16))
    expected = np.resize(np.float32([65504, 65504, 65504, 65504, 65504, 65504, np.nan, 1]), (16, 16))
    _native.store(_native.select_isa(isa), POOLS[1], cache, 0, x, -x, np.arange(16))
    keys, values = cache.read_block(0, 0)
    np.testing.assert_array_equal(keys[:, 0], expected)
    np.testing.assert_array_equal(values[:, 0], -expected)
    np.testing.assert_array_equal(round_to(x, "f16"), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("fault", [1e5, 3.3e38, np.inf, np.nan])
@pytest.mark.parametrize("heads", [2, 16])
def test_what_is_not_finite_stays_in_its_sequence(isa: str, dtype: str, fault: float, heads: int) -> None:
    """Beside a sequence with such values others have the same bits, in prefill, decode and blocks that were used; the
    sequence itself has them up to the chunk with the fault, and in it too where the type holds no infinity.
    """
    spec, rng = make_spec(heads, 1, 32), np.random.default_rng(3)
    clean, sick = make_sequence(rng, 40, spec), make_sequence(rng, 40, spec)
    alone, healthy = copy_of(clean), copy_of(sick)
    sick.v = sick.v.copy()
    sick.v[20, ::2] = fault
    engine = Engine(isa, spec, np.random.default_rng(4), dtype, 32, 96)
    other = Engine(isa, spec, np.random.default_rng(5), dtype, 32, 96)
    for count in (15, 3, 1, 4, 1, 1, 15):
        engine.step([(sick, count), (clean, count)])
        other.step([(alone, count)])
        other.step([(healthy, count)])
    np.testing.assert_array_equal(clean.output, alone.output)
    untouched = 20 if np.isfinite(round_to(np.full((1, 32), fault), dtype)).all() else 19
    np.testing.assert_array_equal(sick.output[:untouched], healthy.output[:untouched])
    assert (sick.output[20:] != healthy.output[20:]).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype, mantissa, bias, largest", [("fp8_e4m3", 3, 7, 448), ("fp8_e5m2", 2, 15, 57344)])
class TestEightBitFloats:
    """Against the formats' tables: sign, exponent with a bias, mantissa."""

    def test_rounding(self, isa: str, dtype: str, mantissa: int, bias: int, largest: int) -> None:
        grid = table_of(mantissa, bias, largest)
        middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
        even = np.where(np.arange(len(middle)) % 2, grid[1:], grid[:-1])
        below, above = (np.nextafter(middle, np.float32(end)) for end in (0, 1e9))
        x = np.concatenate([grid, middle, below, above, [largest * 1.04, largest * 4, np.inf]]).astype(np.float32)
        expected = np.concatenate([grid, even, grid[:-1], grid[1:], [largest] * 3])
        x, expected = (np.resize(np.concatenate([y, -y]), (4, 16, 16)) for y in (x, expected))
        cache = _native.KVCache(1, 4, 16, 1, 16, dtype)
        flat = x.reshape(64, 16)
        _native.store(_native.select_isa(isa), POOLS[1], cache, 0, flat, flat, np.arange(64))
        for block in range(4):
            for values in cache.read_block(0, block):
                np.testing.assert_array_equal(values[:, 0], expected[block])
        np.testing.assert_array_equal(round_to(x, dtype), expected)

    @pytest.mark.parametrize("heads", [1, 16])
    def test_every_value_is_read_as_it_is(
        self, isa: str, dtype: str, mantissa: int, bias: int, largest: int, heads: int
    ) -> None:
        """The output of a single key is its value; sixteen heads read one that was widened before."""
        spec, grid = make_spec(heads, 1, 16), table_of(mantissa, bias, largest)
        values = np.resize(np.concatenate([grid, -grid, [np.nan]]), (16, 16)).astype(np.float32)
        engine = Engine(isa, spec, np.random.default_rng(0), dtype, 16, 16 * 16)
        ones, zeros = np.ones((1, 16 * heads), np.float32), np.zeros((1, 16), np.float32)
        sequences = [Sequence(ones, zeros, value[None]) for value in values]
        engine.step([(sequence, 1) for sequence in sequences])
        for sequence, value in zip(sequences, values, strict=True):
            np.testing.assert_array_equal(sequence.output.reshape(heads, 16), np.tile(value, (heads, 1)))

    def test_a_key_that_is_no_number_shows(self, isa: str, dtype: str, mantissa: int, bias: int, largest: int) -> None:
        spec, rng = make_spec(2, 1, 32), np.random.default_rng(0)
        engine, sequence = Engine(isa, spec, rng, dtype, 16, 32), make_sequence(rng, 20, spec)
        sequence.k[7, 5] = np.nan
        for count in (7, 13):
            engine.step([(sequence, count)])
        assert not np.isnan(sequence.output[:7]).any() and np.isnan(sequence.output[7:]).all()


def table_of(mantissa: int, bias: int, largest: int) -> np.ndarray:
    """All values that are not negative."""
    fields = np.arange(128)
    exponent, fraction = fields >> mantissa, (fields & ((1 << mantissa) - 1)) / (1 << mantissa)
    values = np.where(exponent, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    return values[values <= largest]


def test_cache_says_its_size_and_its_limits() -> None:
    sizes = {"f32": 320, "f16": 160, "bf16": 160, "fp8_e4m3": 80, "fp8_e5m2": 80, "int8": 84, "int16": 164}
    for dtype, size in sizes.items():
        expected = 2 * 7 * 32 * 3 * size  # 72 is stored as 80; a scale takes 4
        assert _native.KVCache.bytes_per_block(7, 32, 3, 72, dtype) == expected
        assert _native.KVCache(7, 10, 32, 3, 72, dtype).bytes == 10 * expected
    for arguments in ((1, 4, 24, 1, 64), (1, 4, 256, 1, 64), (1, 4, 16, 1, 20), (1, 4, 16, 1, 264), (0, 4, 16, 1, 64)):
        with pytest.raises(ValueError, match="A KV cache cannot have"):
            _native.KVCache(*arguments)
    with pytest.raises(ValueError, match="q8"):
        _native.KVCache(1, 4, 16, 1, 64, "q8")


@pytest.mark.parametrize("isa", ISAS)
class TestVectorMath:
    def test_exp(self, isa: str) -> None:
        x = np.concatenate([np.linspace(-87.3, 88, 200_001), np.linspace(-1, 1, 50_001)]).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        assert abs(_native.math(_native.select_isa(isa), "exp", x) / exact - 1).max() < 2e-7

    def test_exp_at_the_ends(self, isa: str) -> None:
        x = np.array([0, -0.0, -np.inf, -1000, -88, -87.4, np.nan], np.float32)
        np.testing.assert_array_equal(
            _native.math(_native.select_isa(isa), "exp", x), np.float32([1, 1, 0, 0, 0, 0, np.nan])
        )

    def test_tanh(self, isa: str) -> None:
        x = np.concatenate(
            [np.linspace(-12, 12, 200_001), np.linspace(-0.6, 0.6, 50_001), np.geomspace(1e-30, 1, 9999)]
        )
        x = x[x != 0].astype(np.float32)
        exact = np.tanh(x.astype(np.float64))
        assert abs(_native.math(_native.select_isa(isa), "tanh", x) / exact - 1).max() < 4e-7

    def test_tanh_at_the_ends(self, isa: str) -> None:
        x = np.array([0, np.inf, -np.inf, 1e30, -1e30, np.nan], np.float32)
        np.testing.assert_array_equal(
            _native.math(_native.select_isa(isa), "tanh", x), np.float32([0, 1, -1, 1, -1, np.nan])
        )
