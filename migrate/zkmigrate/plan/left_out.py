"""The offsets of a group that a plan leaves out, and which of them stay behind. Pure."""

from __future__ import annotations

from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import Direction, GroupState, Log
from zkmigrate.plan.options import Options, covers
from zkmigrate.plan.values import StaysBehind
from zkmigrate.reasons import Reason

_SKIPPED: Final = "skipped"


class LeftOut:
    """Decides which partitions a plan leaves out, and collects their offsets.

    ``skipped``: patterns of the offsets that the operator skips. ``stays``: the offsets that stay
    behind, of all partitions passed to ``leaves_out`` so far.
    """

    def __init__(self, state: GroupState, direction: Direction, options: Options) -> None:
        self._state = state
        self._direction = direction
        self._options = options.of_group(state.group)
        self._by_topic: dict[str, Options] = {}
        self._missing: set[str] = set()
        self.skipped = frozenset(
            skip.pattern for skip in self._options.skips if skip.is_of(state.group)
        )
        self.stays: list[StaysBehind] = []

    @property
    def patterns(self) -> frozenset[str]:
        """The patterns of all offsets that are left out."""
        return self.skipped | self._missing

    def leaves_out(self, tp: TopicPartition) -> bool:
        """Whether a partition is left out. If so, its offset is added to ``stays``."""
        why = self._why(tp)
        if why is None:
            return False
        state = self._state
        zk, kafka = state.zk.get(tp), state.kafka.get(tp)
        in_zk = zk.offset if zk else None
        in_kafka = kafka.offset if kafka else None
        to_kafka = self._direction is Direction.ZK_TO_KAFKA
        if state.from_file is not None:
            source = state.from_file.get(tp)
        elif to_kafka:
            source = state.misplaced.get(tp) if in_zk is None else in_zk
        else:
            source = in_kafka
        unknown = state.from_file is None and (
            (to_kafka and zk is not None and bool(zk.fault))
            or (not to_kafka and tp.topic in state.hidden)
        )
        if why != _SKIPPED:
            if source is None and not unknown:
                return False  # what the target alone holds stays as it is
            self._missing.add(f"{tp.topic}:{tp.partition}")
        if unknown or (source is not None and source != (in_kafka if to_kafka else in_zk)):
            self.stays.append(StaysBehind(tp, None if unknown else source, why))
        return True

    def _why(self, tp: TopicPartition) -> str | None:
        if covers(self.skipped, tp):
            return _SKIPPED
        if tp.topic not in self._by_topic:
            self._by_topic[tp.topic] = self._options.of_topic(tp.topic)
        options = self._by_topic[tp.topic]
        topic = self._state.topics.get(tp.topic)
        znode = self._state.znode(tp)
        if (
            options.recreated_topics == "skip"
            and self._direction is Direction.ZK_TO_KAFKA
            and znode is not None
            and topic is not None
            and topic.is_younger_than(znode)
            and tp not in self._state.misplaced
        ):
            return Reason.RECREATED.value
        if (
            options.unproven_topics == "skip"
            and self._direction is Direction.ZK_TO_KAFKA
            and topic is not None
            and topic.log is Log.UNPROVEN
        ):
            return Reason.UNPROVEN.value
        if options.missing_topics == "skip" and tp.topic not in self._state.hidden:
            if topic is None:
                return Reason.TOPIC_MISSING.value
            if tp.partition not in topic.partitions:
                return Reason.PARTITION_MISSING.value
        return None
