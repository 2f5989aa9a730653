"""Computes the offset that the target will have for one partition, and why. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import Direction, GroupState, Log, Store, exists
from zkmigrate.plan.findings import Findings
from zkmigrate.plan.layout import LAYOUTS, Means
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import Entry
from zkmigrate.reasons import Reason
from zkmigrate.text import day, show

CLOCKS_MS: Final = 60_000
"""Possible difference in milliseconds between ZooKeeper's and the brokers' clocks, for times set
by a rollback."""


class PartitionRules:
    """Plans the partitions of one group. Problems are added to ``findings``."""

    def __init__(
        self, state: GroupState, direction: Direction, options: Options, findings: Findings
    ) -> None:
        self.state = state
        self.direction = direction
        self._group_options = options.of_group(state.group)
        self._by_topic: dict[str, Options] = {}
        self._found = findings.add
        self._expired = frozenset() if state.from_file is not None else state.expired
        self._decided: set[Reason] = set()
        """The decisions that were applied to the current partition."""
        self.read_last = False
        """Whether a number was the last record read."""

    def _options(self, tp: TopicPartition) -> Options:
        if tp.topic not in self._by_topic:
            self._by_topic[tp.topic] = self._group_options.of_topic(tp.topic)
        return self._by_topic[tp.topic]

    def entry(self, tp: TopicPartition) -> Entry | None:
        """Return the plan of a partition; ``None`` if a problem prevents it."""
        self._decided = set()
        made = self._entry(tp)
        if made is None:
            return None
        to_kafka = self.direction is Direction.ZK_TO_KAFKA
        misplaced = self.state.misplaced.get(tp) if to_kafka else None
        return replace(made, decided=frozenset(self._decided), misplaced=misplaced)

    def _entry(self, tp: TopicPartition) -> Entry | None:
        state = self.state
        if tp.topic in state.hidden:
            self._found(Reason.HIDDEN, tp)
            return None
        znode = state.zk.get(tp)
        kafka = state.kafka.get(tp)
        zk = znode.offset if znode else None
        version = znode.version if znode else None
        if znode is not None and znode.fault:
            self._found(Reason.UNREADABLE, tp, f": {znode.fault}")
            return None
        committed = kafka.offset if kafka else None
        done = self._moved_before(tp, zk, committed)
        if done is not None:
            return Entry(tp, zk, version, kafka, *done)
        source_zk = zk
        misplaced = state.misplaced.get(tp)
        if misplaced is not None and misplaced != zk and self.direction is Direction.ZK_TO_KAFKA:
            if self._options(tp).misplaced == "refuse":
                text = f": {misplaced} below offset, {show(zk)} below offsets"
                self._found(Reason.MISPLACED, tp, text)
                return None
            self._decided.add(Reason.MISPLACED)
            if self._options(tp).misplaced == "use":
                source_zk = misplaced
        if tp in self._expired:
            return self._gone(tp, Entry(tp, zk, version, kafka, None, False, ""), source_zk)
        if state.from_file is not None:
            value, reason = self._from_file(tp, zk, committed)
            stored = state.from_file.get(tp)
            stays = stored is None
        else:
            source, remark = (None, "") if source_zk is None else self._next(tp, source_zk)
            value, reason = self._choose(tp, source, committed)
            reason += remark
            stored = source_zk if value == source else value
            stays = (source_zk if self.direction.source is Store.ZOOKEEPER else committed) is None
        if source_zk != zk:
            reason += "; stored below offset by a 1.1.0 broker"
        held = zk if self.direction.target is Store.ZOOKEEPER else committed
        if value is None and state.from_file is None:
            start = self._start(tp)
            if start is not None:
                return Entry(tp, zk, version, kafka, start[0], True, start[1])
        if value is not None and not stays:
            usable = self._usable(tp, value, stored)
            if usable is None:
                return None
            value, remark = usable
            reason += remark
        return Entry(tp, zk, version, kafka, value, value != held, reason)

    def _gone(self, tp: TopicPartition, found: Entry, zk: int | None) -> Entry | None:
        """Return the entry of a partition whose moved offset has disappeared, according to the
        decision."""
        marker = self.state.marker
        assert marker is not None
        assert marker.moved_to is not None
        moved = marker.in_target[tp]
        in_kafka = found.kafka.offset if found.kafka else None
        other = zk if marker.moved_to is Store.KAFKA else in_kafka
        rule = self._options(tp).expired_offsets
        if rule == "refuse":
            source = marker.moved_to.other
            text = f": {moved} at the move to {marker.moved_to.value}"
            self._found(Reason.EXPIRED, tp, f"{text}, {source.value} holds {show(other)}")
            return None
        self._decided.add(Reason.EXPIRED)
        if rule == "moved":
            number = moved if other is None else other
            usable = self._usable(tp, number, number)
            if usable is None:
                return None
            value, remark = usable
            reason = f"gone since the move: the offset that was moved{remark}"
        else:
            end = self._end(tp, rule == "earliest")
            if end is None:
                return None
            value = end
            reason = f"gone since the move: the log's {rule} by --expired-offsets"
        held = found.zk if self.direction.target is Store.ZOOKEEPER else in_kafka
        return replace(found, to=value, write=value != held, reason=reason)

    def _from_file(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int | None, str]:
        """Return the offset for the target if it is from a file. Both stores may differ from it."""
        assert self.state.from_file is not None
        target = kafka if self.direction is Direction.ZK_TO_KAFKA else zk
        if tp in self.state.from_file:
            self._decided.add(Reason.FROM_FILE)
            value, remark = self._next(tp, self.state.from_file[tp])
            return value, f"from {self.state.given_by}{remark}"
        return target, f"not in {self.state.given_by}: it stays"

    def _next(self, tp: TopicPartition, number: int) -> tuple[int, str]:
        """Return the next offset to read for a number stored by a client, and a remark."""
        means = self._options(tp).source_means
        layout = LAYOUTS.get(self.state.layout)
        of_client = layout is not None and layout.means is Means.LAST
        if self.direction is Direction.KAFKA_TO_ZK or not (
            means == "last" or (means == "default" and of_client)
        ):
            return number, ""
        self.read_last = True
        return number + 1, f": {number} was read last"

    def _moved_before(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int, bool, str] | None:
        """Return the rest of the entry of a partition that an earlier move to the target settled.

        It stays settled while the source store has not changed, so its offset is not a conflict,
        unless a later change was interrupted, which may have left any offset in the target.
        """
        marker = self.state.marker
        source, target = self.direction.source, self.direction.target
        held, stays = (zk, kafka) if source is Store.ZOOKEEPER else (kafka, zk)
        misplaced = self.state.misplaced.get(tp) if source is Store.ZOOKEEPER else None
        if (
            marker is None
            or marker.moved_to is not target
            or self.state.from_file is not None
            or self.state.record.interrupted
            or stays is None
            or (held is None and misplaced is None)
            or held not in (None, marker.values.get(tp))
            or misplaced not in (None, marker.misplaced.get(tp))
        ):
            return None
        return stays, False, f"{source.value} has not changed since the move to {target.value}"

    def _choose(
        self, tp: TopicPartition, zk: int | None, kafka: int | None
    ) -> tuple[int | None, str]:
        """Return the offset for the target, and the reason."""
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
            return source, "both have it"
        marker = self.state.marker
        if (
            marker is not None
            and marker.moved_to is self.direction.source
            and marker.values.get(tp) == target
        ):
            return source, f"{to_name} has not changed since the group was moved to {from_name}"
        moved_here = marker is not None and marker.moved_to is self.direction.target
        both = f": zookeeper {zk}, kafka {kafka}"
        if marker is not None and moved_here:
            then = show(marker.values.get(tp)) if marker.in_target else "not known"
            both += f" ({from_name} at the move: {then})"
        match self._options(tp).on_conflict:
            case "refuse":
                self._found(Reason.CONFLICT, tp, both)
                return target, "conflict"
            case "zookeeper" | "kafka" as rule:
                chosen = zk if rule == "zookeeper" else kafka
            case "min" | "max" as rule:
                chosen = (min if rule == "min" else max)(source, target)
            case "newest":
                chosen = self._newest(tp, zk, kafka)
                if chosen is None:
                    return target, "conflict"
        if moved_here and chosen is not None and chosen < target:
            self._found(Reason.WOULD_LOWER, tp, both)
            return target, "conflict"
        other = kafka if chosen == zk else zk
        side = Store.ZOOKEEPER if chosen == zk else Store.KAFKA
        rule_name = self._options(tp).on_conflict
        self._decided.add(Reason.CONFLICT)
        return chosen, f"conflict: {side.value} by --on-conflict {rule_name} (the other: {other})"

    def _start(self, tp: TopicPartition) -> tuple[int, str] | None:
        """Return where consumers start without an offset, if there is a decision."""
        rule = self._options(tp).without_offset
        if rule == "leave" or not exists(self.state.topics, tp):
            return None
        if rule == "refuse":
            self._found(Reason.NO_OFFSET, tp)
            return None
        end = self._end(tp, rule == "earliest")
        if end is None:
            return None
        self._decided.add(Reason.NO_OFFSET)
        return end, f"no offset: the log's {rule} by --without-offset"

    def _end(self, tp: TopicPartition, earliest: bool) -> int | None:
        """Return the beginning or the end of a log; ``None`` if unknown."""
        log = self.state.ranges.get(tp)
        if log is None:
            self._found(Reason.UNKNOWN, tp)
            return None
        return log.earliest if earliest else log.latest

    def _newest(self, tp: TopicPartition, zk: int | None, kafka: int | None) -> int | None:
        znode, committed = self.state.zk.get(tp), self.state.kafka.get(tp)
        if znode is None or committed is None or committed.commit_ms is None:
            self._found(
                Reason.CONFLICT,
                tp,
                f": zookeeper {zk}, kafka {kafka}, and no time of the commit is known",
            )
            return None
        marker = self.state.marker
        newer = max(znode.mtime_ms, committed.commit_ms)
        if marker is not None and marker.moved_to is None and newer <= marker.at_ms + CLOCKS_MS:
            self._found(
                Reason.CONFLICT,
                tp,
                f": zookeeper {zk}, kafka {kafka}, and their times do not count, since a "
                f"rollback restored offsets on {day(marker.at_ms)}",
            )
            return None
        if znode.mtime_ms == committed.commit_ms:
            self._found(Reason.CONFLICT, tp, f": zookeeper {zk}, kafka {kafka}, equally new")
            return None
        return zk if znode.mtime_ms > committed.commit_ms else kafka

    def _usable(self, tp: TopicPartition, value: int, stored: int | None) -> tuple[int, str] | None:
        """Check an offset against topic and log. Return ``None`` if it cannot be used.

        ``stored``: the number, stored by a client, from which it was computed.
        """
        topic = self.state.topics.get(tp.topic)
        if topic is None:
            self._found(Reason.TOPIC_MISSING, tp)
            return None
        if tp.partition not in topic.partitions:
            self._found(Reason.PARTITION_MISSING, tp, f" of {len(topic.partitions)}")
            return None
        znode = self.state.znode(tp)
        recreated = False
        if (
            znode is not None
            and znode.offset == stored
            and topic.is_younger_than(znode)
            and tp not in self.state.misplaced
        ):
            if self._options(tp).recreated_topics != "earliest":
                self._found(
                    Reason.RECREATED, tp, f": {stored} was stored before the topic was created"
                )
                return None
            recreated = True
            self._decided.add(Reason.RECREATED)
        unproven = topic.log is Log.UNPROVEN and self._is_from_zookeeper(tp, value, stored)
        rule = self._options(tp).unproven_topics
        if unproven and rule not in ("trust", "earliest"):
            self._found(Reason.UNPROVEN, tp)
            return None
        if unproven:
            self._decided.add(Reason.UNPROVEN)
        log = self.state.ranges.get(tp)
        if log is None:
            self._found(Reason.UNKNOWN, tp)
            return None
        if recreated:
            return log.earliest, f"; {value} is of an earlier topic: the log's beginning"
        if unproven and rule == "earliest":
            return log.earliest, f"; {value} may be of another topic: the log's beginning"
        if log.earliest <= value <= log.latest:
            return value, ""
        if self._options(tp).out_of_range == "refuse":
            self._found(
                Reason.OUT_OF_RANGE, tp, f": {value}, the log is {log.earliest}-{log.latest}"
            )
            return value, ""
        self._decided.add(Reason.OUT_OF_RANGE)
        bound = log.earliest if value < log.earliest else log.latest
        return bound, f"; {value} clamped to the log's {log.earliest}-{log.latest}"

    def _is_from_zookeeper(self, tp: TopicPartition, value: int, stored: int | None) -> bool:
        """Whether only ZooKeeper has this offset, so that it belongs to the topic known there."""
        znode, kafka = self.state.znode(tp), self.state.kafka.get(tp)
        held = znode is not None and znode.offset == stored
        if not held and self.state.misplaced.get(tp) != stored:
            return False
        return kafka is None or kafka.offset != value
