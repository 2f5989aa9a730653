"""A ZooKeeper session without a thread: it sends requests only when asked, and no heartbeats.

So a test can let a session expire, like that of a killed process. One thread uses it.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

from kazoo.exceptions import EXCEPTIONS, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    SetACL,
    SetData,
    Transaction,
)
from kazoo.security import ACL, OPEN_ACL_UNSAFE

_CLOSE = -11


class Session:
    """One session with a timeout of ``timeout`` milliseconds. Raises kazoo's errors if the server
    refuses a write."""

    def __init__(self, address: str, timeout: int = 40_000) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._send(struct.pack(">iqiqi", 0, 0, timeout, 0, 16) + bytes(16) + b"\0")
        answer = self._receive()
        self.number = 0
        self.id: int = struct.unpack_from(">q", answer, 8)[0]

    def _send(self, packet: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(packet)) + packet)

    def _receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            if not part:
                raise ConnectionError("the server closed the connection")
            found += part
        return found

    def _call(self, kind: int, body: bytes) -> bytes:
        self.number += 1
        self._send(struct.pack(">ii", self.number, kind) + body)
        answer = self._receive()
        _, _, error = struct.unpack_from(">iqi", answer)
        if error:
            raise EXCEPTIONS[error]()
        return answer

    def create(self, path: str, data: bytes = b"", ephemeral: bool = False) -> None:
        """Create one znode."""
        self.send(Create(path, data, OPEN_ACL_UNSAFE, 1 if ephemeral else 0))

    def set(self, path: str, data: bytes) -> None:
        """Write a znode's content."""
        self.send(SetData(path, data, -1))

    def delete(self, path: str) -> None:
        """Delete one znode."""
        self.send(Delete(path, -1))

    def exists(self, path: str) -> None:
        """Raise NoNodeError if there is no such znode."""
        self.send(Exists(path, None))

    def multi(self, *parts: Create | SetData | Delete | CheckVersion) -> None:
        """Write all parts in one transaction."""
        answer = self.send(Transaction(list(parts)))
        results = Transaction.deserialize(answer, 16)
        refused = [result for result in results if isinstance(result, Exception)]
        around = (RolledBackError, RuntimeInconsistency)
        for result in refused:
            if not isinstance(result, around):
                raise result
        assert not refused, refused

    def set_acl(self, path: str, entries: list[ACL]) -> None:
        """Write a znode's access list."""
        self.send(SetACL(path, entries, -1))

    def send(self, request: Any) -> bytes:
        """Make any request; return the answer."""
        return self._call(request.type, bytes(request.serialize()))

    def close(self) -> None:
        """End the session."""
        self._call(_CLOSE, b"")
        self.socket.close()

    def abandon(self) -> None:
        """Let the session expire."""
        self.socket.close()
