from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.harness import examples
from tinyllm.core.block_pool import BlockPool, KVCacheBlock
from tinyllm.core.integrity import IntegrityError
from tinyllm.errors import ConfigError


def publish(pool: BlockPool, block: KVCacheBlock, name: str) -> bool:
    return pool.publish(block, name.encode(), b"parent", (ord(name[0]),))


def lookup(pool: BlockPool, name: str) -> KVCacheBlock | None:
    return pool.lookup(name.encode(), b"parent", (ord(name[0]),))


def take(pool: BlockPool, number: int) -> list[KVCacheBlock]:
    blocks = pool.allocate(number)
    assert blocks is not None
    return blocks


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        BlockPool(0)


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free_blocks == 3
    assert len({block.block_id for block in take(pool, 3)}) == 3
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_shared_block_is_free_only_when_all_gave_it_back() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    pool.touch([block])
    pool.free([block])
    assert pool.num_free_blocks == 1
    pool.free([block])
    assert pool.num_free_blocks == 2
    with pytest.raises(IntegrityError, match="nobody holds it"):
        pool.free([block])


def test_a_cached_block_stays_until_its_room_is_needed_and_the_oldest_goes_first() -> None:
    pool = BlockPool(3)
    a, b, c = take(pool, 3)
    assert publish(pool, a, "a")
    assert publish(pool, b, "b")
    pool.free([b, a, c])
    assert take(pool, 1) == [c]  # the empty one first
    assert lookup(pool, "b") is b
    assert take(pool, 1) == [b]
    assert lookup(pool, "b") is None
    assert lookup(pool, "a") is a
    assert pool.num_evictions == 1


def test_a_touched_block_is_not_evicted_and_then_is_the_newest() -> None:
    pool = BlockPool(2)
    a, b = take(pool, 2)
    publish(pool, a, "a")
    publish(pool, b, "b")
    pool.free([a, b])
    pool.touch([a])
    assert pool.num_free_blocks == 1
    pool.free([a])
    assert take(pool, 1) == [b]
    assert lookup(pool, "a") is a


def test_a_hit_is_exact_even_if_hashes_collide() -> None:
    pool = BlockPool(2)
    a, b = take(pool, 2)
    assert pool.publish(a, b"same", b"parent", (1, 2))
    assert pool.lookup(b"same", b"parent", (1, 2)) is a
    assert pool.lookup(b"same", b"parent", (1, 3)) is None
    assert pool.lookup(b"same", b"other", (1, 2)) is None
    assert not pool.publish(b, b"same", b"parent", (1, 3))  # the first stays
    assert pool.lookup(b"same", b"parent", (1, 2)) is a
    pool.check_integrity()


def test_only_a_block_in_use_is_published_and_only_once() -> None:
    pool = BlockPool(1)
    (block,) = take(pool, 1)
    publish(pool, block, "a")
    with pytest.raises(IntegrityError):
        publish(pool, block, "b")
    pool.free([block])
    with pytest.raises(IntegrityError):
        publish(pool, block, "b")


@pytest.mark.parametrize(("bound", "kept"), [(0, ""), (1, "c"), (2, "bc"), (None, "abc")])
def test_the_number_of_cached_blocks_is_bounded(bound: int | None, kept: str) -> None:
    pool = BlockPool(4, bound)
    blocks = take(pool, 3)
    for block, name in zip(blocks, "abc", strict=True):
        publish(pool, block, name)
    assert pool.num_published_blocks == 3  # in use, so not bounded
    pool.free(blocks)
    assert [name for name in "abc" if lookup(pool, name)] == list(kept)
    assert pool.num_free_blocks == 4
    pool.check_integrity()


def test_the_integrity_check_notices_damage() -> None:
    pool = BlockPool(2)
    (block,) = take(pool, 1)
    publish(pool, block, "a")
    block.ref_cnt = 0
    with pytest.raises(IntegrityError):
        pool.check_integrity()
    block.ref_cnt = 1
    block.block_hash = b"x"
    with pytest.raises(IntegrityError):
        pool.check_integrity()
    block.block_hash = None
    with pytest.raises(IntegrityError):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """`BlockPool` against a model of plain dicts: references, contents, and cached ids, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.bound = 8, 5
        self.pool = BlockPool(self.size, self.bound)
        self.refs = dict.fromkeys(range(self.size), 0)
        self.content: dict[int, tuple[bytes, bytes, tuple[int, ...]]] = {}
        self.cached: list[int] = []

    def in_use(self) -> list[int]:
        return [block_id for block_id, refs in self.refs.items() if refs]

    @rule(number=st.integers(0, 4))
    def allocate(self, number: int) -> None:
        free = [block_id for block_id, refs in self.refs.items() if not refs]
        blocks = self.pool.allocate(number)
        if number > len(free):
            assert blocks is None
            return
        assert blocks is not None
        ids = [block.block_id for block in blocks]
        num_empty = len(free) - len(self.cached)
        evicted = self.cached[: max(0, number - num_empty)]
        assert len(set(ids)) == number
        assert set(ids) <= set(free)
        assert ids[num_empty:] == evicted
        for block_id in evicted:
            self.cached.remove(block_id)
            del self.content[block_id]
        assert not set(ids) & set(self.content)
        self.refs.update(dict.fromkeys(ids, 1))

    @precondition(lambda self: self.in_use())
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(self.in_use()))
        self.pool.touch([self.pool.blocks[block_id]])
        self.refs[block_id] += 1

    @precondition(lambda self: self.in_use())
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.in_use()), min_size=1, unique=True))
        self.pool.free([self.pool.blocks[block_id] for block_id in ids])
        for block_id in ids:
            self.refs[block_id] -= 1
            if not self.refs[block_id] and block_id in self.content:
                self.cached.append(block_id)
        for block_id in self.cached[: max(0, len(self.cached) - self.bound)]:
            self.cached.remove(block_id)
            del self.content[block_id]

    @precondition(lambda self: bool(set(self.in_use()) - set(self.content)))
    @rule(data=st.data(), name=st.integers(0, 9), token=st.integers(0, 1))
    def publish(self, data: st.DataObject, name: int, token: int) -> None:
        block_id = data.draw(st.sampled_from(sorted(set(self.in_use()) - set(self.content))))
        content = (b"%d" % name, b"parent", (token,))  # two contents for each hash: collisions
        taken = any(block_hash == content[0] for block_hash, _, _ in self.content.values())
        assert self.pool.publish(self.pool.blocks[block_id], *content) == (not taken)
        if not taken:
            self.content[block_id] = content

    @rule(name=st.integers(0, 9), token=st.integers(0, 1))
    def find(self, name: int, token: int) -> None:
        content = (b"%d" % name, b"parent", (token,))
        holders = [block_id for block_id, known in self.content.items() if known == content]
        block = self.pool.lookup(*content)
        assert [block.block_id] == holders if block else not holders

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.content)))
        block = self.pool.lookup(*self.content[block_id])
        assert block is self.pool.blocks[block_id]
        self.pool.touch([block])
        self.refs[block_id] += 1
        if block_id in self.cached:
            self.cached.remove(block_id)

    @invariant()
    def the_same(self) -> None:
        self.pool.check_integrity()
        assert {block.block_id: block.ref_cnt for block in self.pool.blocks} == self.refs
        assert self.pool.num_free_blocks == list(self.refs.values()).count(0)
        assert self.pool.num_cached_blocks == len(self.cached)
        assert self.pool.num_published_blocks == len(self.content)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = examples(20, steps=100)
