"""What one API key may have: the books themselves, and over HTTP in every way that a request can end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.fakes import FakeRunner, Gate
from tests.server.harness import USER, Answer, Served, idle, served
from tinyllm.errors import InvalidRequestError
from tinyllm.server.errors import RefusedError
from tinyllm.server.keys import Caller
from tinyllm.server.quota import Bucket, Quotas, Share
from tinyllm.server.settings import ServerConfig

KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
A, B = Caller("a"), Caller("b")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def quotas(num_keys: int = 2, clock: Clock | None = None, **options: Any) -> Quotas:
    return Quotas(ServerConfig(**options), num_keys, clock or Clock())


def refusal(books: Quotas, caller: Caller, answers: int = 1) -> tuple[int, int]:
    """Return the status of what must be refused, and after how long to come again."""
    with pytest.raises(RefusedError) as caught:
        books.enter(caller, answers)
    fault = caught.value.fault
    assert fault.code == "rate_limit_exceeded"
    assert f"try again in {fault.headers['retry-after']} s" in fault.message
    return fault.status, int(fault.headers["retry-after"])


# The books.


def test_a_bucket_fills_to_a_minutes_worth_and_can_be_overdrawn() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(60, 0.0)
    assert bucket.wait(1, 0.0) == pytest.approx(1)
    assert bucket.wait(1, 1.0) == 0
    bucket.take(121, 1.0)
    assert bucket.wait(1, 1.0) == pytest.approx(121)
    assert bucket.wait(60, 10_000.0) == 0
    assert bucket.wait(61, 10_000.0) > 0


def test_nothing_is_limited_unless_asked_for() -> None:
    books = quotas(num_keys=1, max_num_seqs=1, max_waiting_requests=0)
    assert [books.enter(A, 16).turn for _ in range(100)] == [0.0] * 100


def test_answers_at_once() -> None:
    books = quotas(key_max_parallel_requests=4)
    first = books.enter(A, 3)
    assert refusal(books, A, 2) == (429, 1)
    books.enter(A, 1)
    assert refusal(books, A) == (429, 1)
    books.enter(B, 4)
    first.leave(100)
    books.enter(A, 3)
    with pytest.raises(InvalidRequestError, match="5 answers, and 4") as caught:
        books.enter(A, 5)
    assert caught.value.param == "n"


def test_requests_a_minute() -> None:
    clock = Clock()
    books = quotas(clock=clock, key_rpm_limit=2)
    for _ in range(2):
        books.enter(A, 16).leave(0)
    assert refusal(books, A) == (429, 30)
    books.enter(B, 1)
    clock.now += 29
    assert refusal(books, A) == (429, 1)
    clock.now += 1
    books.enter(A, 1)
    assert refusal(books, A) == (429, 30)


def test_tokens_a_minute_count_when_a_request_ends_and_are_paid_back() -> None:
    clock = Clock()
    books = quotas(clock=clock, key_tpm_limit=600)
    shares = [books.enter(A, 1) for _ in range(3)]
    for share in shares:
        share.leave(500)
    assert refusal(books, A) == (429, 91)
    books.enter(B, 1)
    clock.now += 91
    books.enter(A, 1)


def test_what_is_refused_takes_nothing() -> None:
    books = quotas(key_max_parallel_requests=1, key_rpm_limit=2)
    share = books.enter(A, 1)
    for _ in range(10):
        refusal(books, A)
    share.leave(0)
    books.enter(A, 1)


def test_a_busy_key_leaves_as_much_as_it_has() -> None:
    books = quotas(num_keys=3, max_num_seqs=4, max_waiting_requests=8)
    taken = 0
    while taken < 12:
        try:
            books.enter(A, 1)
        except RefusedError:
            break
        taken += 1
    assert taken == 6
    assert [round(books.enter(B, 1).turn) for _ in range(3)] == [0, 1, 2]
    refusal(books, B)
    books.enter(Caller("c"), 3)  # whoever has nothing is let in, and the engine says whether there is room


def test_turns_of_keys_interleave() -> None:
    clock = Clock()
    books = quotas(clock=clock, max_waiting_requests=1000, priority_ageing=10.0)

    def rank(caller: Caller) -> float:
        share = books.enter(caller, 1)
        return clock.now + share.turn * 10.0

    many = [(rank(A), "a") for _ in range(20)]
    clock.now += 5
    few = [(rank(B), "b") for _ in range(3)]
    order = [name for _, name in sorted(many + few)]
    assert order[:7] == ["a", "b", "a", "b", "a", "b", "a"]


def level_of(taken: list[tuple[float, int]], per_minute: int, since: float, now: float) -> float:
    """Replay what was taken from a bucket that was full at first."""
    level, last = float(per_minute), since
    for when, amount in taken:
        level, last = min(per_minute, level + (when - last) * per_minute / 60) - amount, when
    return min(per_minute, level + (now - last) * per_minute / 60)


@dataclass
class Held:
    name: str
    answers: int
    share: Share


class Books(RuleBasedStateMachine):
    """Three keys against a plain ledger of what each of them did."""

    @initialize(
        parallel=st.none() | st.integers(1, 8),
        rpm=st.none() | st.integers(1, 20),
        tpm=st.none() | st.integers(1, 500),
    )
    def begin(self, parallel: int | None, rpm: int | None, tpm: int | None) -> None:
        self.clock = Clock()
        self.parallel, self.rpm, self.tpm = parallel, rpm, tpm
        self.books = quotas(
            3,
            self.clock,
            max_num_seqs=4,
            max_waiting_requests=20,
            key_max_parallel_requests=parallel,
            key_rpm_limit=rpm,
            key_tpm_limit=tpm,
        )
        self.began: dict[str, float] = {}
        self.held: list[Held] = []
        self.accepted: dict[str, list[tuple[float, int]]] = {name: [] for name in "abc"}
        self.used: dict[str, list[tuple[float, int]]] = {name: [] for name in "abc"}
        self.last: dict[str, float] = {}

    def answers(self, name: str = "abc") -> int:
        return sum(one.answers for one in self.held if one.name in name)

    def expected(self, name: str, answers: int) -> str:
        """Return what must come of a request: of other keys' doings, only room that is taken counts."""
        mine, now, began = self.answers(name), self.clock.now, self.began.setdefault(name, self.clock.now)
        if self.parallel is not None and answers > self.parallel:
            return "wrong"
        if self.parallel is not None and mine + answers > self.parallel:
            return "refused"
        if mine and mine + answers > 24 - self.answers() - answers:
            return "refused"
        if self.rpm is not None and level_of(self.accepted[name], self.rpm, began, now) < 1 - 1e-6:
            return "refused"
        if self.tpm is not None and level_of(self.used[name], self.tpm, began, now) < 1 - 1e-6:
            return "refused"
        return "accepted"

    @rule(name=st.sampled_from("abc"), answers=st.integers(1, 6))
    def enter(self, name: str, answers: int) -> None:
        expected, mine = self.expected(name, answers), self.answers(name)
        try:
            share = self.books.enter(Caller(name), answers)
        except InvalidRequestError:
            assert expected == "wrong"
            return
        except RefusedError:
            assert expected == "refused"
            return
        assert expected == "accepted"
        self.accepted[name].append((self.clock.now, 1))
        self.held.append(Held(name, answers, share))
        self._check_turn(name, mine, share)

    def _check_turn(self, name: str, mine: int, share: Share) -> None:
        arrival = self.clock.now / 10
        if mine == 0:
            assert share.turn == 0
        else:
            assert share.turn >= mine
            assert arrival + share.turn > self.last[name]  # a key's own requests keep their order
            assert arrival + share.turn <= max(arrival + mine, self.last[name] + 1e-3)
        self.last[name] = arrival + share.turn

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=st.integers(0, 300))
    def leave(self, data: st.DataObject, tokens: int) -> None:
        one = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        one.share.leave(tokens)
        self.used[one.name].append((self.clock.now, tokens))

    @rule(seconds=st.integers(0, 100))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @precondition(lambda self: not self.held)
    @rule(name=st.sampled_from("abc"))
    def come_again_when_told(self, name: str) -> None:
        """A key with nothing running is let in after the time it was told."""
        try:
            share = self.books.enter(Caller(name), 1)
        except RefusedError as refused:
            self.clock.now += int(refused.fault.headers["retry-after"])
            if self.expected(name, 1) == "refused":  # the other bucket may need longer
                return
            share = self.books.enter(Caller(name), 1)
        self.began.setdefault(name, self.clock.now)
        self.accepted[name].append((self.clock.now, 1))
        self.held.append(Held(name, 1, share))
        self._check_turn(name, 0, share)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# Over HTTP.


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(app: Served, path: str = TEXT, key: str = KEY, **fields: Any) -> Answer:
    if path == CHAT:
        body: dict[str, Any] = {"messages": USER, "max_tokens": 3}
    elif path == RESPONSES:
        body = {"input": "hi", "max_output_tokens": 3}
    else:
        body = {"prompt": "abcd", "max_tokens": 3}
    return await app.post(path, body | fields, headers=bearer(key))


@pytest.mark.asyncio
async def test_a_key_at_its_limit_is_told_so_and_others_go_on() -> None:
    runner = FakeRunner(gate=Gate())
    async with served(runner=runner, api_keys=(KEY, OTHER), key_max_parallel_requests=2) as app:
        assert runner.gate is not None
        first = asyncio.create_task(ask(app, n=2))
        await asyncio.to_thread(runner.gate.wait_entered)
        for path in (TEXT, CHAT, RESPONSES):
            answer = await ask(app, path)
            assert (answer.status, answer.error["code"]) == (429, "rate_limit_exceeded")
            assert answer.error["type"] == "rate_limit_error"
            assert answer.headers["retry-after"] == "1"
            assert "x-should-retry" not in answer.headers
        assert (await ask(app, n=3)).error["param"] == "n"
        assert (await ask(app, prompt=["a", "b", "c"])).status == 400
        other = asyncio.create_task(ask(app, key=OTHER, n=2))
        runner.gate.open()
        assert (await first).status == (await other).status == 200
        assert (await ask(app, n=2)).status == 200


@pytest.mark.asyncio
async def test_without_keys_everybody_counts_as_one() -> None:
    async with served(key_rpm_limit=1) as app:
        assert (await app.post(TEXT, prompt="a", max_tokens=1)).status == 200
        answer = await app.post(TEXT, prompt="a", max_tokens=1)
        assert (answer.status, answer.headers["retry-after"]) == (429, "60")
        assert (await app.post("/tokenize", prompt="a")).status == 200  # generates nothing


@pytest.mark.asyncio
async def test_nobody_goes_before_other_keys() -> None:
    async with served(api_keys=(KEY, OTHER)) as app:
        answer = await ask(app, priority=-1)
        assert (answer.status, answer.error["param"]) == (400, "priority")
        assert (await ask(app, priority=2**31 - 1)).status == 200
    async with served(api_keys=(KEY,)) as app:
        assert (await ask(app, priority=-1)).status == 200


@pytest.mark.asyncio
async def test_a_key_with_a_long_queue_does_not_keep_another_waiting() -> None:
    runner = FakeRunner(gate=Gate())
    async with served(runner=runner, api_keys=(KEY, OTHER), max_num_seqs=1) as app:
        assert runner.gate is not None
        many = [asyncio.create_task(ask(app, request_id=f"many-{i}")) for i in range(6)]
        while app.engine.num_requests < 6:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        few = asyncio.create_task(ask(app, key=OTHER, request_id="few"))
        while app.engine.num_requests < 7:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        runner.gate.open()
        await asyncio.gather(*many, few)
        order = list(dict.fromkeys(request_id for step in runner.steps for request_id, _, _ in step))
        assert ["few" in request_id for request_id in order[:3]].count(True) == 1, order
        assert [request_id for request_id in order if "many" in request_id] == sorted(
            request_id for request_id in order if "many" in request_id
        )


class Account:
    """What the books of a served key say."""

    def __init__(self, app: Served) -> None:
        self._app = app

    @property
    def usage(self) -> Any:
        [usage] = self._app.service.quotas._usage.values()
        return usage

    @property
    def answers(self) -> int:
        answers: int = self.usage.answers
        assert answers == self._app.service.quotas._answers
        return answers

    def used(self) -> float:
        """Return the tokens taken, to the nearest whole one: the bucket fills slowly."""
        return round(1_000 - float(self.usage.tokens._level))


TOKENS: dict[str, Any] = {"api_keys": (KEY,), "key_tpm_limit": 1_000}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        (TEXT, {}, 4 + 3),
        (TEXT, {"stream": True}, 4 + 3),
        (TEXT, {"n": 3}, 4 + 9),
        (TEXT, {"prompt": ["ab", "abc"], "n": 2, "stream": True}, 5 + 12),
        (TEXT, {"prompt": [97, 98], "echo": True}, 2 + 3),
        (TEXT, {"max_tokens": 0, "echo": True}, 4),
        (CHAT, {}, None),
        (CHAT, {"stream": True, "n": 2}, None),
        (CHAT, {"truncate_prompt_tokens": 3}, 3 + 3),
        (RESPONSES, {"stream": True}, None),
    ],
)
async def test_what_finishes_counts_once(path: str, fields: dict[str, Any], tokens: int | None) -> None:
    async with served(**TOKENS) as app:
        answer = await ask(app, path, **fields)
        assert answer.status == 200, answer.text
        account = Account(app)
        assert account.answers == 0
        if tokens is None:
            metrics = app.engine.metrics_text().splitlines()
            counted = [
                line
                for line in metrics
                if line.startswith(("tinyllm:prompt_tokens_total", "tinyllm:generation_tokens_total"))
            ]
            tokens = int(sum(float(line.split()[-1]) for line in counted))
        assert account.used() == tokens


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (TEXT, {"prompt": ["ab", [9999]], "n": 2}, 400),
        (TEXT, {"prompt": "a" * 100_000}, 400),
        (TEXT, {"max_tokens": 10**6}, 400),
        (TEXT, {"prompt": "a" * 5000, "max_tokens": 10**6}, 400),  # found wrong in the background
        (CHAT, {"messages": [{"role": "user", "content": "refuse"}], "max_tokens": 10**6}, 400),
    ],
)
async def test_what_is_refused_in_the_end_uses_no_tokens(path: str, fields: Any, status: int) -> None:
    async with served(**TOKENS) as app:
        assert (await ask(app, path, **fields)).status == status
        await idle(app.engine)
        assert (Account(app).answers, Account(app).used()) == (0, 0)


@pytest.mark.asyncio
async def test_what_fails_counts_what_it_used() -> None:
    runner = FakeRunner(gate=Gate())
    async with served(runner=runner, **TOKENS) as app:
        assert runner.gate is not None
        asked = asyncio.create_task(ask(app, max_tokens=50))
        runner.gate.allow(2)
        while len(runner.steps) < 3:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        assert Account(app).answers == 1
        runner.fail = RuntimeError("a fault")
        runner.gate.open()
        assert (await asked).status == 503
        assert (Account(app).answers, Account(app).used()) == (0, 4 + 2)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["cancel", "disconnect", "timeout"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_stopped_counts_what_it_used(how: str, stream: bool) -> None:
    runner = FakeRunner(gate=Gate())
    timeout: dict[str, Any] = {"request_timeout": 0.3} if how == "timeout" else {}
    async with served(runner=runner, **TOKENS, **timeout) as app:
        assert runner.gate is not None
        asked = asyncio.create_task(ask(app, n=2, max_tokens=500, stream=stream, request_id="mine"))
        runner.gate.allow(3)
        while len(runner.steps) < 4:  # noqa: ASYNC110
            await anyio.sleep(0.001)
        account = Account(app)
        assert account.answers == 2
        if how == "cancel":
            await app.post("/v1/requests/mine/cancel", {}, headers=bearer(KEY))
        elif how == "disconnect":
            asked.cancel()
        else:
            await anyio.sleep(0.35)
        runner.gate.open()
        await asyncio.wait([asked])
        await idle(app.engine)
        assert account.answers == 0
        assert 4 + 2 <= account.used() <= 4 + 2 * 5
