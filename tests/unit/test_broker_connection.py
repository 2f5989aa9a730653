"""A connection to a broker that misbehaves: what is accepted, and for how long."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.broker import connection as module
from zkconsumer.broker.api_versions import API_VERSIONS, LIST_OFFSETS
from zkconsumer.broker.cluster_reader import read_cluster
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, BrokerUnavailableError, UnsupportedBrokerError

TIMEOUT = 0.3


class Server:
    """Answers each request with the correlation ids of ``ids``. Without ids, it stays silent."""

    def __init__(self, ids: list[int]) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = BrokerEndpoint(0, *self.listening.getsockname()[:2])
        self._ids = ids
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        held = []
        while True:
            try:
                peer, _ = self.listening.accept()
            except OSError:
                return
            held.append(peer)
            while self._ids and peer.recv(4096):
                peer.sendall(struct.pack(">ii", 6, self._ids.pop(0)) + b"ok")


@pytest.fixture
def connect() -> Iterator[tuple[list[int], BrokerConnection]]:
    """Return the ids to answer with, and a connection that has not asked for versions."""
    ids: list[int] = []
    server = Server(ids)
    made = BrokerConnection(server.endpoint, "c", TIMEOUT, 0)
    yield ids, made
    made.close()
    server.listening.close()


@pytest.mark.parametrize("tls", [True, False])
def test_an_abort_while_the_connection_is_being_opened_is_final(
    tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent on it, also if the broker takes the connection and completes the handshake
    later: a member that leaves would wait for the answer."""

    class Context:
        def wrap_socket(self, sock: socket.socket, server_hostname: str) -> socket.socket:
            connection.abort()
            return sock

    security = KafkaSecurity()
    if tls:
        security.protocol, security.context = "SSL", Context()  # type: ignore[assignment]
    else:
        monkeypatch.setattr(security, "check_broker", lambda _broker: connection.abort())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = BrokerEndpoint(0, *listener.getsockname()[:2])
        connection = BrokerConnection(endpoint, "c", TIMEOUT, 0, security)
        with pytest.raises(BrokerUnavailableError, match="this client closed the connection"):
            connection.open()
        assert not connection.is_open
        listener.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # it may have ended before it connected
            peer, _ = listener.accept()
            with peer:
                assert peer.recv(1) == b"", "a request was sent"


def test_the_next_listener_is_tried_if_one_takes_no_connection() -> None:
    """It may be internal to another network. The one that did is the first one from then on."""
    server = Server([0, 0])
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        dead, other = first.getsockname()[:2], second.getsockname()[:2]
    where = server.endpoint.host, server.endpoint.port
    for endpoint in (
        BrokerEndpoint(0, *dead, (dead, where)),
        BrokerEndpoint(0, *where, (dead,)),
    ):
        connection = BrokerConnection(endpoint, "c", TIMEOUT, 0)
        connection._connect()
        assert (connection.here.host, connection.here.port) == where
        assert connection.endpoint == endpoint
        connection.close()
    server.listening.close()
    connection = BrokerConnection(BrokerEndpoint(0, *dead, (other,)), "c", TIMEOUT, 0)
    for _ in range(2):
        with pytest.raises(BrokerUnavailableError, match=f"{dead[1]}: Connection refused"):
            connection.open()


def test_an_answer_to_another_request_is_not_believed(
    connect: tuple[list[int], BrokerConnection],
) -> None:
    """It may be a late one. After it, no answer on this connection is accepted."""
    ids, connection = connect
    ids += [1, 1]
    connection._connect()
    assert bytes(connection.exchange(3, 0, b"")) == b"ok"
    with pytest.raises(BrokerError, match="wrong correlation id"):
        connection.exchange(3, 0, b"")
    assert not connection.is_open


def test_a_silent_broker_has_its_whole_timeout(
    connect: tuple[list[int], BrokerConnection],
) -> None:
    """Even if the timeout is a fraction of a second. Then the connection is closed."""
    _, connection = connect
    connection._connect()
    began = time.monotonic()
    with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
        connection.exchange(3, 0, b"")
    assert TIMEOUT * 0.9 < time.monotonic() - began < 20 * TIMEOUT
    assert not connection.is_open


@pytest.mark.parametrize(
    ("causes", "version"),
    [([], 4), ([ConnectionResetError()], 4), ([ConnectionResetError()] * 2, 0)],
)
def test_a_broker_is_an_old_one_if_it_drops_two_connections(
    causes: list[OSError],
    version: int,
    connect: tuple[list[int], BrokerConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers before 0.10 drop the connection when they are asked for versions. Others do so for
    other reasons."""
    left = list(causes)

    def versions(_connection: object) -> dict[int, range]:
        if left:
            raise BrokerUnavailableError("dropped") from left.pop()
        return {1: range(5)}

    monkeypatch.setattr(module, "supported_versions", versions)
    assert connect[1].version(1, 4, 0) == version


def test_a_broker_that_hangs_is_not_an_old_one(
    connect: tuple[list[int], BrokerConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence says nothing about its version."""

    def versions(_connection: object) -> dict[int, range]:
        raise BrokerUnavailableError("silent") from TimeoutError()

    monkeypatch.setattr(module, "supported_versions", versions)
    with pytest.raises(BrokerUnavailableError, match="silent"):
        connect[1].open()


@pytest.mark.parametrize("kind", ["too old", "hangs", "hung"])
def test_silence_is_age_only_if_an_older_request_is_answered(kind: str) -> None:
    """A broker of 0.9 leaves the request for versions unanswered, and answers ListOffsets on
    another connection. It is not asked again. One that hangs answers neither. One that hung for a
    moment answers both."""
    requests: list[int] = []
    probed = threading.Event()

    def serve(peer: socket.socket) -> None:
        while head := peer.recv(4, socket.MSG_WAITALL):
            frame = peer.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
            key, _, correlation = struct.unpack_from(">hhi", frame)
            requests.append(key)
            if key == LIST_OFFSETS:
                probed.set()
                if kind != "hangs":
                    peer.sendall(struct.pack(">iii", 8, correlation, 0))
            elif kind == "hung":
                probed.wait(10)
                answer = struct.pack(">hihhh", 0, 1, 1, 4, 11)  # Fetch in the versions 4 to 11
                peer.sendall(struct.pack(">ii", 4 + len(answer), correlation) + answer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    security = KafkaSecurity()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        where = BrokerEndpoint(0, *listener.getsockname()[:2])
        for _ in range(2):
            connection = BrokerConnection(where, "c", 2.0, 0, security)
            if kind == "hangs":
                with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
                    connection.open()
            else:
                assert connection.version(1, 10, 0) == (0 if kind == "too old" else 10)
            connection.close()
            assert requests == [API_VERSIONS, LIST_OFFSETS]
            if kind != "too old":
                break


def test_versions_that_cannot_be_read_are_the_broker_s_error(
    connect: tuple[list[int], BrokerConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not an error of this library."""

    def versions(_connection: object) -> dict[int, range]:
        raise TypeError("'NoneType' object is not iterable")

    monkeypatch.setattr(module, "supported_versions", versions)
    with pytest.raises(BrokerError, match="unreadable"):
        connect[1].open()
    assert not connect[1].is_open


def test_versions_that_a_broker_has_dropped_are_not_chosen(
    connect: tuple[list[int], BrokerConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka 4 no longer knows the oldest versions of a request."""
    monkeypatch.setattr(module, "supported_versions", lambda _connection: {1: range(4, 19)})
    assert connect[1].version(1, 10, 4, 0) == 10
    with pytest.raises(
        UnsupportedBrokerError,
        match=r"supports Fetch \(API key 1\) in the versions 4 to 18, but version 0 or 2 is needed",
    ):
        connect[1].version(1, 2, 0)
    with pytest.raises(
        UnsupportedBrokerError, match=r"does not support ListOffsets \(API key 2\)$"
    ):
        connect[1].version(2, 1)


def test_an_answer_must_be_whole_in_time() -> None:
    """A broker that sends a byte now and then would keep the thread waiting indefinitely."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = BrokerConnection(
            BrokerEndpoint(0, *listener.getsockname()[:2]), "c", TIMEOUT, 0
        )
        connection._connect()
        peer, _ = listener.accept()
        ended = threading.Event()

        def trickle() -> None:
            peer.sendall(struct.pack(">ii", 1000, 1))
            while not ended.wait(TIMEOUT / 5):
                peer.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        began = time.monotonic()
        try:
            with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
                connection.exchange(3, 0, b"")
        finally:
            ended.set()
            sender.join()
            peer.close()
        assert time.monotonic() - began < 20 * TIMEOUT


@pytest.mark.parametrize("ask", [fetch_metadata, read_cluster])
def test_a_broker_that_does_not_know_its_cluster_is_not_believed(
    ask: Callable[..., object],
) -> None:
    """It is starting. Otherwise all brokers and topics would be gone for a while."""
    empty = SimpleNamespace(brokers=[], topics=[], cluster_id="c")
    connection: Any = SimpleNamespace(
        endpoint=BrokerEndpoint(3, "b3", 9092),
        version=lambda _key, *wanted: wanted[-1],
        call=lambda *_: empty,
    )
    arguments = ({"t"},) if ask is fetch_metadata else ()
    with pytest.raises(BrokerUnavailableError, match="broker 3 at b3:9092 has not received"):
        ask(connection, *arguments)


MISSING = ("CLOCK_BOOTTIME",), ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime")


@pytest.mark.parametrize("missing", MISSING, ids=["macOS", "Windows"])
def test_a_member_can_be_imported_on_each_platform(missing: tuple[str, ...]) -> None:
    """Not every system has the clocks of Linux."""
    program = (
        "import time\n"
        f"for name in {missing}: delattr(time, name)\n"
        "import zkconsumer.connector, zkconsumer.coordinator, zkconsumer.migratable\n"
        "from zkconsumer.runtime.gate import DeliveryGate\n"
        "from zkconsumer.runtime.membership.threads import MemberThread\n"
        "gate = DeliveryGate()\n"
        "gate.extend(MemberThread('m').lease_now() + 60)\n"
        "assert gate.is_open\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_nothing_delays_a_request_once_the_connection_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before a commit, permission is asked for last. The wait for a turn may outlast the session
    that SASL began, and the next login needs turns as well."""
    done: list[str] = []
    connection = BrokerConnection(
        BrokerEndpoint(0, "b", 1), "c", 1.0, 0, before_request=lambda: done.append("turn")
    )

    def log_in(self: BrokerConnection, again: bool = True) -> None:
        self._wait_for_turns(1)
        self._turns = 0
        done.append("login")
        self._socket = SimpleNamespace(close=lambda: None)  # type: ignore[assignment]
        self._renew_at = 0.0 if done.count("login") == 1 else time.monotonic() + 60

    monkeypatch.setattr(BrokerConnection, "_open", log_in)
    connection.security.protocol = "SASL_SSL"
    connection.ready()
    assert done == ["turn", "login", "turn", "login", "turn"]
    connection.open()
    connection._wait_for_turns(1)
    assert len(done) == 5, "nothing is left to wait for"
    connection._renew_at = 0.0  # the permission took long
    socket_: Any = SimpleNamespace(sendall=lambda _: done.append("request"))
    connection._socket = socket_
    answer = memoryview((connection._correlation + 1).to_bytes(4, "big"))
    monkeypatch.setattr(connection, "_receive", lambda *_: answer)
    connection.exchange(8, 2, b"")
    assert done[5:] == ["request"], "the broker accepts it until its own end of the session"


def test_requests_that_are_sent_together_each_take_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All turns are taken before the connection is ready, and none after it."""
    server, client = socket.socketpair()
    turns: list[int] = []
    connection = BrokerConnection(
        BrokerEndpoint(0, "b", 1), "c", 1.0, 0, before_request=lambda: turns.append(1)
    )
    connection._socket = client
    monkeypatch.setattr(connection, "open", lambda: None)
    with server, client:
        connection.ready(3)
        assert len(turns) == 3
        first = connection._correlation + 1
        answers = [
            bytes((0, 0, 0, 5)) + (first + at).to_bytes(4, "big") + b"%d" % at for at in range(3)
        ]
        server.sendall(b"".join(answers))
        got = connection.exchange_all(8, 2, [b"a", b"b", b"c"])
        assert [bytes(one) for one in got] == [b"0", b"1", b"2"]
        assert len(turns) == 3
        server.sendall(b"".join(reversed(answers)))
        with pytest.raises(BrokerError, match="correlation"):
            connection.exchange_all(8, 2, [b"a", b"b", b"c"])
        assert len(turns) == 6
