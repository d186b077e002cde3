"""The blocks of one cache group: which are in use, which can be found by content, which are reused first."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import sha256

from octavo.errors import ConfigError


def root_key(adapter: str | None, cache_salt: str | None, kv_dtype: str) -> bytes:
    """The parent key of a sequence's first block: sequences that differ in any of these share nothing."""
    # ascii() of a tuple is injective and encodes every string, lone surrogates too.
    return sha256(ascii((adapter, cache_salt, kv_dtype)).encode()).digest()


def block_key(parent: bytes, token_ids: Iterable[int], extra: bytes = b"") -> bytes:
    """The key of a full block: a hash over its parent's key, its token ids and what else its content depends on.

    Cryptographic, because a client who could make two prompts collide would read another's cache.
    """
    return sha256(parent + array("q", token_ids).tobytes() + extra).digest()


class BlockPool:
    """`num_blocks` blocks of `block_size` token slots; ids 0..num_blocks-1.

    A block is free (reference count 0, in the free list), pending (held, and being filled under a key that others may
    wait for) or owned (held). A free block keeps its key and can be found until it is handed out again, so that
    "free" and "cached" are not two numbers. The order of reuse: freed blocks without a key, blocks never used (so that
    no more of the cache's pages are touched than need be), then the least recently freed. An OrderedDict removes from
    the middle in O(1) and in C. No operation of a step walks the pool; `check` and `forget` do.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ConfigError(f"A block pool needs blocks and slots, got {num_blocks} blocks of {block_size} tokens.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks
        self.pending: dict[bytes, tuple[int, int]] = {}  # key -> (block, priority of the sequence that fills it)
        self._keys: list[bytes | None] = [None] * num_blocks
        self.num_evictions = 0  # blocks handed out again whose content could still be found
        self._published: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()  # those that have been used
        self._num_used = 0  # blocks from here on have never been handed out

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free) + self.num_blocks - self._num_used

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by key."""
        return len(self._published)

    def lookup(self, key: bytes) -> int | None:
        """The block published under a key."""
        return self._published.get(key)

    def allocate(self, count: int) -> list[int]:
        """Hands out `count` blocks, first in the order of reuse, and evicts their keys; `num_free` must allow it."""
        blocks: list[int] = []
        free, keys = self._free, self._keys
        while len(blocks) < count:
            if self._num_used < self.num_blocks and (not free or keys[next(iter(free))] is not None):
                block = self._num_used
                self._num_used += 1
            else:
                block, _ = free.popitem(last=False)
                key = keys[block]
                if key is not None:
                    del self._published[key]
                    keys[block] = None
                    self.num_evictions += 1
            self.ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def share(self, block: int) -> None:
        """One more table holds the block; takes it out of the free list where nobody did."""
        if self.ref_counts[block] == 0:
            del self._free[block]
        self.ref_counts[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """One table less holds each block; the last ones given are reused last, so give a sequence's tail first."""
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None
                if self._keys[block] is None:
                    self._free.move_to_end(block, last=False)

    def pend(self, block: int, key: bytes, priority: int) -> None:
        """Announces that a sequence fills the block under this key; the first to announce a key keeps it."""
        if key not in self.pending and key not in self._published:
            self.pending[key] = (block, priority)

    def withdraw(self, block: int, key: bytes) -> None:
        """Takes an announcement back, so that nobody waits for it."""
        if self.pending.get(key, (-1, 0))[0] == block:
            del self.pending[key]

    def publish(self, block: int, key: bytes) -> None:
        """Makes a full, computed block findable. Of two with one content the first stays: no table is rewritten."""
        self.withdraw(block, key)
        if key not in self._published and self._keys[block] is None:
            self._published[key] = block
            self._keys[block] = key

    def forget(self) -> None:
        """Makes no block findable any longer; those that are held stay with their holders."""
        self._published.clear()
        self._keys = [None] * self.num_blocks

    def check(self, holders: Mapping[int, int], content_keys: Mapping[int, bytes]) -> None:
        """Asserts law L2, given how many tables hold each block and the keys recomputed from their tokens."""
        held = {block: count for block, count in enumerate(self.ref_counts) if count}
        assert held == dict(holders), f"reference counts {held} differ from the tables {dict(holders)}"
        assert set(self._free).isdisjoint(held) and self.num_free + len(held) == self.num_blocks, (
            "free and held overlap"
        )
        assert max([*held, *self._free], default=-1) < self._num_used, "a block was used before its turn"
        assert {key: block for block, key in enumerate(self._keys) if key is not None} == self._published, (
            "keys disagree"
        )
        assert max(Counter(self._published.values()).values(), default=1) == 1, "a block has two keys"
        for key, (block, _) in self.pending.items():
            assert block in held and self._keys[block] is None, f"pending block {block} is free or published"
            assert content_keys.get(block, key) == key, f"block {block} is pending under a key of other tokens"
        for block, content_key in content_keys.items():
            assert self._keys[block] in (None, content_key), f"the key of block {block} is not that of its tokens"
