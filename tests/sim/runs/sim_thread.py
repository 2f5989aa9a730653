"""Blocking code on virtual time: a thread and the kernel take turns, so only one of them runs.

The code waits for servers through ``SimThread.wait``, and for time through ``SimClock``. Between
two waits it runs without interruption, inside a kernel event. So a run is a pure function of its
seed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

from zkconsumer.sim.kernel import Kernel

Go = Callable[[object], object]
"""Lets a thread that waits continue with an answer. Called from a kernel event."""


class KilledError(BaseException):
    """The process is gone."""


class SimThread:
    """A process with one thread. ``work`` runs in it; ``ended`` is called after it, unless the
    process was killed, with what ``work`` returned or raised.
    """

    current: ClassVar[SimThread]
    """The one that runs now."""

    def __init__(
        self, kernel: Kernel, work: Callable[[], object], ended: Callable[[object], object]
    ) -> None:
        self.alive = True
        self.slept = False
        """Whether it was suspended when an answer arrived. The user resets it."""
        self._kernel = kernel
        self._work, self._ended = work, ended
        self._until = 0.0
        self._answer: object = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        kernel.schedule(0, lambda: self._resume(None))

    def stall(self, seconds: float) -> None:
        """The process is suspended for this long."""
        self._until = max(self._until, self._kernel.now + seconds)

    def wake(self) -> None:
        """It is suspended no longer."""
        self._until = 0.0

    def kill(self) -> None:
        """The process ends without a last word."""
        if self.alive:
            self.alive = False
            self._switch()
            self._thread.join()

    def wait(self, begin: Callable[[Go], object]) -> Any:
        """Wait for an answer. ``begin`` sends the request, and the answer is given to its argument.

        Called in the thread.
        """
        if not self.alive:
            raise KilledError
        begin(self._resume)
        self._back.release()
        self._go.acquire()
        if not self.alive:
            raise KilledError
        return self._answer

    def sleep(self, seconds: float) -> None:
        """Wait for some time. Called in the thread."""
        self.wait(lambda go: self._kernel.schedule(max(0.0, seconds), lambda: go(None)))

    def _resume(self, answer: object) -> None:
        if not self.alive:
            return
        if self._until > self._kernel.now:
            self.slept = True
            left = self._until - self._kernel.now
            self._kernel.schedule(left + 1e-6, lambda: self._resume(answer))
            return
        self._answer = answer
        self._switch()

    def _switch(self) -> None:
        SimThread.current = self
        self._go.release()
        self._back.acquire()

    def _run(self) -> None:
        self._go.acquire()
        result: object = None
        try:
            if self.alive:
                result = self._work()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - ``ended`` gets it
            result = error
        if self.alive:
            self.alive = False
            self._kernel.schedule(0, lambda: self._ended(result))
        self._back.release()


class SimClock:
    """Stands for the module ``time`` in the code that threads run."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def time(self) -> float:
        """Seconds since 1970."""
        return 1.7e9 + self._kernel.now

    def monotonic(self) -> float:
        """Seconds since the simulation began."""
        return self._kernel.now

    def clock_gettime(self, _clock: int) -> float:
        """Seconds since the simulation began."""
        return self._kernel.now

    def sleep(self, seconds: float) -> None:
        """Let the thread that runs now wait."""
        SimThread.current.sleep(seconds)


__all__ = ["SimClock", "SimThread"]
