"""A model small enough to follow by hand: each token has one successor, which greedy decoding walks along.

Letters go round in a circle with some characters of several tokens among them; digits count up to 9, then comes EOS.
It implements the engine's Runner protocol in full, sampling included, so that everything above it is the real thing.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

import tokenizers

from octavo.engine.batch import Batch, Output, Pending, RangeOutput, ScheduledRange, TokenOutput
from octavo.engine.request import Sequence
from octavo.text.tokenizer import Tokenizer, tokenizer_from_folder

TEMPLATE = """{%- for message in messages -%}
{%- if message.content == 'forbidden' -%}{{ raise_exception('the template forbids this') }}{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

SPECIAL = ["<|eos|>", "<|im_start|>", "<|im_end|>"]
# Tokens of several bytes, as merges of byte-level BPE: halves of an emoji, a letter with an accent, a line separator.
MERGES = [b"\xf0\x9f", b"\x98\x80", b"\xc3\xa9", b"\x80\xa8"]
CYCLE: list[bytes] = [
    *(bytes([b]) for b in b'abcdefghijklmnopqrstuvwxyz ABCDEFG\n"'),
    b"\xc3\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xe2",
    b"\x80\xa8",
]


def byte_chars() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + k) for k, b in enumerate(others)}


def write_tokenizer(folder: Path, template: str | None = TEMPLATE, special: Iterable[str] = ()) -> Path:
    """A byte-level BPE tokenizer of about 260 tokens, and some more control tokens."""
    chars = byte_chars()
    vocab = {chars[b]: b for b in range(256)}
    for merged in MERGES:
        vocab["".join(chars[b] for b in merged)] = len(vocab)
    merges = [(chars[merged[0]], chars[merged[1]]) for merged in MERGES]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(text, special=True) for text in [*SPECIAL, *special]])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|eos|>"} | ({"chat_template": template} if template else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def small_tokenizer(folder: Path, template: str | None = TEMPLATE, special: Iterable[str] = ()) -> Tokenizer:
    return tokenizer_from_folder(write_tokenizer(folder, template, special))


class SuccessorModel:
    """Logits after a token: 0 for its successor, less the further a token is behind it. Nothing is learned."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocab_size = tokenizer.vocab_size
        (self.eos,) = tokenizer.eos_token_ids
        of_bytes = {tokenizer.token_bytes(i): i for i in range(self.vocab_size)}
        ids = [of_bytes[data] for data in CYCLE]
        self.successor = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
        digits = [of_bytes[bytes([b])] for b in b"0123456789"]
        self.successor |= dict(zip(digits, [*digits[1:], self.eos], strict=True))
        self.first = ids[0]

    def logits(self, token_id: int) -> list[float]:
        best = self.successor.get(token_id, self.first)
        return [-0.25 * ((other - best) % self.vocab_size) for other in range(self.vocab_size)]


class Done(Pending):
    def __init__(self, outputs: list[Output], ready: float) -> None:
        self._outputs = outputs
        self._ready = ready

    def outputs(self) -> list[Output]:
        time.sleep(max(0.0, self._ready - time.monotonic()))
        return self._outputs


class SuccessorRunner:
    """A Runner over the model above. A step takes `step_seconds`; one that computes the token id `poison` fails."""

    def __init__(self, model: SuccessorModel, step_seconds: float = 0.0, poison: int | None = None) -> None:
        self.model = model
        self.step_seconds = step_seconds
        self.poison = poison
        self.steps = 0
        self._last: dict[tuple[str, int], int] = {}

    def launch(self, batch: Batch) -> Pending:
        self.steps += 1
        ready = time.monotonic() + self.step_seconds
        return Done([self._range(scheduled) for scheduled in batch.ranges], ready)

    def close(self) -> None:
        self._last.clear()

    def _range(self, scheduled: ScheduledRange) -> RangeOutput:
        sequence, end = scheduled.sequence, scheduled.start + scheduled.num_tokens
        known, request_id = sequence.token_ids, sequence.request.request_id
        if self.poison is not None and self.poison in known[scheduled.start : end]:
            raise RuntimeError("this step was made to fail")
        low, high = scheduled.prompt_logprob_rows
        count = sequence.request.params.prompt_logprobs or 0
        prompt = [score(self.model.logits(known[p]), known[p + 1], count) for p in range(low, high)]
        before = known[end - 1] if known[end - 1] >= 0 else self._last[(request_id, sequence.index)]
        samples = []
        for index in scheduled.sample_indices:
            samples.append(self._sample(sequence, index, before, end))
            self._last[(request_id, index)] = samples[-1].token_id
        return RangeOutput(samples, prompt)

    def _sample(self, sequence: Sequence, index: int, before: int, position: int) -> TokenOutput:
        """The token at `position`, after the token `before`."""
        request = sequence.request
        params = request.params
        held_back = position - len(request.prompt_token_ids) < params.min_tokens
        plain = not params.logit_bias and params.allowed_token_ids is None and not held_back
        if plain and params.is_greedy and request.num_logprobs < 0:
            return TokenOutput(self.model.successor.get(before, self.model.first))
        raw = self.model.logits(before)
        logits = list(raw)
        for token_id, bias in (params.logit_bias or {}).items():
            logits[int(token_id)] += bias
        if params.allowed_token_ids is not None:
            logits = [v if t in params.allowed_token_ids else -math.inf for t, v in enumerate(logits)]
        if held_back:
            for token_id in request.stop_token_ids:
                logits[token_id] = -math.inf
        chosen = max(range(len(logits)), key=lambda t: (logits[t], -t))
        if not params.is_greedy:
            weights = [math.exp(v / params.temperature) for v in logits]
            digest = hashlib.sha256(f"{request.seed}/{index}/{position}".encode()).digest()
            left = int.from_bytes(digest[:8]) / 2**64 * sum(weights)
            chosen = next((t for t, reached in enumerate(accumulate(weights)) if reached > left), chosen)
        return score(raw, chosen, request.num_logprobs) if request.num_logprobs >= 0 else TokenOutput(chosen)


def score(logits: list[float], token_id: int, count: int) -> TokenOutput:
    norm = math.log(sum(math.exp(v) for v in logits))
    ordered = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    top = [(t, logits[t] - norm) for t in ordered[:count]]
    return TokenOutput(token_id, logits[token_id] - norm, ordered.index(token_id) + 1, top)
