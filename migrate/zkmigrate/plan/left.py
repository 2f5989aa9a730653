"""The offsets that would be lost if ZooKeeper were switched off, as only it has them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import GroupState, Store, number

_LAST_MS = 253_402_300_799_000


class Left(NamedTuple):
    """One group. ``lost``: offsets that are missing or lower in Kafka.

    ``kafka`` compares the whole group: ``none``, ``older``, ``same``, ``newer``, or ``mixed`` where
    partitions differ. ``last_activity``: when an offset was stored last, in UTC; empty if unknown.
    """

    group: str
    left: bool
    lost: int
    members: int
    last_activity: str
    kafka: str
    why: str

    @classmethod
    def unknown(cls, group: str, why: str) -> Left:
        """Return the row of a group that could not be read and so counts as left behind."""
        return cls(group, True, 0, 0, "", "", why)


def what_is_left(state: GroupState) -> Left:
    """Return the offsets and members of a group that would be lost.

    Offsets of topics that do not exist do not count. An offset that was moved and has not changed
    since is safe, whatever the group has committed to Kafka after the move.
    """
    lost: list[TopicPartition] = []
    compared: set[str] = set()
    marker = state.marker
    moved = marker is not None and marker.moved_to is Store.KAFKA
    for tp, znode in state.zk.items():
        topic = state.topics.get(tp.topic)
        if znode.offset is None and not znode.fault:
            continue
        if topic is None or tp.partition not in topic.partitions:
            continue
        held = number(state.kafka.get(tp))
        if znode.offset is None or held is None:
            word = "none"
        elif held < znode.offset:
            word = "older"
        else:
            word = "same" if held == znode.offset else "newer"
        compared.add(word)
        settled = moved and marker is not None and marker.values.get(tp) == znode.offset
        if word in ("none", "older") and not (settled and held is not None):
            lost.append(tp)
    newest = max((node.mtime_ms for node in state.zk.values()), default=None)
    reasons = []
    if lost:
        reasons.append(f"{len(lost)} offsets are only in ZooKeeper")
    if state.members:
        reasons.append(f"{len(state.members)} members are live in ZooKeeper")
    reasons += state.faults
    return Left(
        state.group,
        bool(reasons),
        len(lost),
        len(state.members),
        "" if newest is None else _time(newest),
        "mixed" if len(compared) > 1 else next(iter(compared), "none"),
        "; ".join(reasons),
    )


def _time(at_ms: int) -> str:
    moment = datetime.fromtimestamp(min(at_ms, _LAST_MS) / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
