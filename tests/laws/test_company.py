"""Law L1 over everything a request may ask for at once: a random walk in a small pool, where each request's outputs are
compared with those that it gets alone, from an engine without drafts, without a prefix cache and with room for all.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_own_tokens import checkpoint
from world import load

from octavo import StructuredOutputsParams
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import Request, Tenant
from octavo.errors import RequestError
from octavo.loaded_model import LoadedModel
from octavo.sampling_params import BeamSearchParams, SamplingParams

CONTEXT = 160
COMMON: dict[str, Any] = {"dtype": "float32", "max_model_len": CONTEXT, "threads": 1}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[ab]{20,60}"},
    {"choice": ["red", "green", "reddish"]},
    {"json": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
              "required": ["a", "b"], "additionalProperties": False}},
    {"json_object": True},
]  # fmt: skip
TENANTS = [Tenant("a"), Tenant("b", 3.0)]


def asked(rng: random.Random) -> dict[str, Any]:
    """The prompt, the parameters and what else a request may bring."""
    base = [rng.randrange(5) for _ in range(6)] * 12
    prompt = base[: rng.randint(1, 60)] if rng.random() < 0.5 else [rng.randrange(4)] * rng.randint(1, 40)
    prompt = prompt + [rng.randrange(256) for _ in range(rng.randint(0, 4))]
    extra: dict[str, Any] = {
        "tenant": rng.choice(TENANTS),
        "user": rng.choice([None, "u", "v"]),
        "priority": rng.choice([None, 0, 0, 1, 2]),
        "cache_salt": rng.choice([None, None, "salt"]),
        "timeout": rng.choice([None, None, None, 100.0, 0.05]),
    }
    kind = rng.random()
    if kind < 0.08:
        return {"prompt": prompt, "params": SamplingParams(max_tokens=1), **extra, "pooling": "last"}
    if kind < 0.2:
        width = rng.choice([1, 2, 4])
        most = rng.randint(1, 20)
        beams = BeamSearchParams(
            beam_width=width,
            max_tokens=most,
            length_penalty=rng.choice([1.0, 0.0, 2.0]),
            early_stopping=rng.choice([False, True, "never"]),
        )
        params = SamplingParams(
            n=rng.randint(1, width),
            temperature=0,
            max_tokens=most,
            logprobs=rng.choice([None, 0, 3]),
            prompt_logprobs=rng.choice([None, None, 2]),
            stop_token_ids=rng.sample(range(256), rng.choice([0, 3])),
        )
        return {"prompt": prompt, "params": params, **extra, "beams": beams}
    n = rng.choice([1, 1, 1, 2, 3])
    most = rng.randint(0, 40)
    options: dict[str, Any] = {
        "n": n,
        "best_of": rng.choice([None, None, None, n, n + 1]),
        "temperature": rng.choice([0.0, 0.0, 0.5, 1.0, 1.5]),
        "seed": rng.randrange(1000),
        "top_p": rng.choice([1.0, 0.9]),
        "top_k": rng.choice([0, 0, 2, 40]),
        "min_p": rng.choice([0.0, 0.0, 0.1]),
        "max_tokens": most,
        "min_tokens": rng.choice([0, 0, min(most, 7)]),
        "logprobs": rng.choice([None, None, 0, 3]),
        "prompt_logprobs": rng.choice([None] * 5 + [0, 2]),
        "presence_penalty": rng.choice([0.0, 0.0, 1.0]),
        "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.3]),
        "stop": rng.choice([None, None, ["a", "QQ"], ["\ufffd\ufffd"]]),
        "stop_token_ids": rng.sample(range(256), rng.choice([0, 0, 6])),
        "ignore_eos": rng.random() < 0.3,
        "include_stop_str_in_output": rng.random() < 0.3,
        "bad_words": rng.choice([None, None, None, ["a", "b c"]]),
        "logit_bias": rng.choice([None, None, {97: 4.0, 98: 3.0, 257: 2.0}]),
        "allowed_token_ids": rng.choice([None] * 4 + [[*range(90, 110), 257]]),
    }
    if rng.random() < 0.25:
        options["structured_outputs"] = StructuredOutputsParams(**rng.choice(CONSTRAINTS))
        options["allowed_token_ids"] = options["bad_words"] = None
    elif rng.random() < 0.1:
        options["detokenize"], options["stop"] = False, None
    return {"prompt": prompt, "params": SamplingParams(**options), **extra}


def admitted(model: LoadedModel, name: str, one: dict[str, Any]) -> Request:
    rest = {key: value for key, value in one.items() if key not in ("prompt", "params")}
    return model.admit(name, one["prompt"], one["params"], **rest)


def seen(result: RequestOutput) -> Any:
    return (
        [
            (o.token_ids, o.text, o.cumulative_logprob, o.logprobs, o.finish_reason, o.stop_reason)
            for o in result.outputs
        ],
        result.prompt_logprobs,
        None if result.vector is None else np.asarray(result.vector).tolist(),
        result.error,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("gemma3", "llama"):
        checkpoint(path, name, 4096)
    return path


def speculation_of(folder: Path, name: str, kind: str) -> dict[str, Any] | None:
    if kind == "none":
        return None
    if kind == "ngram":
        return NGRAM
    return {"method": "draft_model", "model": str(folder / (name if kind == "itself" else "llama")),
            "num_speculative_tokens": 4}  # fmt: skip


def walk(folder: Path, name: str, drafts: str, dtype: str, seed: int, count: int) -> LoadedModel:
    rng = random.Random(seed)
    common = COMMON | {"kv_cache_dtype": dtype, "scheduling_policy": "priority"}
    alone, _ = load(folder / name, **common, enable_prefix_caching=False)
    longest, _ = load(
        folder / name, **common | {"max_num_batched_tokens": CONTEXT}, max_num_seqs=1,
        speculative_config=speculation_of(folder, name, drafts),
    )  # fmt: skip
    size = int(longest.cache_bytes * 1.4)
    longest.close()
    budget = rng.choice([24, 64, 160])
    model, _ = load(
        folder / name, **common | {"max_num_batched_tokens": budget}, max_num_seqs=rng.choice([4, 8]),
        kv_cache_memory=size, speculative_config=speculation_of(folder, name, drafts),
    )  # fmt: skip
    engine, scheduler = model.engine, model.engine.scheduler
    if drafts != "none":
        scheduler.speculation.free_rows, scheduler.speculation.drafter_cost = 1e9, 0.0
    results: dict[str, RequestOutput] = {}
    wanted: dict[str, dict[str, Any]] = {}
    ended: set[str] = set()

    def apply(news: list[Any]) -> None:
        for output in news:
            assert output.finish_reason != "error", (output.request_id, output.error, wanted[output.request_id])
            results[output.request_id].apply(output)

    number = 0
    while number < count or engine.has_work():
        chance = rng.random()
        if number < count and chance < 0.3 and len(scheduler.requests) < 14:
            one, id_ = asked(rng), f"r{number}"
            number += 1
            try:
                request = admitted(model, id_, one)
            except RequestError as error:
                assert error.param == "beam_width"  # more beams than the pool can hold
                continue
            wanted[id_], results[id_] = one, RequestOutput.empty(request)
            engine.add(request)
        elif chance < 0.32 and scheduler.requests:
            id_ = rng.choice(sorted(scheduler.requests))
            ended.add(id_)
            apply(engine.abort(id_))
        elif chance < 0.325:
            engine.reset_prefix_cache()
        else:
            apply(engine.step())
            scheduler.check()
    scheduler.check()
    assert not engine._live and not engine._deadlines and not scheduler.requests
    assert scheduler.kv_cache_usage == 0
    for id_, one in wanted.items():
        request = admitted(alone, id_, one | {"timeout": None})
        solo = RequestOutput.empty(request)
        alone.engine.add(request)
        while alone.engine.has_work():
            for output in alone.engine.step():
                solo.apply(output)
        assert results[id_].finished, id_
        if id_ in ended or any(output.finish_reason == "timeout" for output in results[id_].outputs):
            for mine, other in zip(results[id_].outputs, solo.outputs, strict=True):
                assert other.token_ids[: len(mine.token_ids)] == mine.token_ids
            continue
        assert seen(results[id_]) == seen(solo), (id_, one)
    alone.close()
    return model


@pytest.mark.parametrize(
    ("name", "drafts", "dtype"),
    [
        ("gemma3", "none", "auto"),
        ("gemma3", "itself", "fp8"),
        ("gemma3", "other", "auto"),
        ("llama", "ngram", "int8"),
        ("llama", "itself", "int8"),
    ],
)
def test_requests_are_the_same_in_any_company(folder: Path, name: str, drafts: str, dtype: str) -> None:
    model = walk(folder, name, drafts, dtype, seed=1, count=80)
    scheduler = model.engine.scheduler
    assert scheduler.num_preemptions > 0
    assert (scheduler.speculation.num_accepted_tokens > 0) is (drafts != "none")
    model.close()
