"""Grammar: what SmolLM2 writes under 300 JSON schemas of 20 kinds, at temperatures of 0.5 to 1.5."""

from __future__ import annotations

import argparse
import json
from collections import Counter

from tests.judges.report import Verdict
from tests.judges.schemas import fault, schemas

from octavo import LLM, SamplingParams, StructuredOutputsParams

COUNT = 300
TEMPERATURES = (0.5, 0.8, 1.0, 1.5)
MAX_TOKENS = 240
LEAST_FINISHED = 0.95


def run(options: argparse.Namespace) -> Verdict:
    """Passed if no finished reply breaks its schema, and nearly all finish within their limit."""
    seed = 1 if options.seed is None else options.seed
    asked = schemas(seed, COUNT)
    params = [
        SamplingParams(
            temperature=TEMPERATURES[(i // len({kind for kind, _ in asked})) % len(TEMPERATURES)],
            seed=seed + i,
            max_tokens=MAX_TOKENS,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for i, (_, schema) in enumerate(asked)
    ]
    lines: list[str] = []
    finished, wrong, total = Counter[str](), Counter[str](), Counter[str]()
    with LLM() as llm:
        conversations = [
            [{"role": "user", "content": f"Answer with JSON that follows this schema: {json.dumps(schema)}"}]
            for _, schema in asked
        ]
        outputs = llm.chat(conversations, params)
    for (kind, schema), output in zip(asked, outputs, strict=True):
        reply = output.outputs[0]
        total[kind] += 1
        if reply.finish_reason == "stop":
            finished[kind] += 1
            if reason := fault(schema, reply.text):
                wrong[kind] += 1
                lines.append(f"- {kind}: `{json.dumps(schema)}` got `{reply.text!r}`: {reason}")
    share = finished.total() / COUNT
    table = ["| kind | schemas | finished | valid of these |", "|---|--:|--:|--:|"]
    table += [f"| {kind} | {total[kind]} | {finished[kind]} | {finished[kind] - wrong[kind]} |" for kind in total]
    table.append(f"| all | {COUNT} | {finished.total()} ({share:.1%}) | {finished.total() - wrong.total()} |")
    return Verdict(not wrong and share >= LEAST_FINISHED, [f"Seed {seed}.", "", *table, *lines])
