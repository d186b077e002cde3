"""The wire form of Anthropic's messages, and how it reads as a chat request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from octavo.server.body import checked
from octavo.server.errors import bad_request
from octavo.server.wire import REFUSED_ELSEWHERE, ChatRequest, FieldError, Messages, RequestFields, Texts, empty, one_of


def disabled(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type") in ("disabled", "none"))


class CountTokensRequest(RequestFields):
    """POST /v1/messages/count_tokens."""

    refused: ClassVar[Mapping[str, Callable[[Any], bool]]] = REFUSED_ELSEWHERE | {
        "tools": empty,
        "tool_choice": disabled,
        "thinking": disabled,
        "output_config": empty,
        "output_format": one_of(),
        "container": one_of(),
        "mcp_servers": empty,
        "context_management": one_of(),
        "diagnostics": one_of(),
        "inference_geo": one_of(),
        "service_tier": one_of("auto", "standard_only"),
        "speed": one_of("standard"),
    }
    messages: Messages
    system: Any = None
    cache_control: Any = None  # what can be found again is cached without being asked
    metadata: dict[str, Any] | None = None

    def chat(self, **fields: Any) -> ChatRequest:
        """The same request in chat's words. Raises ApiError, naming the field."""
        messages = list(chat_messages(self.system, self.messages))
        continues = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        return checked(
            ChatRequest, {**self.shared(), **fields, "messages": messages, "continue_final_message": continues}
        )


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: int
    stop_sequences: Texts = None

    @model_validator(mode="after")
    def check_names(self) -> MessagesRequest:
        if (self.model_extra or {}).get("stop") is not None:
            raise FieldError("stop", "stop is called stop_sequences here.")
        return self


def chat_messages(system: Any, messages: list[Any]) -> Iterator[dict[str, Any]]:
    """Turns of one role that follow one another are joined; results of tools are turns of their own."""
    held: dict[str, Any] | None = None
    if system is not None and (text := joined_text(system, "system")):
        yield {"role": "system", "content": text}
    for position, message in enumerate(messages):
        for turn in turns(message, f"messages[{position}]"):
            if held is not None and held.keys() == turn.keys() and held["role"] == turn["role"] != "tool":
                held["content"] += "\n" + turn["content"]
                continue
            if held is not None:
                yield held
            held = turn
    if held is not None:
        yield held


def turns(message: Any, path: str) -> Iterator[dict[str, Any]]:
    if not isinstance(message, dict):
        raise bad_request(f"{path} must be an object.", path)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise bad_request(f"{path}.role must be user or assistant; a system prompt goes into system.", f"{path}.role")
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, at in blocks(content, f"{path}.content"):
        kind = block.get("type")
        if kind == "tool_use" and role == "assistant":
            calls.append(tool_call(block, at))
        elif kind == "tool_result" and role == "user":
            yield tool_result(block, at)
        else:
            texts.append(text_of(block, at))
    if calls:
        yield {"role": role, "content": "\n".join(texts), "tool_calls": calls}
    elif texts:
        yield {"role": role, "content": "\n".join(texts)}


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
    text = block.get("text")
    if not isinstance(text, str):
        raise bad_request(f"{path}.text must be a string.", f"{path}.text")
    return text


def joined_text(content: Any, path: str) -> str:
    return "\n".join(text_of(block, at) for block, at in blocks(content, path))


def tool_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(given, dict):
        raise bad_request(f"{path} must have a name and an input that is an object.", path)
    return {"id": str(block.get("id")), "type": "function", "function": {"name": name, "arguments": given}}


def tool_result(block: dict[str, Any], path: str) -> dict[str, Any]:
    content = block.get("content")
    text = joined_text(content, f"{path}.content") if content else ""
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": text}
