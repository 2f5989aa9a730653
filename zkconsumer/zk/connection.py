"""kazoo's connection to one server at a time, with limits that kazoo lacks.

Threads: kazoo's connection thread runs everything except ``stop`` and ``abandon``, which any thread
may call. Differences from kazoo:

- A server that does not answer a request within a third of the session timeout makes the client
  try another one. kazoo detects a silent server only while it has nothing to send.
- The same holds for a connection that is never answered: a starting ZooKeeper sometimes accepts a
  connection and forgets it. kazoo and the Java client wait for their share of the session timeout,
  which with one server is all of it, so the session ends.
- An answer out of order, or any other error, breaks the connection, not the thread, as in the Java
  client. If the thread's loop ends nevertheless, it restarts with a new session.
- An answer with the code for an expired session ends the session. A server may resume a session
  just while another client closes it. It then answers reads and pings as if the session were
  alive, and only writes fail.
- Names are resolved again after each failed address, not once for all of them, and an address that
  does not accept a connection has only its share of a third of the session timeout. Servers move,
  and a few old addresses that drop packets would otherwise cost the session.
- Sending a request never blocks: kazoo's own wake-up pipe is full after some 280 requests without
  a connection.
- ``stop`` ends in a limited time.
- A watch event has the transaction that fired it, which servers send since ZooKeeper 3.9.
- A server that refuses the client's identity or certificate ends the thread: it is not asked
  again. TLS uses our own context, which is created once.

kazoo has no interface for this, so ``check_kazoo`` compares the internals used here with those of
the installed version. ``pyproject.toml`` allows one minor version.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import queue
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import kazoo
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    SASLException,
    SessionExpiredError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING, ConnectionHandler
from kazoo.protocol.serialization import SASL, Close, Connect
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError

from zkconsumer.errors import AuthenticationError, UnsupportedLibraryError
from zkconsumer.zk.multi import MultiWrite
from zkconsumer.zk.security import ZkSecurity

logger = logging.getLogger("zkconsumer.zk")

SUPPORTED: Final = ">=2.11,<2.12"
"""Supported versions of kazoo, as in ``pyproject.toml``."""
_PASSWORD_BYTES: Final = 16
"""Length of a session's password, in all releases of ZooKeeper."""
_RESTART_SECONDS: Final = 1.0
_DNS_SHARE: Final = 10
"""A server's time divided by this is the limit for DNS. Slower DNS is not asked again before all
addresses have been tried."""
_SASL_REQUESTS: Final = 8
_ABANDONED_SECONDS: Final = 0.5
"""Seconds for which ``stop`` waits for the thread after its socket is shut down."""


class _Waker:
    """One end of the pipe that wakes the connection thread.

    The number of bytes in it is not used; ``Handler.select`` checks the queue of requests.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, data: bytes) -> int:
        """Wake the thread, even if the pipe is full."""
        with contextlib.suppress(BlockingIOError):
            self._end.send(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Consume a wake-up, if there is one."""
        with contextlib.suppress(BlockingIOError):
            return self._end.recv(size)
        return b""

    def close(self) -> None:
        self._end.close()


class _Guarded:
    """A queue of kazoo's, whose functions report errors that kazoo would ignore."""

    def __init__(self, work: Any, failed: Callable[[BaseException], object]) -> None:
        self._queue = work
        self._failed = failed

    def task_done(self) -> None:
        """Do nothing, because no thread waits for an empty queue."""

    def get(self) -> Any:
        """Return the next function, or kazoo's end mark, which is not a function."""
        function = self._queue.get()
        return partial(self._call, function) if callable(function) else function

    def _call(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            logger.exception("an answer or an event of ZooKeeper could not be handled")
            self._failed(error)


class Fired(NamedTuple):
    """kazoo's watch event with the transaction that fired the watch; ``None`` if the server does
    not send it."""

    type: str
    state: str
    path: str | None
    zxid: int | None


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's handler of threads and sockets, with the time limits of one ``Connection``.

    Args:
        failed: called with an exception from the handling of an answer or a watch event.
        context: the TLS context; ``None``: no TLS.
    """

    queue_impl = queue.SimpleQueue
    """The queue class, which is written in C. kazoo's own takes several locks for each answer."""
    connection: Connection | None = None
    workers: Sequence[threading.Thread]
    """The threads that handle answers and watch events."""

    def __init__(
        self, failed: Callable[[BaseException], object], context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__()
        self._failed = failed
        self._context = context
        self.workers = self._workers
        self._process = os.getpid()

    def stop(self) -> None:
        """End the threads. Do nothing in a forked process: it has no threads, and locks may stay
        locked."""
        if os.getpid() == self._process:
            super().stop()

    def _create_thread_worker(self, work_queue: Any) -> Any:
        return super()._create_thread_worker(_Guarded(work_queue, self._failed))

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watcher with a ``Fired``, in place of kazoo's event."""
        fired = Fired._make((*callback.args[0], self.connection and self.connection.event_zxid))
        super().dispatch_callback(callback._replace(args=(fired,)))

    def create_socket_pair(self) -> tuple[_Waker, _Waker]:
        """Create the pipe that wakes the connection thread."""
        first, second = super().create_socket_pair()
        return _Waker(first), _Waker(second)

    def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect, within the connection's time limit for one address."""
        connection = self.connection
        if connection is not None and options.get("timeout"):
            options["timeout"] = min(options["timeout"], connection.address_seconds)
        if self._context is None:
            return super().create_connection(*args, **options)
        sock = socket.create_connection(options["address"], options.get("timeout"))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return self._context.wrap_socket(sock, server_hostname=options["hostname"])
        except BaseException:
            sock.close()
            raise

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        failing: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like kazoo, but raise ConnectionDropped when the server is overdue."""
        connection = self.connection
        waker = None if connection is None else connection.waker
        if connection is None or waker not in reading:  # connecting, or in the middle of a message
            return self._select(reading, writing, timeout)
        left = 0.0 if connection.waiting else max(0.0, connection.patience())
        if timeout is None or left < timeout:
            timeout = None if left == math.inf else left
        ready = self._select(reading, writing, timeout)
        if connection.patience() <= 0 and not any(socket is not waker for socket in ready[0]):
            raise ConnectionDropped(
                f"no answer for {connection.silence:g} s, a third of the session timeout"
            )
        if connection.waiting and waker not in ready[0]:
            ready[0].append(waker)
        return ready

    def _select(
        self, reading: Sequence[Any], writing: Sequence[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        # What TLS has decrypted is no longer in the socket, and kazoo's loop waits for the socket.
        decrypted = [
            connected
            for connected in reading
            if isinstance(connected, ssl.SSLSocket) and connected.pending()
        ]
        ready = _poll(reading, writing, 0 if decrypted else timeout)
        ready[0].extend(connected for connected in decrypted if connected not in ready[0])
        return ready


def _poll(
    reading: Sequence[Any], writing: Sequence[Any], timeout: float | None
) -> tuple[list[Any], list[Any], list[Any]]:
    """Wait like ``select.select``, but in one system call; kazoo's own needs five.

    Raises ValueError for a closed socket.
    """
    poll = select.poll()
    events: dict[int, int] = {}
    for sockets, event in ((reading, select.POLLIN), (writing, select.POLLOUT)):
        for connected in sockets:
            number = connected.fileno()
            events[number] = events.get(number, 0) | event
    for number, wanted in events.items():
        poll.register(number, wanted)
    ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
    return (  # an error or the connection's end shows at the next read or write
        [connected for connected in reading if ready.get(connected.fileno(), 0) & ~select.POLLOUT],
        [connected for connected in writing if ready.get(connected.fileno(), 0) & ~select.POLLIN],
        [],
    )


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """The connection of a ``KazooClient``, which replaces the client's own.

    Args:
        client: created with its own ``Handler``; not started.
        session_timeout: seconds, as requested from the server.
        security: how to log in.
    """

    _connection_routine: Any

    def __init__(
        self, client: KazooClient, session_timeout: float, security: ZkSecurity | None = None
    ) -> None:
        check_kazoo(client)
        self._security = ZkSecurity() if security is None else security
        super().__init__(
            client,
            client._conn_retry.copy(),
            logger=client.logger,
            sasl_options=self._security.sasl,
        )
        self.settled = threading.Event()
        """Set once the client is connected and logged in, or refused."""
        self.refused: str | None = None
        """Why no server is asked any more."""
        self._logged_in = False
        """Whether a server has accepted this client."""
        self._sasl_requests = 0
        self.granted = session_timeout
        """Session timeout in seconds: the requested value until a server has granted one."""
        self._asked_timeout = session_timeout
        self._connecting = True
        self.resumed = 0
        """Number of times that the current session was resumed."""
        self._turned_away: float | None = None
        """Time since when servers have closed each connection before a session was established."""
        self._stop_by = 0.0
        """When ``stop`` no longer waits for the server (``time.monotonic``)."""
        self._abandoned = False
        self._heard = 0.0
        self.event_zxid: int | None = None
        """The last message's zxid. Before ZooKeeper 3.9, watch events have none."""
        self._asked: float | None = None
        """When the oldest unanswered request was sent; ``None`` if there is none."""
        self._tried: tuple[str, int] | None = None
        self._addresses: set[tuple[str, int]] = set()
        """The addresses that the names had last."""
        self._named: set[tuple[str, int]] = set()
        """All addresses that the names have had since the last connection."""
        self._passes = 0
        """How often all addresses have failed since a new one was named."""
        self.unresolved: dict[str, str] = {}
        """Names that currently do not resolve, and why."""
        client.handler.connection = self
        client._connection = self

    # -- any thread ----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the thread is running."""
        routine = self._connection_routine
        return routine is not None and routine.is_alive()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """All threads that must run until the client is stopped."""
        routine = self._connection_routine
        return () if routine is None else (routine, *self.client.handler.workers)

    def opened(self, resumes: bool) -> None:
        """Count an opened or resumed session, before waiting requests are sent."""
        self.resumed = self.resumed + 1 if resumes else 0

    def limit_stop(self, until: float) -> None:
        """Let ``stop`` wait for the server until this time (``time.monotonic``)."""
        self._stop_by = until

    def stop(self, timeout: float | None = None) -> bool:
        """Wait for the server to close the session, until the time of ``limit_stop``. Then cut the
        connection.

        kazoo waits for at least 10 s, then without a limit. Return whether the thread has ended. A
        thread that is opening a connection ends after its share of the session timeout.
        """
        routine = self._connection_routine
        if routine is not None:
            routine.join(max(0.0, self._stop_by - time.monotonic()))
            if routine.is_alive():
                self.abandon()
                routine.join(_ABANDONED_SECONDS)
            if routine.is_alive():
                return False
            self._connection_routine = None
        return bool(self.connection_stopped.is_set())

    def abandon(self) -> None:
        """Cut the connection permanently. Call it only after the client was asked to stop."""
        self._abandoned = True
        current = self._socket
        if current is not None:
            with contextlib.suppress(OSError):
                current.shutdown(socket.SHUT_RDWR)

    # -- the connection thread -----------------------------------------------------------------

    @property
    def waker(self) -> Any:
        """The end of the wake-up pipe that the connection thread reads."""
        return self._read_sock

    @property
    def waiting(self) -> bool:
        """Whether there are unsent requests."""
        return bool(self.client._queue)

    @property
    def silence(self) -> float:
        """Seconds after which a connection is closed if a requested answer is missing.

        It is a third of the configured session timeout or, once connected, of the granted timeout
        if that is shorter. So an unusable timeout in a server's answer does not keep the client
        from trying the next server.
        """
        asked = self._asked_timeout
        return (asked if self._connecting else min(asked, self.granted)) / 3

    def patience(self) -> float:
        """Seconds left for the server to answer a request; infinite if none is pending."""
        if not self.client._pending or self._asked is None:
            return math.inf
        return max(self._asked, self._heard) + self.silence - time.monotonic()

    def zk_loop(self) -> None:
        """Run until the client is stopped, even after errors."""
        stopped = self.client._stopped
        while True:
            try:
                super().zk_loop()
            except BaseException:
                logger.warning("the connection to ZooKeeper has failed", exc_info=True)
            if self.refused or stopped.is_set() or stopped.wait(_RESTART_SECONDS):
                break
            logger.warning("connecting to ZooKeeper again, with a new session")
        if self._abandoned:
            self.close()

    @property
    def address_seconds(self) -> float:
        """Seconds in which one address must accept a connection.

        It is the address's share of a third of the session timeout. If all addresses have failed,
        the network may be slow, so each address gets the full third.
        """
        return self.silence / (max(1, len(self._addresses)) if self._passes == 0 else 1)

    def _connect_loop(self, retry: Any) -> Any:
        """Try each address once, according to the latest DNS answers. Then kazoo pauses."""
        tried: set[tuple[str, int]] = set()
        hosts, quick = self._resolved()
        while left := [host for host in hosts if host[1:] not in tried]:
            if self.client._stopped.is_set():
                return STOP_CONNECTING
            tried.add(left[0][1:])
            if self._connect_attempt(*left[0], retry) is STOP_CONNECTING:
                return STOP_CONNECTING
            if quick:
                hosts, quick = self._resolved()
        self._passes += 1
        raise ForceRetryError("Reconnecting" if tried else "No host resolved. Reconnecting")

    def _resolved(self) -> tuple[list[tuple[str, str, int]], bool]:
        """Return all addresses, and whether DNS is fast enough to be asked again soon."""
        begun = time.monotonic()
        hosts = self._expand_client_hosts()
        return hosts, time.monotonic() - begun < self.silence / _DNS_SHARE

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return the hosts in random order, with the last one tried at the end."""
        hosts: list[tuple[str, str, int]] = []
        for name, port in self.client.hosts:
            host = name.strip()
            try:
                answers = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
            except (OSError, UnicodeError) as error:
                if host not in self.unresolved:
                    logger.warning("the name %s of a ZooKeeper server does not resolve", host)
                self.unresolved[host] = getattr(error, "strerror", None) or str(error)
            else:
                self.unresolved.pop(host, None)
                hosts += [(host, str(answer[4][0]), int(answer[4][1])) for answer in answers]
        if self.client.randomize_hosts:
            random.shuffle(hosts)
        addresses = {host[1:] for host in hosts}
        if addresses - self._named:  # DNS may name some of the same ones each time
            self._passes = 0
        self._named |= addresses
        self._addresses = addresses or self._addresses
        return sorted(hosts, key=lambda host: host[1:] == self._tried)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        except Exception as error:  # noqa: BLE001 - kazoo would end its thread
            logger.warning("dropping the connection to ZooKeeper at %s:%s: %r", host, port, error)
            self.client._session_callback(KeeperState.CONNECTING)
            return None

    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]:
        self._tried = hostip, port
        self._asked = None
        self._connecting = True
        self._sasl_requests = 0
        try:
            if self._security.kerberos is not None:
                self._security.kerberos.begin(host)
            connected: tuple[float, float] = super()._connect(host, hostip, port)
        except AuthenticationError as error:
            self._refuse(f"ZooKeeper at {host}:{port}: {error}", error)
        except (ConnectionDropped, ssl.SSLError) as error:
            fault = error if isinstance(error, ssl.SSLError) else error.__context__
            why = self._security.tls_refused(fault) if isinstance(fault, ssl.SSLError) else None
            if why is not None:
                self._refuse(f"ZooKeeper at {host}:{port}: {why}", error)
            self._refused()
            raise
        except (AuthFailedError, SASLException) as error:
            self._refuse(f"ZooKeeper at {host}:{port}: {self._security.sasl_refused()}", error)
        self._logged_in = True
        self.settled.set()
        self._connecting = False
        self._passes = 0
        self._named.clear()
        self._turned_away = None
        self._heard = time.monotonic()
        return connected

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        if self._security.kerberos is None:
            super()._authenticate_with_sasl(host, timeout)
        else:
            self._security.kerberos.log_in(self, timeout, _SASL_REQUESTS)

    def _refuse(self, why: str, error: Exception) -> NoReturn:
        """Handle that a server and this client do not accept each other: ask no server any more.

        If a server has accepted this client before, the fault is that of one server, and the next
        one is asked.
        """
        if self._logged_in:
            logger.warning("%s; the next server is asked", why)
            raise ConnectionDropped(why) from error
        self.refused = why
        self.settled.set()
        raise AuthFailedError(why) from None

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if isinstance(request, SASL):
            self._sasl_requests += 1
            if self._sasl_requests > _SASL_REQUESTS:  # it knows no SASL, and answers without end
                raise AuthFailedError("the server did not complete the SASL exchange")
        super()._submit(request, timeout, xid)

    def _refused(self) -> None:
        """Handle that a server has closed the connection before the session was established.

        A server does so if it has fewer transactions than this client has seen. After the
        ensemble was restored from a backup, or an answer was corrupt, all servers do so
        indefinitely. So after two session timeouts the client no longer reports the last zxid
        that it has seen, and the servers then report whether the session still exists. The Java
        client retries indefinitely.
        """
        now = time.monotonic()
        if self._turned_away is None:
            self._turned_away = now
        elif now - self._turned_away > 2 * self._asked_timeout and self.client.last_zxid:
            logger.warning(
                "no ZooKeeper server has accepted a connection for %.0f s; connecting as a client "
                "that has seen no transaction: the ensemble may have been restored from a backup",
                now - self._turned_away,
            )
            self.client.last_zxid = 0

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if self._abandoned:
            raise ConnectionDropped("the client is closed")
        answer = super()._invoke(min(timeout, self.silence), request, xid)
        if isinstance(request, Connect):
            if len(answer[0].passwd or b"") != _PASSWORD_BYTES:
                # kazoo would keep it, and fail with it at each further connection.
                raise ConnectionDropped(
                    "the server's answer to the connection request is unreadable"
                )
            if answer[0].time_out > 0:
                self.granted = answer[0].time_out / 1000
        return answer

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        queue = self.client._queue
        if queue and isinstance(queue[0][0], MultiWrite) and queue[0][0].outdated(self.resumed):
            _, result = queue.popleft()
            self._read_sock.recv(1)
            result.set_exception(ConnectionLoss())
            return
        if not self.client._pending:
            self._asked = time.monotonic()
        super()._send_request(read_timeout, min(connect_timeout, self.silence))

    def _read_socket(self, read_timeout: float) -> Any:
        answer = super()._read_socket(min(read_timeout, self.silence))
        self._heard = time.monotonic()
        return answer

    def _read_header(self, timeout: float) -> Any:
        header, *content = super()._read_header(timeout)
        self.event_zxid = header.zxid if header.zxid > 0 else None
        return header, *content

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        pending = self.client._pending
        if not pending or pending[0][2] != header.xid:
            raise ConnectionDropped(f"answer {header.xid} is out of order")
        request, result, _ = pending[0]
        try:
            answer = super()._read_response(header, buffer, offset)
        except BaseException:
            # For example an error code that kazoo does not know. kazoo has taken the request off
            # its list, so nothing else would answer it.
            if result is not None and not result.ready():
                result.set_exception(ConnectionLoss())
            raise
        if not isinstance(request, Close) and _session_is_over(header.err, result):
            raise SessionExpiredError("the server reported that the session has ended")
        return answer


def _session_is_over(error: int, result: Any) -> bool:
    """Whether an answer, or one operation of a multi, reports an expired session."""
    if error == SessionExpiredError.code:
        return True
    parts = result.value if result is not None and result.successful() else None
    return isinstance(parts, list) and SessionExpiredError.code in parts


_OVERRIDDEN: Final = (
    "stop zk_loop _connect_loop _expand_client_hosts _connect_attempt _connect "
    "_authenticate_with_sasl _invoke _submit _send_request _read_socket _read_header _read_response"
)
_CALLED: Final = (
    (KazooClient, "_call", "request async_object"),
    (KazooClient, "_session_callback", "state"),
    (ConnectionHandler, "__init__", "client retry_sleeper logger sasl_options"),
    (ConnectionHandler, "close", ""),
    (SequentialThreadingHandler, "_create_thread_worker", "work_queue"),
    (SequentialThreadingHandler, "create_connection", "args kwargs"),
    (SequentialThreadingHandler, "create_socket_pair", ""),
    (SequentialThreadingHandler, "dispatch_callback", "callback"),
    (SequentialThreadingHandler, "select", "args kwargs"),
)


def check_kazoo(client: KazooClient) -> None:
    """Compare kazoo's internals with those used here. Raises UnsupportedLibraryError."""
    expected = [
        *_CALLED,
        *(
            (ConnectionHandler, name, _parameters(getattr(Connection, name)))
            for name in _OVERRIDDEN.split()
        ),
    ]
    faults = [
        f"{owner.__name__}.{name} does not take ({parameters})"
        for owner, name, parameters in expected
        if _parameters(getattr(owner, name, None)) != parameters
    ]
    faults += [
        f"{type(owner).__name__} has no attribute {name}"
        for owner, names in (
            (client, "_conn_retry _connection _pending _queue _stopped handler hosts logger"),
            (
                getattr(client, "_connection", None),
                "_connection_routine _read_sock _socket connection_stopped",
            ),
        )
        for name in names.split()
        if not hasattr(owner, name)
    ]
    if faults:
        raise UnsupportedLibraryError("kazoo", kazoo.__version__, SUPPORTED, "; ".join(faults))


def _parameters(method: Any) -> str | None:
    """Names of a method's parameters without ``self``; ``None`` if the method does not exist."""
    return None if method is None else " ".join([*inspect.signature(method).parameters][1:])
