"""The wire forms of requests: OpenAI's fields and vLLM's extra ones; what is known but not built is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema, model_validator

MAX_MESSAGES = 16384

TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}
TEXTS = {"type": "array", "items": {"type": "string"}}
CONTENT = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}},
        },
        {"type": "null"},
    ]
}
ROLES = ["developer", "system", "user", "assistant", "tool", "function"]
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {"role": {"enum": ROLES}, "content": CONTENT, "name": {"type": "string"}},
    },
}
# Lists whose entries `SamplingParams` checks, up to the first fault: a typed field would collect a million of them.
TokenIds = Annotated[Any, WithJsonSchema({**TOKEN_IDS, "nullable": True})]
Texts = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, TEXTS, {"type": "null"}]})]
EarlyStopping = Annotated[Any, WithJsonSchema({"enum": [True, False, "never", None]})]
Biases = Annotated[
    Any, WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}, "nullable": True})
]
# `server/structured.py` checks these.
Constraint = Annotated[Any, WithJsonSchema({"type": "object", "nullable": True})]
Schema = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]})]
NAMED_FUNCTION = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
ToolChoice = Annotated[
    Any, WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, NAMED_FUNCTION, {"type": "null"}]})
]
Prompt = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, TEXTS, TOKEN_IDS, {"type": "array", "items": TOKEN_IDS}]}),
]


def _few_enough(value: Any) -> Any:
    """Refuses null too: a conversation that is given must be one."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise ValueError(f"messages must be a list of 1 to {MAX_MESSAGES} messages.")
    return value


# The chat template's own check names messages[i].field, for every way in; here only the count is bounded.
Messages = Annotated[Any, BeforeValidator(_few_enough), WithJsonSchema(MESSAGES)]


def empty(value: Any) -> bool:
    return value in (None, False, [], {}, "")


def one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value is None or (type(value) in {type(v) for v in values} and value in values)


# Known fields that ask for something octavo does not do (yet), and the values of them that ask for nothing.
REFUSED: dict[str, Callable[[Any], bool]] = {
    "guided_decoding_backend": one_of("auto", "guidance"),
    "suffix": empty,
    "functions": empty,
    "function_call": one_of("none"),
    "audio": one_of(),
    "modalities": one_of(["text"]),
    "web_search_options": one_of(),
    "logprob_token_ids": empty,
    "thinking_token_budget": one_of(),
    "logits_processors": empty,
    "vllm_xargs": empty,
    "kv_transfer_params": empty,
    "prompt_embeds": one_of(),
    "mm_processor_kwargs": empty,
    "media_io_kwargs": empty,
    "repetition_detection": one_of(),
    "stream_interval": one_of(1),
    "truncation_side": one_of("left"),
    "chat_template": one_of(),
    "lora_request": one_of(),
}

INSTEAD = {"functions": "tools", "function_call": "tool_choice"}  # the names that OpenAI replaced them by


# What completions and chat take beyond other routes, which answer with one sequence and its text.
REFUSED_ELSEWHERE: dict[str, Callable[[Any], bool]] = REFUSED | {
    "n": one_of(1),
    "best_of": one_of(1),
    "use_beam_search": one_of(False),
    "prompt_logprobs": one_of(),
    "return_token_ids": one_of(False),
    "return_tokens_as_token_ids": one_of(False),
    "echo": one_of(False),
    "length_penalty": one_of(1.0, 1),
    "early_stopping": one_of(False),
    "logprobs": one_of(False),
    "top_logprobs": one_of(0),
    "response_format": one_of({"type": "text"}),
    "structured_outputs": one_of(),
    "guided_json": one_of(),
    "guided_regex": one_of(),
    "guided_choice": one_of(),
    "guided_grammar": one_of(),
    "guided_json_object": one_of(False),
    "guided_whitespace_pattern": one_of(),
    "add_generation_prompt": one_of(True),
    "continue_final_message": one_of(False),
    "chat_template_kwargs": empty,
    "documents": empty,
    "reasoning_effort": one_of(),
    "include_reasoning": one_of(True),
    "parallel_tool_calls": one_of(True),
}


class WireModel(BaseModel):
    """Strict: no text for numbers, no true for 1. Unknown fields pass, and are logged once by the reader."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())
    _num_bytes: int = PrivateAttr(0)
    refused: ClassVar[Mapping[str, Callable[[Any], bool]]] = REFUSED

    @property
    def num_bytes(self) -> int:
        """The size of the body, as the reader set it."""
        return self._num_bytes

    @num_bytes.setter
    def num_bytes(self, value: int) -> None:
        self._num_bytes = value

    @model_validator(mode="after")
    def refuse_what_is_not_built(self) -> WireModel:
        for name, value in (self.model_extra or {}).items():
            asks_nothing = self.refused.get(name)
            if asks_nothing is not None and not asks_nothing(value):
                advice = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
                raise FieldError(name, f"{name} is not supported{' yet' * (name not in INSTEAD)}; {advice}.")
        return self


class FieldError(ValueError):
    """A fault that a whole-model check found, with the field it is to be reported under."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class StreamOptions(WireModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CallerFields(WireModel):
    """Who asks for which model, and how the request stands beside others: the same on every route that runs it."""

    model: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None
    request_id: str | None = None


class RequestFields(CallerFields):
    """What every generating route takes. None means "as the model's generation config or `SamplingParams` says"."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Biases = None
    seed: int | None = None
    stop_token_ids: TokenIds = None
    bad_words: Texts = None
    allowed_token_ids: TokenIds = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    stream: bool | None = None

    def shared(self) -> dict[str, Any]:
        """The fields above, as far as the client sent them: a route may ask another one in its own words."""
        return {name: getattr(self, name) for name in RequestFields.model_fields if name in self.model_fields_set}


class SamplingFields(RequestFields):
    """What completions and chat share beyond that."""

    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping = None
    stop: Texts = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    response_format: Constraint = None
    structured_outputs: Constraint = None
    guided_json: Schema = None
    guided_regex: str | None = None
    guided_choice: Texts = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None

    @model_validator(mode="after")
    def check_together(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options needs stream=true.")
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "prompt_logprobs cannot be streamed: leave out stream.")
        if self.stream and self.use_beam_search:
            raise FieldError("stream", "A beam search cannot be streamed: its best text is known at the end only.")
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if not self.use_beam_search and getattr(self, name) not in (None, neutral):
                raise FieldError(name, f"{name} needs use_beam_search=true.")
        if self.cache_salt == "":
            raise FieldError("cache_salt", "cache_salt must be a string that is not empty.")
        return self

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats and self.include_usage)


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    refused: ClassVar[Mapping[str, Callable[[Any], bool]]] = REFUSED | {
        "messages": one_of(),
        "tools": empty,
        "tool_choice": one_of("auto", "none"),
    }
    prompt: Prompt = None
    logprobs: int | None = None


ToolName = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.:/-]+$")]


class FunctionTool(WireModel):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    type: Literal["function"]
    function: FunctionTool


class ChatFields(WireModel):
    """What is rendered by the chat template, for chat and for tokenize."""

    messages: Messages
    tools: list[Tool] | None = Field(default=None, min_length=1, max_length=1024)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        kwargs = dict(self.chat_template_kwargs or {})
        if self.documents is not None:
            kwargs["documents"] = self.documents
        if self.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", self.reasoning_effort)
        return kwargs


class ChatRequest(ChatFields, SamplingFields):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    @model_validator(mode="after")
    def check_chat(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs=true.")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise FieldError("tool_choice", "tool_choice needs tools.")
        return self


class TokenizeRequest(WireModel):
    """POST /tokenize: a prompt, or messages that the chat template renders."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = None
    tools: list[Tool] | None = Field(default=None, min_length=1, max_length=1024)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "Give either prompt or messages.")
        return self

    def chat(self) -> ChatFields:
        names = set(ChatFields.model_fields)
        return ChatFields.model_validate({name: getattr(self, name) for name in names if name in self.model_fields_set})


class DetokenizeRequest(WireModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds
