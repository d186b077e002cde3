"""A model behind a running engine thread: for servers, and for programs that await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from octavo.build import LoadedModel, build
from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.engine.request import Request
from octavo.sampling_params import OutputKind, SamplingParams
from octavo.text.tokenizer import Tokenizer


class AsyncLLM:
    """A model in this process that many tasks use at once. Every field of EngineConfig is a keyword, as for LLM.

    It is also what the HTTP server serves.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self._start(build(EngineConfig.from_options(model=model, **options)))

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncLLM:
        llm = cls.__new__(cls)
        llm._start(build(config))
        return llm

    def _start(self, model: LoadedModel) -> None:
        self._model = model
        self.engine = AsyncEngine(model.engine)
        self.tokenizer: Tokenizer = model.tokenizer
        self.model_names: Sequence[str] = model.model_names
        self.model_root = model.model_root
        self.created = model.created
        self.fingerprint = model.fingerprint
        self.max_model_len = model.max_model_len
        self.max_token_bytes = model.max_token_bytes
        self.sampling_defaults: Mapping[str, Any] = model.sampling_defaults

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Request:
        """The admission gate of this model. Raises RequestError."""
        return self._model.admit(
            request_id, prompt_token_ids, params, prompt=prompt, priority=priority, cache_salt=cache_salt
        )

    async def generate(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams, request_id: str, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        """Yields the request's output as it grows: whole so far, only what is new, or only the end, by `output_kind`.

        Leaving the iteration early aborts the request. Raises RequestError, EngineFullError.
        """
        text = prompt if isinstance(prompt, str) else None
        if text is None:
            token_ids: Sequence[int] = [*prompt]  # type: ignore[list-item]
        else:
            token_ids = await asyncio.to_thread(self.tokenizer.encode, text)
        request = self.admit(request_id, token_ids, sampling_params, prompt=text, priority=priority)
        kind = sampling_params.output_kind
        result = RequestOutput.empty(request)
        stream = self.engine.generate(request)
        try:
            async for outputs in stream:
                for output in outputs:
                    result.apply(output)
                if kind is not OutputKind.FINAL_ONLY or result.finished:
                    yield result
                if kind is OutputKind.DELTA:
                    result.outputs = [CompletionOutput(old.index, finish_reason=old.finish_reason) for old in result.outputs]
        finally:
            await stream.aclose()

    async def abort(self, request_id: str) -> None:
        """Ends a request; its iteration ends with finish_reason "abort"."""
        self.engine.abort(request_id)

    def close(self) -> None:
        """Ends what runs, and frees weights and cache."""
        self.engine.close()
