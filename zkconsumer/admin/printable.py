"""Makes untrusted text safe for messages and terminals, and shortens lists of names. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 3

_LEFT_TO_RIGHT: Final = frozenset({"L", "EN", "ES", "ET", "CS", "ON", "NSM"})
"""Bidirectional classes of characters that keep the order of a line."""


def printable(text: str, everywhere: bool = True) -> str:
    """Return text with all unprintable characters escaped, as ``\\x1b`` or ``\\u202e``.

    Any client of ZooKeeper can create znodes with almost any name. Control characters would reach
    the terminal, and bidirectional characters could disguise a name.

    ``everywhere``: escape everything but printable ASCII, for terminals without UTF-8. Otherwise
    characters of other scripts stay as they are, unless they are written from right to left, which
    would reorder the text next to them.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if _is_safe(char, everywhere) else char.encode("unicode_escape").decode()
        for char in text
    )


def shown(texts: Iterable[str]) -> str:
    """Join the first three texts, and add how many more there are."""
    every = list(texts)
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_safe(char: str, everywhere: bool) -> bool:
    if char.isascii() or everywhere:
        return char.isascii() and char.isprintable()
    return char.isprintable() and unicodedata.bidirectional(char) in _LEFT_TO_RIGHT
