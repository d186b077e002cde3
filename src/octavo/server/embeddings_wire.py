"""The wire form of requests for embeddings: OpenAI's fields and vLLM's extra ones."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from octavo.server.refused import OF_TEMPLATES, REFUSED, Refused
from octavo.server.wire import CallerFields, FieldError, Integer, Prompt, Truncate


class EmbeddingRequest(CallerFields):
    """POST /v1/embeddings."""

    refused: ClassVar[Refused] = {**REFUSED, **OF_TEMPLATES, "add_generation_prompt": (False,)}
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    use_activation: bool | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    truncate_prompt_tokens: Truncate = None
    add_special_tokens: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def check_names(cls, value: Any) -> Any:
        """First, as what has messages lacks an input."""
        for name in ("messages", "normalize"):
            if isinstance(value, dict) and value.get(name) is not None:
                hint = "send use_activation" if name == "normalize" else "send input"
                raise FieldError(name, f"{name} is not supported here; {hint}.")
        return value
