"""The wire forms of requests: OpenAI's fields and vLLM's extra ones."""

from __future__ import annotations

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
from octavo.server.refused import EMPTY, INSTEAD, OF_TEMPLATES, REFUSED, Refused, is_among
from octavo.text.messages import MAX_MESSAGES


def _whole(value: Any) -> Any:
    """JSON has one kind of numbers, and some clients write whole ones as 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
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
Truncate = Annotated[Integer | None, WithJsonSchema(wire_schema.TRUNCATE)]


def _few_enough(value: Any) -> Any:
    """Refuses null too: a conversation that is given must be one."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise ValueError(f"messages must be a list of 1 to {MAX_MESSAGES} messages.")
    return value


# The chat template's own check names messages[i].field, for every way in; here only the count is bounded.
Messages = Annotated[Any, BeforeValidator(_few_enough), WithJsonSchema(wire_schema.MESSAGES)]


# Fields for which a grammar may have to be compiled, on any route.
CONSTRAINING = (
    *("response_format", "structured_outputs", "tools", "text", "output_config"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object"),
)


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

    @property
    def is_constrained(self) -> bool:
        """Whether a grammar may have to be compiled for what it asks."""
        return any(getattr(self, name, None) is not None for name in CONSTRAINING)

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


class FieldError(ValueError):
    """A fault that a whole-model check found, with the field it is to be reported under."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class StreamOptions(WireModel):
    refused: ClassVar[Refused] = {"include_obfuscation": (False,)}
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CallerFields(WireModel):
    """Who asks for which model, and how the request stands beside others: the same on every route that runs it."""

    refused: ClassVar[Refused] = REFUSED
    model: str | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    user: str | None = None
    request_id: str | None = None


class RequestFields(CallerFields):
    """What every generating route takes. None means "as the model's generation config or `SamplingParams` says"."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Biases = None
    seed: Integer | None = None
    stop_token_ids: StopTokenIds = None
    bad_words: BadWords = None
    allowed_token_ids: AllowedTokenIds = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Integer | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Annotated[bool | None, WithJsonSchema({"enum": [True, None]})] = None
    truncate_prompt_tokens: Truncate = None
    stream: bool | None = None

    def shared(self) -> dict[str, Any]:
        """The fields above, as far as the client sent them: a route may ask another one in its own words."""
        return {name: getattr(self, name) for name in RequestFields.model_fields if name in self.model_fields_set}


class SamplingFields(RequestFields):
    """What completions and chat share beyond that."""

    n: Integer | None = None
    best_of: Integer | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: EarlyStopping = None
    stop: Stop = None
    max_tokens: Integer | None = None
    prompt_logprobs: Integer | None = None
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
            if not self.use_beam_search and not is_among(getattr(self, name), (None, neutral)):
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
        **OF_TEMPLATES,
        "messages": (),
        "tools": EMPTY,
        "tool_choice": ("auto", "none"),
    }
    prompt: Prompt
    logprobs: Integer | None = None


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

    refused: ClassVar[Refused] = {
        **REFUSED,
        "store": (False,),
        "prediction": (),
        "verbosity": ("medium",),
        "moderation": (),
        "service_tier": ("auto", "default"),
        "prompt_cache_options": (),
        "prompt_cache_retention": ("in_memory",),
    }
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    max_completion_tokens: Integer | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    # Labels, of which nothing comes: prefixes are found by what they hold.
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @model_validator(mode="after")
    def check_chat(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs=true.")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise FieldError("tool_choice", "tool_choice needs tools.")
        return self


class TokenizeRequest(WireModel):
    """POST /tokenize: a prompt, or messages that the chat template renders."""

    model_config = ConfigDict(json_schema_extra=wire_schema.either("prompt", "messages"))
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
