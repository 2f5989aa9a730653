"""The content of registrations and migration markers, and the topics that filters match."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from zkconsumer.core.common.expansion import expand
from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.errors import ZkConsumerError

FILTERS: Final = ("white_list", "black_list")


class Registered(NamedTuple):
    """The subscription and streams in a registration."""

    pattern: str | None
    subscription: dict[str, int] | None
    """Topics, or a filter, with the number of streams."""


def registered(data: bytes | None) -> Registered:
    """Return the content of a registration's data. Its fields are ``None`` if the format is
    unknown."""
    content = _object(data)
    pattern, counts = content.get("pattern"), content.get("subscription")
    good = isinstance(counts, dict) and all(type(count) is int for count in counts.values())
    return Registered(pattern if isinstance(pattern, str) else None, counts if good else None)


def store_of(data: bytes | None) -> str | None:
    """Return the store that a migration marker records as the target of the move."""
    store = _object(data).get("moved_to")
    return store if isinstance(store, str) else None


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        content = json.loads((data or b"").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def topics_of_filter(pattern: str, regex: str, topics: Sequence[str]) -> list[str]:
    """Return the topics among ``topics`` that a member's filter matches; none if the filter is
    invalid.

    Internal topics are left out, as by members with default settings.
    """
    try:
        return list(expand("", Subscription(Pattern(pattern), {regex: 1}), topics, True))
    except (ZkConsumerError, ValueError):
        return []
