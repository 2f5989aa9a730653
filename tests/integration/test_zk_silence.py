"""If responses are late, lost or missing, the ZooKeeper driver keeps the session and its calls
end."""

from __future__ import annotations

import os
import queue
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.test_zk_driver import Driven
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.core.zookeeper.ops import Code, Create, Exists, Failed, GetChildren, Ok, Reply, ZkOp
from zkconsumer.errors import ZkUnavailableError
from zkconsumer.servers import LocalZooKeeper, wait_until
from zkconsumer.zk.blocking import BlockingZk
from zkconsumer.zk.driver import SessionEvent, ZkDriver

SESSION = 4.0
"""Session timeout in seconds."""
SLACK = 1.5
"""Seconds that a busy machine may add to a measured time."""


class Proxied(Driven):
    """A driver behind one or several proxies, which sends pings as a member does."""

    def __init__(self, chroot: str, proxies: list[TcpProxy]) -> None:
        hosts = ",".join(proxy.address for proxy in proxies)
        super().__init__(f"{hosts}/{chroot.partition('/')[2]}", SESSION)
        self.proxies = proxies
        self._ended = threading.Event()
        self._pings = threading.Thread(target=self._ping, daemon=True)
        self._pings.start()

    def _ping(self) -> None:
        while not self._ended.wait(SESSION / 6):
            self.driver.ping(lambda: None)

    def send(self, op: ZkOp, session: int | None = None) -> queue.Queue[Reply]:
        """Begin ``op`` in the current session."""
        return super().send(op, self.driver.session_id if session is None else session)

    def used(self) -> TcpProxy:
        """The proxy that the connection goes through."""
        (found,) = wait_until(self._one_used, 10, "one connection")
        return found

    def _one_used(self) -> list[TcpProxy]:
        """The only proxy with a connection. The previous one may keep its connection for a
        moment."""
        found = [proxy for proxy in self.proxies if proxy.connections]
        return found if len(found) == 1 else []

    def close(self) -> None:
        self._ended.set()
        self._pings.join(10)
        self.driver.close()


@pytest.fixture
def driven(chroot: str) -> Iterator[Callable[[int], Proxied]]:
    """Creates a driver with this number of addresses, all of the same ZooKeeper."""
    with ExitStack() as stack:

        def make(addresses: int) -> Proxied:
            port = int(chroot.partition("/")[0].rpartition(":")[2])
            proxies = [stack.enter_context(TcpProxy(port)) for _ in range(addresses)]
            found = Proxied(chroot, proxies)
            stack.callback(found.close)
            return found

        yield make


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds that ``call`` takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


# -- lost answers --------------------------------------------------------------------------------


def test_a_lost_answer_breaks_the_connection_only(driven: Callable[[int], Proxied]) -> None:
    """One response is lost while the connection stays open. The outcome of its request is unknown,
    the driver reconnects, and the session continues."""
    one = driven(1)
    proxy = one.used()
    proxy.drop("answers")
    lost = one.send(Create("/lost"))
    wait_until(lambda: not proxy.dropping, 10, "an answer is lost")
    one.send(Exists("/next"))
    assert lost.get(timeout=15) in (Failed(Code.CONNECTION_LOSS), Ok(None))  # or a ping was lost
    assert one.event() == (SessionEvent.SUSPENDED, one.session)
    assert one.event() == (SessionEvent.RESUMED, one.session)
    assert isinstance(one.send(Exists("/lost")).get(timeout=15), Ok)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_error_in_the_connection_thread(
    driven: Callable[[int], Proxied], error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error in kazoo's connection thread is logged as a warning, and the driver
    reconnects. It keeps the session, or opens a new one if the thread's loop had ended."""
    one = driven(1)
    connection = one.driver._client._connection
    read = connection._read_socket

    def fail(timeout: float) -> object:
        connection._read_socket = read
        raise error("planted")

    connection._read_socket = fail
    wait_until(lambda: connection._read_socket == read, 10, "the error was raised")
    events = [one.event()]
    while events[-1][0] not in (SessionEvent.RESUMED, SessionEvent.OPENED):
        events.append(one.event())
    seen = [event for event, _ in events]
    if error is SystemExit:
        assert seen == [SessionEvent.LOST, SessionEvent.OPENED]
    else:
        assert seen == [SessionEvent.SUSPENDED, SessionEvent.RESUMED]
    assert one.send(Create("/again")).get(timeout=15) == Ok(None)
    warnings = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert any(entry.name == "zkconsumer.zk" for entry in warnings)


# -- silence -------------------------------------------------------------------------------------


def test_a_silent_server_is_left_for_another(driven: Callable[[int], Proxied]) -> None:
    """If a server does not answer, not even pings, the driver leaves it within half the session
    timeout. The session continues on another server."""
    one = driven(3)
    for _ in range(2):
        proxy = one.used()
        proxy.stall()
        began = time.monotonic()
        assert one.event() == (SessionEvent.SUSPENDED, one.session)
        assert time.monotonic() - began < SESSION / 2 + SLACK
        assert one.event() == (SessionEvent.RESUMED, one.session)
        assert time.monotonic() - began < SESSION
        assert isinstance(one.send(Exists("/")).get(timeout=15), Ok)
        proxy.resume()


def test_a_connection_that_is_never_answered(driven: Callable[[int], Proxied]) -> None:
    """If a server accepts a connection and never answers it, the driver leaves it within a third of
    the session timeout, and the session continues. A starting ZooKeeper sometimes does this."""
    one = driven(1)
    proxy = one.used()
    proxy.stall("answers")
    held = proxy.held["answers"]
    proxy.cut()
    assert one.event() == (SessionEvent.SUSPENDED, one.session)
    wait_until(lambda: proxy.held["answers"] > held, 10, "a connection is not answered")
    began = time.monotonic()
    left = proxy.connections
    wait_until(lambda: proxy.connections < left, SESSION, "the connection is left")
    assert time.monotonic() - began < SESSION / 3 + SLACK
    proxy.resume()
    assert one.event() == (SessionEvent.RESUMED, one.session)


def test_an_address_that_answers_no_packet(chroot: str) -> None:
    """An address that drops all packets uses only its share of a third of the session timeout. Then
    the driver tries the next address."""
    address, _, path = chroot.partition("/")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as hole, ExitStack() as stack:
        for _ in range(4):  # once its queue is full, the kernel drops connection attempts
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(hole.getsockname())
        driver = ZkDriver(
            f"127.0.0.1:{hole.getsockname()[1]},{address}",
            f"/{path}",
            SESSION,
            lambda *_: None,
            lambda _: None,
        )
        driver._client.randomize_hosts = False
        began = time.monotonic()
        driver.start(SESSION)
        assert SESSION / 3 / 2 - 0.05 < time.monotonic() - began < SESSION
        driver.close()


def test_slow_answers_are_not_silence(driven: Callable[[int], Proxied]) -> None:
    """If responses are repeatedly late by a sixth of the session timeout, the connection stays
    open."""
    one = driven(1)
    one.used().delay(SESSION / 6, "answers")
    for number in range(4):
        assert one.send(Create(f"/n{number}")).get(timeout=15) == Ok(None)
    assert one.events.empty()


def test_requests_never_block(driven: Callable[[int], Proxied]) -> None:
    """A thousand requests are made while there is no connection. ``submit`` returns each time, and
    all requests get a reply once the connection is back."""
    one = driven(1)
    one.proxies[0].refuse()
    one.proxies[0].cut()
    assert one.event()[0] is SessionEvent.SUSPENDED
    replies: list[queue.Queue[Reply]] = []
    sender = threading.Thread(
        target=lambda: replies.extend(one.send(Create(f"/n{n}")) for n in range(1000)), daemon=True
    )
    sender.start()
    sender.join(10)
    assert not sender.is_alive(), "a request blocks"
    one.proxies[0].allow()
    assert [reply.get(timeout=15) for reply in replies] == [Ok(None)] * 1000
    reply = one.send(GetChildren("/")).get(timeout=15)
    assert isinstance(reply, Ok)
    assert len(reply.value) == 1000


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [("answers",), ("requests",)])
def test_close_ends_while_zookeeper_is_silent(
    driven: Callable[[int], Proxied], directions: tuple[str, ...]
) -> None:
    """``close`` ends within its time and leaves no thread, whichever direction is silent. If a
    second thread calls ``close``, the first thread stops waiting when the second one's time is
    up."""
    before = set(threading.enumerate())
    one = driven(1)
    one.used().stall(*directions)
    assert seconds_of(lambda: one.driver.close(0.5)) < 0.5 + SLACK
    two = driven(1)
    two.used().stall(*directions)
    patient = threading.Thread(target=lambda: two.driver.close(60.0), daemon=True)
    patient.start()
    wait_until(lambda: two.driver._client._stopped.is_set(), 10, "the first thread closes")
    assert seconds_of(lambda: two.driver.close(0.3)) < 0.3 + SLACK
    patient.join(2 + SLACK)
    assert not patient.is_alive()
    one.close()
    two.close()
    for proxy in one.proxies + two.proxies:
        proxy.close()
    wait_until(lambda: set(threading.enumerate()) <= before, 10, "no thread is left")


def test_start_ends_in_its_time(chroot: str) -> None:
    """``start`` raises or connects within the connection timeout, even if responses are lost, late
    or missing. The driver then closes within its time. The test is seeded."""
    seed = int(os.environ.get("SILENCE_SEED", str(random.randrange(10**6))))
    print(f"SILENCE_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    port = int(chroot.partition("/")[0].rpartition(":")[2])
    for _ in range(6):
        with TcpProxy(port) as proxy:
            trouble = chance.choice(["drop", "delay", "stall", "later"])
            if trouble == "drop":
                proxy.drop(chance.choice(["answers", "requests"]), chance.randint(1, 3))
            elif trouble == "delay":
                proxy.delay(chance.uniform(0.1, 1.0), "answers")
            elif trouble == "stall":
                proxy.stall(chance.choice(["answers", "requests"]))
            driver = ZkDriver(
                proxy.address,
                f"/{chroot.partition('/')[2]}",
                SESSION,
                lambda event, _, p=proxy, t=trouble: p.stall() if t == "later" else None,
                lambda _: None,
            )
            began = time.monotonic()
            try:
                driver.start(1.0)
            except ZkUnavailableError:
                assert time.monotonic() - began < 1.0 + SLACK, trouble
            assert time.monotonic() - began < 1.0 + SLACK, trouble
            assert seconds_of(lambda d=driver: d.close(0.5)) < 0.5 + SLACK, trouble


def test_an_interrupted_tool_ends_at_once(chroot: str) -> None:
    """Ctrl-C while ZooKeeper is silent ends a tool within a second."""
    address, _, path = chroot.partition("/")
    with TcpProxy(int(address.rpartition(":")[2])) as proxy:
        began = time.monotonic()

        def ask() -> None:
            nonlocal began
            with BlockingZk(f"{proxy.address}/{path}", 30.0):
                proxy.stall()
                began = time.monotonic()
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ask()
        assert time.monotonic() - began < 1 + SLACK


# -- an ensemble that has gone back ----------------------------------------------------------------


def test_an_ensemble_that_knows_less_than_its_client(tmp_path: Path) -> None:
    """ZooKeeper is restored from an old backup, so it refuses clients that have seen more
    transactions. The driver forgets its last zxid, loses its session and opens a new one."""
    session = 1.0
    events: queue.Queue[SessionEvent] = queue.Queue()
    with LocalZooKeeper(dir=tmp_path) as zookeeper:
        driver = ZkDriver(
            zookeeper.zookeeper, "", session, lambda event, _: events.put(event), lambda _: None
        )
        driver.start(15)
        try:
            for number in range(20):
                replies: queue.Queue[Reply] = queue.Queue()
                driver.submit(Create(f"/{number}"), driver.session_id, replies.put)
                assert isinstance(replies.get(timeout=15), Ok)
            zookeeper.zookeeper_server.stop()
            shutil.rmtree(tmp_path / "data" / "zookeeper" / "version-2")
            zookeeper.zookeeper_server.start()
            zookeeper.zookeeper_server.wait_ready()
            seen = [events.get(timeout=30) for _ in range(4)]
        finally:
            driver.close()
    opened, suspended, lost, again = seen
    assert opened is again is SessionEvent.OPENED
    assert (suspended, lost) == (SessionEvent.SUSPENDED, SessionEvent.LOST)
