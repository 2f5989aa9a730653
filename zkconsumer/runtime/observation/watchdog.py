"""Watchdog: detects when a thread that a member depends on ends or hangs.

Owns the thread ``<consumer id>_watchdog``, which checks the others every ``PERIOD`` seconds. It
restarts those that can be restarted: fetcher threads, the leader finder, the journal's thread. If
any other thread has ended, or the member's own thread has been in one step for ``HUNG`` seconds,
the member fails: it leaves its group, and its streams raise ConnectorFailedError. The member's
thread in turn checks whether the watchdog is alive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.membership.threads import MemberThread, start_new

logger = logging.getLogger("zkconsumer.member")

PERIOD: Final = 1.0
"""Seconds between two checks. A thread that has ended is noticed within this time."""
HUNG: Final = 60
"""Looks for which the member's thread may be in one step. Looks are counted, not seconds, so a
process that was stopped or a machine that was suspended does not count as hung."""

Check = Callable[[], object]
"""Restarts a thread that has ended, if that is possible; otherwise raises."""


class Watchdog:
    """Looks after the threads of one member. Any thread may call its methods.

    Args:
        name: of the thread.
        host: the member's thread.
        member: fails when a check raises.
        checks: one for each component that has threads.
    """

    def __init__(
        self, name: str, host: MemberThread, member: MemberLoop[Any], checks: Iterable[Check]
    ) -> None:
        self._name = name
        self._host = host
        self._member = member
        self._checks = (host.check, *checks)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._turn = 0
        self._looks = 0

    def start(self) -> None:
        """Start the thread, or start it again if it has ended."""
        with self._lock:
            lives = self._thread is not None and self._thread.is_alive()
            if not lives and not self._ended.is_set():
                self._thread = start_new(self._name, self._run)

    def end(self) -> None:
        """End the thread soon."""
        self._ended.set()

    def _run(self) -> None:
        while not (self._member.left or self._ended.wait(PERIOD)):
            try:
                self.look()
            except BaseException as error:  # noqa: BLE001 - the member reports it
                self._fail(error)

    def look(self) -> None:
        """Check everything once. Raises the error of a failed check."""
        if self._host.dead and not self._member.left:
            raise RuntimeError("the member's thread has ended unexpectedly")
        for check in self._checks:
            check()
        turn = self._host.turn
        busy = turn % 2 == 1 and turn == self._turn
        self._turn, self._looks = turn, self._looks + 1 if busy else 0
        if self._looks >= HUNG:
            raise RuntimeError(f"the member's thread has been in one step for {HUNG} s")

    def _fail(self, error: BaseException) -> None:
        """Have the member fail: on its own thread if that is able to, otherwise on this one."""
        if not self._host.dead:
            self._host.crash(error)
            self._ended.wait(PERIOD)
        if not self._member.ended or (self._host.dead and not self._member.left):
            self._member.crashed(error)
