"""What /openapi.json promises of replies, whole and streamed: every key that they may have, and no other."""

from __future__ import annotations

from typing import Any

from octavo.server.wire_schema import NULL, OBJECT, TEXT, Schema, kind_of, list_of, object_of, or_null

COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
ID: Schema = {"type": "string", "minLength": 1}
TIME: Schema = {"type": "integer"}
SEED: Schema = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
IDS = list_of(COUNT)


def closed(required: dict[str, Schema], **others: Schema) -> Schema:
    """An object that has these keys, may have the others, and has no more."""
    return {**object_of(required, **others), "additionalProperties": False}


def enum(*values: Any) -> Schema:
    return {"enum": list(values)}


# Errors.
ERROR = closed(
    {"error": closed({"message": ID, "type": ID, "param": or_null(TEXT), "code": {"type": "integer", "minimum": 400}})}
)
ANTHROPIC_ERROR = closed({"type": enum("error"), "error": closed({"type": ID, "message": ID})})

# Completions and chat.
USAGE = closed(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": closed({"cached_tokens": COUNT}),
    }
)
PROMPT_LOGPROBS = list_of(
    or_null(
        {
            "type": "object",
            "additionalProperties": closed(
                {"logprob": NUMBER, "rank": or_null({"type": "integer", "minimum": 1}), "decoded_token": TEXT}
            ),
        }
    )
)
COMPLETION_LOGPROBS = or_null(
    closed(
        {
            "tokens": list_of(TEXT),
            "token_logprobs": list_of(or_null(NUMBER)),
            "top_logprobs": list_of(or_null({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": IDS,
        }
    )
)
_TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": list_of({"type": "integer", "minimum": 0, "maximum": 255})}
TOKEN_LOGPROB = closed({**_TOKEN, "top_logprobs": list_of(closed(_TOKEN))})
CHAT_LOGPROBS = or_null(closed({"content": list_of(TOKEN_LOGPROB), "refusal": NULL}))
STOP_REASON: Schema = {"type": ["string", "integer", "null"]}
CALL = closed({"id": ID, "type": enum("function"), "function": closed({"name": ID, "arguments": TEXT})})
CALL_DELTA: Schema = {
    "anyOf": [
        closed({"index": COUNT, **CALL["properties"]}),
        closed({"index": COUNT, "function": closed({"arguments": TEXT})}),
    ]
}
_REASONING = {"reasoning": TEXT, "reasoning_content": TEXT}
MESSAGE = closed(
    {"role": enum("assistant"), "content": or_null(TEXT), "refusal": NULL}, **_REASONING, tool_calls=list_of(CALL, 1)
)
DELTA = closed({}, role=enum("assistant"), content=TEXT, **_REASONING, tool_calls=list_of(CALL_DELTA, 1))
_ENDED = {"stop_reason": STOP_REASON}
_ASKED = {"seed": SEED, "token_ids": IDS}
_FRAME = {"id": ID, "created": TIME, "model": ID}


def _reply(kind: str, ends: list[str], said: dict[str, Schema], logprobs: Schema, **others: Schema) -> Schema:
    """A reply of one kind, whose choices end so, have what is `said`, and may have `others`."""
    choice = closed(
        {"index": COUNT, **said, "logprobs": logprobs, "finish_reason": enum(*ends), **_ENDED}, **_ASKED, **others
    )
    told = {"object": enum(kind), "choices": list_of(choice, 1), "usage": USAGE, "system_fingerprint": ID}
    return closed(_FRAME | told)


def _chunk(kind: str, ends: list[str], said: dict[str, Schema], logprobs: Schema, **others: Schema) -> Schema:
    """An event of such a reply: all but its last has choices that go on."""
    choice = closed(
        {"index": COUNT, **said, "logprobs": logprobs, "finish_reason": enum(*ends, None)}, **_ENDED, **_ASKED, **others
    )
    told = {"object": enum(kind), "choices": list_of(choice)}
    return closed(_FRAME | told, usage=USAGE, system_fingerprint=ID)


def _with(schema: Schema, **others: Schema) -> Schema:
    """The same object, which may have these keys too."""
    return {**schema, "properties": schema["properties"] | others}


_PROMPT = {"prompt_token_ids": IDS, "prompt_logprobs": PROMPT_LOGPROBS}
_ENDS = ["stop", "length"]
_CHAT_ENDS = [*_ENDS, "tool_calls"]
COMPLETION = _reply("text_completion", _ENDS, {"text": TEXT}, COMPLETION_LOGPROBS, **_PROMPT)
COMPLETION_CHUNK = _chunk("text_completion", _ENDS, {"text": TEXT}, COMPLETION_LOGPROBS, prompt_token_ids=IDS)
CHAT = _with(_reply("chat.completion", _CHAT_ENDS, {"message": MESSAGE}, CHAT_LOGPROBS), **_PROMPT)
CHAT_CHUNK = _with(_chunk("chat.completion.chunk", _CHAT_ENDS, {"delta": DELTA}, CHAT_LOGPROBS), prompt_token_ids=IDS)

# What is neither of these, nor of responses or messages.
EMBEDDINGS = closed(
    {
        **_FRAME,
        "object": enum("list"),
        "data": list_of(
            closed(
                {
                    "index": COUNT,
                    "object": enum("embedding"),
                    "embedding": {"anyOf": [list_of(NUMBER, 1), {**ID, "contentEncoding": "base64"}]},
                }
            ),
            1,
        ),
        "usage": closed({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
MODEL = closed(
    {
        "id": ID,
        "object": enum("model"),
        "created": TIME,
        "owned_by": ID,
        "root": TEXT,
        "parent": NULL,
        "max_model_len": {"type": "integer", "minimum": 1},
        "permission": list_of(OBJECT, 0, 0),
    }
)
MODELS = closed({"object": enum("list"), "data": list_of(MODEL, 1)})
TOKENS = closed(
    {
        "count": COUNT,
        "max_model_len": {"type": "integer", "minimum": 1},
        "tokens": IDS,
        "token_strs": or_null(list_of(TEXT)),
    }
)
DETOKENIZED = closed({"prompt": TEXT})
VERSION = closed({"version": ID})
LOAD = closed({"server_load": COUNT})
INPUT_TOKENS = closed({"input_tokens": COUNT})

# Responses.
_LOGPROBS = list_of(TOKEN_LOGPROB)
_OUTPUT_TEXT = closed(
    {"type": enum("output_text"), "text": TEXT, "annotations": list_of(OBJECT, 0, 0), "logprobs": _LOGPROBS}
)
_REASONING_TEXT = closed({"type": enum("reasoning_text"), "text": TEXT})
_STATUS = enum("in_progress", "completed", "incomplete")
_ITEM = {"id": ID, "status": _STATUS}
ITEM: Schema = {
    "anyOf": [
        closed(
            {
                **_ITEM,
                "type": enum("message"),
                "role": enum("assistant"),
                "content": list_of(_OUTPUT_TEXT, 0, 1),
            }
        ),
        closed(
            {
                **_ITEM,
                "type": enum("reasoning"),
                "summary": list_of(OBJECT, 0, 0),
                "content": list_of(_REASONING_TEXT, 0, 1),
            }
        ),
        closed({**_ITEM, "type": enum("function_call"), "call_id": ID, "name": ID, "arguments": TEXT}),
    ]
}
RESPONSE = closed(
    {
        "id": ID,
        "object": enum("response"),
        "created_at": TIME,
        "completed_at": or_null(TIME),
        "status": enum("in_progress", "completed", "incomplete", "failed"),
        "background": enum(False),
        "error": or_null(closed({"code": ID, "message": ID})),
        "incomplete_details": or_null(closed({"reason": enum("max_output_tokens")})),
        "instructions": or_null(TEXT),
        "max_output_tokens": or_null(COUNT),
        "metadata": {"type": "object", "additionalProperties": TEXT},
        "model": ID,
        "output": list_of(ITEM),
        "parallel_tool_calls": BOOLEAN,
        "previous_response_id": NULL,
        "prompt_cache_key": or_null(TEXT),
        "reasoning": closed({"effort": or_null(TEXT), "summary": NULL}),
        "safety_identifier": or_null(TEXT),
        "seed": or_null(SEED),
        "store": enum(False),
        "temperature": NUMBER,
        "text": closed({"format": OBJECT}),
        "tool_choice": {"anyOf": [TEXT, OBJECT]},
        "tools": list_of(kind_of("function", name=ID)),
        "top_logprobs": or_null(COUNT),
        "top_p": NUMBER,
        "truncation": enum("disabled"),
        "usage": or_null(
            closed(
                {
                    "input_tokens": COUNT,
                    "input_tokens_details": closed({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
                    "output_tokens": COUNT,
                    "output_tokens_details": closed({"reasoning_tokens": COUNT}),
                    "total_tokens": COUNT,
                }
            )
        ),
        "user": or_null(TEXT),
    }
)


def _told(kind: str, **fields: Schema) -> Schema:
    return closed({"type": enum(f"response.{kind}"), "sequence_number": COUNT, **fields})


_PLACE = {"item_id": ID, "output_index": COUNT}
_CONTENT = {**_PLACE, "content_index": COUNT}
_PART: Schema = {"anyOf": [_OUTPUT_TEXT, _REASONING_TEXT]}
RESPONSE_EVENTS = [
    *(
        _told(kind, response={"$ref": "#/components/schemas/Response"})
        for kind in ("created", "in_progress", "completed", "incomplete", "failed")
    ),
    *(_told(f"output_item.{what}", output_index=COUNT, item=ITEM) for what in ("added", "done")),
    *(_told(f"content_part.{what}", **_CONTENT, part=_PART) for what in ("added", "done")),
    _told("output_text.delta", **_CONTENT, delta=TEXT, logprobs=_LOGPROBS),
    _told("output_text.done", **_CONTENT, text=TEXT, logprobs=_LOGPROBS),
    _told("reasoning_text.delta", **_CONTENT, delta=TEXT),
    _told("reasoning_text.done", **_CONTENT, text=TEXT),
    _told("function_call_arguments.delta", **_PLACE, delta=TEXT),
    _told("function_call_arguments.done", **_PLACE, name=ID, arguments=TEXT),
]

# Anthropic's messages.
BLOCK: Schema = {
    "anyOf": [
        closed({"type": enum("text"), "text": TEXT}),
        closed({"type": enum("thinking"), "thinking": TEXT, "signature": TEXT}),
        closed({"type": enum("tool_use"), "id": ID, "name": ID, "input": OBJECT}),
    ]
}
MESSAGE_USAGE = closed(
    {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
        "output_tokens": COUNT,
    }
)
_STOPPED = {
    "stop_reason": enum("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded", None),
    "stop_sequence": or_null(TEXT),
}
ANTHROPIC_MESSAGE = closed(
    {
        "id": ID,
        "type": enum("message"),
        "role": enum("assistant"),
        "model": ID,
        "content": list_of(BLOCK),
        **_STOPPED,
        "seed": or_null(SEED),
        "usage": MESSAGE_USAGE,
    }
)
_INDEX = {"index": COUNT}
MESSAGE_EVENTS = [
    closed({"type": enum("message_start"), "message": {"$ref": "#/components/schemas/AnthropicMessage"}}),
    closed({"type": enum("ping")}),
    closed({"type": enum("content_block_start"), **_INDEX, "content_block": BLOCK}),
    *(
        closed({"type": enum("content_block_delta"), **_INDEX, "delta": closed({"type": enum(kind), name: TEXT})})
        for kind, name in (("text_delta", "text"), ("thinking_delta", "thinking"), ("input_json_delta", "partial_json"))
    ),
    closed({"type": enum("content_block_stop"), **_INDEX}),
    closed({"type": enum("message_delta"), "delta": closed(_STOPPED), "usage": MESSAGE_USAGE}),
    closed({"type": enum("message_stop")}),
]

TOKENIZER_INFO = object_of(  # and the special tokens that the model has, by their names
    {"tokenizer_class": TEXT, "model_max_length": {"type": "integer"}, "chat_template": or_null(TEXT)}
)

# The schemas that the document names; others stand where they are used.
NAMED: dict[str, Schema] = {
    "Error": ERROR,
    "AnthropicError": ANTHROPIC_ERROR,
    "Completion": COMPLETION,
    "CompletionChunk": COMPLETION_CHUNK,
    "ChatCompletion": CHAT,
    "ChatCompletionChunk": CHAT_CHUNK,
    "Response": RESPONSE,
    "ResponseEvent": {"anyOf": RESPONSE_EVENTS},
    "AnthropicMessage": ANTHROPIC_MESSAGE,
    "AnthropicEvent": {"anyOf": [*MESSAGE_EVENTS, {"$ref": "#/components/schemas/AnthropicError"}]},
    "InputTokens": INPUT_TOKENS,
    "Embeddings": EMBEDDINGS,
    "Model": MODEL,
    "Models": MODELS,
    "Tokens": TOKENS,
    "Text": DETOKENIZED,
    "TokenizerInfo": TOKENIZER_INFO,
    "Version": VERSION,
    "Load": LOAD,
}
