"""The wire form of OpenAI's responses, and how it reads as a chat request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import WithJsonSchema, model_validator

from octavo.server.body import checked
from octavo.server.errors import bad_request
from octavo.server.wire import MAX_MESSAGES, REFUSED_ELSEWHERE, ChatRequest, FieldError, RequestFields, empty, one_of

LOGPROBS = "message.output_text.logprobs"
# What may be asked to be included: nothing comes of the second, as there are no items of reasoning.
INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
KEPT_NOWHERE = "{} is not possible: responses are not kept on this server. Send the whole conversation as input."

Input = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}),
]


class ResponsesRequest(RequestFields):
    """POST /v1/responses."""

    refused: ClassVar[Mapping[str, Callable[[Any], bool]]] = REFUSED_ELSEWHERE | {
        "background": one_of(False),
        "tools": empty,
        "tool_choice": one_of("auto", "none"),
        "max_tool_calls": one_of(),
        "prompt": one_of(),
        "service_tier": one_of("auto", "default"),
        "stream_options": lambda value: value is None or value == {"include_obfuscation": False},
        "prompt_cache_options": one_of(),
        "prompt_cache_retention": one_of("in_memory"),
        "moderation": one_of(),
        "context_management": empty,
        "access_programs": one_of(),
        "image": one_of(),
    }
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
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
        if (self.text or {}).get("verbosity") not in (None, "medium"):
            raise FieldError("text", "text.verbosity is not supported; leave it out.")
        if (self.reasoning or {}).get("summary") not in (None, "auto"):
            raise FieldError("reasoning", "reasoning.summary is not supported; leave it out.")
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
        }
        if self.includes_logprobs:
            values |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.text_format != {"type": "text"}:
            values["response_format"] = response_format(self.text_format)
        return checked(ChatRequest, values)


def response_format(text_format: Any) -> Any:
    """Chat's form of text.format: the parts of a schema stand one level deeper there."""
    if isinstance(text_format, dict) and text_format.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {k: v for k, v in text_format.items() if k != "type"}}
    return text_format


def chat_messages(instructions: str | None, given: Any) -> Iterator[dict[str, Any]]:
    if instructions is not None:
        yield {"role": "system", "content": instructions}
    if isinstance(given, str):
        yield {"role": "user", "content": given}
        return
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MESSAGES:
        raise bad_request(f"input must be a text or a list of 1 to {MAX_MESSAGES} items.", "input")
    for position, item in enumerate(given):
        yield chat_message(item, f"input[{position}]")


def chat_message(item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise bad_request(f"{path} must be an object.", path)
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise bad_request(f"{path}.role must be user, assistant, system or developer.", f"{path}.role")
            return {"role": role, "content": content(item.get("content"), f"{path}.content")}
        case "function_call":
            name, arguments = item.get("name"), item.get("arguments")
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise bad_request(f"{path} must have a name and arguments, both strings.", path)
            function = {"name": name, "arguments": arguments}
            call = {"id": str(item.get("call_id")), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output = content(item.get("output"), f"{path}.output")
            return {"role": "tool", "tool_call_id": str(item.get("call_id")), "content": output}
        case "item_reference":
            raise bad_request(KEPT_NOWHERE.format(f"{path}.type 'item_reference'"), f"{path}.type")
        case kind:
            raise bad_request(f"{path}.type is {kind!r:.40}, which is not supported.", f"{path}.type")


def content(given: Any, path: str) -> str:
    """The text of a message: parts that are text, joined as chat joins them."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise bad_request(f"{path} must be a string or a list of parts.", path)
    texts = []
    for i, part in enumerate(given):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text", "text", "refusal") or not isinstance(text, str):
            raise bad_request(f"{path}[{i}] must be a part of type input_text or output_text.", f"{path}[{i}]")
        texts.append(text)
    return "\n".join(texts)
