"""The gate before each mode: the conditions under which an operator's tool may write the mode.
Pure.

The tool reads the ``Facts``, checks ``obstacles``, and writes the mode only if its znode still has
the version in these facts. Everything unknown is an obstacle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Self

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.member_scripts import ahead_in_kafka, lower, named
from zkconsumer.core.migration.modes import Mode, neighbours
from zkmigrate.reasons import Reason


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of a group in a live move.

    Args:
        mode: the group's mode.
        version: the version of the mode's znode; -1 if there is none.
        registered: consumer ids below ``ids``, including those of legacy members.
        members: the migratable members, and the version of the mode that each has acknowledged, if
            any.
        ids_locked: whether legacy consumers are kept from registering.
        plain: members of the coordinator's group that are not migratable.
        former: members of the coordinator's group that are not migratable members but have the
            client id of one. After a restart, the old member remains there until its session ends.
        in_zookeeper: the offsets in ZooKeeper.
        in_kafka: the offsets in Kafka.
        misplaced: the offsets in ``/consumers/GROUP/offset``, which members do not read.
        foreign: znodes in another client's layout, which may contain offsets. Only known in mode
            ``zookeeper``.
        hidden: topics with offsets in ZooKeeper whose offsets in Kafka the brokers do not show.
        moved: whether a finished move to Kafka is recorded.
        all_locked: whether all members, even migratable ones, are kept from registering.
    """

    mode: Mode
    version: int
    registered: frozenset[str]
    members: Mapping[str, int | None]
    ids_locked: bool
    plain: frozenset[str]
    in_zookeeper: Mapping[TopicPartition, int]
    in_kafka: Mapping[TopicPartition, int]
    former: frozenset[str] = frozenset()
    misplaced: Mapping[TopicPartition, int] = field(default_factory=dict)
    foreign: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    moved: bool = False
    all_locked: bool = False


class Obstacle(str):
    """A sentence that says what prevents a mode. ``waits``: it may disappear by itself."""

    __slots__ = ("reason", "waits")
    reason: Reason
    waits: bool

    def __new__(cls, reason: Reason, text: str, waits: bool = False) -> Self:
        """Create an obstacle from its sentence."""
        made = super().__new__(cls, text)
        made.reason, made.waits = reason, waits
        return made


def obstacles(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
    """Return what prevents a change to ``target``; empty if nothing does.

    The change is possible without members, but then offsets are not copied from one store to the
    other.
    """
    if target not in neighbours(facts.mode):
        names = " or ".join(mode.value for mode in neighbours(facts.mode))
        text = f"the group is in mode {facts.mode.value}: the next one is {names}"
        return (Obstacle(Reason.WRONG_MODE, text),)
    reasons: list[Obstacle] = []
    late = {name for name, number in facts.members.items() if number != facts.version}
    # In a group that was never prepared there is no mode to acknowledge.
    if late and facts.version >= 0:
        wait = "wait"
        if facts.mode is not Mode.OPEN and facts.plain:
            # They joined before the mode was written, or before the first migratable member. With
            # them in the group, no member can join that offers only strategies which they do not
            # know.
            wait += f", or stop the plain members on the coordinator ({named(facts.plain)})"
        reasons.append(
            Obstacle(
                Reason.NOT_ACKNOWLEDGED,
                f"mode {facts.mode.value} is not acknowledged by {named(late)}: {wait}, or check "
                f"the health of these members",
                waits=True,
            )
        )
    if target is not Mode.ZOOKEEPER:  # every other mode keeps legacy consumers out
        legacy = facts.registered - facts.members.keys()
        if not facts.ids_locked:
            text = "legacy consumers can still register: lock the group's ids first"
            reasons.append(Obstacle(Reason.IDS_OPEN, text))
        if legacy:
            text = f"members that are not migratable: {named(legacy)}: restart these as such"
            reasons.append(Obstacle(Reason.NOT_MIGRATABLE, text))
    if target is Mode.LOCKED and facts.mode is Mode.ZOOKEEPER:
        reasons += start_obstacles(facts)
    elif target is Mode.KAFKA and facts.mode is Mode.OPEN:
        reasons += _others(facts)
    elif target is Mode.OPEN:
        reasons += _hidden(facts)
        shown = {tp: n for tp, n in facts.in_zookeeper.items() if tp.topic not in facts.hidden}
        behind = lower(facts.in_kafka, shown)
        if behind:
            reasons.append(_behind(facts, "Kafka than in ZooKeeper", behind))
    elif target is Mode.ZOOKEEPER:
        reasons += _others(facts)
        reasons += _hidden(facts)
        behind = lower(facts.in_zookeeper, facts.in_kafka)
        if behind:
            reasons.append(_behind(facts, "ZooKeeper than in Kafka", behind))
    return tuple(reasons)


def _others(facts: Facts) -> list[Obstacle]:
    """Return the obstacles of members of the coordinator's group that are not migratable."""
    reasons = []
    if facts.plain:
        text = f"plain members on the coordinator: {named(facts.plain)}: stop these first"
        reasons.append(Obstacle(Reason.PLAIN_MEMBER, text))
    if facts.former:
        text = (
            "plain members on the coordinator, or last incarnations of migratable members, whose "
            f"client id they have: {named(facts.former)}: stop them if they are plain ones; a "
            "last incarnation leaves when its session ends: wait"
        )
        reasons.append(Obstacle(Reason.FORMER_MEMBER, text, waits=True))
    return reasons


def start_obstacles(facts: Facts) -> list[Obstacle]:
    """Return why a live move must not start from the group's offsets in ZooKeeper."""
    reasons: list[Obstacle] = []
    if facts.moved:
        text = "the group counts as moved to Kafka, and its offsets in ZooKeeper no longer count"
        reasons.append(Obstacle(Reason.MOVED, text))
    ahead = lower(facts.in_zookeeper, facts.in_kafka)
    if ahead:
        reasons.append(Obstacle(Reason.AHEAD_IN_KAFKA, ahead_in_kafka(ahead)))
    reasons += _hidden(facts)
    below = lower(facts.in_zookeeper, facts.misplaced)
    if below:
        text = (
            "offsets that a 1.1.0 broker has stored below offset are higher than those below "
            f"offsets, where members read: {named(below)}: if they are right, stop the members "
            "and set them with zkmigrate reset --store zookeeper; if not, delete their znodes"
        )
        reasons.append(Obstacle(Reason.MISPLACED, text))
    if facts.foreign:
        text = (
            f"znodes in another client's layout: {named(facts.foreign)}: a live move leaves their "
            "offsets behind, so move the group with that client's tools; delete these znodes if no "
            "client uses them"
        )
        reasons.append(Obstacle(Reason.FOREIGN_LAYOUT, text))
    return reasons


def _hidden(facts: Facts) -> list[Obstacle]:
    """Return the obstacle that the offsets in the two stores cannot be compared."""
    if not facts.hidden:
        return []
    text = (
        f"the broker's access lists hide offsets in Kafka: {named(facts.hidden)}: allow zkmigrate "
        "to describe these topics"
    )
    return [Obstacle(Reason.HIDDEN, text)]


def may_pass(why: Sequence[Obstacle]) -> bool:
    """Whether all these obstacles may disappear by themselves, so that it is useful to wait."""
    return all(one.waits for one in why)


def _behind(facts: Facts, where: str, partitions: Set[str]) -> Obstacle:
    """Return the obstacle that offsets are not copied yet. Members copy them with each commit."""
    fix = "wait" if facts.members else "no migratable member is running to copy them: start one"
    text = f"offsets are lower in {where}: {named(partitions)}: {fix}"
    return Obstacle(Reason.BEHIND, text, waits=bool(facts.members))
