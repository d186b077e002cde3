"""Why a body that keeps to its schema may be refused: what no schema can state."""

from __future__ import annotations

import re

REASONS = {
    "what fields ask of one another": [
        r"\w+ needs (\w+=true|include to hold .*|tools|guided_json or guided_json_object)[.:]",
        r"cannot be (combined|streamed|both true)|cannot both be true|not both|give one of them|constrain the output",
        r"continue_final_message needs a last message of role assistant",
        r"tool_choice (names|asks for a call)|include cannot hold .* where tools may be called",
        r"(min_tokens must not exceed max_tokens|best_of must be at least n)=",
        r"exceeds? the limit of \d+ sequences",
        r"A beam search (has a width of at least|of width|ends at up to)",
        r"is the name of an earlier tool",
        r"^No token may be sampled: |structured_outputs takes exactly one of .*; got \w+ and \w",
    ],
    "that a number is written as 1.0, which JSON Schema takes for an integer, in a list of token ids": [
        r"must be a token id, a whole number",
        r"^(stop_token_ids|allowed_token_ids) must be an integer, got \d+\.0\.",
    ],
    "what a text comes to in tokens": [
        r"This model's maximum context length is \d+ tokens",
        r"The KV cache holds \d+ tokens",
        r"The prompt has no tokens",
        r"holds token id \d+, but the vocabulary has \d+ tokens",
    ],
    "that a model has no vectors of prompts at all": [r"This model makes no vectors"],
    "what a chat template takes": [
        r"^chat template: ",
        r"^the chat template does not write the last message's content, so it cannot be continued",
        r"too many kinds of (Unicode noncharacters|control tokens)$",
        r"(?s)^(chat_template_kwargs\.|messages\[|tools\[).* is nested deeper than \d+ levels$",
    ],
    "languages of their own: JSON schemas, regular expressions, grammars": [
        r"\bstructured_outputs\.\w+ cannot be enforced: ",
        r"\bstructured_outputs took more than \d+ s to compile",
        r"\bstructured_outputs\.\w+ (is no JSON: |must be a JSON object|holds a NUL character|is nested more than)",
        r"(?s)\bstructured_outputs\.\w+ (asks for minProperties|excludes .* from numbers|has (an object with )?\d+ )",
        r"(?s)^tools\[\d+\]\.(function\.parameters|input_schema|parameters)\b.* (must|is) ",
    ],
    "JSON within a string": [r"arguments must be an? (JSON )?object"],
}


def reason_of(message: str) -> str | None:
    """Which of the reasons a message of a refusal gives."""
    return next((name for name, texts in REASONS.items() if any(re.search(text, message) for text in texts)), None)
