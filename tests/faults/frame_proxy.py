"""A proxy on a loopback port that damages frames of ZooKeeper or Kafka, with one random fault each.

A frame is a length of four bytes and as many bytes of content. Each direction of a connection has a
thread that forwards frames. It uses one random generator, so a seed gives the same kinds of faults
in the same proportions. The moments differ, because the other side is a real server.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from enum import Enum

from tests.support.tcp_proxy import Direction, TcpProxy


class Fault(Enum):
    """The faults of a frame. The number is the fault's weight."""

    DROP_ANSWER = "an answer is lost", 10
    DROP_REQUEST = "a request is lost", 10
    DELAY = "a frame is up to 0.3 s late", 15
    DUPLICATE = "an answer arrives twice", 10
    TRUNCATE = "the connection ends within an answer", 10
    REORDER = "an answer arrives before the one in front of it", 10
    CLOSE_BEFORE = "the connection ends instead of a request", 10
    CLOSE_AFTER = "the connection ends instead of the answer to a request", 10
    SILENT_REQUESTS = "the server receives nothing any more", 2
    SILENT_ANSWERS = "the client receives nothing any more", 2
    SILENT_BOTH = "nothing passes any more", 2
    CORRUPT = "bytes of an answer are wrong", 10

    def __init__(self, meaning: str, weight: int) -> None:
        self.meaning = meaning
        self.weight = weight


REQUESTS = frozenset(
    {Fault.DROP_REQUEST, Fault.DELAY, Fault.CLOSE_BEFORE, Fault.CLOSE_AFTER}
    | {Fault.SILENT_REQUESTS, Fault.SILENT_BOTH}
)
"""Faults of a request. The other faults, and delays, affect a response."""


class _Ended(Exception):
    """The connection must be closed."""


class Link:
    """The state of one client's connection."""

    def __init__(self) -> None:
        self.muted: set[bool] = set()
        """Directions that forward nothing. ``True`` is the direction of requests."""
        self.close_at_answer = False
        self.held: bytes | None = None


class FrameProxy(TcpProxy):
    """Forwards connections to ``target_port``. A frame has a fault with probability ``rate``.

    ``kinds`` lists the possible faults, and ``delivered`` counts those that happened. The rate may
    be changed. ``lengths``: a corrupt frame may have a wrong length.
    """

    def __init__(
        self,
        target_port: int,
        seed: int,
        rate: float,
        kinds: frozenset[Fault],
        *,
        lengths: bool = False,
    ) -> None:
        self.rate = rate
        self.delivered: Counter[Fault] = Counter()
        self._first = 0 if lengths else 4
        """The first byte of a frame that may be corrupt."""
        self._rng = random.Random(seed)
        self._kinds = sorted(kinds, key=lambda kind: kind.name)
        self._lock = threading.Lock()
        self._links: dict[frozenset[socket.socket], Link] = {}
        """By both ends."""
        super().__init__(target_port)

    def _pass_on(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        ends = frozenset((source, sink))
        with self._lock:
            link = self._links.setdefault(ends, Link())
        with contextlib.suppress(OSError, _Ended):
            while frame := _frame(source):
                self._frame(link, direction == "requests", frame, sink)
        self._end(source, sink)
        with self._lock:
            self._links.pop(ends, None)

    def _draw(self, requests: bool) -> Fault | None:
        with self._lock:
            if self._rng.random() >= self.rate:
                return None
            kinds = [
                kind
                for kind in self._kinds
                if kind is Fault.DELAY or (kind in REQUESTS) is requests
            ]
            if not kinds:
                return None
            (kind,) = self._rng.choices(kinds, [kind.weight for kind in kinds])
            self.delivered[kind] += 1
            return kind

    def _frame(self, link: Link, requests: bool, frame: bytes, sink: socket.socket) -> None:
        """Forward one frame, or apply the fault that was drawn. Raises _Ended, OSError."""
        if requests in link.muted:
            return
        if not requests and link.close_at_answer:
            raise _Ended
        match self._draw(requests):
            case Fault.DROP_ANSWER | Fault.DROP_REQUEST:
                return
            case Fault.DELAY:
                time.sleep(self._rng.random() * 0.3)
            case Fault.DUPLICATE:
                sink.sendall(frame)
            case Fault.TRUNCATE:
                sink.sendall(frame[: self._rng.randrange(len(frame))])
                raise _Ended
            case Fault.REORDER if link.held is None:
                link.held = frame
                return
            case Fault.CLOSE_BEFORE:
                raise _Ended
            case Fault.CLOSE_AFTER:
                link.close_at_answer = True
            case Fault.SILENT_REQUESTS:
                link.muted = {True}
                return
            case Fault.SILENT_ANSWERS:
                link.muted = {False}
                return
            case Fault.SILENT_BOTH:
                link.muted = {True, False}
                return
            case Fault.CORRUPT:
                changed = bytearray(frame)
                for _ in range(self._rng.randint(1, 3)):
                    # ZooKeeper's clients wait for the rest: a case of silence, as above.
                    at = self._rng.randrange(self._first, len(frame))
                    changed[at] ^= self._rng.randint(1, 255)
                frame = bytes(changed)
        sink.sendall(frame)
        if not requests and link.held is not None:
            held, link.held = link.held, None
            sink.sendall(held)


def _frame(source: socket.socket) -> bytes | None:
    """The next frame with its length, or ``None`` at the end."""
    head = _exactly(source, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">i", head)
    body = _exactly(source, size)
    return None if body is None else head + body


def _exactly(source: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)
