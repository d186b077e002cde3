"""From a constraint to the grammar that llguidance compiles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import llguidance

from octavo.errors import RequestError
from octavo.structured_outputs import MAX_GRAMMAR_RULES, CallGrammar, StructuredOutputsParams, check_schema
from octavo.text.lark import PARTING, TEXT, reasoning_first
from octavo.text.markers import SPACE
from octavo.text.reasoning import Preamble

# A run of white space has a bound, or a model that is at a loss would write nothing else to the end.
WHITESPACE = r" |\n[ \t]{0,32}"
# Without \u, by which a property could come twice: once in the schema's spelling, and once as any other property.
ESCAPES = 'nrbtf\\"'
RULE = re.compile(r"^\s*[!?]?[A-Za-z_][\w.-]*\s*(\[[^\]\n]*\])?\s*(:|::=)", re.MULTILINE)


def grammar_of(params: StructuredOutputsParams, control_texts: Mapping[str, int]) -> str:
    """`control_texts`: of tokens that a model writes as one, which a trigger may be."""
    if isinstance(params, CallGrammar):
        return str(params.grammar)
    try:
        match params.kind:
            case "json":
                return _of_schema(json.loads(str(params.json)), params)
            case "json_object":
                return _of_schema({"type": "object"}, params)
            case "regex":
                # ECMA's and Python's classes agree on ASCII.
                return f"start: /{llguidance.regex_to_lark(str(params.regex), 'dws')}/"
            case "choice":
                return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in params.choice or ())
            case "grammar":
                return _of_rules(str(params.grammar))
            case _:
                return _of_tags(json.loads(str(params.structural_tag)), params, control_texts)
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise _error(params.kind, str(error)) from None


def reply_grammar(
    answer: str, calls: str | None, reasoning: Preamble | None, control_texts: Mapping[str, int], parted: bool
) -> str:
    """The grammar of reasoning that may or must come, and then what `answer` describes, or else `calls`; white space
    may stand between the two where they are `parted`.
    """
    if reasoning is None and calls is None:
        return answer
    grammars = json.loads(answer)["grammars"] if answer.startswith("{") else [{"lark_grammar": answer}]
    # No grammar holds its own hash, so that none can name itself.
    name = grammars[0]["name"] = f"answer_{sha256(answer.encode()).hexdigest()}"
    reply = f"@{name}"
    if calls is not None:
        grammars.append({"lark_grammar": calls, "name": "calls"})
        reply = f"(@{name} | @calls)"
    rules: list[str] = []
    opening = ""
    if reasoning is not None:
        rules, opening = reasoning_first(reasoning, control_texts, then=PARTING if parted else "")
    start = "\n".join([TEXT, *rules, f"start: {opening} {reply}"])
    return json.dumps({"grammars": [{"lark_grammar": start}, *grammars]})


def starts_with_space(params: StructuredOutputsParams) -> bool | None:
    """Whether it may begin with white space, or, of free text, a structure in it, where that is its own wherever it
    stands. None where only the compiled constraint says so.
    """
    match params.kind:
        case "json" | "json_object":
            return False  # white space stands between the parts of JSON
        case "choice":
            begins = list(params.choice or ())
        case "structural_tag":
            begins = [structure["begin"] for structure in json.loads(str(params.structural_tag))["structures"]]
        case _:
            return None
    return any(begin.startswith(tuple(SPACE)) for begin in begins)


def _of_schema(schema: Any, params: StructuredOutputsParams) -> str:
    check_schema(schema, params.field)
    if "x-guidance" in schema:
        raise _error(params.kind, "x-guidance is not supported; use whitespace_pattern or disable_any_whitespace")
    if params.disable_additional_properties:
        _close(schema)
    options: Any = {"lenient": False, "coerce_one_of": False, "json_allowed_escapes": ESCAPES}
    if params.disable_any_whitespace:
        options["whitespace_flexible"] = False
    else:
        given = params.whitespace_pattern
        options["whitespace_pattern"] = WHITESPACE if given is None else given
    return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options)


def _close(schema: Any) -> None:
    """No properties but those that are named, in each object that names some and says nothing of others."""
    below = [schema]
    while below:
        value = below.pop()
        if isinstance(value, dict):
            if isinstance(value.get("properties"), dict):
                value.setdefault("additionalProperties", False)
            below += value.values()
        elif isinstance(value, list):
            below += value


def _of_rules(text: str) -> str:
    if (rules := len(RULE.findall(text))) > MAX_GRAMMAR_RULES:
        raise _error("grammar", f"it has {rules} rules; at most {MAX_GRAMMAR_RULES} are possible")
    return llguidance.grammar_from("grammar", text)


def _of_tags(tag: Any, params: StructuredOutputsParams, control_texts: Mapping[str, int]) -> str:
    """Free text in which each trigger starts one of the structures: begin, what its schema describes, end."""
    structures, triggers = tag.get("structures"), tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures:
        raise _error("structural_tag", "it must have structures [{begin, schema, end}] and triggers [text]")
    if not all(isinstance(trigger, str) and trigger for trigger in triggers):
        raise _error("structural_tag", "triggers must be texts that are not empty")
    tags = " | ".join(f"tag_{i}" for i in range(len(structures)))
    lines = [f"start: ({tags})* rest", "rest: TEXT", "TEXT: /(.|\\n)*/"]
    for i, structure in enumerate(structures):
        begin = structure.get("begin") if isinstance(structure, dict) else None
        end = structure.get("end") if isinstance(structure, dict) else None
        schema = structure.get("schema") if isinstance(structure, dict) else None
        if not isinstance(begin, str) or not isinstance(end, str) or not isinstance(schema, dict):
            raise _error("structural_tag", f"structures[{i}] must have the texts begin and end, and an object schema")
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), None)
        if trigger is None:
            raise _error("structural_tag", f"structures[{i}].begin starts with none of the triggers")
        compiled = json.loads(_of_schema(schema, params))["grammars"][0]["json_schema"]
        body = f"{_literal(begin[len(trigger) :])} %json {json.dumps(compiled)} {_literal(end)}"
        if trigger in control_texts:
            lines.append(f"tag_{i}: TEXT {trigger} {body}")
        else:
            lines += [f"trigger_{i}[lazy]: TEXT {_literal(trigger)}", f"tag_{i}: trigger_{i} {body}"]
    return "\n".join(lines)


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""


def _error(kind: str, reason: str) -> RequestError:
    return RequestError(f"structured_outputs.{kind} cannot be enforced: {reason}.", "structured_outputs")
