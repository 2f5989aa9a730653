"""Decides, from a snapshot and the operator's options, what a move would do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final

from zkconsumer.admin.text import printable
from zkconsumer.core.common.topic_filter import INTERNAL_TOPICS
from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import (
    Direction,
    Entry,
    GroupPlan,
    GroupState,
    Kind,
    MissingTopics,
    Note,
    OnConflict,
    Options,
    OutOfRange,
    Problem,
    Retention,
    Slipped,
    StaysBehind,
    Store,
    covers,
    shown as shown,
)

DAY_MS: Final = 86_400_000
SOON_DAYS: Final = 3
CLOCKS_MS: Final = 60_000
"""How far the clocks of ZooKeeper and brokers may differ where a rollback set both times."""
_SKIPPED: Final = "skipped"
_BY_PARTITION: Final = (Kind.UNREADABLE, Kind.PARTITION_MISSING)
_SKIPPABLE: Final = (Kind.HIDDEN, Kind.RECREATED, Kind.TOPIC_MISSING, *_BY_PARTITION)
_TEXTS: Final = {
    Kind.HIDDEN: "the broker's access lists hide offsets in Kafka: ",
    Kind.TOPIC_MISSING: "the topic does not exist: ",
    Kind.PARTITION_MISSING: "the topic has no such partition: ",
    Kind.UNKNOWN: "the brokers gave no log range: ",
}
_ADVICE: Final = {
    Kind.HIDDEN: "allow the migrator to describe the topic, or leave it out with",
    Kind.UNREADABLE: "correct the znode with zkconsumer offsets import, or leave it out with",
    Kind.CONFLICT: "choose --on-conflict zookeeper, kafka, newest, min or max",
    Kind.WOULD_LOWER: "the group was moved to the target before, so --on-conflict does not lower "
    "what the target holds: choose max, or give the offsets that are meant with --from-file",
    Kind.OUT_OF_RANGE: "choose --out-of-range clamp, or correct the offset",
    Kind.TOPIC_MISSING: "leave all such offsets out with --missing-topics skip, or some with",
    Kind.PARTITION_MISSING: "add partitions, or leave all such offsets out with --missing-topics "
    "skip, or some with",
    Kind.RECREATED: "the offset means another log: leave it out with",
    Kind.SLIPPED: "choose --slipped use or --slipped ignore",
    Kind.UNKNOWN: "see that the partition has a leader, then plan again",
}


def plan_group(
    state: GroupState,
    direction: Direction,
    options: Options,
    now_ms: int,
    retention: Retention | None,
) -> GroupPlan:
    """Return the plan of one group: what to write and why, or what stands in the way.

    ``retention`` is only needed on the way to Kafka. Offsets that are to be skipped have no
    entries: they stay behind, and the plan lists them.
    """
    return _Planner(state, direction, options, now_ms, retention).plan()


class _Planner:
    def __init__(
        self,
        state: GroupState,
        direction: Direction,
        options: Options,
        now_ms: int,
        retention: Retention | None,
    ) -> None:
        self.state = state
        self.direction = direction
        self.options = options
        self.now_ms = now_ms
        self.retention = retention
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.found: dict[Kind, dict[TopicPartition, str]] = {}
        self.skipped = frozenset(
            skip.pattern for skip in options.skips if fnmatchcase(state.group, skip.group)
        )
        self.missing: set[str] = set()
        self.stays: list[StaysBehind] = []

    def plan(self) -> GroupPlan:
        state = self.state
        self._live()
        self._layout()
        wanted = sorted(
            tp
            for tp in {
                *state.zk,
                *state.kafka,
                *state.slipped,
                *(state.given or ()),
                *self._unstored(),
                *self._moved_unseen(),
            }
            if not self._stays_behind(tp)
        )
        entries = [entry for tp in wanted if (entry := self._entry(tp)) is not None]
        self._collect()
        stored = state.zk if self.direction.source is Store.ZOOKEEPER else state.kafka
        held = stored if state.given is None else state.given
        moved = self._is_moved(entries)
        if not held and not state.slipped and not state.faults and not moved:
            self._refuse(
                Kind.NOTHING,
                f"{self.direction.source.value} holds no offset of the group",
                "check group, chroot and --direction",
            )
        if not moved:
            self._idle()
        unseen = {
            topic
            for topic in state.hidden - INTERNAL_TOPICS
            if not covers(self.skipped, TopicPartition(topic, -1))
        }
        self._tell(entries, unseen - {tp.topic for tp in wanted})
        tombstone = state.tombstone.data if state.tombstone else None
        return GroupPlan(
            state.group,
            tuple(self.problems),
            tuple(self.notes),
            tuple(entries),
            tombstone,
            {
                entry.tp.topic: state.topics[entry.tp.topic].czxid
                for entry in entries
                if entry.write
            },
            self.skipped | self.missing,
            tuple(sorted(self.stays)),
            moved,
        )

    def _stays_behind(self, tp: TopicPartition) -> bool:
        """Whether a partition is left out; its offset is then noted, where there is one."""
        why = self._why_left_out(tp)
        if why is None:
            return False
        state = self.state
        zk, kafka = state.zk.get(tp), state.kafka.get(tp)
        in_zk = zk.offset if zk else None
        in_kafka = kafka.offset if kafka else None
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        if state.given is not None:
            source = state.given.get(tp)
        elif to_kafka:
            source = state.slipped.get(tp) if in_zk is None else in_zk
        else:
            source = in_kafka
        unknown = state.given is None and (
            (to_kafka and zk is not None and bool(zk.fault))
            or (not to_kafka and tp.topic in state.hidden)
        )
        if why != _SKIPPED:
            if source is None and not unknown:
                return False  # what the target alone holds stays as it is
            self.missing.add(f"{tp.topic}:{tp.partition}")
        if unknown or (source is not None and source != (in_kafka if to_kafka else in_zk)):
            self.stays.append(StaysBehind(tp, None if unknown else source, why))
        return True

    def _why_left_out(self, tp: TopicPartition) -> str | None:
        if covers(self.skipped, tp):
            return _SKIPPED
        if self.options.missing_topics is MissingTopics.SKIP:
            topic = self.state.topics.get(tp.topic)
            if topic is None:
                return Kind.TOPIC_MISSING.value
            if tp.partition not in topic.partitions:
                return Kind.PARTITION_MISSING.value
        return None

    def _is_moved(self, entries: Iterable[Entry]) -> bool:
        """Whether an earlier move to the target still holds, so that nothing is left to do.

        Then the target's own consumers may run, and are not in the way.
        """
        stone = self.state.tombstone
        if (
            stone is None
            or stone.moved_to is not self.direction.target
            or self.state.given is not None
            or self.found
            or any(entry.write for entry in entries)
        ):
            return False
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        for entry in entries:
            committed = entry.kafka.offset if entry.kafka else None
            held = entry.zk if to_kafka else committed
            if held is not None and held != stone.values.get(entry.tp):
                return False  # the source store was used since: a new marker has to say so
        own = {Kind.COORDINATOR_MEMBER} if to_kafka else {Kind.LIVE_MEMBER, Kind.OWNED}
        self.problems = [problem for problem in self.problems if problem.kind not in own]
        return True

    def _unstored(self) -> Iterable[TopicPartition]:
        """Partitions that neither store has an offset of, in topics that one has some of."""
        stored = {tp.topic for tp in (*self.state.zk, *self.state.kafka)}
        for topic, found in self.state.topics.items():
            if topic in stored:
                for number in found.partitions:
                    yield TopicPartition(topic, number)

    def _moved_unseen(self) -> Iterable[TopicPartition]:
        """Partitions that were moved once, in topics whose offsets in Kafka we may not see now."""
        stone = self.state.tombstone
        return [tp for tp in stone.values if tp.topic in self.state.hidden] if stone else []

    def _refuse(
        self,
        kind: Kind,
        text: str,
        advice: str,
        names: Iterable[str] = (),
        skips: Iterable[str] = (),
    ) -> None:
        listed, leave = map(printable, names), map(printable, skips)
        self.problems.append(
            Problem(kind, printable(text), printable(advice), tuple(listed), tuple(leave))
        )

    # -- who is there --------------------------------------------------------------------------

    def _live(self) -> None:
        state = self.state
        if state.members:
            self._refuse(
                Kind.LIVE_MEMBER,
                "registered in ZooKeeper: ",
                "stop these members; a killed one vanishes when its session ends",
                state.members,
            )
        elif state.owners:
            self._refuse(
                Kind.OWNED,
                "owned by members that are not registered: ",
                f"delete /consumers/{state.group}/owners when no process of the group runs",
                (f"{tp} by {owner}" for tp, owner in sorted(state.owners.items())),
            )
        if state.coordinator_members:
            self._refuse(
                Kind.COORDINATOR_MEMBER,
                "joined at the broker's coordinator: ",
                "stop these consumers, or let them leave; then plan again",
                state.coordinator_members,
            )

    def _layout(self) -> None:
        if self.state.foreign:
            self._refuse(
                Kind.FOREIGN_LAYOUT,
                "not as the JVM's consumer writes it: ",
                "move this group with the tool of its own client",
                self.state.foreign,
            )
        for fault in self.state.faults:
            self._refuse(Kind.UNKNOWN, fault, "bring that back, then plan again")

    # -- partitions ----------------------------------------------------------------------------

    def _found(self, kind: Kind, tp: TopicPartition, text: str = "") -> None:
        self.found.setdefault(kind, {})[tp] = f"{tp}{text}"

    def _entry(self, tp: TopicPartition) -> Entry | None:
        state = self.state
        if tp.topic in state.hidden:
            self._found(Kind.HIDDEN, tp)
            return None
        znode = state.zk.get(tp)
        kafka = state.kafka.get(tp)
        zk = znode.offset if znode else None
        version = znode.version if znode else None
        if znode is not None and znode.fault:
            self._found(Kind.UNREADABLE, tp, f": {znode.fault}")
            return None
        committed = kafka.offset if kafka else None
        done = self._moved_before(tp, zk, committed)
        if done is not None:
            return Entry(tp, zk, version, kafka, *done)
        source_zk = zk
        slip = state.slipped.get(tp)
        if slip is not None and slip != zk and self.direction is Direction.ZK_TO_KAFKA:
            if self.options.slipped is Slipped.REFUSE:
                self._found(Kind.SLIPPED, tp, f": {slip} below offset, {show(zk)} below offsets")
                return None
            if self.options.slipped is Slipped.USE:
                source_zk = slip
        if state.given is not None:
            value, reason = self._given(tp, zk, committed)
            stays = tp not in state.given
        else:
            value, reason = self._choose(tp, source_zk, committed)
            stays = (source_zk if self.direction.source is Store.ZOOKEEPER else committed) is None
        if source_zk != zk:
            reason += "; stored below offset by a 1.1.0 broker"
        if value is not None and not stays:
            usable = self._usable(tp, value)
            if usable is None:
                return None
            value, remark = usable
            reason += remark
        held = zk if self.direction.target is Store.ZOOKEEPER else committed
        return Entry(tp, zk, version, kafka, value, value != held, reason)

    def _given(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int | None, str]:
        """Return what the target is to hold when a file says it: both stores may differ."""
        assert self.state.given is not None
        target = kafka if self.direction is Direction.ZK_TO_KAFKA else zk
        if tp in self.state.given:
            return self.state.given[tp], "from the file"
        return target, "not in the file: it stays"

    def _moved_before(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int, bool, str] | None:
        """Return the rest of the entry of a partition that an earlier move to the target settles.

        That is so while the source store has not changed since: its offset is not a conflict.
        """
        stone = self.state.tombstone
        source, target = self.direction.source, self.direction.target
        held, stays = (zk, kafka) if source is Store.ZOOKEEPER else (kafka, zk)
        if (
            stone is None
            or stone.moved_to is not target
            or self.state.given is not None
            or stays is None
            or held is None
            or stone.values.get(tp) != held
        ):
            return None
        return stays, False, f"{source.value} has not changed since the move to {target.value}"

    def _choose(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int | None, str]:
        """Return what the target is to hold, and why."""
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        source, target = (zk, kafka) if to_kafka else (kafka, zk)
        from_name, to_name = self.direction.source.value, self.direction.target.value
        if source is None and target is None:
            return None, "no offset: auto.offset.reset decides"
        if source is None:
            return target, f"only {to_name} has an offset: it stays"
        if target is None:
            return source, f"only {from_name} has an offset"
        if source == target:
            return source, "both hold it"
        stone = self.state.tombstone
        if (
            stone is not None
            and stone.moved_to is self.direction.source
            and stone.values.get(tp) == target
        ):
            return source, f"{to_name} has not changed since the group was moved to {from_name}"
        moved_here = stone is not None and stone.moved_to is self.direction.target
        both = f": zookeeper {zk}, kafka {kafka}"
        if stone is not None and moved_here:
            then = show(stone.values.get(tp)) if stone.values else "not known"
            both += f" ({from_name} at the move: {then})"
        match self.options.on_conflict:
            case OnConflict.REFUSE:
                self._found(Kind.CONFLICT, tp, both)
                return target, "conflict"
            case OnConflict.ZOOKEEPER | OnConflict.KAFKA as rule:
                chosen = zk if rule is OnConflict.ZOOKEEPER else kafka
            case OnConflict.MIN | OnConflict.MAX as rule:
                chosen = (min if rule is OnConflict.MIN else max)(source, target)
            case OnConflict.NEWEST:
                chosen = self._newest(tp, zk, kafka)
                if chosen is None:
                    return target, "conflict"
        if moved_here and chosen is not None and chosen < target:
            self._found(Kind.WOULD_LOWER, tp, both)
            return target, "conflict"
        other = kafka if chosen == zk else zk
        side = Store.ZOOKEEPER if chosen == zk else Store.KAFKA
        rule_name = self.options.on_conflict.value
        return chosen, f"conflict: {side.value} by --on-conflict {rule_name} (the other: {other})"

    def _newest(self, tp: TopicPartition, zk: int | None, kafka: int | None) -> int | None:
        znode, committed = self.state.zk.get(tp), self.state.kafka.get(tp)
        if znode is None or committed is None or committed.commit_ms is None:
            self._found(
                Kind.CONFLICT,
                tp,
                f": zookeeper {zk}, kafka {kafka}, and no time of the commit is known",
            )
            return None
        stone = self.state.tombstone
        newer = max(znode.mtime_ms, committed.commit_ms)
        if stone is not None and stone.moved_to is None and newer <= stone.at_ms + CLOCKS_MS:
            self._found(
                Kind.CONFLICT,
                tp,
                f": zookeeper {zk}, kafka {kafka}, and their times do not count, since a "
                f"rollback restored offsets on {day(stone.at_ms)}",
            )
            return None
        if znode.mtime_ms == committed.commit_ms:
            self._found(Kind.CONFLICT, tp, f": zookeeper {zk}, kafka {kafka}, equally new")
            return None
        return zk if znode.mtime_ms > committed.commit_ms else kafka

    def _usable(self, tp: TopicPartition, value: int) -> tuple[int, str] | None:
        """Check an offset against topic and log; ``None`` when it cannot be used."""
        topic = self.state.topics.get(tp.topic)
        if topic is None:
            self._found(Kind.TOPIC_MISSING, tp)
            return None
        if tp.partition not in topic.partitions:
            self._found(Kind.PARTITION_MISSING, tp, f" of {len(topic.partitions)}")
            return None
        znode = self.state.zk.get(tp)
        if (
            znode is not None
            and znode.offset == value
            and znode.mzxid < topic.czxid
            and tp not in self.state.slipped
        ):
            self._found(Kind.RECREATED, tp, f": {value} was stored before the topic was created")
            return None
        log = self.state.ranges.get(tp)
        if log is None:
            self._found(Kind.UNKNOWN, tp)
            return None
        if log.earliest <= value <= log.latest:
            return value, ""
        if self.options.out_of_range is OutOfRange.REFUSE:
            self._found(Kind.OUT_OF_RANGE, tp, f": {value}, the log is {log.earliest}-{log.latest}")
            return value, ""
        bound = log.earliest if value < log.earliest else log.latest
        return bound, f"; {value} clamped to the log's {log.earliest}-{log.latest}"

    # -- the rest ------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Turn what was found of partitions into one problem for each kind."""
        for kind, found in self.found.items():
            skips: dict[str, None] = {}
            for tp in found if kind in _SKIPPABLE else ():
                place = f"{tp.topic}:{tp.partition}" if kind in _BY_PARTITION else tp.topic
                skips[f"{self.state.group}:{place}"] = None
            self._refuse(kind, _TEXTS.get(kind, ""), _ADVICE[kind], found.values(), skips)

    def _idle(self) -> None:
        """Groups that nobody has used for long are not moved back to life unasked."""
        if self.direction is Direction.KAFKA_TO_ZK or self.state.given is not None:
            return
        newest = max((node.mtime_ms for node in self.state.zk.values()), default=None)
        if newest is None:
            return
        days = max(0, self.now_ms - newest) // DAY_MS
        if days > self.options.max_idle_days:
            self._refuse(
                Kind.IDLE,
                f"no offset was written for {days} days",
                f"if it is still needed give --max-idle-days {days}",
            )

    def _tell(self, entries: Iterable[Entry], unseen: Iterable[str]) -> None:
        unset = [str(entry.tp) for entry in entries if entry.to is None]
        if unset:
            self.notes.append(Note("no offset, so auto.offset.reset decides: ", unset))
        if self.stays:
            source = self.direction.source.value if self.state.given is None else "the file"
            left = map(str, sorted(self.stays))
            self.notes.append(Note(f"stays behind in {source}: ", left))
        stone = self.state.tombstone
        if stone is not None:
            where = f"moved to {stone.moved_to.value}" if stone.moved_to else "rolled back"
            self.notes.append(f"was {where} on {day(stone.at_ms)}")
        if self.direction is Direction.ZK_TO_KAFKA and self.retention is not None:
            days = self.retention.minutes / 1440
            note = f"without a commit the broker forgets what is moved today on {self.expiry()}"
            if days < SOON_DAYS:
                note += f" ({days:g} days): start consumers, or raise offsets.retention.minutes"
            if not self.retention.known:
                note += "; the broker does not tell its retention, this is the default"
            self.notes.append(note)
        if self.direction is Direction.KAFKA_TO_ZK:
            if unseen and self.state.given is None:
                self.notes.append(
                    Note(
                        "the broker's access lists hide offsets of these topics, which do not move "
                        "if the group has any: ",
                        sorted(unseen),
                    )
                )
            rich = [str(e.tp) for e in entries if e.write and e.kafka and e.kafka.metadata]
            if rich:
                self.notes.append(
                    Note("metadata has no place in ZooKeeper, the journal keeps it: ", rich)
                )

    def expiry(self) -> str:
        """The day on which offsets committed now expire, if nobody commits again."""
        assert self.retention is not None
        return day(self.now_ms + self.retention.minutes * 60_000)


def day(at_ms: int) -> str:
    """Return the UTC day of a moment, as ``2024-05-31``."""
    return datetime.fromtimestamp(min(at_ms, 253_402_300_799_000) / 1000, UTC).date().isoformat()


def show(offset: int | None) -> str:
    """Return an offset for a message."""
    return "none" if offset is None else str(offset)
