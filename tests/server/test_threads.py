"""What work in a thread raises reaches the one who awaits it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo.threads import in_thread


@pytest.mark.parametrize("own", [False, True])
def test_the_awaiting_one_is_told(own: bool) -> None:
    async def ask(threads: ThreadPoolExecutor | None) -> None:
        assert await in_thread(threads, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(threads, divmod, 7, 0)
        # The one exception that a future refuses to hold: it would be awaited for ever.
        with pytest.raises(RuntimeError, match="next raised StopIteration"):
            async with asyncio.timeout(60):
                await in_thread(threads, next, iter(()))

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(ask(threads if own else None))
