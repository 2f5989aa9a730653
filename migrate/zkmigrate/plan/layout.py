"""Znodes of a group that neither Kafka's nor this project's programs create. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from zkconsumer.admin.snapshot import CHILDREN, CONSUMERS
from zkmigrate.model import GroupState
from zkmigrate.reasons import Reason

_STORM: Final = re.compile(r"partition_[0-9]+")
"""Where storm-kafka stores offsets in a group's znode."""


def is_foreign_layout(group: str, foreign: Sequence[str], has_offsets: bool) -> bool:
    """Whether these znodes are another client's offsets, and not merely next to the group's.

    ``has_offsets``: whether the group has offset znodes of its own.
    """
    return bool(foreign) and not (has_offsets and all(_is_other(group, path) for path in foreign))


def reason_for(state: GroupState) -> Reason | None:
    """Return why the znodes of a group are not understood; ``None`` if all are."""
    if not state.foreign:
        return None
    whole = is_foreign_layout(state.group, state.foreign, bool(state.zk))
    return Reason.FOREIGN_LAYOUT if whole else Reason.OTHER_ZNODES


def _is_other(group: str, path: str) -> bool:
    """Whether a znode is next to those of a JVM consumer, and not where Storm has offsets."""
    parent, _, name = path.rpartition("/")
    own = name in CHILDREN or _STORM.fullmatch(name)
    return parent == f"{CONSUMERS}/{group}" and not own
