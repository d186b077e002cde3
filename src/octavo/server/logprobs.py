"""Log-probabilities as the two APIs show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.engine.outputs import Logprob
from octavo.text.tokenizer import Tokenizer

# JSON has no -inf; clients know this value as "impossible".
LOWEST = -9999.0


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST


def token_text(tokenizer: Tokenizer, token_id: int, as_id: bool) -> str:
    """A token's own text; bytes that are none by themselves are spelled out, so that tokens stay different."""
    if as_id:
        return f"token_id:{token_id}"
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def best(entry: Mapping[int, Logprob], count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely tokens of a position; the chosen one may be in `entry` without being among them."""
    ranked = [(token_id, one) for token_id, one in entry.items() if one.rank is not None and one.rank <= count]
    return sorted(ranked, key=lambda pair: (pair[1].rank, pair[0]))[:count]


def chat_logprobs(
    tokenizer: Tokenizer, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob]], count: int, as_ids: bool
) -> dict[str, Any]:
    """{"content": [...]} with the chosen token of each position and exactly `count` alternatives."""

    def shown(token_id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token_id)
        text = f"token_id:{token_id}" if as_ids else data.decode("utf-8", "replace")
        return {"token": text, "logprob": finite(logprob), "bytes": list(data)}

    content = []
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        top = [shown(other, one.logprob) for other, one in best(entry, count)]
        content.append({**shown(token_id, entry[token_id].logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Builds the four parallel lists of the completions API; keeps the text offset from one piece to the next."""

    def __init__(self, tokenizer: Tokenizer, count: int, as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self.count = count
        self.as_ids = as_ids
        self.offset = 0

    def piece(self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, Logprob] | None]) -> dict[str, Any]:
        """None stands for the first token of a prompt. top_logprobs has the chosen token too: k or k + 1 entries."""
        tokens: list[str] = []
        values: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            text = token_text(self.tokenizer, token_id, self.as_ids)
            tokens.append(text)
            offsets.append(self.offset)
            self.offset += len(text)
            if entry is None:
                values.append(None)
                top.append(None)
                continue
            values.append(finite(entry[token_id].logprob))
            shown = {
                token_text(self.tokenizer, other, self.as_ids): finite(one.logprob)
                for other, one in best(entry, self.count)
            }
            shown.setdefault(text, finite(entry[token_id].logprob))
            top.append(shown)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[Mapping[int, Logprob] | None]
) -> list[dict[str, Any] | None]:
    """vLLM's form: the first is null, then {token id: {logprob, rank, decoded_token}}."""
    return [
        None
        if entry is None
        else {
            str(token_id): {
                "logprob": finite(one.logprob),
                "rank": one.rank,
                "decoded_token": token_text(tokenizer, token_id, False),
            }
            for token_id, one in entry.items()
        }
        for entry in entries
    ]
