from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.core.harness import examples, make_request
from tinyllm.core.integrity import IntegrityError
from tinyllm.core.kv_cache_manager import KVCacheManager, hash_block
from tinyllm.core.request import Request
from tinyllm.errors import ConfigError
from tinyllm.params import SamplingParams


def compute(kv: KVCacheManager, request: Request) -> int:
    """Admit the request, compute all its tokens, and return how many came from the cache."""
    computed = kv.get_computed_blocks(request)
    num_cached = len(computed) * kv.block_size
    assert kv.allocate_slots(request, request.num_tokens - num_cached, computed)
    request.num_computed_tokens = request.num_tokens
    kv.commit(request)
    return num_cached


def hits(kv: KVCacheManager, request: Request) -> int:
    return len(kv.get_computed_blocks(request))


def test_sizes_are_checked() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        KVCacheManager(1, 0)
    with pytest.raises(ConfigError, match="at least 1"):
        KVCacheManager(0, 16)


def test_blocks_are_taken_as_tokens_need_them() -> None:
    kv = KVCacheManager(4, 4)
    request = make_request(6, 9)
    assert kv.allocate_slots(request, 6)
    assert len(kv.block_table(request)) == 2
    assert kv.usage == 0.5
    request.num_computed_tokens = 6
    assert kv.allocate_slots(request, 2)
    assert len(kv.block_table(request)) == 2
    assert kv.allocate_slots(request, 3)
    assert len(kv.block_table(request)) == 3
    assert not kv.allocate_slots(request, 11)
    assert len(kv.block_table(request)) == 3
    kv.check_integrity([request])
    kv.free(request)
    kv.free(request)
    assert kv.num_free_blocks == 4
    kv.check_integrity([])


def test_reserved_blocks_stay_free() -> None:
    kv = KVCacheManager(4, 4)
    request = make_request(8)
    assert not kv.allocate_slots(request, 8, reserve=3)
    assert kv.num_free_blocks == 4
    kv.check_integrity([])
    assert kv.allocate_slots(request, 8, reserve=2)


def test_equal_beginnings_are_shared_in_full_blocks() -> None:
    kv = KVCacheManager(16, 4)
    first, second = make_request(range(10)), make_request([*range(8), 77, 78])
    assert compute(kv, first) == 0
    assert compute(kv, second) == 8
    assert kv.block_table(first)[:2] == kv.block_table(second)[:2]
    assert kv.block_table(first)[2] != kv.block_table(second)[2]
    kv.check_integrity([first, second])


@pytest.mark.parametrize(("length", "reused"), [(4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_full_hit_leaves_the_last_token_to_compute(length: int, reused: int) -> None:
    """D61: also where the prompt is an exact multiple of the block."""
    kv = KVCacheManager(16, 4)
    compute(kv, make_request(range(length)))
    assert hits(kv, make_request(range(length))) == reused


def test_whether_enough_is_cached() -> None:
    kv = KVCacheManager(16, 4)
    compute(kv, make_request(range(12)))
    again = make_request(range(14))
    assert [kv.has_computed_blocks(again, number) for number in range(5)] == [True, True, True, True, False]
    again.token_ids += [14, 15, 16]
    compute(kv, make_request(range(17)))
    assert kv.has_computed_blocks(again, 4)  # asking for an incomplete block left nothing behind
    scored = make_request(range(14), params=SamplingParams(prompt_logprobs=0))
    assert not kv.has_computed_blocks(scored, 1)
    assert not KVCacheManager(16, 4, enable_prefix_caching=False).has_computed_blocks(again, 1)


def test_output_is_shared_too() -> None:
    kv = KVCacheManager(16, 4)
    request = make_request(range(6))
    request.token_ids += [6, 7, 8]
    compute(kv, request)
    kv.free(request)
    assert hits(kv, make_request(range(12))) == 2


def test_only_what_is_computed_is_published() -> None:
    kv = KVCacheManager(16, 4)
    request = make_request(range(12))
    kv.allocate_slots(request, 12)
    assert hits(kv, make_request(range(12))) == 0
    for computed, published in [(3, 0), (4, 1), (7, 1), (12, 2)]:
        request.num_computed_tokens = computed
        kv.commit(request)
        assert hits(kv, make_request(range(12))) == published


def test_what_two_requests_could_share() -> None:
    kv = KVCacheManager(20, 4)
    first, second = make_request(range(14)), make_request([*range(10), *[50] * 4])
    assert kv.num_shared_tokens(second, first) == kv.num_shared_tokens(first, second) == 8
    assert kv.num_shared_tokens(make_request(range(30)), make_request(range(12))) == 8, "not the last token's"
    assert kv.num_shared_tokens(make_request(range(12)), make_request(range(30))) == 8, "nor its own last"
    assert kv.num_shared_tokens(make_request([99, *range(1, 14)]), first) == 0
    first.num_computed_tokens = 9
    assert kv.num_shared_tokens(second, first) == 8, "no more than is computed"
    assert kv.num_shared_tokens(make_request(range(14)), first) == 12
    other = make_request([99, *range(1, 14)])
    assert kv.num_shared_tokens(other, first) == 0, "the next block is the same, the first is not"
    assert kv.num_shared_tokens(make_request(range(14), salt="x"), first) == 0


def test_nothing_is_shared_across_salts_or_identities() -> None:
    kv = KVCacheManager(16, 4, identity=b"llama float32")
    compute(kv, make_request(range(9), salt="a"))
    assert hits(kv, make_request(range(9), salt="a")) == 2
    assert hits(kv, make_request(range(9), salt="b")) == 0
    assert hits(kv, make_request(range(9))) == 0
    other = KVCacheManager(16, 4, identity=b"llama bfloat16")
    mine, theirs = make_request(range(9)), make_request(range(9))
    compute(kv, mine)
    compute(other, theirs)
    assert not set(mine.block_hashes) & set(theirs.block_hashes)
    compute(kv, make_request(range(9), salt="\ud800"))  # any string is a salt


def test_the_same_tokens_after_others_are_another_block() -> None:
    kv = KVCacheManager(16, 4)
    compute(kv, make_request([1, 2, 3, 4, 5, 6, 7, 8]))
    assert hits(kv, make_request([9, 9, 9, 9, 5, 6, 7, 8, 0])) == 0
    assert hits(kv, make_request([5, 6, 7, 8, 0])) == 0
    assert hash_block(b"a", [1, 2]) != hash_block(b"b", [1, 2])


def test_a_hash_collision_is_not_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm.core.kv_cache_manager.hash_block", lambda parent, tokens: b"always the same")
    kv = KVCacheManager(16, 4)
    compute(kv, make_request([1, 2, 3, 4, 0]))
    assert hits(kv, make_request([1, 2, 3, 4, 0])) == 1
    assert hits(kv, make_request([5, 6, 7, 8, 0])) == 0
    assert compute(kv, make_request([5, 6, 7, 8, 0])) == 0


def test_a_query_changes_nothing() -> None:
    kv = KVCacheManager(2, 4)
    first = make_request(range(5))
    compute(kv, first)
    kv.free(first)
    later = make_request(range(100, 104), 1)
    for _ in range(3):
        assert hits(kv, make_request(range(5))) == 1  # looked at often, but not used: still the first to go
    assert kv.num_free_blocks == 2
    assert kv.allocate_slots(later, 8)
    assert hits(kv, make_request(range(5))) == 0


def test_the_end_of_a_freed_request_is_reused_before_its_beginning() -> None:
    kv = KVCacheManager(3, 4)
    first = make_request(range(12))
    compute(kv, first)
    kv.free(first)
    assert kv.allocate_slots(make_request(4), 4)
    assert hits(kv, make_request(range(13))) == 2


def test_a_cached_block_that_is_taken_is_not_counted_as_free() -> None:
    kv = KVCacheManager(3, 4)
    first = make_request(range(12))
    compute(kv, first)
    kv.free(first)
    again = make_request([*range(8), *range(50, 58)])
    computed = kv.get_computed_blocks(again)
    assert len(computed) == 2
    assert not kv.allocate_slots(again, 8, computed)  # 2 more, but 1 is left
    assert kv.num_free_blocks == 3
    kv.check_integrity([])


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it() -> None:
    kv = KVCacheManager(16, 4)
    params = SamplingParams(prompt_logprobs=0)
    first = make_request(range(9), params=params)
    compute(kv, first)
    again = make_request(range(9), params=params)
    assert hits(kv, again) == 0
    assert hits(kv, make_request(range(9))) == 2
    again.num_prompt_scores = 5
    assert hits(kv, again) == 1  # preempted: scores of tokens 1 to 5 are known, so rows 0 to 4 need not run
    again.num_prompt_scores = 8
    assert hits(kv, again) == 2
    assert hits(kv, make_request(range(9), params=params, leader=first)) == 2


def test_without_prefix_caching_only_answers_to_one_prompt_share_and_only_meanwhile() -> None:
    kv = KVCacheManager(16, 4, enable_prefix_caching=False)
    two = SamplingParams(n=2)
    leader = make_request(range(9), params=two)
    compute(kv, leader)
    follower = make_request(range(9), params=two, leader=leader, index=1)
    assert hits(kv, follower) == 2
    assert hits(kv, make_request(range(9), params=two)) == 0
    assert hits(kv, make_request(range(9))) == 0
    assert compute(kv, follower) == 8
    kv.free(leader)
    kv.check_integrity([follower])
    assert kv.pool.num_cached_blocks == 0
    kv.free(follower)
    assert kv.pool.num_published_blocks == 0
    single = make_request(range(9))
    compute(kv, single)
    assert kv.pool.num_published_blocks == 0


def test_a_reset_forgets_what_is_cached_and_leaves_running_requests_their_blocks() -> None:
    kv = KVCacheManager(16, 4)
    first, second = make_request(range(9)), make_request(range(20, 29))
    compute(kv, first)
    compute(kv, second)
    kv.free(first)
    kv.reset_prefix_cache()
    assert hits(kv, make_request(range(9))) == hits(kv, make_request(range(20, 29))) == 0
    assert kv.num_free_blocks == 13
    kv.check_integrity([second])
    kv.free(second)
    assert kv.pool.num_cached_blocks == 0
    kv.check_integrity([])


def test_the_integrity_check_notices_a_leak() -> None:
    kv = KVCacheManager(4, 4)
    request = make_request(8)
    kv.allocate_slots(request, 8)
    with pytest.raises(IntegrityError, match="do not run"):
        kv.check_integrity([])
    kv.pool.blocks[kv.block_table(request)[0]].ref_cnt = 2
    with pytest.raises(IntegrityError, match="2 references"):
        kv.check_integrity([request])


class ManagerMachine(RuleBasedStateMachine):
    """`KVCacheManager` against plain dicts: what each block holds, and who holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCacheManager(10, 2, max_cached_blocks=6)
        self.tables: dict[Request, list[int]] = {}
        self.stored: dict[int, tuple[str, tuple[int, ...]]] = {}
        """What was last written to each block: namespace, and all tokens up to its end."""

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        salt=st.sampled_from(["", "x"]),
        reserve=st.integers(0, 3),
    )
    def admit(self, tokens: list[int], salt: str, reserve: int) -> None:
        request = make_request(tokens, 9, salt=salt)
        computed = self.kv.get_computed_blocks(request)
        assert len(computed) * 2 < len(tokens)
        for index, block in enumerate(computed):
            assert self.stored[block.block_id] == (salt, tuple(tokens[: 2 * index + 2]))
        held = {block_id for table in self.tables.values() for block_id in table}
        free = 10 - len(held | {block.block_id for block in computed})
        needed = -(-len(tokens) // 2) - len(computed)
        ok = self.kv.allocate_slots(request, len(tokens) - 2 * len(computed), computed, reserve=reserve)
        assert ok == (needed + reserve <= free)
        if ok:
            table = list(self.kv.block_table(request))
            assert table[: len(computed)] == [block.block_id for block in computed]
            assert not held & set(table[len(computed) :])
            self.tables[request] = table
            request.num_computed_tokens = 2 * len(computed)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), number=st.integers(1, 4))
    def compute(self, data: st.DataObject, number: int) -> None:
        request = data.draw(st.sampled_from(list(self.tables)))
        start = request.num_computed_tokens
        end = min(start + number, request.num_tokens)
        for position in range(start - start % 2, end):
            block_id = self.tables[request][position // 2]
            self.stored[block_id] = (request.cache_salt, tuple(request.token_ids[: position + 1]))
        request.num_computed_tokens = end
        self.kv.commit(request)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        request = data.draw(st.sampled_from(list(self.tables)))
        if request.num_computed_tokens < request.num_tokens:
            return
        request.token_ids.append(token)
        table = self.tables[request]
        held = {block_id for other in self.tables.values() for block_id in other}
        needed = -(-request.num_tokens // 2) - len(table)
        ok = self.kv.allocate_slots(request, 1)
        assert ok == (needed <= 10 - len(held))
        if ok:
            new = self.kv.block_table(request)
            assert new[: len(table)] == table
            assert not set(new[len(table) :]) & held
            self.tables[request] = list(new)
        else:
            request.token_ids.pop()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(list(self.tables)))
        self.kv.free(request)
        del self.tables[request]

    @invariant()
    def the_same(self) -> None:
        self.kv.check_integrity(self.tables)
        held = {block_id for table in self.tables.values() for block_id in table}
        assert self.kv.num_free_blocks == 10 - len(held)
        for request, table in self.tables.items():
            assert self.kv.block_table(request) == table
            for index in range(request.num_computed_tokens // 2):  # what it computed is still there
                stored = (request.cache_salt, tuple(request.token_ids[: 2 * index + 2]))
                assert self.stored[table[index]] == stored


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = examples(20, steps=100)
