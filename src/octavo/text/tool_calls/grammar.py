"""The grammar of a reply that calls tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from octavo.text.lark import PARTING, TEXT, literal, reasoning_first, until
from octavo.text.reasoning import Preamble
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
    marker: str | None = None,
    parallel: bool = True,
    reasoning: Preamble | None = None,
) -> str:
    """One call of any of `tools` (or several, if `parallel`), with arguments that fit its schema.

    With `marker`, the first of the writing, calls need not be made: all before it is free text, and so may all be.
    `control_texts` are the control tokens, which a grammar has to name by id. With `reasoning` the reply may reason
    before.
    """
    spelled = partial(literal, control_texts=control_texts)
    begin = (writing.first + writing.name).removeprefix(marker or "")
    more = f" ({spelled(writing.between + writing.name)} call)*" if parallel else ""
    rules = [TEXT, f"calls: {spelled(begin)} call{more} {spelled(writing.last)}"]
    reply = "calls"
    if marker is not None:
        rules.append(until("trigger", marker, control_texts))
        reply = "(trigger calls | TEXT)"
    if reasoning is None:
        rules.append(f"start: {reply}")
    else:
        before, opening = reasoning_first(reasoning, control_texts)
        rules += before
        rules.append(f"start: {opening} {'' if marker is not None else PARTING} {reply}")
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for i, (name, schema) in enumerate(tools.items()):
        arguments = json.dumps({**enforced_schema(schema), "x-guidance": SPACING})
        rules.append(f"call_{i}: {spelled(name + writing.arguments)} %json {arguments} {spelled(writing.end)}")
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
