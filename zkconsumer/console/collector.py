"""Switches the garbage collector off while many objects without cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Switch the garbage collector off while many znodes, offsets or transactions are read.

    They contain no cycles, and the collector's passes over them are slow.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
