"""The ZooKeeper driver behind a proxy that loses, delays, repeats, cuts, swaps and corrupts frames.

Every operation gets one result. A result that states an outcome is true, and the driver works again
after the faults. ``ZKC_SEED=N`` sets the seed, and ``ZKC_FAULTS=10000`` makes a run longer:

    ZKC_FAULTS=10000 .venv/bin/pytest tests/faults/test_zk_attack.py
"""

from __future__ import annotations

import os
import queue
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.faults.frame_proxy import Fault, FrameProxy, Link
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Node,
    Ok,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.servers import wait_until
from zkconsumer.zk.driver import SessionEvent, ZkDriver

SEED = int(os.environ.get("ZKC_SEED", "1"))
FAULTS = int(os.environ.get("ZKC_FAULTS", "120"))
SESSION = 4.0
DRIVERS = 6
ACTORS = 4
"""Number of operation sequences that one driver runs at the same time."""
ANSWER_S = 60.0
"""An operation gets its result within this time. Requests wait while there is no connection."""
RATE = 0.04

UNKNOWN = {Code.CONNECTION_LOSS, Code.SESSION_EXPIRED}
"""Codes after which it is unknown whether the write was carried out."""


class Actor:
    """The operations on one znode: create, read, write and delete it, one at a time."""

    def __init__(self, rng: random.Random, parent: str, exact: bool) -> None:
        self._rng = rng
        self._parent = parent
        self._exact = exact
        self._count = 0
        self.possible: dict[str, set[tuple[bytes, int] | None]] = {}
        """Contents and version of each znode that is finished, or ``None`` if it was deleted."""
        self.wrong: list[str] = []
        self._new()

    def _new(self) -> None:
        self.path = f"{self._parent}-{self._count}"
        self._count += 1
        self._state: tuple[bytes, int] | None = None

    def next(self) -> ZkOp:
        """The next operation to send."""
        self.op, self._after = self._choose()
        return self.op

    def _choose(self) -> tuple[ZkOp, tuple[bytes, int] | None]:
        rng, path, state = self._rng, self.path, self._state
        if state is None:
            return Create(path, b"0"), (b"0", 0)
        data = b"%d" % rng.randrange(10**6)
        written = (data, state[1] + 1)
        return rng.choice(
            [
                (SetData(path, data, state[1]), written),
                (SetData(path, data, -1), written),
                (Multi((Check(path, state[1]), SetData(path, data, -1))), written),
                (GetData(path, True), state),
                (Exists(path), state),
                (GetChildren(path, True), state),
                (GetMany((path, path + "-none")), state),
                (Delete(path, state[1]), None),
            ]
        )

    def answered(self, reply: Reply) -> None:
        """Compare the reply with the expected result."""
        before, after = self._state, self._after
        if isinstance(reply, Failed):
            self.possible[self.path] = {before, after} if reply.code in UNKNOWN else {before}
            if reply.code not in UNKNOWN and self._exact:
                self.wrong.append(f"{self.op} of {before} failed with {reply}")
            self._new()
            return
        if self._exact and not self._agrees(reply):
            self.wrong.append(f"{self.op} of {before} was answered with {reply}")
        self._state = after
        if after is None:
            self.possible[self.path] = {None}
            self._new()

    def _agrees(self, reply: Ok) -> bool:
        match self.op:
            case GetData():
                return isinstance(reply.value, Node) and self._is(reply.value)
            case GetMany():
                assert isinstance(reply.value, tuple)
                found, none = reply.value
                return isinstance(found, Node) and self._is(found) and none is None
            case GetChildren():
                return reply.value == ()
            case Exists():
                return reply.value is not None
        return True

    def _is(self, node: Node) -> bool:
        return (node.data, node.stat.version) == self._state


class Client:
    """A driver behind a proxy, and its actors."""

    def __init__(self, chroot: str, number: int, proxy: FrameProxy, exact: bool) -> None:
        self.proxy = proxy
        self.name = f"driver {number}"
        rng = random.Random(f"{SEED} {number}")
        self.actors = [Actor(rng, f"/{number}-{one}", exact) for one in range(ACTORS)]
        self.replies: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()
        self.sessions: queue.SimpleQueue[tuple[SessionEvent, int]] = queue.SimpleQueue()
        self.driver = ZkDriver(
            proxy.address,
            f"/{chroot.partition('/')[2]}",
            SESSION,
            lambda *event: self.sessions.put(event),
            lambda _path: None,
        )
        self.sent: dict[int, float] = {}
        self.answers = 0

    def send(self, actor: int) -> None:
        """Send the actor's next operation."""
        self.sent[actor] = time.monotonic()
        op = self.actors[actor].next()
        self.driver.submit(op, self.driver.session_id, partial(self._take, actor))

    def _take(self, actor: int, reply: Reply) -> None:
        self.replies.put((actor, reply))

    def work(self) -> None:
        """Process the available replies, and send the next operations. Raises AssertionError."""
        for actor in range(ACTORS):
            waited = time.monotonic() - self.sent[actor] if actor in self.sent else 0.0
            assert waited < ANSWER_S, (
                f"{self.name}: {self.actors[actor].op} has no answer; connected: "
                f"{self.driver.connected}, session timeout {self.driver.session_timeout:g} s"
            )
            if actor not in self.sent and self.driver.session_id:
                self.send(actor)
        while not self.replies.empty():
            actor, reply = self.replies.get()
            assert actor in self.sent, f"{self.name}: an operation was answered twice: {reply}"
            del self.sent[actor]
            self.answers += 1
            self.actors[actor].answered(reply)


@pytest.fixture
def clients(chroot: str, request: pytest.FixtureRequest) -> Iterator[list[Client]]:
    """Drivers that have started without faults."""
    kinds, exact = request.param
    port = int(chroot.partition("/")[0].rpartition(":")[2])
    with ExitStack() as stack:
        found = []
        for number in range(DRIVERS):
            proxy = stack.enter_context(FrameProxy(port, SEED * 1000 + number, 0.0, kinds))
            client = Client(chroot, number, proxy, exact)
            client.driver.start(20.0)
            stack.callback(client.driver.close)
            found.append(client)
        yield found


HONEST = frozenset(Fault) - {Fault.CORRUPT}


@pytest.mark.timeout(120 + FAULTS)
@pytest.mark.parametrize(
    "clients",
    [(HONEST, True), (frozenset(Fault), False)],
    ids=["nothing is corrupt", "with corrupt answers"],
    indirect=True,
)
def test_every_operation_is_answered_truly(clients: list[Client], chroot: str) -> None:
    """Each operation has one result. Without corrupt responses, each result that states an
    outcome is true. If it states none, the write either happened or did not. Later all drivers
    work again."""
    for client in clients:
        client.proxy.rate = RATE
    deadline = time.monotonic() + 60 + FAULTS / 2
    while sum(client.proxy.delivered.total() for client in clients) < FAULTS:
        assert time.monotonic() < deadline, "the faults are not delivered in time"
        for client in clients:
            client.work()
        time.sleep(0.002)
    for client in clients:
        client.proxy.rate = 0.0
    counts = sum((client.proxy.delivered for client in clients), Counter[Fault]())
    names = ", ".join(f"{kind.name} {number}" for kind, number in counts.most_common())
    sys.stdout.write(f"ZKC_SEED={SEED}: {names}\n")
    before = {client: client.answers for client in clients}
    deadline = time.monotonic() + ANSWER_S
    while any(client.answers < before[client] + 10 * ACTORS for client in clients):
        assert time.monotonic() < deadline, f"no work after the faults: {clients[0].sent}"
        for client in clients:
            client.work()
        time.sleep(0.002)
    wrong = [text for client in clients for actor in client.actors for text in actor.wrong]
    assert not wrong, f"ZKC_SEED={SEED}: {wrong[:5]}"
    _compare(clients, chroot)


def _compare(clients: list[Client], chroot: str) -> None:
    """Check that every finished znode is as its operations left it."""
    events: queue.SimpleQueue[tuple[SessionEvent, int]] = queue.SimpleQueue()
    hosts, _, path = chroot.partition("/")
    honest = ZkDriver(hosts, f"/{path}", SESSION, lambda *event: events.put(event), lambda _: None)
    honest.start(15.0)
    try:
        possible = {
            path: states
            for client in clients
            for actor in client.actors
            for path, states in actor.possible.items()
        }
        paths = sorted(possible)
        for begin in range(0, len(paths), 500):
            part = tuple(paths[begin : begin + 500])
            replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
            honest.submit(GetMany(part), honest.session_id, replies.put)
            reply = replies.get(timeout=30)
            assert isinstance(reply, Ok)
            assert isinstance(reply.value, tuple)
            for one, node in zip(part, reply.value, strict=True):
                state = (node.data, node.stat.version) if isinstance(node, Node) else None
                assert state in possible[one], f"{one}: {state}, possible: {possible[one]}"
    finally:
        honest.close()


class Rewriting(FrameProxy):
    """A proxy that sets the error code of the next response on demand."""

    code: int | None = None

    def _frame(self, link: Link, requests: bool, frame: bytes, sink: socket.socket) -> None:
        if self.code is not None and not requests:
            (xid,) = struct.unpack_from(">i", frame, 4)
            if xid > 0:
                frame = frame[:16] + struct.pack(">i", self.code) + frame[20:]
                self.code = None
        super()._frame(link, requests, frame, sink)


def test_an_error_that_kazoo_does_not_know(chroot: str) -> None:
    """A newer server may refuse a request for a new reason. The operation ends with an unknown
    outcome, and the next one works."""
    host, _, path = chroot.partition("/")
    events: queue.SimpleQueue[tuple[SessionEvent, int]] = queue.SimpleQueue()
    with Rewriting(int(host.rpartition(":")[2]), 0, 0.0, frozenset()) as proxy:
        driver = ZkDriver(
            proxy.address, f"/{path}", SESSION, lambda *event: events.put(event), lambda _: None
        )
        driver.start(20.0)
        try:
            for op in (GetData("/"), GetMany(("/", "/none"))):
                proxy.code = -200
                assert _reply(driver, op) == Failed(Code.CONNECTION_LOSS)
                wait_until(lambda op=op: isinstance(_reply(driver, op), Ok), 20, "an answer")
        finally:
            driver.close()


def _reply(driver: ZkDriver, op: ZkOp) -> Reply:
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    driver.submit(op, driver.session_id, replies.put)
    return replies.get(timeout=20)
