"""The formats of tool calls by vLLM's names, and which of them a chat template speaks of."""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from octavo.text.tool_calls.function_gemma import gemma_call
from octavo.text.tool_calls.json_calls import json_calls
from octavo.text.tool_calls.named_json import ALL, ALL_END, CALL, END, SEP, deepseek, kimi, mistral
from octavo.text.tool_calls.pythonic import pythonic
from octavo.text.tool_calls.reader import Read
from octavo.text.tool_calls.tagged import glm, tagged


@dataclass(frozen=True, slots=True)
class Writing:
    """How calls whose arguments are JSON are written, as a grammar makes a model write them."""

    name: str  # before the name of a call
    arguments: str  # between name and arguments
    end: str = ""  # after the arguments
    first: str = ""  # before all calls
    between: str = ""
    last: str = ""  # after all calls


def long_id() -> str:
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def short_id() -> str:
    """Mistral's templates refuse ids that are not nine letters or digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls: what reads them after each marker, or from a reply's first character on."""

    markers: Mapping[str, Read] = field(default_factory=dict)
    bare: Mapping[str, Read] = field(default_factory=dict)  # by first character, which is read again
    writing: Writing | None = None
    make_id: Callable[[], str] = long_id
    inner: tuple[str, ...] = ()  # further markers, within calls, that may be control tokens

    @property
    def first_marker(self) -> str | None:
        """What every reply that calls tools begins its calls with, as a grammar writes them."""
        begin = self.writing.first + self.writing.name if self.writing is not None else ""
        return next((marker for marker in self.markers if begin.startswith(marker)), None)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every marker that may be a control token, which the text of a reply has to keep."""
        return (*self.markers, *self.inner)


HERMES = CallFormat(
    {"<tool_call>": json_calls("</tool_call>")},
    inner=("</tool_call>",),
    writing=Writing('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", between="\n"),
)
BARE = json_calls()
GENERIC = CallFormat(
    bare={"[": BARE, "{": BARE},
    writing=Writing('{"name": "', '", "arguments": ', "}", first="[", between=", ", last="]"),
)
LLAMA_JSON = CallFormat(
    {"<|python_tag|>": BARE}, {"{": BARE, "[": BARE}, Writing('{"name": "', '", "parameters": ', "}", between="; ")
)
MISTRAL = CallFormat(
    {"[TOOL_CALLS]": mistral},
    writing=Writing("[TOOL_CALLS]", "[ARGS]"),
    make_id=short_id,
    inner=("[ARGS]", "[CALL_ID]"),
)
MISTRAL_LIST = Writing('{"name": "', '", "arguments": ', "}", first="[TOOL_CALLS] [", between=", ", last="]")
DEEPSEEK = CallFormat(
    {ALL: deepseek},
    writing=Writing(CALL, SEP, END, ALL, "", ALL_END),
    inner=(CALL, SEP, END, ALL_END),
)
DEEPSEEK_V3 = replace(
    DEEPSEEK,
    writing=Writing(f"{CALL}function{SEP}", "\n```json\n", f"\n```{END}", ALL, "\n", ALL_END),
)
QWEN_TAGS = CallFormat(
    {"<tool_call>": tagged("</tool_call>"), "<function=": tagged("</tool_call>", inside=True)}, inner=("</tool_call>",)
)
PYTHONIC = CallFormat(
    {"<|python_start|>": pythonic(close="<|python_end|>")},
    {"[": pythonic(close="<|python_end|>")},
    inner=("<|python_end|>",),
)
GLM = CallFormat({"<tool_call>": glm}, inner=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"))

FORMATS: dict[str, CallFormat] = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK,
    "functiongemma": CallFormat(
        {"<start_function_call>": gemma_call("<escape>", "<end_function_call>")},
        inner=("<end_function_call>", "<escape>"),
    ),
    "gemma4": CallFormat({"<|tool_call>": gemma_call('<|"|>', "<tool_call|>")}, inner=("<tool_call|>", '<|"|>')),
    "generic": GENERIC,
    "glm45": GLM,
    "glm47": GLM,
    "granite": CallFormat(
        {"<|tool_call|>": BARE, "<tool_call>": BARE},
        writing=Writing('{"name": "', '", "arguments": ', "}", first="<|tool_call|>[", between=", ", last="]"),
    ),
    "granite-20b-fc": CallFormat({"<function_call>": BARE}),
    "granite4": HERMES,
    "hermes": HERMES,
    "hunyuan_a13b": CallFormat({"<tool_calls>": json_calls("</tool_calls>")}),
    "jamba": CallFormat({"<tool_calls>": json_calls("</tool_calls>")}),
    "kimi_k2": CallFormat(
        {"<|tool_calls_section_begin|>": kimi},
        inner=(
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            "<|tool_calls_section_end|>",
        ),
    ),
    "lfm2": CallFormat({"<|tool_call_start|>": pythonic(close="<|tool_call_end|>")}, inner=("<|tool_call_end|>",)),
    "llama3_json": LLAMA_JSON,
    "llama4_json": LLAMA_JSON,
    "llama4_pythonic": PYTHONIC,
    "longcat": CallFormat({"<longcat_tool_call>": json_calls("</longcat_tool_call>")}),
    "minimax_m2": CallFormat(
        {"<minimax:tool_call>": tagged("</minimax:tool_call>", ('<invoke name="', '">'), ('<parameter name="', '">'))},
        inner=("</minimax:tool_call>",),
    ),
    "mistral": MISTRAL,
    "olmo3": CallFormat({"<function_calls>": pythonic("", "</function_calls>")}, inner=("</function_calls>",)),
    "phi4_mini_json": CallFormat(
        {"functools": BARE, "<|tool_call|>": json_calls("<|/tool_call|>")}, inner=("<|/tool_call|>",)
    ),
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN_TAGS,
    "qwen3_xml": QWEN_TAGS,
    "seed_oss": CallFormat({"<seed:tool_call>": tagged("</seed:tool_call>")}, inner=("</seed:tool_call>",)),
    "xlam": GENERIC,
}

# What of a template's text gives its format away; the first that is there counts.
SIGNS = (
    ("<minimax:tool_call>", "minimax_m2"),
    ("<seed:tool_call>", "seed_oss"),
    ("<parameter=", "qwen3_coder"),
    ("<arg_key>", "glm45"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<|tool_list_start|>", "lfm2"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    (ALL, "deepseek_v31"),
    ("[TOOL_CALLS]", "mistral"),
    ("<function_calls>", "olmo3"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<|tool_call|>", "granite"),
    ("<longcat_tool_call>", "longcat"),
    ("<tool_calls>", "jamba"),
    ("<tool_call>", "hermes"),
    ("functools[", "phi4_mini_json"),
    ("<|/tool|>", "phi4_mini_json"),
    ("[func_name", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
)


def recognise(template: str) -> str:
    """The name of the format that a chat template speaks of; generic where it speaks of none that is known."""
    return next((name for sign, name in SIGNS if sign in template), "generic")


def call_format(name: str, template: str) -> CallFormat:
    """A format by name; where one name stands for two ways of writing, the template says which a grammar takes."""
    if name == "mistral" and "[ARGS]" not in template:
        return replace(MISTRAL, writing=MISTRAL_LIST)
    if name == "deepseek_v31" and "```json" in template:
        return DEEPSEEK_V3
    return FORMATS[name]
