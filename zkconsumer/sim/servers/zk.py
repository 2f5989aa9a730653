"""A simulated ZooKeeper ensemble on virtual time.

Contains the server-side sessions, the commit order and the lag of followers. ``zk_tree``
determines the effect of a request, ``zk_client`` has the clients. Everything runs inside kernel
events, in the thread that runs the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from zkconsumer.core.zookeeper.ops import (
    Acl,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    GetAcl,
    GetChildren,
    GetData,
    GetMany,
    Listing,
    Multi,
    MultiOp,
    Node,
    Ok,
    Reply,
    SetAcl,
    ZkOp,
)
from zkconsumer.sim.kernel import Handle, Kernel
from zkconsumer.sim.servers.zk_client import (
    Connection,
    Counters,
    FakeSession,
    OnState,
    OnWatch,
    Request,
    SessionState,
)
from zkconsumer.sim.servers.zk_tree import (
    Identities,
    Replica,
    Tree,
    Txn,
    Watcher,
    WatchEvent,
    WatchKind,
    prepare,
)

__all__ = ["Counters", "FakeSession", "FakeZk", "SessionState", "Txn", "WatchEvent", "WatchKind"]

OnCommit = Callable[[int, Txn], object]


@dataclass(slots=True)
class _ServerSession:
    timeout: float
    expiry: Handle | None = None


@dataclass(frozen=True, slots=True)
class Backup:
    """The servers' data after transaction ``zxid``: znodes, and sessions with their timeouts."""

    zxid: int
    tree: Tree
    sessions: Mapping[int, float]


def _ops_of(op: MultiOp | SetAcl | Multi) -> tuple[MultiOp | SetAcl, ...]:
    return op.ops if isinstance(op, Multi) else (op,)


class FakeZk:
    """The simulated ensemble.

    ``latency`` is the range, in seconds, of the one-way delay between client and server. With
    ``followers`` > 0 each client reads from one of them, and each follower applies a transaction up
    to ``max_lag`` seconds after the leader committed it; a client never sees an older state than it
    has seen before, and sees its own writes. ``rearm_watches``: a reconnecting client sets its
    watches again and gets the events that it missed (Java client, ``SetWatches``). False: they are
    lost without an event (as in kazoo 2.11, whose users see only the state change).
    ``names_causes``: watch events have the transaction that made the change, as in ZooKeeper 3.9
    and later, except those of ``SetWatches``.

    ``service``: seconds that a server works on one read and on one write. Reads are queued at
    their server, writes at the leader; ``None``: no time. ``steady``: the latency is drawn once
    for each connection, not for each message.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        latency: tuple[float, float] = (0.0005, 0.005),
        followers: int = 0,
        max_lag: float = 0.0,
        rearm_watches: bool = True,
        service: tuple[float, float] | None = None,
        steady: bool = False,
        names_causes: bool = False,
    ) -> None:
        if bool(followers) != (max_lag > 0):
            raise ValueError("pass both followers and max_lag, or neither")
        if not 0 <= latency[0] <= latency[1]:
            raise ValueError(f"latency must be (low, high) with 0 <= low <= high: {latency}")
        self.kernel = kernel
        self.clients: list[FakeSession] = []
        self._latency = latency
        self._max_lag = max_lag
        self.rearm = rearm_watches
        self.service = service
        self.queued: Callable[[int], int] = lambda round_trip_us: 0
        """Microseconds that a request waits for reads that are simulated in bulk."""
        self._steady = steady
        self._leader = Replica(self.deliver, names_causes)
        self._followers = [Replica(self.deliver, names_causes) for _ in range(followers)]
        self._apply_us = [0] * followers
        self._log: list[list[Txn]] = [[] for _ in range(followers)]
        self._sessions: dict[int, _ServerSession] = {}
        self._last_session_id = 0
        self._hooks: list[OnCommit] = []
        self._up_us = 0
        """When the servers will have restarted."""

    # -- for tests and invariants: the committed state, at once and outside of any session

    @property
    def zxid(self) -> int:
        """Number of the last committed transaction."""
        return self._leader.zxid

    def get(self, path: str) -> Node | None:
        """Return a znode as committed; ``None`` if it does not exist."""
        return self._leader.tree.node(path)

    def acl(self, path: str) -> Acl | None:
        """Return an ACL as committed; ``None`` if the znode does not exist."""
        return self._leader.tree.acl(path)

    def children(self, path: str) -> tuple[str, ...]:
        """Return the sorted child names as committed; empty if the znode does not exist."""
        return tuple(sorted(self._leader.tree.children(path) or ()))

    def listing(self, path: str) -> Listing | None:
        """Return the sorted children as committed, and the count of their changes."""
        listed = self._leader.tree.listing(path)
        return listed and replace(listed, names=tuple(sorted(listed.names)))

    def paths(self) -> tuple[str, ...]:
        """Return all committed paths, sorted."""
        return self._leader.tree.paths()

    def do(self, op: MultiOp | SetAcl | Multi) -> Reply:
        """Carry out a write immediately (session 0), as a super user would. It is not counted.

        Raises ValueError for an ephemeral znode, because there is no session.
        """
        if any(isinstance(o, Create) and o.ephemeral for o in _ops_of(op)):
            raise ValueError(f"an ephemeral znode needs a session: {op}")
        return self._write(op, 0, None)

    def session_alive(self, session_id: int) -> bool:
        """Return whether the servers keep this session."""
        return session_id in self._sessions

    def on_commit(self, hook: OnCommit) -> None:
        """Call ``hook(zxid, txn)`` at the moment each transaction is committed."""
        self._hooks.append(hook)

    def backup(self) -> Backup:
        """Return a copy of all committed data."""
        sessions = {number: session.timeout for number, session in self._sessions.items()}
        return Backup(self.zxid, self._leader.tree.copy(), sessions)

    def restore(self, backup: Backup, seconds: float, elected: bool) -> None:
        """Stop all servers. After ``seconds`` they start with the data of ``backup``.

        A session in the backup continues, or expires one timeout after the start. Later sessions
        are unknown. ``elected``: a new epoch begins, whose transactions have higher numbers than
        all earlier ones. Otherwise numbers are reused, and a client that has seen higher ones is
        refused.
        """
        for client in self.clients:
            client.disconnect(seconds + self.trip() / 1e6)
            if client._broken is not None:
                client._broken.may_arrive = 0
        for number in self._sessions:
            self.stop_expiry(number)
        zxid = max(self.zxid, backup.zxid) + 1000 if elected else backup.zxid
        for server in (self._leader, *self._followers):
            server.tree, server.zxid = backup.tree.copy(), zxid
        for log in self._log:
            log.clear()
        self._sessions = {
            number: _ServerSession(
                timeout,
                self.kernel.schedule(seconds + timeout, partial(self.end_session, number)),
            )
            for number, timeout in backup.sessions.items()
        }
        self._up_us = self.kernel.now_us + round(seconds * 1e6)

    def connect(
        self,
        session_timeout: float,
        on_watch: OnWatch,
        on_state: OnState,
        synced: bool = False,
    ) -> FakeSession:
        """Connect a new client; ``on_state(CONNECTED, session_id)`` follows one round trip later.

        ``synced``: its reads return data that is at least as new as the data committed now.
        """
        client = FakeSession(self, session_timeout, on_watch, on_state)
        if synced:
            client._seen_zxid = self.zxid
        self.clients.append(client)
        client._begin_connect()
        return client

    # -- server side

    def set_latency(self, latency: tuple[float, float]) -> None:
        """Set the latency from now on. Open connections of a ``steady`` ensemble draw a new
        latency."""
        self._latency = latency
        for client in self.clients:
            connection = client._connection
            if self._steady and connection is not None:
                connection.trip_us = self.trip()

    def trip(self, connection: Connection | None = None) -> int:
        """Implement ``Server.trip``."""
        if connection is not None and connection.trip_us is not None:
            return connection.trip_us
        low, high = self._latency
        return round((low + (high - low) * self.kernel.rng.random()) * 1e6)

    def _write(
        self, op: MultiOp | SetAcl | Multi, session_id: int, identities: Identities | None
    ) -> Reply:
        leader = self._leader
        zxid = leader.zxid + 1
        result = prepare(leader.tree, _ops_of(op), zxid, session_id, identities)
        if isinstance(result, Failed):
            return result if isinstance(op, Multi) else Failed(result.code)
        values, changes = result
        self._commit(Txn(zxid, session_id, changes))
        return Ok(values) if isinstance(op, Multi) else Ok(values[0])  # type: ignore[arg-type]

    def _commit(self, txn: Txn) -> None:
        self._leader.apply(txn)
        for index, log in enumerate(self._log):
            log.append(txn)
            due = self.kernel.now_us + round(self._max_lag * self.kernel.rng.random() * 1e6)
            self._apply_us[index] = max(self._apply_us[index], due)
            self.kernel.schedule_at_us(
                self._apply_us[index], partial(self._catch_up, self._followers[index], txn.zxid)
            )
        for hook in self._hooks:
            hook(txn.zxid, txn)

    def _catch_up(self, server: Replica, zxid: int) -> None:
        if server.zxid >= zxid:
            return
        log = self._log[self._followers.index(server)]
        while log and log[0].zxid <= zxid:
            server.apply(log.pop(0))

    def deliver(self, watcher: Watcher, event: WatchEvent) -> None:
        """Implement ``Server.deliver``."""
        assert isinstance(watcher, Connection)
        client = watcher.client
        client.counters.watches_fired += 1
        if client._drop(event):
            return
        self._send_down(watcher, partial(client._on_watch_event, event))

    def _send_down(self, connection: Connection, action: Callable[[], object]) -> None:
        """Queue a message to the client. It is lost if the connection is closed before
        it arrives."""
        due = max(connection.down_us, self.kernel.now_us + self.trip(connection))
        connection.down_us = due
        self.kernel.schedule_at_us(due, lambda: connection.listening and action())

    def handshake(self, client: FakeSession, attempt: int) -> None:
        """Handle a client's connect request."""
        if attempt != client._attempt:
            return  # the client gave this attempt up
        if self.kernel.now_us < self._up_us:
            self.kernel.schedule_at_us(self._up_us, partial(self.handshake, client, attempt))
            return
        if client._seen_zxid > self.zxid:
            self.kernel.schedule_at_us(
                self.kernel.now_us + self.trip(), partial(client._on_refused, attempt)
            )
            return
        session_id = client.session_id
        if session_id and session_id not in self._sessions:
            self.kernel.schedule_at_us(
                self.kernel.now_us + self.trip(), partial(client._on_expired, attempt)
            )
            return
        if not session_id:
            self._last_session_id += 1
            session_id = self._last_session_id
            self._sessions[session_id] = _ServerSession(client.session_timeout)
        self.start_expiry(session_id)
        server = self.kernel.rng.choice(self._followers) if self._followers else self._leader
        # A client refuses a server that is behind what it has seen.
        self._catch_up(server, client._seen_zxid)
        connection = Connection(client, server, session_id)
        if self._steady:
            connection.trip_us = self.trip()
        connection.down_us = self.kernel.now_us + self.trip()
        self.kernel.schedule_at_us(
            connection.down_us, partial(client._on_connected, attempt, connection)
        )
        client._adopt(connection)

    def start_expiry(self, session_id: int) -> None:
        """Start the session timeout: end the session unless the client reconnects in time."""
        session = self._sessions.get(session_id)
        if session is not None:
            self.stop_expiry(session_id)
            session.expiry = self.kernel.schedule(
                session.timeout, partial(self.end_session, session_id)
            )

    def stop_expiry(self, session_id: int) -> None:
        """Implement ``Server.stop_expiry``."""
        session = self._sessions.get(session_id)
        if session is not None and session.expiry is not None:
            self.kernel.cancel(session.expiry)
            session.expiry = None

    def end_session(self, session_id: int) -> None:
        """End a session. All its ephemeral znodes disappear in one transaction."""
        if session_id not in self._sessions:
            return
        self.stop_expiry(session_id)
        del self._sessions[session_id]
        tree = self._leader.tree
        gone: list[MultiOp] = [Delete(path) for path in tree.ephemerals.get(session_id, ())]
        zxid = self._leader.zxid + 1
        result = prepare(tree, gone, zxid, session_id)
        assert not isinstance(result, Failed)
        self._commit(Txn(zxid, session_id, result[1], closes_session=True))
        tree.ephemerals.pop(session_id, None)

    def arrived(self, connection: Connection, request: Request, path: str | None) -> None:
        """Handle a message that has arrived from a client: ``request``, or the read of ``path`` in
        a GetMany."""
        if connection.may_arrive is not None:
            connection.may_arrive -= 1
            if connection.may_arrive < 0:
                return
        connection.in_flight -= 1
        if self.service is None:
            self._serve(connection, request, path)
            return
        reads = isinstance(request.op, Exists | GetData | GetChildren | GetMany | GetAcl)
        server = connection.server if reads else self._leader
        begins = max(server.free_us, self.kernel.now_us)
        server.free_us = begins + round(self.service[0 if reads else 1] * 1e6)
        wait = self.queued(2 * self.trip(connection)) if reads else 0
        connection.up_us = max(connection.up_us, server.free_us + wait)
        self.kernel.schedule_at_us(
            connection.up_us, partial(self._serve, connection, request, path)
        )

    def pinged(self, connection: Connection, on_answer: Callable[[], object]) -> None:
        """Handle a client's ping."""
        if connection.may_arrive is None and connection.session_id in self._sessions:
            self._send_down(connection, on_answer)

    def _serve(self, connection: Connection, request: Request, path: str | None) -> None:
        """Serve a queued request."""
        if connection.session_id not in self._sessions:
            return
        reply = self._process(connection, request.op, path)
        self._send_down(
            connection,
            partial(connection.client._on_answer, request, path, reply, connection.server.zxid),
        )

    def _process(self, connection: Connection, op: ZkOp | None, path: str | None) -> Reply:
        tree, server = connection.server.tree, connection.server
        counters = connection.client.counters
        if op is None:
            server.forget(connection)
            self.end_session(connection.session_id)
            return Ok()
        if isinstance(op, GetMany):
            if path is None:
                return Ok(())
            counters.reads += 1
            node = tree.node(path)
            if op.watch and node is not None and connection.listening:
                server.watch_data(path, connection)
            return Ok(tree.children(path) if op.children else node)
        if isinstance(op, GetAcl):
            counters.reads += 1
            acl = tree.acl(op.path)
            return Failed(Code.NO_NODE) if acl is None else Ok(acl)
        if isinstance(op, Exists | GetData | GetChildren):
            counters.reads += 1
            node = tree.node(op.path)
            if node is None and not isinstance(op, Exists):
                return Failed(Code.NO_NODE)
            watch = op.watch and connection.listening
            if watch and isinstance(op, GetChildren):
                server.watch_children(op.path, connection)
            elif watch:
                server.watch_data(op.path, connection)
            if isinstance(op, GetChildren):
                return Ok((tree.listing if op.counted else tree.children)(op.path))
            if isinstance(op, GetData):
                return Ok(node)
            return Ok(None if node is None else node.stat)
        counters.writes += 1
        reply = self._write(op, connection.session_id, connection.client.identities)
        # The answer passes through the follower after everything committed before it.
        self._catch_up(server, self._leader.zxid)
        return reply
