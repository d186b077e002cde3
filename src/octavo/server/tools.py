"""Tools and reasoning of a request: what is checked of them, and what its replies are made of."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import ServerConfig
from octavo.engine.grammar import Grammar
from octavo.errors import RequestError
from octavo.structured_outputs import MAX_SCHEMA_BYTES, CallGrammar, StructuredOutputsParams
from octavo.text import reasoning
from octavo.text.reasoning import Preamble, ReasoningFormat, is_open
from octavo.text.splitter import ReplyFormat
from octavo.text.tokenizer import Tokenizer
from octavo.text.tool_calls import formats
from octavo.text.tool_calls.described import takes_tools
from octavo.text.tool_calls.formats import CallFormat
from octavo.text.tool_calls.grammar import call_grammar
from octavo.text.tool_calls.schema import check_parameters, shown

logger = logging.getLogger("octavo.server")

Tools = Mapping[str, Mapping[str, Any]]  # name -> schema of the parameters

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}

# A template may write some white space after the marker that begins reasoning, but no text of its own.
PROMPT_END_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the served model writes calls and reasoning: by the server's flags, else as its chat template has it."""

    calls: CallFormat
    reasoning: ReasoningFormat | None
    auto_tool_choice: bool = True

    @classmethod
    def of(cls, tokenizer: Tokenizer, config: ServerConfig) -> Dialect:
        template = tokenizer.chat_templates.get("tool_use") or tokenizer.chat_template or ""
        name = config.tool_call_parser
        if name == "auto":
            name = formats.recognise(template)
            if name == "generic" and takes_tools(template):
                logger.warning(
                    "The chat template takes tools, but how it writes calls is not known: they are read as bare JSON. "
                    "Name the format with --tool-call-parser."
                )
        calls = formats.call_format(name, template)
        thinking = None if config.reasoning_parser == "none" else reasoning.FORMATS.get(config.reasoning_parser)
        if config.reasoning_parser == "auto":
            thinking = reasoning.recognise(template)
        return cls(calls, thinking, config.enable_auto_tool_choice)


def check_tools(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """The tools by name. RequestError: a name that comes twice, parameters that are no schema."""
    checked: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(tools):
        function = tool["function"]
        path = f"tools[{i}].function"
        if function["name"] in checked:
            raise RequestError(f"{path}.name {function['name']!r} is the name of an earlier tool.", f"{path}.name")
        schema = function.get("parameters")
        if schema is not None:
            check_parameters(schema, f"{path}.parameters")
        checked[function["name"]] = NO_PARAMETERS if schema is None else schema
    return checked


def chosen_tools(tool_choice: Any, tools: Tools, dialect: Dialect) -> Tools:
    """The tools that replies may call: none, all, or the one that is named. RequestError naming tool_choice."""
    if tool_choice is None:
        tool_choice = "auto" if tools else "none"
    if tool_choice == "none":
        return {}
    if tool_choice == "auto":
        if not dialect.auto_tool_choice:
            raise RequestError(
                'tool_choice "auto", which is the default with tools, is switched off on this server '
                '(--no-enable-auto-tool-choice): use "none", "required" or a named function.',
                "tool_choice",
            )
        return tools
    if tool_choice == "required":
        return tools
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(tool_choice, Mapping) or tool_choice.get("type") != "function" or not isinstance(name, str):
        raise RequestError(
            'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}, got '
            f"{shown(tool_choice)}.",
            "tool_choice",
        )
    if name not in tools:
        raise RequestError(
            f"tool_choice names {name!r:.60}, but tools has {', '.join(map(repr, tools))[:200]}.", "tool_choice"
        )
    return {name: tools[name]}


def is_forced(tool_choice: Any) -> bool:
    """Whether a call has to be made."""
    return tool_choice not in (None, "none", "auto")


def reply_format(
    dialect: Dialect,
    tools: Tools,
    *,
    forced: bool = False,
    strict: Iterable[str] = (),
    or_answer: bool = False,
    parallel: bool = True,
    include_reasoning: bool = True,
    prompt_end: str = "",
    continued: str = "",
) -> ReplyFormat:
    """What replies are made of.

    `tools` are those that may be called, or have to be: always (`forced`), or unless the reply is the answer that the
    client asks for (`or_answer`). Calls of those in `strict` are held to their schemas also where they need not be
    made, as far as the format has a marker that tells where calls begin. `prompt_end` is the end of the prompt's text,
    control tokens included; `continued` is the text of the assistant that the reply goes on from.
    """
    inside = dialect.reasoning is not None and (
        prompt_end.rstrip().endswith(dialect.reasoning.begin) or is_open(continued, dialect.reasoning)
    )
    calls = dialect.calls
    if forced and calls.writing is None:
        calls = formats.GENERIC  # a grammar writes JSON, whatever the model's own format is
    return ReplyFormat(
        dialect.reasoning,
        inside,
        include_reasoning,
        calls if tools else None,
        tools,
        forced,
        frozenset(strict) & tools.keys() if calls.first_marker is not None and not forced else frozenset(),
        or_answer and bool(tools),
        None if parallel else 1,
    )


def preamble(format: ReplyFormat, prompt_end: str, continued: str) -> Preamble | None:
    """The reasoning that may come before what the reply is held to; none where the prompt has ended it already, or has
    begun the answer.
    """
    begun = bool(continued) and not format.inside
    if format.reasoning is None or begun or prompt_end.rstrip().endswith(format.reasoning.end):
        return None
    return Preamble(format.reasoning, format.inside)


def may_call_instead(asked: StructuredOutputsParams, calls: CallFormat) -> bool:
    """Whether replies may be calls in place of what is asked for: how they begin has to tell the two apart."""
    marker = calls.first_marker
    if marker is None:
        return False
    match asked.kind:
        case "json" | "json_object":
            # No JSON begins so, but where white space is what the client says, anything may follow a bracket.
            return marker[0] != "[" or asked.whitespace_pattern is None
        case "choice":
            return not any(choice.startswith(marker) for choice in asked.choice or ())
        case _:
            return False


def held_format(
    format: ReplyFormat, asked: StructuredOutputsParams | None, grammar: Grammar | None, before: Preamble | None
) -> ReplyFormat:
    """What the replies to a request are made of that asks for something after `before`: what comes of the grammar is
    content as it is, though it may look like reasoning.
    """
    if asked is None or grammar is None:
        return format
    if before is None and asked.kind != "structural_tag":  # whose text is free
        return replace(format, reasoning=None)
    return replace(format, keeps_space=grammar.keeps_space)


def constraint_of_calls(format: ReplyFormat, control_texts: Mapping[str, int]) -> CallGrammar | None:
    """The grammar of the replies, or of those that are no answer, where a grammar makes the calls."""
    if not format.eager:
        return None
    assert format.calls is not None and format.calls.writing is not None
    any_object = {"type": "object"}
    text = call_grammar(
        {n: s if format.forced or n in format.strict else any_object for n, s in format.tools.items()},
        format.calls.writing,
        control_texts,
        marker=None if format.forced or format.or_answer else format.calls.first_marker,
        parallel=format.most_calls is None,
        # What comes before an answer comes before calls in its place too.
        reasoning=Preamble(format.reasoning, format.inside) if format.reasoning and not format.or_answer else None,
    )
    if len(text) > MAX_SCHEMA_BYTES:
        raise RequestError(f"tools cannot be enforced: their grammar has more than {MAX_SCHEMA_BYTES} bytes.", "tools")
    return CallGrammar(grammar=text)


def kept_tokens(tokenizer: Tokenizer, format: ReplyFormat) -> list[int]:
    """Markers that are control tokens, which a reply's text must keep for them to be found."""
    texts = [*(format.calls.texts if format.calls else ())]
    if format.reasoning is not None:
        texts += [format.reasoning.begin, format.reasoning.end]
    return [tokenizer.control_texts[text] for text in texts if text in tokenizer.control_texts]
