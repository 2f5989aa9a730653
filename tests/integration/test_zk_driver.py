"""The ZooKeeper driver against real servers: replies, watches, multis, sessions."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from tests.support.tcp_proxy import TcpProxy
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
    Listing,
    Multi,
    Node,
    Ok,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.servers import LocalZooKeeper, expire_session, wait_until
from zkconsumer.servers.servers import TICK_MS
from zkconsumer.zk.driver import SessionEvent, ZkDriver


class Driven:
    """A driver with waits for its replies, watches and session events."""

    def __init__(self, zookeeper: str, session_timeout: float = 4.0) -> None:
        hosts, _, chroot = zookeeper.partition("/")
        self.events: queue.Queue[tuple[SessionEvent, int]] = queue.Queue()
        self.watches: queue.Queue[tuple[str, int | None]] = queue.Queue()
        self.driver = ZkDriver(
            hosts,
            f"/{chroot}" if chroot else "",
            session_timeout,
            lambda event, session: self.events.put((event, session)),
            lambda *fired: self.watches.put(fired),
        )
        self.driver.start(15.0)
        event, self.session = self.events.get(timeout=15)
        assert event is SessionEvent.OPENED

    def ask(self, op: ZkOp, session: int | None = None) -> Reply:
        """Carry out ``op`` and return its reply."""
        return self.send(op, session).get(timeout=15)

    def send(self, op: ZkOp, session: int | None = None) -> queue.Queue[Reply]:
        """Begin ``op``. The queue receives the reply."""
        replies: queue.Queue[Reply] = queue.Queue()
        self.driver.submit(op, self.session if session is None else session, replies.put)
        return replies

    def value(self, op: ZkOp):
        """The value of a reply, which must be a success."""
        reply = self.ask(op)
        assert isinstance(reply, Ok), reply
        return reply.value

    def event(self) -> tuple[SessionEvent, int]:
        """The next session event."""
        return self.events.get(timeout=15)


@pytest.fixture
def driven(chroot: str) -> Iterator[Driven]:
    """A driver in an empty chroot."""
    found = Driven(chroot)
    yield found
    found.driver.close()


def test_single_operations(driven: Driven) -> None:
    """Each operation returns the reply that its class documents, and each failure has its code."""
    assert driven.value(Exists("/a")) is None
    assert driven.ask(GetData("/a")) == Failed(Code.NO_NODE)
    assert driven.ask(GetChildren("/a")) == Failed(Code.NO_NODE)
    assert driven.ask(SetData("/a", b"")) == Failed(Code.NO_NODE)
    assert driven.ask(Create("/a/b")) == Failed(Code.NO_NODE)
    assert driven.value(Create("/a", b"1")) is None
    assert driven.ask(Create("/a")) == Failed(Code.NODE_EXISTS)
    assert driven.value(Create("/a/e", b"x", ephemeral=True)) is None
    assert driven.ask(Create("/a/e/f")) == Failed(Code.NO_CHILDREN_FOR_EPHEMERALS)
    assert driven.ask(Delete("/a")) == Failed(Code.NOT_EMPTY)
    assert driven.ask(SetData("/a", b"2", 7)) == Failed(Code.BAD_VERSION)
    assert driven.value(SetData("/a", b"2", 0)).version == 1
    node = driven.value(GetData("/a"))
    assert (node.data, node.stat.version, node.stat.ephemeral_owner) == (b"2", 1, 0)
    assert driven.value(Exists("/a/e")).ephemeral_owner == driven.session
    assert driven.value(GetChildren("/a")) == ("e",)
    last = driven.value(Exists("/a/e")).czxid
    listed = Listing(("e",), node.stat.czxid, 1, last)
    assert driven.value(GetChildren("/a", counted=True)) == listed
    assert driven.value(Delete("/a/e", 0)) is None
    assert driven.value(GetChildren("/a", counted=True)).changes == 2
    assert driven.value(Delete("/a")) is None


def test_multi(driven: Driven) -> None:
    """A multi returns each part's value. A failed one names the part that failed and changes
    nothing."""
    ops = (Create("/a", b"0"), Create("/a/b"), SetData("/a", b"1", 0), Check("/a", 1))
    values = driven.value(Multi((*ops, Delete("/a/b"))))
    assert [value if value is None else value.version for value in values] == [
        None,
        None,
        1,
        None,
        None,
    ]
    for index, culprit, code in (
        (0, Check("/a", 5), Code.BAD_VERSION),
        (1, Check("/nothing"), Code.NO_NODE),
        (2, Create("/a"), Code.NODE_EXISTS),
        (3, Delete("/a/b"), Code.NO_NODE),
        (4, SetData("/a", b"", 9), Code.BAD_VERSION),
        (0, Create("/x/y"), Code.NO_NODE),
    ):
        good = [Create(f"/new{number}") for number in range(5)]
        good.insert(index, culprit)
        assert driven.ask(Multi(tuple(good))) == Failed(code, index)
        assert driven.value(GetChildren("/")) == ("a",)
    assert driven.value(Multi(())) == ()


def test_many_reads_equal_single_reads(driven: Driven) -> None:
    """One request with thousands of reads gives the same results as single requests, in order, with
    ``None`` for missing znodes."""
    for start in range(0, 2500, 500):
        ops = [Create(f"/n{number}", b"%d" % number) for number in range(start, start + 500, 2)]
        driven.value(Multi(tuple(ops)))
    paths = tuple(f"/n{number}" for number in range(2500))
    before = driven.driver.operations
    many = driven.value(GetMany(paths))
    assert driven.driver.operations == before + 1
    assert driven.driver._has_multiread
    single = []
    for answer in [driven.send(GetData(path)) for path in paths]:
        reply = answer.get(timeout=15)
        single.append(reply.value if isinstance(reply, Ok) else None)
    assert list(many) == single
    assert [node.data if node else None for node in many[:4]] == [b"0", None, b"2", None]
    assert driven.value(GetMany(())) == ()
    assert driven.value(GetMany(("/n0",))) == many[:1]


def test_many_lists_of_children(driven: Driven) -> None:
    """One request lists the children of many znodes, with ``None`` for missing ones."""
    driven.value(Multi((Create("/a"), Create("/a/b"), Create("/a/c"), Create("/d"))))
    before = driven.driver.operations
    some, none, missing = driven.value(GetMany(("/a", "/d", "/missing"), children=True))
    assert driven.driver.operations == before + 1
    assert (sorted(some), none, missing) == (["b", "c"], (), None)
    assert driven.value(GetMany(("/d",), children=True)) == ((),)


def test_many_reads_with_watches(driven: Driven, zookeeper: str, chroot: str) -> None:
    """Reads with watches leave a watch on each znode that exists."""
    driven.value(Multi((Create("/a"), Create("/b"))))
    driven.value(GetMany(("/a", "/missing", "/b"), watch=True))
    driven.value(SetData("/b", b"1"))
    assert driven.watches.get(timeout=15) == ("/b", None)
    driven.value(Delete("/a"))
    assert driven.watches.get(timeout=15) == ("/a", None)
    driven.value(Create("/missing"))
    assert driven.watches.empty()


def test_watches_fire_once_and_without_chroot(driven: Driven) -> None:
    """Watches on existence, data and children fire once each, and their paths do not have the
    chroot. This ZooKeeper, before 3.9, sends no transaction."""
    driven.value(Exists("/a", watch=True))
    driven.value(Create("/a"))
    assert driven.watches.get(timeout=15) == ("/a", None)
    driven.value(GetChildren("/a", watch=True))
    driven.value(Create("/a/b"))
    assert driven.watches.get(timeout=15) == ("/a", None)
    driven.value(Create("/a/c"))
    driven.value(GetData("/a/b", watch=True))
    driven.value(SetData("/a/b", b"1"))
    assert driven.watches.get(timeout=15) == ("/a/b", None)
    assert driven.watches.empty()


@pytest.mark.parametrize("line", ["1.1", "0.8.2"])
def test_many_reads_on_an_old_server(line: str) -> None:
    """If a server does not support the multi-read, the driver reads one znode at a time, with the
    same result."""
    with LocalZooKeeper(line) as server:
        driven = Driven(server.zookeeper)
        try:
            while not driven.events.empty():  # it closes the connection of a client that sends one
                assert driven.event()[1] == driven.session
            driven.value(Multi(tuple(Create(f"/n{number}", b"x") for number in range(0, 300, 2))))
            paths = tuple(f"/n{number}" for number in range(300))
            for _ in range(2):
                many = driven.value(GetMany(paths))
                assert [node is not None for node in many] == [True, False] * 150
                assert all(node.data == b"x" for node in many if isinstance(node, Node))
                lists = driven.value(GetMany(paths, children=True))
                assert lists == tuple(() if node else None for node in many)
            assert not driven.driver._has_multiread
            assert driven.events.empty(), "it was asked once, at the start"
        finally:
            driven.driver.close()


@pytest.mark.parametrize("applied", [True, False])
def test_ambiguous_multi(chroot: str, applied: bool) -> None:
    """A multi whose response is lost returns CONNECTION_LOSS, whether it was applied or not. The
    session continues."""
    address, _, path = chroot.partition("/")
    other = KazooClient(chroot)
    other.start(timeout=15)
    with TcpProxy(int(address.rpartition(":")[2])) as proxy:
        driven = Driven(f"{proxy.address}/{path}")
        try:
            proxy.stall("answers" if applied else "requests")
            reply = driven.send(Multi((Create("/a"), Create("/b"))))
            if applied:
                wait_until(lambda: other.exists("/b"), 10, "the multi is applied")
            proxy.cut()
            proxy.resume()
            assert reply.get(timeout=15) == Failed(Code.CONNECTION_LOSS)
            assert driven.event() == (SessionEvent.SUSPENDED, driven.session)
            assert driven.event() == (SessionEvent.RESUMED, driven.session)
            assert (driven.value(Exists("/a")) is not None) is applied
        finally:
            driven.driver.close()
            other.stop()
            other.close()


def test_session_expiry(driven: Driven, chroot: str) -> None:
    """After an expiry the driver reports the loss, then a session with another id. It refuses
    requests of the old session without sending them, even those that waited for the connection."""
    driven.value(Create("/mine", b"", ephemeral=True))
    client = driven.driver._client
    expire_session(chroot, *client.client_id)
    events = [driven.event()]
    while events[-1][0] is not SessionEvent.OPENED:
        events.append(driven.event())
    assert [event for event, _ in events if event is not SessionEvent.SUSPENDED] == [
        SessionEvent.LOST,
        SessionEvent.OPENED,
    ]
    assert {session for event, session in events if event is SessionEvent.LOST} == {driven.session}
    new = events[-1][1]
    assert new not in (0, driven.session)
    sent = driven.driver.operations
    for op in (Create("/old"), Multi((Create("/old"),)), GetMany(("/a", "/b"))):
        assert driven.ask(op) == Failed(Code.SESSION_EXPIRED)
    assert driven.driver.operations == sent
    assert driven.ask(GetChildren("/"), new) == Ok(())


def test_nothing_waits_over_into_the_next_session(zookeeper: str, chroot: str) -> None:
    """A request is made while the connection is away, and the session turns out to be expired. The
    request is not carried out in the next session."""
    address, _, path = chroot.partition("/")
    with TcpProxy(int(address.rpartition(":")[2])) as proxy:
        driven = Driven(f"{proxy.address}/{path}", 6.0)
        try:
            identity = driven.driver._client.client_id
            proxy.refuse()
            proxy.cut()
            assert driven.event()[0] is SessionEvent.SUSPENDED
            replies = [
                driven.send(Create("/single")),
                driven.send(Multi((Create("/multi"),))),
                driven.send(GetMany(("/single", "/multi"))),
            ]
            expire_session(zookeeper, *identity)
            proxy.allow()
            events = [driven.event()]
            while events[-1][0] is not SessionEvent.OPENED:
                events.append(driven.event())
            for reply in replies:
                assert reply.get(timeout=15) == Failed(Code.SESSION_EXPIRED)
            assert driven.ask(GetChildren("/"), events[-1][1]) == Ok(())
        finally:
            driven.driver.close()


def test_the_session_timeout_is_the_one_the_server_grants(chroot: str) -> None:
    """The server limits the timeout, and ends the session by its own value."""
    for asked, granted in ((0.001, TICK_MS / 1000), (4.0, 4.0), (100_000.0, 600.0)):
        driven = Driven(chroot, asked)
        assert driven.driver.session_timeout == granted
        driven.driver.close()


def test_close_ends_the_session_at_once(chroot: str) -> None:
    """Ephemeral znodes disappear with ``close``, long before the session timeout."""
    driven, other = Driven(chroot, 8.0), Driven(chroot, 8.0)
    driven.value(Create("/mine", b"", ephemeral=True))
    other.value(Exists("/mine", watch=True))
    driven.driver.close()
    assert other.watches.get(timeout=6) == ("/mine", None)
    driven.driver.close()
    other.driver.close()


@pytest.mark.parametrize("children", [False, True])
@pytest.mark.parametrize("multiread", [False, True])
def test_a_znode_that_must_not_be_read_is_not_taken_for_a_missing_one(
    driven: Driven, chroot: str, children: bool, multiread: bool
) -> None:
    """An owner znode that looks free would be claimed. This covers many reads in one request, and
    single reads on an older server."""
    client = KazooClient(chroot)
    client.start(15)
    try:
        client.create("/open", b"1")
        client.create("/locked", b"2", acl=[make_acl("world", "anyone", create=True)])
    finally:
        client.stop()
        client.close()
    driven.driver._has_multiread = multiread
    reply = driven.ask(GetMany(("/missing", "/open", "/locked", "/open"), children=children))
    assert isinstance(reply, Failed)
    assert (reply.code, reply.index) == (Code.NO_AUTH, 2)
    assert "zkconsumer.zookeeper.digest" in reply.detail
    assert isinstance(driven.ask(GetMany(("/missing", "/open"), children=children)), Ok)
