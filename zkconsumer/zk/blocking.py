"""A synchronous interface to the ZooKeeper driver, for tools.

Threads: one thread opens and closes the session. Any thread may run scripts; it waits for the
    replies that kazoo's threads put into its mailbox. Several scripts may be in progress at a
    time. Their simultaneous reads are sent as one request, if ZooKeeper supports that (version
    3.6).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, TypeGuard, TypeVar

from zkconsumer.config.security_keys import SecurityKeys
from zkconsumer.config.values import split_connect
from zkconsumer.core.zookeeper.ops import (
    Code,
    Failed,
    GetChildren,
    GetMany,
    Multi,
    Ok,
    Reply,
    SessionEvent,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import (
    LISTS,
    PACKET_BYTES,
    READ_BATCH,
    Refused,
    Script,
    SessionGone,
    attempt,
)
from zkconsumer.errors import ConfigError, SessionExpiredError, ZkUnavailableError, ZooKeeperError
from zkconsumer.zk.driver import ZkDriver
from zkconsumer.zk.security import ZkSecurity

logger = logging.getLogger("zkconsumer.zk")

AT_ONCE: Final = 256
"""Number of scripts that ``run_all`` runs at the same time."""

_ZNODES: Final = 8_000
"""Number of znodes that the scripts in progress may read and write before later scripts wait."""

_HASTY_CLOSE_SECONDS: Final = 1.0
"""Seconds for closing the session after an error or an interruption."""

T = TypeVar("T")


def refusal(refused: Refused) -> ZooKeeperError:
    """Return the error about a refused operation; it names the znode and the reason."""
    if refused.detail:
        return ZooKeeperError(refused.detail)
    path = ascii(refused.path)[1:-1]  # a stranger may have named the znode
    return ZooKeeperError(f"{path}: ZooKeeper refused the operation")


def or_refusal(script: Script[T]) -> Script[T | ZooKeeperError]:
    """Run a script. Return its result, or the error if ZooKeeper refuses an operation.

    So one of several parallel scripts may fail without ending the others.
    """
    try:
        return (yield from script)
    except Refused as refused:
        if refused.code is Code.AUTH_REQUIRED:
            raise  # nothing else would be allowed either
        return refusal(refused)


_Read = GetMany | GetChildren
_Answers = list[tuple[int, Reply]]
"""Number of the script, and the reply to its operation."""
_Put = Callable[[_Answers], object]


def _is_loss(reply: Reply | None) -> bool:
    return isinstance(reply, Failed) and reply.code is Code.CONNECTION_LOSS


def _is_plain_read(op: ZkOp) -> TypeGuard[_Read]:
    """Whether an operation may be part of another ``GetMany``."""
    if isinstance(op, GetChildren):
        return not op.watch and not op.counted
    return isinstance(op, GetMany) and not op.watch


def _is_of_children(read: _Read) -> bool:
    return isinstance(read, GetChildren) or read.children


def _paths(read: _Read) -> tuple[str, ...]:
    return read.paths if isinstance(read, GetMany) else (read.path,)


def _answer_to(read: _Read, values: Iterator[Any]) -> Reply:
    """Return the reply to a read from the values of the ``GetMany`` that contained it."""
    if isinstance(read, GetMany):
        return Ok(tuple(islice(values, len(read.paths))))
    names = next(values)
    return Failed(Code.NO_NODE) if names is None else Ok(names)


def _together(reads: Sequence[tuple[int, _Read]]) -> Iterator[list[tuple[int, _Read]]]:
    """Yield the reads that one request may contain: of the same kind, and of limited size."""
    for children, most in ((False, READ_BATCH), (True, LISTS)):
        some: list[tuple[int, _Read]] = []
        count = size = 0
        for number, read in reads:
            if _is_of_children(read) is children:
                paths = _paths(read)
                count += len(paths)
                size += sum(map(len, paths))
                if some and (count > most or size > PACKET_BYTES):
                    yield some
                    some, count, size = [], len(paths), sum(map(len, paths))
                some.append((number, read))
        if some:
            yield some


class _Known:
    """How often the session had been resumed before the oldest read of each script. See
    ``ZkPort.submit``."""

    def __init__(self, driver: ZkDriver) -> None:
        self._driver = driver
        self._resumed: dict[int, int] = {}
        self._multis: set[int] = set()
        """Scripts that wait for the answer to a ``Multi``."""

    def begins(self, number: int) -> None:
        """A script begins."""
        self._resumed[number] = self._driver.resumed

    def answered(self, number: int, reply: Reply | None) -> None:
        """A script gets an answer. After a ``Multi`` that was lost, it reads everything again."""
        if number in self._multis and _is_loss(reply):
            self.begins(number)
        self._multis.discard(number)

    def resumed(self, number: int, op: ZkOp) -> int:
        """Return the number for a script's next operation."""
        if isinstance(op, Multi):
            self._multis.add(number)
        return self._resumed[number]


class BlockingZk:
    """One session with ZooKeeper, opened by ``with``.

    Args:
        connect: ``host:port,host:port/chroot``, as in ``zookeeper.connect``.
        timeout: seconds for connecting, and for the answer to a request.
        security: how to encrypt and log in; None for neither.
        before_requests: called with the number of requests that are about to be sent; may wait.

    Raises ConfigError for a malformed ``connect``.
    """

    def __init__(
        self,
        connect: str,
        timeout: float = 30.0,
        security: SecurityKeys | None = None,
        before_requests: Callable[[int], object] | None = None,
    ) -> None:
        self._before_requests = before_requests
        try:
            self._hosts, chroot = split_connect(connect)
        except ValueError as error:
            raise ConfigError([f"zookeeper: {error}"]) from None
        self._timeout = timeout
        self._opened = threading.Event()
        self._inside = False
        """Whether the object is connected and not closing. The caller's thread."""
        self._fired: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Paths whose watches fired; ``None``: the connection was lost, and with it all watches."""
        self.losses = 0
        """Number of times that the connection was lost or restored. kazoo's thread."""
        self._away = False
        """Whether the lack of a connection was logged. kazoo's thread."""
        self._driver = ZkDriver(
            self._hosts,
            chroot,
            timeout,
            self._session_changed,
            lambda path, _zxid: self._fired.put(path),
            security=ZkSecurity(security),
        )

    def __enter__(self) -> Self:
        """Connect. Raises ZkUnavailableError, ChrootMissingError."""
        self._driver.start(self._timeout)
        self._inside = True
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        self._inside = False
        if error is None:
            self._driver.close()
        else:  # ZooKeeper may be what failed, and Ctrl-C is not to wait for it
            self._driver.close(_HASTY_CLOSE_SECONDS)

    def _session_changed(self, event: SessionEvent, _session_id: int) -> None:
        """Handle a change of the session. kazoo's connection thread."""
        if event is not SessionEvent.OPENED:
            self._fired.put(None)
            self.losses += 1
        if event is SessionEvent.LOST:
            self._opened.clear()
        elif event is SessionEvent.OPENED:
            self._opened.set()
        if event is SessionEvent.SUSPENDED and self._inside:
            self._away = True
            logger.warning("no connection to ZooKeeper at %s: trying again", self._hosts)
        elif event in (SessionEvent.OPENED, SessionEvent.RESUMED) and self._away:
            self._away = False
            logger.warning("connected to ZooKeeper at %s again", self._hosts)

    @property
    def identities(self) -> tuple[tuple[str, str | None], ...]:
        """Return scheme and id of this client's identities in ZooKeeper, as in ACLs."""
        return self._driver.identities

    @property
    def session_timeout(self) -> float:
        """Seconds for which ZooKeeper keeps a silent session."""
        return self._driver.session_timeout

    def fired(self) -> set[str] | None:
        """Return the paths whose watches have fired since the last call.

        ``None``: the connection was lost in the meantime, so other watches may have been lost.
        """
        paths: set[str | None] = set()
        with suppress(queue.Empty):
            while True:
                paths.add(self._fired.get_nowait())
        known = {path for path in paths if path is not None}
        return known if len(known) == len(paths) else None

    def sync(self) -> None:
        """Make later reads see every write that was completed before this call, on any server.

        Raises ZkUnavailableError.
        """
        self._driver.sync(self._timeout)

    def do(self, op: ZkOp) -> Reply:
        """Carry out one operation. A failure is returned as ``Failed``, not raised. Raises the
        other errors of ``run``."""
        return self.run(attempt(op))

    def run(self, script: Script[T]) -> T:
        """Carry out a script and return its result.

        Raises:
            ZkUnavailableError: ZooKeeper stayed silent for ``timeout`` seconds.
            SessionExpiredError: the session ended in the meantime.
            ZooKeeperError: ZooKeeper refused an operation, for example for lack of permission.
        """
        (result,) = self.run_all([script])
        return result

    def run_all(self, scripts: Iterable[Script[T]]) -> Iterator[T]:
        """Run independent scripts, several at a time. Yield their results in the given order.

        Raises the errors of ``run``, and then abandons the unfinished scripts.

        ZooKeeper may be restored from a backup while there is no connection, and assign the same
        versions again. So a ``Multi`` is not sent if the session was resumed since the script
        began, or since its last ``Multi`` was answered with ``CONNECTION_LOSS``. It gets this
        answer instead, after which the script must read everything again.
        """
        mailbox: queue.SimpleQueue[_Answers] = queue.SimpleQueue()
        if not self._opened.wait(self._timeout):  # the one before has ended
            raise self._silent()
        session = self._driver.session_id
        silence = 0.0  # seconds waited since the last answer; a lost connection is not one
        waiting = enumerate(scripts)
        active: dict[int, Script[T]] = {}
        znodes: Counter[int] = Counter()  # of each active script: how many it reads and writes
        reads: dict[int, _Read] = {}  # of active scripts, not yet sent
        known = _Known(self._driver)
        done: dict[int, T] = {}
        yielded = 0

        def go_on(number: int, reply: Reply | None) -> None:
            script = active[number]
            known.answered(number, reply)
            try:
                op = next(script) if reply is None else script.send(reply)
            except StopIteration as end:
                del active[number], znodes[number]
                done[number] = end.value
                return
            if (at_once := self._known(op)) is not None:
                mailbox.put([(number, at_once)])
                return
            size = len(op.paths) if isinstance(op, GetMany) else 1
            if self._before_requests is not None:
                self._before_requests(size)
            znodes[number] += len(op.ops) if isinstance(op, Multi) else size
            if _is_plain_read(op):
                reads[number] = op
            else:
                self._submit(number, op, session, mailbox.put, known.resumed(number, op))

        def allowed() -> Iterator[tuple[int, _Read]]:
            """Return the reads of the scripts that started first. The first script never waits."""
            total = 0
            for number in active:
                if total >= _ZNODES:
                    return
                total += znodes[number]
                if number in reads:
                    yield number, reads.pop(number)

        try:
            while True:
                while (
                    len(active) < AT_ONCE
                    and znodes.total() < _ZNODES
                    and (following := next(waiting, None)) is not None
                ):
                    active[following[0]] = following[1]
                    known.begins(following[0])
                    go_on(following[0], None)
                while yielded in done:
                    yield done.pop(yielded)
                    yielded += 1
                if active:
                    if mailbox.empty():
                        for some in _together([*allowed()]):
                            self._read(some, session, mailbox.put)
                    began = time.monotonic()
                    answers = mailbox.get(timeout=max(0.0, self._timeout - silence))
                    if _is_loss(answers[0][1]):
                        silence += time.monotonic() - began
                    else:
                        silence = 0.0
                    for number, reply in answers:
                        go_on(number, reply)
                elif not done:
                    return
        except queue.Empty:
            raise self._silent() from None
        except SessionGone:
            raise SessionExpiredError(
                f"the session with ZooKeeper at {self._hosts} ended before the command finished: "
                "run the command again"
            ) from None
        except Refused as refused:
            raise refusal(refused) from None
        finally:
            for script in active.values():
                script.close()

    def _submit(
        self, number: int, op: ZkOp, session: int, put: _Put, resumed: int | None = None
    ) -> None:
        self._driver.submit(op, session, lambda reply: put([(number, reply)]), resumed)

    def _read(self, some: Sequence[tuple[int, _Read]], session: int, put: _Put) -> None:
        """Send reads of several scripts as one request, and pass each script its own answer."""

        def alone() -> None:
            for number, read in some:
                self._submit(number, read, session, put)

        def split(reply: Reply) -> None:
            """Pass the answer's parts on. kazoo's thread."""
            if isinstance(reply, Failed) and reply.index is not None:
                alone()  # ZooKeeper refuses one of them, which concerns its script only
            elif isinstance(reply, Failed):
                put([(number, reply) for number, _ in some])
            else:
                assert isinstance(reply.value, tuple)
                values = iter(reply.value)
                put([(number, _answer_to(read, values)) for number, read in some])

        if len(some) == 1:
            alone()
        else:
            paths = tuple(path for _, read in some for path in _paths(read))
            children = _is_of_children(some[0][1])
            self._driver.submit(GetMany(paths, children=children), session, split)

    def _known(self, op: ZkOp) -> Reply | None:
        """Return the reply to an operation that needs no request to ZooKeeper."""
        return None

    def _silent(self) -> ZkUnavailableError:
        return ZkUnavailableError(
            f"ZooKeeper at {self._hosts} did not answer for {self._timeout:g} s: check that its "
            "servers are up; --timeout, or zookeeper.connection.timeout.ms, sets how long to wait"
        )
