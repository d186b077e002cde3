"""The running requests of one call: their outputs as one stream, or added up to whole outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from octavo.engine.async_engine import AsyncEngine, OutputStream
from octavo.engine.outputs import Contradiction, RequestOutput, SequenceOutput
from octavo.engine.request import Request
from octavo.errors import OctavoError
from octavo.server.errors import ApiError

FAILURES = ("error", "abort", "timeout")
Outputs = tuple[int, list[SequenceOutput]]  # position of the request in the call, what a step brought it


def split_failures(outputs: Sequence[SequenceOutput]) -> tuple[list[SequenceOutput], list[SequenceOutput]]:
    """Outputs to show, and ends that are no answer."""
    failed = [output for output in outputs if output.finish_reason in FAILURES]
    return [output for output in outputs if output.finish_reason not in FAILURES], failed


def raise_for_failure(failed: Sequence[SequenceOutput]) -> None:
    """The client gets an error instead of a finish reason that it cannot know."""
    for output in failed:
        if isinstance(output.error, Contradiction):
            raise ApiError(400, output.error, output.error.param)
        if output.finish_reason == "error":
            raise ApiError(500, "The engine met an error in a step of this request; the server's log says more.")
        if output.finish_reason == "abort":
            raise ApiError(503, "The request was aborted before its end: the server is shutting down.")
        if output.finish_reason == "timeout":
            # Not 408, which blames the client for a slow body and makes proxies send the request again. OpenAI's
            # clients would do so at any of the two, unless told otherwise.
            raise ApiError(504, str(output.error), "timeout", {"x-should-retry": "false"})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Generation:
    """Started requests. `close` aborts what has not ended; it may be called at any time, more than once."""

    def __init__(self, engine: AsyncEngine, requests: Sequence[Request]) -> None:
        """Starts all of them, or none: raises EngineFullError, EngineDeadError."""
        self.requests = requests
        self._streams: list[OutputStream] = []
        try:
            for request in requests:
                self._streams.append(engine.generate(request))
        except OctavoError:
            for started in self.requests[: len(self._streams)]:
                engine.abort(started.request_id)
            raise

    async def outputs(self) -> AsyncGenerator[Outputs, None]:
        """What the engine's steps bring, in their order for each request."""
        if len(self._streams) == 1:
            async for outputs in self._streams[0]:
                yield 0, outputs
            return
        arrived: asyncio.Queue[Outputs | int] = asyncio.Queue()

        async def forward(position: int, stream: OutputStream) -> None:
            try:
                async for outputs in stream:
                    arrived.put_nowait((position, outputs))
            finally:
                arrived.put_nowait(position)

        tasks = [asyncio.ensure_future(forward(*pair)) for pair in enumerate(self._streams)]
        try:
            num_open = len(tasks)
            while num_open:
                entry = await arrived.get()
                if isinstance(entry, int):
                    num_open -= 1
                    await tasks[entry]  # raises what ended it
                else:
                    yield entry
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def whole(self) -> list[RequestOutput]:
        """All outputs at their end, the same pieces added up that a stream would have sent."""
        totals = [RequestOutput.empty(request) for request in self.requests]
        try:
            async with aclosing(self.outputs()) as arriving:
                async for position, outputs in arriving:
                    raise_for_failure(outputs)
                    for output in outputs:
                        totals[position].apply(output)
        finally:
            await self.close()
        return totals

    async def close(self) -> None:
        for stream in self._streams:
            await stream.aclose()


class UsageCount:
    """Token counts of a call so far. A prompt counts once, however many sequences grow from it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self.completion_tokens = 0
        self._cached = [0] * len(requests)

    def add(self, position: int, outputs: Sequence[SequenceOutput]) -> None:
        for output in outputs:
            self.completion_tokens += len(output.token_ids)
            if output.index == 0:
                self._cached[position] = output.num_cached_tokens

    @staticmethod
    def of_whole(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The usage of requests that have ended."""
        return usage(
            sum(len(whole.prompt_token_ids) for whole in outputs),
            sum(len(output.token_ids) for whole in outputs for output in whole.outputs),
            sum(whole.num_cached_tokens for whole in outputs),
        )

    def report(self) -> dict[str, Any]:
        return usage(self.prompt_tokens, self.completion_tokens, sum(self._cached))
