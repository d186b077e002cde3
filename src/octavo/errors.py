"""The exceptions that users of octavo meet."""

from collections.abc import Iterable, Sequence
from typing import Any


class OctavoError(Exception):
    """Base of every error that octavo raises on purpose; its text is a sentence for the user."""


class ModelError(OctavoError):
    """A model's source, file, weights or architecture is wrong or unsupported."""


class ConfigError(OctavoError, ValueError):
    """An option is wrong, or cannot be met on this machine."""


class RequestError(OctavoError, ValueError):
    """A request was refused at the admission gate; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineFullError(OctavoError):
    """The waiting queue is at its bound; `retry_after` is a hint in seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineDeadError(OctavoError):
    """The engine has stopped and takes no more requests."""


class GenerationError(OctavoError):
    """Requests failed in a step, past the gate, or reached their timeouts. `outputs` holds what came of every prompt,
    in their order: those at the positions `failed` are cut short and say why in `error`, the others are whole.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = list(outputs)
        self.failed = [position for position, output in enumerate(self.outputs) if output.error is not None]
        first = self.failed[0]
        others = f" So did {len(self.failed) - 1} more." if len(self.failed) > 1 else ""
        super().__init__(
            f"Request {self.outputs[first].request_id} (prompt {first + 1} of {len(self.outputs)}) failed: "
            f"{self.outputs[first].error}{others}"
        )


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them: five at most, and how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def describe(error: Exception) -> str:
    """Any exception as a reason: what it is and what it says."""
    return f"{type(error).__name__}: {error}"
