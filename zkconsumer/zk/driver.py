"""Carries out ``ZkOp``s on a real ZooKeeper through kazoo, and maps kazoo's errors.

Threads: ``submit`` may be called from any thread and never blocks. Replies, watches and session
changes arrive on kazoo's threads; callbacks must only put something into a mailbox. Watches are
raw one-shot watches, because kazoo's own recipes call back again after errors of the callback.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import EventType, KazooState
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id

from zkconsumer.core.zookeeper.ops import (
    Acl,
    AclEntry,
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
    Node,
    Ok,
    Reply,
    SessionEvent,
    SetAcl,
    SetData,
    Stat,
    Value,
    ZkOp,
)
from zkconsumer.errors import AuthenticationError, ChrootMissingError, ZkUnavailableError
from zkconsumer.zk.connection import Connection, Fired, Handler
from zkconsumer.zk.multi import NO_NODE, MultiRead, MultiWrite, encode_acl
from zkconsumer.zk.security import HideSecrets, ZkSecurity

logger = logging.getLogger("zkconsumer.zk")

CLOSE_SECONDS: Final = 5.0
"""Seconds for ending a session, unless the caller passes a timeout."""

_CODES: dict[type[kz.KazooException], Code] = {
    kz.NoNodeError: Code.NO_NODE,
    kz.NodeExistsError: Code.NODE_EXISTS,
    kz.BadVersionError: Code.BAD_VERSION,
    kz.NotEmptyError: Code.NOT_EMPTY,
    kz.NoChildrenForEphemeralsError: Code.NO_CHILDREN_FOR_EPHEMERALS,
    kz.NoAuthError: Code.NO_AUTH,
    kz.AuthFailedError: Code.NO_AUTH,
    kz.InvalidACLError: Code.NO_AUTH,
    kz.SessionClosedRequireSaslError: Code.AUTH_REQUIRED,
    kz.ConnectionLoss: Code.CONNECTION_LOSS,
    kz.OperationTimeoutError: Code.CONNECTION_LOSS,
    kz.SessionMovedError: Code.CONNECTION_LOSS,
    kz.SessionExpiredError: Code.SESSION_EXPIRED,
    kz.ConnectionClosedError: Code.SESSION_EXPIRED,
}


def _kazoo_logger() -> logging.Logger:
    logger = logging.getLogger("zkconsumer.zk.kazoo")
    if not any(isinstance(known, HideSecrets) for known in logger.filters):
        logger.addFilter(HideSecrets())
    return logger


def code_of(error: BaseException) -> Code:
    """Return the code of a kazoo error; ``OTHER`` if no script can react to it.

    Any other exception means that kazoo could not read the answer: the outcome is unknown.
    """
    if not isinstance(error, kz.KazooException):
        return Code.CONNECTION_LOSS
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return Code.OTHER


def _code_of_number(number: int) -> Code:
    """Return the code of ZooKeeper's error number. kazoo raises for unknown numbers."""
    try:
        return code_of(kz.EXCEPTIONS[number]())
    except RuntimeError:
        return Code.OTHER


def _nothing(_value: Any) -> None:
    return None


OnReply = Callable[[Reply], object]


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner, stat.mtime)


class ZkDriver:
    """One kazoo client and its successive sessions.

    Args:
        hosts: ``host:port,host:port``, without chroot.
        chroot: ``""`` or ``/path``; must exist.
        session_timeout: seconds, as requested from the server.
        on_session: called with the event and the session id.
        on_watch: called with the path (without chroot) of each watch that fired, and with the
            transaction that made the change; None: the server did not send it.
        on_fault: called with an exception from the handling of an answer, whose request is then
            never answered.
        security: how to encrypt and log in.
    """

    def __init__(
        self,
        hosts: str,
        chroot: str,
        session_timeout: float,
        on_session: Callable[[SessionEvent, int], object],
        on_watch: Callable[[str, int | None], object],
        on_fault: Callable[[BaseException], object] = _nothing,
        security: ZkSecurity | None = None,
    ) -> None:
        self._security = security = ZkSecurity() if security is None else security
        self._hosts = hosts
        self._chroot = chroot
        self._asked_timeout = session_timeout
        self._on_session = on_session
        self._on_watch = on_watch
        self._lock = threading.Lock()
        self._session_id = 0
        self._has_multiread = False
        """Whether the server is known to support a ``MultiRead``."""
        self.operations = 0
        """Number of requests sent, for metrics. Written without a lock by the submitting thread."""
        self._client = KazooClient(
            hosts=hosts + chroot,
            timeout=session_timeout,
            # A pause between two tries must not be what ends a session.
            connection_retry={"max_tries": -1, "max_delay": min(2.0, session_timeout / 6)},
            handler=Handler(on_fault, security.context),
            logger=_kazoo_logger(),
            auth_data=security.auth_data,
            default_acl=security.acl,
            use_ssl=security.context is not None,
        )
        self._acl = encode_acl(security.acl or OPEN_ACL_UNSAFE)
        self._connection = Connection(self._client, session_timeout, security)
        self._closing = threading.Lock()
        """Held by the thread that closes."""
        self._client.add_listener(self._state_changed)

    @property
    def session_timeout(self) -> float:
        """Seconds after which the server ends a silent session: the requested value until there is
        a connection, then the granted value."""
        return self._connection.granted

    @property
    def session_id(self) -> int:
        """The current session; 0 while there is none. Signed as in ``Stat.ephemeral_owner``."""
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether there is currently a connection."""
        return bool(self._client.connected)

    def check(self) -> None:
        """Raise RuntimeError if one of kazoo's threads has ended before ``close``."""
        self._check_refused()
        for thread in self._connection.threads:
            if not thread.is_alive() and not self._client._stopped.is_set():
                raise RuntimeError(f"kazoo's thread {thread.name} has ended unexpectedly")

    def start(self, connection_timeout: float, quick: bool = False) -> None:
        """Connect within ``connection_timeout`` seconds.

        ``quick``: save a round trip; servers before 3.6 then drop the connection once.

        Raises ZkUnavailableError, ChrootMissingError, or AuthenticationError.
        """
        deadline = time.monotonic() + connection_timeout
        self._client.start_async()
        settled = self._connection.settled.wait(connection_timeout)
        try:
            self._check_refused()
        except AuthenticationError:
            self.close(0.0)
            raise
        if not settled:
            self.close(0.0)
            raise self._unavailable(connection_timeout)
        if self._chroot:
            try:
                missing = self._exists(deadline) is None
            except KazooTimeoutError as error:
                self.close(0.0)
                raise self._unavailable(connection_timeout) from error
            except kz.KazooException as error:
                self.close(0.0)
                self._check_refused()
                raise self._no_start(error) from error
            if missing:
                self.close()
                raise ChrootMissingError(
                    f"zookeeper.connect: the chroot {self._chroot} does not exist on "
                    f"{self._hosts}; create it, or correct the part after the hosts"
                )
        if quick:
            self._ask_for_multiread()
        else:
            self._look_for_multiread(min(deadline, time.monotonic() + self._asked_timeout))

    @property
    def identity(self) -> str:
        """This client's identity in ZooKeeper, as text."""
        return self._security.identity

    @property
    def identities(self) -> tuple[tuple[str, str | None], ...]:
        """Scheme and id of this client's identities in ACLs. An id of None matches every id."""
        return self._security.identities

    def _check_refused(self) -> None:
        if self._connection.refused is not None:
            raise AuthenticationError(self._connection.refused)

    def _no_start(self, error: kz.KazooException) -> ZkUnavailableError:
        reason = repr(error)
        if code_of(error) is Code.AUTH_REQUIRED:
            reason = f"requires clients to authenticate, and this is {self.identity}"
        return ZkUnavailableError(f"zookeeper.connect: {self._hosts}: {reason}")

    def _unavailable(self, seconds: float) -> ZkUnavailableError:
        if (kerberos := self._security.kerberos) is not None and kerberos.no_ticket is not None:
            return ZkUnavailableError(f"zookeeper.connect: {self._hosts}: {kerberos.no_ticket}")
        if unresolved := self._connection.unresolved:
            name, why = next(iter(unresolved.items()))
            return ZkUnavailableError(
                f"zookeeper.connect: {self._hosts}: the name {name} does not resolve ({why}): "
                "correct the address, or check DNS"
            )
        return ZkUnavailableError(
            f"zookeeper.connect: no ZooKeeper answered at {self._hosts} within {seconds:g} s; "
            "check the addresses; --timeout, or zookeeper.connection.timeout.ms, sets how long to "
            "wait"
        )

    def _exists(self, deadline: float) -> Any:
        """Return the chroot's state. Repeats the request if the connection drops."""
        while True:
            try:
                return self._client.exists_async("/").get(timeout=_until(deadline))
            except kz.ConnectionLoss:
                if time.monotonic() >= deadline:
                    raise

    def sync(self, timeout: float) -> None:
        """Let this server catch up with all writes that were acknowledged before now.

        Otherwise reads of this session may return older data than another session has seen. Raises
        ZkUnavailableError.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._client.sync_async("/").get(timeout=_until(deadline))
            except (kz.ConnectionLoss, kz.SessionExpiredError):
                if time.monotonic() < deadline:
                    continue
                raise self._unavailable(timeout) from None
            except self._client.handler.timeout_exception:
                raise self._unavailable(timeout) from None
            except kz.KazooException as error:
                raise self._no_start(error) from None
            return

    def _ask_for_multiread(self) -> Any:
        """Check now for multi-reads, because a server that does not support them closes the
        connection.

        Requests are answered in order. Until the answer arrives, many znodes are read one by one.
        """
        prefix = self._client.chroot or "/"
        result = self._client.handler.async_result()
        result.rawlink(self._multiread_answered)
        self._client._call(MultiRead((prefix, prefix), False), result)
        return result

    def _multiread_answered(self, result: Any) -> None:
        # After a lost connection it is not known: the next multi-read will see.
        self._has_multiread = not isinstance(result.exception, kz.UnimplementedError)

    def _look_for_multiread(self, deadline: float) -> None:
        """Check for multi-reads, and wait for the answer or, if it is closed, another
        connection."""
        dropped = threading.Event()

        def listen(state: str) -> None:
            if state == KazooState.SUSPENDED:
                dropped.set()

        self._client.add_listener(listen)
        result = self._ask_for_multiread()
        try:
            result.get(timeout=_until(deadline))
        except kz.UnimplementedError:
            dropped.wait(_until(deadline))
            try:
                self._exists(deadline)
            except (kz.KazooException, KazooTimeoutError):
                pass  # the connection is away; requests wait for it
        except (kz.KazooException, KazooTimeoutError):
            pass  # the connection is away
        finally:
            self._multiread_answered(result)
            self._client.remove_listener(listen)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """End the session: its ephemeral znodes disappear. May be called more than once.

        After ``timeout`` seconds without an answer, and immediately without a connection, the
        connection is cut and ZooKeeper ends the session after its timeout. If a second thread calls
        ``close``, its timeout applies to both calls.
        """
        deadline = time.monotonic() + timeout
        if not self._closing.acquire(timeout=max(0.0, timeout)):
            self._connection.abandon()  # the thread that waits for the answer stops waiting
            return
        try:
            self._connection.limit_stop(deadline if self.connected else 0.0)
            try:
                self._client.stop()
            except kz.WriterNotClosedException:
                logger.warning("a connection to ZooKeeper is still being opened; it ends later")
            if not self._connection.running:
                self._client.close()
        finally:
            self._closing.release()

    def _state_changed(self, state: str) -> None:
        """Handle kazoo's new state. kazoo's connection thread, or the one that stops the client."""
        if state == KazooState.SUSPENDED:
            self._on_session(SessionEvent.SUSPENDED, self._session_id)
        elif state == KazooState.LOST:
            with self._lock:
                lost, self._session_id = self._session_id, 0
            if lost:
                self._on_session(SessionEvent.LOST, lost)
        else:
            session_id: int = self._client.client_id[0]
            with self._lock:
                before, self._session_id = self._session_id, session_id
            self._connection.opened(before == session_id)
            if before == session_id:
                self._on_session(SessionEvent.RESUMED, session_id)
                return
            if before:
                self._on_session(SessionEvent.LOST, before)
            self._on_session(SessionEvent.OPENED, session_id)

    @property
    def resumed(self) -> int:
        """Number of times that the current session was resumed."""
        return self._connection.resumed

    def submit(
        self, op: ZkOp, session_id: int, on_reply: OnReply, resumed: int | None = None
    ) -> None:
        """Send ``op`` in session ``session_id``. ``on_reply`` is called once, on another thread.

        Requests wait while there is no connection. A request for a session other than the current
        one is answered with ``SESSION_EXPIRED``. If the session ends between this check and the
        sending, the scripts' registration check detects it. ``resumed``: see ``ZkPort.submit``.
        """
        if session_id != self._session_id:
            on_reply(Failed(Code.SESSION_EXPIRED))
            return
        self.operations += 1
        on_reply = partial(self._explained, on_reply)
        if isinstance(op, GetMany):
            self._get_many(op, on_reply)
        elif isinstance(op, Multi):
            self._multi(op, on_reply, resumed)
        else:
            result, convert = self._single(op)
            result.rawlink(partial(_deliver, convert, on_reply))

    def _explained(self, on_reply: OnReply, reply: Reply) -> None:
        """Pass on an answer. A refusal names the identity that ZooKeeper refused."""
        if isinstance(reply, Failed) and reply.code is Code.NO_AUTH:
            who = f"the znode's access list does not allow it to {self.identity}"
            reply = replace(reply, detail=who)
        elif isinstance(reply, Failed) and reply.code is Code.AUTH_REQUIRED:
            who = f"ZooKeeper requires clients to authenticate, and this is {self.identity}"
            reply = replace(reply, detail=who)
        on_reply(reply)

    def ping(self, on_answer: Callable[[], object]) -> None:
        """Send a ping to the server. ``on_answer`` is called only if it answers. Without a
        connection nothing is sent, because a request that waits would prove nothing later."""
        if not self.connected:
            return

        def answered(result: Any) -> None:
            if result.exception is None:
                on_answer()

        self._client.exists_async("/").rawlink(answered)

    def _watcher(self, wanted: bool) -> Callable[[Any], None] | None:
        return self._watch_fired if wanted else None

    def _watch_fired(self, event: Fired) -> None:
        if event.type != EventType.NONE and event.path:
            self._on_watch(event.path, event.zxid)

    def _single(self, op: ZkOp) -> tuple[Any, Callable[[Any], Value]]:
        client = self._client
        match op:
            case Exists(path, watch):
                return client.exists_async(path, self._watcher(watch)), _optional_stat
            case GetData(path, watch):
                return client.get_async(path, self._watcher(watch)), _node
            case GetChildren(path, watch, counted):
                watcher = self._watcher(watch)
                if counted:
                    return client.get_children_async(path, watcher, True), _listing
                return client.get_children_async(path, watcher), tuple
            case Create(path, data, ephemeral):
                return client.create_async(path, data, ephemeral=ephemeral), _nothing
            case SetData(path, data, version):
                return client.set_async(path, data, version), _stat
            case Delete(path, version):
                return client.delete_async(path, version), _nothing
            case GetAcl(path):
                return client.get_acls_async(path), _acl
            case SetAcl(path, entries, version):
                every = [ACL(entry.perms, Id(entry.scheme, entry.who)) for entry in entries]
                return client.set_acls_async(path, every, version), _nothing
        raise TypeError(f"expected one operation, got {op!r}")

    def _multi(self, op: Multi, on_reply: OnReply, resumed: int | None) -> None:
        result = self._client.handler.async_result()
        result.rawlink(partial(_deliver_multi, on_reply))
        request = MultiWrite(op.ops, self._client.chroot, self._acl, resumed)
        self._client._call(request, result)

    def _get_many(self, op: GetMany, on_reply: OnReply) -> None:
        if not op.paths:
            on_reply(Ok(()))
        elif self._has_multiread and not op.watch and len(op.paths) > 1:
            prefix = self._client.chroot
            request = MultiRead(tuple(prefix + path for path in op.paths), op.children)
            result = self._client.handler.async_result()
            result.rawlink(partial(self._multi_read, op, on_reply))
            self._client._call(request, result)
        else:
            _Pipelined(op, on_reply).send(self._client, self._watcher(op.watch))

    def _multi_read(self, op: GetMany, on_reply: OnReply, result: Any) -> None:
        error = result.exception
        if isinstance(error, kz.UnimplementedError):
            self._has_multiread = False
            self._get_many(op, on_reply)
            return
        if error is not None:
            on_reply(Failed(code_of(error)))
            return
        replies: list[Any] = []
        for index, item in enumerate(result.value):
            if not isinstance(item, int):
                replies.append(tuple(item) if op.children else item)
            elif item == NO_NODE:
                replies.append(None)
            else:
                on_reply(Failed(_code_of_number(item), index))
                return
        on_reply(Ok(tuple(replies)))


class _Pipelined:
    """A ``GetMany`` sent as single reads without waiting in between."""

    def __init__(self, op: GetMany, on_reply: OnReply) -> None:
        self._op = op
        self._on_reply = on_reply
        self._found: list[Any] = [None] * len(op.paths)
        self._left = len(op.paths)
        self._failed: Failed | None = None

    def send(self, client: KazooClient, watcher: Callable[[Any], None] | None) -> None:
        ask = client.get_children_async if self._op.children else client.get_async
        for index, path in enumerate(self._op.paths):
            ask(path, watcher).rawlink(partial(self._answered, index))

    def _answered(self, index: int, result: Any) -> None:
        """Handle an answer, one at a time. kazoo's completion thread."""
        error = result.exception
        if error is None:
            self._found[index] = (tuple if self._op.children else _node)(result.value)
        elif not isinstance(error, kz.NoNodeError) and self._failed is None:
            self._failed = Failed(code_of(error), index)
        self._left -= 1
        if self._left == 0:
            self._on_reply(self._failed or Ok(tuple(self._found)))


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _optional_stat(value: Any) -> Stat | None:
    return None if value is None else _stat(value)


def _acl(value: Any) -> Acl:
    entries, stat = value
    every = (AclEntry(entry.perms, entry.id.scheme, entry.id.id) for entry in entries)
    return Acl(tuple(every), stat.aversion)


def _listing(value: Any) -> Listing:
    names, stat = value
    return Listing(tuple(names), stat.czxid, stat.cversion, stat.pzxid)


def _node(value: Any) -> Node:
    data, stat = value
    return Node(data or b"", _stat(stat))


def _deliver(convert: Callable[[Any], Value], on_reply: OnReply, result: Any) -> None:
    if result.exception is not None:
        on_reply(Failed(code_of(result.exception)))
    else:
        on_reply(Ok(convert(result.value)))


def _deliver_multi(on_reply: OnReply, result: Any) -> None:
    """Deliver a multi's answer. If it failed, operations that did not fail have error 0."""
    if result.exception is not None:
        on_reply(Failed(code_of(result.exception)))
        return
    for index, item in enumerate(result.value):
        if isinstance(item, int) and item:
            on_reply(Failed(_code_of_number(item), index))
            return
    on_reply(Ok(tuple(result.value)))
