"""The client side of the simulated ZooKeeper: sessions, connections, and their faults.

Simulates a client library: the order of requests, its memory of watches, and its reports to the
application when the connection or the session is lost. Everything runs inside kernel events, in
the thread that runs the kernel; callbacks are called from kernel events only, never from within
``submit`` or a fault.

A ``FakeSession`` behaves like a kazoo 2.11 client: after ``LOST`` it opens a new session itself.
Requests submitted while ``SUSPENDED`` wait for the connection, and those submitted between
``LOST`` and ``CONNECTED`` are carried out by the *new* session. So a request decided in one
session can be sent in the next one, which fencing must handle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

from zkconsumer.core.zookeeper.ops import (
    Code,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Node,
    Ok,
    Reply,
    ZkOp,
)
from zkconsumer.sim.kernel import Handle, Kernel
from zkconsumer.sim.servers.zk_tree import (
    ANYONE,
    Identities,
    Replica,
    Watcher,
    WatchEvent,
    WatchKind,
)


class SessionState(Enum):
    """The client's knowledge of its session.

    ``CONNECTED``: requests are sent. ``SUSPENDED``: no connection; the session may or may not be
    alive. ``LOST``: the server has answered that the session ended; its ephemerals are gone.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


_PAUSE_S = 0.2
"""Pause between attempts to connect of a client that the servers refuse."""

OnReply = Callable[[Reply], object]
OnWatch = Callable[[WatchEvent], object]
OnState = Callable[[SessionState, int], object]


@dataclass(slots=True)
class Counters:
    """The servers' work for one client: single reads, write requests (a multi is one), watch
    events. The counts continue when the client gets a new session."""

    reads: int = 0
    writes: int = 0
    watches_fired: int = 0


@dataclass(slots=True)
class Request:
    """One submitted operation and, for a GetMany, the answers that have arrived."""

    op: ZkOp | None  # None: close the session
    on_reply: OnReply
    resumed: int | None = None
    nodes: list[Node | tuple[object, ...] | None] = field(default_factory=list)


class Connection:
    """One TCP connection: FIFO in each direction, unusable once closed.

    ``in_flight`` counts messages on their way to the server. ``may_arrive`` is how many of these
    still arrive after the connection has broken. ``up_us`` and ``down_us`` are the arrival times of
    the last message to the server and to the client. ``trip_us`` is the delay of a message;
    ``None``: drawn at random.
    """

    __slots__ = (
        "client",
        "down_us",
        "in_flight",
        "listening",
        "may_arrive",
        "server",
        "session_id",
        "trip_us",
        "up_us",
    )

    def __init__(self, client: FakeSession, server: Replica, session_id: int) -> None:
        self.client = client
        self.server = server
        self.session_id = session_id
        self.listening = True
        self.in_flight = 0
        self.may_arrive: int | None = None
        self.trip_us: int | None = None
        self.up_us = 0
        self.down_us = 0


class Server(Protocol):
    """The interface of the simulated ZooKeeper for clients: see ``FakeZk``."""

    kernel: Kernel
    rearm: bool
    """Whether a client that reconnects sets its watches again."""

    def trip(self, connection: Connection | None = None) -> int:
        """Return how long a message takes, in microseconds."""

    def session_alive(self, session_id: int) -> bool:
        """Return whether the servers keep the session."""

    def handshake(self, client: FakeSession, attempt: int) -> None:
        """Handle a client's connect request."""

    def arrived(self, connection: Connection, request: Request, path: str | None) -> None:
        """Handle a message that has arrived from a client: ``request``, or the read of ``path`` in
        a GetMany."""

    def pinged(self, connection: Connection, on_answer: Callable[[], object]) -> None:
        """Handle a ping."""

    def deliver(self, watcher: Watcher, event: WatchEvent) -> None:
        """Send the event of a fired watch to its client."""

    def start_expiry(self, session_id: int) -> None:
        """Start the session timeout: end the session unless the client reconnects in time."""

    def stop_expiry(self, session_id: int) -> None:
        """Stop the session timeout, because the client has reconnected."""

    def end_session(self, session_id: int) -> None:
        """End a session. All its ephemeral znodes disappear in one transaction."""


class FakeSession:
    """One client and its current session (``session_id``, 0 if there is none).

    ``on_reply``, ``on_watch`` and ``on_state`` are called from kernel events. The caller simulates
    pauses of the client: events during a pause are handled later.
    """

    def __init__(
        self, zk: Server, session_timeout: float, on_watch: OnWatch, on_state: OnState
    ) -> None:
        self.session_timeout = session_timeout
        self.session_id = 0
        self.state = SessionState.SUSPENDED
        self.counters = Counters()
        self.identities: Identities | None = (ANYONE,)
        """The identities that ACLs are checked against; ``None``: a super user's."""
        self._zk = zk
        self._kernel = zk.kernel
        self._on_watch = on_watch
        self._on_state = on_state
        self._connection: Connection | None = None
        self._broken: Connection | None = None
        self._attempt = 0
        self._reconnect: Handle | None = None
        self._waiting: deque[Request] = deque()
        self._sent: deque[Request] = deque()
        self._seen_zxid = 0
        self._refused_since: float | None = None
        self.resumed = 0
        """How often the current session was resumed."""
        self._closed = False
        self._killed = False
        self._drops: list[str | None] = []
        # Watches the client believes to be set, one dict (for its order) of paths for each kind.
        self._exist_watches: dict[str, None] = {}
        self._data_watches: dict[str, None] = {}
        self._child_watches: dict[str, None] = {}

    # -- what a client can do

    @property
    def round_trip_us(self) -> int | None:
        """Round trip time of the connection, if all messages take equally long; ``None`` without a
        connection."""
        trip = None if self._connection is None else self._connection.trip_us
        return None if trip is None else 2 * trip

    def submit(
        self,
        op: ZkOp,
        on_reply: OnReply,
        sent_us: int | None = None,
        resumed: int | None = None,
    ) -> None:
        """Send ``op``. ``on_reply(reply)`` is called once, unless the client is killed first.

        Operations of one client are carried out, and answered, in the order of submission.
        ``sent_us``: the time at which the operation is sent, if not now. ``resumed``: see
        ``ZkPort.submit``.
        """
        if self._closed:
            self._call_soon(on_reply, Failed(Code.SESSION_EXPIRED))
            return
        request = Request(op, on_reply, resumed if isinstance(op, Multi) else None)
        if self.state is SessionState.CONNECTED:
            self._send(request, sent_us)
        else:
            self._waiting.append(request)

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Ping the server. ``on_answer`` is called when it answers, and never if the connection
        breaks."""
        connection = self._connection
        if self.state is not SessionState.CONNECTED or connection is None:
            return
        due = max(connection.up_us, self._kernel.now_us + self._zk.trip(connection))
        connection.up_us = due
        self._kernel.schedule_at_us(due, partial(self._zk.pinged, connection, on_answer))

    def close(self, on_reply: OnReply = lambda reply: None) -> None:
        """End the session after all submitted operations, as a clean stop does. Without a
        connection, the session ends after its timeout and ``on_reply`` gets CONNECTION_LOSS."""
        if self._closed:
            return
        self._closed = True
        request = Request(None, on_reply)
        if self.state is SessionState.CONNECTED:
            self._send(request)
        else:
            self._attempt += 1
            self._fail([*self._waiting, request], Code.CONNECTION_LOSS)
            self._waiting.clear()

    # -- faults

    def kill(self) -> None:
        """Kill the client's process. No callback is called any more, and the session ends after
        its timeout."""
        self._killed = self._closed = True
        self._attempt += 1
        self._break()

    def disconnect(self, duration: float) -> None:
        """Cut the connection now and let the client try again after ``duration`` seconds.

        The first requests in flight (a random number of them) still reach the server. The client
        gets CONNECTION_LOSS for everything unanswered, applied or not. If the session has timed out
        before the client reconnects, the client gets LOST.
        """
        if self._killed:
            return
        self._break()
        self._attempt += 1
        if self.state is SessionState.CONNECTED:
            self.state = SessionState.SUSPENDED
            self._fail(self._sent, Code.CONNECTION_LOSS)
            self._sent.clear()
            self._call_soon(self._on_state, SessionState.SUSPENDED, self.session_id)
            if not self._zk.rearm:
                self._forget_watches()
        if self._reconnect is not None:
            self._kernel.cancel(self._reconnect)
        if not self._closed:
            self._reconnect = self._kernel.schedule(duration, self._begin_connect)

    def expire(self, unnoticed: float = 0.0) -> None:
        """End the session now, as the server does. Its ephemeral znodes disappear immediately, and
        no request in flight is applied.

        A connected client does not notice this for ``unnoticed`` seconds plus one trip; its
        requests in that time get CONNECTION_LOSS. Then it gets SUSPENDED, LOST and, with a new
        session, CONNECTED. A disconnected client notices it when it connects.
        """
        if not self._zk.session_alive(self.session_id):
            return
        connection = self._connection
        if self._broken is not None:
            self._broken.may_arrive = 0
        if connection is not None:
            connection.may_arrive = 0
            connection.server.forget(connection)
            self._kernel.schedule(
                unnoticed + self._zk.trip() / 1e6,
                partial(self._notice, connection),
            )
        self._zk.end_session(self.session_id)

    def drop_watch(self, path: str | None = None) -> None:
        """Lose the next watch event that is sent to this client (for ``path``, if given)."""
        self._drops.append(path)

    # -- the client library

    def _call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self._kernel.schedule(0, lambda: self._killed or callback(*args))

    def _fail(self, requests: Iterable[Request], code: Code) -> None:
        for request in requests:
            self._call_soon(request.on_reply, Failed(code))

    def _send(self, request: Request, sent_us: int | None = None) -> None:
        if request.resumed not in (None, self.resumed):
            self._fail([request], Code.CONNECTION_LOSS)
            return
        connection = self._connection
        assert connection is not None
        self._sent.append(request)
        op = request.op
        paths = op.paths if isinstance(op, GetMany) and op.paths else (None,)
        for path in paths:
            now = self._kernel.now_us
            left = now if sent_us is None else sent_us
            due = max(connection.up_us, now, left + self._zk.trip(connection))
            connection.up_us = due
            connection.in_flight += 1
            self._kernel.schedule_at_us(due, partial(self._zk.arrived, connection, request, path))

    def _break(self) -> None:
        """Break the connection for both ends. Requests in flight may partly arrive."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        connection.listening = False
        if connection.may_arrive is None:
            connection.may_arrive = self._kernel.rng.randint(0, connection.in_flight)
        connection.server.forget(connection)
        self._broken = connection
        self._zk.start_expiry(connection.session_id)

    def _notice(self, connection: Connection) -> None:
        """Let the client notice that the server closed the connection."""
        if self._connection is connection:
            self.disconnect(0)

    def _begin_connect(self) -> None:
        self._reconnect = None
        if self._closed:
            return
        self._attempt += 1
        self._kernel.schedule_at_us(
            self._kernel.now_us + self._zk.trip(),
            partial(self._zk.handshake, self, self._attempt),
        )

    def _adopt(self, connection: Connection) -> None:
        """Use the accepted connection: drop old messages, and set watches again."""
        self._connection = connection
        if self._broken is not None:
            self._broken.may_arrive = 0
            self._broken = None
        self._set_watches(connection)

    def _on_connected(self, attempt: int, connection: Connection) -> None:
        if attempt != self._attempt:
            return
        same = self.session_id == connection.session_id
        self.resumed = self.resumed + 1 if same else 0
        self.session_id = connection.session_id
        self.state = SessionState.CONNECTED
        self._refused_since = None
        self._zk.stop_expiry(self.session_id)
        while self._waiting:
            self._send(self._waiting.popleft())
        self._on_state(SessionState.CONNECTED, self.session_id)

    def _on_refused(self, attempt: int) -> None:
        """Handle that the servers have fewer transactions than this client has seen. After two
        session timeouts it connects as a client that has seen none (``zkconsumer.zk.connection``).
        """
        if attempt != self._attempt:
            return
        now = self._kernel.now
        if self._refused_since is None:
            self._refused_since = now
        elif now - self._refused_since > 2 * self.session_timeout:
            self._seen_zxid = 0
        self._reconnect = self._kernel.schedule(_PAUSE_S, self._begin_connect)

    def _on_expired(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        lost, self.session_id = self.session_id, 0
        self.state = SessionState.LOST
        self._forget_watches()
        self._fail(self._waiting, Code.SESSION_EXPIRED)
        self._waiting.clear()
        self._begin_connect()
        self._on_state(SessionState.LOST, lost)

    def _on_answer(self, request: Request, path: str | None, reply: Reply, zxid: int) -> None:
        """Handle an answer. For a GetMany, it answers only the read of ``path``."""
        self._seen_zxid = max(self._seen_zxid, zxid)
        op = request.op
        if isinstance(op, GetMany) and path is not None:
            assert isinstance(reply, Ok)
            node = reply.value
            assert node is None or isinstance(node, Node | tuple)
            request.nodes.append(node)
            if op.watch and node is not None:
                self._data_watches[path] = None
            if len(request.nodes) < len(op.paths):
                return
            reply = Ok(tuple(request.nodes))  # type: ignore[arg-type]
        answered = self._sent.popleft()
        assert answered is request
        if isinstance(op, Exists | GetData | GetChildren) and op.watch and isinstance(reply, Ok):
            if isinstance(op, GetChildren):
                self._child_watches[op.path] = None
            elif reply.value is None:
                self._exist_watches[op.path] = None
            else:
                self._data_watches[op.path] = None
        if op is None:
            self._break()
            self.state = SessionState.LOST
        request.on_reply(reply)

    def _on_watch_event(self, event: WatchEvent) -> None:
        if event.kind is not WatchKind.CHILD:
            self._data_watches.pop(event.path, None)
            self._exist_watches.pop(event.path, None)
        if event.kind in (WatchKind.CHILD, WatchKind.DELETED):
            self._child_watches.pop(event.path, None)
        self._on_watch(event)

    def _drop(self, event: WatchEvent) -> bool:
        for wanted in (event.path, None):
            if wanted in self._drops:
                self._drops.remove(wanted)
                return True
        return False

    def _forget_watches(self) -> None:
        self._data_watches.clear()
        self._exist_watches.clear()
        self._child_watches.clear()

    def _set_watches(self, connection: Connection) -> None:
        """Set watches like ``SetWatches``: fire events that were missed since the last answer, and
        set the other watches."""
        server, seen, deliver = connection.server, self._seen_zxid, self._zk.deliver
        tree = server.tree
        for path in self._data_watches:
            node = tree.node(path)
            if node is None:
                deliver(connection, WatchEvent(WatchKind.DELETED, path))
            elif node.stat.mzxid > seen:
                deliver(connection, WatchEvent(WatchKind.CHANGED, path))
            else:
                server.watch_data(path, connection)
        for path in self._exist_watches:
            if tree.node(path) is not None:
                deliver(connection, WatchEvent(WatchKind.CREATED, path))
            else:
                server.watch_data(path, connection)
        for path in self._child_watches:
            if tree.node(path) is None:
                deliver(connection, WatchEvent(WatchKind.DELETED, path))
            elif tree.pzxid(path) > seen:
                deliver(connection, WatchEvent(WatchKind.CHILD, path))
            else:
                server.watch_children(path, connection)
