"""The simulated ensemble: order, sessions, watches, lag and faults. Server answers themselves are
compared with a real server elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

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
    Stat,
    ZkOp,
)
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk, SessionState, Txn, WatchEvent, WatchKind

TIMEOUT = 6.0


@dataclass
class Client:
    """A session. Its callbacks are recorded in one list, in order."""

    zk: FakeZk
    log: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = self.zk.connect(TIMEOUT, self.log.append, lambda *s: self.log.append(s))
        self.zk.kernel.run(until=self.zk.kernel.now + 1)
        self.log.clear()

    def ask(self, *ops: ZkOp) -> None:
        for op in ops:
            self.session.submit(op, self.log.append)

    def told(self, seconds: float = 1.0) -> list[object]:
        self.zk.kernel.run(until=self.zk.kernel.now + seconds)
        log = self.log[:]
        self.log.clear()
        return log


def _zk(seed: int = 1, **options: object) -> FakeZk:
    return FakeZk(Kernel(seed), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_operations_of_a_session_keep_their_order(seed: int) -> None:
    """Random delays never let a request or a reply of one session overtake another."""
    zk = _zk(seed, latency=(0.0, 0.5))
    client = Client(zk)
    client.ask(Create("/n"), *(SetData("/n", b"%d" % i) for i in range(20)), GetData("/n"))
    replies = client.told(60)
    versions = [r.value.version for r in replies if isinstance(r, Ok) and isinstance(r.value, Stat)]
    assert versions == list(range(1, 21))
    assert isinstance(replies[-1], Ok)
    assert isinstance(replies[-1].value, Node)
    assert replies[-1].value.data == b"19"


@pytest.mark.parametrize("seed", range(20))
def test_a_watch_event_arrives_before_the_new_data(seed: int) -> None:
    """A session learns of a change before it can read a result of that change."""
    zk = _zk(seed, latency=(0.0, 0.5))
    reader = Client(zk)
    zk.do(Create("/n"))
    reader.ask(GetData("/n", watch=True))
    reader.told(5)
    zk.do(SetData("/n", b"new"))
    reader.ask(GetData("/n"))
    event, reply = reader.told(5)
    assert event == WatchEvent(WatchKind.CHANGED, "/n")
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, Node)
    assert reply.value.data == b"new"


def test_many_reads_can_be_torn_and_count_singly() -> None:
    """GetMany is not a snapshot. With many seeds it returns states that never existed at once."""
    seen = set()
    for seed in range(60):
        zk = _zk(seed, latency=(0.0, 0.01))
        zk.do(Multi((Create("/a", b"0"), Create("/b", b"0"))))
        client = Client(zk)
        client.ask(GetMany(("/a", "/none", "/b")))
        both = Multi((SetData("/a", b"1"), SetData("/b", b"1")))
        zk.kernel.schedule(zk.kernel.rng.uniform(0, 0.02), partial(zk.do, both))
        (reply,) = client.told()
        assert isinstance(reply, Ok)
        assert isinstance(reply.value, tuple)
        a, none, b = reply.value
        assert none is None
        assert isinstance(a, Node)
        assert isinstance(b, Node)
        assert client.session.counters.reads == 3
        seen.add((a.data, b.data))
    assert seen == {(b"0", b"0"), (b"0", b"1"), (b"1", b"1")}


def test_expiry_removes_all_ephemerals_in_one_transaction_and_tells_the_client_later() -> None:
    """Others see it at once. The client is not told yet; later it gets SUSPENDED, LOST and
    CONNECTED."""
    zk = _zk()
    txns: list[Txn] = []
    owner, other = Client(zk), Client(zk)
    zk.do(Create("/p"))
    owner.ask(Create("/p/a", ephemeral=True), Create("/p/b", ephemeral=True))
    owner.ask(GetChildren("/p", watch=True))
    other.ask(GetChildren("/p"), GetData("/p/a", watch=True))
    owner.told(1)
    other.told(1)
    other.ask(GetData("/p/a", watch=True))
    other.told()
    zk.on_commit(lambda zxid, txn: txns.append(txn))
    old = owner.session.session_id
    owner.session.expire(unnoticed=3)
    (txn,) = txns
    assert (txn.session_id, txn.closes_session) == (old, True)
    assert [(c.path, c.after) for c in txn.changes] == [("/p/a", None), ("/p/b", None)]
    assert not zk.session_alive(old)
    assert zk.get("/p/a") is None
    assert other.told(1) == [WatchEvent(WatchKind.DELETED, "/p/a")]
    owner.ask(Create("/p/zombie"))
    assert owner.told(1) == []
    assert owner.told(5) == [
        Failed(Code.CONNECTION_LOSS),
        (SessionState.SUSPENDED, old),
        (SessionState.LOST, old),
        (SessionState.CONNECTED, owner.session.session_id),
    ]
    assert owner.session.session_id not in (0, old)
    assert zk.get("/p/zombie") is None


def test_a_request_decided_before_the_loss_is_sent_by_the_next_session() -> None:
    """Submitted between LOST and CONNECTED, an operation is carried out in the new session."""
    zk = _zk()
    client = Client(zk)
    old = client.session.session_id
    client.session.expire()
    while client.session.state is not SessionState.LOST:
        assert zk.kernel.step()
    client.ask(Create("/late", ephemeral=True))
    client.told()
    node = zk.get("/late")
    assert node is not None
    assert node.stat.ephemeral_owner == client.session.session_id != old


def test_a_cut_connection_leaves_a_first_part_of_the_requests_applied() -> None:
    """Every unanswered request gets CONNECTION_LOSS. Over many seeds, any number of them was
    applied."""
    applied = set()
    for seed in range(60):
        zk = _zk(seed, latency=(0.001, 0.002))
        client = Client(zk)
        client.ask(*(Create(f"/n{i}") for i in range(4)))
        client.session.disconnect(1)
        lost = client.told(0.5)
        assert lost[:4] == [Failed(Code.CONNECTION_LOSS)] * 4
        assert lost[4:] == [(SessionState.SUSPENDED, client.session.session_id)]
        done = zk.children("/")
        assert done == tuple(f"n{i}" for i in range(len(done)))
        applied.add(len(done))
        client.ask(Create("/waits"))
        assert client.told(1)[0] == (SessionState.CONNECTED, client.session.session_id)
        assert zk.get("/waits") is not None
    assert applied == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(("away", "survives"), [(TIMEOUT - 1, True), (TIMEOUT + 1, False)])
def test_a_session_survives_a_cut_shorter_than_its_timeout(away: float, survives: bool) -> None:
    """The server ends the session when the timeout passes without a sign of its client, not
    before."""
    zk = _zk()
    client = Client(zk)
    client.ask(Create("/e", ephemeral=True))
    client.told()
    old = client.session.session_id
    client.session.disconnect(away)
    client.told(away - 0.5)
    assert (zk.get("/e") is not None) is survives
    client.ask(GetData("/"))
    log = client.told(2)
    if survives:
        assert log[0] == (SessionState.CONNECTED, old)
        assert isinstance(log[1], Ok)
    else:
        assert (SessionState.LOST, old) in log
        assert Failed(Code.SESSION_EXPIRED) in log
        assert log[-1] == (SessionState.CONNECTED, client.session.session_id)


def test_a_reconnecting_client_hears_of_what_it_missed() -> None:
    """Each kind of watch that was set before a cut fires after it, if its change happened
    meanwhile."""
    zk = _zk()
    zk.do(Multi((Create("/set"), Create("/gone"), Create("/dir"), Create("/same"))))
    client = Client(zk)
    client.ask(
        GetData("/set", watch=True),
        GetData("/gone", watch=True),
        Exists("/new", watch=True),
        GetChildren("/dir", watch=True),
        GetMany(("/same",), watch=True),
    )
    assert len(client.told()) == 5
    client.session.disconnect(2)
    zk.do(Multi((SetData("/set", b"1"), Delete("/gone"), Create("/new"), Create("/dir/x"))))
    log = client.told(3)
    assert log[2:] == [
        WatchEvent(WatchKind.CHANGED, "/set"),
        WatchEvent(WatchKind.DELETED, "/gone"),
        WatchEvent(WatchKind.CREATED, "/new"),
        WatchEvent(WatchKind.CHILD, "/dir"),
    ]
    zk.do(SetData("/same", b"1"))
    assert client.told() == [WatchEvent(WatchKind.CHANGED, "/same")]
    zk.do(SetData("/same", b"2"))
    assert client.told() == []


def test_a_watch_event_names_the_transaction_as_since_zookeeper_39() -> None:
    """Watches that a reconnecting client sets again name none, as on real servers."""
    zk = _zk(names_causes=True)
    zk.do(Create("/n"))
    client = Client(zk)
    client.ask(GetData("/n", watch=True))
    client.told()
    zk.do(Multi((Create("/other"), SetData("/n", b"1"))))
    client.ask(GetData("/n", watch=True))
    assert client.told()[0] == WatchEvent(WatchKind.CHANGED, "/n", zk.zxid)
    client.session.disconnect(2)
    zk.do(SetData("/n", b"2"))
    assert WatchEvent(WatchKind.CHANGED, "/n", None) in client.told(3)


def test_without_rearming_watches_end_with_the_connection() -> None:
    """As with kazoo 2.11, after a cut no earlier watch fires."""
    zk = _zk(rearm_watches=False)
    zk.do(Create("/n"))
    client = Client(zk)
    client.ask(GetData("/n", watch=True))
    client.told()
    client.session.disconnect(1)
    client.told(2)
    zk.do(SetData("/n", b"1"))
    assert client.told() == []


def test_a_dropped_watch_event_is_lost_once() -> None:
    """The fault drops exactly one event, for the path it names."""
    zk = _zk()
    zk.do(Multi((Create("/a"), Create("/b"))))
    client = Client(zk)
    client.ask(GetMany(("/a", "/b"), watch=True))
    client.told()
    client.session.drop_watch("/a")
    zk.do(Multi((SetData("/a", b""), SetData("/b", b""))))
    assert client.told() == [WatchEvent(WatchKind.CHANGED, "/b")]
    client.ask(GetData("/a", watch=True))
    client.told()
    zk.do(SetData("/a", b""))
    assert client.told() == [WatchEvent(WatchKind.CHANGED, "/a")]
    assert client.session.counters.watches_fired == 3


@pytest.mark.parametrize("seed", range(10))
def test_followers_lag_but_a_client_never_goes_back(seed: int) -> None:
    """Reads can be stale, even across cuts. But versions only grow, and a client sees its own
    writes."""
    zk = _zk(seed, followers=3, max_lag=2.0)
    zk.do(Create("/n"))
    client = Client(zk)
    client.told(3)
    versions: list[int] = []
    stale = 0

    def read(reply: Reply) -> None:
        nonlocal stale
        if isinstance(reply, Ok) and isinstance(reply.value, Node):
            versions.append(reply.value.stat.version)
            now = zk.get("/n")
            assert now is not None
            stale += now.stat.version > versions[-1]

    for step in range(200):
        zk.do(SetData("/n", b""))
        client.session.submit(GetData("/n"), read)
        if step % 40 == 20:
            client.session.disconnect(0.3)
        client.told(0.1)
    client.told(3)
    assert versions == sorted(versions)
    assert stale > 50
    client.ask(SetData("/n", b"own"), GetData("/n"))
    written, found = client.told()
    assert isinstance(written, Ok)
    assert isinstance(found, Ok)
    assert isinstance(found.value, Node)
    assert found.value.stat == written.value


def test_a_clean_close_ends_the_session_after_what_was_submitted() -> None:
    """Earlier operations are applied, ephemerals vanish without a timeout, and later operations are
    refused."""
    zk = _zk()
    client = Client(zk)
    client.ask(Create("/e", ephemeral=True), Create("/kept"))
    client.session.close(client.log.append)
    client.ask(Create("/refused"))
    assert client.told(0.5) == [Failed(Code.SESSION_EXPIRED), Ok(), Ok(), Ok()]
    assert zk.children("/") == ("kept",)


def test_a_killed_client_is_silent_and_leaves_its_ephemerals_to_the_timeout() -> None:
    """There is no callback after the kill. The ephemerals stay for exactly the session timeout."""
    zk = _zk()
    client = Client(zk)
    client.ask(Create("/e", ephemeral=True), GetData("/e", watch=True))
    client.told()
    client.ask(GetData("/e"))
    client.session.kill()
    assert client.told(TIMEOUT - 0.1) == []
    assert zk.get("/e") is not None
    assert client.told(0.2) == []
    assert zk.get("/e") is None


def test_a_failed_multi_changes_nothing_and_fires_nothing() -> None:
    """All or none is applied, with the index of the first failing operation. No transaction is
    reported."""
    zk = _zk()
    zk.do(Create("/n"))
    client = Client(zk)
    client.ask(GetData("/n", watch=True))
    client.told()
    before, commits = zk.get("/n"), zk.zxid
    ops = (SetData("/n", b"1", 0), Create("/m"), Check("/n", 7), Delete("/none"))
    client.ask(Multi(ops))
    assert client.told() == [Failed(Code.BAD_VERSION, 2)]
    assert (zk.get("/n"), zk.get("/m"), zk.zxid) == (before, None, commits)
    (counted,) = (client.counters for client in zk.clients)
    assert (counted.reads, counted.writes, counted.watches_fired) == (1, 1, 0)


def test_no_watch_outlives_its_connection() -> None:
    """Closed, killed, expired and cut sessions leave no watch on any server."""
    for ending in ("close", "kill", "expire", "disconnect"):
        zk = _zk()
        client = Client(zk)
        client.ask(Exists("/x", watch=True), GetChildren("/", watch=True))
        client.told()
        assert zk._leader.watch_count() == 2
        if ending == "disconnect":
            client.session.disconnect(3)
        else:
            getattr(client.session, ending)()
        client.told(1)
        assert zk._leader.watch_count() == 0, ending


def test_an_administrator_cannot_make_an_ephemeral() -> None:
    """``do`` has no session that could own it. It is refused with an error, also inside a multi."""
    zk = _zk()
    with pytest.raises(ValueError, match="session"):
        zk.do(Multi((Create("/a"), Create("/b", ephemeral=True))))
    assert zk.children("/") == ()
    with pytest.raises(ValueError, match="or neither"):
        _zk(followers=2)
