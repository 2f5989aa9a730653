"""A process on virtual time: its mailbox, timers and clocks, and how its application behaves.

Determines the order of events in one process. Everything runs inside kernel events, in the thread
that runs the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from zkconsumer.sim.kernel import Kernel

#: When simulations begin, in milliseconds since 1970: timestamps are as long as real ones.
EPOCH_MS: Final = 1_500_000_000_000


@dataclass(frozen=True, slots=True)
class Habits:
    """How a member's process behaves. Pairs are ranges; times are in seconds.

    ``poll``: time between two polls, each of up to ``burst`` messages of a stream (for a light
    member, of a partition). ``stop``: time until the first check for an unacknowledged message.
    ``release_wait``: longest wait for that message (``zkconsumer.release.wait.ms``). ``listener``:
    duration of a call of the user's listener, which raises with probability ``listener_error``.
    ``listener_commits``: whether the listener commits the partitions that will be released, and
    waits for the answer. ``commits``: probability that the application commits after a poll; half
    of these calls wait for the answer.
    """

    poll: tuple[float, float] = (0.3, 0.7)
    burst: int = 8
    stop: tuple[float, float] = (0.0, 0.1)
    listener: tuple[float, float] = (0.0, 0.05)
    listener_error: float = 0.0
    listener_commits: bool = False
    commit_interval: float = 2.0
    release_wait: float = 5.0
    commits: float = 0.0


class InjectedFault(Exception):
    """A fault injected into the member, as if its own code had raised an error."""


class SimHost:
    """A process on virtual time: the ``Host`` of ``zkconsumer.runtime.membership.loop``.

    Actions run one at a time, never nested. ``alive``: the process has neither crashed nor left.
    ``paused``: the process and its actions are suspended; its timers continue to expire.
    """

    def __init__(self, kernel: Kernel, name: str, note: Callable[[str], object] | None) -> None:
        self.kernel = kernel
        self.random = kernel.rng
        self.name = name
        self.alive = True
        self.paused = False
        self.on_fault: Callable[[BaseException], object] = lambda error: None
        """Called when an action has raised ``InjectedFault``."""
        self.on_error: Callable[[Exception], object] | None = None
        """Called when an action has raised another exception. By default the simulation ends."""
        self.on_step: Callable[[], object] = lambda: None
        """Called when all posted actions are done."""
        self._note = note
        self._inbox: deque[Callable[[], object]] = deque()
        self._busy = False

    @property
    def recorded(self) -> bool:
        """Whether the run has a history, in which ``say`` records events."""
        return self._note is not None

    def say(self, text: str) -> None:
        """Record an event in the history of the run."""
        if self._note is not None:
            self._note(f"{self.kernel.now_us} {self.name} {text}")

    def post(self, action: Callable[[], object]) -> None:
        """Implement ``Host.post``."""
        self._inbox.append(action)
        if not self._busy:
            self.work()

    def work(self) -> None:
        """Run posted actions, unless the process is suspended."""
        self._busy = True
        while self._inbox and self.alive and not self.paused:
            try:
                self._inbox.popleft()()
            except InjectedFault as fault:
                self.on_fault(fault)
            except Exception as error:
                if self.on_error is None:
                    raise
                self.on_error(error)
        self._busy = False
        if self.alive and not self.paused:
            self.on_step()

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], object]:
        """Implement ``Host.after``."""
        handle = self.kernel.schedule(seconds, partial(self.post, action))
        return partial(self.kernel.cancel, handle)

    def within(self, bounds: tuple[float, float], action: Callable[[], object]) -> None:
        """Post ``action`` after a random time between ``bounds``, in seconds."""
        low, high = bounds
        self.after(low + (high - low) * self.random.random(), action)

    def now(self) -> float:
        """Implement ``Host.now``."""
        return self.kernel.now

    def lease_now(self) -> float:
        """Implement ``Host.lease_now``."""
        return self.kernel.now

    def log(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Implement ``Host.log``. The line becomes part of the run's history."""
        self.say(text)
        if error is not None and not isinstance(error, InjectedFault):
            raise error

    def wall_us(self) -> int:
        """Implement ``Host.wall_us``."""
        return self.kernel.now_us

    def wall_ms(self) -> int:
        """Implement ``Host.wall_ms``."""
        return EPOCH_MS + self.kernel.now_us // 1000
