"""`KVCacheManager`: which blocks hold the tokens of which request, and whose content can be shared."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain

from tinyllm.core.block_pool import BlockPool, KVCacheBlock
from tinyllm.core.integrity import require
from tinyllm.core.request import Request
from tinyllm.errors import ConfigError

__all__ = ["KVCacheManager", "PrefixCacheStats", "hash_block"]


def hash_block(parent_hash: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the identity of a full block: SHA-256 of all that stands before it, and its own tokens."""
    return sha256(parent_hash + array("q", token_ids).tobytes()).digest()


@dataclass(slots=True)
class PrefixCacheStats:
    """What requests found in the prefix cache when they were first scheduled."""

    requests: int = 0
    full_hits: int = 0
    """All that could be reused was: every full block before the last token."""
    partial_hits: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0

    def record(self, num_tokens: int, num_hit_tokens: int, block_size: int) -> None:
        """Count one request of ``num_tokens``, of which ``num_hit_tokens`` were found."""
        self.requests += 1
        self.queried_tokens += num_tokens
        self.hit_tokens += num_hit_tokens
        if num_hit_tokens == 0:
            return
        if num_hit_tokens + block_size < num_tokens:
            self.partial_hits += 1
        else:
            self.full_hits += 1


class KVCacheManager:
    """Block tables of the running requests, over one `BlockPool`.

    ``identity`` says what the stored numbers depend on beside the tokens (model, dtype, layout); with the
    request's ``cache_salt`` it seeds the chain of hashes, so nothing is shared across either.

    Without prefix caching, blocks are still shared among the ``n`` answers to one prompt, and only while one
    of them holds them. The contiguous mode is this with blocks of ``max_model_len`` tokens.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        max_cached_blocks: int | None = None,
        identity: bytes = b"",
    ) -> None:
        """Raise `ConfigError` unless ``num_blocks`` and ``block_size`` are at least 1."""
        if block_size < 1:
            raise ConfigError(f"block_size is {block_size}, but must be at least 1")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks, max_cached_blocks if enable_prefix_caching else 0)
        self.stats = PrefixCacheStats()
        self._identity = sha256(identity).digest()
        self._block_tables: dict[Request, list[int]] = {}
        self._num_committed: dict[Request, int] = {}
        """Blocks of each table that are full, and published where they may be shared."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the whole cache."""
        return len(self.pool.blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return self.pool.num_free_blocks

    @property
    def capacity(self) -> int:
        """Tokens the whole cache holds."""
        return self.num_blocks * self.block_size

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, from 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that so many tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def block_table(self, request: Request) -> list[int]:
        """Return the ids of the request's blocks, in order: the live list, not to be changed."""
        return self._block_tables[request]

    def get_computed_blocks(self, request: Request) -> list[KVCacheBlock]:
        """Return the published blocks that the request could start with. Takes nothing.

        The last token is never among their tokens: it must be computed to sample the next. Nor are prompt
        tokens whose rows are still to be scored for ``prompt_logprobs``.
        """
        if not self._shares(request):
            return []
        blocks: list[KVCacheBlock] = []
        for index in range(_most_reused(request) // self.block_size):
            block = self.pool.lookup(*self._content(request, index))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def has_computed_blocks(self, request: Request, num_blocks: int) -> bool:
        """Whether `get_computed_blocks` returns so many. Looks at the last one first, so that no is quick."""
        if num_blocks < 1:
            return True
        if not self._shares(request) or num_blocks * self.block_size >= request.num_tokens:
            return False
        if self.pool.lookup(*self._content(request, num_blocks - 1)) is None:
            return False
        return len(self.get_computed_blocks(request)) >= num_blocks

    def num_shared_tokens(self, request: Request, other: Request) -> int:
        """Return the tokens of the blocks that ``request`` could take from ``other``, once it computed them.

        The block that samples the other's next token does not count, as that may wait for a reader. Not exact
        where the other has computed all of them: then it may be less.
        """
        if not self._shares(request) or self._namespace(request) != self._namespace(other):
            return 0
        size = self.block_size
        most = min(_most_reused(request), other.num_tokens - 1) // size
        next_block = other.num_computed_tokens // size  # if that differs, nothing is left to be shared
        if next_block >= most:
            return 0
        for index in chain([next_block], range(most)):
            block = slice(index * size, (index + 1) * size)
            if request.token_ids[block] != other.token_ids[block]:
                return index * size
        return most * size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        computed_blocks: Sequence[KVCacheBlock] = (),
        *,
        reserve: int = 0,
    ) -> bool:
        """Give the request blocks for its next ``num_new_tokens``; False, and nothing done, if it cannot.

        They follow its ``num_computed_tokens``, or, when it has no blocks yet, those of ``computed_blocks``
        (of `get_computed_blocks`), which it then shares. ``reserve`` blocks must stay free.
        """
        table = self._block_tables.get(request)
        if table is not None:
            missing = self.blocks_for(request.num_computed_tokens + num_new_tokens) - len(table)
            if missing <= 0:
                return True
        else:
            missing = self.blocks_for(len(computed_blocks) * self.block_size + num_new_tokens) - len(
                computed_blocks
            )
            reserve += sum(block.ref_cnt == 0 for block in computed_blocks)
        if missing + reserve > self.pool.num_free_blocks:
            return False
        if table is None:
            self.pool.touch(computed_blocks)
            table = self._block_tables[request] = [block.block_id for block in computed_blocks]
            self._num_committed[request] = len(table)
        table += [block.block_id for block in self.pool.allocate(missing) or ()]
        return True

    def commit(self, request: Request) -> None:
        """Publish the blocks that ``num_computed_tokens`` has filled: their keys and values are stored."""
        first, end = self._num_committed[request], request.num_computed_tokens // self.block_size
        if end <= first:
            return
        self._num_committed[request] = end
        if not self._shares(request):
            return
        for index in range(first, end):
            block = self.pool.blocks[self._block_tables[request][index]]
            self.pool.publish(block, *self._content(request, index))

    def free(self, request: Request) -> None:
        """Give back all blocks of the request, if any; its beginning stays in the cache the longest."""
        table = self._block_tables.pop(request, [])
        self._num_committed.pop(request, None)
        self.pool.free(self.pool.blocks[block_id] for block_id in reversed(table))

    def reset_prefix_cache(self) -> None:
        """Forget what is cached; requests that run keep the blocks they share."""
        self.pool.forget()

    def _shares(self, request: Request) -> bool:
        return self.enable_prefix_caching or request.params.n > 1

    def _content(self, request: Request, index: int) -> tuple[bytes, bytes, tuple[int, ...]]:
        """Return hash, parent's hash and tokens of a full block; the chain is remembered on the request."""
        hashes, size = request.block_hashes, self.block_size
        if not hashes:
            hashes.append(self._seed(request))
        while len(hashes) <= index + 1:
            start = (len(hashes) - 1) * size
            hashes.append(hash_block(hashes[-1], request.token_ids[start : start + size]))
        return hashes[index + 1], hashes[index], tuple(request.token_ids[index * size : (index + 1) * size])

    def _seed(self, request: Request) -> bytes:
        """Return the parent of a request's first block."""
        namespace = self._namespace(request).encode("utf-8", "surrogatepass")
        return sha256(self._identity + namespace).digest()

    def _namespace(self, request: Request) -> str:
        """Return who may share with whom: those that have the same."""
        if self.enable_prefix_caching:
            return "salt:" + request.cache_salt
        return "group:" + (request.leader or request).request_id

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise `IntegrityError` unless exactly these requests hold blocks, and every reference is theirs."""
        self.pool.check_integrity()
        require(set(self._block_tables) == set(requests), "blocks are held by requests that do not run")
        require(self._num_committed.keys() == self._block_tables.keys(), "the books of two requests differ")
        held = Counter(block_id for table in self._block_tables.values() for block_id in table)
        for block in self.pool.blocks:
            require(
                block.ref_cnt == held[block.block_id],
                f"block {block.block_id} has {block.ref_cnt} references, but {held[block.block_id]} holders",
            )
        for request, table in self._block_tables.items():
            committed = self._num_committed[request]
            require(
                committed * self.block_size <= request.num_computed_tokens <= len(table) * self.block_size,
                f"request {request.request_id}: {request.num_computed_tokens} tokens in {len(table)} blocks",
            )


def _most_reused(request: Request) -> int:
    """Return how many of its tokens need not be computed, if their keys and values are there."""
    most = request.num_tokens - 1
    return min(most, request.num_prompt_scores) if request.wants_prompt_scores else most
