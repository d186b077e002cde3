"""Work in a thread that a coroutine awaits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")


async def in_thread(
    threads: Executor | None, function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs
) -> Result:
    """The function's result, or what it raised; in the loop's own threads where there are none.

    A future takes every exception but StopIteration, upon which it would be awaited for ever.
    """

    def run() -> Result:
        try:
            return function(*args, **kwargs)
        except StopIteration as fault:
            raise RuntimeError(f"{getattr(function, '__qualname__', function)} raised StopIteration") from fault

    return await asyncio.get_running_loop().run_in_executor(threads, contextvars.copy_context().run, run)
