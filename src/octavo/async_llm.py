"""A model behind a running engine thread: for servers, and for programs that await."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from octavo.build import build
from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.outputs import RequestOutput, SequenceOutput
from octavo.engine.request import Request
from octavo.errors import GenerationError
from octavo.prompts import Prompt, cache_salt_of, tokenize_prompt
from octavo.sampling_params import OutputKind, SamplingParams
from octavo.text.tokenizer import Tokenizer
from octavo.threads import in_thread


class AsyncLLM:
    """A model in this process that many tasks use at once. Every field of EngineConfig is a keyword, as for LLM.

    It is also what the HTTP server serves.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._start(EngineConfig.from_options(model=model, **options))

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncLLM:
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        model = self._model = build(config)
        self.engine = AsyncEngine(model.engine)
        self.admit = model.admit
        self.tokenizer: Tokenizer = model.tokenizer
        self.model_names: Sequence[str] = model.model_names
        self.model_root = model.model_root
        self.created = model.created
        self.fingerprint = model.fingerprint
        self.max_model_len = model.max_model_len
        self.sampling_defaults: Mapping[str, Any] = model.sampling_defaults
        self.embedding = model.embedding

    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token; a walk over the vocabulary at the first look, which only a server takes."""
        return self._model.max_token_bytes

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields what has come of the request: all so far, only what is new, or only the end, by `output_kind`.

        A DELTA output holds the sequences that have something new; its cumulative_logprob is that of all so far.
        Leaving the iteration early aborts the request; past `timeout` seconds it ends with GenerationError. Raises
        RequestError, EngineFullError, GenerationError.
        """

        def admitted() -> Request:
            text, token_ids = tokenize_prompt(self.tokenizer, prompt)
            return self.admit(
                request_id,
                token_ids,
                sampling_params,
                prompt=text,
                priority=priority,
                cache_salt=cache_salt_of(prompt),
                timeout=timeout,
                given_up=given_up,
            )

        given_up: Future[None] = Future()
        try:
            request = await in_thread(None, admitted)
        except CancelledError:
            given_up.set_result(None)
            raise
        kind = sampling_params.output_kind
        whole = RequestOutput.empty(request)
        async with aclosing(self.engine.generate(request)) as stream:
            async for outputs in stream:
                for output in outputs:
                    whole.apply(output)
                if whole.error is not None:
                    raise GenerationError([whole])
                if kind is OutputKind.DELTA:
                    yield news_of(request, outputs, whole)
                elif kind is OutputKind.CUMULATIVE or whole.finished:
                    yield copy_of(whole)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iteration ends with finish_reason "abort"."""
        self.engine.abort(request_id)

    async def reset_prefix_cache(self) -> bool:
        """Lets no request that comes after this find what was computed before. True: it always succeeds."""
        await self.engine.reset_prefix_cache()
        return True

    def close(self) -> None:
        """Ends what runs, and frees weights and cache."""
        self.engine.close()


def copy_of(whole: RequestOutput) -> RequestOutput:
    """What its reader may keep while the request goes on."""
    outputs = [
        replace(
            output,
            token_ids=list(output.token_ids),
            logprobs=None if output.logprobs is None else list(output.logprobs),
        )
        for output in whole.outputs
    ]
    return replace(whole, outputs=outputs)


def news_of(request: Request, outputs: Sequence[SequenceOutput], whole: RequestOutput) -> RequestOutput:
    """What `outputs`, which are in `whole` already, brought to each of their sequences."""
    news = RequestOutput.empty(request)
    for output in outputs:
        news.apply(output)
    news.outputs = [
        replace(news.outputs[index], cumulative_logprob=whole.outputs[index].cumulative_logprob)
        for index in sorted({output.index for output in outputs})
    ]
    news.finished, news.num_cached_tokens = whole.finished, whole.num_cached_tokens
    return news
