"""The thread of a member: actions run in order, timers run when they are due, a failure ends it."""

from __future__ import annotations

import time

import pytest

from zkconsumer.runtime.membership.threads import MemberThread
from zkconsumer.servers import wait_until


class Member:
    """Runs until its list is long enough."""

    def __init__(self, length: int = 10**6) -> None:
        self.done: list[str] = []
        self.failed: list[BaseException] = []
        self._length = length

    @property
    def ended(self) -> bool:
        return len(self.done) >= self._length

    def begin(self) -> None:
        self.done.append("begin")

    def crashed(self, error: BaseException) -> None:
        self.failed.append(error)


def test_timers_run_in_the_order_of_their_times_and_messages_at_once() -> None:
    """Due timers run in order. A message does not wait for later timers. A cancelled timer does
    nothing."""
    thread, member = MemberThread("m"), Member(5)
    thread.after(0.2, lambda: member.done.append("second"))
    thread.after(0.0, lambda: member.done.append("first"))
    thread.after(600, lambda: member.done.append("never"))
    thread.after(0.1, lambda: member.done.append("cancelled"))()
    thread.post(lambda: member.done.append("message"))
    thread.start(member)
    wait_until(lambda: len(member.done) >= 4, 10, "the timers")
    thread.post(lambda: member.done.append("last"))
    assert thread.join(10)
    assert member.done == ["begin", "message", "first", "second", "last"]


def test_an_action_every_few_milliseconds() -> None:
    """``every`` repeats, whatever the action does meanwhile."""
    thread, member = MemberThread("m"), Member(6)
    thread.every(0.001, lambda: member.done.append("again"))
    thread.start(member)
    assert thread.join(10)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_an_action_or_a_helper_thread_raises_is_reported_to_the_member(
    kind: type[BaseException],
) -> None:
    """Every exception that ends a thread is reported to the member."""

    def fail() -> None:
        raise kind("broken")

    for begin in (MemberThread.post, MemberThread.aside):
        thread, member = MemberThread("m"), Member()
        begin(thread, fail)
        thread.start(member)
        assert thread.join(10)
        assert [type(error) for error in member.failed] == [kind]


def test_messages_without_an_end_hold_up_no_timer() -> None:
    """A busy member still sends its pings."""
    thread, member = MemberThread("m"), Member(2)

    def again() -> None:
        if not member.ended:
            thread.post(again)

    thread.post(again)
    thread.after(0.01, lambda: member.done.append("timer"))
    thread.start(member)
    assert thread.join(10)
    assert member.done == ["begin", "timer"]


def test_a_timer_that_is_set_again_without_a_pause_holds_up_no_message() -> None:
    """The member still takes the loss of its session in."""
    thread, member = MemberThread("m"), Member(2)
    until = time.monotonic() + 5

    def again() -> None:
        if time.monotonic() > until:
            member.done.append("the message was held up")
        elif not member.ended:
            thread.post(lambda: member.done.append("message"))
            thread.after(0.0, again)

    thread.after(0.0, again)
    thread.start(member)
    assert thread.join(20)
    assert member.done == ["begin", "message"]
