"""Content, reasoning and tool calls in the shapes of chat completions: a whole message, or a delta for each event."""

from __future__ import annotations

from typing import Any

from octavo.text.events import CallArguments, CallBegin, Content, Event, Reasoning
from octavo.text.splitter import Reply, ReplySplitter


def message(reply: Reply) -> dict[str, Any]:
    """The assistant's message. Its content is null where there are only calls or reasoning; what is not there is left
    out otherwise. Reasoning goes by vLLM's newer name and by the older one."""
    value: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
    if reply.reasoning:
        value |= _reasoning(reply.reasoning)
    if reply.calls:
        value["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    if len(value) > 3 and not reply.content:
        value["content"] = None
    return value


def delta(event: Event) -> dict[str, Any]:
    match event:
        case Content():
            return {"content": event.text}
        case Reasoning():
            return _reasoning(event.text)
        case CallBegin():
            function = {"name": event.name, "arguments": ""}
            return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
        case CallArguments():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}


def finish_reason(reason: str | None, splitter: ReplySplitter, tool_choice: Any) -> str | None:
    """As the engine has it, but for replies that ended of themselves with calls that the model chose to make."""
    named = isinstance(tool_choice, dict)
    return "tool_calls" if reason == "stop" and splitter.has_called and not named else reason


def _reasoning(text: str) -> dict[str, Any]:
    return {"reasoning": text, "reasoning_content": text}
