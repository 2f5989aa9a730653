"""Leader epochs (KIP-320) detect outdated metadata, truncated logs and recreated topics.

Loaded where brokers know reliable leader epochs (2.4 and later). No IO. The leader finder compares
each answer with the known epoch and topic id. If they have changed, the partition's worker checks
whether the position is still valid. If the log of the last epoch read ends before the position,
records that were read are gone, and other records have their offsets.
"""

from __future__ import annotations

from collections.abc import Collection

from zkconsumer.broker.types import ClusterMetadata, EpochEnd
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition

_LEAST_DOUBTS, _MOST_DOUBTS = 3, 25
"""Numbers of answers that name an older leader before it is accepted: if all brokers agree, and
otherwise, because one of them may be unreachable."""


class PartitionEpochs:
    """The known leader epochs of one claimed partition. Used by its worker or by the leader
    finder, only one of which has the partition at a time."""

    __slots__ = (
        "doubts",
        "has_another_id",
        "leader",
        "older_from",
        "read",
        "recreated",
        "topic_id",
        "unchecked",
    )

    def __init__(self) -> None:
        self.leader = -1
        """The leader's epoch."""
        self.read = -1
        """Epoch of the last record that was read; -1 before the first one."""
        self.topic_id: str | None = None
        """Id of the topic; ``None`` if brokers do not support ids (before 2.8)."""
        self.unchecked = False
        """Whether a new leader has not yet been asked if the position is in its log."""
        self.recreated = False
        """Whether the position belongs to an earlier topic of this name."""
        self.has_another_id = False
        """Whether the topic's id has changed. If the position is not in its log, the topic was
        recreated. Tools before 2.8 that write to ZooKeeper change the id of the same topic
        (KAFKA-14190)."""
        self.older_from: set[BrokerEndpoint] = set()
        """Brokers that named an older leader since the last accepted answer."""
        self.doubts = 0
        """Number of answers that named an older leader since then."""

    def note_read(self, epoch: int) -> None:
        """Record the epoch of records that were read."""
        self.read = max(epoch, self.read)

    def note_in_log(self) -> None:
        """Record that the leader's log contains the position."""
        self.has_another_id = False

    def forget_read(self) -> None:
        """Record that the position was moved, so that no record before it was read."""
        self.read, self.has_another_id = -1, False

    def take_recreated(self) -> bool:
        """Whether the position belongs to an earlier topic of the same name. Resets the answer to
        false."""
        found, self.recreated = self.recreated, False
        return found

    def is_another_topic(self, topic: str, answer: ClusterMetadata) -> bool:
        """Whether an answer is about a later topic of the same name."""
        known = self.topic_id
        return known is not None and answer.topic_ids.get(topic, known) != known

    def why_not_believed(
        self,
        tp: TopicPartition,
        answer: ClusterMetadata,
        asked: BrokerEndpoint,
        brokers: Collection[BrokerEndpoint],
    ) -> str | None:
        """Record an answer. If it is older than an earlier one, return why it is not accepted.

        An epoch never decreases while a topic exists, unless ZooKeeper was restored from a
        backup. If all ``brokers`` that answer name an older leader, and the topic has no id, the
        topic was recreated. Brokers of 2.4 to 2.7 give no other indication of that.
        """
        epoch, topic_id = answer.epochs.get(tp, -1), answer.topic_ids.get(tp.topic)
        another = self.is_another_topic(tp.topic, answer)
        fell = epoch < self.leader
        if fell and not another:
            self.older_from.add(asked)
            self.doubts += 1
            all_agree = self.older_from.issuperset(brokers) and self.doubts >= _LEAST_DOUBTS
            if not all_agree and self.doubts < _MOST_DOUBTS:
                return (
                    f"broker {asked.broker_id} names an older leader of {tp}, of leader epoch "
                    f"{epoch} after {self.leader}"
                )
        known = not another and None not in (self.topic_id, topic_id)
        if fell or another:
            self.unchecked, self.read = False, -1
            self.recreated = self.recreated or (fell and not known)
            self.has_another_id = another
        elif epoch > self.leader >= 0 and self.read >= 0:
            self.unchecked = True
        self.leader = epoch
        self.topic_id = self.topic_id if topic_id is None else topic_id
        self.older_from.clear()
        self.doubts = 0
        return None

    def truncation(self, position: int, end: EpochEnd | None) -> str | None:
        """Return how a leader's log contradicts the records read; ``None`` if the position is in
        the log.

        ``end`` is the leader's answer; ``None`` if the leader does not know the epoch. If there is
        a contradiction, ``end.offset`` is the first offset at which the records may differ, or -1
        if that is unknown (Java 3.9 SubscriptionState.maybeCompleteValidation).
        """
        self.unchecked = False
        if end is None or position <= end.offset:
            return None
        read, self.read = self.read, -1
        where = f"ends at {end.offset}" if end.offset >= 0 else "is unknown"
        return (
            f"the log was truncated: records up to {position} were read in leader epoch {read}, "
            f"whose log {where} at the new leader"
        )
