"""InUseError: a call reads a stream while another one does.

The other call is in another thread, or a signal handler has interrupted it. Any thread may use what
is here.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from zkconsumer.errors import UsageError

_READING: Final = frozenset({__name__, "zkconsumer.runtime.delivery.consumer_iterator"})
"""Modules whose functions read a stream. No signal handler is in them."""


class InUseError(UsageError):
    """Another call reads the stream."""


def refuse() -> NoReturn:
    """Raise the error for the current call. Its text depends on where the other call is."""
    frame = sys._getframe(1)
    interrupts = False
    while frame.f_back is not None:
        before, frame = frame, frame.f_back
        reads = frame.f_globals.get("__name__") in _READING
        interrupts |= reads and before.f_globals.get("__name__") not in _READING
    if interrupts:
        raise InUseError(
            "a signal handler cannot read a stream while it interrupts a read of it: set a flag, "
            "or raise an exception"
        )
    raise InUseError(
        "another thread reads this stream: use one thread for each stream, and ask for as many "
        "streams as there are threads"
    )


def is_refusal(error: BaseException) -> bool:
    """Whether the calling function got the error from the call it made. Otherwise a signal handler
    has raised."""
    place = error.__traceback__
    while place is not None and place.tb_frame.f_globals.get("__name__") in _READING:
        place = place.tb_next
    return place is None
