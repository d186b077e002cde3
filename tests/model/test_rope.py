"""Every rope variant has the frequencies, the scaling and the angles that transformers has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rope_cases import BASE, CASES, LONG, POSITIONS, SHORT, scaled

from octavo.errors import ModelError
from octavo.model import hf_facts
from octavo.model.description import Description
from octavo.model.rope import VARIANTS, rope_spec
from octavo.ops.interface import RopeSpec
from octavo.ops.reference.elementwise import rope

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rope.json").read_text(encoding="utf-8"))


def spec_of(config: dict[str, Any], length: int | None = None) -> RopeSpec:
    return hf_facts.llama(Description(config, frozenset(), max_model_len=length)).layers[0].rope


@pytest.mark.parametrize("name", CASES)
def test_frequencies_scaling_and_angles_equal_transformers(name: str) -> None:
    spec, expected = spec_of(*CASES[name]), GOLDEN[name]
    np.testing.assert_allclose(spec.inv_freq, expected["inv_freq"], rtol=1e-5)
    np.testing.assert_allclose(spec.scale, expected["scale"], rtol=1e-6)
    # Rotating (1, 0) and (0, 1) shows cos and sin themselves.
    half = len(spec.inv_freq)
    unit = np.zeros((len(POSITIONS), 2 * half))
    unit[:, :half] = 1.0
    rotated = rope(unit, np.array(POSITIONS, np.int32), spec, 2 * half)
    for row, position in enumerate(POSITIONS):
        # The oracle's angle is a float32 product of a float32 frequency: off by up to two roundings of the angle.
        tolerance = 1e-5 + 2.0**-22 * position * max(spec.inv_freq)
        np.testing.assert_allclose(rotated[row, :half], expected["cos"][row], rtol=0, atol=tolerance)
        np.testing.assert_allclose(rotated[row, half:], expected["sin"][row], rtol=0, atol=tolerance)


def test_every_variant_is_compared() -> None:
    kinds = {
        parameters.get("rope_type") or parameters.get("type", "default")
        for config, _ in CASES.values()
        for parameters in [config.get("rope_scaling") or config.get("rope_parameters") or {}]
    }
    assert kinds == set(VARIANTS)


def test_rope_factors_divide_the_frequencies() -> None:
    """The rope_freqs tensor that a converter writes for a llama3 model gives llama3's own frequencies."""
    llama3 = CASES["llama3"][0]["rope_scaling"]
    expected = rope_spec(llama3 | {"rope_theta": 50000.0}, 32, 4096).inv_freq
    plain = rope_spec({"rope_theta": 50000.0}, 32, 4096).inv_freq
    factors = tuple(p / e for p, e in zip(plain, expected, strict=True))
    np.testing.assert_allclose(
        rope_spec({"rope_theta": 50000.0}, 32, 4096, factors=factors).inv_freq, expected, rtol=1e-12
    )
    for wrong in (factors[:-1], (*factors[:-1], 0.0), (*factors[:-1], float("nan"))):
        with pytest.raises(ModelError, match="rope factors"):
            rope_spec({"rope_theta": 50000.0}, 32, 4096, factors=wrong)


def test_yarn_extends_the_context() -> None:
    config = scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096)
    assert hf_facts.llama(Description(config, frozenset())).max_position == 16384
    assert hf_facts.llama(Description(BASE, frozenset())).max_position == 4096


@pytest.mark.parametrize(("asked", "reach"), [(None, 4096), (100, 4096), (6000, 6000), (10**6, 8192)])
def test_dynamic_reaches_as_far_as_asked(asked: int | None, reach: int) -> None:
    config = scaled(rope_type="dynamic", factor=2.0)
    assert hf_facts.llama(Description(config, frozenset(), max_model_len=asked)).max_position == reach


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "mystery"}, "'mystery' is not supported; supported types: default, linear"),
        ({"type": "mrope"}, "'mrope'"),
        ({"rope_type": "linear"}, "no factor"),
        ({"rope_type": "linear", "factor": 0}, "factor .* greater than 0"),
        ({"rope_type": "linear", "factor": "4"}, "factor .*'4'.* number"),
        ({"rope_type": "dynamic", "factor": float("inf")}, "factor .*finite"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "no high_freq_factor"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "high_freq_factor >"),
        ({"rope_type": "longrope", "short_factor": SHORT, "original_max_position_embeddings": 64}, "no long_factor"),
        ({"rope_type": "longrope", "long_factor": LONG[:3], "original_max_position_embeddings": 64}, "16 numbers"),
        ({"rope_type": "longrope", "long_factor": [0.0] * 16, "original_max_position_embeddings": 64}, "than 0"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": -1}, "original_max_position"),
        ({"rope_type": "yarn", "factor": 4.0, "beta_slow": -2.0}, "beta_slow > 0"),
    ],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(scaled(**parameters))


@pytest.mark.parametrize("rotary_dim", [0, 7])
def test_a_rotated_part_must_be_even(rotary_dim: int) -> None:
    with pytest.raises(ModelError, match="even number"):
        rope_spec({"rope_theta": 1e4}, rotary_dim, 4096)


@pytest.mark.parametrize(
    "parameters", [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}]
)
def test_partly_rotated_heads_are_refused(parameters: dict[str, Any]) -> None:
    """None of the architectures rotates a part of a head; a config that says so is of another model."""
    with pytest.raises(ModelError, match=r"partial_rotary_factor 0.5"):
        spec_of(BASE | parameters)
