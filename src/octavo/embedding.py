"""Vectors of prompts: what a model offers, what may be asked of it, and how a pooled vector becomes an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.engine.outputs import RequestOutput
from octavo.errors import RequestError, listed
from octavo.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a loaded model makes of prompts."""

    pooling: str | None  # None: the decoder names no states to pool
    size: int
    nested: frozenset[int] | None = frozenset()  # sizes that vectors may be cut to; None: any up to `size`

    def check(self, dimensions: int | None) -> None:
        """Raises RequestError where there are no vectors, or they mean nothing once they are cut to `dimensions`."""
        if self.pooling is None:
            raise RequestError("This model makes no vectors of prompts: its decoder pools no states.", "model")
        if dimensions is None:
            return
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 0 < dimensions <= self.size:
            raise RequestError(
                f"dimensions must be a whole number from 1 to {self.size}, got {dimensions!r:.60}.", "dimensions"
            )
        if self.nested is not None and dimensions not in self.nested:
            sizes = listed(map(str, sorted(self.nested)))
            raise RequestError(
                f"dimensions = {dimensions} is not possible: "
                + (f"this model's vectors can be cut to {sizes} values." if sizes else
                   "this model does not say that its vectors can be cut (Matryoshka). Leave it out."),
                "dimensions",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """What is asked of the vector of a prompt: vLLM's names and defaults."""

    dimensions: int | None = None  # cut to its first values
    use_activation: bool = True  # brought to length 1
    truncate_prompt_tokens: int | None = None

    def for_prompt(self) -> SamplingParams:
        """What a prompt that generates nothing asks of the engine."""
        return SamplingParams(max_tokens=0, detokenize=False, truncate_prompt_tokens=self.truncate_prompt_tokens)

    def embedding(self, pooled: NDArray[np.float64]) -> NDArray[np.float32]:
        """Cut first, so that what is left has length 1."""
        vector = pooled[: self.dimensions]
        if self.use_activation:
            # Scaled down before it is squared: float64 states of any size have a length.
            most = float(np.abs(vector).max())
            vector = vector / most if most > 0.0 else vector
            length = float(np.sqrt(np.square(vector).sum()))
            vector = vector / length if length > 0.0 else vector
        return vector.astype(np.float32)


@dataclass(slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """What `LLM.embed` gives for each prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool = True

    @classmethod
    def of(cls, whole: RequestOutput, params: PoolingParams) -> EmbeddingRequestOutput:
        values: Any = params.embedding(whole.vector).tolist()
        return cls(whole.request_id, EmbeddingOutput(values), whole.prompt_token_ids, whole.num_cached_tokens)
