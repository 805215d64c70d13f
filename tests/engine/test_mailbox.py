from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tinyllm.engine.mailbox import Mailbox


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_commands_come_out_in_order() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for number in range(5):
        mailbox.put(number)
    assert mailbox.drain() == [0, 1, 2, 3, 4]
    assert mailbox.drain() == []


def test_a_wakeup_before_the_wait_is_not_lost() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.wake()
    started = time.monotonic()
    assert mailbox.drain(block=True, timeout=20) == []
    assert time.monotonic() - started < 10


def test_many_wakeups_are_one() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for _ in range(3):
        mailbox.wake()
    mailbox.drain(block=True)
    started = time.monotonic()
    mailbox.drain(block=True, timeout=0.01)
    assert time.monotonic() - started >= 0.01


def test_draining_without_waiting_leaves_the_wakeup() -> None:
    # A reader makes room while the model runs; the drain before the results must not swallow its wake-up.
    mailbox: Mailbox[int] = Mailbox()
    mailbox.wake()
    assert mailbox.drain() == []
    started = time.monotonic()
    mailbox.drain(block=True, timeout=20)
    assert time.monotonic() - started < 10


def test_a_timeout_in_the_past_does_not_wait() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.drain(block=True, timeout=-1.0) == []


@pytest.mark.usefixtures("eager_switching")
def test_no_wakeup_is_lost_between_two_threads() -> None:
    rounds = 3_000
    requests: Mailbox[int] = Mailbox()
    replies: Mailbox[int] = Mailbox()

    def answer() -> None:
        left = rounds
        while left:
            for number in requests.drain(block=True):
                replies.put(number)
                left -= 1

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    for number in range(rounds):
        requests.put(number)
        got: list[int] = []
        deadline = time.monotonic() + 20
        while not got:
            assert time.monotonic() < deadline, f"hung in round {number}"
            got = replies.drain(block=True, timeout=20)
        assert got == [number]
    thread.join(20)
    assert not thread.is_alive()


def test_put_may_interrupt_a_put_of_the_same_thread() -> None:
    # As ``__del__`` does when the collector runs inside the mailbox's own code.
    mailbox: Mailbox[int] = Mailbox()

    class PutsWhenCollected:
        def __del__(self) -> None:
            mailbox.put(1)

    class Lock:
        """Stands for the mailbox's lock, with a collection in the middle of each release."""

        def __init__(self, lock: threading.Lock) -> None:
            self.lock, self.inside = lock, False

        def release(self) -> None:
            if not self.inside:
                self.inside = True
                PutsWhenCollected()
            self.lock.release()

        def acquire(self, timeout: float = -1) -> bool:
            return self.lock.acquire(timeout=timeout)

    mailbox._awake = Lock(mailbox._awake)  # type: ignore[assignment]
    mailbox.put(0)
    assert mailbox.drain(block=True, timeout=1) == [0, 1]
