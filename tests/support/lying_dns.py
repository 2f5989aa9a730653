"""A resolver that a test controls, and addresses that swallow packets. Any thread."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest


class LyingDns:
    """Replaces ``socket.getaddrinfo``: the names in ``answers`` have these addresses.

    Without addresses a name does not resolve. Other names are looked up as always.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        addresses = self.answers.get(host)
        if addresses is None:
            return list(self._real(host, port, *args, **options))
        self.asked.append(host)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))
            for address in addresses
        ]


@contextlib.contextmanager
def black_hole(address: str, port: int) -> Iterator[None]:
    """Let connections to a loopback address and port neither succeed nor fail.

    The backlog of a socket that listens there is full, so that the system drops further requests.
    """
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield
