"""What both member loops use so that no one waits for an answer that does not arrive.

``CommitRequests`` is used by all threads; the rest says in each docstring which thread calls it.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from zkconsumer.errors import ConnectorFailedError

logger = logging.getLogger("zkconsumer.member")

CommitFuture = Future[tuple[str, ...]]
"""Its result is what went wrong, empty when all offsets are stored."""

SHUT_DOWN = "the connector is shut down"
"""Why a commit is not carried out after an orderly end."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """A mailbox item: a thread of this member has failed. The loop raises ``error``."""

    error: BaseException


def run_blocking(mailbox: queue.SimpleQueue[Any], work: Callable[[], object], name: str) -> None:
    """Do ``work`` on a thread of its own; put what it returns, or ``Crashed``, into ``mailbox``.

    Called by the loop's thread. Raises RuntimeError when no thread can be started.
    """

    def run() -> None:
        try:
            outcome = work()
        except BaseException as error:  # noqa: BLE001 - the loop raises it again
            outcome = Crashed(error)
        mailbox.put(outcome)

    threading.Thread(target=run, name=name, daemon=True).start()


def call_listener(call: Callable[[], object]) -> str | None:
    """Call the user's rebalance listener; return what it raised, as text.

    ``SystemExit`` would end the calling thread without a word, so it counts like any other error.
    """
    try:
        call()
    except BaseException as error:
        logger.warning("the rebalance listener raised", exc_info=True)
        return f"the rebalance listener raised {error!r}"
    return None


class CommitRequests:
    """Commits that were asked for and are not answered yet. Each is answered once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, CommitFuture] = {}
        self._ended: str | None = None

    def ask(self) -> tuple[int, CommitFuture]:
        """Return the number and the future of a new request; after ``end`` it is answered."""
        future: CommitFuture = Future()
        with self._lock:
            number = next(self._numbers)
            if self._ended is None:
                self._waiting[number] = future
            else:
                future.set_result((self._ended,))
        return number, future

    def answer(self, number: int, faults: tuple[str, ...]) -> None:
        """Answer a request, unless it is answered already."""
        with self._lock:
            future = self._waiting.pop(number, None)
        if future is not None:
            _resolve(future, faults)

    def end(self, reason: str) -> None:
        """Answer all requests with ``reason``, also those that follow. The first reason counts."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
            waiting, self._waiting = self._waiting, {}
            reason = self._ended
        for future in waiting.values():
            _resolve(future, (reason,))


def _resolve(future: CommitFuture, faults: tuple[str, ...]) -> None:
    """Set the result; a user's callback that raises ``SystemExit`` ends nothing else."""
    try:
        future.set_result(faults)
    except BaseException:
        logger.warning("the callback of a commit raised", exc_info=True)


def wind_up(error: BaseException, *steps: Callable[[ConnectorFailedError], object]) -> None:
    """Take each step after the loop has failed, whether or not the steps before it succeed.

    Called by the loop's thread, with the error for the application.
    """
    logger.critical("the connector's loop has failed; leaving the group", exc_info=error)
    failure = ConnectorFailedError(
        f"the connector has failed and leaves its group: {error!r}; the log of zkconsumer.member "
        "has the traceback; shut this connector down and make a new one"
    )
    failure.__cause__ = error
    for step in steps:
        try:
            step(failure)
        except BaseException:
            logger.critical("while leaving the group", exc_info=True)
