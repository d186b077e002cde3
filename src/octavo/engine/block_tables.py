"""Which blocks a sequence holds in every cache group: reserving, sharing, publishing and giving them back."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from octavo.engine.batch import Batch, BlockCopy
from octavo.engine.block_pool import BlockPool, block_key, root_key
from octavo.engine.request import Sequence
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table. In a "window" group position p reads positions above p - window only."""

    kind: Literal["full", "window"]
    num_blocks: int
    block_size: int
    window: int = 0

    def __post_init__(self) -> None:
        if (self.kind == "window") != (self.window > 0):
            raise ConfigError(f"A {self.kind} cache group cannot have window={self.window}.")

    def first_block(self, position: int) -> int:
        """The first block that queries from `position` on may read."""
        return max(0, position - self.window + 1) // self.block_size if self.window else 0


class BlockTables:
    """The block pools of all cache groups, and the one way in which sequences take from them and give back.

    Tables are append-only while a sequence runs, but for two things: a block behind a window becomes -1, and a shared
    last block is replaced by a copy before the first write. Blocks given up while a step is in flight are held until
    it is committed.
    """

    def __init__(self, groups: list[CacheGroup], kv_dtype: str) -> None:
        if not groups or len({group.block_size for group in groups}) != 1:
            raise ConfigError("Cache groups need one block size in common.")
        self.groups = groups
        self.pools = [BlockPool(group.num_blocks, group.block_size) for group in groups]
        self.block_size = groups[0].block_size
        self.kv_dtype = kv_dtype
        self.last_step = 0
        self.num_in_flight = 0
        self._held: deque[tuple[int, int, list[int]]] = deque()  # (last step that may read them, group, blocks)
        self._lead = next((i for i, group in enumerate(groups) if not group.window), 0)  # where blocks are pending

    @property
    def max_tokens(self) -> int | None:
        """The most tokens that one sequence alone can hold, None where only windows are kept."""
        return min((g.num_blocks * g.block_size for g in self.groups if not g.window), default=None)

    @property
    def holds_back(self) -> bool:
        """Whether blocks will come free by committing a step in flight."""
        return bool(self._held)

    def can_hold(self, num_tokens: int) -> bool:
        """Whether the full groups have room for so many tokens, now or once what is held comes back."""
        needed = -(-num_tokens // self.block_size)
        held = Counter[int]()
        for _, group, blocks in self._held:
            held[group] += len(blocks)
        free = [pool.num_free + held[index] for index, pool in enumerate(self.pools) if not self.groups[index].window]
        return all(needed <= count for count in free)

    # Taking blocks.

    def reserve(self, sequence: Sequence, count: int, batch: Batch) -> bool:
        """Makes the tables hold `count` more tokens, all or nothing; copies and opened blocks are noted in the batch.

        A full group gets blocks for all known tokens at once, so that whoever is admitted can finish its prompt; a
        window group only for the chunk, after giving up what has left the window.
        """
        start = sequence.num_computed_tokens
        end = start + count
        if end <= sequence.num_reserved_tokens:
            return True
        tail = start // self.block_size
        needs = []
        for index, (group, pool, table) in enumerate(zip(self.groups, self.pools, sequence.block_tables, strict=True)):
            if group.window:
                self._free_behind(sequence, index, group.first_block(start))
            most = end if group.window else max(end, len(sequence.token_ids))
            copies = sequence.shares_tail and start % self.block_size > 0 and pool.ref_counts[table[tail]] > 1
            num_new = max(0, -(-most // self.block_size) - len(table))
            if num_new + copies > pool.num_free:
                return False
            needs.append((num_new, copies))
        for index, (num_new, copies) in enumerate(needs):
            pool, table = self.pools[index], sequence.block_tables[index]
            if copies:
                src, dst = table[tail], pool.allocate(1)[0]
                batch.copies.append(BlockCopy(index, src, dst))
                table[tail] = dst
                pool.free((src,))
            blocks = pool.allocate(num_new)
            batch.opened[index] += blocks
            table += blocks
            if index == self._lead:
                keys = sequence.block_keys
                for position in range(len(table) - num_new, min(len(table), len(keys))):
                    pool.pend(table[position], keys[position], sequence.order[0])
        sequence.shares_tail = False
        sequence.num_reserved_tokens = min(map(len, sequence.block_tables)) * self.block_size
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets the child share all blocks of the parent; whoever writes into a shared last block first copies it."""
        for pool, source, table in zip(self.pools, parent.block_tables, child.block_tables, strict=True):
            table += source
            for block in _real(table):
                pool.share(block)
        child.num_computed_tokens = parent.num_computed_tokens
        child.num_published_blocks = parent.num_published_blocks
        child.shares_tail = parent.shares_tail = True
        parent.num_reserved_tokens = 0  # as the child's: `reserve` has to look at the tail before the next write

    # Prefixes.

    def find_prefix(self, sequence: Sequence) -> int | None:
        """How many blocks the cache has; None where a running sequence of no lower priority computes the next one."""
        if sequence.waits_for is not None and self._is_coming(sequence.waits_for, sequence):
            return None
        most = (len(sequence.token_ids) - 1) // self.block_size  # the last token is always computed
        keys = self._keys(sequence, len(sequence.token_ids) // self.block_size)
        num_hits = longest_prefix(self.groups, self.pools, keys[:most])
        if num_hits < most and self._is_coming(keys[num_hits], sequence):
            sequence.waits_for = keys[num_hits]
            return None
        sequence.waits_for = None
        return num_hits

    def share_prefix(self, sequence: Sequence, num_hits: int) -> None:
        """Gives a waiting sequence the blocks that `find_prefix` found; they count as computed."""
        for group, pool, table in zip(self.groups, self.pools, sequence.block_tables, strict=True):
            first = min(num_hits, group.first_block(num_hits * self.block_size))
            table += [-1] * first
            for key in sequence.block_keys[first:num_hits]:
                block = pool.lookup(key)
                assert block is not None, "longest_prefix found this block"
                pool.share(block)
                table.append(block)
        sequence.num_published_blocks = num_hits
        sequence.num_computed_tokens = sequence.num_reserved_tokens = num_hits * self.block_size

    def unshare_prefix(self, sequence: Sequence) -> None:
        """Undoes `share_prefix`: nothing was read or written, so that nothing is held for a step in flight."""
        for pool, table in zip(self.pools, sequence.block_tables, strict=True):
            pool.free(_real(reversed(table)))
            table.clear()
        sequence.reset()

    def publish(self, sequence: Sequence, end: int) -> None:
        """Makes the full blocks of the first `end` positions findable: computed, committed and accepted ones only."""
        first, last = sequence.num_published_blocks, end // self.block_size
        if last <= first:
            return
        keys = self._keys(sequence, last)
        for pool, table in zip(self.pools, sequence.block_tables, strict=True):
            for index in range(first, last):
                if table[index] >= 0:
                    pool.publish(table[index], keys[index])
        sequence.num_published_blocks = last

    def _keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """The keys of at least the first `count` full blocks; each block is hashed once."""
        keys, size, request = sequence.block_keys, self.block_size, sequence.request
        for index in range(len(keys), count):
            parent = keys[-1] if keys else root_key(request.adapter, request.cache_salt, self.kv_dtype)
            keys.append(block_key(parent, sequence.token_ids[index * size : (index + 1) * size]))
        return keys

    def _is_coming(self, key: bytes, sequence: Sequence) -> bool:
        pending = self.pools[self._lead].pending.get(key)
        return pending is not None and pending[1] <= sequence.order[0]

    # Giving back.

    def release(self, sequence: Sequence) -> None:
        """Gives back all blocks of a sequence, tail first, and forgets what is not committed. Twice changes nothing."""
        self._withdraw(sequence, sequence.num_published_blocks, len(sequence.block_tables[self._lead]))
        for index, table in enumerate(sequence.block_tables):
            self._give_back(index, list(_real(reversed(table))))
            sequence.block_tables[index] = []
        sequence.reset()

    def retire(self, step: int) -> None:
        """A step has left: frees what was held for it."""
        self.num_in_flight -= 1
        while self._held and self._held[0][0] <= step:
            _, group, blocks = self._held.popleft()
            self.pools[group].free(blocks)

    def _free_behind(self, sequence: Sequence, group: int, first: int) -> None:
        """Gives back the blocks before `first`, which no later query reads."""
        table, blocks = sequence.block_tables[group], []
        index = min(first, len(table)) - 1
        while index >= 0 and table[index] >= 0:
            blocks.append(table[index])
            index -= 1
        if group == self._lead:
            self._withdraw(sequence, index + 1, index + 1 + len(blocks))
        table[index + 1 : index + 1 + len(blocks)] = [-1] * len(blocks)
        self._give_back(group, blocks)

    def _withdraw(self, sequence: Sequence, first: int, last: int) -> None:
        """Lets nobody wait for these blocks of a sequence any longer."""
        pool, table = self.pools[self._lead], sequence.block_tables[self._lead]
        for index in range(first, min(last, len(sequence.block_keys))):
            if table[index] >= 0:
                pool.withdraw(table[index], sequence.block_keys[index])

    def _give_back(self, group: int, blocks: list[int]) -> None:
        if blocks and self.num_in_flight:
            self._held.append((self.last_step, group, blocks))
        else:
            self.pools[group].free(blocks)

    def check(self, running: list[Sequence]) -> None:
        """Asserts law L2, given all sequences that may hold blocks; for tests, walks everything."""
        holders: list[Counter[int]] = [Counter() for _ in self.groups]
        keys: list[dict[int, bytes]] = [{} for _ in self.groups]
        for _, group_index, blocks in self._held:
            holders[group_index].update(blocks)
        for sequence in running:
            parent, content = root_key(sequence.request.adapter, sequence.request.cache_salt, self.kv_dtype), []
            for first in range(0, len(sequence.token_ids) - self.block_size + 1, self.block_size):
                parent = block_key(parent, sequence.token_ids[first : first + self.block_size])
                content.append(parent)
            assert content[: len(sequence.block_keys)] == sequence.block_keys, f"{sequence} has keys of other tokens"
            for index, (group, table) in enumerate(zip(self.groups, sequence.block_tables, strict=True)):
                first = group.first_block(sequence.num_computed_tokens)
                assert sequence.num_computed_tokens <= len(table) * self.block_size, f"{sequence} lacks blocks"
                assert -1 not in table[first:], f"{sequence} lost a block that it can see"
                holders[index].update(_real(table))
                keys[index] |= {block: key for block, key in zip(table, content, strict=False) if block >= 0}
        for pool, held, content_keys in zip(self.pools, holders, keys, strict=True):
            pool.check(held, content_keys)
            assert running or not pool.pending, "blocks are pending while nothing runs"
        if not running and not self.num_in_flight:
            assert not self._held and all(pool.num_free == pool.num_blocks for pool in self.pools), "blocks leaked"


def longest_prefix(groups: list[CacheGroup], pools: list[BlockPool], keys: list[bytes]) -> int:
    """The most blocks from the first on that every group can serve: a window group only those the window sees."""
    most = len(keys)
    windows = []
    for group, pool in sorted(zip(groups, pools, strict=True), key=lambda pair: pair[0].window):  # full groups first
        if not group.window:
            most = next((index for index, key in enumerate(keys[:most]) if pool.lookup(key) is None), most)
            continue
        lengths = [0]  # of the run of cached blocks that ends before each block
        for key in keys[:most]:
            lengths.append(0 if pool.lookup(key) is None else lengths[-1] + 1)
        windows.append((group, lengths))
    while any(lengths[most] < most - group.first_block(most * group.block_size) for group, lengths in windows):
        most -= 1
    return most


def _real(table: Iterable[int]) -> Iterable[int]:
    return (block for block in table if block >= 0)
