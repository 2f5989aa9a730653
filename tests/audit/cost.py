"""The CPU time of a piece of work, for tests of how it grows with its input."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """The CPU seconds of the fastest of three calls."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)
