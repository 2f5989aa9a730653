"""The tools' blocking use of ZooKeeper: a script ends within its time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from zkconsumer.admin.reads import children, children_of
from zkconsumer.cli.main import run
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Exists,
    Failed,
    GetChildren,
    GetMany,
    Multi,
    Node,
    Ok,
    Reply,
    Stat,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import Script, read, read_many
from zkconsumer.errors import SessionExpiredError, ZkUnavailableError
from zkconsumer.zk.blocking import BlockingZk, or_refusal
from zkconsumer.zk.driver import SessionEvent

TIMEOUT = 0.5


class LosingDriver:
    """Connects again and again, and loses the connection before the answer arrives.

    ``answers`` is how many requests are answered all the same, every second one.
    """

    session_id = 1
    resumed = 0

    def __init__(self, *args: object, security: object) -> None:
        self._on_session = args[3]
        self.answers = 0
        self.requests = 0
        self.closed: list[float] = []

    def start(self, timeout: float) -> None:
        self._on_session(SessionEvent.OPENED, 1)

    def close(self, timeout: float = 5.0) -> None:
        self.closed.append(timeout)

    def submit(
        self,
        op: ZkOp,
        session: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        self.requests += 1
        lost = self.requests % 2 or self.answers <= 0
        self.answers -= not lost
        reply = Failed(Code.CONNECTION_LOSS) if lost else Ok(None)
        threading.Timer(TIMEOUT / 5, on_reply, [reply]).start()


class ExpiringDriver(LosingDriver):
    """Answers at once. After the first answer its session ends, and another one begins."""

    def submit(
        self,
        op: ZkOp,
        session: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        if not session or session != self.session_id:
            on_reply(Failed(Code.SESSION_EXPIRED))
            return
        self.requests += 1
        on_reply(Ok(None))
        if self.requests == 1:
            self._on_session(SessionEvent.LOST, 1)
            self.session_id = 2
            self._on_session(SessionEvent.OPENED, 2)


class AnsweringDriver(LosingDriver):
    """Answers reads at once. Each znode has the data, and the only child, of its own name; names
    that begin with ``no`` do not exist, and ``secret`` may not be read."""

    def __init__(self, *args: object, security: object) -> None:
        super().__init__(*args, security=security)
        self.sent: list[ZkOp] = []
        self.lost = 0

    def submit(
        self,
        op: ZkOp,
        session: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        self.sent.append(op)
        if len(self.sent) <= self.lost:
            on_reply(Failed(Code.CONNECTION_LOSS))
        elif isinstance(op, GetMany):
            if "/secret" in op.paths:
                on_reply(Failed(Code.NO_AUTH, op.paths.index("/secret"), "not you"))
            else:
                on_reply(Ok(tuple(self._value(path, op.children) for path in op.paths)))
        else:
            assert isinstance(op, GetChildren)
            value = self._value(op.path, True)
            failed = Failed(Code.NO_AUTH, detail="not you") if op.path == "/secret" else None
            on_reply(failed or (Ok(value) if value else Failed(Code.NO_NODE)))

    def _value(self, path: str, children: bool) -> Any:
        if path.startswith("/no"):
            return None
        return (path[1:],) if children else Node(path.encode(), Stat(0, 0, 0, 0))


class ResumingDriver(AnsweringDriver):
    """Its session is resumed with the second read, whose answer is lost. As ``ZkDriver``, it does
    not send a ``Multi`` that was decided before."""

    def submit(
        self,
        op: ZkOp,
        session: int,
        on_reply: Callable[[Reply], object],
        resumed: int | None = None,
    ) -> None:
        if isinstance(op, Multi):
            on_reply(Ok(()) if resumed in (None, self.resumed) else Failed(Code.CONNECTION_LOSS))
        elif len(self.sent) == 1:
            self.sent.append(op)
            self.resumed += 1
            on_reply(Failed(Code.CONNECTION_LOSS))
        else:
            super().submit(op, session, on_reply)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ZooKeeper that answers."""
    monkeypatch.setattr("zkconsumer.zk.blocking.ZkDriver", AnsweringDriver)


def read_one(name: str) -> Script[tuple[list[str] | None, list[str] | None, list[list[str]]]]:
    """Read a znode's children and data, and the children of two others."""
    names = yield from children(f"/{name}")
    nodes = yield from read_many([f"/{name}/a", f"/no-{name}"])
    lists = yield from children_of([f"/{name}/x", f"/no-{name}"])
    return names, [node.data.decode() for node in nodes if node], lists


def wanted(name: str) -> object:
    """The result of ``read_one``."""
    there = None if name.startswith("no") else [name]
    nodes = [] if name.startswith("no") else [f"/{name}/a"]
    return there, nodes, [[] if name.startswith("no") else [f"{name}/x"], []]


@pytest.mark.usefixtures("answering")
@pytest.mark.parametrize("lost", range(4))
def test_scripts_read_together(lost: int) -> None:
    """What several scripts read at the same time is one request, and each gets its own answer.
    After a lost connection they read again."""
    names = ["a", "no1", "b", "no2"]
    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        zk._driver.lost = lost
        assert list(zk.run_all(map(read_one, names))) == list(map(wanted, names))
        assert [len(op.paths) for op in zk._driver.sent] == [4] * (lost + 1) + [8, 8]


@pytest.mark.usefixtures("answering")
def test_a_refused_znode_concerns_one_script() -> None:
    """The others get their answers, and the error names the znode."""
    names = ["a", "secret", "b"]
    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        a, refused, b = zk.run_all(or_refusal(read_one(name)) for name in names)
        assert (a, b) == (wanted("a"), wanted("b"))
        assert str(refused) == "/secret: not you"


@pytest.mark.usefixtures("answering")
def test_requests_of_many_scripts_are_bounded() -> None:
    """By the number of znodes and by bytes. Scripts that read much do not all begin at once."""
    begun = 0

    def large(number: int) -> Script[int]:
        nonlocal begun
        begun += 1
        nodes = yield from read_many(f"/{number}/{at}" for at in range(700))
        return len(nodes)

    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        results = zk.run_all(map(large, range(100)))
        assert next(results) == 700
        assert begun < 30
        assert list(results) == [700] * 99
        sizes = [len(op.paths) for op in zk._driver.sent]
        assert max(sizes) == 1400
        zk._driver.sent.clear()
        long = "x" * 100_000
        assert len(list(zk.run_all(read_many([f"/{long}{at}"]) for at in range(9)))) == 9
        assert [len(op.paths) for op in zk._driver.sent] == [2, 2, 2, 2, 1]
        zk._driver.sent.clear()
        assert len(list(zk.run_all(map(children, (f"/{at}" for at in range(250)))))) == 250
        assert [len(op.paths) for op in zk._driver.sent] == [200, 50]


@pytest.mark.usefixtures("answering")
def test_scripts_that_begin_with_little_are_bounded_too() -> None:
    """All begin, but only some have the nodes that they read next, until they end."""
    held = most = 0

    def growing(number: int) -> Script[int]:
        nonlocal held, most
        yield from children(f"/{number}")
        nodes = yield from read_many(f"/{number}/{at}" for at in range(700))
        held += len(nodes)
        most = max(most, held)
        yield from children(f"/{number}")
        held -= len(nodes)
        return number

    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        assert list(zk.run_all(map(growing, range(100)))) == [*range(100)]
    assert 5_000 < most < 10_000


@pytest.mark.usefixtures("answering")
def test_reads_that_leave_a_watch_or_count_are_sent_alone() -> None:
    """A multi-read can do neither."""
    ops = [GetChildren("/a", watch=True), GetChildren("/b", counted=True), GetMany(("/c",), True)]
    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        list(zk.run_all(map(read, ops)))
        assert zk._driver.sent == ops


@pytest.fixture(autouse=True)
def _losing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkconsumer.zk.blocking.ZkDriver", LosingDriver)


def test_lost_connections_are_silence() -> None:
    """A script that loses its connection again and again fails after ``timeout`` seconds. Closing
    takes one second at most."""
    began = time.monotonic()
    zk = BlockingZk("127.0.0.1:1", TIMEOUT)
    with pytest.raises(ZkUnavailableError, match=r"did not answer for 0\.5 s"), zk:
        zk.run(read(Exists("/")))
    assert TIMEOUT * 0.9 < time.monotonic() - began < 4 * TIMEOUT
    assert zk._driver.closed == [1.0]


def test_each_answer_ends_the_silence() -> None:
    """A script that gets an answer now and then may take longer than ``timeout``."""

    def script() -> Script[None]:
        for _ in range(6):
            yield from read(Exists("/"))

    began = time.monotonic()
    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        zk._driver.answers = 6
        zk.run(script())
    assert time.monotonic() - began > TIMEOUT
    assert zk._driver.closed == [5.0]


def test_a_script_waits_for_the_next_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous session has ended, and kazoo opens another one."""
    monkeypatch.setattr("zkconsumer.zk.blocking.ZkDriver", ExpiringDriver)
    with BlockingZk("127.0.0.1:1", 10.0) as zk:
        driver = zk._driver
        driver.requests = 1
        driver._on_session(SessionEvent.LOST, 1)
        driver.session_id = 0

        def open_again() -> None:
            driver.session_id = 2
            driver._on_session(SessionEvent.OPENED, 2)

        threading.Timer(0.05, open_again).start()
        zk.run(read(Exists("/a")))
    assert driver.requests == 2


def test_a_script_does_not_go_on_in_another_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reads may be outdated by then, and its ephemeral znodes are gone. The next script runs in
    the new session."""
    monkeypatch.setattr("zkconsumer.zk.blocking.ZkDriver", ExpiringDriver)

    def script() -> Script[None]:
        yield from read(Exists("/a"))
        yield from read(Exists("/b"))

    with BlockingZk("127.0.0.1:1", TIMEOUT) as zk:
        with pytest.raises(
            SessionExpiredError,
            match="ended before the command finished: run the command again",
        ):
            zk.run(script())
        assert zk._driver.requests == 1
        zk.run(script())
        assert zk._driver.requests == 3


def test_a_lost_connection_is_one_line_and_its_return_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """kazoo's own lines would fill the terminal of ``top`` and ``verify --watch``. Connecting
    for the first time and closing are no news."""
    zk = BlockingZk("z:1")
    zk._session_changed(SessionEvent.SUSPENDED, 1)
    zk._session_changed(SessionEvent.OPENED, 1)
    assert caplog.messages == []
    zk._inside = True
    zk._session_changed(SessionEvent.SUSPENDED, 1)
    zk._session_changed(SessionEvent.LOST, 1)
    zk._session_changed(SessionEvent.OPENED, 2)
    zk._session_changed(SessionEvent.RESUMED, 2)
    assert caplog.messages == [
        "no connection to ZooKeeper at z:1: trying again",
        "connected to ZooKeeper at z:1 again",
    ]
    zk._inside = False
    zk._session_changed(SessionEvent.SUSPENDED, 2)
    assert len(caplog.messages) == 2


def test_commands_do_not_show_kazoos_lines() -> None:
    """They have a line of their own for the same."""
    logger = logging.getLogger("zkconsumer.zk.kazoo")
    before = logger.level
    try:
        assert run(["config", "--help"]) == 0
        assert not logger.isEnabledFor(logging.ERROR)
    finally:
        logger.setLevel(before)


def test_what_was_decided_before_a_reconnection_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The servers may have been restored from a backup, and use versions again. One of the reads is
    repeated after that, the other one is not. After the script was told so, it reads both again."""
    monkeypatch.setattr("zkconsumer.zk.blocking.ZkDriver", ResumingDriver)

    def script() -> Script[list[Reply]]:
        replies = []
        for _ in range(2):
            yield from read_many(["/a"])
            yield from read_many(["/b"])
            replies.append((yield Multi((Check("/a", 0),))))
        return replies

    with BlockingZk("host:1", TIMEOUT) as zk:
        assert zk.run(script()) == [Failed(Code.CONNECTION_LOSS), Ok(())]
