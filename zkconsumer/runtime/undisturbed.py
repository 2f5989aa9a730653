"""Alarms, and work, that signal handlers cannot leave in an inconsistent state.

Python runs signal handlers on the main thread, between any two bytecodes, and they may raise. The
locks of ``threading.Event`` and ``Condition`` would then remain locked. Any thread may use this
module.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

Action = Callable[[], object]
_T = TypeVar("_T")

Lock = Any
"""A ``threading.RLock``, for annotations; the original is a function, not a class."""


def lend(lock: Lock) -> list[Action]:
    """Release a lock if the calling thread holds it. The returned actions acquire it again.

    A signal handler may have interrupted the thread while it held the lock, and the work for which
    the handler waits may need it.
    """
    return [partial(lock._acquire_restore, lock._release_save())] if lock._is_owned() else []


class Alarm:
    """Like ``threading.Event`` for one waiting thread, but ``set`` takes no lock.

    A signal handler may raise in any function of the interrupted thread. If it raises in a method
    of ``Event``, the event's lock stays locked.
    """

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()
        self.also: Action | None = None
        """See ``call``."""

    def set(self) -> None:
        """Make ``wait`` return; if no thread is waiting, the next ``wait`` returns at once. Any
        thread."""
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                pass  # another thread has set it
        if (also := self.also) is not None:
            also()

    def call(self, also: Action | None) -> None:
        """Make ``set`` also call this action, which must not wait."""
        self.also = also

    def clear(self) -> None:
        """Forget earlier calls of ``set``."""
        self._bell.acquire(blocking=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to ``seconds`` for ``set``. Return whether it was called, and clear the alarm."""
        limit = -1.0 if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        return self._bell.acquire(timeout=limit)


class Undisturbed(Generic[_T]):
    """Work on a separate thread, where no signal handler interrupts it.

    Python runs signal handlers on the main thread. Use this for work that must not be interrupted
    halfway, or that takes locks that other threads need. The calling thread waits.

    Args:
        work: called once.
        name: the name of a ``threading.Thread``. Without it, the work runs on a bare thread, and
            must not log.
    """

    def __init__(self, work: Callable[[], _T], name: str | None = None) -> None:
        self._work = work
        self._name = name
        self._begun = threading.Lock()
        self._result: _T | None = None
        self._error: BaseException | None = None
        self.over = False
        """Whether the work has ended. Written by its thread."""
        self._ended = threading.Lock()
        self._ended.acquire()

    def start(self) -> None:
        """Start the work, unless it was started. If the interpreter is exiting and allows no new
        threads, do the work in this thread."""
        # Starting a ``threading.Thread`` takes locks of the whole process, so that is not done
        # here either.
        try:
            _thread.start_new_thread(self._run if self._name is None else self._launch, ())
        except RuntimeError:
            self._run()

    def _launch(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            self._error = error
        self.over = True
        self._ended.release()

    def wait(self, seconds: float | None = None) -> None:
        """Wait at most ``seconds`` until the work has ended."""
        limit = -1.0 if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX)
        if not self.over and self._ended.acquire(timeout=limit):
            self._ended.release()  # for other threads that wait

    def result(self) -> _T:
        """Return the result of work that has ended, or raise its error once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        return cast(_T, self._result)
