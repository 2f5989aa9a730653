"""Makes untrusted text safe for messages and terminals, and shortens lists of names. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 3

_LEFT_TO_RIGHT: Final = frozenset({"L", "EN", "ES", "ET", "CS", "ON", "NSM"})
"""Classes of the bidirectional algorithm that do not change the order of a line."""


def printable(text: str, everywhere: bool = True) -> str:
    """Return text with everything but printable ASCII escaped, as ``\\x1b`` or ``\\u202e``.

    Anyone who reaches ZooKeeper can make znodes of almost any name: control characters would reach
    the terminal, bidirectional ones would show a name that is not there.

    ``everywhere``: also on terminals without UTF-8. Otherwise letters, digits and signs of other
    scripts stay as they are, unless they are written from right to left: they would move what is
    next to them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if _is_safe(char, everywhere) else char.encode("unicode_escape").decode()
        for char in text
    )


def shown(texts: Iterable[str]) -> str:
    """Return the first three texts and the number of the others."""
    every = list(texts)
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_safe(char: str, everywhere: bool) -> bool:
    if char.isascii() or everywhere:
        return char.isascii() and char.isprintable()
    return char.isprintable() and unicodedata.bidirectional(char) in _LEFT_TO_RIGHT
