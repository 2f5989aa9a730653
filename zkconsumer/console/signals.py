"""Handling of SIGINT and SIGTERM in commands that must clean up before they end, such as leaving a
group."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from zkconsumer.errors import ZooKeeperError
from zkconsumer.runtime.undisturbed import Alarm

EXIT_SIGNAL: Final = 128
"""Added to a signal's number: 130 after Ctrl-C, 143 after SIGTERM."""
GRACE: Final = 1.0
"""Seconds after the first signal for which further signals are ignored."""


class SignalledError(BaseException):
    """SIGINT or SIGTERM was received."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Repeated:
    """Recognizes repeated signals.

    GNU ``timeout`` sends two, to the process and to its group. The same happens with a wrapper
    that forwards a signal which the terminal has sent to the whole group. Only a signal more than
    ``GRACE`` seconds after the first means that the user does not want to wait.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, number: int) -> bool:
        """Return false for the first signal, true for repeated ones. A late signal ends the
        process."""
        if self._first is None:
            self._first = time.monotonic()
            return False
        if time.monotonic() - self._first >= GRACE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        return True


class Stop(Alarm):
    """An alarm for which the main thread waits. The first SIGINT or SIGTERM sets it; ``Repeated``
    handles later ones.

    A ``threading.Event`` is not enough: its ``wait`` and ``set`` take the same lock. A handler that
    interrupts ``wait`` and calls ``set`` would wait for its own thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0
        """Number of the first signal; 0 if there was none."""
        self._repeated = Repeated()

    def listen(self) -> None:
        """Start to handle the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._received)

    def _received(self, number: int, _frame: object) -> None:
        if not self._repeated(number):
            self.number = number
            self.set()


@contextmanager
def signals_raise() -> Iterator[Callable[[], None]]:
    """Raise ``SignalledError`` at the first SIGINT or SIGTERM; ``Repeated`` handles later ones.

    kazoo catches exceptions that are raised while it sends, and replaces them with its own. So an
    error after a signal is treated as the signal. If kazoo caught a signal, the yielded function
    raises it again.
    """
    repeated = Repeated()
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if not repeated(number):
            received.append(number)
            raise SignalledError(number)

    def check() -> None:
        if received:
            raise SignalledError(received[0])

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    except ZooKeeperError:
        check()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
