"""The exceptions that users of octavo meet."""


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


def describe(error: Exception) -> str:
    """Any exception as a reason: what it is and what it says."""
    return f"{type(error).__name__}: {error}"
