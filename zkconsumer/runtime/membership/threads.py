"""The thread that runs one member's loop, with its mailbox and timers; and the watchdog.

``MemberThread`` is the production ``Host`` of ``zkconsumer.runtime.membership.loop``. The simulator
has another (``zkconsumer.sim``), on virtual time.

``Watchdog`` detects when a thread that a member depends on ends or hangs. Its thread, ``<consumer
id>_watchdog``, checks the others every ``PERIOD`` seconds. It restarts threads that can be
restarted: fetcher threads, the leader finder, the journal's thread. If any other thread has ended,
or the member's own thread has been in one step for ``HUNG`` checks, the member fails: it leaves
its group, and its streams raise ConnectorFailedError. The member's thread in turn checks whether
the watchdog is alive.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from zkconsumer.runtime.gate import CLOCK, clock_gettime
from zkconsumer.runtime.membership.loop import MemberLoop

logger = logging.getLogger("zkconsumer.member")

Action = Callable[[], object]


def start_new(name: str, work: Action) -> threading.Thread:
    """Run ``work`` on a new thread, which ends with the process."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def has_ended(thread: threading.Thread) -> bool:
    """Whether a thread was started and has ended."""
    if thread.is_alive():
        return False
    try:
        thread.join(0.0)
    except RuntimeError:  # it is not started yet
        return False
    return not thread.is_alive()


def check_lives(thread: threading.Thread) -> None:
    """Raise RuntimeError if a thread has ended unexpectedly."""
    if has_ended(thread):
        raise RuntimeError(f"the thread {thread.name} has ended unexpectedly")


class MemberThread:
    """Mailbox, timers and thread of one member.

    Args:
        name: the member's consumer id; the thread is called ``<name>_loop``.
    """

    def __init__(self, name: str) -> None:
        self.random = random.Random()
        self._name = name
        self._mailbox: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._due: list[tuple[float, int, list[Action]]] = []
        """Timers: due time, a number that breaks ties, and the action, if not cancelled."""
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while another thread is started, and while threads are checked."""
        self._beside: set[threading.Thread] = set()
        self.turn = 0
        """Odd during a step of the thread. Written by the thread."""

    # -- any thread ----------------------------------------------------------------------------

    def start(self, member: MemberLoop[Any]) -> None:
        """Start ``member``. Actions that were posted before run first."""
        self._thread = start_new(f"{self._name}_loop", lambda: self._run(member))

    def post(self, action: Action) -> None:
        """Run ``action`` on the thread, after all actions posted before."""
        self._mailbox.put(action)

    def aside(self, work: Action) -> None:
        """Run ``work``, which may block, on a separate thread. If it raises, the loop ends."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the loop raises it again
                self.crash(error)
            self._beside.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=f"{self._name}_blocking", daemon=True)
        with self._lock:
            self._beside.add(thread)
            try:
                thread.start()
            except BaseException:
                self._beside.discard(thread)
                raise

    @property
    def dead(self) -> bool:
        """Whether the thread was started and has ended."""
        return self._thread is not None and has_ended(self._thread)

    def check(self) -> None:
        """Raise RuntimeError if a thread from ``aside`` ended before its work was done."""
        with self._lock:
            for thread in list(self._beside):
                if has_ended(thread) and thread in self._beside:
                    self._beside.discard(thread)
                    check_lives(thread)

    def crash(self, error: BaseException) -> None:
        """Make the loop fail, because another thread that it needs has failed."""

        def crash() -> None:
            raise error

        self.post(crash)

    @property
    def is_this_thread(self) -> bool:
        """Whether this is the calling thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the thread to end. Return whether it has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def now(self) -> float:
        """Return seconds on a monotonic clock."""
        return time.monotonic()

    def lease_now(self) -> float:
        """Return seconds on the clock of the ``DeliveryGate``."""
        return clock_gettime(CLOCK)

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Log a line, with the traceback of ``error``."""
        logger.log(level, "%s", text, exc_info=error)

    def wall_us(self) -> int:
        """Return microseconds since 1970."""
        return time.time_ns() // 1000

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    # -- the thread ----------------------------------------------------------------------------

    def after(self, seconds: float, action: Action) -> Action:
        """Run ``action`` on this thread ``seconds`` from now. Calling the result cancels it."""
        actions = [action]
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), actions))
        return actions.clear

    def every(self, seconds: float, action: Action) -> None:
        """Run ``action`` regularly; the first time is ``seconds`` from now."""

        def again() -> None:
            self.after(seconds, again)
            action()

        self.after(seconds, again)

    def _run(self, member: MemberLoop[Any]) -> None:
        try:
            self.turn += 1
            member.begin()
            self.turn += 1
            while not member.ended:
                self.step()
        except BaseException as error:  # noqa: BLE001 - the member reports it
            member.crashed(error)

    def step(self) -> None:
        """Wait for the next action or timer, and run what is due."""
        timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
        action: Action | None
        try:
            action = self._mailbox.get(timeout=timeout)
        except queue.Empty:
            action = None
        self.turn += 1
        if action is not None:
            action()
        now = time.monotonic()  # a timer that a timer sets waits for the next step
        while self._due and self._due[0][0] <= now:
            for due in heapq.heappop(self._due)[2]:
                due()
        self.turn += 1


PERIOD: Final = 1.0
"""Seconds between checks. An ended thread is noticed within this time."""
HUNG: Final = 60
"""Number of checks for which the member's thread may be in one step. Checks are counted instead of
seconds, so a process that was stopped or a machine that was suspended does not count as hung."""

Check = Callable[[], object]
"""Restarts a thread that has ended, if that is possible; otherwise raises."""


class Watchdog:
    """Checks the threads of one member. Any thread may call its methods.

    Args:
        name: the thread's name.
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
        """Start the thread, or restart it if it has ended."""
        with self._lock:
            lives = self._thread is not None and self._thread.is_alive()
            if not lives and not self._ended.is_set():
                self._thread = start_new(self._name, self._run)

    def end(self) -> None:
        """Let the thread end soon."""
        self._ended.set()

    def _run(self) -> None:
        while not (self._member.left or self._ended.wait(PERIOD)):
            try:
                self.look()
            except BaseException as error:  # noqa: BLE001 - the member reports it
                self._fail(error)

    def look(self) -> None:
        """Check everything once. Raises the error of a check that failed."""
        if self._host.dead and not self._member.left:
            raise RuntimeError("the member's thread has ended unexpectedly")
        for check in self._checks:
            check()
        turn = self._host.turn
        busy = turn % 2 == 1 and turn == self._turn
        self._turn, self._looks = turn, self._looks + 1 if busy else 0
        if self._looks >= HUNG:
            raise RuntimeError(f"the member's thread has not finished a step for {HUNG} s")

    def _fail(self, error: BaseException) -> None:
        """Make the member fail: on its own thread if possible, otherwise on this one."""
        if not self._host.dead:
            self._host.crash(error)
            self._ended.wait(PERIOD)
        if not self._member.ended or (self._host.dead and not self._member.left):
            self._member.crashed(error)
