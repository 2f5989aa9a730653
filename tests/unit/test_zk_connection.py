"""The limits of kazoo's connection, without a server."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ConnectionLoss
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import ForceRetryError

from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    Multi,
    Reply,
    SessionEvent,
    SetData,
    ZkOp,
)
from zkconsumer.errors import ZkUnavailableError
from zkconsumer.servers import wait_until
from zkconsumer.zk.connection import Connection, Handler, _poll
from zkconsumer.zk.driver import ZkDriver

_SPEC = importlib.util.spec_from_file_location(
    "scripted", Path(__file__).parents[2] / "docs" / "upstream" / "scripted.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
scripted = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(scripted)

SESSION = 6.0


def _unexpected(error: BaseException) -> None:
    raise AssertionError("nothing is handled in these tests") from error


@pytest.fixture
def connection() -> Connection:
    """The connection of a client that is not started, with two servers."""
    return Connection(KazooClient("127.0.0.1:1,127.0.0.1:2", handler=Handler(_unexpected)), SESSION)


def test_a_server_may_be_silent_for_a_third_of_the_session(connection: Connection) -> None:
    """The limit counts from the oldest request without an answer, or from the last answer. A server
    without open requests has no limit."""
    assert connection.patience() == math.inf
    connection.client._pending = deque([object()])
    connection._connecting = False
    connection._asked = time.monotonic()
    assert SESSION / 3 - 1 < connection.patience() <= SESSION / 3
    connection._asked -= 100
    assert connection.patience() < -90
    connection._heard = time.monotonic()
    assert connection.patience() > SESSION / 3 - 1, "the server answers slowly but steadily"
    connection.granted = 0.3
    assert connection.patience() <= 0.1, "the server has granted less"


def test_the_server_that_was_tried_last_is_tried_last(connection: Connection) -> None:
    """It may be the silent one."""
    for port in (1, 2):
        connection._tried = "127.0.0.1", port
        assert connection._expand_client_hosts()[-1][2] == port


class Dns:
    """Answers of DNS for any name, one for each look-up; the last one is repeated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.seconds = 0.0
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int, *_: object) -> list[Any]:
        self.asked += 1
        time.sleep(self.seconds)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in answer]


def named(monkeypatch: pytest.MonkeyPatch, session: float = SESSION) -> tuple[Any, list[str]]:
    """A connection to a name, and the addresses that it tries, all in vain."""
    made: Any = Connection(KazooClient("zk:2181", handler=Handler(_unexpected)), session)
    made.client._stopped.clear()
    tried: list[str] = []
    monkeypatch.setattr(made, "_connect_attempt", lambda host, ip, port, retry: tried.append(ip))
    return made, tried


def test_names_are_resolved_again_after_each_failed_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The servers have moved: old addresses that swallow packets do not all have to be tried.
    See kazoo #794."""
    old = [f"10.0.0.{n}" for n in range(5)]
    dns = Dns(monkeypatch, old, ["10.1.0.1"])
    made, tried = named(monkeypatch)
    with pytest.raises(ForceRetryError):
        made._connect_loop(None)
    assert len(tried) == 2
    assert tried[0] in old
    assert tried[1] == "10.1.0.1"
    assert dns.asked == 3


def test_slow_dns_is_asked_once_for_all_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the look-ups would take the time of the session."""
    dns = Dns(monkeypatch, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    dns.seconds = 0.02
    made, tried = named(monkeypatch, session=0.3)
    with pytest.raises(ForceRetryError):
        made._connect_loop(None)
    assert sorted(tried) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert dns.asked == 1


def test_an_address_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So all of them are tried within a third of the session timeout. If that was in vain, the
    network may be slow, and each one has that third, until the names have a new address. DNS may
    name some of the same addresses each time."""
    dns = Dns(monkeypatch, [f"10.0.0.{n}" for n in range(5)])
    made, _ = named(monkeypatch)
    made._expand_client_hosts()
    assert made.address_seconds == pytest.approx(SESSION / 3 / 5)
    with pytest.raises(ForceRetryError):
        made._connect_loop(None)
    assert made.address_seconds == pytest.approx(SESSION / 3)
    dns.answers = [[], ["10.0.0.1", "10.0.0.2"], ["10.0.0.3"], ["10.0.0.1", "10.1.0.1"]]
    for _ in range(3):
        made._expand_client_hosts()
        assert made.address_seconds == pytest.approx(SESSION / 3)
    made._expand_client_hosts()
    assert made.address_seconds == pytest.approx(SESSION / 3 / 2)


def test_a_stopped_client_tries_no_further_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """``stop`` does not wait for the others."""
    Dns(monkeypatch, ["10.0.0.1", "10.0.0.2"])
    made, tried = named(monkeypatch)
    made.client._stopped.set()
    assert made._connect_loop(None) is STOP_CONNECTING
    assert tried == []


def test_a_name_that_does_not_resolve_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the log as long as it lasts, and in the error at the start.
    See kazoo #622, ZOOKEEPER-2614."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    Dns(monkeypatch, unknown)
    driver = ZkDriver("zk.invalid:2181", "", 0.6, lambda *_: None, lambda _: None, lambda _: None)
    with pytest.raises(ZkUnavailableError) as caught:
        driver.start(0.5)
    assert "the name zk.invalid does not resolve (Name or service not known)" in str(caught.value)
    assert [one.getMessage() for one in caplog.records if "resolve" in one.getMessage()] == [
        "the name zk.invalid of a ZooKeeper server does not resolve"
    ]
    Dns(monkeypatch, unknown, ["10.0.0.1"])
    made, tried = named(monkeypatch)
    made._expand_client_hosts()
    assert made.unresolved
    made._expand_client_hosts()
    assert not made.unresolved
    assert tried == []


def test_waking_the_thread_never_blocks() -> None:
    """However many requests wait without a connection."""
    first, second = Handler(_unexpected).create_socket_pair()

    def wake() -> None:
        for _ in range(10_000):
            second.send(b"x")

    waking = threading.Thread(target=wake, daemon=True)
    waking.start()
    waking.join(10)
    assert not waking.is_alive()
    first.close()
    second.close()


def test_no_error_ends_the_thread(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread starts again, until the client is stopped."""
    begun: list[int] = []

    def fail(_self: object) -> None:
        begun.append(1)
        if len(begun) == 2:
            connection.client._stopped.set()
        raise RuntimeError("xids do not match")

    monkeypatch.setattr(ConnectionHandler, "zk_loop", fail)
    monkeypatch.setattr("zkconsumer.zk.connection._RESTART_SECONDS", 0.0)
    connection.client._stopped.clear()
    connection.zk_loop()
    assert len(begun) == 2


def test_closing_waits_for_a_limited_time(connection: Connection) -> None:
    """The thread may hang in a connection attempt."""
    waits: list[float | None] = []
    connection._connection_routine = SimpleNamespace(
        join=lambda timeout=None: waits.append(timeout), is_alive=lambda: True
    )
    connection.limit_stop(time.monotonic() + 1)
    assert not connection.stop()
    assert all(wait is not None and wait <= 1 for wait in waits)


def test_the_granted_session_timeout_is_in_seconds(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends it in milliseconds."""
    answer = SimpleNamespace(passwd=b"p" * 16, time_out=4000)
    monkeypatch.setattr(ConnectionHandler, "_invoke", lambda *_: (answer, None))
    connection._invoke(1.0, Connect(0, 0, 6000, 0, b"", None))
    assert connection.granted == 4.0


def test_an_answer_that_cannot_be_read_answers_its_request(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo has removed it from its list, so nothing else would answer it."""

    def fail(handler: Connection, *_: object) -> None:
        handler.client._pending.popleft()
        raise KeyError("an error code that kazoo does not know")

    monkeypatch.setattr(ConnectionHandler, "_read_response", fail)
    result = connection.client.handler.async_result()
    connection.client._pending = deque([(None, result, 7)])
    with pytest.raises(KeyError):
        connection._read_response(SimpleNamespace(xid=7), b"", 0)
    assert isinstance(result.exception, ConnectionLoss)


def test_an_answer_out_of_order_breaks_the_connection(connection: Connection) -> None:
    """It does not answer the next request."""
    result = connection.client.handler.async_result()
    connection.client._pending = deque([(None, result, 7)])
    with pytest.raises(ConnectionDropped, match="out of order"):
        connection._read_response(SimpleNamespace(xid=8), b"", 0)
    assert not result.ready()


def test_servers_that_know_less_than_the_client_take_it_in_the_end(
    connection: Connection,
) -> None:
    """After two session timeouts without any server, it connects like a client that has seen
    nothing."""
    connection.client.last_zxid = 5
    for waited, known in ((0, 5), (1.9 * SESSION, 5), (2.1 * SESSION, 0)):
        connection._turned_away = time.monotonic() - waited if waited else None
        connection._refused()
        assert connection.client.last_zxid == known


EXPIRED = -112
END_OF_MULTI = struct.pack(">i?i", -1, True, -1)
IN_A_MULTI = struct.pack(">i?ii", -1, False, EXPIRED, EXPIRED) + END_OF_MULTI


@pytest.mark.parametrize(
    ("op", "frames"),
    [
        (SetData("/a", b"1"), {5: lambda xid: [scripted.good(xid, EXPIRED)]}),
        (Multi((SetData("/a", b"1"),)), {14: lambda xid: [scripted.good(xid, 0) + IN_A_MULTI]}),
    ],
)
def test_an_answer_that_the_session_has_expired_ends_it(
    op: ZkOp, frames: dict[int, Callable[[int], list[bytes]]]
) -> None:
    """If a server resumes a session just while another client closes it, it answers reads and pings
    as if the session lived. Only writes show that it does not."""
    server = scripted.Server(
        lambda xid, kind: frames.get(kind, lambda xid: scripted.honest(xid, kind))(xid)
    )
    events: list[SessionEvent] = []
    driver = ZkDriver(server.address, "", 3.0, lambda event, _: events.append(event), _unexpected)
    driver.start(10)
    replies: list[Reply] = []
    driver.submit(op, driver.session_id, replies.append)
    opened = [SessionEvent.OPENED, SessionEvent.LOST, SessionEvent.OPENED]
    wait_until(lambda: events[:3] == opened, 10, "a new session")
    (reply,) = replies
    assert isinstance(reply, Failed)
    assert reply.code is Code.SESSION_EXPIRED
    frames.clear()
    driver.close()
    server.close()


def test_a_multi_that_has_waited_for_a_connection_is_not_sent() -> None:
    """What it was decided by may not hold any more: the servers may have been restored from a
    backup. Its caller knows of the connection when it has handled that the session was resumed."""
    sent: list[int] = []
    accepts = threading.Event()
    accepts.set()

    def answer(xid: int, kind: int) -> list[bytes]:
        sent.append(kind)
        return [scripted.good(xid, 0) + END_OF_MULTI] if kind == 14 else scripted.honest(xid, kind)

    server = scripted.Server(
        answer, accept=lambda _zxid: scripted.session(3000) if accepts.is_set() else None
    )
    events: list[SessionEvent] = []
    driver = ZkDriver(server.address, "", 3.0, lambda event, _: events.append(event), _unexpected)
    driver.start(10)
    replies: list[Reply] = []
    multi = Multi((SetData("/a", b"1"),))
    accepts.clear()
    driver._connection._socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: SessionEvent.SUSPENDED in events, 10, "the connection breaks")
    driver.submit(multi, driver.session_id, replies.append, 0)
    accepts.set()
    wait_until(lambda: bool(replies), 10, "an answer")
    assert replies == [Failed(Code.CONNECTION_LOSS)]
    assert 14 not in sent
    driver.submit(multi, driver.session_id, replies.append, 1)
    wait_until(lambda: len(replies) == 2, 10, "an answer")
    assert 14 in sent
    driver.close()
    server.close()


@pytest.mark.parametrize("state", ["quiet", "data", "full", "ended", "reset"])
def test_waiting_for_sockets_agrees_with_select(state: str) -> None:
    """The one system call finds the same as ``select.select``, even an ended connection."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        if state == "data":
            other.send(b"x")
        elif state == "full":
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(b"x" * 65536)
        elif state == "ended":
            other.shutdown(socket.SHUT_WR)
        elif state == "reset":
            one.send(b"unread")
            other.close()
        found = _poll([one], [one], 0.05)
        assert found == tuple(map(list, select.select([one], [one], [], 0)))


def test_waiting_for_a_closed_socket_is_an_error() -> None:
    """kazoo's own code does the same, so that kazoo's loop ends the connection."""
    one, other = socket.socketpair()
    with other:
        one.close()
        with pytest.raises(ValueError, match="negative"):
            _poll([one], [], 0)
