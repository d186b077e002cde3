"""The wire form of requests for embeddings: OpenAI's fields and vLLM's extra ones."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from octavo.server.wire import CallerFields, FieldError, Prompt


class EmbeddingRequest(CallerFields):
    """POST /v1/embeddings."""

    input: Prompt = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    use_activation: bool | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def check_embedding(self) -> EmbeddingRequest:
        for name in ("messages", "normalize"):
            if (self.model_extra or {}).get(name) is not None:
                hint = "send use_activation" if name == "normalize" else "send input"
                raise FieldError(name, f"{name} is not supported here; {hint}.")
        return self
