"""One blocking connection to one broker, and the place where foreign errors become ours.

Owns framing, correlation ids and timeouts. A connection belongs to one thread, which sends a
request and waits for its answer; any other thread may call ``abort`` to wake it.

The socket is a blocking one with kernel timeouts (``SO_RCVTIMEO``) and whole frames are received
with ``MSG_WAITALL``: a thread that receives needs the interpreter lock once for each frame and not
once for each segment, which matters while a consuming thread is busy decoding.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import Struct, error as StructError
from typing import Any, Final

from zkconsumer.broker.api_versions import (
    FIND_COORDINATOR,
    LEGACY_VERSIONS,
    supported_versions,
)
from zkconsumer.broker.messages import ApiMessage, KafkaError
from zkconsumer.core.common.error_codes import ErrorCode, name_of
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    LeaderUnavailableError,
    OffsetOutOfRangeError,
    UnsupportedBrokerError,
)

_HEADER: Final = Struct(">hhi")
_INT: Final = Struct(">i")
_FIRST_PIECE: Final = 64 * 1024 * 1024
"""Larger frames are not allocated at once: their length may be a lie."""

_CODES: Final[Mapping[int, type[BrokerError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: LeaderUnavailableError,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderUnavailableError,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: LeaderUnavailableError,
    ErrorCode.BROKER_NOT_AVAILABLE: BrokerUnavailableError,
    ErrorCode.REPLICA_NOT_AVAILABLE: LeaderUnavailableError,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedBrokerError,
}


def error_from_code(code: int, what: str) -> BrokerError:
    """Return our error for a protocol error code that is not 0; ``what`` names its subject."""
    return _CODES.get(code, BrokerError)(f"{what}: {name_of(code)}")


@contextmanager
def mapped_errors(endpoint: BrokerEndpoint) -> Iterator[None]:
    """Map errors of sockets, of kafka-python and of decoding to ours; the only place that does.

    Raises:
        BrokerUnavailableError: anything the operating system reports, also a timeout.
        BrokerError: the broker's bytes make no sense, or kafka-python cannot encode the request.
    """
    where = f"broker {endpoint.broker_id} at {endpoint.host}:{endpoint.port}"
    try:
        yield
    except (TimeoutError, BlockingIOError) as exc:
        raise BrokerUnavailableError(f"{where} did not answer in time") from exc
    except OSError as exc:
        raise BrokerUnavailableError(f"{where}: {exc.strerror or exc}") from exc
    except KafkaError as exc:
        raise BrokerError(f"{where}: {exc}") from exc
    except (StructError, ValueError, IndexError, TypeError, AttributeError, MemoryError) as exc:
        raise BrokerError(f"{where} sent an answer that cannot be read: {exc}") from exc


class BrokerConnection:
    """A connection that is opened on first use and opened again after ``close``.

    Args:
        endpoint: where the broker listens.
        client_id: sent with every request.
        timeout: seconds for connecting, and for an answer to arrive whole.
        receive_buffer_bytes: ``SO_RCVBUF``; 0 or less leaves the system's default.
    """

    def __init__(
        self, endpoint: BrokerEndpoint, client_id: str, timeout: float, receive_buffer_bytes: int
    ) -> None:
        self.endpoint = endpoint
        self._client_id = client_id.encode()
        self._timeout = timeout
        self._receive_buffer = receive_buffer_bytes
        self._socket: socket.socket | None = None
        self._versions: Mapping[int, range] = LEGACY_VERSIONS
        self._correlation = 0
        self._aborted = False

    @property
    def is_open(self) -> bool:
        """Whether there is a socket; the broker may have closed its end."""
        return self._socket is not None

    def open(self) -> None:
        """Connect and learn the broker's API versions; does nothing when open.

        Raises:
            BrokerUnavailableError: no connection, or the broker closed it at once.
            BrokerError: the answer cannot be read.
        """
        if self._socket is not None:
            return
        # Brokers before 0.10 close the connection when they do not know the request. Others may
        # close it for a reason of the moment, so one is not enough.
        for _ in range(2):
            with mapped_errors(self.endpoint):
                self._connect()
            try:
                with mapped_errors(self.endpoint):
                    versions = supported_versions(self)
            except BrokerUnavailableError as error:
                self.close()
                if not isinstance(error.__cause__, ConnectionError):
                    raise  # it hangs, which says nothing of its age
            except BrokerError:
                self.close()
                raise
            else:
                self._versions = LEGACY_VERSIONS if versions is None else versions
                return
        with mapped_errors(self.endpoint):
            self._connect()
        self._versions = LEGACY_VERSIONS

    def version(self, api_key: int, *wanted: int) -> int:
        """Return the first of ``wanted`` that the broker knows; opens the connection.

        Raises ``UnsupportedBrokerError`` when it knows none, and what ``open`` raises.
        """
        self.open()
        known = self._versions.get(api_key, range(0))
        for version in wanted:
            if version in known:
                return version
        has = f"in the versions {known.start} to {known.stop - 1}" if known else "in no version"
        raise UnsupportedBrokerError(
            f"broker {self.endpoint.broker_id} at {self.endpoint.host}:{self.endpoint.port} "
            f"knows request {api_key} {has}, needed is {' or '.join(map(str, sorted(wanted)))}"
        )

    def exchange(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send one request with header version 1 and return the body of the answer.

        After any error the connection is closed; the next call opens it again.

        Raises ``BrokerUnavailableError``, ``BrokerError``, and what ``open`` raises.
        """
        self.open()
        return self.exchange_opened(api_key, version, body)

    def exchange_opened(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Do what ``exchange`` does on a connection that is open already."""
        sock = self._socket
        if sock is None:
            raise BrokerUnavailableError(
                f"the connection to {self.endpoint.host}:{self.endpoint.port} is closed"
            )
        self._correlation = correlation = (self._correlation + 1) & 0x7FFFFFFF
        client = self._client_id
        frame = b"".join(
            (
                _INT.pack(10 + len(client) + len(body)),
                _HEADER.pack(api_key, version, correlation),
                len(client).to_bytes(2, "big"),
                client,
                body,
            )
        )
        try:
            with mapped_errors(self.endpoint):
                sock.sendall(frame)
                answer = self._receive(sock)
                answered = _INT.unpack_from(answer)[0]
                # Brokers 0.8.2 repeat no id when they cannot name a coordinator yet.
                quirk = answered == 0 and api_key == FIND_COORDINATOR
                if answered != correlation and not quirk:
                    raise ValueError("wrong correlation id")
                return answer[4:]
        except BaseException:
            self.close()
            raise

    def call(self, request: ApiMessage, response: type[ApiMessage], version: int) -> Any:
        """Send a message object of kafka-python in a version without tagged fields.

        Returns the decoded response object. Raises what ``exchange`` raises.
        """
        with mapped_errors(self.endpoint):
            body = request.encode(version=version)
        answer = self.exchange(request.API_KEY, version, body)
        return self.decode(response, answer, version)

    def decode(self, response: type[ApiMessage], answer: memoryview, version: int) -> Any:
        """Decode an answer with kafka-python. Raises ``BrokerError`` when it cannot be read."""
        with mapped_errors(self.endpoint):
            return response.decode(bytes(answer), version=version)

    def close(self) -> None:
        """Close the socket. The connection may be used again."""
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()

    def abort(self) -> None:
        """Wake the thread that uses the connection and refuse all further use. Any thread."""
        self._aborted = True
        sock = self._socket
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def _connect(self) -> None:
        if self._aborted:
            raise OSError("the connection was given up")
        sock = socket.create_connection(
            (self.endpoint.host, self.endpoint.port), timeout=self._timeout
        )
        try:
            if self._receive_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(None)
            seconds = int(self._timeout)
            timeval = Struct("@ll").pack(seconds, int((self._timeout - seconds) * 1e6) or 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        if self._aborted:  # by another thread since the first look
            self.close()
            raise OSError("the connection was given up")

    def _receive(self, sock: socket.socket) -> memoryview:
        head = bytearray(4)
        _fill(sock, memoryview(head))
        size = _INT.unpack(head)[0]
        if size < 4:
            raise ValueError(f"a frame of {size} bytes")
        frame = bytearray(min(size, _FIRST_PIECE))
        _fill(sock, memoryview(frame))
        while len(frame) < size:
            piece = bytearray(min(size - len(frame), _FIRST_PIECE))
            _fill(sock, memoryview(piece))
            frame += piece
        return memoryview(frame)


def _fill(sock: socket.socket, room: memoryview) -> None:
    """Receive until ``room`` is full. Raises ``OSError`` when the broker closes before."""
    while room:
        got = sock.recv_into(room, len(room), socket.MSG_WAITALL)
        if not got:
            raise ConnectionResetError("the broker closed the connection")
        room = room[got:]
