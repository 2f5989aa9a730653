"""Lines of a member's log about the partitions that it gets and gives up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from zkconsumer.core.common import commands
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.commands import Release

_SHOWN: Final = 5
"""How many partitions a line names."""


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """The number of partitions, and the names of the first ones."""
    names = [str(tp) for tp in sorted(partitions)]
    more = ", ..." if len(names) > _SHOWN else ""
    noun = "partition" if len(names) == 1 else "partitions"
    return f"{len(names)} {noun} ({', '.join(names[:_SHOWN])}{more})"


def ownership_line(command: Any, leaving: bool) -> str:
    """The line for a command of a member's machine; empty if it says nothing about ownership.

    ``leaving``: the member leaves its group.
    """
    why = "this member leaves the group" if leaving else "assigned to other members"
    match command:
        case commands.StartFetching(_, partitions) if partitions:
            return f"claimed {partitions_text(partitions)}: assigned to this member"
        case Release(_, _, partitions) | commands.Forget(partitions) if partitions:
            return f"released {partitions_text(partitions)}: {why}"
        case commands.Drop(partitions) if partitions:
            return f"lost {partitions_text(partitions)}: no longer owned, dropped without a commit"
    return ""
