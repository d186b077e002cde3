"""The wire forms of requests: OpenAI's fields and vLLM's extra ones; what is known but not built is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    WithJsonSchema,
    model_validator,
)

from octavo.server import wire_schema
from octavo.server.wire_schema import MAX_MESSAGES

# Known fields that ask for something octavo does not do, and the values of them, beside null, that ask for nothing.
Refused = Mapping[str, tuple[Any, ...]]

# Lists whose entries `SamplingParams` checks, up to the first fault: a typed field would collect a million of them.
Prompt = Annotated[Any, WithJsonSchema(wire_schema.PROMPT)]
Stop = Annotated[Any, WithJsonSchema(wire_schema.STOP)]
BadWords = Annotated[Any, WithJsonSchema(wire_schema.BAD_WORDS)]
StopTokenIds = Annotated[Any, WithJsonSchema(wire_schema.STOP_TOKEN_IDS)]
AllowedTokenIds = Annotated[Any, WithJsonSchema(wire_schema.ALLOWED_TOKEN_IDS)]
Biases = Annotated[Any, WithJsonSchema(wire_schema.LOGIT_BIAS)]
EarlyStopping = Annotated[Any, WithJsonSchema(wire_schema.EARLY_STOPPING)]
# `server/structured.py` checks these.
ResponseFormat = Annotated[Any, WithJsonSchema(wire_schema.RESPONSE_FORMAT)]
StructuredOutputs = Annotated[Any, WithJsonSchema(wire_schema.STRUCTURED_OUTPUTS)]
GuidedJson = Annotated[Any, WithJsonSchema(wire_schema.or_null(wire_schema.JSON_SCHEMA))]
GuidedChoice = Annotated[Any, WithJsonSchema(wire_schema.or_null(wire_schema.CHOICES))]
ToolChoice = Annotated[Any, WithJsonSchema(wire_schema.TOOL_CHOICE)]
Truncate = Annotated[int | None, WithJsonSchema(wire_schema.TRUNCATE)]


def _few_enough(value: Any) -> Any:
    """Refuses null too: a conversation that is given must be one."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise ValueError(f"messages must be a list of 1 to {MAX_MESSAGES} messages.")
    return value


# The chat template's own check names messages[i].field, for every way in; here only the count is bounded.
Messages = Annotated[Any, BeforeValidator(_few_enough), WithJsonSchema(wire_schema.MESSAGES)]


EMPTY: tuple[Any, ...] = (False, [], {}, "")

REFUSED: Refused = {
    "guided_decoding_backend": (
        "auto",
        "guidance",
    ),
    "suffix": EMPTY,
    "functions": EMPTY,
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
    "logprob_token_ids": EMPTY,
    "thinking_token_budget": (),
    "logits_processors": EMPTY,
    "vllm_xargs": EMPTY,
    "kv_transfer_params": EMPTY,
    "prompt_embeds": (),
    "mm_processor_kwargs": EMPTY,
    "media_io_kwargs": EMPTY,
    "repetition_detection": (),
    "stream_interval": (1,),
    "truncation_side": ("left",),
    "chat_template": (),
    "lora_request": (),
}

INSTEAD = {"functions": "tools", "function_call": "tool_choice"}  # the names that OpenAI replaced them by


# What completions and chat take beyond other routes, which answer with one sequence and its text.
REFUSED_ELSEWHERE: Refused = {
    **REFUSED,
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "echo": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json_object": (False,),
    "guided_whitespace_pattern": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": EMPTY,
    "documents": EMPTY,
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "parallel_tool_calls": (True,),
}


class WireModel(BaseModel):
    """Strict: no text for numbers, no true for 1. Unknown fields pass, and are logged once by the reader."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())
    _num_bytes: int = PrivateAttr(0)
    refused: ClassVar[Refused] = {}

    @property
    def num_bytes(self) -> int:
        """The size of the body, as the reader set it."""
        return self._num_bytes

    @num_bytes.setter
    def num_bytes(self, value: int) -> None:
        self._num_bytes = value

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        wire_schema.refine(handler.resolve_ref_schema(schema), cls.refused)
        return schema

    @model_validator(mode="after")
    def refuse_what_is_not_built(self) -> WireModel:
        for name, value in (self.model_extra or {}).items():
            if name in self.refused and value is not None and not is_among(value, self.refused[name]):
                advice = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
                raise FieldError(name, f"{name} is not supported{' yet' * (name not in INSTEAD)}; {advice}.")
        return self


def is_among(value: Any, values: tuple[Any, ...]) -> bool:
    """By JSON's notion of equality: true is not 1, but 1.0 is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return any(value == one and (type(value) is type(one) or (number and type(one) is not bool)) for one in values)


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

    refused: ClassVar[Refused] = REFUSED
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
    stop_token_ids: StopTokenIds = None
    bad_words: BadWords = None
    allowed_token_ids: AllowedTokenIds = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Truncate = None
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
    stop: Stop = None
    max_tokens: int | None = None
    prompt_logprobs: int | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs = None
    guided_json: GuidedJson = None
    guided_regex: str | None = None
    guided_choice: GuidedChoice = None
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

    refused: ClassVar[Refused] = {
        **REFUSED,
        "messages": (),
        "tools": EMPTY,
        "tool_choice": (
            "auto",
            "none",
        ),
    }
    prompt: Prompt
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

    refused: ClassVar[Refused] = REFUSED
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

    refused: ClassVar[Refused] = REFUSED
    model: str | None = None
    tokens: Annotated[Any, WithJsonSchema(wire_schema.list_of(wire_schema.TOKEN_ID))]
