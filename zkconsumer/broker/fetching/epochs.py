"""Leader epochs (KIP-320): old answers about leaders, truncated logs and recreated topics.

Loaded where brokers know reliable leader epochs (2.4 and later). No IO. The leader finder compares
each of its answers with the epoch and the topic id that are known. If they have changed, the
partition's worker looks whether the position still means the same: where the log of the epoch that
was read last ends before the position, records that were read are gone, and others have their
offsets.
"""

from __future__ import annotations

from collections.abc import Collection

from zkconsumer.broker.types import ClusterMetadata, EpochEnd
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition

_LEAST_DOUBTS, _MOST_DOUBTS = 3, 25
"""So many answers that name an older leader are believed: if all brokers agree, or else, because
one of them may be unreachable."""


class PartitionEpochs:
    """The known leader epochs of one claimed partition. Used by its worker or by the leader finder,
    of which one has the partition at a time."""

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
        """The epoch of the last record that was read; -1 before the first one."""
        self.topic_id: str | None = None
        """``None`` if brokers know no ids (before 2.8)."""
        self.unchecked = False
        """Whether a new leader has not been asked yet if the position is in its log."""
        self.recreated = False
        """Whether the position is one of an earlier topic of this name."""
        self.has_another_id = False
        """Whether the topic has got another id: it was recreated if the position is not in its log.
        Tools before 2.8 that write to ZooKeeper change the id of the same topic (KAFKA-14190)."""
        self.older_from: set[BrokerEndpoint] = set()
        """The brokers that named an older leader since the last answer that was believed."""
        self.doubts = 0
        """How many answers named one since then."""

    def note_read(self, epoch: int) -> None:
        """Record the epoch of records that were read."""
        self.read = max(epoch, self.read)

    def note_in_log(self) -> None:
        """Record that the leader's log has the position."""
        self.has_another_id = False

    def forget_read(self) -> None:
        """Record that the position was moved: no record before it was read."""
        self.read, self.has_another_id = -1, False

    def take_recreated(self) -> bool:
        """Return once that the position is one of an earlier topic."""
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
        """Take over an answer. Return what is wrong with it if it is older than a former one.

        An epoch never falls while a topic exists, unless ZooKeeper was restored from a backup. If
        all ``brokers`` that answer name an older leader, and the topic has no id, it has been
        recreated: brokers of 2.4 to 2.7 have no other sign of that.
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
        """Return how a leader's log contradicts what was read; ``None`` if the position is in it.

        ``end`` is the leader's answer, or ``None`` if it cannot say. If there is a contradiction,
        ``end.offset`` is the first offset at which the records may differ, and -1 if not even that
        is known (Java 3.9 SubscriptionState.maybeCompleteValidation).
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
