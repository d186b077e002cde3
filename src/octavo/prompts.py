"""The forms in which Python callers give prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from octavo.errors import RequestError
from octavo.text.tokenizer import Tokenizer

# A text, token ids, or {"prompt": text} or {"prompt_token_ids": ids}, which may have a "cache_salt".
Prompt = str | Sequence[int] | Mapping[str, Any]


def list_of_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A lone prompt (a text, a dict, ids) is a list of one. Raises RequestError for what is no prompt at all."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    try:
        entries: list[Any] = list(prompts)
    except TypeError:
        raise RequestError(
            f"A prompt must be a text, a list of token ids or a dict, got {prompts!r:.60}.", "prompt"
        ) from None
    # NumPy's integers are Integral too.
    return [entries] if entries and all(isinstance(entry, Integral) for entry in entries) else entries


def cache_salt_of(prompt: Prompt) -> str | None:
    """What keeps this prompt's share of the prefix cache apart; the admission gate checks it."""
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def tokenize_prompt(tokenizer: Tokenizer, prompt: Prompt) -> tuple[str | None, Sequence[int]]:
    """A prompt's text, where it has one, and its token ids, which the admission gate checks. Raises RequestError."""
    text: Any = None
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            text, prompt = prompt.get("prompt"), prompt["prompt_token_ids"]
        elif "prompt" in prompt:
            prompt = prompt["prompt"]
        else:
            raise RequestError("A prompt given as a dict needs 'prompt' or 'prompt_token_ids'.", "prompt")
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(prompt)
    if isinstance(prompt, Mapping) or not hasattr(prompt, "__iter__"):
        raise RequestError(f"A prompt must be a text, a list of token ids or a dict, got {prompt!r:.60}.", "prompt")
    return text, prompt
