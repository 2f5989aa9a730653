"""The watchdog of a member's threads, with a member on simulated servers (``conftest.py``)."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.runs.fetching import SimConfig
from zkconsumer.errors import ConnectorFailedError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.interface import FetchEvent
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership import threads
from zkconsumer.runtime.membership.threads import MemberThread, Watchdog, has_ended
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Member  # type: ignore[import-not-found]

SOON = 10.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_member_whose_thread_hangs_fails(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread waits indefinitely, for example in the application's journal. The member leaves
    its group and its streams raise an error."""
    (stream,) = member.create_message_streams({"t": 1})["t"]
    never = threading.Event()
    try:
        member._host.post(never.wait)
        monkeypatch.setattr(threads, "PERIOD", 0.01)
        monkeypatch.setattr(threads, "HUNG", 20)
        with pytest.raises(ConnectorFailedError, match="has not finished a step for 20 s"):
            next(iter(stream))
    finally:
        never.set()
    with pytest.raises(ConnectorFailedError):
        member.shutdown(timeout=SOON)


def test_a_member_that_is_busy_or_idle_does_not_hang() -> None:
    """Neither many steps nor waiting for work counts as one long step."""
    host = MemberThread("m")
    member: Any = SimpleNamespace(ended=False, left=False, begin=lambda: None, crashed=None)
    host.start(member)
    dog = Watchdog("m_watchdog", host, member, ())
    for _ in range(2 * threads.HUNG):  # in each look, the thread is in another step
        entered, leave = threading.Event(), threading.Event()
        host.post(lambda entered=entered, leave=leave: (entered.set(), leave.wait(SOON)))
        assert entered.wait(SOON)
        dog.look()
        leave.set()
    wait_until(lambda: host.turn % 2 == 0, SOON, "the last step ends")
    for _ in range(2 * threads.HUNG):
        dog.look()
    member.ended = True
    host.post(int)
    wait_until(lambda: host.dead, SOON, "the thread ends")


def test_the_watchdog_ends_with_its_member(member: Member) -> None:
    """Its thread ends soon after the member has left."""
    member.create_message_streams({"t": 1})
    dog = member._watchdog
    assert dog is not None
    member.shutdown(timeout=SOON)
    wait_until(lambda: dog._thread is not None and has_ended(dog._thread), SOON, "it ends")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_member_that_dies_while_it_fails_is_left_by_the_watchdog() -> None:
    """The member's thread ends while it leaves. The watchdog leaves in its place."""
    host = MemberThread("m")
    calls: list[str] = []

    def crashed(_error: BaseException) -> None:
        calls.append(threading.current_thread().name)
        member.ended = True
        if len(calls) == 1:
            raise SystemExit
        member.left = True

    member: Any = SimpleNamespace(
        ended=False, left=False, begin=lambda: 1 / 0, crashed=crashed, closed=None
    )
    host.start(member)
    wait_until(lambda: host.dead, SOON, "the thread has ended")
    dog = Watchdog("m_watchdog", host, member, ())
    with pytest.raises(RuntimeError, match="the member's thread has ended"):
        dog.look()
    dog.start()
    wait_until(lambda: member.left, SOON, "the member has left")
    assert calls == ["m_loop", "m_watchdog"]


def test_work_aside_that_ends_without_an_answer_is_noticed() -> None:
    """Work that is done is not reported."""
    host = MemberThread("m")
    done = threading.Event()
    host.aside(done.set)
    assert done.wait(SOON)
    wait_until(lambda: not host._beside, SOON, "the thread is forgotten")
    host.check()
    lost = threading.Thread(target=int, name="m_blocking")
    lost.start()
    lost.join()
    host._beside.add(lost)
    with pytest.raises(RuntimeError, match="m_blocking has ended unexpectedly"):
        host.check()
    host.check()


def test_a_fetching_thread_that_could_not_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process had no free thread for a moment. The partition is not forgotten."""
    events: list[FetchEvent] = []
    config: Any = SimConfig(1000, 10_000, 1, 10, "smallest", "default")
    manager = ConsumerFetcherManager(config, "me", events.append)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    target = KafkaStream(Reader(DeliveryGate(always_open=True), timeout_ms=1000))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            manager.start({PartitionTopicInfo("t", 0, 0): target._reader.queue})
        with pytest.raises(RuntimeError):
            manager.check()
    manager.check()
    assert [one.name for one in manager._threads.values()] == ["me-leader-finder-thread"]
    manager.shutdown()
    manager.check()
    assert all(has_ended(one) for one in manager._threads.values())
