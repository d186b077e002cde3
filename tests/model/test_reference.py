"""The reference backend's definitions, against others written in another way."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.ops.interface import AttentionSpec, RopeSpec
from octavo.ops.reference import Bf16Weight, PagedCache, QuantizedWeight, ReferenceOps, StepInputs, elementwise
from octavo.ops.reference.attention import attend
from octavo.ops.reference.linear import dequantize, linear, quantize_activations
from octavo.ops.reference.numbers import round_bf16, round_to

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(floats)
def test_bf16_rounding_finds_the_nearest(value: float) -> None:
    """Among the two bf16 numbers about a value, the nearer one; of two as near, the one with an even last bit."""
    x = np.float32(value)
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    below, above = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000  # in magnitude
    rest = bits - below
    expected = below if rest < 0x8000 or (rest == 0x8000 and not below & 0x10000) else above
    assert round_bf16(np.array([x])).view(np.uint32)[0] == (bits if rest == 0 else expected)


def test_rounding_keeps_what_a_type_can_hold() -> None:
    values = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-14, 65504.0, math.inf, -math.inf, math.nan])
    for dtype in ("f64", "f32"):
        np.testing.assert_array_equal(round_to(values, dtype), values)
    np.testing.assert_array_equal(round_to(values, "f16"), np.clip(values, -65504, 65504))
    np.testing.assert_array_equal(round_to(np.delete(values, 5), "bf16"), np.delete(values, 5))
    assert round_to(np.array([65520.0]), "f16")[0] == 65504.0


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
def test_quantised_activations_are_within_half_a_step(rows: int, groups: int, seed: int, size: float) -> None:
    x = (np.random.default_rng(seed).standard_normal((rows, 32 * groups)) * size).astype(np.float32)
    q, scale = quantize_activations(x)
    assert q.dtype == np.int8
    assert scale.shape == (rows, 2 * groups)
    step = np.repeat(scale.astype(np.float64), 16, axis=-1)
    assert (np.abs(q * step - x) <= step * (0.5 + 1e-5)).all()
    # The larger half of a group takes a step at most 1/32 above what it needs.
    peaks = np.abs(q.reshape(rows, groups, 32)).max(axis=-1)
    assert (peaks >= 127 * 32 // 33).all()


def test_an_outlier_costs_its_own_half_only() -> None:
    x = np.random.default_rng(0).standard_normal((1, 32)).astype(np.float32)
    largest = np.abs(x[0, 16:]).max()
    x[0, 3] = 100 * largest
    q, scale = quantize_activations(x)
    # Scales are the next multiples of a power of two, of which the larger half has more than 32, up to 64.
    step = 2.0 ** math.ceil(math.log2(100 * largest / (127 * 64)))
    for half, peak in enumerate((100 * largest, largest)):
        assert scale[0, half] / step == math.ceil(peak / (127 * step))
    assert 123 <= q[0, 3] <= 127


def test_a_group_of_zeros_is_zero() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 40] = -3.0
    q, scale = quantize_activations(x)
    assert scale[0, :2].tolist() == [2.0**-126, 2.0**-126]
    assert q[0].nonzero()[0].tolist() == [40]
    assert -127 <= q[0, 40] <= -123


def test_scales_end_where_the_kernels_powers_of_two_do() -> None:
    x = np.zeros((1, 96), np.float32)
    x[0, [0, 32, 64]] = 127 * 64 * np.float32(2.0**104), np.float32(2e35), 1e-40
    q, scale = quantize_activations(x)
    assert scale[0, 0] == 64 * 2.0**104
    assert np.isnan(scale[0, 2])
    assert q[0].nonzero()[0].tolist() == [0]
    assert q[0, 0] == 127


def test_activation_scales_belong_to_a_token_and_a_group() -> None:
    x = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    q, scale = quantize_activations(x)
    for row in range(5):
        alone, alone_scale = quantize_activations(x[row : row + 1, 32:64])
        np.testing.assert_array_equal(alone[0], q[row, 32:64])
        np.testing.assert_array_equal(alone_scale[0], scale[row, 2:4])


@pytest.mark.parametrize("group", [16, 32, 64])
@pytest.mark.parametrize("has_minimum", [False, True])
def test_quantised_linear_is_integer_arithmetic_with_scales(group: int, has_minimum: bool) -> None:
    """Each group's sum of integer products, times both scales, plus the minimum times the sum of the activations."""
    random = np.random.default_rng(group)
    n, k = 3, 128
    weight = QuantizedWeight(
        q=random.integers(0, 16, (n, k), dtype=np.uint8),
        scale=random.random((n, k // group)),
        minimum=-random.random((n, k // group)) if has_minimum else None,
        group=group,
    )
    x, bias = random.standard_normal((2, k)), random.standard_normal(n)
    got = linear(x, weight, bias)
    q, scale = quantize_activations(x)
    part = 16
    for row in range(2):
        for column in range(n):
            total = 0.0
            for start in range(0, k, part):
                a = [int(v) for v in q[row, start : start + part]]
                w = [int(v) for v in weight.q[column, start : start + part]]
                s = float(scale[row, start // 16])
                total += float(weight.scale[column, start // group]) * s * sum(i * j for i, j in zip(a, w, strict=True))
                if weight.minimum is not None:
                    total += float(weight.minimum[column, start // group]) * s * sum(a)
            assert got[row, column] == pytest.approx(total + bias[column], rel=1e-12, abs=1e-12)


def test_bf16_linear_rounds_the_activations() -> None:
    random = np.random.default_rng(1)
    values = round_to(random.standard_normal((4, 8)), "bf16")
    x = random.standard_normal((3, 8))
    np.testing.assert_array_equal(linear(x, Bf16Weight(values)), round_to(x, "bf16") @ values.T)
    np.testing.assert_array_equal(dequantize(Bf16Weight(values)), values)


def test_rms_norm_has_unit_mean_square() -> None:
    x = np.random.default_rng(2).standard_normal((5, 24)) * 7
    out = elementwise.rms_norm(x, np.zeros(8), 0.0, 1.0).reshape(5, 3, 8)
    np.testing.assert_allclose((out**2).mean(axis=-1), 1.0)
    np.testing.assert_allclose(
        elementwise.rms_norm(x, np.full(24, 3.0), 0.0), 3 * elementwise.rms_norm(x, np.ones(24), 0.0)
    )
    assert np.isfinite(elementwise.rms_norm(np.zeros((1, 8)), np.ones(8), 1e-6)).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_multiplies_complex_numbers(interleaved: bool) -> None:
    """A pair is a complex number, turned by exp(i * position * inv_freq); values past the pairs stay."""
    spec = RopeSpec((1.0, 0.25, 0.01), scale=1.5, interleaved=interleaved)
    x = np.random.default_rng(3).standard_normal((4, 2 * 8))
    positions = np.array([0, 1, 77, 10**6], np.int32)
    got = elementwise.rope(x, positions, spec, 8).reshape(4, 2, 8)
    heads = x.reshape(4, 2, 8)
    first, second = ([0, 2, 4], [1, 3, 5]) if interleaved else ([0, 1, 2], [3, 4, 5])
    z = heads[..., first] + 1j * heads[..., second]
    turned = 1.5 * z * np.exp(1j * positions[:, None, None] * np.array(spec.inv_freq))
    np.testing.assert_allclose(got[..., first], turned.real, atol=1e-12)
    np.testing.assert_allclose(got[..., second], turned.imag, atol=1e-12)
    np.testing.assert_array_equal(got[..., 6:], heads[..., 6:])


def test_activations_at_known_points() -> None:
    x = np.array([-1000.0, -1.0, 0.0, 1.0, 1000.0])
    sigmoid = 1 / (1 + math.exp(-1))
    phi = 0.5 * (1 + math.erf(1 / math.sqrt(2)))
    np.testing.assert_allclose(elementwise.activation(x, "silu"), [0, -(1 - sigmoid), 0, sigmoid, 1000], atol=1e-12)
    np.testing.assert_allclose(elementwise.activation(x, "gelu"), [0, -(1 - phi), 0, phi, 1000], atol=1e-12)
    np.testing.assert_allclose(elementwise.activation(x, "gelu_tanh"), elementwise.activation(x, "gelu"), atol=1e-3)
    np.testing.assert_array_equal(elementwise.activation(x, "relu"), [0, 0, 0, 1, 1000])


def test_softcap_bounds_and_keeps_small_values() -> None:
    x = np.array([-1e6, -1e-3, 0.0, 1e-3, 1e6])
    np.testing.assert_allclose(elementwise.softcap(x, 30.0), [-30, -1e-3, 0, 1e-3, 30], rtol=1e-6)
    np.testing.assert_array_equal(elementwise.softcap(x, 0.0), x)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([0, 1, 5, 16]),
    st.sampled_from([0.0, 2.0]),
    st.integers(0, 99),
)
def test_paged_attention_equals_a_loop_over_keys(
    context: int, queries: int, window: int, softcap: float, seed: int
) -> None:
    """One sequence beside another, in shuffled blocks, whose blocks behind the window are gone, against plain sums."""
    random = np.random.default_rng(seed)
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=6, scale=0.4, window=window, softcap=softcap)
    block_size, total = 4, context + queries
    cache = PagedCache([0], [64], block_size, 2, 6)
    order = random.permutation(64)
    table = order[: -(-total // block_size)].astype(np.int32)
    other = order[-2:].astype(np.int32)
    k, v = random.standard_normal((2, total, 12))
    slots = table[np.arange(total) // block_size] * block_size + np.arange(total) % block_size
    cache.store(0, k[:context], v[:context], slots[:context].astype(np.int64))
    if window:
        table = table.copy()
        table[: max(0, context - window + 1) // block_size] = -1
    tables = np.full((2, len(table) + 2), -1, np.int32)
    tables[0, : len(table)], tables[1, :2] = table, other
    inputs = StepInputs(
        token_ids=np.zeros(queries + 3, np.int32),
        positions=np.r_[context:total, 0:3].astype(np.int32),
        query_start=np.array([0, queries, queries + 3], np.int32),
        seq_lens=np.array([total, 3], np.int32),
        block_tables=(tables,),
        slot_mapping=(np.r_[slots[context:], other[0] * block_size + np.arange(3)].astype(np.int64),),
        output_rows=np.zeros(0, np.int32),
    )
    q = random.standard_normal((queries + 3, 24))
    beside = random.standard_normal((2, 3, 12))
    got = ReferenceOps(inputs, cache).attention(
        q, np.vstack([k[context:], beside[0]]), np.vstack([v[context:], beside[1]]), 0, spec
    )
    assert np.isfinite(got).all()
    for row in range(queries):
        position = context + row
        for head in range(4):
            part = slice(6 * (head // 2), 6 * (head // 2) + 6)
            weights, total_weight, expected = [], 0.0, np.zeros(6)
            for key in range(position + 1):
                if window and position - key >= window:
                    continue
                score = float(q[row, 6 * head : 6 * head + 6] @ k[key, part]) * spec.scale
                score = softcap * math.tanh(score / softcap) if softcap else score
                weights.append((math.exp(score), v[key, part]))
            total_weight = sum(weight for weight, _ in weights)
            for weight, value in weights:
                expected += weight / total_weight * value
            np.testing.assert_allclose(got[row, 6 * head : 6 * head + 6], expected, rtol=1e-9, atol=1e-12)


def test_attention_survives_scores_that_overflow_exp() -> None:
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=2, scale=1.0)
    q, k = np.array([[[1e4, 0.0]]]), np.array([[[1.0, 0.0]], [[0.5, 0.0]]])
    v = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    np.testing.assert_array_equal(attend(q, k, v, np.array([1]), np.array([0, 1]), spec), v[:1])


def test_copies_read_before_they_write() -> None:
    cache = PagedCache([0, 1], [4, 4], 2, 1, 3)
    for layer in range(2):
        cache.keys[layer][:] = np.arange(4)[:, None, None, None]
        cache.values[layer][:] = 10 + np.arange(4)[:, None, None, None]
    cache.copy_blocks([(0, 0, 1), (0, 1, 0), (1, 3, 2)])
    assert cache.keys[0][:, 0, 0, 0].tolist() == [1, 0, 2, 3]
    assert cache.values[0][:, 0, 0, 0].tolist() == [11, 10, 12, 13]
    assert cache.keys[1][:, 0, 0, 0].tolist() == [0, 1, 3, 3]


def test_pool_select_call_and_padding() -> None:
    inputs = StepInputs(
        token_ids=np.array([2, 0, 1], np.int32),
        positions=np.array([0, 1, 0], np.int32),
        query_start=np.array([0, 2, 3], np.int32),
        seq_lens=np.array([2, 1], np.int32),
        block_tables=(np.zeros((2, 1), np.int32),),
        slot_mapping=(np.array([0, -1, -1], np.int64),),
        output_rows=np.array([2, 0], np.int32),
    )
    cache = PagedCache([0], [1], 4, 1, 2)
    ops = ReferenceOps(inputs, cache)
    x = ops.embed(np.arange(6.0).reshape(3, 2), 2.0)
    np.testing.assert_array_equal(x, [[8, 10], [0, 2], [4, 6]])
    np.testing.assert_array_equal(elementwise.pool(x, "last"), [4, 6])
    np.testing.assert_array_equal(elementwise.pool(x, "mean"), [4, 6])
    np.testing.assert_array_equal(ops.select_rows(x), [[4, 6], [8, 10]])
    np.testing.assert_array_equal(ops.call(lambda a: a + 1, x), x + 1)
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        ops.call(lambda a: a[:, 0], x)
    cache.store(0, x, x, inputs.slot_mapping[0])
    assert np.isfinite(cache.keys[0]).sum() == 2
    with pytest.raises(ValueError, match="has no block"):
        cache.read(0, np.array([-1], np.int32), 0, 1)
