"""The texts of owner znodes: which member one names, and how people read it. Pure."""

from __future__ import annotations

from zkconsumer.core.common.types import ConsumerThreadId
from zkconsumer.core.zookeeper.ops import session_text


def owner_of(text: str, session: int | None) -> str:
    """Return an owner znode's text and session for people."""
    shown = ascii(text[:60])[1:-1]
    if session is None:
        return shown
    return f"{shown} (session {session_text(session)})" if session else f"{shown} (no session)"


def consumer_of(text: str) -> str:
    """Return the member that an owner znode's text names, or the text itself."""
    try:
        return ConsumerThreadId.parse(text).consumer
    except ValueError:
        return text
