"""Passes one input to one target, and reports what the target did wrong."""

from __future__ import annotations

import time

from tests.fuzz.targets import Target
from zkconsumer.errors import ZnodeFormatError


def fault(target: Target, data: bytes) -> str | None:
    """Return what ``target`` did that it must not do, or ``None``.

    An input that takes too long is tried twice more, because the machine may have been busy. The
    shortest CPU time of this thread counts.
    """
    least = float("inf")
    for _ in range(3):
        begun = time.thread_time()
        try:
            target.run(data)
        except target.errors as error:
            text = str(error)
            if isinstance(error, ZnodeFormatError) and not (
                text.isascii() and text.isprintable() and len(text) < 1000
            ):
                return f"its error is not a short, printable line of ASCII: {text!a}"
        except MemoryError:
            return "it asked for more memory than there is"
        except Exception as error:  # noqa: BLE001 - any other is the finding
            return f"it raised {type(error).__name__}: {error}"
        least = min(least, time.thread_time() - begun)
        if least <= target.limit_s:
            return None
    return f"it took {least:.3f} s of CPU time, allowed are {target.limit_s:g} s"
