"""Drafts: what they guess, and that they cost no other sequence anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig, SpeculativeConfig
from octavo.engine.drafter import MAX_CANDIDATES, NgramDrafter
from octavo.engine.request import Request, Sequence
from octavo.errors import ConfigError
from octavo.sampling_params import SamplingParams

NONE: frozenset[int] = frozenset()


def sequence_of(tokens: list[int]) -> Sequence:
    return Sequence(Request("r", tuple(tokens), SamplingParams(), 0, 100, NONE, NONE), 0, 0, 1)


def by_search(tokens: list[int], longest: int, shortest: int, most: int) -> list[int]:
    """The definition: of the latest earlier places of the last n-gram, the first with the longest match."""
    places = [p for p in range(len(tokens) - 1, shortest - 1, -1) if tokens[p - shortest : p] == tokens[-shortest:]]
    best, most_alike = 0, 0
    for place in places[:MAX_CANDIDATES]:
        alike = max(n for n in range(shortest, longest + 1) if n <= place and tokens[place - n : place] == tokens[-n:])
        if alike > most_alike:
            best, most_alike = place, alike
    return tokens[best : best + most] if best else []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=6),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_a_draft_is_what_followed_the_longest_match(
    prompt: list[int], steps: list[list[int]], shortest: int, more: int, most: int
) -> None:
    drafter, sequence = NgramDrafter(shortest + more, shortest), sequence_of(prompt)
    for tokens in [[], *steps]:
        sequence.token_ids += tokens
        wanted = by_search(sequence.token_ids, shortest + more, shortest, most)
        assert drafter.draft(sequence, most) == wanted


def test_the_form_of_the_option() -> None:
    given_as_text = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'
    assert EngineConfig(speculative_config=given_as_text).speculative_config == SpeculativeConfig("ngram", 4, 3, 3)
    assert EngineConfig().speculative_config is None
    shortest = EngineConfig(speculative_config={"method": "ngram", "num_speculative_tokens": 2}).speculative_config
    assert shortest == SpeculativeConfig("ngram", 2, 5, 5)
    by_model = {"model": "path", "num_speculative_tokens": 2}
    expected = EngineConfig(speculative_config=by_model | {"method": "draft_model"}).speculative_config
    assert EngineConfig(speculative_config=by_model).speculative_config == expected
    assert expected is not None and (expected.method, expected.model) == ("draft_model", "path")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ('{"method": "eagle", "num_speculative_tokens": 4}', "eagle"),
        ("ngram", "JSON object"),
        ({"method": "ngram"}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 4, "model": "x"}, "model"),
        ({"method": "draft_model", "num_speculative_tokens": 4}, "needs the model"),
        ({"method": "draft_model", "model": "x", "num_speculative_tokens": 4, "prompt_lookup_max": 2}, "prompt_lookup"),
        (
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 4, "prompt_lookup_max": 2},
            "prompt_lookup_min",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        EngineConfig(speculative_config=value)
