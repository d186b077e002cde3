"""What a checkpoint says of the vectors of prompts: how they are pooled, and to which sizes they may be cut."""

from __future__ import annotations

from octavo.errors import ModelError, listed
from octavo.json_file import read_if_there
from octavo.weights.checkpoint import Checkpoint

SENTENCE_TRANSFORMERS = "1_Pooling/config.json"
MODES = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean"}
GGUF_TYPES = {1: "mean", 3: "last"}
DEFAULT = "last"


def pooling_type(checkpoint: Checkpoint) -> str:
    """As sentence-transformers or the GGUF file has it, else the default. Raises ModelError for any other kind."""
    if checkpoint.kind == "gguf":
        number = checkpoint.config.get(f"{checkpoint.config.get('general.architecture')}.pooling_type") or 0
        asked = [GGUF_TYPES.get(number, f"number {number}")] if number else []
    else:
        settings = read_if_there(checkpoint.path / SENTENCE_TRANSFORMERS)
        asked = [MODES.get(name, name) for name, on in settings.items() if name.startswith("pooling_mode_") and on]
    if not asked:
        return DEFAULT
    if len(asked) > 1 or asked[0] not in MODES.values():
        raise ModelError(
            f"{checkpoint.path} pools vectors of prompts in a way that is not supported ({listed(asked)}); "
            "choose another with --pooling-type last or mean."
        )
    return asked[0]


def nested_sizes(checkpoint: Checkpoint) -> frozenset[int] | None:
    """The sizes that vectors may be cut to, by the names that publishers of Matryoshka models use; None: to any."""
    sizes = checkpoint.config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and sizes:
        return frozenset(size for size in sizes if type(size) is int)
    return None if checkpoint.config.get("is_matryoshka") is True else frozenset()
