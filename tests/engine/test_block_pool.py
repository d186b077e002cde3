"""The block pool: order of reuse, keys, and costs that do not depend on its size."""

import sys
import time
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.engine.block_pool import BlockPool, block_key, root_key
from octavo.errors import ConfigError

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """Against a model: a plain list in the order of reuse, and the owners of each block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, 4)
        self.free = list(range(NUM_BLOCKS))
        self.held: Counter[int] = Counter()
        self.keys: dict[int, bytes] = {}
        self.num_used = 0
        self.num_evictions = 0

    @rule(count=st.integers(1, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        count = min(count, len(self.free))
        blocks = self.pool.allocate(count)
        assert blocks == self.free[:count]
        del self.free[:count]
        for block in blocks:
            self.held[block] = 1
            self.num_evictions += self.keys.pop(block, None) is not None
            self.num_used = max(self.num_used, block + 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free_blocks(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.held)), unique=True, min_size=1))
        self.pool.free(blocks)
        for block in blocks:
            self.held[block] -= 1
            if not self.held[block]:
                del self.held[block]
                self.free.insert(len(self.free) if block in self.keys else 0, block)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), number=st.integers(0, 4))
    def publish(self, data: st.DataObject, number: int) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        key = block_key(b"", [number])
        self.pool.publish(block, key)
        if key not in self.keys.values() and block not in self.keys:
            self.keys[block] = key

    @rule(number=st.integers(0, 4))
    def hit(self, number: int) -> None:
        block = self.pool.lookup(block_key(b"", [number]))
        assert block == next((b for b, key in self.keys.items() if key == block_key(b"", [number])), None)
        if block is not None:
            self.pool.share(block)
            if not self.held[block]:
                self.free.remove(block)
            self.held[block] += 1

    @rule()
    def forget(self) -> None:
        self.pool.forget()
        self.keys.clear()
        self.free.sort(key=lambda block: block >= self.num_used)  # what has been used comes before what has not

    @invariant()
    def lawful(self) -> None:
        assert self.pool.num_evictions == self.num_evictions
        self.pool.check(+self.held, self.keys)
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_cached == len(self.keys)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_tail_is_evicted_before_the_prefix() -> None:
    pool = BlockPool(4, 4)
    table = pool.allocate(4)
    for number, block in enumerate(table):
        pool.publish(block, block_key(b"", [number]))
    pool.free(reversed(table))
    pool.allocate(3)
    assert pool.lookup(block_key(b"", [0])) == table[0]
    assert pool.num_cached == 1


def test_keys_differ_in_everything_they_cover() -> None:
    roots = [root_key(a, s, d) for a in (None, "", "x") for s in (None, "", "x", "\ud800") for d in ("bf16", "f32")]
    assert len(set(roots)) == len(roots)
    keys = [block_key(roots[0], tokens, extra) for tokens in ([1, 2], [2, 1], [1], [12]) for extra in (b"", b"i")]
    assert len(set(keys)) == len(keys)
    assert block_key(roots[0], [1, 2]) != block_key(roots[1], [1, 2])


def test_pending_goes_to_the_first_and_ends_by_publishing_or_withdrawing() -> None:
    pool = BlockPool(4, 4)
    first, second = pool.allocate(2)
    key = block_key(b"", [1])
    pool.pend(first, key, 3)
    pool.pend(second, key, 0)
    assert pool.pending == {key: (first, 3)}
    pool.withdraw(second, key)
    assert pool.pending
    pool.publish(second, key)  # computed by someone else meanwhile
    pool.publish(first, key)
    assert pool.lookup(key) == second and not pool.pending
    pool.pend(first, key, 3)
    assert not pool.pending, "published blocks are not waited for"


def events_of(num_blocks: int) -> tuple[int, float]:
    """Python lines and C calls of a round of operations on a pool that is half in use, and its seconds."""
    pool = BlockPool(num_blocks, 16)
    held = pool.allocate(num_blocks // 2)
    for number, block in enumerate(held):
        pool.publish(block, block_key(b"", [number]))
    pool.free(held[10:20])
    count = 0

    def work() -> None:
        table = pool.allocate(5)
        pool.publish(table[0], block_key(b"", [-1]))
        found = pool.lookup(block_key(b"", [15]))
        assert found is not None
        pool.share(found)
        pool.share(held[0])
        pool.free([held[0], found, *table])

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    def profile(frame, event, argument):
        nonlocal count
        count += event == "c_call"

    work()
    sys.settrace(trace), sys.setprofile(profile)
    try:
        work()
    finally:
        sys.settrace(None), sys.setprofile(None)
    best = 1.0
    for _ in range(50):
        begin = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin)
    return count, best


def test_no_operation_walks_the_pool() -> None:
    small, small_seconds = events_of(100)
    large, large_seconds = events_of(50_000)
    assert large == small
    # What hides in C shows in time only: a walk would take 500 times as long.
    assert large_seconds < 20 * small_seconds


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (16, 0), (-1, 16)])
def test_a_pool_without_room_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ConfigError):
        BlockPool(num_blocks, block_size)
