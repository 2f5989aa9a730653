"""Opens a connection to the first of several addresses that accepts one.

Runs on the thread that opens the connection. Some addresses of a name may drop packets, and the
addresses may change at any time. So attempts overlap (RFC 8305): the next address is tried after a
quarter of a second, while earlier attempts continue, and names are resolved again every second.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

_NEXT_ADDRESS_S: Final = 0.25
_NEXT_LISTENER_S: Final = 2.0
"""Seconds until the next listener, which may belong to another network, is tried."""
_RESOLVE_AGAIN_S: Final = 1.0
_DNS_SHARE: Final = 10
"""Factor of the last DNS answer's time after which DNS is asked again, if that is longer."""


class _Address(NamedTuple):
    listener: int
    family: int
    where: tuple[Any, ...]

    @property
    def ip(self) -> str:
        return str(self.where[0])


def dial(
    listeners: Sequence[tuple[str, int]], timeout: float, is_aborted: Callable[[], bool]
) -> tuple[socket.socket, int]:
    """Return a connected socket, and the index of its listener.

    All addresses together have ``timeout`` seconds, from the first DNS answer on. Another thread
    may end the attempt: ``is_aborted`` is called at least once a second.

    Raises OSError. Its text says what failed at each address.
    """
    attempt = _Attempt(listeners)
    try:
        attempt.begin()
        until = time.monotonic() + timeout
        while True:
            if is_aborted():
                raise OSError("this client closed the connection")
            connected = attempt.step(until)
            if connected is not None:
                return connected
            left = until - time.monotonic()
            if not attempt.alive or left <= 0:
                raise OSError(attempt.faults(f"no connection within {timeout:g} s"))
    finally:
        attempt.close()


class _Attempt:
    def __init__(self, listeners: Sequence[tuple[str, int]]) -> None:
        self._listeners = listeners
        self._due = 0
        """Number of addresses that have been tried."""
        self._waiting: deque[_Address] = deque()
        self._pending: dict[socket.socket, _Address] = {}
        self._faults: dict[tuple[int, str], str] = {}
        """Faults by listener and address. The address is empty for a name that does not resolve."""
        self._next_address_at = self._next_listener_at = self._resolve_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether an address may still accept the connection."""
        return bool(self._waiting or self._pending) or self._due < len(self._listeners)

    def begin(self) -> None:
        """Resolve the first name."""
        self._due = min(1, len(self._listeners))
        self._resolve(range(self._due))

    def step(self, until: float) -> tuple[socket.socket, int] | None:
        """Start due attempts, and wait for the next event. Return the connected socket, if any."""
        if self._due and time.monotonic() >= self._resolve_at:
            self._resolve(range(self._due))
        while True:
            now = time.monotonic()
            if self._waiting and (not self._pending or now >= self._next_address_at):
                self._begin(self._waiting.popleft())
            elif (
                not self._waiting
                and self._due < len(self._listeners)
                and (not self._pending or now >= self._next_listener_at)
            ):
                self._due += 1
                self._resolve([self._due - 1])
            else:
                break
        if not self._pending:
            return None
        at = min(until, self._resolve_at)
        if self._waiting:
            at = min(at, self._next_address_at)
        elif self._due < len(self._listeners):
            at = min(at, self._next_listener_at)
        return self._wait(at - time.monotonic())

    def faults(self, late: str) -> str:
        """Return the fault of each address. ``late``: that of addresses without an answer."""
        for address in (*self._pending.values(), *self._waiting):
            self._faults[address.listener, address.ip] = late
        texts = []
        for (number, ip), text in self._faults.items():
            host, port = self._listeners[number]
            name = f"{host}:{port} " if number else ""
            shown = ip if ip not in ("", host) else ""
            texts.append(f"{name}{shown}".rstrip() + ": " * bool(name or shown) + text)
        return ", ".join(texts)

    def close(self) -> None:
        """Close all sockets that are not connected."""
        for sock in self._pending:
            sock.close()

    def _resolve(self, numbers: Iterable[int]) -> None:
        begun = time.monotonic()
        known = {*self._pending.values(), *self._waiting}
        for number in numbers:
            host, port = self._listeners[number]
            try:
                answers = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                self._faults[number, ""] = getattr(error, "strerror", None) or str(error)
                continue
            self._faults.pop((number, ""), None)
            for family, _, _, _, where in answers:
                address = _Address(number, family, where)
                if address not in known:
                    known.add(address)
                    self._waiting.append(address)
        now = time.monotonic()
        self._resolve_at = now + max(_RESOLVE_AGAIN_S, _DNS_SHARE * (now - begun))

    def _begin(self, address: _Address) -> None:
        now = time.monotonic()
        self._next_address_at = now + _NEXT_ADDRESS_S
        self._next_listener_at = now + _NEXT_LISTENER_S
        try:
            sock = socket.socket(address.family, socket.SOCK_STREAM)
        except OSError as error:  # for example without IPv6
            self._faults[address.listener, address.ip] = error.strerror or str(error)
            return
        self._pending[sock] = address
        sock.setblocking(False)
        code = sock.connect_ex(address.where)
        if code not in (0, errno.EINPROGRESS):
            self._failed(sock, code)

    def _wait(self, seconds: float) -> tuple[socket.socket, int] | None:
        poll = select.poll()
        sockets = {sock.fileno(): sock for sock in self._pending}
        for number in sockets:
            poll.register(number, select.POLLOUT)
        for number, _ in poll.poll(math.ceil(max(0.0, seconds) * 1000)):
            sock = sockets[number]
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not code:
                return sock, self._pending.pop(sock).listener
            self._failed(sock, code)
        return None

    def _failed(self, sock: socket.socket, code: int) -> None:
        address = self._pending.pop(sock)
        sock.close()
        self._faults[address.listener, address.ip] = os.strerror(code)
