"""Checks that each partition is owned once, by a live member, in that member's session. Pure.

The JVM's ``VerifyConsumerRebalance`` (1.1.1) checks less: only that each partition's owner is a
subscribed thread. It ignores sessions, offsets, and owners of topics without a subscriber.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from zkconsumer.admin.snapshot import (
    MISPLACED,
    GroupSnapshot,
    Registrations,
    partition_number,
)
from zkconsumer.admin.topics import TopicSnapshot
from zkconsumer.core.common.assign import thread_ids
from zkconsumer.core.common.foreign_layout import BROKER_PARTITION, BYTES_NAME
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.ops import Node, session_text
from zkconsumer.core.zookeeper.view import Assignor, assign
from zkconsumer.core.zookeeper.znodes import decode_offset, is_legal_topic, registration_writer
from zkconsumer.errors import ZnodeFormatError

_BROKER_PARTITION = re.compile(BROKER_PARTITION)
_BYTES_NAME = re.compile(BYTES_NAME)
_STORM = re.compile(r"partition_[0-9]+")


class Kind(Enum):
    """The kinds of problems. The command prints the value."""

    UNOWNED = "unowned"
    """A partition of a subscribed topic has no owner."""
    UNKNOWN_OWNER = "unknown-owner"
    """The owner is not a thread of a registered member that subscribes to the topic."""
    SESSION = "session"
    """The owner znode does not belong to the session that registered the member."""
    UNKNOWN_PARTITION = "unknown-partition"
    """A partition is owned that the topic does not have."""
    QUARANTINED = "quarantined"
    """A registration that cannot be used; JVM members fail to rebalance because of it."""
    REGISTRATION = "registration"
    """A registration znode is not ephemeral, so it outlives its member."""
    BAD_OFFSET = "bad-offset"
    """A stored offset that is not a number, or negative."""
    ABOVE_END = "above-end"
    """A stored offset beyond the end of the log."""
    FOREIGN_LAYOUT = "foreign-layout"
    """Znodes in the layout of another client, which members of the JVM and of this library ignore.
    """
    MISPLACED = "misplaced-offsets"
    """Offsets below ``offset``, where a 1.1.0 broker stores them by mistake, that differ from
    ``offsets``."""
    MISASSIGNED = "misassigned"
    """The owner is not the one that the strategy would choose."""
    IDLE = "idle-member"
    """A member owns nothing although the strategy would assign partitions to it."""
    TOPIC_MISSING = "topic-missing"
    """A topic that is subscribed to by name does not exist, or its znode cannot be read."""


WARNINGS = frozenset({Kind.TOPIC_MISSING})
"""Kinds that are reported as warnings, not as errors."""


class Finding(NamedTuple):
    """One problem. ``where`` is the path of a znode, ``what`` a sentence. Both may contain
    untrusted text."""

    group: str
    kind: Kind
    where: str
    what: str

    @property
    def wrong(self) -> bool:
        """Whether the problem is an error, not only a warning."""
        return self.kind not in WARNINGS


def verify(
    snapshot: GroupSnapshot,
    registrations: Registrations,
    topics: Mapping[str, TopicSnapshot],
    log_ends: Mapping[TopicPartition, int],
    assignor: Assignor | None = None,
    *,
    idle: bool = False,
) -> list[Finding]:
    """Return the problems of a group; empty if there are none.

    Args:
        snapshot, registrations: the group, with filters expanded.
        topics: every topic that is owned, has offsets or is subscribed to, if it exists.
        log_ends: the known log end offsets; ``{}`` skips the comparison with them.
        assignor: also compare the owners with this strategy's assignment.
        idle: also look for members that own nothing although every strategy would assign
            partitions to them.
    """
    return list(_Verifier(snapshot, registrations, topics, log_ends).findings(assignor, idle))


class _Verifier:
    def __init__(
        self,
        snapshot: GroupSnapshot,
        registrations: Registrations,
        topics: Mapping[str, TopicSnapshot],
        log_ends: Mapping[TopicPartition, int],
    ) -> None:
        self.snapshot = snapshot
        self.registrations = registrations
        self.topics = topics
        self.log_ends = log_ends
        self.paths = snapshot.paths
        self.threads: dict[str, dict[str, str]] = {}  # topic -> thread id -> consumer id
        for member, counts in registrations.topics.items():
            for topic, ids in thread_ids(member, counts).items():
                self.threads.setdefault(topic, {}).update(
                    {str(thread_id): member for thread_id in ids}
                )

    def findings(self, assignor: Assignor | None, idle: bool) -> Iterator[Finding]:
        yield from self._members()
        for topic in sorted({*self.snapshot.owners, *self.registrations.subscribed}):
            yield from self._owners(topic)
        for topic, nodes in self.snapshot.offsets.items():
            yield from self._offsets(topic, nodes)
        yield from self._misplaced()
        for name in self.snapshot.strange:
            guess = (
                "storm-kafka keeps its offsets like this"
                if _STORM.fullmatch(name)
                else "not Kafka's"
            )
            yield self._found(
                Kind.FOREIGN_LAYOUT, f"{self.paths.root}/{name}", f"no znode of a group: {guess}"
            )
        for path in self.snapshot.filled:
            yield self._found(
                Kind.FOREIGN_LAYOUT,
                path,
                "holds data: Kafka's clients store none there, but some Spark jobs keep all "
                "offsets of a topic like this",
            )
        if assignor is not None:
            yield from self._strategy(assignor)
        elif idle:
            yield from self._idle()

    def _found(self, kind: Kind, where: str, what: str) -> Finding:
        return Finding(self.snapshot.group, kind, where, what)

    def _members(self) -> Iterator[Finding]:
        for member, node in sorted(self.snapshot.members.items()):
            path = f"{self.paths.ids}/{member}"
            writer = registration_writer(node.data)
            if member in self.registrations.quarantined:
                reason = self.registrations.quarantined[member]
                by = f" (written by {writer})" if writer else ""
                yield self._found(Kind.QUARANTINED, path, reason + by)
            elif writer:
                yield self._found(
                    Kind.FOREIGN_LAYOUT,
                    path,
                    f"written by {writer}: members read only one of its topics",
                )
            if not node.stat.ephemeral_owner:
                yield self._found(
                    Kind.REGISTRATION,
                    path,
                    "is not ephemeral: it reserves partitions although its member may be gone",
                )

    def _owners(self, topic: str) -> Iterator[Finding]:
        parent = f"{self.paths.owners}/{topic}"
        nodes = self.snapshot.owners.get(topic, {})
        subscribers = self.threads.get(topic, {})
        topic_state = self.topics.get(topic)
        if topic_state is None and subscribers:
            reason = "does not exist"
            yield self._found(Kind.TOPIC_MISSING, parent, f"the subscribed topic {topic} {reason}")
        elif (
            topic_state is not None
            and topic_state.faults
            and not topic_state.replicas
            and subscribers
        ):
            yield self._found(Kind.TOPIC_MISSING, parent, topic_state.faults[0])
        if _BYTES_NAME.fullmatch(topic) and nodes:
            yield self._found(
                Kind.FOREIGN_LAYOUT, parent, "pykafka on Python 3 names a topic's owners like this"
            )
        partitions = topic_state.replicas if topic_state is not None else {}
        if subscribers:
            for number in partitions:
                if str(number) not in nodes:
                    yield self._found(
                        Kind.UNOWNED,
                        f"{parent}/{number}",
                        f"partition {number} of {topic} has no owner",
                    )
        for name, node in nodes.items():
            yield from self._owner(topic, name, node, name_is_partition(name, partitions))

    def _owner(self, topic: str, name: str, node: Node, real: bool) -> Iterator[Finding]:
        path = f"{self.paths.owners}/{topic}/{name}"
        if _BROKER_PARTITION.fullmatch(name):
            yield self._found(
                Kind.FOREIGN_LAYOUT,
                path,
                "named {broker}-{partition}, as pykafka and Kafka 0.7 do: "
                "JVM members claim the same partition elsewhere",
            )
            return
        if partition_number(name) is None:
            yield self._found(Kind.FOREIGN_LAYOUT, path, "is not named by a partition's number")
            return
        if not real and is_legal_topic(topic) and topic in self.topics:
            yield self._found(Kind.UNKNOWN_PARTITION, path, f"{topic} has no such partition")
        owner = node.data.decode(errors="replace")
        member = self.threads.get(topic, {}).get(owner)
        if member is None and topic in self.registrations.topics.get(owner, {}):
            member = owner  # without a stream, as kafka-node and Go ports write it
        if member is None:
            yield self._found(Kind.UNKNOWN_OWNER, path, self._who(owner, topic))
            return
        registered = self.registrations.sessions[member]
        if node.stat.ephemeral_owner != registered:
            holder = (
                f"session {session_text(node.stat.ephemeral_owner)}"
                if node.stat.ephemeral_owner
                else "no session (the znode is not ephemeral)"
            )
            yield self._found(
                Kind.SESSION,
                path,
                f"belongs to {holder}, but {member} is registered by session "
                f"{session_text(registered)}",
            )

    def _who(self, owner: str, topic: str) -> str:
        """Describe an owner that is not a thread of a subscribed member."""
        if owner in self.snapshot.members:
            return f"owner {owner} is registered but does not subscribe to {topic}"
        consumer = owner.rpartition("-")[0]
        if consumer in self.registrations.quarantined:
            return f"owner {owner} belongs to a member whose registration cannot be used"
        if consumer in self.registrations.topics:
            streams = self.registrations.topics[consumer].get(topic)
            if streams is None:
                return f"owner {owner} is registered but does not subscribe to {topic}"
            return f"owner {owner}: its member has only {streams} streams for {topic}"
        return f"owner {owner} is not registered"

    def _offsets(self, topic: str, nodes: Mapping[str, Node]) -> Iterator[Finding]:
        for name, node in nodes.items():
            path = f"{self.paths.offsets}/{topic}/{name}"
            number = partition_number(name)
            if number is None or not is_legal_topic(topic):
                layout = (
                    "named {broker}-{partition}, as in Kafka 0.7"
                    if _BROKER_PARTITION.fullmatch(name)
                    else "is not the offset of a topic's partition"
                )
                yield self._found(Kind.FOREIGN_LAYOUT, path, layout)
                continue
            try:
                offset = decode_offset(path, node.data)
            except ZnodeFormatError as fault:
                yield self._found(Kind.BAD_OFFSET, path, fault.reason)
                continue
            end = self.log_ends.get(TopicPartition(topic, number))
            if offset < 0:
                yield self._found(Kind.BAD_OFFSET, path, f"{offset} is negative")
            elif end is not None and offset > end:
                yield self._found(
                    Kind.ABOVE_END, path, f"{offset} is {offset - end} above the log end {end}"
                )

    def _misplaced(self) -> Iterator[Finding]:
        for topic, nodes in self.snapshot.misplaced.items():
            for name in nodes:
                if partition_number(name) is None or not is_legal_topic(topic):
                    path = f"{self.paths.root}/{MISPLACED}/{topic}/{name}"
                    what = "is not the offset of a topic's partition"
                    yield self._found(Kind.FOREIGN_LAYOUT, path, what)
            right = self.snapshot.offsets.get(topic, {})
            differing = {
                name: node for name, node in nodes.items() if _text(right.get(name)) != _text(node)
            }
            if differing:
                name, node = next(iter(differing.items()))
                yield self._found(
                    Kind.MISPLACED,
                    f"{self.paths.root}/{MISPLACED}/{topic}",
                    f"a 1.1.0 broker stored {len(differing)} offsets here that members do not "
                    f"read, such as {name}: {_text(node)} (offsets/: {_text(right.get(name))})",
                )

    def _idle(self) -> Iterator[Finding]:
        """Return members that own nothing although every strategy in use could assign them
        partitions."""
        shares = [
            {thread.consumer for thread in self._chosen(Assignor(name)).values()}
            for name in ("range", "roundrobin")
        ]
        for member in sorted(set.intersection(*shares) - self._owning()):
            yield self._found(
                Kind.IDLE,
                f"{self.paths.ids}/{member}",
                "owns nothing, but both range and roundrobin give it partitions",
            )

    def _owning(self) -> set[str]:
        """Return the consumer ids of all owners."""
        owners = self.snapshot.owners.values()
        return {self.snapshot.consumer_of(node) for nodes in owners for node in nodes.values()}

    def _chosen(self, assignor: Assignor) -> Mapping[TopicPartition, ConsumerThreadId]:
        partitions = {topic: tuple(state.replicas) for topic, state in self.topics.items()}
        return assign(self.registrations.topics, partitions, assignor)

    def _strategy(self, assignor: Assignor) -> Iterator[Finding]:
        chosen, owning = self._chosen(assignor), self._owning()
        due: dict[str, int] = {}
        for (topic, number), thread in sorted(chosen.items()):
            due[thread.consumer] = due.get(thread.consumer, 0) + 1
            node = self.snapshot.owners.get(topic, {}).get(str(number))
            if node is not None and _text(node) not in (str(thread), thread.consumer):
                yield self._found(
                    Kind.MISASSIGNED,
                    f"{self.paths.owners}/{topic}/{number}",
                    f"owned by {_text(node)}, but {assignor.name} gives it to {thread}",
                )
        for member, count in sorted(due.items()):
            if member not in owning:
                yield self._found(
                    Kind.IDLE,
                    f"{self.paths.ids}/{member}",
                    f"owns nothing, but {assignor.name} gives it {count} partitions",
                )


def name_is_partition(name: str, partitions: Mapping[int, object]) -> bool:
    """Whether a child's name is the number of one of these partitions."""
    return partition_number(name) in partitions


def _text(node: Node | None) -> str:
    return "none" if node is None else node.data.decode(errors="replace")
