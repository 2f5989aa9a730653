"""MemberThread: the thread that runs one member's loop, with its mailbox and timers.

The production ``Host`` of ``zkconsumer.runtime.membership.loop``. The simulator has another
(``zkconsumer.sim``), on virtual time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Protocol

from zkconsumer.runtime.gate import CLOCK, clock_gettime

logger = logging.getLogger("zkconsumer.member")

Action = Callable[[], object]


class Stepped(Protocol):
    """The object that the thread runs."""

    @property
    def ended(self) -> bool:
        """Whether the thread may end."""

    def begin(self) -> None:
        """Called first."""

    def crashed(self, error: BaseException) -> None:
        """An action has raised, and no action follows."""


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
    """Raise RuntimeError if a thread has ended that should still run."""
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
        """When, a number for comparison, and the action; it does nothing once it is cancelled."""
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        """Held while another thread is started, and while those are checked."""
        self._beside: set[threading.Thread] = set()
        self.turn = 0
        """Odd while the thread is in a step. Written by the thread."""

    # -- any thread ----------------------------------------------------------------------------

    def start(self, member: Stepped) -> None:
        """Begin to run ``member``; actions posted before are run first."""
        self._thread = start_new(f"{self._name}_loop", lambda: self._run(member))

    def post(self, action: Action) -> None:
        """Run ``action`` on the thread, after everything posted before."""
        self._mailbox.put(action)

    def aside(self, work: Action) -> None:
        """Run ``work``, which may block, on its own thread. An exception of it ends the loop."""

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
        """Raise RuntimeError if work on another thread has ended without an answer."""
        with self._lock:
            for thread in list(self._beside):
                if has_ended(thread) and thread in self._beside:
                    self._beside.discard(thread)
                    check_lives(thread)

    def crash(self, error: BaseException) -> None:
        """Make the loop fail, because a thread that it depends on has failed."""

        def crash() -> None:
            raise error

        self.post(crash)

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is this one."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end, ``timeout`` seconds at most; whether it has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout)
        return not thread.is_alive()

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        return time.monotonic()

    def lease_now(self) -> float:
        """Seconds on the clock of the ``DeliveryGate``."""
        return clock_gettime(CLOCK)

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Log a line, with the traceback of ``error``."""
        logger.log(level, "%s", text, exc_info=error)

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return time.time_ns() // 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    # -- the thread ----------------------------------------------------------------------------

    def after(self, seconds: float, action: Action) -> Action:
        """Run ``action`` on this thread, ``seconds`` from now; call the result to cancel."""
        actions = [action]
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), actions))
        return actions.clear

    def every(self, seconds: float, action: Action) -> None:
        """Run ``action`` regularly, for the first time ``seconds`` from now."""

        def again() -> None:
            self.after(seconds, again)
            action()

        self.after(seconds, again)

    def _run(self, member: Stepped) -> None:
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
