"""The wire form of OpenAI's responses, and how it reads as a chat request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, model_validator

from octavo.server import wire_schema
from octavo.server.body import checked
from octavo.server.errors import bad_request
from octavo.server.refused import EMPTY, REFUSED_ELSEWHERE, Refused
from octavo.server.wire import (
    ChatRequest,
    FieldError,
    FunctionTool,
    Integer,
    RequestFields,
)
from octavo.text.messages import MAX_MESSAGES

KEPT_NOWHERE = "{} is not possible: responses are not kept on this server. Send the whole conversation as input."

LOGPROBS = "message.output_text.logprobs"
# What may be asked to be included: nothing comes of the second, as items of reasoning tell it as it is.
INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
INCLUDE = wire_schema.or_null(wire_schema.list_of({"enum": list(INCLUDABLE)}))
REASONING = wire_schema.or_null(
    wire_schema.object_of({}, effort={"enum": [*EFFORTS, None]}, summary={"enum": ["auto", None]})
)

Input = Annotated[Any, WithJsonSchema(wire_schema.INPUT)]
ToolChoice = Annotated[Any, WithJsonSchema(wire_schema.RESPONSES_TOOL_CHOICE)]
TEXT_KINDS = ("input_text", "output_text", "text", "refusal")


class ResponsesTool(FunctionTool):
    """A function as it is, where chat puts it one level deeper."""

    refused: ClassVar[Refused] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        "defer_loading": (False,),
        "output_schema": (),
    }
    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def check_type(cls, value: Any) -> Any:
        """First, as tools of other types lack what functions have."""
        if isinstance(value, dict) and value.get("type") != "function":
            raise FieldError("type", f"type is {value.get('type')!r:.40}; tools are of type 'function' here.")
        return value

    @property
    def function(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FunctionTool.model_fields if name in self.model_fields_set}


class ResponsesRequest(RequestFields):
    """POST /v1/responses."""

    refused: ClassVar[Refused] = {
        **REFUSED_ELSEWHERE,
        "background": (False,),
        "background_options": (),
        "max_tool_calls": (),
        "prompt": (),
        "service_tier": ("auto", "default"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
        "moderation": (),
        "context_management": EMPTY,
        "access_programs": (),
        "image": (),
    }
    input: Input
    instructions: str | None = None
    max_output_tokens: Integer | None = None
    text: Annotated[dict[str, Any] | None, WithJsonSchema(wire_schema.TEXT_OPTIONS)] = None
    reasoning: Annotated[dict[str, Any] | None, WithJsonSchema(REASONING)] = None
    include: Annotated[list[str] | None, WithJsonSchema(INCLUDE)] = None
    top_logprobs: Integer | None = None
    metadata: dict[str, str] | None = None
    tools: list[ResponsesTool] | None = Field(default=None, max_length=1024)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    store: Annotated[bool | None, WithJsonSchema({"enum": [False, None]})] = None
    previous_response_id: Annotated[str | None, WithJsonSchema(wire_schema.NULL)] = None
    conversation: Annotated[Any, WithJsonSchema(wire_schema.NULL)] = None
    truncation: Literal["disabled"] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @model_validator(mode="after")
    def check_response(self) -> ResponsesRequest:
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise FieldError(name, KEPT_NOWHERE.format(name))
        if self.store:
            raise FieldError("store", "store=true is not possible: responses are not kept on this server.")
        for name in self.include or ():
            if name not in INCLUDABLE:
                raise FieldError("include", f"include holds {name!r:.60}; it may hold {' and '.join(INCLUDABLE)}.")
        if self.top_logprobs is not None and not self.includes_logprobs:
            raise FieldError("top_logprobs", f"top_logprobs needs include to hold {LOGPROBS}.")
        if self.includes_logprobs and self.tools and self.tool_choice != "none":
            raise FieldError("include", f"include cannot hold {LOGPROBS} where tools may be called.")
        if (self.text or {}).get("verbosity") not in (None, "medium"):
            raise FieldError("text", "text.verbosity is not supported; leave it out.")
        if (self.reasoning or {}).get("summary") not in (None, "auto"):
            raise FieldError("reasoning", "reasoning.summary is not supported; leave it out.")
        if (effort := (self.reasoning or {}).get("effort")) is not None and effort not in EFFORTS:
            raise FieldError("reasoning", f"reasoning.effort is {effort!r:.40}; it may be {', '.join(EFFORTS)}.")
        for name, ours in (("stop", "nothing"), ("max_tokens", "max_output_tokens"), ("messages", "input")):
            if (self.model_extra or {}).get(name) is not None:
                raise FieldError(name, f"{name} is not a field of responses; it has {ours} instead.")
        return self

    @property
    def includes_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def text_format(self) -> dict[str, Any]:
        given = (self.text or {}).get("format")
        return {"type": "text"} if given is None else given

    def chat(self) -> ChatRequest:
        """The same request in chat's words. Raises ApiError, naming the field."""
        values: dict[str, Any] = {
            **self.shared(),
            "messages": list(chat_messages(self.instructions, self.input)),
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": (self.reasoning or {}).get("effort"),
            "tools": [{"type": "function", "function": tool.function} for tool in self.tools or ()] or None,
            "tool_choice": chat_tool_choice(self.tool_choice, bool(self.tools)),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": response_format(self.text_format),
        }
        if self.includes_logprobs:
            values |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        return checked(ChatRequest, values)


def response_format(text_format: Any) -> Any:
    """Chat's form of text.format: the parts of a schema stand one level deeper there."""
    match text_format:
        case {"type": "text" | "json_object" as kind}:
            return {"type": kind}
        case {"type": "json_schema", "name": str(), "schema": dict()}:
            if isinstance(text_format.get("strict"), bool | None):
                return {"type": "json_schema", "json_schema": {k: v for k, v in text_format.items() if k != "type"}}
            raise bad_request("text.format.strict must be true or false.", "text.format.strict")
    raise bad_request(
        "text.format.type must be text, json_object or json_schema, the last with a name and a schema.", "text.format"
    )


def chat_tool_choice(given: Any, has_tools: bool) -> Any:
    """Chat's form of tool_choice; auto, which clients send in any case, asks for nothing where there are no tools."""
    match given:
        case "auto" if not has_tools:
            return None
        case None | "auto" | "none" | "required":
            return given
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    raise bad_request(
        'tool_choice must be "none", "auto", "required" or {"type": "function", "name": ...}.', "tool_choice"
    )


def chat_messages(instructions: str | None, given: Any) -> Iterator[dict[str, Any]]:
    """What the assistant said, thought and called between two others' turns is one message, as chat has it."""
    if instructions is not None:
        yield {"role": "system", "content": instructions}
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MESSAGES:
        raise bad_request(f"input must be a text or a list of 1 to {MAX_MESSAGES} items.", "input")
    held: dict[str, Any] | None = None  # of the assistant
    for position, item in enumerate(given):
        message = chat_message(item, f"input[{position}]")
        if held is not None and message["role"] == "assistant" and follows(held, message):
            held["content"] += message["content"]
            held.setdefault("tool_calls", []).extend(message.get("tool_calls", ()))
            continue
        if held is not None:
            yield held
        held = message if message["role"] == "assistant" else None
        if held is None:
            yield message
    if held is not None:
        yield held


def follows(held: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether a message goes on with the turn before it: reasoning begins a turn, and so does a text after a text."""
    if "reasoning" in message:
        return False
    return bool(message.get("tool_calls") or held.get("tool_calls")) or not held["content"]


def chat_message(item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise bad_request(f"{path} must be an object.", path)
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise bad_request(f"{path}.role must be user, assistant, system or developer.", f"{path}.role")
            return {"role": role, "content": content(item.get("content"), f"{path}.content")}
        case "reasoning":
            return {"role": "assistant", "content": "", "reasoning": reasoning(item, path)}
        case "function_call":
            function = {"name": text_of(item, "name", path), "arguments": arguments(item, path)}
            call = {"id": text_of(item, "call_id", path), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output = content(item.get("output"), f"{path}.output")
            return {"role": "tool", "tool_call_id": text_of(item, "call_id", path), "content": output}
        case "item_reference":
            raise bad_request(KEPT_NOWHERE.format(f"{path}.type 'item_reference'"), f"{path}.type")
        case kind:
            raise bad_request(f"{path}.type is {kind!r:.40}, which is not supported.", f"{path}.type")


def text_of(item: dict[str, Any], name: str, path: str) -> str:
    text = item.get(name)
    if not isinstance(text, str):
        raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
    return text


def arguments(item: dict[str, Any], path: str) -> dict[str, Any]:
    text = text_of(item, "arguments", path)
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise bad_request(f"{path}.arguments must be a JSON object in a string.", f"{path}.arguments")
    return value


def reasoning(item: dict[str, Any], path: str) -> str:
    """What the assistant thought, or a summary of it."""
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        if item.get(name):
            return content(item[name], f"{path}.{name}", (kind,))
    raise bad_request(f"{path}.content must hold reasoning_text: encrypted_content cannot be read.", f"{path}.content")


def content(given: Any, path: str, kinds: tuple[str, ...] = TEXT_KINDS) -> str:
    """The text of a message: parts that are text, joined as chat joins them."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise bad_request(f"{path} must be a string or a list of parts.", path)
    texts = []
    for i, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(text, str):
            raise bad_request(f"{path}[{i}] must be a part of type {' or '.join(kinds[:2])}.", f"{path}[{i}]")
        texts.append(text)
    return "\n".join(texts)
