"""One request at a time on an engine of the command's own."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from octavo.build import build
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.sampling_params import OutputKind, SamplingParams


class Session:
    """A loaded model; as a context manager it frees it."""

    def __init__(self, config: EngineConfig) -> None:
        logging.basicConfig(level="WARNING", format="%(levelname)s %(message)s", stream=sys.stderr)
        self.model = build(config)
        self.tokenizer = self.model.tokenizer
        self._ids = itertools.count()

    def stream(self, token_ids: Sequence[int], sampling: Mapping[str, Any]) -> Iterator[str]:
        """The text of a reply in pieces. Raises RequestError, or OctavoError where the engine fails."""
        values = {**self.model.sampling_defaults, **sampling}
        params = SamplingParams(**values, output_kind=OutputKind.DELTA)
        engine = self.model.engine
        request = self.model.admit(f"cli-{next(self._ids)}", token_ids, params)
        engine.add(request)
        try:
            while engine.has_work():
                for output in engine.step():
                    if output.error is not None:
                        raise OctavoError(f"The engine met an error in a step of this request: {output.error}")
                    if output.text:
                        yield output.text
        finally:
            engine.abort(request.request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.model.close()
