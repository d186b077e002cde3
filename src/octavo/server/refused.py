"""Known fields that ask for something octavo does not do, and the values of them that ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names of fields, and their values, beside null, that ask for nothing.
Refused = Mapping[str, tuple[Any, ...]]

EMPTY: tuple[Any, ...] = (False, [], {}, "")

REFUSED: Refused = {
    "guided_decoding_backend": ("auto", "guidance"),
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
    "session_id": (),
    "return_prompt_text": (False,),
}

INSTEAD = {"functions": "tools", "function_call": "tool_choice"}  # the names that OpenAI replaced them by


# What asks for nothing where no chat template is rendered.
OF_TEMPLATES: Refused = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": EMPTY,
    "documents": EMPTY,
    "reasoning_effort": (),
    "include_reasoning": (True,),
}

# What completions and chat take beyond other routes, which answer with one sequence and its text.
REFUSED_ELSEWHERE: Refused = {
    **REFUSED,
    **OF_TEMPLATES,
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
    "parallel_tool_calls": (True,),
    "add_special_tokens": (False,),
}


def is_among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(_are_equal(value, one) for one in values)


def _are_equal(one: Any, other: Any) -> bool:
    """By JSON's notion of equality, within lists and objects too: true is not 1, but 1.0 is."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in other)
    return bool(one == other)
