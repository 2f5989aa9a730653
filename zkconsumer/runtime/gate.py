"""The delivery gate: messages may be delivered only while the ZooKeeper session is certainly
alive.

One gate for each connector. The session keeper's thread extends and closes it, consuming threads
check ``valid_until`` before every message. Lock order: a stream's lock, then the gate's.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
"""A clock that continues while the machine is suspended, as a ZooKeeper session's does. On macOS
that is CLOCK_MONOTONIC, and on Windows ``time.monotonic``."""
clock_gettime: Final[Callable[[int], float]] = getattr(
    time, "clock_gettime", lambda _clock: time.monotonic()
)

LEASE: Final = 2 / 3
"""Part of the session timeout for which delivery is allowed after an answer from the servers."""


class DeliveryGate:
    """Allows delivery until ``valid_until``, which is extended while the session is alive.

    A new gate is closed. ``always_open`` creates the legacy gate, which allows delivery even after
    the session is lost. ``now`` is the clock; the simulator has its own. ``on_change`` is called
    with a log line when delivery pauses or resumes, on the thread that extends or closes the gate,
    without the gate's lock.
    """

    def __init__(
        self,
        *,
        always_open: bool = False,
        now: Callable[[], float] | None = None,
        on_change: Callable[[str], object] | None = None,
    ) -> None:
        self.always_open = always_open
        self._now = now or (lambda: clock_gettime(CLOCK))
        self.clock: Final[tuple[Callable[[int], float], int]] = (
            (clock_gettime, CLOCK) if now is None else (lambda _clock: now(), 0)
        )
        """The clock of ``valid_until`` as a function and its argument. This is the fastest way to
        read the clock, and consuming threads do so before every message."""
        self.valid_until = math.inf if always_open else -math.inf
        """CLOCK_BOOTTIME seconds until which messages may be delivered. Written under the lock."""
        self._lock = threading.RLock()
        self._waiters: set[Callable[[], None]] = set()
        self._shut_since: float | None = None
        self._held: float | None = None
        """The value of ``valid_until`` before ``hold``, until the gate is opened or closed."""
        self._suspended = 0.0
        self._ended = False
        self._on_change = on_change

    def extend(self, until: float) -> None:
        """Open the gate until ``until`` (CLOCK_BOOTTIME seconds), also after ``close``. A time
        before ``valid_until`` is ignored."""
        if self.always_open:
            return
        with self._lock:
            now = self._now()
            if self._ended or until <= self.valid_until or until <= now:
                return
            shut = self._shut_for(now)
            self._suspended += shut
            self._shut_since = self._held = None
            self.valid_until = until
        while self._waiters:  # those that are added now find the gate open
            try:
                wake = self._waiters.pop()
            except KeyError:
                break  # it was discarded
            wake()
        if shut:
            self._tell(f"delivery resumes after {shut:.1f} s")

    def _tell(self, text: str) -> None:
        if self._on_change is not None:
            self._on_change(text)

    def close(self) -> None:
        """Block delivery until the next ``extend``: the session is lost or abandoned."""
        if self.always_open:
            return
        with self._lock:
            self._held = None
            shut = self._shut()
        if shut:
            self._tell("delivery pauses: the session is lost")

    def hold(self) -> None:
        """Block delivery until ``extend`` or ``release``: the session may be lost."""
        if self.always_open:
            return
        with self._lock:
            self._held = max(self.valid_until, self._held or -math.inf)
            shut = self._shut()
        if shut:
            self._tell("delivery pauses: the connection is lost")

    def release(self) -> None:
        """Undo the last ``hold``, if the gate has not been opened or closed since."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            self.extend(held)

    def _shut(self) -> bool:
        """Close the gate. Return whether it was open, or had expired unnoticed."""
        now = self._now()
        newly = self._shut_since is None and self.valid_until != -math.inf
        if newly:
            self._shut_since = min(now, self.valid_until)
        # DEVIATION-09: the JVM delivers on without a session.
        self.valid_until = -math.inf
        return newly

    def look(self) -> None:
        """If no server has answered in time, record that delivery has paused."""
        with self._lock:
            expired = self._shut_since is None and -math.inf < self.valid_until <= self._now()
            if expired:
                self._shut_since = self.valid_until
        if expired:
            self._tell("delivery pauses: no server answers")

    def end(self) -> None:
        """Close the gate permanently. The time after this does not count as suspended."""
        self._on_change = None
        self.close()
        with self._lock:
            if not self._ended:
                self._suspended += self._shut_for(self._now())
                self._ended = True

    @property
    def is_open(self) -> bool:
        """Whether a message may be delivered now."""
        return self._now() < self.valid_until

    @property
    def suspended_seconds(self) -> float:
        """Seconds for which the gate was closed, from its first opening until now, or until its
        end."""
        with self._lock:
            return self._suspended + self._shut_for(self._now())

    @property
    def shut_seconds(self) -> float:
        """Seconds since the gate was closed; 0 while it is open, or if it never opened."""
        with self._lock:
            return self._shut_for(self._now())

    def wait_turn(self, wake: Callable[[], None]) -> bool:
        """Return whether the gate is open. If not, ``wake`` is called once when it opens.

        ``wake`` runs on the session keeper's thread, without the gate's lock.
        """
        # Without the lock: a signal handler may raise in here, on the consuming thread.
        self._waiters.add(wake)
        if self._now() < self.valid_until:
            self._waiters.discard(wake)
            return True
        return False

    def _shut_for(self, now: float) -> float:
        if self._ended:
            return 0.0
        if self._shut_since is not None:
            return now - self._shut_since
        if math.isinf(self.valid_until):
            return 0.0  # never opened yet, or always open
        return max(0.0, now - self.valid_until)
