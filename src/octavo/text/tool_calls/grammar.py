"""The grammar of a reply that calls tools, in Lark as llguidance reads it."""

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
    marker: str | None = None,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> str:
    """One call of any of `tools` (or several, if `parallel`), with arguments that fit its schema.

    With `marker`, the first of the writing, calls need not be made: all before it is free text, and so may all be.
    `control_texts` are the control tokens, which a grammar has to name by id. With `reasoning` the reply may reason
    before; `inside` says that the prompt has begun to.
    """

    def literal(text: str) -> str:
        known = sorted((c for c in control_texts if c in text), key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, known)) + ")", text) if known else [text]
        written = [f"<[{control_texts[p]}]>" if p in control_texts else json.dumps(p) for p in parts if p]
        return " ".join(written) or '""'

    def until(rule: str, end: str) -> str:
        """A rule for free text up to `end`, which a text cannot go past."""
        return f"{rule}: TEXT {literal(end)}" if end in control_texts else f"{rule}[lazy]: TEXT {literal(end)}"

    begin = (writing.first + writing.name).removeprefix(marker or "")
    more = f" ({literal(writing.between + writing.name)} call)*" if parallel else ""
    rules = [r"TEXT: /(.|\n)*/", f"calls: {literal(begin)} call{more} {literal(writing.last)}"]
    reply = "calls"
    if marker is not None:
        rules.append(until("trigger", marker))
        reply = "(trigger calls | TEXT)"
    if reasoning is None:
        rules.append(f"start: {reply}")
    else:
        rules.append(until("thinking", reasoning.end))
        # Lazy, or a reply that begins so would be taken for free text to its end.
        special = reasoning.begin in control_texts
        rules.append(f"think{'' if special else '[lazy]'}: {literal(reasoning.begin)}")
        space = "" if marker is not None else "/[ \\n]{0,4}/ "
        rules.append(f"start: {'thinking' if inside else '(think thinking)?'} {space}{reply}")
    rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(tools))))
    for i, (name, schema) in enumerate(tools.items()):
        arguments = json.dumps({**enforced_schema(schema), "x-guidance": SPACING})
        rules.append(f"call_{i}: {literal(name + writing.arguments)} %json {arguments} {literal(writing.end)}")
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
