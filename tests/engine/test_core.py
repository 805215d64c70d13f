"""`EngineCore` alone: no threads, no event loop, a clock that the test sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import (
    EOS,
    SECOND_EOS,
    FakeRunner,
    Script,
    build_fake_core,
    fake_tokenizer,
    ids_of,
    letters,
    says,
)
from tinyllm.config import EngineConfig
from tinyllm.core.request import Request, StreamCredit
from tinyllm.engine.core import EngineCore
from tinyllm.engine.messages import Delivery, Submission
from tinyllm.errors import (
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    SlowConsumerError,
)
from tinyllm.outputs import FinishReason, RequestOutput
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.text.tokenizer import Tokenizer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_core(
    script: Script = letters,
    *,
    runner: FakeRunner | None = None,
    num_blocks: int = 64,
    tokenizer: Tokenizer | None = None,
    **options: Any,
) -> tuple[EngineCore, Clock]:
    config = EngineConfig(check_integrity=True, **options)
    core = build_fake_core(config, script=script, runner=runner, num_blocks=num_blocks, tokenizer=tokenizer)
    clock = Clock()
    core._clock = core.scheduler.clock = clock
    return core, clock


def submission(request_id: str = "r", prompt: str = "hello", **fields: Any) -> Submission:
    names = ("priority", "deadline", "queue_deadline", "credit", "arrival_time")
    own = {name: fields.pop(name) for name in names if name in fields}
    params = SamplingParams(**fields).resolved(SamplingDefaults(temperature=0.0))
    most = 64 if params.max_tokens is None else params.max_tokens
    return Submission(request_id, tuple(ids_of(prompt)), params, most, **{"arrival_time": 100.0, **own})


def run(core: EngineCore, limit: int = 1_000) -> list[Delivery]:
    """Step until nothing is left; returns everything that came."""
    deliveries: list[Delivery] = []
    for _ in range(limit):
        deliveries += core.step()
        if not core.num_requests:
            return deliveries
    raise AssertionError("requests are left")


def pieces(deliveries: list[Delivery], request_id: str = "r", index: int = 0) -> list[RequestOutput]:
    found = [piece for d in deliveries if d.request_id == request_id for piece in d.pieces]
    return [piece for piece in found if piece.index == index]


def answer(script: Script, **params: Any) -> tuple[str, list[RequestOutput]]:
    core, _ = make_core(script)
    core.add(submission(**params))
    got = pieces(run(core))
    return "".join(piece.text for piece in got), got


# ------------------------------------------------------------------ text out of tokens (D01, D03, D08)


@pytest.mark.parametrize("text", ["🦙", "ď", "漢", "a🦙b漢ďc", "👩‍👩‍👧"])
def test_characters_split_over_tokens_come_whole(text: str) -> None:
    joined, got = answer(says(text))
    assert joined == text
    assert not any("\ufffd" in piece.text for piece in got)
    assert [t for piece in got for t in piece.token_ids] == [*ids_of(text), EOS]
    assert got[-1].finish_reason is FinishReason.STOP
    assert got[-1].stop_reason is None


def test_an_end_in_the_middle_of_a_character_shows_one_broken_one() -> None:
    joined, got = answer(says("a漢"), max_tokens=3)
    assert joined == "a\ufffd"
    assert got[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(piece.token_ids) for piece in got) == 3


def test_logprobs_have_the_exact_bytes_of_each_token() -> None:
    _, got = answer(says("é漢"), logprobs=2, max_tokens=5)
    entries = [entry for piece in got for entry in piece.logprobs or ()]
    assert b"".join(entry.bytes for entry in entries).decode() == "é漢"
    assert [entry.token_id for entry in entries] == ids_of("é漢")
    assert all(len(entry.top) == 2 for entry in entries)
    assert entries[0].token == "\ufffd"


def test_no_logprobs_unless_asked_for() -> None:
    _, got = answer(says("ab"))
    assert all(piece.logprobs is None for piece in got)


def test_prompt_logprobs_come_with_the_first_pieces_and_survive_chunks() -> None:
    core, _ = make_core(max_num_batched_tokens=4)
    core.add(submission(prompt="hello, world", prompt_logprobs=1, max_tokens=2))
    deliveries = run(core)
    found = [d.prompt_logprobs for d in deliveries if d.prompt_logprobs is not None]
    assert len(found) == 1
    assert [None if e is None else e.token_id for e in found[0]] == [None, *ids_of("hello, world")[1:]]


# ------------------------------------------------------------------ stops and lengths (D10 - D21)


def test_a_stop_string_in_pieces_is_cut_off() -> None:
    joined, got = answer(says("ABCDEFGHIJ"), stop="DEFGHIJ")
    assert joined == "ABC"
    assert (got[-1].finish_reason, got[-1].stop_reason) == (FinishReason.STOP, "DEFGHIJ")


def test_a_stop_string_may_be_kept() -> None:
    joined, _ = answer(says("ABCDEFGHIJ"), stop="DEF", include_stop_str_in_output=True)
    assert joined == "ABCDEF"


@pytest.mark.parametrize("stop", ["\nUser:", "two words"])
def test_no_character_of_a_stop_string_leaks(stop: str) -> None:
    core, _ = make_core(says(f"fine{stop} more"))
    core.add(submission(stop=stop))
    shown = ""
    for piece in pieces(run(core)):
        shown += piece.text
        assert "fine".startswith(shown)
    assert shown == "fine"


def test_only_what_can_still_match_is_held_back() -> None:
    _, got = answer(says("a,b,x<tag>"), stop="b,c")
    assert "".join(piece.text for piece in got) == "a,b,x<tag>"
    texts = [piece.text for piece in got]
    assert texts[:5] == ["a", ",", "", "", "b,x"]


def test_held_text_is_delivered_at_end_of_sequence() -> None:
    joined, got = answer(says("hello STO"), stop="STOP")
    assert joined == "hello STO"
    assert got[-1].stop_reason is None


def test_held_text_is_delivered_at_the_length_limit() -> None:
    joined, got = answer(says("hello STOP"), stop="STOP!", max_tokens=9)
    assert joined == "hello STO"
    assert got[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_string_completed_by_the_last_token_wins_over_length() -> None:
    joined, got = answer(says("abSTOPcd"), stop="STOP", max_tokens=6)
    assert joined == "ab"
    assert (got[-1].finish_reason, got[-1].stop_reason) == (FinishReason.STOP, "STOP")


def test_stop_strings_do_not_count_before_min_tokens() -> None:
    joined, got = answer(says("a\nbcdefghij\nkl"), stop="\n", min_tokens=8)
    assert joined == "a\nbcdefghij"
    assert got[-1].stop_reason == "\n"


def test_end_of_sequence_takes_either_id_and_shows_no_text() -> None:
    for eos in (EOS, SECOND_EOS):
        joined, got = answer(says("ab", then=eos), skip_special_tokens=False)
        assert joined == "ab"
        assert got[-1].token_ids == (eos,)
        assert got[-1].stop_reason is None


def test_ignore_eos_runs_to_exactly_max_tokens() -> None:
    _, got = answer(says("ab"), ignore_eos=True, max_tokens=7)
    assert sum(len(piece.token_ids) for piece in got) == 7
    assert got[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_token_is_named() -> None:
    joined, got = answer(says("abXc"), stop_token_ids=[ord("X")])
    assert joined == "ab"
    assert (got[-1].finish_reason, got[-1].stop_reason) == (FinishReason.STOP, ord("X"))
    joined, _ = answer(says("abXc"), stop_token_ids=[ord("X")], include_stop_str_in_output=True)
    assert joined == "abX"


def test_max_tokens_zero_computes_the_prompt_only() -> None:
    joined, got = answer(letters, max_tokens=0)
    assert joined == ""
    assert [piece.token_ids for piece in got] == [()]
    assert got[0].finish_reason is FinishReason.LENGTH
    assert got[0].metrics is not None
    assert got[0].metrics.time_to_first_token is None


# ------------------------------------------------------------------ deliveries


def test_one_step_makes_one_delivery_for_all_answers() -> None:
    core, _ = make_core()
    credit = StreamCredit(100)
    core.add(submission(n=3, max_tokens=4, credit=credit))
    deliveries = run(core)
    assert credit.sent == sum(bool(d.pieces) for d in deliveries)
    assert [d.finished for d in deliveries] == [False] * (len(deliveries) - 1) + [True]
    for index in range(3):
        got = pieces(deliveries, index=index)
        assert sum(len(piece.token_ids) for piece in got) == 4
        assert [piece.finish_reason for piece in got[:-1]] == [None] * (len(got) - 1)
    assert max(len(d.pieces) for d in deliveries) == 3


def test_the_start_is_said_once() -> None:
    core, _ = make_core(max_num_batched_tokens=2)
    core.add(submission(prompt="a longer prompt", max_tokens=2))
    deliveries = run(core)
    assert [d.started for d in deliveries] == [True, *[False] * (len(deliveries) - 1)]
    assert deliveries[0].pieces == ()


def test_aborting_in_every_phase_ends_once_and_frees_all_blocks() -> None:
    phases = {"queued": 0, "prefill": 1, "decode": 8}
    for phase, steps in phases.items():
        core, _ = make_core(max_num_batched_tokens=4)
        core.add(submission(prompt="twenty characters at", max_tokens=50))
        deliveries = [d for _ in range(steps) for d in core.step()]
        core.abort("r")
        core.abort("r")
        deliveries += core.step()
        ends = [d for d in deliveries if d.finished]
        assert len(ends) == 1
        assert isinstance(ends[0].error, RequestAbortedError)
        assert core.kv.num_free_blocks == core.kv.num_blocks
        assert f'phase="{phase}"}} 1.0' in core.model.metrics.text()


def test_a_cancelled_prompt_computes_at_most_one_more_chunk() -> None:
    runner = FakeRunner()
    core, _ = make_core(runner=runner, max_num_batched_tokens=5)
    core.add(submission(prompt="x" * 100, max_tokens=50))
    core.step()
    core.step()
    core.abort("r")
    run(core)
    assert len(runner.steps) == 2


def test_an_abort_while_the_model_runs_drops_the_result() -> None:
    core, _ = make_core()
    core.add(submission(max_tokens=50))
    deliveries = core.step(lambda: core.abort("r"))
    assert [d.finished for d in deliveries] == [True]
    assert deliveries[0].pieces == ()


def test_an_abort_during_the_last_step_ends_once() -> None:
    core, _ = make_core()
    core.add(submission(max_tokens=1))
    deliveries = core.step(lambda: core.abort("r"))
    core.abort("r")
    assert [d.finished for d in deliveries + core.step()] == [True]


def test_aborting_what_is_unknown_does_nothing() -> None:
    core, _ = make_core()
    core.abort("nobody")
    assert core.step() == []


def test_timeouts_end_with_their_error() -> None:
    core, clock = make_core()
    core.add(submission("whole", max_tokens=50, deadline=105.0))
    core.step()
    clock.now = 106.0
    ends = [d for d in core.step() if d.finished]
    assert isinstance(ends[0].error, RequestTimeoutError)
    core.add(submission("queue", max_tokens=50, queue_deadline=105.0))
    ends = [d for d in core.step() if d.finished]
    assert isinstance(ends[0].error, RequestTimeoutError)
    assert core.kv.num_free_blocks == core.kv.num_blocks


def test_one_of_several_answers_timing_out_ends_them_all() -> None:
    core, clock = make_core(max_num_seqs=1)
    core.add(submission(n=3, max_tokens=50, deadline=105.0))
    deliveries = core.step() + core.step()
    clock.now = 106.0
    deliveries += core.step()
    assert [d.finished for d in deliveries].count(True) == 1
    assert core.num_requests == 0
    assert core.step() == []


def test_a_stream_without_room_stalls_and_goes_on() -> None:
    runner = FakeRunner()
    core, clock = make_core(runner=runner)
    credit = StreamCredit(2)
    core.add(submission(max_tokens=5, credit=credit))
    core.step()
    core.step()
    for _ in range(3):
        assert core.step() == []
        assert not core.made_progress
    assert credit.stalled
    assert len(runner.steps) == 2
    assert core.seconds_to_wakeup() == pytest.approx(60.0)
    assert "num_requests_stalled" in core.model.metrics.text()
    clock.now += 7.0
    credit.read += 1
    assert len(core.step()) == 1
    assert 'stream_backpressure_seconds_sum{engine="0",model_name="fake"} 7.0' in core.model.metrics.text()


def test_a_reader_that_never_reads_loses_its_request() -> None:
    core, clock = make_core(stall_timeout=5.0)
    credit = StreamCredit(1)
    core.add(submission(max_tokens=5, credit=credit))
    core.step()
    core.step()
    clock.now += 5.1
    [end] = core.step()
    assert isinstance(end.error, SlowConsumerError)
    assert credit.available == 0  # the ending needs no credit
    assert core.kv.num_free_blocks == core.kv.num_blocks


def test_a_long_prompt_holds_up_neither_those_that_decode_nor_a_short_one() -> None:
    core, _ = make_core(max_num_batched_tokens=8, num_blocks=128)
    core.add(submission("decoding", max_tokens=60))
    core.step()
    core.add(submission("long", prompt="x" * 200, max_tokens=2))
    core.step()
    core.add(submission("short", prompt="hi", max_tokens=2))
    shown: Counter[str] = Counter()
    for _ in range(10):
        shown.update(piece.request_id for delivery in core.step() for piece in delivery.pieces)
    assert shown == {"decoding": 10, "short": 2}


# ------------------------------------------------------------------ faults of one request


class BrokenTokenizer(Tokenizer):
    """Cannot decode one token: like a Rust panic, which is no ``Exception``."""

    fault: BaseException = BaseException("panicked")

    def piece(self, token_id: int) -> str | None:
        if token_id == ord("!"):
            raise self.fault
        return super().piece(token_id)


@pytest.mark.parametrize(
    "fault", [ValueError("x"), MemoryError(), BaseException("panic"), KeyboardInterrupt()]
)
def test_a_detokeniser_that_fails_ends_its_request_alone(fault: BaseException) -> None:
    tokenizer = fake_tokenizer(BrokenTokenizer)
    assert isinstance(tokenizer, BrokenTokenizer)
    tokenizer.fault = fault

    def script(request: Request) -> int:
        is_bad = request.request_id == "bad/0" and request.num_output_tokens == 2
        return ord("!") if is_bad else letters(request)

    core, _ = make_core(script, tokenizer=tokenizer)
    core.add(submission("bad", max_tokens=5))
    core.add(submission("good", max_tokens=5))
    deliveries = run(core)
    ends = {d.request_id: d for d in deliveries if d.finished}
    assert isinstance(ends["bad"].error, RequestFailedError)
    assert ends["bad"].error.__cause__ is fault
    assert ends["good"].error is None
    alone, _ = make_core(tokenizer=tokenizer)
    alone.add(submission("good", max_tokens=5))
    assert pieces(deliveries, "good")[-1].token_ids == pieces(run(alone), "good")[-1].token_ids
    assert core.kv.num_free_blocks == core.kv.num_blocks


def test_a_sampler_fault_ends_all_answers_of_its_request_and_no_other() -> None:
    runner = FakeRunner()
    runner.faults["bad/1"] = RuntimeError("hook")
    core, _ = make_core(runner=runner)
    core.add(submission("bad", n=3, max_tokens=5))
    core.add(submission("good", max_tokens=5))
    deliveries = run(core)
    ends = [d for d in deliveries if d.finished]
    assert Counter(d.request_id for d in ends) == {"bad": 1, "good": 1}
    errors = {d.request_id: d.error for d in ends}
    assert isinstance(errors["bad"], RequestFailedError)
    assert "hook" not in str(errors["bad"])
    assert errors["good"] is None


def test_what_the_scheduler_refuses_ends_without_harm() -> None:
    core, _ = make_core(num_blocks=2)
    core.add(replace(submission("big", max_tokens=5), prompt_token_ids=tuple(range(100))))
    core.add(submission("small", max_tokens=5))
    ends = {d.request_id: d.error for d in run(core) if d.finished}
    assert ends["big"] is not None
    assert ends["small"] is None


def test_a_step_that_fails_raises() -> None:
    runner = FakeRunner()
    core, _ = make_core(runner=runner)
    core.add(submission())
    runner.fail = RuntimeError("the device is gone")
    with pytest.raises(RuntimeError, match="device"):
        core.step()


# ------------------------------------------------------------------ the ledger

Action = tuple[str, int]


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "abort", "step", "step", "step", "read", "time", "fault", "late"]),
            st.integers(0, 7),
        ),
        max_size=60,
    ),
    num_blocks=st.integers(4, 12),
)
def test_every_accepted_request_ends_exactly_once(actions: list[Action], num_blocks: int) -> None:
    runner = FakeRunner()
    core, clock = make_core(
        runner=runner, num_blocks=num_blocks, block_size=4, max_num_batched_tokens=8, max_num_seqs=3
    )
    credits: list[StreamCredit] = []
    answers: list[int] = []
    deliveries: list[Delivery] = []

    def add(number: int) -> None:
        answers.append(1 + number % 2)
        credits.append(StreamCredit(1 + number % 3))
        core.add(
            submission(
                str(len(credits) - 1),
                prompt="abcdefgh"[: 1 + number],
                n=answers[-1],
                max_tokens=number,
                credit=credits[-1],
                deadline=clock.now + 40 if number == 7 else None,
                queue_deadline=clock.now + 3 if number == 6 else None,
                arrival_time=clock.now,
            )
        )

    def nth(number: int) -> str:
        return str(number % max(1, len(credits)))

    def read(number: int) -> None:
        for credit in credits[number::2]:
            credit.read = credit.sent

    def pass_time(number: int) -> None:
        clock.now += number * 10

    perform: dict[str, Callable[[int], None]] = {
        "add": add,
        "abort": lambda number: core.abort(nth(number)),
        "step": lambda number: deliveries.extend(core.step()),
        "late": lambda number: deliveries.extend(core.step(lambda: core.abort(nth(number)))),
        "read": read,
        "time": pass_time,
        "fault": lambda number: runner.faults.__setitem__(f"{nth(number)}/0", ValueError("hook")),
    }
    for action, number in actions:
        perform[action](number)
    for _ in range(400):
        read(0)
        read(1)
        deliveries += core.step()
        clock.now += 1
    ends = Counter(d.request_id for d in deliveries if d.finished)
    assert ends == {str(number): 1 for number in range(len(credits))}
    last = {d.request_id: place for place, d in enumerate(deliveries)}
    assert all(deliveries[place].finished for place in last.values())
    for end in (d for d in deliveries if d.finished and d.error is None):
        got = [p for d in deliveries if d.request_id == end.request_id for p in d.pieces]
        assert sorted(p.index for p in got if p.finish_reason) == list(range(answers[int(end.request_id)]))
    assert core.num_requests == 0
    assert core.kv.num_free_blocks == core.kv.num_blocks
