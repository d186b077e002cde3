"""The engine on a thread of its own, and the event loops that feed it and await its outputs."""

import asyncio
import contextlib
import logging
import math
import queue
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

from octavo.engine.engine import Engine
from octavo.engine.outputs import SequenceOutput
from octavo.engine.request import Request
from octavo.engine.stats import BusyRate, Snapshot
from octavo.errors import EngineDeadError, EngineFullError, OctavoError, RequestError

logger = logging.getLogger(__name__)

MOST_RETRY_SECONDS = 60  # a longer Retry-After makes OpenAI's clients choose a time of their own, or give up


class OutputStream:
    """The outputs of one request, as lists of what came since the last look; ends with its last sequence.

    Ending early aborts the request: by `aclose`, by cancelling whoever awaits, or by dropping the stream. What is not
    read yet is bounded by max_tokens of the request, and a slow reader slows nobody.
    """

    def __init__(self, engine: "AsyncEngine", request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.loop = loop
        self._engine = engine
        self._outputs: list[SequenceOutput] = []
        self._num_open = request.params.n
        self._error: OctavoError | None = None
        self._reader: asyncio.Future[None] | None = None  # who awaits the next outputs

    def __aiter__(self) -> "OutputStream":
        return self

    async def __anext__(self) -> list[SequenceOutput]:
        try:
            while not self._outputs:
                if self._error is not None:
                    raise self._error
                if self._num_open == 0:
                    raise StopAsyncIteration
                # A bare future: an Event takes three times as long, which 64 streams feel.
                self._reader = self.loop.create_future()
                await self._reader
        except asyncio.CancelledError:
            self._end()
            raise
        outputs, self._outputs = self._outputs, []
        return outputs

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._num_open and self._error is None:
            self._num_open = 0
            self._engine._forget(self.request.request_id)

    def __del__(self) -> None:
        self._end()

    # Called in the stream's loop.

    def _put(self, output: SequenceOutput) -> None:
        self._outputs.append(output)
        self._num_open -= output.finish_reason is not None
        self._wake()

    def _fail(self, error: OctavoError) -> None:
        if self._num_open:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


@dataclass(frozen=True, slots=True)
class Errand:
    """Something to do to the engine between two steps."""

    run: Callable[[], None]
    done: Future[None]


class AsyncEngine:
    """One thread steps the engine: it takes requests and aborts from an inbox between steps, and sleeps without work.

    At most max_num_seqs + max_num_queued requests are in it at once, and prompts of max_num_queued_tokens tokens wait
    or are being computed (0: no bound). A prompt that is longer by itself is taken when it is the only one, and a
    tenant of which nothing is there gets one request in past both bounds: others that fill the queue cannot shut it
    out. `step_timeout`: seconds after which a step that has not returned makes the engine unhealthy.
    """

    def __init__(self, engine: Engine, *, step_timeout: float = 120.0) -> None:
        config = engine.scheduler.config
        self._engine = engine
        self._most = config.max_num_seqs + config.max_num_queued if config.max_num_queued else math.inf
        self._most_tokens = config.max_num_queued_tokens or math.inf
        self._step_timeout = step_timeout
        self._step_started: float | None = None
        self._accepts = True
        self._error: OctavoError | None = None
        # Weak, so that a stream that its reader drops ends its request; each is taken out at its end, in its loop.
        self._streams: dict[str, weakref.ref[OutputStream]] = {}
        self._prompts: dict[str, int] = {}  # tokens of the prompts that are not computed
        self._ends = BusyRate()  # of requests
        self._num_rejected = 0
        # A request and its stream, an id to abort, what to do between two steps, or the end.
        self._inbox: queue.SimpleQueue[tuple[Request, weakref.ref[OutputStream]] | str | Errand | None] = (
            queue.SimpleQueue()
        )
        # Of the requests that the engine has taken: what still comes of one whose reader has left must not go to the
        # stream of a later request with its id.
        self._taken: weakref.WeakValueDictionary[str, OutputStream] = weakref.WeakValueDictionary()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)
        self._thread.start()

    @property
    def num_live(self) -> int:
        """Requests whose streams have not ended."""
        return len(self._streams)

    def generate(self, request: Request) -> OutputStream:
        """Queues a request at once and returns its outputs to come. Raises EngineFullError, EngineDeadError."""
        if self._error is not None or not self._accepts:
            raise EngineDeadError(str(self._error or "The engine is shutting down and takes no more requests."))
        if request.request_id in self._streams:
            raise RequestError(f"Request id {request.request_id!r} is in use.", "request_id")
        self._check_room(request)
        stream = OutputStream(self, request, asyncio.get_running_loop())
        self._streams[request.request_id] = weakref.ref(stream)
        self._prompts[request.request_id] = len(request.prompt_token_ids)
        self._inbox.put((request, weakref.ref(stream)))
        if self._error is not None:  # died since: its thread may have missed this stream
            self._end_stream(stream, EngineDeadError(str(self._error)))
        return stream

    def abort(self, request_id: str) -> None:
        """Ends a request; its stream gets last outputs with finish_reason "abort"."""
        self._inbox.put(request_id)

    async def reset_prefix_cache(self) -> None:
        """Lets no request that comes after this find what was computed before. Raises EngineDeadError."""
        errand = Errand(self._engine.reset_prefix_cache, Future())
        self._inbox.put(errand)
        if self._error is not None:  # died since: its thread may have missed this
            raise EngineDeadError(str(self._error))
        await asyncio.wrap_future(errand.done)

    def is_healthy(self) -> bool:
        """Whether the engine makes progress or has nothing to do."""
        started = self._step_started
        stuck = started is not None and time.monotonic() - started > self._step_timeout
        return self._error is None and self._thread.is_alive() and not stuck

    def stats(self) -> Snapshot:
        snapshot = self._engine.snapshot()
        return replace(snapshot, num_tokens_waiting=self._num_tokens_waiting(), num_rejected=self._num_rejected)

    async def drain(self, timeout: float) -> None:
        """Takes no more requests, waits up to `timeout` seconds for those in it, then aborts the rest."""
        self._accepts = False
        await self._until_idle(timeout)
        for request_id in list(self._streams):
            self.abort(request_id)
        await self._until_idle(self._step_timeout)

    def close(self) -> None:
        """Stops the thread after its step and closes the runner; open streams end with EngineDeadError."""
        self._accepts = False
        self._inbox.put(None)
        self._thread.join(self._step_timeout)

    async def _until_idle(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._streams and self._error is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _check_room(self, request: Request) -> None:
        """Raises EngineFullError where the queue has no room for a request."""
        num_live = len(self._streams)
        num_tokens = self._num_tokens_waiting() if self._most_tokens < math.inf else 0
        if num_live >= self._most:
            full = f"{num_live} requests run or wait"
        elif num_tokens and num_tokens + len(request.prompt_token_ids) > self._most_tokens:
            full = f"prompts of {num_tokens} tokens wait"
        else:
            return
        streams = (reference() for reference in list(self._streams.values()))
        if not any(stream is not None and stream.request.tenant == request.tenant for stream in streams):
            return
        self._num_rejected += 1
        # Once as many requests have ended as have not begun now, the place of each of them is free: a client that comes
        # back then finds room, however many were sent away with it, as long as they fit the queue.
        seconds = min(self._ends.seconds_for(len(self._prompts)), MOST_RETRY_SECONDS)
        raise EngineFullError(f"The queue is full: {full}. Try again later.", max(1, math.ceil(seconds)))

    def _num_tokens_waiting(self) -> int:
        return sum(list(self._prompts.values()))

    def _forget(self, request_id: str) -> None:
        """Nobody will read this request's outputs."""
        self._close(request_id)
        self._inbox.put(request_id)

    def _close(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._prompts.pop(request_id, None)

    # On the engine's thread.

    def _run(self) -> None:
        try:
            while self._take():
                self._step_started = started = time.monotonic()
                num_live = self._engine.num_live
                outputs = self._engine.step() if self._engine.has_work() else []
                self._ends.observe(num_live - self._engine.num_live, time.monotonic() - started)
                self._step_started = None
                self._send(outputs)
                for request_id in self._engine.computed_untold:
                    if self._is_taken(request_id):
                        self._prompts.pop(request_id, None)
            self._error = EngineDeadError("The engine has been closed.")
        except BaseException as error:
            logger.critical("The engine has died.", exc_info=True)
            self._error = EngineDeadError(f"The engine has died of {type(error).__name__}; the log says more.")
        finally:
            for reference in list(self._streams.values()):
                self._fail(reference(), EngineDeadError(str(self._error)))
            with contextlib.suppress(queue.Empty):
                while True:
                    message = self._inbox.get_nowait()
                    if isinstance(message, Errand) and message.done.set_running_or_notify_cancel():
                        message.done.set_exception(EngineDeadError(str(self._error)))
            self._engine.close()

    def _take(self) -> bool:
        """Empties the inbox, after sleeping on it where there is no work; False at the end."""
        sleeps = not self._engine.has_work()
        while sleeps or not self._inbox.empty():
            message = self._inbox.get()
            sleeps = False
            if message is None:
                return False
            if isinstance(message, str):
                self._send(self._engine.abort(message))
                continue
            if isinstance(message, Errand):
                if message.done.set_running_or_notify_cancel():  # else nobody awaits it any longer
                    message.run()
                    message.done.set_result(None)
                continue
            request, reference = message
            if (stream := reference()) is not None:
                self._taken[request.request_id] = stream
            try:
                self._engine.add(request)
            except Exception as error:
                if not isinstance(error, OctavoError):
                    logger.exception("Request %s could not be started.", request.request_id)
                    error = OctavoError("The request could not be started; the log says more.")
                self._fail(stream, error)
            del stream  # held here, it would outlive its reader
        return True

    def _is_taken(self, request_id: str) -> bool:
        """Whether the request that the engine has of this id is the one that the id stands for still."""
        reference, taken = self._streams.get(request_id), self._taken.get(request_id)
        return reference is not None and taken is not None and reference() is taken

    def _send(self, outputs: list[SequenceOutput]) -> None:
        """Hands the outputs of a step to the loops that wait for them, each in one call."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, SequenceOutput]]] = defaultdict(list)
        for output in outputs:
            if (stream := self._taken.get(output.request_id)) is not None:
                by_loop[stream.loop].append((stream, output))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(self._deliver, pairs)
            except RuntimeError:  # the loop has been closed over its streams
                for stream, _ in pairs:
                    self._forget(stream.request.request_id)

    def _fail(self, stream: OutputStream | None, error: OctavoError) -> None:
        if stream is not None:
            with contextlib.suppress(RuntimeError):
                stream.loop.call_soon_threadsafe(self._end_stream, stream, error)

    # In the loop of the streams.

    def _deliver(self, pairs: list[tuple[OutputStream, SequenceOutput]]) -> None:
        for stream, output in pairs:
            if stream._num_open:  # else its reader has left, and its id may be another's by now
                stream._put(output)
                self._prompts.pop(output.request_id, None)
                if stream._num_open == 0:
                    self._close(output.request_id)

    def _end_stream(self, stream: OutputStream, error: OctavoError) -> None:
        if stream._num_open:
            stream._fail(error)
            self._close(stream.request.request_id)
