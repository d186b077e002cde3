"""Passes over a recorded decoder change which kernels run, and not one bit of what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_linear import LEVELS, packed

from octavo import _native
from octavo.ops.native import NativeOps

WIDTH, HIDDEN, TOKENS = 256, 344, 75


def run(isa: Any, pool: Any, decoder: Callable[[NativeOps], Any]) -> tuple[Any, list[str]]:
    """The rows of the decoder's result, and the ops that ran."""
    inputs = _native.StepInputs(TOKENS, 1, 1, [])
    ops = NativeOps(isa, {"T": TOKENS, "S": 1, "R": 1}, [], 0, pool.threads)
    out = decoder(ops)
    ops.keep(out)
    (program,) = ops.build(pool, [inputs], [], 16)
    inputs.tokens = TOKENS
    inputs.token_ids[:] = np.arange(TOKENS) % 50
    program.run()
    return program.floats(out.offset, TOKENS, out.width).copy(), program.op_names


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("down", ["f32", "bf16", "q4_1", "q8_0", "int8"])
@pytest.mark.parametrize(
    "gate_up", [("q4_1", "q4_1"), ("q8_0", "q4_k"), ("bf16", "bf16"), ("f32", "q6_k"), ("int8", "int8")]
)
@pytest.mark.parametrize("biased", [False, True])
def test_a_gate_in_the_linear_has_the_bits_of_a_gate_behind_it(
    level: str, down: str, gate_up: tuple[str, str], biased: bool
) -> None:
    isa, pool = _native.select_isa(level), _native.ThreadPool(2)
    # q formats of 32 need a whole number of groups; the columns of a hidden size of 344 end within a panel.
    hidden = HIDDEN if down in ("f32", "bf16", "int8") else 352
    embedding = packed(isa, pool, "f32", 50, WIDTH, seed=1)
    gate, up = (packed(isa, pool, source, hidden, WIDTH, seed=seed) for seed, source in enumerate(gate_up, 2))
    back = packed(isa, pool, down, WIDTH, hidden, seed=4)
    biases = np.random.default_rng(5).standard_normal((2, hidden)).astype(np.float32)

    def decoder(fused: bool) -> Callable[[NativeOps], Any]:
        def record(ops: NativeOps) -> Any:
            x = ops.embed(embedding, 0.1)
            g = ops.linear(x, gate, biases[0] if biased else None)
            u = ops.linear(x, up, biases[1] if biased else None)
            y = ops.linear(ops.gated_activation(g, u, "silu"), back)
            if not fused:
                ops.keep(g)  # a product that something else reads has to be written
            return y

        return record

    wanted, unfused_names = run(isa, pool, decoder(fused=False))
    got, names = run(isa, pool, decoder(fused=True))
    assert "gated_linear" in names
    assert "gated_linear" not in unfused_names
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))
