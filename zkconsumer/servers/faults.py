"""Faults on purpose: expired ZooKeeper sessions."""

from __future__ import annotations

import socket
import struct
from typing import Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.waiting import wait_until

_CLOSE_SESSION: Final = -11


def expire_session(zookeeper: str, session_id: int, password: bytes, timeout: float = 10.0) -> None:
    """Make the server end a session. Its client then learns that the session has expired.

    A second connection takes over the session and closes it, until the server no longer knows the
    session. ``zookeeper`` is ``HOST:PORT`` (a chroot is ignored). In kazoo, id and password are in
    ``client.client_id``. Raises ``ClusterError`` when the server cannot be reached.
    """
    host, _, port = zookeeper.partition("/")[0].split(",")[0].rpartition(":")

    def gone() -> bool:
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            # Both requests in one go: the client itself is about to take its session back.
            hello = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password
            goodbye = struct.pack(">ii", 1, _CLOSE_SESSION)
            packets = (hello + b"\0", goodbye)
            connection.sendall(b"".join(struct.pack(">i", len(p)) + p for p in packets))
            answer = b""
            while len(answer) < 12:  # length, protocol version, granted timeout
                part = connection.recv(4096)
                if not part:
                    return False
                answer += part
            (granted,) = struct.unpack_from(">i", answer, 8)
            return bool(granted <= 0)

    def tried() -> bool:
        try:
            return gone()
        except ConnectionResetError:
            return False
        except OSError as error:
            raise ClusterError(f"ZooKeeper at {host}:{port} cannot be reached: {error}") from error

    wait_until(tried, timeout, f"ZooKeeper has ended session 0x{session_id:x}")
