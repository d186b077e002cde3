"""octavo: an LLM inference and serving engine. Public names are imported when they are first used, so that `import
octavo` is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from octavo._version import __version__

if TYPE_CHECKING:
    from octavo.async_llm import AsyncLLM
    from octavo.embedding import EmbeddingRequestOutput, PoolingParams
    from octavo.engine.outputs import CompletionOutput, RequestOutput
    from octavo.errors import OctavoError
    from octavo.llm import LLM
    from octavo.sampling_params import BeamSearchParams, SamplingParams
    from octavo.structured_outputs import StructuredOutputsParams

_HOMES = {
    "LLM": "octavo.llm",
    "AsyncLLM": "octavo.async_llm",
    "SamplingParams": "octavo.sampling_params",
    "BeamSearchParams": "octavo.sampling_params",
    "StructuredOutputsParams": "octavo.structured_outputs",
    "EmbeddingRequestOutput": "octavo.embedding",
    "PoolingParams": "octavo.embedding",
    "RequestOutput": "octavo.engine.outputs",
    "CompletionOutput": "octavo.engine.outputs",
    "OctavoError": "octavo.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "OctavoError",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
