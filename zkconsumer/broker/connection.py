"""A blocking connection to one broker. Errors of libraries are mapped here.

Owns framing, correlation ids and timeouts. A connection belongs to one thread, which sends a
request and waits for its answer; any other thread may call ``abort`` to wake it.

The socket is blocking with kernel timeouts (``SO_RCVTIMEO``), and whole frames are received with
``MSG_WAITALL``. So a receiving thread needs the interpreter lock once per frame, not once per
segment, which matters while a consuming thread is decoding. With TLS, Python's own timeouts are
used, and each TLS record (16 KiB) is received separately.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct, error as StructError
from typing import Any, Final

from zkconsumer.broker.api_versions import (
    API_VERSIONS,
    FIND_COORDINATOR,
    LEGACY_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    supported_versions,
)
from zkconsumer.broker.messages import ApiKey, ApiMessage, KafkaError
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.broker.types import TokenRefusedError
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
_RESET: Final = Struct("@ii").pack(1, 0)
_BEFORE_LOGIN: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE})
_FIRST_PIECE: Final = 64 * 1024 * 1024
"""Largest size in bytes of a frame that is allocated at once. A larger length may be false."""

_CODES: Final[Mapping[int, type[BrokerError]]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: LeaderUnavailableError,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderUnavailableError,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: LeaderUnavailableError,
    ErrorCode.BROKER_NOT_AVAILABLE: BrokerUnavailableError,
    ErrorCode.REPLICA_NOT_AVAILABLE: LeaderUnavailableError,
    ErrorCode.FENCED_LEADER_EPOCH: LeaderUnavailableError,
    ErrorCode.UNKNOWN_LEADER_EPOCH: LeaderUnavailableError,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedBrokerError,
}


def error_from_code(code: int, what: str) -> BrokerError:
    """Return the exception for a protocol error code other than 0. ``what`` names what failed."""
    return _CODES.get(code, BrokerError)(f"{what}: {name_of(code)}")


@contextmanager
def mapped_errors(endpoint: BrokerEndpoint) -> Iterator[None]:
    """Convert socket, kafka-python and decoding errors to this library's errors.

    Raises:
        BrokerUnavailableError: any error of the operating system, including a timeout.
        BrokerError: the broker's bytes cannot be decoded, or kafka-python cannot encode the
            request.
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
        raise BrokerError(f"{where} sent an unreadable answer: {exc}") from exc


class BrokerConnection:
    """A connection that is opened on first use, and reopened after ``close``.

    Args:
        endpoint: the broker's address.
        client_id: sent with every request.
        timeout: seconds for connecting, and for a complete answer.
        receive_buffer_bytes: ``SO_RCVBUF``; 0 or less leaves the system's default.
        security: how to encrypt and to log in; None is PLAINTEXT.
        before_request: called before each request; may wait.
    """

    def __init__(
        self,
        endpoint: BrokerEndpoint,
        client_id: str,
        timeout: float,
        receive_buffer_bytes: int,
        security: KafkaSecurity | None = None,
        before_request: Callable[[], object] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._opening_timeout = timeout
        self._before_request = before_request
        self._turns, self._is_ready = 0, False
        self._addresses = deque([(endpoint.host, endpoint.port), *endpoint.others])
        """The listeners, the preferred one first."""
        self.security = KafkaSecurity() if security is None else security
        self._client_id = client_id.encode()
        self.timeout = timeout
        self._receive_buffer = receive_buffer_bytes
        self._socket: socket.socket | None = None
        self._versions: Mapping[int, range] = LEGACY_VERSIONS
        self._correlation = 0
        self._proven = False
        """Whether the broker has accepted this client. This is known after the login, or after
        the first answer that needs one."""
        self._renew_at: float | None = None
        """When the broker will end the SASL session (``time.monotonic``)."""
        self._aborted = False

    @property
    def is_open(self) -> bool:
        """Whether there is a socket; the broker may have closed its end."""
        return self._socket is not None

    def limit_opening(self, seconds: float) -> None:
        """From now on, limit connecting, and then the request for the API versions, to ``seconds``
        each. A shorter ``timeout`` still applies."""
        self._opening_timeout = min(seconds, self.timeout)

    def open(self) -> None:
        """Connect and request the broker's API versions. Does nothing if open.

        Raises:
            BrokerUnavailableError: no connection, or the broker closed it immediately.
            BrokerError: the answer is unreadable.
            AuthenticationError: the broker and this client do not accept each other, and no broker
                has accepted this client yet.
        """
        if self._socket is not None:
            if not self._outlived:
                return
            self.close()
        self._open()

    def _open(self, again: bool = True) -> None:
        with mapped_errors(self.endpoint):
            self._connect()
        try:
            self._versions = self._asked_versions()
            if self.security.sasl:
                self._renew_at = self.security.log_in(self, again)
                self._accepted()
        except TokenRefusedError:
            self.close()
            self.security.wait_for_token()
            self._open(again=False)
        except BaseException:
            self.close()
            raise

    def _asked_versions(self) -> Mapping[int, range]:
        """Request the API versions. May connect again."""
        # Brokers 0.8.2 close the connection when they do not know the request. Others may close it
        # for a reason of the moment, so one is not enough. Brokers 0.9 are silent.
        for _ in range(2):
            if self._is_silent:
                break
            try:
                with mapped_errors(self.endpoint):
                    versions = supported_versions(self)
            except BrokerUnavailableError as error:
                closed = isinstance(error.__cause__, ConnectionError) and self.security.may_be_old
                if not (closed or self._is_silent):
                    raise  # a broker that hangs need not be old
            else:
                return LEGACY_VERSIONS if versions is None else versions
            self.close()
            with mapped_errors(self.endpoint):
                self._connect()
        return LEGACY_VERSIONS

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() < self.security.silent_until.get(self._addresses[0], 0.0)

    def _accepted(self) -> None:
        """Record that the broker has accepted this client."""
        self._proven = True
        self.security.accepted(self.endpoint)

    def highest(self, api_key: int) -> int:
        """Return the highest version of a request that the broker supports, or -1."""
        return self._versions.get(api_key, range(0)).stop - 1

    def version(self, api_key: int, *wanted: int, needs: str = "") -> int:
        """Return the first of ``wanted`` that the broker supports. Opens the connection.

        Raises ``UnsupportedBrokerError`` if it supports none, and the errors of ``open``.
        ``needs``: the requirement, for the error's text.
        """
        self.open()
        known = self._versions.get(api_key, range(0))
        for version in wanted:
            if version in known:
                return version
        name = f"{ApiKey(api_key).name} (API key {api_key})"
        fault = f"does not support {name}"
        if known:
            least = " or ".join(map(str, sorted(wanted)))
            fault = (
                f"supports {name} in the versions {known.start} to {known.stop - 1}, but version "
                f"{least} is needed"
            )
        at = f"{self.endpoint.host}:{self.endpoint.port}"
        raise UnsupportedBrokerError(
            f"{needs and f'{needs}: '}broker {self.endpoint.broker_id} at {at} {fault}"
        )

    def ready(self, requests: int = 1) -> None:
        """Open the connection, and wait until ``requests`` requests can be sent without delay.

        The next request needs no new login, because this client ends a session earlier than the
        broker. Raises the errors of ``open``.
        """
        self.open()
        self._wait_for_turns(requests)
        while self._outlived:  # the wait was longer, and another login takes the turns
            self.open()
            self._wait_for_turns(requests)
        self._is_ready = True

    @property
    def _outlived(self) -> bool:
        """Whether the SASL session has expired, so that another login is needed."""
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    def _wait_for_turns(self, requests: int) -> None:
        while self._before_request is not None and self._turns < requests:
            self._before_request()
            self._turns += 1

    def exchange(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send one request, and return its answer. Raises the errors of ``exchange_all``."""
        (answer,) = self.exchange_all(api_key, version, [body])
        return answer

    def exchange_all(self, api_key: int, version: int, bodies: Sequence[bytes]) -> list[memoryview]:
        """Send requests with header version 1 at the same time, and return the bodies of their
        answers; brokers keep the order.

        After any error the connection is closed; the next call opens it again.

        Raises ``BrokerUnavailableError``, ``BrokerError``, and the errors of ``open``.
        """
        if not self._is_ready:
            self.open()
        self._wait_for_turns(len(bodies))
        self._turns, self._is_ready = 0, False
        sock = self._socket
        if sock is None:
            raise BrokerUnavailableError(
                f"the connection to {self.endpoint.host}:{self.endpoint.port} is closed"
            )
        client = self._client_id
        correlations: list[int] = []
        frames: list[bytes] = []
        for body in bodies:
            self._correlation = (self._correlation + 1) & 0x7FFFFFFF
            correlations.append(self._correlation)
            frames += (
                _INT.pack(10 + len(client) + len(body)),
                _HEADER.pack(api_key, version, self._correlation),
                len(client).to_bytes(2, "big"),
                client,
                body,
            )
        answers: list[memoryview] = []
        try:
            with mapped_errors(self.endpoint), self._explained(api_key):
                sock.sendall(b"".join(frames))
                if api_key == API_VERSIONS:
                    from zkconsumer.broker.probes import wait_for_versions

                    wait_for_versions(self, sock, self._opening_timeout)
                for correlation in correlations:
                    answer = self._receive(sock, time.monotonic() + self.timeout)
                    answered = _INT.unpack_from(answer)[0]
                    # Brokers 0.8.2 repeat no id when they cannot name a coordinator yet.
                    quirk = answered == 0 and api_key == FIND_COORDINATOR
                    if answered != correlation and not quirk:
                        raise ValueError("wrong correlation id")
                    if not self._proven and api_key not in _BEFORE_LOGIN:
                        self._accepted()
                    answers.append(answer[4:])
                return answers
        except BaseException:
            self.close()
            raise

    def exchange_bytes(self, data: bytes, answered: bool) -> bytes:
        """Send SASL bytes in the format of brokers before 1.0, preceded only by their length.
        Return the answer; empty if the broker sends none (``answered`` is false). Raises the errors
        of ``exchange``."""
        sock = self._socket
        assert sock is not None  # it is being opened
        with mapped_errors(self.endpoint):
            sock.sendall(_INT.pack(len(data)) + data)
            if not answered:
                return b""
            return bytes(self._receive(sock, time.monotonic() + self.timeout, smallest=0))

    def call(self, request: ApiMessage, response: type[ApiMessage], version: int) -> Any:
        """Send a message object of kafka-python. Return the decoded response object.

        Raises the errors of ``exchange``, and ``BrokerError`` for an unreadable answer.
        """
        (answer,) = self.send_all([request], version)
        return self.decode(response, answer, version)

    def send_all(self, requests: Sequence[ApiMessage], version: int) -> list[memoryview]:
        """Send message objects of one kind at the same time. Return their answers in the same
        order; ``decode`` decodes them.

        Raises the errors of ``call``. If it raises, some requests may have been carried out.
        """
        # Of the headers, only the tagged fields are added and removed here. Both are empty.
        head = b"\0" if requests[0].flexible_version_q(version) else b""
        with mapped_errors(self.endpoint):
            bodies = [head + request.encode(version=version) for request in requests]
        answers = self.exchange_all(requests[0].API_KEY, version, bodies)
        with mapped_errors(self.endpoint):
            if head and any(answer[0] != 0 for answer in answers):
                raise ValueError("the header has tagged fields")
        return [answer[len(head) :] for answer in answers]

    def decode(self, response: type[ApiMessage], answer: memoryview, version: int) -> Any:
        """Decode an answer with kafka-python. Raises ``BrokerError`` if it is unreadable."""
        with mapped_errors(self.endpoint):
            return response.decode(bytes(answer), version=version)

    def close(self) -> None:
        """Close the socket. The connection may be used again."""
        sock, self._socket = self._socket, None
        self._renew_at = None
        if sock is not None:
            sock.close()

    def abort(self, *, discard: bool = False) -> None:
        """Wake the thread that uses the connection, and refuse all further use. Any thread.

        With ``discard`` the system drops unsent data. Without it, the system may try to send it
        for minutes, even after ``close``.
        """
        self._aborted = True
        sock = self._socket
        if sock is not None:
            try:
                if discard:  # ``close`` resets the connection
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # Not SSLSocket's own, which would let the other thread continue without TLS.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def _connect(self) -> None:
        if self._aborted:
            raise OSError("this client closed the connection")
        self.security.check_broker(self.endpoint)
        self._proven = False
        sock = self._dial()
        try:
            if self._receive_buffer > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self.security.context
            if context is not None:
                from zkconsumer.broker.probes import encrypted

                sock = encrypted(self, sock, context)  # with Python's timeout
            else:
                sock.settimeout(None)
                seconds = int(self.timeout)
                timeval = Struct("@ll").pack(seconds, int((self.timeout - seconds) * 1e6) or 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        except BaseException:
            sock.close()
            raise
        self._socket = sock
        if self._aborted:  # by another thread since the first look
            self.close()
            raise OSError("this client closed the connection")

    def _dial(self) -> socket.socket:
        """Connect to the first listener that accepts a connection, and prefer it from then on."""
        from zkconsumer.broker.dialing import dial  # not before a broker is asked

        sock, number = dial(self._addresses, self._opening_timeout, lambda: self._aborted)
        self._addresses.rotate(-number)
        sock.settimeout(self.timeout)
        return sock

    @property
    def here(self) -> BrokerEndpoint:
        """The address of the broker's listener that this connection uses."""
        host, port = self._addresses[0]
        return BrokerEndpoint(self.endpoint.broker_id, host, port)

    @contextmanager
    def _explained(self, api_key: int) -> Iterator[None]:
        """Return the error of a connection that ended, after a check for missing TLS or SASL."""
        try:
            yield
        except ssl.SSLError as error:
            if not self._proven:  # otherwise the broker has accepted this client
                self.security.tls_failed(self.endpoint, error)
            raise
        except ConnectionError:
            known = self.security.sasl or SASL_HANDSHAKE not in self._versions
            first = not self._proven and api_key not in _BEFORE_LOGIN
            if first and not known and not self._aborted:
                from zkconsumer.broker.probes import look_for_sasl

                look_for_sasl(self)
            raise

    def _receive(self, sock: socket.socket, until: float, smallest: int = 4) -> memoryview:
        head = bytearray(4)
        _fill(sock, memoryview(head), until)
        plaintext = self.security.context is None and not self._proven
        if head[:2] == b"\x15\x03" and plaintext:
            self.security.refuse(
                self.endpoint,
                f"this listener speaks TLS, but security.protocol={self.security.protocol}: set "
                "SSL or SASL_SSL",
            )
        size = _INT.unpack(head)[0]
        if size < smallest:
            raise ValueError(f"its length is {size} bytes")
        frame = bytearray(min(size, _FIRST_PIECE))
        _fill(sock, memoryview(frame), until)
        while len(frame) < size:
            piece = bytearray(min(size - len(frame), _FIRST_PIECE))
            _fill(sock, memoryview(piece), until)
            frame += piece
        return memoryview(frame)


def _fill(sock: socket.socket, room: memoryview, until: float) -> None:
    """Receive until ``room`` is full.

    Raises ``OSError`` when the broker closes the connection first, or the time ``until``
    (``time.monotonic``) has passed. The socket's timeout begins again with each piece that arrives.
    """
    flags = 0 if isinstance(sock, ssl.SSLSocket) else socket.MSG_WAITALL
    while room:
        got = sock.recv_into(room, len(room), flags)
        if not got:
            raise ConnectionResetError("the broker closed the connection")
        room = room[got:]
        if room and time.monotonic() > until:
            raise TimeoutError
