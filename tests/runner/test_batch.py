"""The flat batch, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runner.fakes import SPEC, FakeBackend, make_request, schedule
from tinyllm.core.step import ScheduledRequest
from tinyllm.runner.batch import BatchBuilder


def builder(max_num_batched_tokens: int = 16) -> BatchBuilder:
    return BatchBuilder(FakeBackend(), SPEC, max_num_batched_tokens)


def test_chunks_prompts_and_single_tokens_side_by_side() -> None:
    decoding = make_request("a", prompt=[10, 11], output=[12, 13])
    chunk = make_request("b", prompt=range(20, 30))
    last_chunk = make_request("c", prompt=range(40, 45))
    batch = builder().build(schedule((decoding, 3, 1), (chunk, 2, 3), (last_chunk, 2, 3)).scheduled)
    assert batch.input_ids.tolist() == [13, 22, 23, 24, 42, 43, 44]
    assert batch.positions.tolist() == [3, 2, 3, 4, 2, 3, 4]
    assert list(batch.metadata.query_start_loc) == [0, 1, 4, 7]
    assert list(batch.metadata.seq_lens) == [4, 5, 5]
    assert list(batch.metadata.block_tables) == [[0], [1], [2]]
    assert batch.sampling == [decoding, last_chunk]
    assert batch.sample_rows == [0, 6]
    assert batch.prompt_rows == []


def test_a_step_larger_than_planned_and_a_smaller_one_after_it() -> None:
    batches = builder(4)
    long = make_request(prompt=range(100))
    assert batches.build(schedule((long, 0, 100)).scheduled).input_ids.tolist() == list(range(100))
    batch = batches.build(schedule((long, 98, 2)).scheduled)
    assert batch.input_ids.tolist() == [98, 99]
    assert batch.positions.tolist() == [98, 99]


@pytest.mark.parametrize(
    ("start", "new", "first_row", "targets"),
    [
        (0, 3, 0, [11, 12, 13]),
        (3, 2, 0, [14]),  # the last prompt token predicts the answer
        (0, 5, 0, [11, 12, 13, 14]),
        (4, 1, None, None),
        (3, 4, 0, [14]),  # recomputed after a preemption, with output behind it
        (5, 2, None, None),
    ],
)
def test_prompt_rows_predict_the_next_prompt_token(
    start: int, new: int, first_row: int | None, targets: list[int] | None
) -> None:
    request = make_request(prompt=range(10, 15), output=[1, 2], prompt_logprobs=0)
    rows = builder().build(schedule((request, start, new)).scheduled).prompt_rows
    assert [(each.first_row, each.target_ids) for each in rows] == (
        [] if targets is None else [(first_row, targets)]
    )


def test_prompt_rows_start_behind_the_requests_before() -> None:
    first, second = make_request("a"), make_request("b", prompt_logprobs=2)
    (rows,) = builder().build(schedule((first, 0, 3), (second, 0, 3)).scheduled).prompt_rows
    assert (rows.request, rows.first_row, rows.target_ids) == (second, 3, [2, 3])


def test_no_prompt_rows_for_followers_and_for_what_was_reported() -> None:
    leader = make_request("a", prompt_logprobs=1)
    follower = make_request("b", prompt_logprobs=1, leader=leader)
    leader.num_prompt_scores = 2
    assert builder().build(schedule((leader, 0, 3), (follower, 0, 3)).scheduled).prompt_rows == []


class CountedList(list[Any]):
    """Counts the elements that are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        result = super().__getitem__(key)
        self.read += len(result) if isinstance(key, slice) else 1
        return result

    def __iter__(self) -> Any:
        self.read += len(self)
        return super().__iter__()


def test_a_token_costs_the_same_at_any_length() -> None:
    request = make_request(prompt=[1] * 50_000)
    request.token_ids = CountedList(request.token_ids)
    table = CountedList(range(3125))
    batch = builder().build([ScheduledRequest(request, 49_999, 1, table, samples=True)])
    assert request.token_ids.read == 1
    assert table.read == 0
    assert batch.metadata.block_tables[0] is table
