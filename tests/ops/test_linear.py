"""The linear kernels against their definitions, at every instruction set level this machine can run."""

from __future__ import annotations

import itertools
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.ops.reference.linear import (
    Bf16Weight,
    QuantizedWeight,
    Weights,
    dequantize,
    linear,
    quantize_activations,
    quantize_spans,
    quantize_weights,
)
from octavo.ops.reference.numbers import round_to

FLOATS = ("f32", "f16", "bf16")
QUANTIZED = {
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q2_k": gguf.GGMLQuantizationType.Q2_K,
    "q3_k": gguf.GGMLQuantizationType.Q3_K,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
    "q5_k": gguf.GGMLQuantizationType.Q5_K,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
# Weights that are quantised at load: what they are packed as, and the values that share a scale.
NEW = {"int8": ("i8s", 0), "int4 32": ("i4", 32), "int4 64": ("i4", 64), "int4 128": ("i4", 128)}
LEVELS = [name for name, supported, _ in _native.isa_levels() if supported]
EPS32 = float(np.finfo(np.float32).eps)


@pytest.fixture(scope="module", params=LEVELS)
def isa(request: pytest.FixtureRequest) -> Any:
    return _native.select_isa(request.param)


@pytest.fixture(scope="module", params=[1, 2, 3])
def pool(request: pytest.FixtureRequest) -> Any:
    return _native.ThreadPool(request.param)


@pytest.fixture(scope="module")
def two() -> Any:
    return _native.ThreadPool(2)


def stored(source: str, n: int, k: int, seed: int = 0, low: int = 0) -> npt.NDArray[np.uint8]:
    """A tensor [n, k] of a file's type: random values, or random bytes of at least `low` under sane scales."""
    rng = np.random.default_rng(seed)
    if source == "bf16":
        return (rng.standard_normal((n, k)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    if source in FLOATS:
        return rng.standard_normal((n, k)).astype({"f32": np.float32, "f16": np.float16}[source]).view(np.uint8)
    values, size = gguf.GGML_QUANT_SIZES[QUANTIZED[source]]
    blocks = rng.integers(low, 256, (n, k // values, size), np.uint8)
    scales = 1 if source in ("q4_0", "q5_0", "q8_0", "q3_k", "q6_k") else 2
    at = size - 2 * scales if source in ("q2_k", "q3_k", "q6_k") else 0
    halves = rng.uniform(-0.02, 0.02, (n, k // values, scales)).astype(np.float16)
    blocks[..., at : at + 2 * scales] = halves.view(np.uint8).reshape(n, k // values, 2 * scales)
    return blocks.reshape(n, -1)


def values_of(source: str, data: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.float32]:
    """What the stored bytes stand for, by NumPy or by the gguf package."""
    if source == "bf16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, k)
    if source in FLOATS:
        return data.view({"f32": np.float32, "f16": np.float16}[source]).astype(np.float32).reshape(n, k)
    return gguf.dequantize(data, QUANTIZED[source]).reshape(n, k)


def packed(isa: Any, pool: Any, source: str, n: int, k: int, target: str | None = None, seed: int = 0) -> Any:
    if source in NEW:
        return quantised(isa, pool, "f32", n, k, *NEW[source], seed)
    data = stored(source, n, k, seed)
    data.flags.writeable = False
    return _native.pack(isa, pool, target or _native.default_format(source), source, data, n, k)


def quantised(isa: Any, pool: Any, source: str, n: int, k: int, target: str, group: int, seed: int = 0) -> Any:
    return _native.pack(isa, pool, target, source, stored(source, n, k, seed).reshape(-1), n, k, group)


def definition(weight: Any) -> Weights:
    """A packed weight as the reference backend takes it."""
    values = _native.unpack(weight).astype(np.float64)
    name = weight.format.name
    if name == "bf16":
        return Bf16Weight(values)
    if name in FLOATS:
        return values
    # Any integers and scales with these products do: the definition is exact in float64.
    return QuantizedWeight(np.ones(values.shape, np.int64), values, None, 1, "spans" if name == "i8s" else "halves")


def expected(x: npt.NDArray[np.float32], weight: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The defined product, and how far float32 sums may be from it.

    K roundings of sums that no partial one exceeds in size: K * eps * (|x| . |w|), on average far less. In integer
    formats a term is scale * q and a minimum or zero point, each as large as the group's largest value: |w| is replaced
    by that.
    """
    wanted = definition(weight)
    values = np.abs(_native.unpack(weight).astype(np.float64))
    k = values.shape[1]
    if weight.format.name not in FLOATS:
        groups = values.reshape(len(values), -1, k if weight.format.name == "i8s" else 32)
        values = np.broadcast_to(2 * groups.max(axis=-1, keepdims=True), groups.shape).reshape(values.shape)
    size = np.abs(x.astype(np.float64)) @ values.T
    return linear(x.astype(np.float64), wanted), EPS32 * (8 + 2 * np.sqrt(k)) * size + 1e-30


def inputs(rows: int, k: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, k)).astype(np.float32)


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED])
def test_packing_keeps_every_bit(isa: Any, two: Any, source: str) -> None:
    k = 512 if source not in FLOATS else 77
    for n in (1, 50, 130):
        weight = packed(isa, two, source, n, k)
        values = values_of(source, stored(source, n, k), n, k)
        if source in FLOATS:
            np.testing.assert_array_equal(_native.unpack(weight), values)
        else:  # the gguf package rounds the product and the sum, we the sum alone
            size = np.abs(values).reshape(n, -1, 16).max(axis=-1).repeat(16, axis=-1).reshape(n, k)
            assert (np.abs(_native.unpack(weight) - values) <= 2 * EPS32 * (size + 0.6)).all()


@pytest.mark.parametrize("source", QUANTIZED)
@pytest.mark.parametrize("target", FLOATS)
def test_quantised_tensors_pack_as_floats(isa: Any, two: Any, source: str, target: str) -> None:
    n, k = 40, 256
    whole = _native.unpack(packed(isa, two, source, n, k, "f32"))
    np.testing.assert_array_equal(whole, _native.unpack(packed(isa, two, source, n, k)))
    np.testing.assert_array_equal(_native.unpack(packed(isa, two, source, n, k, target)), round_to(whole, target))


def test_float_packing_rounds_to_nearest_even(isa: Any, two: Any) -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.3e38, 1e-40, np.inf, np.nan, 65519.0], np.float32)[None]
    for target in ("bf16", "f16"):
        finite = x if target == "bf16" else x[:, [0, 1, 2, 4, 5, 7]].copy()
        weight = _native.pack(isa, two, target, "f32", finite.view(np.uint8), 1, finite.shape[1])
        # A weight keeps infinity, unlike a float16 cache.
        expected = round_to(finite, target) if target == "bf16" else finite.astype(np.float16)
        np.testing.assert_array_equal(_native.unpack(weight), expected.astype(np.float32))
    with pytest.raises(ValueError, match="65504"):
        _native.pack(isa, two, "f16", "f32", np.full((1, 4), 65520, np.float32).view(np.uint8), 1, 4)


def test_pack_refuses_what_does_not_fit(isa: Any, two: Any) -> None:
    data = np.zeros(34 * 2 * 3, np.uint8)
    assert _native.pack(isa, two, "i8", "q8_0", data, 3, 64).n == 3
    for args, words in (
        (("i8", "q8_0", data, 3, 65), "65.*multiple of 32"),
        (("i8", "q8_0", data, 4, 64), "4 rows of 68 bytes.*204"),
        (("i8", "q8_0", data, 0, 64), "0 x 64"),
        (("i8", "q8_0", data, 1 << 40, 64), "1099511627776"),
        (("i8", "q8_0", data, 3, (1 << 62) + 64), "2147483647"),
        (("i4", "q8_0", data, 3, 64), "q8_0 cannot be packed as i4"),
        (("i8", "f32", data, 3, 17), "f32 cannot be packed as i8"),
        (("i8s", "q8_0", data, 3, 32), "3 rows of 34 bytes"),
        (("i8", "q8_0", data, 3, 64, 32), "32 of i8"),
        (("i4", "f32", np.zeros(96 * 4, np.uint8), 1, 96, 64), "64 of i4 with 96"),
        (("i4", "f32", np.zeros(96 * 4, np.uint8), 1, 96, 16), "16 of i4"),
        (("i4", "f32", np.zeros(96 * 4, np.uint8), 1, 96), "i4 with a group"),
        (("i8s", "f32", np.full(96, np.inf, np.float32).view(np.uint8), 1, 96), "not finite"),
        (("i4", "f32", np.full(96, np.nan, np.float32).view(np.uint8), 1, 96, 32), "not finite"),
        (("i4", "f32", np.full(96, 1e5, np.float32).view(np.uint8), 1, 96, 32), "65504"),
        (("i8", "iq3_s", data, 3, 64), "iq3_s"),
        (("i7", "q8_0", data, 3, 64), "i7"),
        (("i8", "q5_0", np.zeros(22, np.uint8), 1, 32), "only as i5"),
    ):
        with pytest.raises(ValueError, match=words):
            _native.pack(isa, two, *args)


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED])
def test_int8_rounds_each_span_by_its_largest_value(isa: Any, two: Any, source: str) -> None:
    n, k = 70, 512 if source not in FLOATS else 77
    whole = _native.unpack(packed(isa, two, source, n, k, "f32"))
    wanted = dequantize(quantize_weights(whole)).astype(np.float32)
    np.testing.assert_array_equal(_native.unpack(quantised(isa, two, source, n, k, "i8s", 0)), wanted)


def test_int8_of_extreme_rows(isa: Any, two: Any) -> None:
    x = np.zeros((4, 40), np.float32)
    x[1] = 1e-42  # whose scale has no float32 reciprocal: rounded to nothing
    x[2] = 3e38
    x[3, 7] = -5
    weight = _native.pack(isa, two, "i8s", "f32", x.view(np.uint8).reshape(-1), 4, 40)
    np.testing.assert_array_equal(_native.unpack(weight), dequantize(quantize_weights(x)).astype(np.float32))


@pytest.mark.parametrize("source", ["f32", "bf16", "q8_0", "q4_k"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_errs_less_than_its_range_cut_in_fifteen(isa: Any, two: Any, source: str, group: int) -> None:
    n, k = 70, 768
    whole = _native.unpack(packed(isa, two, source, n, k, "f32")).astype(np.float64)
    got = _native.unpack(quantised(isa, two, source, n, k, "i4", group))
    groups, ours = whole.reshape(n, -1, group), got.reshape(n, -1, group)
    low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
    scale = ((high - low) / 15).astype(np.float16).astype(np.float64)
    low = low.astype(np.float16).astype(np.float64)
    plain = np.rint(np.clip((groups - low) / np.where(scale, scale, np.inf), 0, 15)) * scale + low
    errors = [((values - groups) ** 2).sum(axis=-1) for values in (ours, plain)]
    assert (errors[0] <= errors[1] * (1 + 1e-3) + 1e-9).all()
    assert errors[0].sum() < (0.95 if source != "q4_k" else 1.0) * errors[1].sum()
    for level in LEVELS:  # which is the same at all of them
        other = quantised(_native.select_isa(level), two, source, n, k, "i4", group)
        np.testing.assert_array_equal(_native.unpack(other), got)


def test_int4_keeps_what_four_bits_held(isa: Any, two: Any) -> None:
    n, k = 40, 256
    blocks = stored("q4_1", n, k).reshape(n, -1, 20)
    blocks[..., 1] &= 0x7F  # scales above zero
    blocks[..., 4] = 0xF0  # and both ends of each group's range taken
    data = blocks.reshape(-1)
    kept = _native.unpack(_native.pack(isa, two, "i4", "q4_1", data, n, k))
    np.testing.assert_array_equal(_native.unpack(_native.pack(isa, two, "i4", "q4_1", data, n, k, 32)), kept)


def test_a_pack_takes_about_the_bits_of_its_file(two: Any) -> None:
    n, k = 1024, 1024
    sizes = {source: gguf.GGML_QUANT_SIZES[kind] for source, kind in QUANTIZED.items()}
    own = {source: 8 * size / values for source, (values, size) in sizes.items()}
    made = {"int8": 8.5, "int4 32": 5.0, "int4 64": 4.5, "int4 128": 4.25}
    for source, most in [*((source, 1.05 * bits) for source, bits in own.items()), *made.items(), ("bf16", 16)]:
        for level in LEVELS:
            weight = packed(_native.select_isa(level), two, source, n, k)
            assert weight.bytes * 8 / (n * k) <= most


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED, *NEW])
def test_linear_meets_its_definition(isa: Any, two: Any, source: str) -> None:
    shapes = [(64, 64), (33, 576), (200, 96), (7, 1536), (64, 256), (50, 768), (65, 77), (1, 1), (20, 4096), (3, 5376)]
    multiple = (
        1 if source in FLOATS else NEW[source][1] or 1 if source in NEW else gguf.GGML_QUANT_SIZES[QUANTIZED[source]][0]
    )
    shapes = [(n, k) for n, k in shapes if k % multiple == 0]
    for (n, k), rows in itertools.product(shapes, (1, 2, 3, 4, 5, 6, 7, 13, 64, 65, 80)):
        if rows > 7 and n * k > 33 * 576:
            continue
        weight = packed(isa, two, source, n, k, seed=n)
        x = inputs(rows, k)
        out = _native.linear(isa, two, weight, x)
        wanted, tolerance = expected(x, weight)
        assert (np.abs(out - wanted) <= tolerance).all(), (n, k, rows, np.abs(out - wanted).max(), tolerance.min())


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED, "int8", "int4 64", "int4 128"])
def test_a_row_is_the_same_bits_in_any_company(isa: Any, pool: Any, source: str) -> None:
    n, k = 150, 768
    weight = packed(isa, pool, source, n, k)
    x = inputs(131, k)
    bias = inputs(1, n, seed=2)[0]
    start = inputs(131, n, seed=3)
    alone = np.concatenate([_native.linear(isa, pool, weight, x[i : i + 1], bias) for i in range(len(x))])
    added = np.concatenate(
        [_native.linear(isa, pool, weight, x[i : i + 1], bias, start[i : i + 1].copy()) for i in range(len(x))]
    )
    single = _native.linear(isa, _native.ThreadPool(1), weight, x[:1], bias)
    np.testing.assert_array_equal(alone[:1], single)
    np.testing.assert_array_equal(added, start + alone)
    for rows in (2, 3, 4, 5, 6, 7, 8, 11, 13, 64, 65, 72, 73, 131):
        first = len(x) - rows
        np.testing.assert_array_equal(_native.linear(isa, pool, weight, x[first:], bias), alone[first:])
        out = start[first:].copy()
        assert _native.linear(isa, pool, weight, x[first:], bias, out) is not None
        np.testing.assert_array_equal(out, added[first:])


@pytest.mark.parametrize("source", QUANTIZED)
def test_the_largest_integers_of_both_sides_do_not_overflow(isa: Any, two: Any, source: str) -> None:
    n, k = 20, 256
    data = stored(source, n, k, low=255)  # every bit of every weight
    weight = _native.pack(isa, two, _native.default_format(source), source, data, n, k)
    for x in (np.ones((6, k), np.float32), -np.ones((6, k), np.float32), np.tile([1, 1, -1, -1], (6, k // 4))):
        wanted, tolerance = expected(x.astype(np.float32), weight)
        assert (np.abs(_native.linear(isa, two, weight, x.astype(np.float32)) - wanted) <= tolerance).all()


def test_the_comparison_of_bits_would_catch_an_order_of_k_that_depends_on_the_rows() -> None:
    x, w = inputs(64, 768), inputs(50, 768, seed=4)

    def product(x: npt.NDArray[np.float32], lanes: int) -> npt.NDArray[np.float32]:
        """Sums over K in `lanes` interleaved parts, as a kernel would that reduces across a vector."""
        parts = np.zeros((lanes, len(x), len(w)), np.float32)
        for k in range(x.shape[1]):
            parts[k % lanes] += x[:, k, None] * w[:, k]
        return parts.sum(axis=0, dtype=np.float32)

    alone = np.concatenate([product(x[i : i + 1], 1) for i in range(len(x))])
    np.testing.assert_array_equal(product(x, 1), alone)
    assert (product(x, 2) != alone).any()


@pytest.mark.parametrize("rows", [5, 61])  # whole panels for each thread, and panels that threads share
def test_weights_of_one_call_share_the_threads(isa: Any, pool: Any, rows: int) -> None:
    x = inputs(rows, 512)
    weights = [
        packed(isa, pool, source, n, 512)
        for source, n in (("q4_0", 200), ("q6_k", 33), ("bf16", 1), ("f16", 129), ("int8", 70), ("q8_0", 9))
    ]
    biases = [inputs(1, 200)[0], None, inputs(1, 1)[0], None, None, None]
    whole = _native.linear(isa, pool, weights, x, biases)
    parts = [_native.linear(isa, pool, weight, x, bias) for weight, bias in zip(weights, biases, strict=True)]
    np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))


def test_activations_are_quantised_as_defined(isa: Any, pool: Any) -> None:
    x = inputs(9, 1056) * np.exp(inputs(9, 1056, seed=5) * 4)
    x[0, :32] = 0
    x[1, 32:64] = 1e-42
    x[2, :32] = np.linspace(-127, 127, 32).round() + np.tile([0.5, -0.5], 16)
    x[2, 0] = x[2, 16] = 127
    x[3, :16] *= 1e-4  # a half far below the other
    x[4, 16:32] = 0
    q, scale = quantize_activations(x)
    wanted = q.astype(np.float32) * np.repeat(scale, 16, axis=-1)
    for name in ("i8", "i4", "i6"):
        np.testing.assert_array_equal(_native.quantize_roundtrip(isa, pool, name, x), wanted)
    for part in (x, x[:, :77].copy(), x[:, :4].copy()):
        q, scale = quantize_spans(part)
        wanted = q * np.repeat(scale, 64, axis=-1)[:, : part.shape[1]]
        np.testing.assert_array_equal(_native.quantize_roundtrip(isa, pool, "i8s", part), wanted)
    np.testing.assert_array_equal(_native.quantize_roundtrip(isa, pool, "f16", x), x)
    np.testing.assert_array_equal(
        _native.quantize_roundtrip(isa, pool, "bf16", x[:, :77].copy()), round_to(x[:, :77], "bf16")
    )


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED, "int8", "int4 64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_spoils_its_own_row_only(isa: Any, two: Any, source: str, value: float) -> None:
    x = inputs(9, 256)
    weight = packed(isa, two, source, 40, 256)
    clean = _native.linear(isa, two, weight, x)
    x[4, 100] = value
    out = _native.linear(isa, two, weight, x)
    assert not np.isfinite(out[4]).any()
    np.testing.assert_array_equal(np.delete(out, 4, 0), np.delete(clean, 4, 0))
    np.testing.assert_array_equal(np.isfinite(linear(x.astype(np.float64), definition(weight))), np.isfinite(out))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_group_with_such_a_value_has_no_scale(isa: Any, two: Any, value: float) -> None:
    x = inputs(2, 192)
    x[1, 70] = value
    q, scale = quantize_activations(x)
    wanted = q * np.repeat(scale, 16, axis=-1)
    assert (np.isnan(wanted) == (np.arange(192) // 32 == 2) * [[False], [True]]).all()
    for name in ("i8", "i4", "i6"):
        np.testing.assert_array_equal(_native.quantize_roundtrip(isa, two, name, x), wanted)
    q, scale = quantize_spans(x)
    wanted = q * np.repeat(scale, 64, axis=-1)
    spoilt = (np.arange(192) // 64 == 1) * [[False], [not np.isfinite(value)]]
    assert (np.isnan(wanted) == spoilt).all()
    np.testing.assert_array_equal(_native.quantize_roundtrip(isa, two, "i8s", x), wanted)


@pytest.mark.parametrize("source", [*FLOATS, *QUANTIZED, *NEW])
def test_embed_reads_rows_of_the_pack(isa: Any, pool: Any, source: str) -> None:
    n, k = 100, 768
    weight = packed(isa, pool, source, n, k)
    ids = np.array([99, 0, 31, 32, 63, 64, 5, 99], np.int32)
    rows = _native.unpack(weight)[ids]
    np.testing.assert_array_equal(_native.embed(isa, pool, weight, ids), rows)
    np.testing.assert_array_equal(_native.embed(isa, pool, weight, ids, 0.5), rows * np.float32(0.5))


def test_a_weight_of_another_level_is_refused(two: Any) -> None:
    if len(LEVELS) < 2:
        pytest.skip("one level only")
    first, second = (_native.select_isa(name) for name in LEVELS[:2])
    with pytest.raises(ValueError, match=LEVELS[0]):
        _native.linear(second, two, packed(first, two, "f32", 4, 4), inputs(1, 4))
