"""Connections that break or hang on purpose.

A ``TcpProxy`` has one thread that accepts, two for each connection, and one more for each direction
of a connection that was ever delayed.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter, deque
from typing import Final, Literal, Self

from zkconsumer.servers.waiting import free_port

Direction = Literal["requests", "answers"]

_HOST: Final = "127.0.0.1"
_WATCH_EVENT: Final = struct.pack(">i", -1)  # where an answer has its request's number
_ABORT: Final = struct.pack("ii", 1, 0)  # linger on, for 0 s: close sends a reset


class TcpProxy:
    """A loopback port that passes connections on to ``target_port`` and can disturb them.

    To lose an answer and its connection, call ``stall("answers")``, send the request, and call
    ``cut()``. To lose only the answer, call ``drop("answers")`` and send the request. The proxy
    accepts connections from its construction to ``close``. It is a context manager too. ``host``
    is a loopback address.
    """

    def __init__(self, target_port: int, host: str = _HOST, port: int | None = None) -> None:
        self.target_port = target_port
        self.host, self.port = host, free_port() if port is None else port
        self._changed = threading.Condition()
        self._stalled: set[Direction] = set()  # guarded by _changed, like those below
        self._delays: dict[Direction, float] = {}
        self._drops: Counter[Direction] = Counter()
        self.held: Counter[Direction] = Counter()
        """How many pieces of data a stall has held back so far."""
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.allow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return f"{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """Number of connections that pass through at the moment."""
        with self._changed:
            return len(self._sockets) // 2

    def cut(self) -> None:
        """Break all connections. Bytes that a stall held back are lost."""
        with self._changed:
            broken, self._sockets = self._sockets, set()
            self._changed.notify_all()
        for end in broken:
            _abort(end)

    def refuse(self) -> None:
        """Refuse new connections. Existing ones continue (for an outage, ``cut`` them too)."""
        with self._changed:
            listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def allow(self) -> None:
        """Accept connections again after ``refuse``."""
        with self._changed:
            if self._listener is not None:
                return
            listener = socket.create_server((self.host, self.port))
            self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stall(self, *directions: Direction) -> None:
        """Hold back ``requests``, ``answers`` or (no argument) both; connections stay open."""
        with self._changed:
            self._stalled |= set(directions or ("requests", "answers"))

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Deliver each piece of data ``seconds`` after it has arrived, in the same order.

        Like a long cable: pieces that arrive together are delivered together.
        """
        with self._changed:
            for direction in directions or ("requests", "answers"):
                self._delays[direction] = seconds

    def drop(self, direction: Direction, count: int = 1) -> None:
        """Lose the next ``count`` requests or answers of any connection, which stays open.

        ZooKeeper's watch events are never lost, because they answer no request. A client could not
        notice the loss, and no network loses one event and keeps the connection.
        """
        with self._changed:
            self._drops[direction] = count

    @property
    def dropping(self) -> bool:
        """Whether some of the frames to drop have not arrived yet."""
        with self._changed:
            return self._drops.total() > 0

    def resume(self) -> None:
        """End stalls and delays, and deliver everything that was held back."""
        with self._changed:
            self._stalled.clear()
            self._delays.clear()
            self._drops.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse new connections and break the others."""
        self.refuse()
        self.cut()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((_HOST, self.target_port), timeout=5.0)
            except OSError:
                _abort(client)
                continue
            server.settimeout(None)
            for end in (client, server):  # or small pieces wait 40 ms for an acknowledgement
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._changed:
                if self._listener is not listener:  # refused while we were connecting
                    _abort(client)
                    _abort(server)
                    return
                self._sockets |= {client, server}
            pipes: tuple[tuple[socket.socket, socket.socket, Direction], ...] = (
                (client, server, "requests"),
                (server, client, "answers"),
            )
            for pipe in pipes:
                threading.Thread(target=self._pass_on, args=pipe, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        """Copy one direction until either end closes; then close both."""
        frames = _Frames(self._drops, direction)
        delayed: deque[tuple[float, bytes]] | None = None
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._changed:
                    if direction in self._stalled:
                        self.held[direction] += 1
                    if delayed is None and self._delays.get(direction):
                        delayed = deque()
                        args = (delayed, source, sink, direction, frames)
                        threading.Thread(target=self._send_later, args=args, daemon=True).start()
                    if delayed is not None:
                        delayed.append((time.monotonic(), data))
                        self._changed.notify_all()
                        continue
                    while direction in self._stalled and source in self._sockets:
                        self._changed.wait()
                    if source not in self._sockets:
                        break
                    data = frames.pass_on(data)
                sink.sendall(data)
        with self._changed:
            while delayed and source in self._sockets:
                self._changed.wait()
        self._end(source, sink)

    def _send_later(
        self,
        delayed: deque[tuple[float, bytes]],
        source: socket.socket,
        sink: socket.socket,
        direction: Direction,
        frames: _Frames,
    ) -> None:
        """Send the data received in one direction, each piece when its delay is over."""
        with contextlib.suppress(OSError):
            while True:
                with self._changed:
                    while source in self._sockets:
                        left = 0.0
                        if delayed:
                            wait = self._delays.get(direction, 0.0)
                            left = delayed[0][0] + wait - time.monotonic()
                        if not delayed or direction in self._stalled:
                            self._changed.wait()
                        elif left > 0:
                            self._changed.wait(left)
                        else:
                            break
                    if source not in self._sockets:
                        break
                    data = frames.pass_on(delayed[0][1])
                sink.sendall(data)
                with self._changed:
                    delayed.popleft()
                    self._changed.notify_all()
        self._end(source, sink)

    def _end(self, source: socket.socket, sink: socket.socket) -> None:
        with self._changed:
            self._sockets -= {source, sink}
            self._changed.notify_all()
        for end in (source, sink):
            with contextlib.suppress(OSError):  # another thread may block in recv
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class _Frames:
    """Finds the frames in what one connection sends in one direction.

    A frame is a length in four bytes and as many bytes, as ZooKeeper and Kafka send them. The first
    four of these are the number of the request that it is or answers.
    """

    def __init__(self, drops: Counter[Direction], direction: Direction) -> None:
        self._drops = drops
        self._direction = direction
        self._head = b""
        self._left = 0
        self._lost = False

    def pass_on(self, data: bytes) -> bytes:
        """``data`` without the frames that are lost. ``drops`` counts these down."""
        kept = bytearray()
        data, self._head = self._head + data, b""
        while data:
            if self._left == 0:
                needed = 8 if self._drops[self._direction] else 4
                if len(data) < needed:
                    self._head = data
                    break
                (length,) = struct.unpack_from(">i", data)
                self._left = 4 + max(length, 0)
                self._lost = needed == 8 and data[4:8] != _WATCH_EVENT
                if self._lost:
                    self._drops[self._direction] -= 1
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            if not self._lost:
                kept += part
        return bytes(kept)


def _abort(end: socket.socket) -> None:
    """Close with a reset, and wake the thread that reads from it."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        end.shutdown(socket.SHUT_RD)
    end.close()
