"""Tools for chat templates that know nothing of them: described in the system message, calls and results as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.text.messages import Message, as_json, map_strings

DESCRIPTION = """You can use these tools, each described by one line of JSON:
{tools}

To use tools, answer with nothing but a JSON list of calls, such as [{{"name": "{name}", "arguments": {{}}}}]. \
The results come in the next message. Answer in plain words where no tool is needed."""

TOOLS_NAME = re.compile(r"\btools\b")


def takes_tools(template: str) -> bool:
    """Whether a chat template writes tools itself; others get them described in the system message."""
    return TOOLS_NAME.search(template) is not None


def with_description(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages with the tools in the system message, which is made where there is none."""
    functions = map_strings([tool.get("function", tool) for tool in tools], lambda text, _: text, "tools")
    lines = "\n".join(map(as_json, functions))
    text = DESCRIPTION.format(tools=lines, name=functions[0].get("name", ""))
    if messages[0]["role"] in ("system", "developer"):
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}".strip()}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def as_text(messages: Sequence[Message]) -> list[Message]:
    """Calls as part of what the assistant said, and their results as messages of the user, one for all of a turn."""
    told: list[Message] = []
    names: dict[Any, str] = {}
    for message in messages:
        if message["role"] in ("tool", "function"):
            name = message.get("name") or names.get(message.get("tool_call_id"))
            result = f"Result of {name}:\n{message['content']}" if name else f"Result:\n{message['content']}"
            if told and told[-1].get("results"):
                told[-1]["content"] += f"\n\n{result}"
            else:
                told.append({"role": "user", "content": result, "results": True})
        elif calls := message.get("tool_calls"):
            names.update((call.get("id"), call["function"]["name"]) for call in calls)
            listed = [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]
            content = f"{message['content']}\n{as_json(listed)}".strip()
            told.append({key: value for key, value in message.items() if key != "tool_calls"} | {"content": content})
        else:
            told.append(message)
    return [{key: value for key, value in message.items() if key != "results"} for message in told]
