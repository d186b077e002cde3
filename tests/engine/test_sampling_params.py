"""Every value a client can get wrong is refused by name, and the rest means what is documented."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import RequestError
from octavo.sampling_params import BeamSearchParams, OutputKind, SamplingParams

NUMBERS = {
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
}
INTEGERS = {
    "n": (1, 128),
    "top_k": (-1, 2**63 - 1),
    "max_tokens": (0, 2**63 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
    "seed": (-(2**63), 2**64 - 1),
}
NO_NUMBER = [math.nan, math.inf, -math.inf, True, "0", [], {}, 10**400, -(10**400)]


def refused(name: str, value: object) -> str:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 300
    return str(caught.value)


@pytest.mark.parametrize("name", [*NUMBERS, "repetition_penalty"])
@pytest.mark.parametrize("value", [*NO_NUMBER, None])
def test_what_is_no_finite_number_is_refused(name: str, value: object) -> None:
    refused(name, value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [*NO_NUMBER, 1.5, 1.0, False])
def test_what_is_no_integer_is_refused(name: str, value: object) -> None:
    refused(name, value)


@given(st.sampled_from(sorted(NUMBERS)), st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_hold_within_their_limits_only(name: str, value: float) -> None:
    low, high = NUMBERS[name]
    if low <= value <= high:
        assert getattr(SamplingParams(**{name: value}), name) == value
    else:
        refused(name, value)


@given(st.sampled_from(sorted(INTEGERS)), st.integers(-(2**66), 2**66))
def test_integers_hold_within_their_limits_only(name: str, value: int) -> None:
    low, high = INTEGERS[name]
    if low <= value <= high and name not in ("seed", "top_k"):
        extra = {"max_tokens": None} if name == "min_tokens" else {}
        assert getattr(SamplingParams(**({name: value} | extra)), name) == value
    elif not low <= value <= high:
        refused(name, value)


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, 1e7])
def test_a_repetition_penalty_is_above_zero(value: float) -> None:
    refused("repetition_penalty", value)


@pytest.mark.parametrize(
    "params", [{"temperature": t} for t in (0, 1e-4, 1e-12, 5e-324)] + [{"top_k": 1}, {"top_p": 0}, {"min_p": 1}]
)
def test_greedy(params: dict) -> None:
    assert SamplingParams(**params).is_greedy


@pytest.mark.parametrize(
    ("params", "field", "value"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 10**9}, "top_k", 10**9),
        ({"seed": -1}, "seed", None),
        ({"seed": 2**63 - 1}, "seed", 2**63 - 1),
        ({"stop": "STOP"}, "stop", ("STOP",)),
        ({"stop": ["STOP"]}, "stop", ("STOP",)),
        ({"stop": []}, "stop", ()),
        ({"stop": None}, "stop", ()),
        ({"logit_bias": {"12": 3, 13: -100}}, "logit_bias", {12: 3.0, 13: -100.0}),
        ({"logit_bias": {}}, "logit_bias", {}),
        ({"allowed_token_ids": [3, 1]}, "allowed_token_ids", (3, 1)),
        ({"stop_token_ids": [5]}, "stop_token_ids", (5,)),
        ({"bad_words": ["x"]}, "bad_words", ("x",)),
        ({"max_tokens": None, "min_tokens": 9}, "max_tokens", None),
        ({"n": 3, "best_of": 3}, "n", 3),
    ],
)
def test_meanings(params: dict, field: str, value: object) -> None:
    given_params = SamplingParams(**params)
    assert getattr(given_params, field) == value
    assert not given_params.is_greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 10**9),
        ("top_k", -2),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [1]),
        ("stop", {}),
        ("stop", ["x"] * 100_000),
        ("stop", ["x" * 2**20]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1.5]),
        ("stop_token_ids", [True]),
        ("stop_token_ids", 5),
        ("stop_token_ids", list(range(2000))),
        ("allowed_token_ids", []),
        ("allowed_token_ids", ["1"]),
        ("bad_words", [""]),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"AI": -100}),
        ("logit_bias", {"12": "x"}),
        ("logit_bias", {"12": 1e9}),
        ("logit_bias", {"12": math.nan}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [1]),
        ("logit_bias", dict.fromkeys(range(2000), 1)),
        ("best_of", 0),
        ("best_of", True),
        ("min_tokens", 17),
        ("ignore_eos", 1),
        ("detokenize", "yes"),
        ("spaces_between_special_tokens", False),
        ("output_kind", 1),
        ("truncate_prompt_tokens", 0),
        ("truncate_prompt_tokens", -2),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, value: object) -> None:
    refused(name, value)


def test_messages_name_value_and_limits() -> None:
    message = refused("top_p", 1.5)
    assert "1.5" in message and "between 0 and 1" in message


def test_best_of_below_n_and_stop_without_text() -> None:
    with pytest.raises(RequestError, match="best_of must be at least n=3, got 1"):
        SamplingParams(n=3, best_of=1)
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_frozen_and_default_is_a_no_op() -> None:
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.n = 2  # type: ignore[misc]
    assert params.output_kind is OutputKind.CUMULATIVE and params.max_tokens == 16
    assert not params.has_penalties and not params.is_greedy


def test_beam_search_params() -> None:
    assert BeamSearchParams(beam_width=4, max_tokens=8).length_penalty == 1.0
    for wrong in (
        {"beam_width": 0},
        {"max_tokens": True},
        {"temperature": math.nan},
        {"length_penalty": 17},
        {"early_stopping": "always"},
        {"early_stopping": 1},
    ):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            BeamSearchParams(**({"beam_width": 4, "max_tokens": 8} | wrong))
