"""What the server needs of the rest of octavo, as one object that the composition root hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from octavo.embedding import Embedding
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.request import Request, Tenant
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.structured_outputs import CallGrammar
from octavo.text.reasoning import Preamble
from octavo.text.tokenizer import Tokenizer


class Service(Protocol):
    """A loaded model behind a running engine. All of it is fixed once the server starts."""

    @property
    def engine(self) -> AsyncEngine: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def model_names(self) -> Sequence[str]:
        """Names that requests may use, the first is the default; at least one."""
        ...

    @property
    def model_root(self) -> str:
        """Where the model came from, for /v1/models."""
        ...

    @property
    def created(self) -> int:
        """When the model was loaded, seconds since the epoch."""
        ...

    @property
    def fingerprint(self) -> str:
        """What fixes a request's tokens: version, instruction set, model digest."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        ...

    @property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token; text of more than max_model_len times that cannot fit."""
        ...

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Keywords of SamplingParams that replace its defaults, from the model's generation config."""
        ...

    @property
    def embedding(self) -> Embedding:
        """What vectors of prompts are here, for embeddings."""
        ...

    def admit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        priority: int | None = None,
        cache_salt: str | None = None,
        tenant: Tenant = ...,
        user: str | None = None,
        timeout: float | None = None,
        beams: BeamSearchParams | None = None,
        pooling: str | None = None,
        reasoning: Preamble | None = None,
        calls: CallGrammar | None = None,
        given_up: Future[None] | None = None,
    ) -> Request:
        """The admission gate; called off the event loop. Raises RequestError, and CancelledError where it would have
        to wait for what is given up.
        """
        ...
