"""ServerLine: one member's requests to one server, one at a time, on a thread of their own.

The thread starts with the first request. An error that the client does not expect ends the thread,
and the member fails.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from zkconsumer.core.zookeeper.ops import Permission, Permit, always
from zkconsumer.runtime.gate import CLOCK, clock_gettime
from zkconsumer.runtime.membership.threads import check_lives

OnAnswer = Callable[[Any, float, int], object]
"""Takes the answer and the time at which the request was sent: seconds on the lease's clock, and
microseconds since 1970."""


class Client(Protocol):
    """A client that sends requests to a server. The line's thread calls ``execute``; any thread may
    call the other methods."""

    def execute(self, request: Any, permission: Permission, /) -> Any:
        """Send a request. Return its answer, or an answer with the reason for the failure.

        ``permission`` is checked right before each attempt is sent.
        """

    def interrupt(self) -> object:
        """Make the attempt in flight fail."""

    def close(self) -> object:
        """Abandon the request in progress. Later ones fail."""


class ServerLine:
    """Carries out the requests of one member. Any thread may call its methods.

    Args:
        client: closed with the line.
        name: the thread's name.
        on_crash: called with an unexpected error, which ends the thread.
    """

    def __init__(
        self, client: Client, name: str, on_crash: Callable[[BaseException], object]
    ) -> None:
        self._client: Any = client
        self._on_crash = on_crash
        self._waiting: queue.SimpleQueue[tuple[Any, OnAnswer, Permission] | None] = (
            queue.SimpleQueue()
        )
        self._permission: Permission = always
        """The permission of the request in progress."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._starting = threading.Lock()

    def submit(self, request: Any, on_answer: OnAnswer, permission: Permission = always) -> None:
        """Carry out ``request`` after those submitted before; call ``on_answer`` on the line's
        thread.

        ``permission`` is checked right before each attempt is sent.
        """
        self._waiting.put((request, on_answer, permission))
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()

    @property
    def coordinator(self) -> Any:
        """The broker that receives requests to the group's coordinator, if the client has one."""
        return self._client.coordinator

    @coordinator.setter
    def coordinator(self, broker: Any) -> None:
        self._client.coordinator = broker

    def interrupt(self) -> None:
        """Make the attempt in flight fail."""
        self._client.interrupt()

    def interrupt_ended(self) -> None:
        """Make the attempt in flight fail if it is no longer permitted."""
        if self._permission() is Permit.ENDED:
            self._client.interrupt()

    def close(self) -> None:
        """Abandon the request in progress and end the thread."""
        self._client.close()
        self._closed = True
        self._waiting.put(None)

    def check(self) -> None:
        """Raise RuntimeError if the thread has ended before ``close``."""
        if not self._closed:
            check_lives(self._thread)

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                request, on_answer, self._permission = item
                sent_us, sent = time.time_ns() // 1000, clock_gettime(CLOCK)
                answer = self._client.execute(request, self._permission)
                self._permission = always
                on_answer(answer, sent, sent_us)
        except BaseException as error:  # noqa: BLE001 - the loop raises it again
            self._on_crash(error)
