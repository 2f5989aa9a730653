"""Repeats a read of the servers until a signal ends the command. Main thread only."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from zkconsumer.console.signals import EXIT_SIGNAL, SignalledError, signals_raise
from zkconsumer.errors import ZkConsumerError

T = TypeVar("T")


def repeat(
    look: Callable[[], T],
    show: Callable[[T, float], object],
    failed: Callable[[ZkConsumerError], object],
    every: float,
    seconds: float | None = None,
    patient: bool = False,
) -> int:
    """Call a function every ``every`` seconds, for ``seconds`` in total, until SIGINT or SIGTERM.

    Args:
        look: reads the servers once.
        show: gets the result, and the time (``time.monotonic``) at which the read began. Returns
            true to stop.
        failed: gets the error of a failed read. A later read may succeed.
        patient: repeat even if no read has succeeded yet.

    Returns the exit status: that of a signal, or 0. Raises ZkConsumerError if the first read fails,
    unless ``patient``.
    """
    begun, first = time.monotonic(), not patient
    try:
        with signals_raise() as check_signals:
            while True:
                at = time.monotonic()
                try:
                    seen = look()
                except ZkConsumerError as error:
                    check_signals()
                    if first:
                        raise
                    failed(error)
                else:
                    check_signals()
                    first = False
                    if show(seen, at):
                        return 0
                if seconds is not None and time.monotonic() - begun >= seconds:
                    return 0
                time.sleep(max(0.0, at + every - time.monotonic()))
    except SignalledError as signalled:
        return EXIT_SIGNAL + signalled.number
