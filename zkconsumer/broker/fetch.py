"""The fetch request, encoded and decoded by hand: it is the one hot path to a broker.

Stateless; runs on fetcher threads. Versions used: 0 (0.8.2, 0.9), 2 (0.10.0), 3 (0.10.1), 4 (0.11
to 2.0, message format 2) and 10 (2.1 and later, zstd). From version 3 on a broker sends a first
message whole even when it is larger than asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from zkconsumer.broker.api_versions import FETCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.types import Got, Want

VERSIONS: Final = (10, 4, 3, 2, 0)


_HEAD: Final = Struct(">iii")
_INT: Final = Struct(">i")
_NO_SESSION: Final = Struct(">ii").pack(0, -1)
_ASK_OLD: Final = Struct(">iqi")
_ASK_NEW: Final = Struct(">iiqqi")
_PART: Final = Struct(">ihq")
_LENGTH: Final = Struct(">h")


class BrokerFetcher:
    """Fetches record bytes of many partitions from one broker."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection

    def fetch(
        self, wanted: Sequence[Want], max_wait_ms: int, min_bytes: int, max_bytes: int
    ) -> list[Got]:
        """Ask for the partitions of ``wanted`` in this order, which is the broker's preference.

        The broker waits up to ``max_wait_ms`` until it has ``min_bytes``. ``max_bytes`` limits the
        whole answer where the broker can (0.10.1 and later).

        Raises:
            BrokerUnavailableError: no connection, or it broke; a retry may help.
            BrokerError: the answer cannot be read, or the broker refused the request as a whole.
        """
        version = self._connection.version(FETCH, *VERSIONS)
        body = _encode(version, wanted, max_wait_ms, min_bytes, max_bytes)
        answer = self._connection.exchange(FETCH, version, body)
        try:
            with mapped_errors(self._connection.endpoint):
                code, got = _decode(version, answer)
            if code:
                raise error_from_code(code, "fetch")
        except BaseException:
            self._connection.close()
            raise
        return got


def _encode(
    version: int, wanted: Sequence[Want], max_wait_ms: int, min_bytes: int, max_bytes: int
) -> bytes:
    out = [_HEAD.pack(-1, max_wait_ms, min_bytes)]
    if version >= 3:
        out.append(_INT.pack(max_bytes))
    if version >= 4:
        out.append(b"\0")  # read uncommitted
    if version >= 7:
        out.append(_NO_SESSION)
    count_at = len(out)
    out.append(b"")
    runs = run_at = run = 0
    topic: str | None = None
    for name, partition, offset, limit in wanted:
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
            _ASK_NEW.pack(partition, -1, offset, -1, limit)
            if version >= 9
            else _ASK_OLD.pack(partition, offset, limit)
        )
    if topic is not None:
        out[run_at] = _INT.pack(run)
    out[count_at] = _INT.pack(runs)
    if version >= 7:
        out.append(b"\0\0\0\0")  # no forgotten topics
    return b"".join(out)


def _decode(version: int, answer: memoryview) -> tuple[int, list[Got]]:
    """Return the error of the whole answer and its partitions.

    Raises ``struct.error``, ``ValueError`` when the bytes make no sense.
    """
    pos = 4 if version >= 1 else 0
    code = 0
    if version >= 7:
        code = _LENGTH.unpack_from(answer, pos)[0]
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
            if version >= 4:
                pos += 16 if version >= 5 else 8
                aborted = read_int(answer, pos)[0]
                pos += 4 + 16 * max(aborted, 0)
            size = read_int(answer, pos)[0]
            pos += 4
            data = b""
            if size > 0:
                # The one copy of the record bytes: it lets go of the rest of the answer, and
                # bytes are what the decoder can cut quickest.
                data = bytes(answer[pos : pos + size])
                if len(data) != size:
                    raise ValueError("record bytes are cut off")
                pos += size
            failure = error_from_code(error, f"fetching {topic}-{partition}") if error else None
            got.append(Got(topic, partition, failure, high_watermark, data))
    return code, got
