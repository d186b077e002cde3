"""The wire form of Anthropic's messages, and how it reads as a chat request."""

from __future__ import annotations

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
    Integer,
    Messages,
    RequestFields,
    Stop,
    ToolName,
    WireModel,
)

# Chat's names of tool_choice by ours; one tool is named.
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ToolChoice = Annotated[Any, WithJsonSchema(wire_schema.MESSAGES_TOOL_CHOICE)]


class MessagesTool(WireModel):
    refused: ClassVar[Refused] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": EMPTY,
    }
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    type: Literal["custom"] | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None  # what can be told early is

    @model_validator(mode="before")
    @classmethod
    def check_type(cls, value: Any) -> Any:
        """First, as tools of other types have no schema."""
        if isinstance(value, dict) and value.get("type") not in (None, "custom"):
            raise FieldError("type", f"type is {value['type']!r:.40}; tools are of type 'custom' here.")
        return value

    def chat(self) -> dict[str, Any]:
        function = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function | {"strict": self.strict}}


class Thinking(WireModel):
    type: Literal["adaptive", "disabled"]
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="before")
    @classmethod
    def check_budget(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "enabled":
            raise FieldError("type", "type 'enabled' has a budget, which is not supported yet; use 'adaptive'.")
        return value


class OutputConfig(WireModel):
    refused: ClassVar[Refused] = {"task_budget": ()}
    effort: str | None = None
    format: Annotated[dict[str, Any] | None, WithJsonSchema(wire_schema.OUTPUT_FORMAT)] = None


class CountTokensRequest(RequestFields):
    """POST /v1/messages/count_tokens."""

    refused: ClassVar[Refused] = {
        **REFUSED_ELSEWHERE,
        "output_format": (),
        "container": (),
        "thread": (),
        "compaction": (),
        "fallbacks": EMPTY,
        "fallback_credit_token": (),
        "billing_policy": (),
        "user_profile_id": (),
        "workspace_id": (),
        "mcp_servers": EMPTY,
        "context_management": (),
        "diagnostics": (),
        "inference_geo": (),
        "service_tier": ("auto", "standard_only"),
        "speed": ("standard",),
    }
    messages: Annotated[Messages, WithJsonSchema(wire_schema.TURNS)]
    system: Annotated[Any, WithJsonSchema(wire_schema.or_null(wire_schema.SYSTEM))] = None
    tools: list[MessagesTool] | None = Field(default=None, max_length=1024)
    tool_choice: ToolChoice = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None  # what can be found again is cached without being asked
    metadata: dict[str, Any] | None = None

    def chat(self, **fields: Any) -> ChatRequest:
        """The same request in chat's words. Raises ApiError, naming the field."""
        messages = list(chat_messages(self.system, self.messages))
        values = {
            **self.shared(),
            **fields,
            "messages": messages,
            "continue_final_message": messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1],
            "tools": [tool.chat() for tool in self.tools or ()] or None,
            **chat_tool_choice(self.tool_choice, bool(self.tools)),
        }
        if self.thinking is not None:
            thinks = self.thinking.type != "disabled"
            values["chat_template_kwargs"] = {"enable_thinking": thinks}
            values["include_reasoning"] = thinks and self.thinking.display != "omitted"
        if self.output_config is not None:
            values["reasoning_effort"] = self.output_config.effort
            values["response_format"] = response_format(self.output_config.format)
        return checked(ChatRequest, values)


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: Integer
    stop_sequences: Stop = None

    @model_validator(mode="after")
    def check_names(self) -> MessagesRequest:
        if (self.model_extra or {}).get("stop") is not None:
            raise FieldError("stop", "stop is called stop_sequences here.")
        return self


def chat_tool_choice(given: Any, has_tools: bool) -> dict[str, Any]:
    """Chat's tool_choice and parallel_tool_calls; auto asks for nothing where there are no tools."""
    if given is None:
        return {}
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "tool" and isinstance(given.get("name"), str):
        choice: Any = {"type": "function", "function": {"name": given["name"]}}
    elif isinstance(kind, str) and kind in TOOL_CHOICES:
        choice = TOOL_CHOICES[kind]
    else:
        raise bad_request("tool_choice.type must be auto, any, none, or tool with a name.", "tool_choice")
    alone = given.get("disable_parallel_tool_use")
    if not isinstance(alone, bool | None):
        name = "tool_choice.disable_parallel_tool_use"
        raise bad_request(f"{name} must be true or false.", name)
    return {"tool_choice": choice if has_tools or choice != "auto" else None, "parallel_tool_calls": not alone}


def response_format(format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Chat's form of output_config.format."""
    match format:
        case None:
            return None
        case {"type": "json_schema", "schema": dict(schema)}:
            return {"type": "json_schema", "json_schema": {"schema": schema}}
    name = "output_config.format"
    raise bad_request(f"{name} must be of type json_schema and have a schema.", name)


def chat_messages(system: Any, messages: list[Any]) -> Iterator[dict[str, Any]]:
    """Turns of one role that follow one another are joined; results of tools are turns of their own."""
    held: dict[str, Any] | None = None
    if system is not None and (text := joined_text(system, "system")):
        yield {"role": "system", "content": text}
    for position, message in enumerate(messages):
        for turn in turns(message, f"messages[{position}]"):
            if held is not None and held["role"] == turn["role"] != "tool":
                held = joined(held, turn)
                continue
            if held is not None:
                yield held
            held = turn
    if held is not None:
        yield held


def joined(turn: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Two turns of one role as one. A turn has calls, or reasoning, only if its blocks do."""
    whole = {"role": turn["role"]}
    for name in ("content", "reasoning"):
        if texts := [part[name] for part in (turn, more) if name in part]:
            whole[name] = "\n".join(filter(None, texts))
    if calls := [call for part in (turn, more) for call in part.get("tool_calls", ())]:
        whole["tool_calls"] = calls
    return whole


def turns(message: Any, path: str) -> Iterator[dict[str, Any]]:
    if not isinstance(message, dict):
        raise bad_request(f"{path} must be an object.", path)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise bad_request(f"{path}.role must be user or assistant; a system prompt goes into system.", f"{path}.role")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, at in blocks(content, f"{path}.content"):
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            calls.append(tool_call(block, at))
        elif kind == "thinking" and role == "assistant":
            thoughts.append(string(block, "thinking", at))
        elif kind == "tool_result" and role == "user":
            yield tool_result(block, at)
        else:
            texts.append(text_of(block, at))
    if texts or thoughts or calls:
        turn: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if thoughts:
            turn["reasoning"] = "\n".join(thoughts)
        if calls:
            turn["tool_calls"] = calls
        yield turn


def blocks(content: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Content blocks and where they are; a text is one block."""
    if isinstance(content, str):
        yield {"type": "text", "text": content}, path
        return
    if not isinstance(content, list) or not content:
        raise bad_request(f"{path} must be a text or a list of content blocks that is not empty.", path)
    for i, block in enumerate(content):
        if not isinstance(block, dict):
            raise bad_request(f"{path}[{i}] must be an object with a type.", f"{path}[{i}]")
        yield block, f"{path}[{i}]"


def text_of(block: dict[str, Any], path: str) -> str:
    if block.get("type") != "text":
        shown = f"{block.get('type')!r:.40}"
        raise bad_request(f"{path}.type is {shown}, but this model takes text blocks only.", f"{path}.type")
    return string(block, "text", path)


def string(block: dict[str, Any], name: str, path: str) -> str:
    text = block.get(name)
    if not isinstance(text, str):
        raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
    return text


def joined_text(content: Any, path: str) -> str:
    return "\n".join(text_of(block, at) for block, at in blocks(content, path))


def tool_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise bad_request(f"{path}.input must be an object.", f"{path}.input")
    function = {"name": string(block, "name", path), "arguments": given}
    return {"id": string(block, "id", path), "type": "function", "function": function}


def tool_result(block: dict[str, Any], path: str) -> dict[str, Any]:
    """Chat has no word for a tool that failed, so that the text says it: the model is to know."""
    content, failed = block.get("content"), block.get("is_error")
    if not isinstance(failed, bool | None):
        raise bad_request(f"{path}.is_error must be true or false.", f"{path}.is_error")
    text = joined_text(content, f"{path}.content") if content not in (None, []) else ""
    if failed:
        text = f"Error: {text}" if text else "Error"
    return {"role": "tool", "tool_call_id": string(block, "tool_use_id", path), "content": text}
