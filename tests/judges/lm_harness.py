"""lm-eval: lm-evaluation-harness over HTTP, its figures equal to those of the same model computed by `LLM`."""

from __future__ import annotations

import argparse
import json
import os
import string
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.judges.report import ROOT, Verdict, require, versions

from octavo import LLM, SamplingParams

sys.path.append(str(ROOT / "tests" / "server"))
from real_server import RealServer

BUDGET = 1800.0  # seconds
NAME = "smollm2-135m"
TASKS = Path(__file__).parent / "lm_tasks"
FACTS, SEQUELS = "octavo_facts", "octavo_sequels"
UNTIL, MOST_TOKENS = [",", "\n"], 12  # as sequels.yaml has them
COMPLETIONS, CHAT = "local-completions", "local-chat-completions"

Scored = dict[tuple[str, str], tuple[float, bool]]  # context and continuation -> log-likelihood, whether it is greedy


def run(options: argparse.Namespace) -> Verdict:
    """Passed if every log-likelihood, greedy flag, generated text and score is what `LLM` says, to the last bit."""
    require("lm_eval", "transformers")
    start = time.monotonic()
    facts, sequels = (json_lines(TASKS / f"{name}.jsonl") for name in ("facts", "sequels"))
    with LLM(NAME, max_model_len=1024, kv_cache_memory=1 << 28) as llm:
        scored = scores(llm, [(fact["start"], f" {choice}") for fact in facts for choice in fact["choices"]])
        asked = SamplingParams(temperature=0, max_tokens=MOST_TOKENS, stop=UNTIL)
        starts = [sequel["start"] for sequel in sequels]
        completed = texts(llm.generate(starts, asked))
        chatted = texts(llm.chat([[{"role": "user", "content": text}] for text in starts], asked))
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = write_tokenizer(llm, Path(folder) / "tokenizer")
            rows = list(evaluations(Path(folder), tokenizer))
    right = [best(fact, scored) == fact["answer"] for fact in facts]
    expected = {
        FACTS: (scored, sum(right) / len(right)),
        COMPLETIONS: (dict(zip(starts, completed, strict=True)), exact(completed, sequels)),
        CHAT: (dict(zip(starts, chatted, strict=True)), exact(chatted, sequels)),
    }
    lines = [
        versions("lm_eval"),
        "",
        "| model | tokens by | sent as | batch | at once | task | score | of `LLM` | equal | |",
    ]
    lines.append("|---|---|---|--:|--:|---|--:|--:|--:|---|")
    passed = True
    for (model, backend, sent, batch, at_once), task, score, found in rows:
        values, by_llm = expected[FACTS if task == FACTS else model]
        equal = sum(values[key] == value for key, value in found.items())
        good = equal == len(found) == len(values) and abs(score - by_llm) < 1e-12
        passed &= good
        shown = f"{model} | {backend} | {sent} | {batch} | {at_once} | {task} | {score:.4f} | {by_llm:.4f}"
        lines.append(f"| {shown} | {equal} of {len(values)} | {'pass' if good else 'FAIL'} |")
    seconds = time.monotonic() - start
    greedy = sum(is_greedy for _, is_greedy in scored.values())
    lines += ["", f"{len(scored)} log-likelihoods, {greedy} of them greedy; a difference of the last bit counts."]
    some = len(scored) / 4 < greedy < len(scored) / 2  # else the flag of either kind is hardly tried
    return Verdict(passed and some and seconds < BUDGET, lines)


def evaluations(folder: Path, tokenizer: Path) -> Iterable[tuple[tuple[Any, ...], str, float, dict[Any, Any]]]:
    """What lm-eval finds in each of the ways in which it can ask: the way, the task, its score and its outputs."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(TASKS), include_defaults=False)
    server = RealServer(folder / "log", NAME, "--max-model-len", "1024", "--enable-tokenizer-info-endpoint")
    ways = [
        (COMPLETIONS, "the server", "ids", 1, 1, {"tokenizer_backend": "remote"}, [FACTS, SEQUELS]),
        (COMPLETIONS, "the server", "ids", 8, 1, {"tokenizer_backend": "auto"}, [FACTS, SEQUELS]),
        (COMPLETIONS, "the server", "text", 8, 4, {"tokenizer_backend": "remote"}, [FACTS, SEQUELS]),
        (COMPLETIONS, "transformers", "ids", 8, 4, {"tokenizer": str(tokenizer)}, [FACTS, SEQUELS]),
        (COMPLETIONS, "transformers", "text", 1, 4, {"tokenizer": str(tokenizer)}, [FACTS, SEQUELS]),
        (COMPLETIONS, "None", "text", 1, 1, {"tokenizer_backend": None}, [SEQUELS]),
        (COMPLETIONS, "None", "text", 8, 1, {"tokenizer_backend": None}, [SEQUELS]),
        (CHAT, "None", "messages", 1, 4, {}, [SEQUELS]),
    ]
    try:
        for model, backend, sent, batch, at_once, more, tasks in ways:
            path = "chat/completions" if model == CHAT else "completions"
            arguments = {"model": NAME, "base_url": f"{server.url}/v1/{path}", "num_concurrent": at_once, **more}
            if model == COMPLETIONS:
                arguments["tokenized_requests"] = sent == "ids"
            if backend == "transformers":
                arguments["tokenizer_backend"] = "huggingface"
            result = simple_evaluate(
                model=model,
                model_args=arguments,
                tasks=tasks,
                task_manager=manager,
                batch_size=batch,
                apply_chat_template=model == CHAT,
                bootstrap_iters=0,
            )
            for task in tasks:
                samples = result["samples"][task]
                metric = "acc,none" if task == FACTS else "exact_match,stripped"
                yield (model, backend, sent, batch, at_once), task, result["results"][task][metric], outputs(samples)
    finally:
        server.close()


def outputs(samples: list[dict[str, Any]]) -> dict[Any, Any]:
    """What was found for each context, or context and continuation."""
    found: dict[Any, Any] = {}
    for sample in samples:
        for arguments, (response,) in zip(sample["arguments"], sample["resps"], strict=True):
            if isinstance(response, str):
                found[sample["doc"]["start"]] = response
            else:
                found[tuple(arguments)] = tuple(response)
    return found


def scores(llm: LLM, pairs: list[tuple[str, str]]) -> Scored:
    tokenizer = llm.get_tokenizer()
    wholes = [tokenizer.encode(before + after, add_special_tokens=False) for before, after in pairs]
    prompts = [{"prompt_token_ids": ids} for ids in wholes]
    found = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1))
    scored: Scored = {}
    for pair, ids, output in zip(pairs, wholes, found, strict=True):
        begin = len(tokenizer.encode(pair[0], add_special_tokens=False))
        entries = [at[i] for i, at in zip(ids[begin:], output.prompt_logprobs[begin:], strict=True)]
        scored[pair] = (sum(entry.logprob for entry in entries), all(entry.rank == 1 for entry in entries))
    return scored


def best(fact: dict[str, Any], scored: Scored) -> int:
    values = [scored[fact["start"], f" {choice}"][0] for choice in fact["choices"]]
    return values.index(max(values))


def exact(found: list[str], sequels: list[dict[str, str]]) -> float:
    """The share of texts that are what was expected, but for case, punctuation and spaces around it."""
    plain = str.maketrans("", "", string.punctuation)
    pairs = zip(found, sequels, strict=True)
    equal = [text.strip().lower().translate(plain) == sequel["next"].lower().translate(plain) for text, sequel in pairs]
    return sum(equal) / len(equal)


def texts(found: Iterable[Any]) -> list[str]:
    return [output.outputs[0].text for output in found]


def write_tokenizer(llm: LLM, folder: Path) -> Path:
    """The model's tokenizer in the form in which transformers reads it."""
    tokenizer = llm.get_tokenizer()
    folder.mkdir()
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
