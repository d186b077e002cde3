"""Structured output where it is possible: llguidance by its version at start, and loaded when it is first needed."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from octavo import _native
from octavo.errors import ConfigError, RequestError
from octavo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from octavo.runtime.grammar import GrammarCompiler

logger = logging.getLogger(__name__)

# The C interface that native/bind_grammar.cpp declares is that of these versions, as in pyproject.toml.
LEAST, BELOW = (1, 9), (1, 10)
RANGE = ">=" + ".".join(map(str, LEAST)) + ",<" + ".".join(map(str, BELOW))


def version_fault() -> str:
    """Why the llguidance that is installed cannot be used, as far as its version tells; "" where it can."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)", version("llguidance"))
    except PackageNotFoundError:
        return f"it needs llguidance{RANGE}, which is not installed."
    if numbers and LEAST <= (int(numbers[1]), int(numbers[2])) < BELOW:
        return ""
    return unusable("its C interface may be another.")


def unusable(reason: str) -> str:
    return f"it needs llguidance{RANGE}, and {version('llguidance')}, which is installed, cannot be used: {reason}"


class Grammars:
    """The compiler of a model's constraints, or why there is none: that does not change while the process lives."""

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int], pool: _native.ThreadPool
    ) -> None:
        self._of = tokenizer, vocab_size, eos_token_ids, pool
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._fault = version_fault()
        if self._fault:
            logger.warning("Structured output is not possible: %s", self._fault)

    def compiler(self) -> GrammarCompiler:
        """Made once, while all else goes on. RequestError where structured output is not possible."""
        with self._lock:
            if self._compiler is None and not self._fault:
                try:
                    # llguidance takes 40 ms to import, and its own form of the vocabulary longer.
                    from octavo.runtime.grammar import GrammarCompiler

                    self._compiler = GrammarCompiler(*self._of)
                except ImportError as error:
                    self._fault = unusable(f"{error}.")
                except ConfigError as error:
                    self._fault = str(error)
                if self._fault:
                    logger.error("Structured output is not possible: %s", self._fault)
            if self._compiler is None:
                raise RequestError(f"Structured output is not possible here: {self._fault}", "structured_outputs")
            return self._compiler
