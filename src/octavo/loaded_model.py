"""A model ready to run, and its admission gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from octavo import _native
from octavo.embedding import Embedding
from octavo.engine.admission import Limits, admit
from octavo.engine.engine import Engine
from octavo.engine.request import EVERYONE, Request, Tenant
from octavo.errors import RequestError
from octavo.runtime.grammars import Grammars
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.structured_outputs import CallGrammar
from octavo.text.detokenizer import Detokenizer
from octavo.text.reasoning import Preamble
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run: what the offline API steps itself, and a server steps on a thread."""

    engine: Engine
    tokenizer: Tokenizer
    limits: Limits
    sampling_defaults: Mapping[str, Any]
    embedding: Embedding
    model_names: Sequence[str]
    model_root: str
    fingerprint: str
    created: int
    max_logprobs: int
    cache_bytes: int
    weight_bytes: int
    pool: _native.ThreadPool
    grammars: Grammars

    @property
    def max_model_len(self) -> int:
        return self.limits.max_model_len

    @cached_property
    def max_token_bytes(self) -> int:
        return max(len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size))

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int | None = None,
        cache_salt: str | None = None,
        tenant: Tenant = EVERYONE,
        user: str | None = None,
        timeout: float | None = None,
        beams: BeamSearchParams | None = None,
        pooling: str | None = None,
        reasoning: Preamble | None = None,
        calls: CallGrammar | None = None,
        given_up: Future[None] | None = None,
    ) -> Request:
        """The admission gate, with what it needs to know of this model. Raises RequestError.

        `reasoning` comes before what `params.structured_outputs` asks for, and `calls` may come in its place.
        CancelledError where that has to be waited for and `given_up` is done.
        """
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and asked > self.max_logprobs:
                raise RequestError(f"{name} is {asked}; this server gives at most {self.max_logprobs}.", name)
        request = admit(
            request_id,
            prompt_token_ids,
            params,
            self.limits,
            prompt=prompt,
            bad_word_ids=bad_word_ids(self.tokenizer, params.bad_words or ()),
            priority=priority,
            cache_salt=cache_salt,
            tenant=tenant,
            user=user,
            timeout=timeout,
            beams=beams,
            pooling=pooling,
        )
        self.engine.scheduler.check_fits(request)
        if params.structured_outputs is None:
            return request
        compiler = self.grammars.compiler()
        return replace(request, grammar=compiler.compile(params.structured_outputs, reasoning, calls, given_up))

    def close(self) -> None:
        """Frees weights, cache and workspace."""
        self.engine.close()


def make_detokenizer(tokenizer: Tokenizer, request: Request) -> Detokenizer:
    params = request.params
    return Detokenizer(
        tokenizer,
        stop=params.stop_strings,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        kept_special_token_ids=params.kept_special_token_ids or (),
        min_tokens=params.min_tokens,
        prompt_token_ids=request.prompt_token_ids,
    )


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, at the start of a text and within one (after a space): both spellings are banned."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        # Of white space alone nothing would be left.
        for spelling in (word.strip(), " " + word.strip()) if word.strip() else (word,):
            ids = tuple(tokenizer.encode(spelling, add_special_tokens=False))
            if ids:
                found[ids] = None
    return tuple(found)
