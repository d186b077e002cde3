"""Messages of a chat, checked and brought to the one shape that templates get."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.errors import RequestError

logger = logging.getLogger(__name__)

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")
KNOWN_KEYS = frozenset(
    ("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", *REASONING_KEYS)
)
TEXT_KEYS = frozenset(("name", "tool_call_id", "refusal", *REASONING_KEYS))
TEXT_PARTS = ("text", "input_text", "output_text")
MAX_DEPTH = 64
MAX_MESSAGES = 16384

Message = dict[str, Any]


def check_text(text: str, param: str | None = None) -> None:
    """RequestError if `text` holds an unpaired surrogate, which no UTF-8 text can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"{param} holds" if param else "the text holds"
        code = ord(text[error.start])
        raise RequestError(f"{where} an unpaired surrogate, U+{code:04X}, at character {error.start}", param) from None


def map_strings(value: Any, change: Callable[[str, str], str], path: str, depth: int = 0) -> Any:
    """A copy of JSON-like `value` with every string, keys too, replaced by `change(string, path)`."""
    if isinstance(value, str):
        return change(value, path)
    if depth > MAX_DEPTH:
        raise RequestError(f"{path} is nested deeper than {MAX_DEPTH} levels", path)
    if isinstance(value, Mapping):
        return {
            map_strings(key, change, path): map_strings(item, change, f"{path}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_strings(item, change, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    return value


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Checked copies of `messages`: `content` is a string, arguments of tool calls are objects, unknown keys are gone.

    The text parts of a list are joined by a newline. RequestError names `messages[i].field`.
    """
    if not isinstance(messages, list | tuple) or not 0 < len(messages) <= MAX_MESSAGES:
        raise RequestError(f"messages must be a list of 1 to {MAX_MESSAGES} messages", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, path: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{path} must be an object, not {_kind(message)}", path)
    role = message.get("role")
    if role not in ROLES:
        problem = "is missing" if role is None else f"is {_short(role)}"
        raise RequestError(f"{path}.role {problem}; it must be one of {', '.join(ROLES)}", f"{path}.role")
    unknown = [str(key) for key in message if key not in KNOWN_KEYS]
    if unknown:
        logger.debug("ignored in %s: %s", path, ", ".join(unknown))
    # A null is as good as absent: templates test for a key by its name alone.
    checked: Message = {key: value for key, value in message.items() if key in KNOWN_KEYS and value is not None}
    for key in TEXT_KEYS & checked.keys():
        if not isinstance(checked[key], str):
            raise RequestError(f"{path}.{key} must be a string, not {_kind(checked[key])}", f"{path}.{key}")
    if not isinstance(call := checked.get("function_call", {}), Mapping):
        raise RequestError(f"{path}.function_call must be an object, not {_kind(call)}", f"{path}.function_call")
    checked["content"] = _content(message, role, path)
    for ours, theirs in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
        # Two names of one thing: clients send what they got, templates ask for theirs.
        if isinstance(checked.get(ours), str):
            checked.setdefault(theirs, checked[ours])
    if "tool_calls" in checked:
        checked["tool_calls"] = _tool_calls(checked["tool_calls"], f"{path}.tool_calls")
        if not checked["tool_calls"]:
            del checked["tool_calls"]
    return checked


def _content(message: Mapping[str, Any], role: str, path: str) -> str:
    content, path = message.get("content"), f"{path}.content"
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        return "\n".join(_part(part, f"{path}[{i}]") for i, part in enumerate(content))
    if content is not None:
        raise RequestError(f"{path} must be a string or a list of parts, not {_kind(content)}", path)
    if role == "assistant" and any(message.get(k) for k in ("tool_calls", "function_call", "refusal", *REASONING_KEYS)):
        return ""
    raise RequestError(f"{path} is missing; it must be a string or a list of parts", path)


def _part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestError(f"{path} must be an object with a type, not {_kind(part)}", path)
    kind = part.get("type")
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if kind not in TEXT_PARTS:
        raise RequestError(
            f"{path}.type is {_short(kind)}, but this model takes text only; parts must be of type text", f"{path}.type"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text must be a string, not {_kind(text)}", f"{path}.text")
    return text


def _tool_calls(calls: Any, path: str) -> list[Message]:
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{path} must be a list, not {_kind(calls)}", path)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        at = f"{path}[{i}].function"
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at} must be an object with a name", at)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            # On the wire arguments are JSON in a string; templates print the object themselves.
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError):
                raise RequestError(f"{at}.arguments must be a JSON object in a string", f"{at}.arguments") from None
        if not isinstance(arguments, Mapping | None):
            raise RequestError(f"{at}.arguments must be an object, not {_kind(arguments)}", f"{at}.arguments")
        function = map_strings({**function, "arguments": dict(arguments or {})}, lambda text, _: text, at)
        checked.append({**call, "function": function})
    return checked


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as JSON text, which the templates of some models write as it is."""
    calls = [
        {**call, "function": {**call["function"], "arguments": as_json(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return message | {"tool_calls": calls}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "a list" if isinstance(value, list | tuple) else "an object"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
