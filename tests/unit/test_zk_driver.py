"""The part of the driver that needs no server: which session a request belongs to, and kazoo's
answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo import exceptions as kz
from kazoo.protocol.states import EventType, KazooState

from zkconsumer.core.zookeeper.ops import (
    Code,
    Exists,
    Failed,
    GetMany,
    Listing,
    Ok,
    Reply,
    SessionEvent,
)
from zkconsumer.zk import driver as module
from zkconsumer.zk.driver import ZkDriver


class Bench:
    """A driver without a connection."""

    def __init__(self) -> None:
        self.sessions: list[tuple[SessionEvent, int]] = []
        self.watches: list[tuple[str, int | None]] = []
        self.driver = ZkDriver(
            "127.0.0.1:1",
            "",
            6.0,
            lambda event, session: self.sessions.append((event, session)),
            lambda *event: self.watches.append(event),
        )

    def connected(self, session: int) -> None:
        """kazoo reports that it is connected, in this session."""
        self.driver._client = SimpleNamespace(client_id=(session, b""), connected=True)
        self.driver._state_changed(KazooState.CONNECTED)


@pytest.fixture
def bench() -> Bench:
    """The driver."""
    return Bench()


def test_a_request_of_another_session_is_not_sent(bench: Bench) -> None:
    """What its script has read may be outdated."""
    bench.connected(2)
    replies: list[Reply] = []
    bench.driver.submit(Exists("/"), 1, replies.append)
    assert replies == [Failed(Code.SESSION_EXPIRED)]
    assert bench.driver.operations == 0


def test_each_session_ends_before_the_next_one_begins(bench: Bench) -> None:
    """Even if kazoo replaces one without a notice. The same session again is resumed."""
    bench.connected(1)
    bench.driver._state_changed(KazooState.SUSPENDED)
    bench.connected(1)
    bench.connected(2)
    assert bench.sessions == [
        (SessionEvent.OPENED, 1),
        (SessionEvent.SUSPENDED, 1),
        (SessionEvent.RESUMED, 1),
        (SessionEvent.LOST, 1),
        (SessionEvent.OPENED, 2),
    ]


@pytest.mark.parametrize(("error", "proves"), [(None, True), (kz.ConnectionLoss(), False)])
def test_a_ping_proves_something_only_if_it_is_answered(
    bench: Bench, error: Exception | None, proves: bool
) -> None:
    """A failed ping says nothing about the session."""
    links: list[Callable[[Any], None]] = []
    request = SimpleNamespace(rawlink=links.append)
    bench.driver._client = SimpleNamespace(connected=True, exists_async=lambda path: request)
    answers: list[bool] = []
    bench.driver.ping(lambda: answers.append(True))
    links[0](SimpleNamespace(exception=error))
    assert bool(answers) is proves


def test_a_change_of_the_session_is_not_a_watch_event(bench: Bench) -> None:
    """kazoo reports it to each watch of the session too."""
    bench.driver._watch_fired(SimpleNamespace(type=EventType.NONE, path="/a", zxid=None))
    bench.driver._watch_fired(SimpleNamespace(type=EventType.CHANGED, path="/b", zxid=7))
    assert bench.watches == [("/b", 7)]


def test_a_failed_multi_is_its_culprit_s_error() -> None:
    """The other operations are marked as rolled back, even those before it."""
    replies: list[Reply] = []
    value = [0, kz.BadVersionError.code, kz.RuntimeInconsistency.code]
    result = SimpleNamespace(exception=None, value=value)
    module._deliver_multi(replies.append, result)
    assert replies == [Failed(Code.BAD_VERSION, 1)]


def test_a_counted_list_counts_its_children() -> None:
    """It counts changes of the children, not of the znode's data."""
    stat = SimpleNamespace(czxid=5, version=1, cversion=9, pzxid=8)
    replies: list[Reply] = []
    result = SimpleNamespace(exception=None, value=(["a"], stat))
    module._deliver(module._listing, replies.append, result)
    assert replies == [Ok(Listing(("a",), 5, 9, 8))]


def test_what_must_not_be_read_is_not_missing(bench: Bench) -> None:
    """An owner znode that cannot be read is not a free partition, whatever the request."""
    op = GetMany(("/a", "/b"))
    replies: list[Reply] = []
    value = [kz.NoNodeError.code, kz.NoAuthError.code]
    bench.driver._multi_read(op, replies.append, SimpleNamespace(exception=None, value=value))
    pipelined = module._Pipelined(op, replies.append)
    for index, error in enumerate((kz.NoNodeError(), kz.NoAuthError())):
        pipelined._answered(index, SimpleNamespace(exception=error))
    assert replies == [Failed(Code.NO_AUTH, 1)] * 2
    value[1] = kz.NoNodeError.code
    bench.driver._multi_read(op, replies.append, SimpleNamespace(exception=None, value=value))
    assert replies[2] == Ok((None, None))
