"""Every field that OpenAI's and Anthropic's clients know is taken, or refused by its name; none is left unheard."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import ToolParam, message_count_tokens_params, message_create_params, output_config_param
from anthropic.types import tool_result_block_param as tool_results
from anthropic.types.beta import message_create_params as beta_message_create_params
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.types import completion_create_params, embedding_create_params, shared_params
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import FunctionToolParam, response_create_params
from server_world import World

from octavo.server import messages_wire, responses_wire, wire
from octavo.server.body import parse
from octavo.server.embeddings_wire import EmbeddingRequest
from octavo.server.errors import ApiError
from octavo.server.messages_wire import CountTokensRequest, MessagesRequest
from octavo.server.refused import is_among
from octavo.server.responses_wire import ResponsesRequest
from octavo.server.wire import ChatRequest, CompletionRequest, WireModel, wire_schema

HELLO = [{"role": "user", "content": "a"}]
# Route, the wire model of its body, the types of the official clients, and the least that a body needs.
ROUTES: list[tuple[str, type[WireModel], list[Any], dict[str, Any]]] = [
    (
        "/v1/completions",
        CompletionRequest,
        [
            completion_create_params.CompletionCreateParamsNonStreaming,
            completion_create_params.CompletionCreateParamsStreaming,
        ],
        {"prompt": "a"},
    ),
    (
        "/v1/chat/completions",
        ChatRequest,
        [chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming],
        {"messages": HELLO},
    ),
    (
        "/v1/responses",
        ResponsesRequest,
        [response_create_params.ResponseCreateParamsNonStreaming, response_create_params.ResponseCreateParamsStreaming],
        {"input": "a"},
    ),
    ("/v1/embeddings", EmbeddingRequest, [embedding_create_params.EmbeddingCreateParams], {"input": "a"}),
    (
        "/v1/messages",
        MessagesRequest,
        [
            message_create_params.MessageCreateParamsNonStreaming,
            message_create_params.MessageCreateParamsStreaming,
            beta_message_create_params.MessageCreateParamsNonStreaming,
        ],
        {"messages": HELLO, "max_tokens": 1},
    ),
    (
        "/v1/messages/count_tokens",
        CountTokensRequest,
        [message_count_tokens_params.MessageCountTokensParams],
        {"messages": HELLO},
    ),
]
# What vLLM takes beyond them, of which each generating route has to know what it does.
VLLM_FIELDS = """
use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos
min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
logprob_token_ids allowed_token_ids bad_words thinking_token_budget include_reasoning echo add_generation_prompt
continue_final_message add_special_tokens documents chat_template chat_template_kwargs media_io_kwargs
mm_processor_kwargs structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
return_prompt_text cache_salt kv_transfer_params vllm_xargs repetition_detection stream_interval prompt_embeds
""".split()  # noqa: SIM905
EMBEDDING_FIELDS = """
messages encoding_format dimensions user truncate_prompt_tokens truncation_side use_activation embed_dtype endianness
priority cache_salt add_special_tokens add_generation_prompt continue_final_message chat_template chat_template_kwargs
""".split()  # noqa: SIM905
# Fields of the clients' types that are no fields of a body.
NOT_IN_BODIES = {"betas": "a header"}
# Refused by the model's own check, in words of its own.
BY_CHECK = {EmbeddingRequest: {"messages"}}

# Values that Python and JSON do not compare alike, and others that hold them.
LIKE = st.recursive(
    st.sampled_from([None, False, True, 0, 1, 0.0, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)

NESTED: list[tuple[type[WireModel], Any]] = [
    (wire.StreamOptions, ChatCompletionStreamOptionsParam),
    (wire.Tool, ChatCompletionFunctionToolParam),
    (wire.FunctionTool, shared_params.FunctionDefinition),
    (responses_wire.ResponsesTool, FunctionToolParam),
    (messages_wire.MessagesTool, ToolParam),
    (messages_wire.OutputConfig, output_config_param.OutputConfigParam),
]


def names_of(kind: Any) -> set[str]:
    return set(kind.__required_keys__ | kind.__optional_keys__)


@pytest.mark.parametrize(("path", "model", "kinds", "least"), ROUTES, ids=[route[0] for route in ROUTES])
def test_every_field_of_the_official_clients_is_known(
    path: str, model: type[WireModel], kinds: list[Any], least: dict[str, Any]
) -> None:
    published = set().union(*(names_of(kind) for kind in kinds))
    assert len(published) > 4 and least.keys() <= published and "no_such_field" not in published
    extra = EMBEDDING_FIELDS if model is EmbeddingRequest else VLLM_FIELDS
    known = model.model_fields.keys() | model.refused.keys() | NOT_IN_BODIES.keys() | BY_CHECK.get(model, set())
    assert not (published | set(extra)) - known


@pytest.mark.parametrize(("model", "kind"), NESTED, ids=[model.__name__ for model, _ in NESTED])
def test_so_is_every_field_of_what_they_nest(model: type[WireModel], kind: Any) -> None:
    assert not names_of(kind) - (model.model_fields.keys() | model.refused.keys())


def test_so_is_every_field_of_a_tool_result() -> None:
    # What can be found again is cached without being asked; which set a tool came from, a template has no word for.
    unheard = {"cache_control", "toolset_name"}
    assert names_of(tool_results.ToolResultBlockParam) <= wire_schema.TOOL_RESULT["properties"].keys() | unheard


@pytest.mark.parametrize(("path", "model", "kinds", "least"), ROUTES, ids=[route[0] for route in ROUTES])
def test_what_is_refused_is_refused_by_its_name(
    path: str, model: type[WireModel], kinds: list[Any], least: dict[str, Any]
) -> None:
    assert model.refused
    for name, values in model.refused.items():
        if name in model.model_fields:
            continue  # this route takes what others refuse
        for nothing in (None, *values):
            parse(json.dumps(least | {name: nothing}).encode(), model)
        for something in ({"x": 1}, "x", 17, [1]):
            with pytest.raises(ApiError) as refusal:
                parse(json.dumps(least | {name: something}).encode(), model)
            error = refusal.value
            assert (error.status, error.param) == (400, name) and name in error.message, (name, something)


@pytest.mark.parametrize(("path", "model", "kinds", "least"), ROUTES, ids=[route[0] for route in ROUTES])
def test_a_route_refuses_with_the_name_of_the_field(
    world: World, path: str, model: type[WireModel], kinds: list[Any], least: dict[str, Any]
) -> None:
    status, reply = world.raw(path, **least, mm_processor_kwargs={"x": 1})
    assert status == 400 and "mm_processor_kwargs" in reply["error"]["message"]


@settings(max_examples=300, deadline=None)
@given(LIKE, st.lists(LIKE, max_size=3))
def test_a_value_is_among_others_by_the_equality_of_json(value: Any, values: list[Any]) -> None:
    """The document publishes what asks for nothing as an enum."""
    assert is_among(value, tuple(values)) == Draft202012Validator({"enum": values}).is_valid(value)


def test_what_asks_for_nothing_is_told_from_what_python_takes_for_equal() -> None:
    def ask(model: type[WireModel], **fields: Any) -> None:
        parse(json.dumps(fields).encode(), model)

    for options in ({}, {"include_obfuscation": False}):
        ask(ResponsesRequest, input="a", stream_options=options)
    for field, wrong in (
        ("stream_options", {"include_obfuscation": 0}),
        ("stream_options", {"include_obfuscation": True}),
        ("functions", 0),
        ("response_format", {"type": ["text"]}),
    ):
        with pytest.raises(ApiError, match=field):
            ask(ResponsesRequest, input="a", **{field: wrong})
    ask(CompletionRequest, prompt="a", early_stopping=False, length_penalty=1)
    for field, wrong in (("early_stopping", 0), ("length_penalty", 2)):
        with pytest.raises(ApiError, match=field):
            ask(CompletionRequest, prompt="a", **{field: wrong})


def test_whole_numbers_may_be_written_with_a_point(world: World) -> None:
    whole = world.post("/v1/completions", prompt="a", max_tokens=3)
    assert world.post("/v1/completions", prompt="a", max_tokens=3.0)["choices"] == whole["choices"]
    for wrong in (2.5, "3", True):
        status, reply = world.raw("/v1/completions", prompt="a", max_tokens=wrong)
        assert status == 400 and reply["error"]["param"] == "max_tokens"
