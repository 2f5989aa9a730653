"""Plans a move, from a group's state and the operator's options. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.core.common.types import INTERNAL_TOPICS, TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkmigrate.model import Direction, GroupState, Retention, Store
from zkmigrate.plan.findings import Findings, problem
from zkmigrate.plan.layout import reason_for
from zkmigrate.plan.left_out import LeftOut
from zkmigrate.plan.options import Options, covers
from zkmigrate.plan.partition import PartitionRules
from zkmigrate.plan.table import Action, decide
from zkmigrate.plan.values import Entry, GroupPlan, Problem
from zkmigrate.reasons import MEANING, Reason
from zkmigrate.text import DAY_MS, SOON_DAYS, Note, day

_OTHER_MOVE: Final = (
    Reason.MIRRORED, Reason.MIRROR_STOPPED, Reason.LEAVING, Reason.HANDED_OVER
)  # fmt: skip
"""Reasons why no plan can be made while the group is moved in another way."""


def plan_group(
    state: GroupState,
    direction: Direction,
    options: Options,
    now_ms: int,
    retention: Retention | None,
) -> GroupPlan:
    """Return the plan of one group: the offsets to write, or what prevents the move.

    ``retention`` is only needed for moves to Kafka. Offsets that the operator skips have no
    entries. The plan lists them as staying behind.
    """
    return _Planner(state, direction, options, now_ms, retention).plan()


@dataclass
class _Planner:
    state: GroupState
    direction: Direction
    options: Options
    now_ms: int
    retention: Retention | None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ignored: tuple[str, ...] = ()
    other_client: str = ""

    def __post_init__(self) -> None:
        self.findings = Findings(self.state.group)
        self.left_out = LeftOut(self.state, self.direction, self.options)

    def plan(self) -> GroupPlan:
        state = self.state
        self._live()
        self._live_move()
        self._layout()
        self._other_group()
        self._other_client()
        rules = PartitionRules(state, self.direction, self.options, self.findings)
        wanted = sorted(
            tp
            for tp in {
                *state.zk,
                *state.kafka,
                *state.misplaced,
                *(state.from_file or ()),
                *self._unstored(),
                *self._moved_unseen(),
                *state.expired,
            }
            if not self.left_out.leaves_out(tp)
        )
        entries = [entry for tp in wanted if (entry := rules.entry(tp)) is not None]
        self.other_client = self._new_other_client(rules.read_last)
        self.problems += self.findings.problems()
        stored = state.zk if self.direction.source is Store.ZOOKEEPER else state.kafka
        held = stored if state.from_file is None else state.from_file
        moved = self._is_moved(entries)
        in_kafka = self._stores_offsets_in_kafka()
        misplaced = state.misplaced if self.direction is Direction.ZK_TO_KAFKA else {}
        empty = not held and not misplaced and not state.expired
        if empty and not state.faults and not moved and not in_kafka:
            self._refuse(
                Reason.NOTHING,
                f"{self.direction.source.value} has no offset of the group",
                "check group, chroot and --direction",
            )
        if not moved:
            self._idle()
        unseen = {
            topic
            for topic in state.hidden - INTERNAL_TOPICS
            if not covers(self.left_out.skipped, TopicPartition(topic, -1))
        }
        self._note(entries, unseen - {tp.topic for tp in wanted})
        marker = state.marker.data if state.marker else None
        return GroupPlan(
            state.group,
            tuple(self.problems),
            tuple(self.notes),
            tuple(entries),
            marker,
            {
                entry.tp.topic: state.topics[entry.tp.topic].czxid
                for entry in entries
                if entry.write
            },
            self.left_out.patterns,
            tuple(sorted(self.left_out.stays)),
            moved=moved,
            kafka_group=state.kafka_group,
            znodes=self.ignored,
            other_client=self.other_client,
        )

    def _is_moved(self, entries: Iterable[Entry]) -> bool:
        """Whether an earlier move to the target is still valid, so that nothing is left to do.

        Then the target's own consumers may be running without preventing the plan.
        """
        marker = self.state.marker
        if (
            marker is None
            or marker.moved_to is not self.direction.target
            or self.state.from_file is not None
            or self.state.record.interrupted
            or self.findings
            or any(entry.write for entry in entries)
        ):
            return False
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        for entry in entries:
            committed = entry.kafka.offset if entry.kafka else None
            held = entry.zk if to_kafka else committed
            other = entry.misplaced not in (None, marker.misplaced.get(entry.tp))
            if other or held not in (None, marker.values.get(entry.tp)):
                return False  # the source store was used since: a new marker has to say so
        own = {Reason.COORDINATOR_MEMBER} if to_kafka else {Reason.LIVE_MEMBER, Reason.OWNED}
        self.problems = [problem for problem in self.problems if problem.kind not in own]
        return True

    def _unstored(self) -> Iterable[TopicPartition]:
        """Return partitions without an offset in either store, in topics with some offsets."""
        stored = {tp.topic for tp in (*self.state.zk, *self.state.kafka)}
        for topic, topic_state in self.state.topics.items():
            if topic in stored:
                for number in topic_state.partitions:
                    yield TopicPartition(topic, number)

    def _moved_unseen(self) -> Iterable[TopicPartition]:
        """Return partitions that were moved earlier, in topics whose offsets in Kafka are now
        hidden."""
        marker = self.state.marker
        return [tp for tp in marker.in_target if tp.topic in self.state.hidden] if marker else []

    def _refuse(self, kind: Reason, text: str, advice: str, names: Iterable[str] = ()) -> None:
        self.problems.append(problem(kind, text, advice, names))

    def _live(self) -> None:
        state = self.state
        if state.members:
            self._refuse(
                Reason.LIVE_MEMBER,
                "registered in ZooKeeper: ",
                "stop these members; a killed one vanishes when its session ends",
                state.members,
            )
        elif state.owners:
            self._refuse(
                Reason.OWNED,
                "owned by members that are not registered: ",
                f"delete /consumers/{state.group}/owners when no process of the group runs",
                (f"{tp} by {owner}" for tp, owner in sorted(state.owners.items())),
            )
        if state.coordinator_members:
            self._refuse(
                Reason.COORDINATOR_MEMBER,
                "joined at the broker's coordinator: ",
                "stop these consumers, or let them leave; then plan again",
                state.coordinator_members,
            )

    def _live_move(self) -> None:
        """Refuse a group that is mirrored, in a live move or handed over to another cluster. Its
        mode decides which store is valid."""
        answer = decide(self.state, Action.plan(self.direction))
        if answer.reason in _OTHER_MOVE:
            what, fix = (text.replace("`", "") for text in MEANING[answer.reason])
            self._refuse(answer.reason, what, fix)
        if answer.reason is Reason.LIVE_MOVE:
            fix = (
                "run zkmigrate complete; then it counts as moved"
                if self.state.mode is Mode.OPEN
                else "finish that with zkmigrate live, or go back with zkmigrate live to-zookeeper "
                "and zkmigrate unlock"
            )
            text = f"is moved while it runs, and is in mode {self.state.mode.value}"
            self._refuse(answer.reason, text, fix)

    def _stores_offsets_in_kafka(self) -> bool:
        """Whether a group in ZooKeeper has all of its offsets in Kafka (offsets.storage=kafka).

        Then nothing has to be written, but the group counts as moved only with a marker and a lock.
        """
        state = self.state
        if (
            self.direction is Direction.KAFKA_TO_ZK
            or not state.exists
            or state.from_file is not None
            or any(node.offset is not None or node.fault for node in state.zk.values())
            or not state.offsets(Store.KAFKA)
        ):
            return False
        self.notes.append(
            "its offsets are in Kafka already (offsets.storage=kafka): nothing has to be written"
        )
        return True

    def _layout(self) -> None:
        foreign = self.state.foreign
        if reason_for(self.state) is Reason.FOREIGN_LAYOUT:
            self._refuse(
                Reason.FOREIGN_LAYOUT,
                "not in the JVM consumer's format: ",
                "move this group with its own client's tools",
                foreign,
            )
        elif foreign and self.options.of_group(self.state.group).other_znodes == "ignore":
            self.notes.append(Note("these znodes stay as they are: ", foreign))
            self.ignored = foreign
        elif foreign:
            self._refuse(
                Reason.OTHER_ZNODES,
                "next to the group's offsets there are znodes of an unknown kind: ",
                "choose --other-znodes ignore if they hold no offsets",
                foreign,
            )
        record = self.state.record
        if record.in_doubt:
            fix = "compare these with their consumers, and set the right ones with zkmigrate reset"
            text = "newer offsets may have been overwritten in Kafka: "
            more = (f"{record.late_more} others",) if record.late_more else ()
            self._refuse(Reason.WRITTEN_LATE, text, fix, (*map(str, record.late), *more))
        for fault in self.state.faults:
            self._refuse(Reason.UNKNOWN, fault, "make it available again, then plan again")

    def _other_group(self) -> None:
        """Refuse a new name that another group in the target store has.

        A group that was moved under this name before is the same group.
        """
        state = self.state
        before = {"" if state.marker is None else state.marker.kafka_group}
        if state.record.interrupted:
            before.add(state.record.kafka_group)
        if not state.kafka_group or state.kafka_group in before:
            return
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        name = state.kafka_group if to_kafka else state.group
        if state.offsets(self.direction.target):
            self._refuse(
                Reason.GROUP_EXISTS,
                f"{self.direction.target.value} has another group {name} with offsets",
                "choose another name with --rename",
            )

    def _other_client(self) -> None:
        """Refuse to copy offsets from Kafka to znodes that the old client does not read, or would
        interpret differently."""
        if self.direction is Direction.ZK_TO_KAFKA or self.state.from_file is not None:
            return
        fix = "roll back with undo --force, which repeats messages, or write "
        if self._moved_from == "last":
            self._refuse(
                Reason.OTHER_CLIENT,
                "a number of its old client is the last record read: with Kafka's next offsets it "
                "would skip a record of each partition",
                f"{fix}one less than each of Kafka's offsets with --direction kafka-to-zk "
                "--from-file",
            )
        elif self._moved_from:
            source, how = f"the layout {self._moved_from}", "with that client's own tools"
            if self._moved_from == "file":
                source = "a file, without offsets in ZooKeeper"
                how += ", or with --direction kafka-to-zk --from-file if it reads them there"
            self._refuse(
                Reason.OTHER_CLIENT,
                f"was moved from {source}: its old client might not read "
                f"/consumers/{self.state.group}/offsets",
                f"{fix}Kafka's offsets {how}",
            )

    @property
    def _moved_from(self) -> str:
        """Return the marker's record about the old client of a group that is in Kafka."""
        marker = self.state.marker
        in_kafka = marker is not None and marker.moved_to is Store.KAFKA
        return marker.other_client if marker is not None and in_kafka else ""

    def _new_other_client(self, read_last: bool) -> str:
        """Return the new marker's record about the old client."""
        if self.direction is Direction.KAFKA_TO_ZK:
            return ""
        state = self.state
        without = state.from_file is not None and not state.zk and not state.misplaced
        return state.layout or (
            "last" if read_last else self._moved_from or ("file" if without else "")
        )

    def _idle(self) -> None:
        """Refuse groups that were idle for a long time. An operator must confirm that they are
        needed."""
        if self.direction is Direction.KAFKA_TO_ZK or self.state.from_file is not None:
            return
        newest = max((node.mtime_ms for node in self.state.zk.values()), default=None)
        if newest is None:
            return
        days = max(0, self.now_ms - newest) // DAY_MS
        if days > self.options.of_group(self.state.group).max_idle_days:
            self._refuse(
                Reason.IDLE,
                f"no offset was written for {days} days",
                f"if it is still needed give --max-idle-days {days}",
            )

    def _note(self, entries: Iterable[Entry], unseen: Iterable[str]) -> None:
        unset = [str(entry.tp) for entry in entries if entry.to is None]
        if unset:
            self.notes.append(Note("no offset, so auto.offset.reset decides: ", unset))
        if self.left_out.stays:
            given = self.state.from_file is not None
            source = self.state.given_by if given else self.direction.source.value
            left = map(str, sorted(self.left_out.stays))
            self.notes.append(Note(f"stays behind in {source}: ", left))
        if self.state.layout:
            self.notes.append(
                f"read from the layout {self.state.layout}: stop that client before apply, which "
                "refuses what has changed since"
            )
        if self.other_client:
            self.notes.append(
                "its old client may interpret numbers differently from Kafka's consumers: after "
                "new commits, "
                "undo refuses to copy Kafka's offsets back"
            )
        marker = self.state.marker
        if marker is not None:
            where = f"moved to {marker.moved_to.value}" if marker.moved_to else "rolled back"
            self.notes.append(f"was {where} on {day(marker.at_ms)}")
        if self.direction is Direction.ZK_TO_KAFKA and self.retention and not self.problems:
            days = self.retention.minutes / 1440
            span = f"{days:.0f} days" if days >= 1 else f"{self.retention.minutes} minutes"
            note = f"without commits, the broker deletes these offsets on {self.expiry()}"
            if days < SOON_DAYS:
                note += f" ({span}): start consumers, or raise offsets.retention.minutes"
            if not self.retention.known:
                note += "; the broker does not report its retention, this is the default"
            self.notes.append(note)
        if self.direction is Direction.KAFKA_TO_ZK:
            if unseen and self.state.from_file is None:
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
                    Note("ZooKeeper cannot store metadata, so the plan keeps it: ", rich)
                )

    def expiry(self) -> str:
        """The day on which offsets committed now expire, unless a consumer commits again."""
        assert self.retention is not None
        return day(self.now_ms + self.retention.minutes * 60_000)
