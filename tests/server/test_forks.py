"""best_of and beam search over HTTP: what they give, what of it is counted, and what is refused by name."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from server_world import World
from test_refusals import CHAT, COMPLETIONS, USER, shaped

SAMPLED: dict[str, Any] = {"prompt": "abc", "max_tokens": 8, "temperature": 1.5, "seed": 4}


def mean(choice: dict[str, Any]) -> float:
    values = choice["logprobs"]["token_logprobs"]
    return float(sum(values) / len(values))


def texts(reply: dict[str, Any]) -> list[str]:
    return [choice.get("text") or choice["message"]["content"] for choice in reply["choices"]]


def test_the_best_of_many(world: World) -> None:
    every = world.post(COMPLETIONS, **SAMPLED, n=6, logprobs=0)
    ranked = sorted(every["choices"], key=mean, reverse=True)
    assert len({mean(choice) for choice in ranked}) == 6
    for logprobs in (None, 1):
        best = world.post(COMPLETIONS, **SAMPLED, n=2, best_of=6, logprobs=logprobs)
        assert texts(best) == [choice["text"] for choice in ranked[:2]]
        assert [choice["index"] for choice in best["choices"]] == [0, 1]
        assert all((choice["logprobs"] is None) == (logprobs is None) for choice in best["choices"])
        assert best["usage"]["completion_tokens"] == 16  # those that are shown
    greedy = world.post(COMPLETIONS, prompt="abc", max_tokens=4, temperature=0, best_of=3)
    assert texts(greedy) == ["defg"]
    two = world.post(COMPLETIONS, **{**SAMPLED, "prompt": ["abc", "xyz"]}, best_of=3)
    assert [choice["index"] for choice in two["choices"]] == [0, 1]


def test_the_best_of_many_in_chat(world: World) -> None:
    body = {"messages": USER, "max_tokens": 8, "temperature": 1.5, "seed": 4}
    every = world.post(CHAT, **body, n=4, logprobs=True)
    means = {
        choice["message"]["content"]: sum(entry["logprob"] for entry in choice["logprobs"]["content"]) / 8
        for choice in every["choices"]
    }
    best = world.post(CHAT, **body, best_of=4)
    assert texts(best) == [max(means, key=lambda text: means[text])] and best["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_best_of_refusals(world: World, route: str) -> None:
    before = world.counts()
    body: dict[str, Any] = {"messages": USER} if route == CHAT else {"prompt": "a"}
    for wrong, says in (
        ({"n": 3, "best_of": 1}, "at least n=3"),
        ({"n": 1, "best_of": 3, "stream": True}, "cannot be streamed"),
        ({"best_of": 129}, "between 1 and 128"),
    ):
        error = shaped(*world.raw(route, **body, **wrong))
        assert error["param"] == "best_of" and says in error["message"]
    assert world.counts() == before
    for more in ({"best_of": 65}, {"n": 1, "best_of": 65, "use_beam_search": True}):
        error = shaped(*world.raw(COMPLETIONS, prompt=["a", "b"], **more))
        assert error["param"] == "best_of" and "--max-n" in error["message"]
    world.post(route, **body, n=3, best_of=3, max_tokens=1)
    assert len(list(world.stream(route, **body, n=2, best_of=2, max_tokens=1))) > 2


def test_a_beam_search(world: World) -> None:
    body = {"prompt": "abc", "max_tokens": 6, "use_beam_search": True, "logprobs": 1}
    reply = world.post(COMPLETIONS, **body, n=2, best_of=4)
    assert len(reply["choices"]) == 2 and reply["choices"][0]["text"] == "defghi"
    assert all(first >= second for first, second in pairwise(map(mean, reply["choices"])))
    assert len(set(texts(reply))) == 2 and reply["usage"]["completion_tokens"] == 12
    wide = world.post(COMPLETIONS, **body, n=4)
    assert texts(wide)[:2] == texts(reply), "the width is best_of, and else n"
    plain = world.post(COMPLETIONS, **{**body, "logprobs": None}, n=4, temperature=0.7, seed=1, stop=[], top_p=1)
    assert texts(plain) == texts(wide) and all(choice["logprobs"] is None for choice in plain["choices"])
    ended = world.post(COMPLETIONS, prompt="7", max_tokens=20, use_beam_search=True, n=2, early_stopping=True)
    assert ended["choices"][0]["text"] == "89" and ended["choices"][0]["finish_reason"] == "stop"
    forced = world.post(COMPLETIONS, prompt="7", max_tokens=20, use_beam_search=True, n=2, ignore_eos=True)
    assert {choice["finish_reason"] for choice in forced["choices"]} == {"length"}
    echoed = world.post(COMPLETIONS, **body, echo=True)
    assert echoed["choices"][0]["text"] == "abcdefghi" and len(echoed["choices"][0]["logprobs"]["tokens"]) == 9


def test_a_beam_search_in_chat(world: World) -> None:
    body = {"messages": USER, "max_completion_tokens": 5, "use_beam_search": True, "length_penalty": 0.0}
    reply = world.post(CHAT, **body, n=3, early_stopping="never", logprobs=True, top_logprobs=2, return_token_ids=True)
    assert len({tuple(choice["token_ids"]) for choice in reply["choices"]}) == 3
    for choice in reply["choices"]:
        assert all(len(entry["top_logprobs"]) == 2 for entry in choice["logprobs"]["content"])
    to_the_end = world.post(CHAT, messages=USER, use_beam_search=True)
    assert to_the_end["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", True),
        ("stop", ["x"]),
        ("presence_penalty", 1),
        ("frequency_penalty", 1),
        ("repetition_penalty", 1.5),
        ("top_p", 0.5),
        ("top_k", 3),
        ("min_p", 0.5),
        ("min_tokens", 1),
        ("logit_bias", {"12": 1}),
        ("allowed_token_ids", [12]),
        ("bad_words", ["x"]),
        ("length_penalty", 100),
        ("length_penalty", "1"),
        ("early_stopping", "always"),
        ("early_stopping", 1),
        ("max_tokens", 0),
        ("use_beam_search", "yes"),
        ("best_of", 1),
        ("n", 63),
    ],
)
def test_what_a_beam_search_does_not_take(world: World, route: str, field: str, value: Any) -> None:
    before = world.counts()
    body: dict[str, Any] = {"messages": USER} if route == CHAT else {"prompt": "a"}
    body |= {"use_beam_search": True, "n": 2, "max_tokens": 900, field: value}
    error = shaped(*world.raw(route, **body))
    assert error["param"] == field, error
    assert world.counts() == before
    world.probe()


@pytest.mark.parametrize(("field", "value"), [("length_penalty", 0.5), ("early_stopping", True)])
def test_fields_of_a_beam_search_need_one(world: World, field: str, value: Any) -> None:
    assert shaped(*world.raw(COMPLETIONS, prompt="a", **{field: value}))["param"] == field
    neutral = {"length_penalty": 1, "early_stopping": False, "use_beam_search": False}
    assert world.post(COMPLETIONS, prompt="a", max_tokens=1, **neutral)["choices"]
