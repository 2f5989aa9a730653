"""Explains why none of a broker's listeners is usable. Loaded only in that case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zkconsumer.config.security_keys import PROTOCOLS, ListenerChoice

_SHOWN: Final = 8
"""Maximum number of listeners in the text."""


def why_unusable(
    broker_id: int,
    listeners: Sequence[tuple[str, str, str, int]],
    named: Sequence[tuple[str, str, str, int]],
    wanted: ListenerChoice,
) -> str:
    """Return a text with the listeners that a broker offers instead, and with the fix.

    ``listeners`` are all listeners of the broker (name, protocol, host and port), ``named`` those
    with the wanted name.
    """
    more = len(listeners) - _SHOWN
    offered = ", ".join(map(_text, listeners[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
    if wanted.name is not None and listeners:
        key = f"zkconsumer.listener.name={wanted.name}"
        if not named:
            return f"broker {broker_id} has no listener of this name: {key}; it offers {offered}"
        return f"broker {broker_id}: {key} is {_text(named[0])}: set security.protocol to it"
    text = f"{offered} only" if listeners else "no endpoint that can be read"
    settable = any(protocol in PROTOCOLS for _, protocol, _, _ in listeners)
    return (
        f"broker {broker_id} offers {text}, and security.protocol={wanted.protocol}: "
        f"{'set it to what is offered, ' if settable else ''}give a {wanted.protocol} listener "
        "with bootstrap.servers (--bootstrap-server HOST:PORT), or add one"
    )


def _text(listener: tuple[str, str, str, int]) -> str:
    name, protocol, host, port = listener
    shown = "" if name == protocol else f" as {name[:60]!a}"  # a stranger chose it
    return f"{protocol}{shown} at {host}:{port}"
