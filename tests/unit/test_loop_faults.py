"""Members of both kinds on simulated servers (``conftest.py``), with faults in the member."""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import pytest

from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    ConnectorFailedError,
    DuplicateConsumerIdError,
    RebalanceFailedError,
    ZkUnavailableError,
)
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.line import ServerLine
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Member, Switch  # type: ignore[import-not-found]

P0 = TopicPartition("t", 0)
SOON = 10.0
"""Seconds: far longer than any step here, far shorter than any timeout of the members."""


class InBackground:
    """A call on its own thread. ``outcome`` is what it returned or raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.outcome: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.outcome = self._call()
        except BaseException as error:  # noqa: BLE001
            self.outcome = error

    def result(self) -> Any:
        self._thread.join(SOON)
        assert not self._thread.is_alive(), "the call does not end"
        return self.outcome


def one_stream(member: Member) -> KafkaStream:
    """The stream of a member that owns the only partition."""
    streams = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(streams, dict), streams
    (stream,) = streams["t"]
    assert isinstance(stream, KafkaStream)
    return stream


class Leaving:
    """A rebalance listener that shuts down its connector."""

    def __init__(self, member: Member, *when: str) -> None:
        self._member = member
        self._when = when
        self.called: list[str] = []
        self.ended = threading.Event()

    def before_releasing_partitions(self, _partitions: object) -> None:
        self._call("releasing")

    def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
        self._call("starting")

    def on_partitions_lost(self, _partitions: object) -> None:
        self._call("lost")

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name in self._when:
            self._member.shutdown()
            self.ended.set()


def test_a_listener_may_shut_the_member_down_before_it_starts(
    member: Member, switch: Switch
) -> None:
    """The member leaves at once, although its listener waits for that and does not return."""
    listener = Leaving(member, "starting")
    member.set_consumer_rebalance_listener(listener)
    outcome = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(outcome, ConnectorClosedError)
    assert listener.ended.wait(SOON / 2)
    assert (listener.called, len(switch.left)) == (["starting"], 1)


@pytest.mark.parametrize(
    ("member", "code", "when"),
    [
        ("zookeeper", ErrorCode.REBALANCE_IN_PROGRESS, "releasing"),
        ("coordinator", ErrorCode.REBALANCE_IN_PROGRESS, "releasing"),
        ("coordinator", ErrorCode.ILLEGAL_GENERATION, "lost"),
    ],
    indirect=["member"],
)
def test_a_listener_may_shut_the_member_down_in_a_rebalance(
    member: Member, switch: Switch, code: ErrorCode, when: str
) -> None:
    """As before the start, the busy listener is not called again."""
    listener = Leaving(member, when)
    member.set_consumer_rebalance_listener(listener)
    one_stream(member)
    switch.heartbeat = code
    assert listener.ended.wait(SOON / 2)
    assert (listener.called, len(switch.left)) == (["starting", when], 1)


class Exiting:
    """A rebalance listener that calls ``sys.exit()`` on the thread it is called on."""

    def __init__(self, *when: str) -> None:
        self._when = when
        self.called: list[str] = []

    def before_releasing_partitions(self, _partitions: object) -> None:
        self._call("releasing")

    def before_starting_fetchers(self, _consumer: str, _assignment: object) -> None:
        self._call("starting")

    def on_partitions_revoked(self, _partitions: object) -> None:
        self._call("releasing")

    def _call(self, name: str) -> None:
        self.called.append(name)
        if name in self._when:
            sys.exit(3)


def test_a_listener_that_exits_does_not_stop_the_rebalance(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """``sys.exit()`` in a listener is reported like any other error. The member fetches, and leaves
    normally."""
    listener = Exiting("starting", "releasing")
    member.set_consumer_rebalance_listener(listener)
    one_stream(member)
    assert member.metrics().owned_partitions == 1
    assert listener.called == ["starting"]
    assert "listener-error: the rebalance listener raised SystemExit(3)" in caplog.text
    assert InBackground(member.shutdown).result() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fault", [RuntimeError("can't start new thread"), SystemExit(4)])
def test_a_fault_in_the_member_is_raised_wherever_the_application_looks(
    member: Member, switch: Switch, fault: BaseException
) -> None:
    """After an internal fault, a waiting stream raises ConnectorFailedError with the reason, and so
    does ``shutdown``. Commits of both forms are answered at once. The servers' clients close."""
    stream = one_stream(member)
    waiting = InBackground(lambda: next(iter(stream)))
    switch.broken = fault
    raised = waiting.result()
    assert isinstance(raised, ConnectorFailedError), raised
    assert repr(fault) in str(raised)
    assert raised.__cause__ is fault
    began = time.monotonic()
    with pytest.raises(CommitFailedError, match=r"the connector has failed.*(thread|4)"):
        member.commit_offsets()
    with pytest.raises(CommitFailedError, match="the connector has failed"):
        member.commit_offsets({P0: 1})
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    member.commit_offsets_async(callback=told.put)
    assert "the connector has failed" in str(told.get(timeout=SOON))
    assert time.monotonic() - began < 2.0
    wait_until(lambda: switch.closed, SOON, "the servers' clients are closed")
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), ended
    assert member.closed


@pytest.mark.parametrize("failing", [None, "data.fail", "data.close", "coordination.close"])
def test_a_fault_in_the_member_ends_all_of_it(failing: str | None) -> None:
    """Delivery, commits, streams, threads that wait for the start or the end, fetchers and
    connections all end, even if ending one of them fails."""
    done: list[str] = []

    def step(name: str) -> Callable[..., None]:
        def take(*_: object) -> None:
            done.append(name)
            if name == failing:
                raise ZeroDivisionError(name)

        return take

    host: Any = SimpleNamespace(log=lambda *_: None, post=lambda _: None)
    data: Any = SimpleNamespace(fail=step("data.fail"), close=step("data.close"))
    coordination: Any = SimpleNamespace(close=step("coordination.close"))
    gate, counts = DeliveryGate(now=lambda: 0.0), RebalanceCounts((), (), ())
    loop: Any = MemberLoop(
        "c",
        SimpleNamespace(),  # type: ignore[type-var]
        coordination,
        data,
        gate,
        host,
        None,
        auto_commit_interval=None,
        rebalances=counts,
    )
    gate.extend(60.0)
    commit = loop.commit({P0: 1}, strict=False)
    fault = RuntimeError("broken")
    loop.crashed(fault)
    gate.extend(90.0)
    assert not gate.is_open
    assert done == ["data.fail", "data.close", "coordination.close"]
    assert loop.ended
    for future in (loop.started, loop.closed):
        assert isinstance(future.exception(0), ConnectorFailedError)
        assert future.exception(0).__cause__ is fault
    for answered in (commit, loop.commit({P0: 2}, strict=False)):
        assert "RuntimeError('broken')" in answered.result(0)[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stream_that_was_not_read_meanwhile_raises_the_fault(
    member: Member, switch: Switch
) -> None:
    """The application asks for a message only after the fault and the shutdown. The stream does not
    end as if there were no fault."""
    stream = one_stream(member)
    switch.broken = OSError(28, "No space left on device")
    wait_until(lambda: switch.closed, SOON, "the member has left")
    with pytest.raises(ConnectorFailedError):
        member.shutdown()
    for ask in (lambda: next(iter(stream)), stream.try_next):
        raised = InBackground(ask).result()
        assert "No space left on device" in str(raised), repr(raised)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_before_the_first_rebalance_fails_the_start(member: Member, switch: Switch) -> None:
    """Creating streams raises ConnectorFailedError, long before the start would time out."""
    switch.broken = RuntimeError("broken")
    raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(raised, ConnectorFailedError), repr(raised)
    assert "RuntimeError('broken')" in str(raised)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_a_worker_thread_is_not_swallowed(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that waits for the unacknowledged message fails. The member fails too, and does
    not wait indefinitely."""
    stream = one_stream(member)
    waiting = InBackground(lambda: next(iter(stream)))

    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(Reader, "wait_released", fail)
    monkeypatch.setattr(Reader, "held_by", lambda self, thread: False)
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), repr(ended)
    assert "ZeroDivisionError" in str(waiting.result())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_thread_that_cannot_be_started_is_a_fault(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may have no more threads when partitions are released."""
    stream = one_stream(member)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.endswith("_blocking"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended = InBackground(member.shutdown).result()
    assert isinstance(ended, ConnectorFailedError), repr(ended)
    assert "can't start new thread" in str(InBackground(lambda: next(iter(stream))).result())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_commit_is_answered_while_the_member_fails(member: Member, switch: Switch) -> None:
    """Threads that commit while the loop ends get exactly one answer for each commit."""
    one_stream(member)
    asked, answers = [0] * 4, queue.SimpleQueue[Any]()
    enough = threading.Event()

    def commit(thread: int) -> None:
        while not enough.is_set() or asked[thread] < 200:
            member.commit_offsets_async(callback=answers.put)
            asked[thread] += 1

    committing = [InBackground(lambda n=n: commit(n)) for n in range(4)]  # type: ignore[misc]
    wait_until(lambda: sum(asked) > 100, SOON, "commits are asked for")
    switch.broken = RuntimeError("broken")
    wait_until(lambda: switch.closed, SOON, "the member has left")
    enough.set()
    assert [thread.result() for thread in committing] == [None] * 4
    wait_until(lambda: answers.qsize() >= sum(asked), SOON, "all are answered")
    assert answers.qsize() == sum(asked)


def test_a_commit_callback_that_exits_does_not_end_the_member(
    member: Member, caplog: pytest.LogCaptureFixture
) -> None:
    """``sys.exit()`` in the callback of a commit is logged. The member continues."""
    one_stream(member)
    member.commit_offsets_async(callback=lambda _: sys.exit(5))
    member.commit_offsets()
    wait_until(lambda: "the callback of a commit raised" in caplog.text, SOON, "it is logged")
    member.commit_offsets()
    assert InBackground(member.shutdown).result() is None


def test_a_start_that_nobody_answers_ends_in_its_time(
    member: Member, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so, and the connector is shut down with all its threads."""
    switch.silent = True
    monkeypatch.setattr(member, "_start_patience", 0.8)
    threads = set(threading.enumerate())
    begun = time.monotonic()
    raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(raised, RebalanceFailedError), repr(raised)
    assert "the first rebalance did not end within" in str(raised)
    assert time.monotonic() - begun < 0.8 + 2.0
    assert member.closed
    wait_until(lambda: set(threading.enumerate()) <= threads, SOON, "its threads end")


def test_an_offset_coordinator_that_does_not_answer_is_named(
    switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``offsets.storage=kafka``, it may be what a start or a shutdown waits for."""
    switch.offsets_fail = True
    member = ZookeeperConsumerConnector(
        {"group.id": "g", "zookeeper.connect": "nowhere:1", "offsets.storage": "kafka"}
    )
    monkeypatch.setattr(member, "_start_patience", 0.8)
    raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert "check ZooKeeper at nowhere:1 and the offset coordinator" in str(raised)


def test_a_member_whose_name_is_taken_leaves_the_other_one_alone(switch: Switch) -> None:
    """It waits for 1.5 session timeouts and a second, because the name may be that of its own old
    session. Then the start fails, and the other member's registration is unchanged."""
    switch.taken = True
    member = ZookeeperConsumerConnector(
        {
            "group.id": "g",
            "consumer.id": "m",
            "zookeeper.connect": "nowhere:1",
            "zookeeper.session.timeout.ms": 100,
            "rebalance.backoff.ms": 10,
        }
    )
    driver: Any = member._zk
    before = driver.registration()
    raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
    assert isinstance(raised, DuplicateConsumerIdError), repr(raised)
    assert before is not None
    assert driver.registration() == before
    assert member.closed


def test_commits_without_waiting_are_answered(member: Member) -> None:
    """The callback gets ``None`` when all is stored. If a partition is not this member's, it gets
    an error that names the partition."""
    one_stream(member)
    answers: queue.SimpleQueue[CommitFailedError | None] = queue.SimpleQueue()
    member.commit_offsets_async({P0: 3}, answers.put)
    assert answers.get(timeout=SOON) is None
    member.commit_offsets_async(callback=answers.put)
    assert answers.get(timeout=SOON) is None
    member.commit_offsets_async({TopicPartition("t", 9): 3}, answers.put)
    refused = answers.get(timeout=SOON)
    assert isinstance(refused, CommitFailedError)
    assert "t-9" in str(refused)


def test_a_commit_that_no_server_answers_is_answered_in_time(
    member: Member, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers are silent. Both forms of a commit end in time, and name the silent server."""
    one_stream(member)
    monkeypatch.setattr(member, "_answer_patience", 0.5)
    switch.silent = True
    answers: queue.SimpleQueue[CommitFailedError | None] = queue.SimpleQueue()
    member.commit_offsets_async({P0: 3}, answers.put)
    raised = InBackground(lambda: member.commit_offsets({P0: 3})).result()
    for error in (raised, answers.get(timeout=SOON)):
        assert isinstance(error, CommitFailedError), repr(error)
        assert "no answer from" in str(error)


class FaultyClient:
    """A client with a fault."""

    def __init__(self, fault: BaseException) -> None:
        self._fault = fault

    def execute(self, _request: object, _permission: object) -> object:
        raise self._fault

    def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize("fault", [KeyError("host"), SystemExit(1)])
def test_an_unexpected_error_of_a_line_reaches_the_member(fault: BaseException) -> None:
    """No answer will follow, so the member fails. The watchdog sees that the thread has ended."""
    client: Any = FaultyClient(fault)
    crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    line = ServerLine(client, "c_requests", crashes.put)
    line.check()
    line.submit("request", lambda *_: None)
    assert crashes.get(timeout=SOON) is fault
    line._thread.join(SOON)
    with pytest.raises(RuntimeError, match="c_requests has ended unexpectedly"):
        line.check()
    line.close()
    line.check()


def test_many_filters_on_many_topics_do_not_stop_the_heartbeat(switch: Switch) -> None:
    """A member joins 200 others with the same white list on 5,000 topics within seconds. Its
    session is confirmed meanwhile, so delivery would not pause."""
    switch.topics, switch.filters = 5000, 200
    member = ZookeeperConsumerConnector(
        {
            "group.id": "g",
            "zookeeper.connect": "nowhere:1",
            "zookeeper.session.timeout.ms": 6000,
            "partition.assignment.strategy": "roundrobin",
        }
    )
    began = time.monotonic()
    joining = InBackground(lambda: member.create_message_streams_by_filter(Whitelist("t.*")))
    assert isinstance(joining.result(), list)
    assert member.metrics().owned_partitions == 24
    confirmed = [began, *switch.pings, time.monotonic()]
    longest = max(after - before for before, after in itertools.pairwise(confirmed))
    assert longest < 4.0, "two thirds of the session timeout"
    member.shutdown()


# -- the journal ----------------------------------------------------------------------------------


class Disk:
    """Files that are written through ``open`` wait until ``go`` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.waiting = 0

    def open(self, path: Path, mode: str, *more: Any, **others: Any) -> Any:
        file: Any = open(path, mode, *more, **others)  # noqa: SIM115
        write = file.write

        def slow(text: Any) -> Any:
            self.waiting += 1
            assert self.go.wait(60)
            self.waiting -= 1
            return write(text)

        hanging = MagicMock(wraps=file)
        hanging.__enter__.return_value = hanging
        hanging.__exit__.side_effect = lambda *_: file.close()
        hanging.write, hanging.closed = slow, False
        return hanging


def journalling(kind: str, directory: Path) -> Member:
    """A connector that writes a journal and commits fifty times a second."""
    common = {
        "group.id": "g",
        "rebalance.backoff.ms": 10,
        "auto.commit.interval.ms": 20,
        "zkconsumer.journal.dir": str(directory),
    }
    if kind == "zookeeper":
        return ZookeeperConsumerConnector(
            common | {"zookeeper.connect": "nowhere:1", "zookeeper.session.timeout.ms": 600}
        )
    return CoordinatorConsumerConnector(common | {"bootstrap.servers": "127.0.0.1:1"})


@pytest.mark.parametrize("kind", ["zookeeper", "coordinator"])
@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
@pytest.mark.usefixtures("switch")
def test_a_member_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, after: int
) -> None:
    """The machine has no thread to give when some of the member's have started. Its threads end,
    its journal is closed, and the connector is shut down."""
    before = set(threading.enumerate())
    member = journalling(kind, tmp_path)
    start, started = threading.Thread.start, itertools.count()

    def limited(thread: threading.Thread) -> None:
        if next(started) == after:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        try:
            member.create_message_streams({"t": 1})
        except (RuntimeError, ConnectorFailedError):
            failed = True
        else:
            failed = False
    if not failed:  # it was a thread that the member can start again
        member.shutdown(timeout=SOON)
    assert member.closed
    assert not _open_files(tmp_path)

    def left() -> list[str]:
        return [one.name for one in set(threading.enumerate()) - before if one.is_alive()]

    wait_until(lambda: not left(), SOON, f"all threads end: {left()}")
    member.shutdown()


def test_a_disk_that_hangs_does_not_stop_the_pings(
    switch: Switch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the journal cannot be written, the member still sends pings, delivers, and leaves
    normally."""
    disk = Disk()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *how, **others: disk.open(*how, **others))
        member = journalling("zookeeper", tmp_path)
        one_stream(member)
    disk.go.clear()
    try:
        wait_until(lambda: disk.waiting, SOON, "the disk hangs")
        hung = len(switch.pings)
        wait_until(lambda: len(switch.pings) > hung + 10, SOON, "pings while the disk hangs")
        assert member._gate.is_open
        assert InBackground(member.shutdown).result() is None
    finally:
        disk.go.set()


@pytest.mark.parametrize("kind", ["zookeeper", "coordinator"])
def test_a_start_that_fails_leaves_no_open_journal(
    switch: Switch, tmp_path: Path, kind: str
) -> None:
    """No file stays open if the servers cannot be reached, or the first rebalance fails."""
    switch.unreachable = True
    failed: object = None
    try:
        member = journalling(kind, tmp_path)
    except ZkUnavailableError as error:
        failed = error  # keeps the frames and their objects
    assert (kind == "zookeeper") == (failed is not None)
    assert not _open_files(tmp_path)
    if failed is None:
        switch.broken = RuntimeError("broken")
        raised = InBackground(lambda: member.create_message_streams({"t": 1})).result()
        assert isinstance(raised, ConnectorFailedError), repr(raised)
        assert not _open_files(tmp_path)


@pytest.mark.parametrize("kind", ["zookeeper", "coordinator"])
def test_a_journal_that_cannot_be_made_is_an_error_of_the_configuration(
    switch: Switch, tmp_path: Path, kind: str
) -> None:
    """The error names the key, the member does not start, and the connector can be shut down."""
    (tmp_path / "file").touch()
    member = journalling(kind, tmp_path / "file")
    with pytest.raises(ConfigError, match=r"zkconsumer\.journal\.dir: .*file"):
        member.create_message_streams({"t": 1})
    member.shutdown()
    assert len(switch.closed) == (kind == "zookeeper")


def _open_files(directory: Path) -> list[str]:
    found = (os.readlink(f"/proc/self/fd/{number}") for number in _descriptors())
    return [name for name in found if name.startswith(str(directory))]


def _descriptors() -> list[str]:
    return [
        number
        for number in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{number}")
    ]
