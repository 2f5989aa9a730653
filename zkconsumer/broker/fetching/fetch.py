"""The fetch request, encoded and decoded by hand for speed.

Runs on fetcher threads. Versions used: 0 (0.8.2, 0.9), 2 (0.10.0), 3 (0.10.1), 4 (0.11 and 1.0,
message format 2), 7 (1.1 and 2.0, sessions) and 10 (2.1 and later, zstd). From version 3 on a
broker sends the first message completely even if it is larger than requested.

With a session (KIP-227) the broker remembers one fetcher's partitions: a request names only new,
moved and removed partitions, and an answer only those with changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final

from zkconsumer.broker.api_versions import FETCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.types import AbortedTransaction, Got, Want
from zkconsumer.core.common.error_codes import ErrorCode

VERSIONS: Final = (10, 7, 4, 3, 2, 0)
READ_COMMITTED: Final = "read_committed"
"""The value of ``isolation.level`` that needs version 4."""
NEEDS: Final = "isolation.level=read_committed needs Kafka 0.11 or later"
"""Text of the error for a broker that does not support that version."""

_HEAD: Final = Struct(">iii")
_INT: Final = Struct(">i")
_SESSION: Final = Struct(">ii")
_NO_SESSION: Final = (0, -1)
_ASK_OLD: Final = Struct(">iqi")
_ASK_MIDDLE: Final = Struct(">iqqi")
_ASK_NEW: Final = Struct(">iiqqi")
_PART: Final = Struct(">ihq")
_LENGTH: Final = Struct(">h")
_CODE: Final = Struct(">hi")
_STABLE: Final = Struct(">q")
_ABORTED: Final = Struct(">qq")


Partition = tuple[str, int]
"""Topic and number."""

_SESSION_ENDED: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)


class FetchSession:
    """The fetch session of one fetcher on one broker (Java 3.9 FetchSessionHandler)."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = 0
        """Epoch of the next request. 0 names all partitions, and requests a new session."""
        self._known: dict[Partition, Want] = {}
        """The broker's knowledge of the session."""
        self._ends: dict[Partition, tuple[int, int | None]] = {}
        """Last reported high watermark and last stable offset, which the broker does not repeat."""
        self._wanted: Sequence[Want] | None = None

    @property
    def head(self) -> tuple[int, int]:
        """Return session id and epoch for the next request."""
        return self._id, self._epoch

    def changes(self, wanted: Sequence[Want]) -> tuple[Sequence[Want], Collection[Partition]]:
        """Return the partitions that the next request names: new and moved, and removed
        partitions."""
        if self._epoch == 0:
            self._known = {want[:2]: want for want in wanted}
            self._ends = {}
            self._wanted = wanted
            return wanted, ()
        if wanted is self._wanted:
            return (), ()
        known = self._known
        changed = [want for want in wanted if known.get(want[:2]) != want]
        now = {want[:2]: want for want in wanted}
        gone = [key for key in known if key not in now]
        for key in gone:
            self._ends.pop(key, None)
        self._known, self._wanted = now, wanted
        return changed, gone

    def answered(self, session_id: int, got: list[Got], fresh: Collection[Partition]) -> list[Got]:
        """Record an answer and return it. Add partitions in ``fresh`` that the broker left out as
        unchanged, because the caller has not seen them yet."""
        self._id = session_id
        if not session_id:  # it has no room for another session
            self._epoch = 0
            return got
        self._epoch = self._epoch % 0x7FFFFFFF + 1
        for each in got:
            if each.error is None:
                self._ends[each[:2]] = each.high_watermark, each.last_stable_offset
        if fresh:
            there = {(each.topic, each.partition) for each in got}
            got += [
                Got(topic, partition, None, end[0], b"", end[1])
                for topic, partition in fresh
                if (topic, partition) not in there
                and (end := self._ends.get((topic, partition))) is not None
            ]
        return got

    def forget(self) -> None:
        """Begin another session: the next request names all partitions, and closes this session."""
        self._epoch = 0
        self._wanted = None


class BrokerFetcher:
    """Fetches record bytes of many partitions from one broker.

    Args:
        connection: to the broker.
        session: lets brokers since 1.1 remember the requested partitions.
        committed: answers end before the first open transaction, and list aborted transactions.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        session: FetchSession | None = None,
        committed: bool = False,
    ) -> None:
        self._connection, self._session, self._committed = connection, session, committed

    def fetch(
        self,
        wanted: Sequence[Want],
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        fresh: Collection[Partition] = (),
    ) -> list[Got]:
        """Request the partitions of ``wanted`` in this order, which the broker follows.

        The broker waits up to ``max_wait_ms`` until it has ``min_bytes``. ``max_bytes`` limits the
        whole answer if the broker supports that (0.10.1 and later). With a session, the answer
        leaves out partitions without changes, except those in ``fresh``. If nothing has changed,
        pass the same sequence object as last time.

        Raises:
            BrokerUnavailableError: no connection, or it was lost; a retry may help.
            BrokerError: the answer is unreadable, or the broker refused the whole request.
            UnsupportedBrokerError: the broker is too old or too new.
        """
        if self._committed:
            version = self._connection.version(FETCH, *VERSIONS[:3], needs=NEEDS)
        else:
            version = self._connection.version(FETCH, *VERSIONS)
        session = self._session if version >= 7 else None
        limits = max_wait_ms, min_bytes, max_bytes, self._committed
        if session is None:
            code, _, got = self._exchange(_encode(version, wanted, *limits), version)
        else:
            for _ in range(2):
                named, gone = session.changes(wanted)
                body = _encode(version, named, *limits, session.head, gone)
                try:
                    code, session_id, got = self._exchange(body, version)
                except BaseException:
                    session.forget()
                    raise
                if not code:
                    return session.answered(session_id, got, fresh)
                session.forget()
                if code not in _SESSION_ENDED:
                    break
        if code:
            self._connection.close()
            raise error_from_code(code, "fetch")
        return got

    def _exchange(self, body: bytes, version: int) -> tuple[int, int, list[Got]]:
        answer = self._connection.exchange(FETCH, version, body)
        try:
            with mapped_errors(self._connection.endpoint):
                return _decode(version, answer, self._committed)
        except BaseException:
            self._connection.close()
            raise


def _encode(
    version: int,
    wanted: Sequence[Want],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    committed: bool,
    session: tuple[int, int] = _NO_SESSION,
    gone: Collection[Partition] = (),
) -> bytes:
    out = [_HEAD.pack(-1, max_wait_ms, min_bytes)]
    if version >= 3:
        out.append(_INT.pack(max_bytes))
    if version >= 4:
        out.append(b"\1" if committed else b"\0")
    if version >= 7:
        out.append(_SESSION.pack(*session))
    count_at = len(out)
    out.append(b"")
    runs = run_at = run = 0
    topic: str | None = None
    for name, partition, offset, limit, epoch in wanted:
        if name != topic:  # a topic may come again: the order of partitions matters more
            if topic is not None:
                out[run_at] = _INT.pack(run)
            topic = name
            encoded = name.encode()
            out.append(_LENGTH.pack(len(encoded)) + encoded)
            run_at, run = len(out), 0
            out.append(b"")
            runs += 1
        run += 1
        out.append(
            _ASK_NEW.pack(partition, epoch, offset, -1, limit)
            if version >= 9
            else _ASK_MIDDLE.pack(partition, offset, -1, limit)
            if version >= 5
            else _ASK_OLD.pack(partition, offset, limit)
        )
    if topic is not None:
        out[run_at] = _INT.pack(run)
    out[count_at] = _INT.pack(runs)
    if version >= 7:
        by_topic: dict[str, list[int]] = {}
        for name, partition in gone:
            by_topic.setdefault(name, []).append(partition)
        out.append(_INT.pack(len(by_topic)))
        for name, partitions in by_topic.items():
            encoded = name.encode()
            out.append(_LENGTH.pack(len(encoded)) + encoded)
            out.append(Struct(f">i{len(partitions)}i").pack(len(partitions), *partitions))
    return b"".join(out)


def _decode(version: int, answer: memoryview, committed: bool) -> tuple[int, int, list[Got]]:
    """Return the error of the whole answer, the session's id and the partitions.

    Raises ``struct.error`` or ``ValueError`` if the bytes are invalid.
    """
    pos = 4 if version >= 1 else 0
    code = session_id = 0
    if version >= 7:
        code, session_id = _CODE.unpack_from(answer, pos)
        pos += 6
    read_int = _INT.unpack_from
    got: list[Got] = []
    topics = read_int(answer, pos)[0]
    pos += 4
    for _ in range(topics):
        size = _LENGTH.unpack_from(answer, pos)[0]
        pos += 2
        if size < 0:
            raise ValueError("a topic without a name")
        topic = str(answer[pos : pos + size], "utf-8")
        pos += size
        partitions = read_int(answer, pos)[0]
        pos += 4
        for _ in range(partitions):
            partition, error, high_watermark = _PART.unpack_from(answer, pos)
            pos += 14
            stable: int | None = None
            aborted: Sequence[AbortedTransaction] = ()
            if version >= 4:
                if committed and (offset := _STABLE.unpack_from(answer, pos)[0]) >= 0:
                    stable = offset
                pos += 16 if version >= 5 else 8
                size = 16 * max(read_int(answer, pos)[0], 0)
                pos += 4
                if size:
                    aborted = list(_ABORTED.iter_unpack(answer[pos : pos + size]))
                    pos += size
            size = read_int(answer, pos)[0]
            pos += 4
            data = b""
            if size > 0:
                # The one copy of the record bytes: it lets go of the rest of the answer, and
                # bytes are what the decoder can cut quickest.
                data = bytes(answer[pos : pos + size])
                if len(data) != size:
                    raise ValueError("record bytes are truncated")
                pos += size
            failure = error_from_code(error, f"fetching {topic}-{partition}") if error else None
            got.append(Got(topic, partition, failure, high_watermark, data, stable, aborted))
    return code, session_id, got
