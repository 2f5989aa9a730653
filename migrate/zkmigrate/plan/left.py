"""What would be lost if ZooKeeper were switched off, and which znodes have an unknown format.
Pure.

A group passes only if everything below its znode is accounted for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkmigrate.model import GroupState, Store, exists
from zkmigrate.plan.table import Action, add_reasons
from zkmigrate.reasons import Reason
from zkmigrate.text import moment, shown


class Left(NamedTuple):
    """What a group would lose if ZooKeeper were switched off: a row of ``zkmigrate gate``, see its
    schema in ``rows``."""

    group: str
    left: bool
    lost: int
    decided: int
    not_understood: int
    members: int
    last_activity: str
    kafka: str
    why: str
    reasons: tuple[Reason, ...] = ()

    @classmethod
    def unknown(cls, group: str, reason: Reason, why: str) -> Left:
        """Return the row of a group that cannot be read. It needs attention."""
        return cls(group, True, 0, 0, 0, 0, "", "", f"{reason.value}: {why}", (reason,))

    @classmethod
    def elsewhere(
        cls, path: str, layout: str, example: str, znodes: int, newest_ms: int, fault: str
    ) -> Left:
        """Return the row of znodes that look like offsets but belong to no group. For the
        arguments, see ``surroundings.Place``."""
        newest = moment(newest_ms) if newest_ms else ""
        if fault:
            why, reason = f"cannot be looked at: {fault}", Reason.UNREADABLE
        elif layout:
            why = f"offsets in the layout {layout}, such as {example}"
            reason = Reason.FOREIGN_LAYOUT
        else:
            why, reason = f"not understood: {example} looks like an offset", Reason.FOREIGN_LAYOUT
        return cls(path, True, 0, 0, znodes, 0, newest, "", why, (reason,))

    def ignored(self, reason: str) -> Left:
        """Return the row of a group that an operator decided to leave behind."""
        return self._replace(left=False, why=f"ignored: {reason}", reasons=(Reason.IGNORED,))


def what_is_left(state: GroupState) -> Left:
    """Return which offsets and members of a group would be lost without ZooKeeper.

    Offsets of topics that no longer exist do not count. An offset that was moved or left behind by
    a plan, and has not changed since, is safe, even if the group has committed other offsets to
    Kafka. An offset that has disappeared from Kafka counts, because the migration marker in
    ZooKeeper may be its only record.
    """
    lost: set[TopicPartition] = set()
    hidden: set[TopicPartition] = set()
    decided: set[TopicPartition] = set()
    compared: set[str] = set()
    marker = state.marker
    moved = marker if state.moved_to is Store.KAFKA else None
    kafka = state.offsets(Store.KAFKA)
    for tp, offset, was in _stored(state):
        if tp.topic in state.hidden:
            hidden.add(tp)
            continue
        if not exists(state.topics, tp):
            continue
        held = kafka.get(tp)
        if offset is None or held is None:
            word = "none"
        elif held < offset:
            word = "older"
        else:
            word = "same" if held == offset else "newer"
        compared.add(word)
        if offset is None:
            lost.add(tp)
        elif word in ("same", "newer"):
            continue
        elif moved is not None and (
            moved.left.get(tp) == offset or (was == offset and tp not in moved.values)
        ):
            decided.add(tp)  # skipped, or found below ``offset`` and ignored
        elif moved is None or was != offset or held is None:
            lost.add(tp)
    gone = state.expired - lost if moved is not None else frozenset()
    newest = max((node.mtime_ms for node in state.zk.values()), default=None)
    whys: list[tuple[Reason, str]] = []
    if lost:
        whys.append((Reason.ONLY_IN_ZOOKEEPER, f"{len(lost)} offsets are only in ZooKeeper"))
    if gone:
        whys.append((Reason.EXPIRED, f"{len(gone)} offsets that were moved are gone from Kafka"))
    if hidden:
        text = (
            f"{len(hidden)} offsets are of topics that zkmigrate is not authorized to describe: "
            f"allow it to ({shown(sorted({tp.topic for tp in hidden}))})"
        )
        whys.append((Reason.HIDDEN, text))
    if state.members:
        whys.append((Reason.LIVE_MEMBER, f"{len(state.members)} members are live in ZooKeeper"))
    elif state.owners:
        text = f"{len(state.owners)} partitions have owners that are not registered"
        whys.append((Reason.OWNED, text))
    if state.mode is not Mode.ZOOKEEPER:
        text = f"is moved while it runs, in mode {state.mode.value}: zkmigrate live ends that"
        whys.append((Reason.LIVE_MOVE, text))
    add_reasons(whys, state, Action.GATE, state.faults)
    return Left(
        state.group,
        bool(whys),
        len(lost | hidden | gone),
        len(decided - lost),
        len(state.foreign),
        len(state.members),
        "" if newest is None else moment(newest),
        "mixed" if len(compared) > 1 else next(iter(compared), "none"),
        "; ".join(text for _, text in whys),
        tuple(reason for reason, _ in whys),
    )


def _stored(state: GroupState) -> Iterator[tuple[TopicPartition, int | None, int | None]]:
    """Yield the group's offsets in ZooKeeper, in both places, with those in the marker.

    ``None``: the offset cannot be read, or is not in the marker.
    """
    marker = state.marker
    for tp, znode in state.zk.items():
        if znode.offset is not None or znode.fault:
            yield tp, znode.offset, marker.values.get(tp) if marker else None
    for tp, offset in state.misplaced.items():
        yield tp, offset, marker.misplaced.get(tp) if marker else None
