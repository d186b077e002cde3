"""The grammar of a reply that has to call tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.text.reasoning import ReasoningFormat
from octavo.text.tool_calls.formats import Writing
from octavo.text.tool_calls.schema import LISTS, MAPPINGS, SCHEMAS

PROSE = frozenset(("title", "description", "default", "examples", "example", "$comment", "deprecated", "x-guidance"))
# What says of further properties, or combines with schemas that do.
OPENING = frozenset(("additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", *LISTS))
# White space that a small model may write without end is written for it.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def call_grammar(
    tools: Mapping[str, Mapping[str, Any]],
    writing: Writing,
    control_texts: Mapping[str, int],
    *,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> str:
    """One call of any of `tools` (or several, if `parallel`), with arguments that fit its schema.

    `control_texts` are the control tokens, which a grammar has to name by id. With `reasoning` the reply may reason
    before; `inside` says that the prompt has begun to.
    """

    def literal(text: str) -> str:
        known = sorted((c for c in control_texts if c in text), key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, known)) + ")", text) if known else [text]
        written = [f"<[{control_texts[p]}]>" if p in control_texts else json.dumps(p) for p in parts if p]
        return " ".join(written) or '""'

    more = f" ({literal(writing.between)} call)*" if parallel else ""
    rules = [f"calls: {literal(writing.first)} call{more} {literal(writing.last)}"]
    if reasoning is None:
        rules.append("start: calls")
    else:
        end = reasoning.end
        if end in control_texts:
            rules.append(f"thinking: /(?s:.*)/ {literal(end)}")
        else:
            rules.append(f"thinking[suffix={json.dumps(end)}]: /(?s:.*)/")
        rules.append("space: /[ \\n]{0,4}/")
        rules.append(f"start: {'thinking' if inside else f'({literal(reasoning.begin)} thinking)?'} space calls")
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for i, (name, schema) in enumerate(tools.items()):
        before = writing.name + name + writing.arguments
        arguments = json.dumps({**enforced_schema(schema), "x-guidance": SPACING})
        rules.append(f"call_{i}: {literal(before)} %json {arguments} {literal(writing.end)}")
    return "\n".join(rules) + "\n"


def enforced_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What a grammar needs of a schema: without its prose, and with no properties but those that it names.

    Others would fit many a schema, but no tool asks for them. Where schemas are combined (allOf), one may name what
    another leaves open, and all is as it was given.
    """
    closed = '"allOf"' not in json.dumps(schema)

    def essence(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        kept: dict[str, Any] = {}
        for key, value in part.items():
            if key in LISTS:
                kept[key] = [essence(one) for one in value]
            elif key in MAPPINGS:
                kept[key] = {name: essence(one) for name, one in value.items()}
            elif key not in PROSE:
                kept[key] = essence(value) if key in SCHEMAS else value
        if closed and "properties" in kept and not kept.keys() & OPENING:
            kept["additionalProperties"] = False
        return kept

    return {"type": "object", **essence(schema)}
