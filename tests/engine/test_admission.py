"""The gate: what passes can be finished by the engine, what does not is named."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.admission import Limits, admit
from octavo.engine.request import Tenant
from octavo.errors import RequestError
from octavo.sampling_params import SamplingParams

LIMITS = Limits(vocab_size=50, max_model_len=20, max_sequence_tokens=100, eos_token_ids=frozenset({2, 3}))


def refused(prompt: object = (1, 2), limits: Limits = LIMITS, **options) -> RequestError:
    names = {"priority", "cache_salt", "pooling", "tenant", "timeout"} & options.keys()
    with pytest.raises(RequestError) as caught:
        params = SamplingParams(**{name: value for name, value in options.items() if name not in names})
        admit("r", prompt, params, limits, **{name: options[name] for name in names})
    return caught.value


@pytest.mark.parametrize("prompt", [[], [1, 2, 50], [-1], [2**63], [10**5000], [1.5], [True], ["1"], [None]])
def test_prompts_that_are_no_token_ids(prompt: list) -> None:
    error = refused(prompt)
    assert error.param == "prompt" and len(str(error)) < 300


def test_a_bad_id_is_named_with_the_vocabulary() -> None:
    assert "50" in str(refused([1, 50])) and "-7" in str(refused([-7, 1])) and "50 tokens" in str(refused([-7, 1]))


@given(st.integers(1, 40), st.one_of(st.none(), st.integers(0, 60)))
def test_prompt_and_output_never_pass_the_context(length: int, max_tokens: int | None) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    if length + (max_tokens != 0) > 20:
        error = refused([1] * length, max_tokens=max_tokens)
        assert error.param == "prompt"
        assert "20 tokens" in str(error) and f"{length} tokens" in str(error) and "-" not in str(error)
        return
    request = admit("r", [1] * length, params, LIMITS)
    assert request.max_tokens == (20 - length if max_tokens is None else min(max_tokens, 20 - length))
    assert len(request.prompt_token_ids) == length


def test_what_the_cache_can_never_hold_is_refused_with_numbers() -> None:
    small = Limits(vocab_size=50, max_model_len=100, max_sequence_tokens=16)
    assert admit("r", [1] * 10, SamplingParams(max_tokens=7), small).max_tokens == 7
    assert admit("r", [1] * 10, SamplingParams(max_tokens=None), small).max_tokens == 7
    error = refused([1] * 10, small, max_tokens=8)
    assert error.param == "max_tokens" and "16 tokens" in str(error) and "10" in str(error) and "8" in str(error)
    assert refused([1] * 17, small, max_tokens=1).param == "prompt"


def test_truncation_keeps_the_end_and_only_where_asked() -> None:
    assert admit("r", range(30), SamplingParams(truncate_prompt_tokens=5), LIMITS).prompt_token_ids == (
        25,
        26,
        27,
        28,
        29,
    )
    cut = admit("r", range(30), SamplingParams(truncate_prompt_tokens=-1, max_tokens=4), LIMITS)
    assert cut.prompt_token_ids == tuple(range(14, 30)) and cut.max_tokens == 4
    assert admit("r", [1], SamplingParams(truncate_prompt_tokens=5), LIMITS).prompt_token_ids == (1,)


@pytest.mark.parametrize(
    ("max_tokens", "kept", "generated"),
    [(0, 20, 0), (1, 19, 1), (4, 16, 4), (19, 1, 19), (20, 19, 1), (21, 19, 1), (10**9, 19, 1), (None, 19, 1)],
)
def test_truncation_to_the_limit_leaves_room_for_what_is_asked(
    max_tokens: int | None, kept: int, generated: int
) -> None:
    """But an answer of the whole context or more does not eat the prompt."""
    params = SamplingParams(truncate_prompt_tokens=-1, max_tokens=max_tokens)
    request = admit("r", range(30), params, LIMITS)
    assert request.prompt_token_ids == tuple(range(30 - kept, 30)) and request.max_tokens == generated
    assert admit("r", [1, 2], SamplingParams(truncate_prompt_tokens=-1), LIMITS).prompt_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("name", "value"), [("stop_token_ids", [10**9]), ("allowed_token_ids", [1, 50]), ("logit_bias", {"999999999": 1})]
)
def test_ids_past_the_vocabulary(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name and "50 tokens" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_salt", ""),
        ("cache_salt", 7),
        ("cache_salt", "x" * 5000),
        ("priority", True),
        ("priority", 2**40),
        ("priority", 0.5),
        ("timeout", 0),
        ("timeout", -1.5),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", 86401),
        ("timeout", 10**400),
        ("timeout", True),
        ("timeout", "5"),
    ],
)
def test_other_fields(name: str, value: object) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("kind", ["last", "mean", ""])
def test_a_vector_that_nobody_makes_is_refused(kind: str) -> None:
    """Instead of being left out of an answer that looks whole."""
    assert refused(pooling=kind).param == "pooling"
    last = replace(LIMITS, pooling=frozenset({"last"}))
    assert admit("r", [1], SamplingParams(), last, pooling="last").pooling == "last"
    assert "last vectors" in str(refused(limits=last, pooling="mean"))
    assert refused(limits=last, pooling="last", n=2).param == "n"


def test_a_priority_is_taken_where_the_policy_says_so() -> None:
    assert refused(priority=1).param == refused(priority=-1).param == "priority"
    assert admit("r", [1], SamplingParams(), LIMITS, priority=0).priority == 0
    by_priority = replace(LIMITS, takes_priority=True)
    assert admit("r", [1], SamplingParams(), by_priority, priority=-1).priority == -1
    assert refused(limits=by_priority, priority=2**40).param == "priority"


def test_a_key_may_ask_for_priorities_up_to_its_ceiling() -> None:
    limits, tenant = replace(LIMITS, takes_priority=True), Tenant("batch", priority_ceiling=5)
    error = refused(limits=limits, tenant=tenant, priority=4)
    assert error.param == "priority" and "4" in str(error) and "5" in str(error)
    assert refused(limits=limits, tenant=tenant, priority=0).param == "priority"
    for asked, got in ((5, 5), (9, 9), (None, 5)):
        assert admit("r", [1], SamplingParams(), limits, tenant=tenant, priority=asked).priority == got
    urgent = Tenant("urgent", priority_ceiling=-3)
    for asked, got in ((-3, -3), (None, 0), (7, 7)):
        assert admit("r", [1], SamplingParams(), limits, tenant=urgent, priority=asked).priority == got
    assert refused(limits=limits, tenant=urgent, priority=-4).param == "priority"


def test_a_user_is_remembered_in_a_size_of_its_own() -> None:
    def user(name: str | None) -> bytes:
        return admit("r", [1], SamplingParams(), LIMITS, user=name).user

    assert len(user("x" * 10**6)) == len(user("y")) == len(user("\ud800")) == 16
    assert len({user("x"), user("y"), user("x" * 10**6)}) == 3 and user("x") == user("x")
    assert user(None) == user("") == b""


def test_eos_and_ignore_eos() -> None:
    request = admit("r", [1], SamplingParams(stop_token_ids=[7]), LIMITS)
    assert request.stop_token_ids == {2, 3, 7} and request.eos_token_ids == {2, 3}
    request = admit("r", [1], SamplingParams(stop_token_ids=[3], ignore_eos=True), LIMITS)
    assert request.stop_token_ids == {3} and not request.eos_token_ids


def seed_of(prompt: list[int], server: int | None, **params) -> int:
    limits = Limits(vocab_size=50, max_model_len=20, max_sequence_tokens=100, seed=server)
    return admit("r", prompt, SamplingParams(**params), limits).seed


def test_seeds() -> None:
    assert seed_of([1], 9, seed=7) == seed_of([2], None, seed=7) == 7
    assert 0 <= seed_of([1], None, seed=-(2**63)) < 2**64
    assert seed_of([1], None) != seed_of([1], None)
    assert seed_of([1], 9, max_tokens=3) == seed_of([1], 9, max_tokens=5, logprobs=2), "not what shapes a distribution"
    different = [
        seed_of([1], 9),
        seed_of([2], 9),
        seed_of([1], 8),
        seed_of([1], 9, top_p=0.5),
        seed_of([1], 9, logit_bias={1: 2}),
    ]
    assert len(set(different)) == len(different)


def test_numpy_ids_are_ids() -> None:
    numpy = pytest.importorskip("numpy")
    request = admit("r", numpy.array([1, 2, 3]), SamplingParams(), LIMITS)
    assert request.prompt_token_ids == (1, 2, 3) and set(map(type, request.prompt_token_ids)) == {int}
