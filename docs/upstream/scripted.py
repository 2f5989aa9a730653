"""A ZooKeeper server that answers as a script says, for one connection at a time.

It needs only Python. ``Server(answer)`` calls ``answer(xid, op)`` for each request, which returns
the frames to send. ``good(xid)`` is the response to a ping, or to an ``exists`` of a missing znode.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable

PING = -2
NO_NODE = -101
CLOSE = -11
SESSION = 0x1234
PASSWORD = b"p" * 16

Answer = Callable[[int, int], Iterable[bytes]]


def good(xid: int, error: int | None = None) -> bytes:
    """A header without a body: pings succeed, ``exists`` finds nothing."""
    known = 0 if xid == PING else NO_NODE
    return struct.pack(">iqi", xid, 1, known if error is None else error)


def honest(xid: int, op: int) -> list[bytes]:
    """Answer as a server without znodes does."""
    return [good(xid, 0 if op == CLOSE else None)]


def silent(_xid: int, _op: int) -> list[bytes]:
    """Do not answer."""
    return []


def session(timeout_ms: int, password: bytes | None = PASSWORD) -> bytes:
    """The response to a connection request."""
    length = -1 if password is None else len(password)
    return struct.pack(">iiqi", 0, timeout_ms, SESSION, length) + (password or b"") + b"\0"


class Server:
    """Listens on a loopback port. ``connections`` counts the connection requests.

    ``answer`` may be replaced at any time. ``accept`` gets the last zxid that the client has seen
    and returns the response to its connection request. ``None`` closes the connection.
    """

    def __init__(
        self,
        answer: Answer = honest,
        accept: Callable[[int], bytes | None] = lambda _zxid: session(3000),
    ) -> None:
        self.answer = answer
        self.connections = 0
        self._accept = accept
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """Close all connections, and accept no others."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                self.connections += 1
                with contextlib.suppress(OSError, EOFError), client:
                    self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        (zxid,) = struct.unpack_from(">q", _frame(client), 4)
        accepted = self._accept(zxid)
        if accepted is None:
            return
        _send(client, accepted)
        while True:
            xid, op = struct.unpack_from(">ii", _frame(client))
            for frame in self.answer(xid, op):
                _send(client, frame)


def verdict(shown: bool, what: str) -> None:
    """Exit with status 0 if kazoo shows the fault, otherwise with 1."""
    print(("shown: " if shown else "NOT SHOWN: ") + what, flush=True)
    os._exit(0 if shown else 1)


def _send(client: socket.socket, frame: bytes) -> None:
    client.sendall(struct.pack(">i", len(frame)) + frame)


def _frame(client: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", _exactly(client, 4))
    return _exactly(client, size)


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
