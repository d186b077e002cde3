"""POST /v1/completions, whole and streamed, over a real socket."""

from __future__ import annotations

import math
from typing import Any

import pytest
from openai.types import Completion
from server_world import World, chunks, strict

URL = "/v1/completions"


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["text"])


def test_greedy_text_walks_the_successors(world: World) -> None:
    reply = strict(Completion, world.post(URL, prompt="abc", max_tokens=5))
    assert text_of(reply) == "defgh"
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "length" and choice["index"] == 0
    assert reply["usage"]["prompt_tokens"] == 3 and reply["usage"]["completion_tokens"] == 5
    assert reply["usage"]["total_tokens"] == 8
    assert reply["id"].startswith("cmpl-") and reply["model"] == "small" and reply["system_fingerprint"]


def test_the_default_of_max_tokens_is_16(world: World) -> None:
    for body in ({}, {"max_tokens": None}):
        assert world.post(URL, prompt="a", **body)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "tokens", "count"),
    [
        ("ab", 2, 1),
        (["ab"], 2, 1),
        ([97, 98], 2, 1),
        ([[97, 98]], 2, 1),
        (["ab", "abc"], 5, 2),
        ([[97], [98], [99]], 3, 3),
    ],
)
def test_prompts_come_as_text_or_ids_one_or_several(world: World, prompt: Any, tokens: int, count: int) -> None:
    reply = strict(Completion, world.post(URL, prompt=prompt, max_tokens=2))
    assert reply["usage"]["prompt_tokens"] == tokens
    assert [choice["index"] for choice in reply["choices"]] == list(range(count))


def test_several_prompts_times_n_are_one_flat_list(world: World) -> None:
    reply = world.post(URL, prompt=["a", "m"], n=2, max_tokens=3)
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [(0, "bcd"), (1, "bcd"), (2, "nop"), (3, "nop")]
    assert reply["usage"] == {**reply["usage"], "prompt_tokens": 2, "completion_tokens": 12}


def test_an_end_by_the_model_is_stop_without_a_reason(world: World) -> None:
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt="45", max_tokens=50)
        assert text_of(reply) == "6789"
        assert reply["choices"][0]["finish_reason"] == "stop" and reply["choices"][0]["stop_reason"] is None


def test_a_stop_string_inside_the_text_ends_it_before(world: World) -> None:
    """The stop string spans several tokens and both ways of replying cut at the same place."""
    for stop in ("def", ["def"], ["xyz", "def"]):
        for stream in (False, True):
            reply = world.whole(URL, stream, prompt="z a", stop=stop, max_tokens=40)
            choice = reply["choices"][0]
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("bc", "stop", "def")
            assert reply["usage"]["completion_tokens"] < 10


def test_the_stop_string_is_shown_once_where_asked(world: World) -> None:
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt="a", stop="de", include_stop_str_in_output=True, max_tokens=40)
        assert text_of(reply) == "bcde"


@pytest.mark.parametrize("stop", [None, []])
def test_no_stop_strings_is_none(world: World, stop: Any) -> None:
    assert text_of(world.post(URL, prompt="a", stop=stop, max_tokens=3)) == "bcd"


def test_stop_token_ids_end_it_and_are_named(world: World) -> None:
    choice = world.post(URL, prompt="a", stop_token_ids=[ord("d")], max_tokens=9)["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ord("d"))
    assert choice["text"] in ("bc", "bcd")


def test_min_tokens_hold_the_end_back(world: World) -> None:
    reply = world.post(URL, prompt="8", min_tokens=4, max_tokens=20)
    assert reply["usage"]["completion_tokens"] >= 5
    later = world.post(URL, prompt="a", min_tokens=5, stop="c", max_tokens=80)
    assert text_of(later).startswith("bcde") and later["choices"][0]["stop_reason"] == "c"


def test_ignore_eos_goes_on_to_the_limit_but_stops_of_the_client_still_count(world: World) -> None:
    reply = world.post(URL, prompt="8", ignore_eos=True, max_tokens=12)
    assert reply["choices"][0]["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == 12
    stopped = world.post(URL, prompt="8", ignore_eos=True, max_tokens=30, stop="c")
    assert stopped["choices"][0]["stop_reason"] == "c"


def test_the_same_seed_gives_the_same_text_and_none_gives_another(world: World) -> None:
    def sample(**body: Any) -> str:
        return text_of(world.post(URL, prompt="a", temperature=1, max_tokens=40, **body))

    first = sample(seed=7)
    assert first == sample(seed=7)
    assert first == text_of(world.whole(URL, True, prompt="a", temperature=1, max_tokens=40, seed=7))
    assert first != sample(seed=8)
    assert sample() != sample()
    for extreme in (-1, 0, 2**63 - 1):
        assert len(sample(seed=extreme)) > 0


@pytest.mark.parametrize("temperature", [0, 1e-4, 1e-12, 5e-324])
def test_very_low_temperatures_are_greedy(world: World, temperature: float) -> None:
    assert text_of(world.post(URL, prompt="a", temperature=temperature, max_tokens=6)) == "bcdefg"


@pytest.mark.parametrize("body", [{"top_k": 1}, {"min_p": 1}, {"top_p": 0}])
def test_limits_that_leave_one_token_are_greedy(world: World, body: dict[str, Any]) -> None:
    assert text_of(world.post(URL, prompt="a", temperature=2, max_tokens=6, **body)) == "bcdefg"


@pytest.mark.parametrize("body", [{"top_k": 0}, {"top_k": -1}, {"top_k": 10**9}, {"logit_bias": {}}])
def test_values_that_limit_nothing_are_taken(world: World, body: dict[str, Any]) -> None:
    assert text_of(world.post(URL, prompt="a", max_tokens=3, temperature=0, **body)) == "bcd"


def test_logit_bias_forces_a_token(world: World) -> None:
    assert text_of(world.post(URL, prompt="a", logit_bias={str(ord("q")): 100}, max_tokens=3)) == "qqq"


def test_control_tokens_in_the_output_are_hidden_unless_asked_for(world: World) -> None:
    body: dict[str, Any] = {"prompt": "a", "logit_bias": {"261": 100}, "max_tokens": 2, "return_token_ids": True}
    hidden = world.post(URL, **body)
    shown = world.post(URL, skip_special_tokens=False, **body)
    assert text_of(hidden) == "" and text_of(shown) == "<|im_start|>" * 2
    assert hidden["choices"][0]["token_ids"] == shown["choices"][0]["token_ids"] == [261, 261]
    assert hidden["usage"] == shown["usage"] | {"prompt_tokens_details": hidden["usage"]["prompt_tokens_details"]}


def check_logprobs(logprobs: dict[str, Any], text: str, count: int, top: int) -> None:
    assert {len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {count}
    assert "".join(logprobs["tokens"]) == text
    starts = [sum(map(len, logprobs["tokens"][:i])) for i in range(count)]
    assert logprobs["text_offset"] == [logprobs["text_offset"][0] + start for start in starts]
    for token, value, best in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        if value is not None:
            assert math.isfinite(value) and value <= 0
            assert best[token] == value and top <= len(best) <= top + 1


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_four_lists_of_one_length(world: World, count: int) -> None:
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt="ab", logprobs=count, max_tokens=4)
        check_logprobs(reply["choices"][0]["logprobs"], "cdef", 4, count)


def test_the_logprobs_are_those_of_the_model(world: World) -> None:
    logprobs = world.post(URL, prompt="a", logprobs=2, max_tokens=1)["choices"][0]["logprobs"]
    raw = world.model.logits(ord("a"))
    norm = math.log(sum(math.exp(v) for v in raw))
    assert logprobs["token_logprobs"][0] == pytest.approx(max(raw) - norm)
    assert logprobs["top_logprobs"][0] == pytest.approx({"b": -norm, "c": -0.25 - norm})


def test_echo_with_logprobs_scores_the_prompt(world: World) -> None:
    """What likelihood benchmarks read: every prompt token but the first has its logprob."""
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt="abq", echo=True, logprobs=5, max_tokens=1)
        choice = reply["choices"][0]
        assert choice["text"] == "abqr"
        check_logprobs(choice["logprobs"], "abqr", 4, 5)
        assert choice["logprobs"]["token_logprobs"][0] is None and choice["logprobs"]["top_logprobs"][0] is None
        raw = world.model.logits(ord("b"))
        norm = math.log(sum(math.exp(v) for v in raw))
        assert choice["logprobs"]["token_logprobs"][2] == pytest.approx(raw[ord("q")] - norm)


def test_echo_takes_token_ids_and_no_new_tokens(world: World) -> None:
    reply = world.post(URL, prompt=[[97, 98, 99]], echo=True, logprobs=1, max_tokens=0)
    assert text_of(reply) == "abc" and reply["usage"]["completion_tokens"] == 0
    check_logprobs(reply["choices"][0]["logprobs"], "abc", 3, 1)
    assert text_of(world.post(URL, prompt="abc", echo=True, max_tokens=0)) == "abc"


def test_echo_shows_what_is_left_of_a_truncated_prompt(world: World) -> None:
    for stream in (False, True):
        asked = {"prompt": ["abcdef", "bc"], "truncate_prompt_tokens": 3, "logprobs": 1, "max_tokens": 1}
        reply = world.whole(URL, stream, echo=True, **asked)
        assert [choice["text"] for choice in reply["choices"]] == ["defg", "bcd"]
        for choice in reply["choices"]:
            check_logprobs(choice["logprobs"], choice["text"], len(choice["text"]), 1)


def test_echo_with_n_gives_every_choice_the_prompt(world: World) -> None:
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt=["ab", "xy"], n=2, echo=True, logprobs=1, max_tokens=2)
        assert [choice["text"] for choice in reply["choices"]] == ["abcd", "abcd", "xyz ", "xyz "]
        for choice in reply["choices"]:
            check_logprobs(choice["logprobs"], choice["text"], 4, 1)


def test_prompt_logprobs_are_a_list_with_null_first(world: World) -> None:
    (choice,) = world.post(URL, prompt="abc", prompt_logprobs=2, max_tokens=1)["choices"]
    first, *rest = choice["prompt_logprobs"]
    assert first is None and len(rest) == 2
    for token_id, entry in zip((98, 99), rest, strict=True):
        assert entry[str(token_id)]["rank"] == 1 and entry[str(token_id)]["decoded_token"] == chr(token_id)
        assert 2 <= len(entry) <= 3


def test_logprobs_of_a_token_that_was_all_but_impossible_stay_finite(world: World) -> None:
    reply = world.post(URL, prompt="a", logprobs=5, top_k=1, logit_bias={str(ord("q")): 100}, max_tokens=2)
    check_logprobs(reply["choices"][0]["logprobs"], "qq", 2, 5)


def test_tokens_may_be_named_by_id(world: World) -> None:
    reply = world.post(URL, prompt="a", logprobs=1, return_tokens_as_token_ids=True, max_tokens=1)
    assert reply["choices"][0]["logprobs"]["tokens"] == [f"token_id:{ord('b')}"]


def test_token_ids_are_returned_where_asked_for(world: World) -> None:
    for stream in (False, True):
        reply = world.whole(URL, stream, prompt="ab", return_token_ids=True, max_tokens=3)
        choice = reply["choices"][0]
        assert choice["token_ids"] == [99, 100, 101] and choice["prompt_token_ids"] == [97, 98]


def test_streams_say_what_whole_replies_say(world: World) -> None:
    """Text with characters of several tokens, quotes and line breaks; n, seeds and stops."""
    bodies: list[dict[str, Any]] = [
        {"prompt": "FG", "max_tokens": 30},
        {"prompt": "FG", "max_tokens": 30, "n": 3, "temperature": 1, "seed": 5, "logprobs": 1},
        {"prompt": "2", "max_tokens": 30},
        {"prompt": ["2", "F"], "max_tokens": 12, "n": 2},
        {"prompt": "F", "max_tokens": 30, "stop": "\u2028a"},
    ]
    for body in bodies:
        whole, stream = world.whole(URL, False, **body), world.whole(URL, True, **body)
        for ours, theirs in zip(whole["choices"], stream["choices"], strict=True):
            for key in ("text", "finish_reason", "stop_reason", "logprobs"):
                assert ours[key] == theirs[key], key
        assert {k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"} == {
            k: v for k, v in stream["usage"].items() if k != "prompt_tokens_details"
        }
        assert "temperature" in body or "\ufffd" not in whole["choices"][0]["text"]


def test_no_chunk_holds_part_of_a_character(world: World) -> None:
    for chunk in chunks(world.stream(URL, prompt="G", max_tokens=12)):
        strict(
            Completion,
            {**chunk, "choices": [{"finish_reason": "stop", **c} for c in chunk["choices"] if c["finish_reason"]]},
        )
        for choice in chunk["choices"]:
            assert "\ufffd" not in choice["text"]


def test_only_explicit_truncation_cuts_a_prompt(world: World) -> None:
    reply = world.post(URL, prompt="a" * 100 + "m", truncate_prompt_tokens=2, max_tokens=2)
    assert reply["usage"]["prompt_tokens"] == 2 and text_of(reply) == "no"
    assert world.post(URL, prompt="a" * 100, max_tokens=1)["usage"]["prompt_tokens"] == 100


def test_max_tokens_past_the_context_is_cut_to_it(world: World) -> None:
    for value in (world.max_model_len, 10**9):
        reply = world.post(URL, prompt="abc", max_tokens=value)
        assert reply["usage"]["total_tokens"] == world.max_model_len
        assert reply["choices"][0]["finish_reason"] == "length"


def test_the_same_prompt_again_is_found_in_the_cache(world: World) -> None:
    prompt = "the quick brown fox jumps over the lazy dog, and again, 0"
    first = world.post(URL, prompt=prompt, max_tokens=2)
    again = world.post(URL, prompt=prompt, max_tokens=2)
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert 0 < cached < len(prompt) and cached % 16 == 0


def test_a_salt_keeps_a_cache_apart(world: World) -> None:
    def cached(salt: str | None) -> int:
        reply = world.post(URL, prompt="s" * 64 + "!", max_tokens=1, cache_salt=salt)
        return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

    counts = [cached(salt) for salt in ("a", "a", "b", None)]
    assert counts[0] == 0 and counts[1] > 0 and counts[2:] == [0, 0]


def test_the_seed_that_was_used_repeats_the_reply(world: World) -> None:
    """In each choice, whole and streamed, for completions and chat; where nothing was drawn there is none."""
    asked: list[tuple[str, dict[str, Any]]] = [
        (URL, {"prompt": ["a", "b"], "n": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 2}),
    ]
    for path, body in asked:
        for streamed in (False, True):
            first = world.whole(path, streamed, **body, temperature=1.5, max_tokens=12)
            seeds = [choice["seed"] for choice in first["choices"]]
            assert all(0 <= seed < 2**53 for seed in seeds)
            again = world.whole(path, streamed, **body, temperature=1.5, max_tokens=12, seed=seeds[0])
            assert again["choices"][:2] == first["choices"][:2]
            assert len(set(seeds)) == len(seeds) // 2  # one for each prompt
            greedy = world.whole(path, streamed, **body, temperature=0, max_tokens=2)
            assert all("seed" not in choice for choice in greedy["choices"])
