"""RequestWorker: one connection's requests to the group coordinator, on its own thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from zkconsumer.broker.group import GroupClient
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.ops import Permission, always
from zkconsumer.runtime.gate import CLOCK, clock_gettime
from zkconsumer.runtime.threads import check_lives

OnAnswer = Callable[[Any, Any, float, int], object]
"""Takes the command, the event that answers it, and when it was sent: seconds on the lease's clock,
and microseconds since 1970."""


class RequestWorker:
    """Carries out requests one after the other. Any thread may call its methods.

    Args:
        client: used by the worker's thread only; ``interrupt`` and ``close`` excepted.
        name: of the thread.
    """

    def __init__(self, client: GroupClient, name: str) -> None:
        self._client = client
        self._waiting: queue.SimpleQueue[tuple[Any, Permission] | None] = queue.SimpleQueue()
        self._on_answer: OnAnswer | None = None
        self._on_crash: Callable[[BaseException], object] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, on_answer: OnAnswer, on_crash: Callable[[BaseException], object]) -> None:
        """Start the thread."""
        self._on_answer, self._on_crash = on_answer, on_crash
        self._thread.start()

    @property
    def coordinator(self) -> BrokerEndpoint | None:
        """Where requests to the group's coordinator are sent."""
        return self._client.coordinator

    @coordinator.setter
    def coordinator(self, broker: BrokerEndpoint | None) -> None:
        self._client.coordinator = broker

    def submit(self, command: Any, permission: Permission = always) -> None:
        """Carry out ``command`` after those submitted before.

        A commit asks ``permission`` right before it is sent.
        """
        self._waiting.put((command, permission))

    def interrupt(self) -> None:
        """End the request in flight; it fails."""
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
        assert self._on_answer is not None
        assert self._on_crash is not None
        try:
            while (item := self._waiting.get()) is not None:
                command, permission = item
                sent_us, sent = time.time_ns() // 1000, clock_gettime(CLOCK)
                answer = self._client.execute(command, permission)
                self._on_answer(command, answer, sent, sent_us)
        except BaseException as error:  # noqa: BLE001 - the loop raises it again
            self._on_crash(error)
