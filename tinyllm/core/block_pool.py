"""`BlockPool`: which KV blocks are free, in use, or kept for their content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from tinyllm.core.integrity import require
from tinyllm.errors import ConfigError

__all__ = ["BlockPool", "KVCacheBlock"]


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """One block of the physical KV cache.

    A published block also knows its content, so that a hit is verified exactly and never trusts a hash.
    """

    block_id: int
    ref_cnt: int = 0
    """Block tables that hold it."""
    block_hash: bytes | None = None
    """Under which it is published; None where it is not."""
    parent_hash: bytes | None = None
    token_ids: tuple[int, ...] = ()


class BlockPool:
    """Free list, reference counts and the map of published blocks. Every operation is O(1) a block.

    A block is in use (``ref_cnt > 0``), free and empty, or free and cached: published, and kept in the map
    until its room is needed (least recently freed first) or there are more than ``max_cached_blocks``.
    """

    def __init__(self, num_blocks: int, max_cached_blocks: int | None = None) -> None:
        """Raise `ConfigError` unless there is at least one block.

        ``max_cached_blocks`` bounds the blocks kept only for their content; None is all that are free.
        """
        if num_blocks < 1:
            raise ConfigError(f"the KV cache has {num_blocks} blocks, but needs at least 1")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.max_cached_blocks = num_blocks if max_cached_blocks is None else max_cached_blocks
        self.num_evictions = 0
        """Cached blocks whose content was given up."""
        self._empty = self.blocks[::-1]
        self._cached: OrderedDict[int, KVCacheBlock] = OrderedDict()
        self._published: dict[bytes, KVCacheBlock] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` could hand out, cached ones included."""
        return len(self._empty) + len(self._cached)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that are kept for their content."""
        return len(self._cached)

    @property
    def num_published_blocks(self) -> int:
        """Blocks that `lookup` can find, in use or free."""
        return len(self._published)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock] | None:
        """Take blocks with ``ref_cnt`` 1, empty ones first; None, and nothing taken, if there are too few."""
        if num_blocks > self.num_free_blocks:
            return None
        taken = []
        for _ in range(num_blocks):
            block = self._empty.pop() if self._empty else self._evict()
            block.ref_cnt = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Take one more reference to each block; a cached one leaves the free list."""
        for block in blocks:
            if block.ref_cnt == 0:
                del self._cached[block.block_id]
            block.ref_cnt += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Give back one reference to each block. Those given back first are reused first."""
        for block in blocks:
            require(block.ref_cnt > 0, f"block {block.block_id} is freed, but nobody holds it")
            block.ref_cnt -= 1
            if block.ref_cnt:
                continue
            if block.block_hash is None:
                self._empty.append(block)
            else:
                self._cached[block.block_id] = block
        while len(self._cached) > self.max_cached_blocks:
            self._empty.append(self._evict())

    def publish(
        self, block: KVCacheBlock, block_hash: bytes, parent_hash: bytes, token_ids: tuple[int, ...]
    ) -> bool:
        """Let `lookup` find a block in use whose content is complete. False if its hash is taken already."""
        require(block.ref_cnt > 0 and block.block_hash is None, f"block {block.block_id} cannot be published")
        if block_hash in self._published:
            return False
        block.block_hash, block.parent_hash, block.token_ids = block_hash, parent_hash, token_ids
        self._published[block_hash] = block
        return True

    def lookup(
        self, block_hash: bytes, parent_hash: bytes, token_ids: tuple[int, ...]
    ) -> KVCacheBlock | None:
        """Return the block with exactly this content, or None. Changes nothing."""
        block = self._published.get(block_hash)
        if block is None or block.token_ids != token_ids or block.parent_hash != parent_hash:
            return None
        return block

    def forget(self) -> None:
        """Give up the content of every block: `lookup` finds nothing. Blocks in use stay in use."""
        for block in self._published.values():
            block.block_hash, block.parent_hash, block.token_ids = None, None, ()
        self._published.clear()
        self._empty.extend(self._cached.values())
        self._cached.clear()

    def _evict(self) -> KVCacheBlock:
        """Give up the content of the cached block that was freed the longest ago."""
        _, block = self._cached.popitem(last=False)
        if block.block_hash is not None:
            del self._published[block.block_hash]
        block.block_hash, block.parent_hash, block.token_ids = None, None, ()
        self.num_evictions += 1
        return block

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every block is in exactly one place and the map is exact."""
        empty = {block.block_id for block in self._empty}
        require(len(empty) == len(self._empty), "a block is twice in the free list")
        require(empty.isdisjoint(self._cached), "a block is both empty and cached")
        require(len(self._cached) <= self.max_cached_blocks, "more blocks are cached than allowed")
        for block in self.blocks:
            free = block.block_id in empty or block.block_id in self._cached
            require(block.ref_cnt >= 0, f"block {block.block_id} has a negative reference count")
            require(
                free == (block.ref_cnt == 0), f"block {block.block_id} is both free and in use, or neither"
            )
            published = block.block_hash is not None
            require(not (published and block.block_id in empty), f"block {block.block_id} is not empty")
            require(published or block.block_id not in self._cached, f"block {block.block_id} has no content")
        for block_hash, block in self._published.items():
            require(block.block_hash == block_hash, f"block {block.block_id} is published under another hash")
        published_blocks = sum(block.block_hash is not None for block in self.blocks)
        require(published_blocks == len(self._published), "the map of published blocks has lost one")
