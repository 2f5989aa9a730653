"""Makes foreign text fit for a terminal and for the report. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text with every character escaped that is invisible or turns text around."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
