"""Chat templates, rendered in a bounded sandbox, with the user's copies of control tokens made unfindable."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jinja2

from octavo.errors import RequestError
from octavo.text.messages import Message, check_text, json_arguments, map_strings, normalise
from octavo.text.sandbox import compile_template, run_template
from octavo.text.tool_calls.described import as_text, takes_tools, with_description

# Unicode noncharacters: no text means anything by them, so they may stand for other characters.
STAND_INS = [chr(c) for c in range(0xFDD2, 0xFDF0)] + [chr(0x10000 * p + 0xFFFE) for p in range(1, 15)]
# What octavo itself gives to a template, or once gave to functions around it: not for clients to set.
INTERNAL_NAMES = frozenset(
    """messages tools add_generation_prompt continue_final_message tokenize chat_template conversation return_dict
    return_tensors padding truncation max_length raise_exception strftime_now range""".split()  # noqa: SIM905
)

Spans = Callable[[str], list[int]]
CallsShape = Callable[[Message], Message]


def control_spans(control_texts: Iterable[str]) -> Spans:
    """A function that lists which characters of a text must be hidden so that no control token can be found in it.

    They are the first character of each control token in the text, and, since a template may put texts side by side,
    the first of an unfinished one at its end and the last of one that would end at its beginning.
    """
    texts = sorted(control_texts)
    known = set(texts)
    lengths = sorted({len(t) for t in texts}, reverse=True)
    mirrored = sorted(t[::-1] for t in texts)
    first = re.compile("[" + "".join(re.escape(c) for c in sorted({t[0] for t in texts})) + "]") if texts else None

    def spans(text: str) -> list[int]:
        if first is None:
            return []
        found = [
            m.start() for m in first.finditer(text) if any(text[m.start() : m.start() + n] in known for n in lengths)
        ]
        core = text.strip()
        begin = len(text) - len(text.lstrip())
        longest = min(lengths[0] - 1, len(core))
        found += [begin + len(core) - n for n in range(1, longest + 1) if _is_beginning(core[-n:], texts)]
        found += [begin + n - 1 for n in range(1, longest + 1) if _is_beginning(core[n - 1 :: -1], mirrored)]
        return found

    return spans


def _is_beginning(text: str, ordered: Sequence[str]) -> bool:
    at = bisect_left(ordered, text)
    return at < len(ordered) and ordered[at].startswith(text)


class ChatTemplate:
    """A compiled template. Rendering is a pure function of its arguments (and of the date, if the template asks)."""

    def __init__(self, source: str) -> None:
        """RequestError if `source` is no valid template."""
        self.source = source
        try:
            self._code = compile_template(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"the chat template is broken: {error}", "chat_template") from error
        self._wants_parts: bool | None = None
        self._calls_shape: CallsShape | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        spans: Spans | None = None,
    ) -> tuple[str, dict[str, str]]:
        """The text of a conversation, and the stand-ins in it: {character in the text: character that it is}.

        Every string of the request (messages but for the role, tools, variables) goes in with the characters
        that `spans` lists replaced, one by one, by Unicode noncharacters that the request does not hold. Lengths,
        spaces and all else stay, so that trimming, splitting and tests in the template work as ever; only a test for
        a control token's text in a message finds nothing. With `continue_final_message` the text ends exactly with
        the last message's content: a mark is put behind it, and the text is cut at the mark.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message cannot both be true", "continue_final_message"
            )
        chat, tools = self._with_tools(normalise(messages), tools)
        request = _Request(chat, tools, variables or {})
        marks = request.unused_characters()
        mark = marks.pop()
        hidden = request.hide(spans, marks) if spans is not None else {}
        chat = self._roles(request.messages)
        if continue_final_message:
            if chat[-1]["role"] != "assistant":
                raise RequestError("continue_final_message needs a last message of role assistant", "messages")
            chat[-1]["content"] += mark
        if self._takes_parts():
            chat = [m | {"content": [{"type": "text", "text": m["content"] or ""}]} for m in chat]
        text = self._run(
            {
                **(special_tokens or {}),
                **request.variables,
                "messages": chat,
                "tools": request.tools or None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        if continue_final_message:
            end = text.rfind(mark)
            if end < 0:
                raise RequestError(
                    "the chat template does not write the last message's content, so it cannot be continued"
                )
            text = text[:end]
        return text, hidden

    def _roles(self, messages: list[Message]) -> list[Message]:
        """`developer` is `system` to a template that does not know it."""
        if "developer" in self.source:
            return messages
        return [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]

    def _with_tools(
        self, chat: list[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
        """Tools, calls and results in a form that the template has words for."""
        if "tool_calls" not in self.source:
            chat = as_text(chat)
        elif any("tool_calls" in message for message in chat):
            shape = self._shape_of_calls()
            chat = [shape(message) if "tool_calls" in message else message for message in chat]
        if tools and not takes_tools(self.source):
            return with_description(chat, tools), None
        return chat, tools

    def _shape_of_calls(self) -> CallsShape:
        """How the template wants messages with calls (found by trying, once): arguments as objects or as their JSON
        text, content that is not there as "" or as none. Objects and "" where nothing shows them."""
        if self._calls_shape is None:
            shapes: list[CallsShape] = [
                lambda message: message,
                lambda message: message | {"content": message["content"] or None},
                json_arguments,
                lambda message: json_arguments(message) | {"content": message["content"] or None},
            ]
            self._calls_shape = next((shape for shape in shapes if self._writes_calls(shape)), shapes[0])
        return self._calls_shape

    def _writes_calls(self, shape: CallsShape) -> bool:
        function = {"name": "octavo", "arguments": {"probe": "octavo"}}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        chat = [
            {"role": "user", "content": "x"},
            shape({"role": "assistant", "content": "", "tool_calls": [call]}),
            {"role": "tool", "content": "x", "tool_call_id": "abcdefghi", "name": "octavo"},
        ]
        try:
            return self._run({"messages": chat}).count("octavo") > 1
        except RequestError:
            return False

    def _takes_parts(self) -> bool:
        """Whether the template writes content only if it is a list of parts (found by trying, once)."""
        if self._wants_parts is None:
            probe = "octavo"
            self._wants_parts = not self._writes(probe, probe) and self._writes(
                [{"type": "text", "text": probe}], probe
            )
        return self._wants_parts

    def _writes(self, content: Any, probe: str) -> bool:
        try:
            return probe in self._run({"messages": [{"role": "user", "content": content}]})
        except RequestError:
            return False

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            return run_template(self._code, variables)
        except jinja2.TemplateError as error:
            raise RequestError(f"chat template: {error.message or type(error).__name__}", "messages") from error


class _Request:
    """The strings that a client has sent, which can be listed and replaced."""

    def __init__(self, messages: list[Message], tools: Any, variables: Mapping[str, Any]) -> None:
        self.messages = messages
        self.tools = list(tools) if tools else []
        self.variables = {k: v for k, v in variables.items() if k not in INTERNAL_NAMES}
        self._strings: list[str] = []
        self._change(self._collect)

    def _collect(self, text: str, path: str) -> str:
        check_text(text, path)
        self._strings.append(text)
        return text

    def _change(self, change: Callable[[str, str], str]) -> None:
        # Roles are from a fixed list, and templates build control tokens from them.
        self.messages = [
            map_strings({k: v for k, v in m.items() if k != "role"}, change, f"messages[{i}]") | {"role": m["role"]}
            for i, m in enumerate(self.messages)
        ]
        self.tools = map_strings(self.tools, change, "tools")
        self.variables = {k: map_strings(v, change, f"chat_template_kwargs.{k}") for k, v in self.variables.items()}

    def unused_characters(self) -> list[str]:
        """Stand-ins that occur nowhere in the request."""
        unused = [c for c in STAND_INS if not any(c in s for s in self._strings)]
        if not unused:
            raise RequestError("the messages hold too many kinds of Unicode noncharacters", "messages")
        return unused

    def hide(self, spans: Spans, stand_ins: list[str]) -> dict[str, str]:
        """Replaces what `spans` lists; {stand-in: original}."""
        stand_in_of: dict[str, str] = {}

        def change(text: str, path: str) -> str:
            found = spans(text)
            if not found:
                return text
            chars = list(text)
            for i in set(found):
                if chars[i] not in stand_in_of:
                    if len(stand_in_of) == len(stand_ins):
                        raise RequestError(f"{path} holds too many kinds of control tokens", path)
                    stand_in_of[chars[i]] = stand_ins[len(stand_in_of)]
                chars[i] = stand_in_of[chars[i]]
            return "".join(chars)

        self._change(change)
        return {stand_in: char for char, stand_in in stand_in_of.items()}
