"""One member's view of its group, and the decision it derives from it. Pure.

A ``GroupView`` is built from many separate reads, so two members may have different views at the
same time. Owner znodes arbitrate; a decision is only a request to claim partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from zkconsumer.core.common.assign import RoundRobinHash, assign_range, assign_roundrobin
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, GroupPaths, topic_path


@dataclass(frozen=True, slots=True)
class Assignor:
    """The assignment strategy of the group; nothing in ZooKeeper records it.

    ``name`` is ``range`` or ``roundrobin``; ``hash_form`` is used only for ``roundrobin``.
    """

    name: str = "range"
    hash_form: RoundRobinHash = RoundRobinHash.DASH


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """The settings of a member, which never change.

    ``scala`` selects exact legacy behaviour. ``kafka_storage`` and ``dual_commit`` mean
    ``offsets.storage=kafka`` and ``dual.commit.enabled``. Times are in seconds. ``max_attempts`` is
    ``rebalance.max.retries`` and is used only in the ``scala`` profile. ``bootstrap``: members
    learn about the cluster from its brokers (``zkconsumer.brokers=bootstrap``), and members whose
    registration does not show that they use this library are left out.
    """

    paths: GroupPaths
    consumer_id: str
    subscription: Subscription
    exclude_internal: bool = True
    assignor: Assignor = Assignor()
    scala: bool = False
    auto_commit: bool = True
    kafka_storage: bool = False
    dual_commit: bool = False
    coalesce: float = 0.05
    backoff: float = 2.0
    reread: float = 30.0
    session_timeout: float = 6.0
    max_attempts: int = 4
    bootstrap: bool = False


#: The whole group's assignment, and each member's part of it.
_Assignment = tuple[
    Mapping[TopicPartition, ConsumerThreadId],
    Mapping[str, Mapping[TopicPartition, ConsumerThreadId]],
]


@dataclass(frozen=True)
class GroupView:
    """The group, from one pass of reads.

    ``registered``: whether this member's own registration existed. ``members`` maps consumer id to
    topic to number of streams. Filters are already expanded. Members and topics are in the order in
    which ZooKeeper lists them; the topics of a static registration are in the order of its JSON.
    ``quarantined`` maps the path of each unusable znode (registration, topic, broker) to the
    reason; its content is left out. All members leave out the same znodes. A member that used the
    znode before keeps its earlier content: the topics of a filter, the partitions of a topic.
    ``foreign``: quarantined
    registrations of members of other libraries, in ascending order. ``partitions`` maps topic to
    its partitions, ascending. ``doubtful`` maps the path of each registration that other members
    may read differently to the reason. ``mixed``: whether a registration belongs to another
    library.
    """

    registered: bool
    brokers: tuple[BrokerEndpoint, ...]
    members: Mapping[str, Mapping[str, int]]
    quarantined: Mapping[str, str]
    partitions: Mapping[str, tuple[int, ...]]
    foreign: tuple[str, ...] = ()
    doubtful: Mapping[str, str] = field(default_factory=dict)
    mixed: bool = True

    @cached_property
    def _assignments(self) -> dict[Any, _Assignment]:
        """Cache of the assignments computed from this view. Simulated members with the same reads
        share a view."""
        return {}


@dataclass(frozen=True, slots=True)
class Decision:
    """An assignment. ``mine``: the partitions that this member should own. ``assignment``: the
    partitions of all members, as far as known.

    With ``range`` the assignment covers only topics to which this member subscribes, as in the JVM.
    """

    mine: Mapping[TopicPartition, ConsumerThreadId]
    assignment: Mapping[TopicPartition, ConsumerThreadId]


def obstacle(view: GroupView, spec: MemberSpec) -> str:
    """Return why nothing can be assigned to the member of ``spec``; empty if something can, or if
    it subscribes to nothing."""
    own = spec.paths.member(spec.consumer_id)
    if not view.registered:
        return ""
    if own in view.quarantined and spec.consumer_id not in view.members:
        return f"this member's registration cannot be used: {view.quarantined[own]}"
    if not view.brokers:
        refused = [path for path in view.quarantined if path.startswith(BROKER_IDS + "/")]
        if refused:
            return f"no broker can be used: {view.quarantined[min(refused)]}"
        if spec.bootstrap:
            return "no broker is known: check bootstrap.servers, and the brokers there"
        return (
            f"no broker is registered in {BROKER_IDS}: check the brokers, and the chroot in "
            "zookeeper.connect; for a cluster without ZooKeeper set zkconsumer.brokers=bootstrap "
            "and bootstrap.servers"
        )
    topics = view.members.get(spec.consumer_id, {})
    static = spec.subscription.pattern is Pattern.STATIC
    if not topics or any(view.partitions.get(topic) for topic in topics):
        return ""
    refused = [path for path in map(topic_path, topics) if path in view.quarantined]
    if refused:
        return f"no topic of this member can be used: {view.quarantined[min(refused)]}"
    if not static:
        return ""
    return f"topic {min(topics)} does not exist, nor does any other that it names"


def decide(view: GroupView, consumer_id: str, assignor: Assignor) -> Decision:
    """Compute which partitions each member should own. A member missing from the view owns none."""
    own_topics = view.members.get(consumer_id, {})
    key = (assignor, frozenset(own_topics) if assignor.name == "range" else None)
    if key not in view._assignments:
        view._assignments[key] = _assign(view, own_topics, assignor)
    assignment, parts = view._assignments[key]
    return Decision(mine=parts.get(consumer_id, {}), assignment=assignment)


def _assign(view: GroupView, own_topics: Collection[str], assignor: Assignor) -> _Assignment:
    only = own_topics if assignor.name == "range" else None
    assignment = assign(view.members, view.partitions, assignor, only)
    parts: dict[str, dict[TopicPartition, ConsumerThreadId]] = {}
    for tp, thread in assignment.items():
        parts.setdefault(thread.consumer, {})[tp] = thread
    return assignment, parts


def assign(
    members: Mapping[str, Mapping[str, int]],
    partitions: Mapping[str, Sequence[int]],
    assignor: Assignor,
    only: Collection[str] | None = None,
) -> Mapping[TopicPartition, ConsumerThreadId]:
    """Assign all topics, or those in ``only``; the other arguments are as in ``GroupView``."""
    threads = _threads(members, only)
    if assignor.name == "range":
        return assign_range(threads, partitions)
    subscriptions = [tuple(topics) for topics in members.values()]
    return assign_roundrobin(threads, partitions, assignor.hash_form, subscriptions)


def _threads(
    members: Mapping[str, Mapping[str, int]], only: Collection[str] | None
) -> dict[str, Sequence[ConsumerThreadId]]:
    """Return thread ids by topic, for all topics or those in ``only``. Topics with the same threads
    share one list, so with few distinct subscriptions the assignors sort few lists."""
    alike: dict[int, tuple[Mapping[str, int], list[str]]] = {}
    for member, topics in members.items():
        alike.setdefault(id(topics), (topics, []))[1].append(member)
    readers: dict[str, list[tuple[int, int]]] = {}
    for kind, (topics, _) in alike.items():
        for topic, streams in topics.items():
            if only is None or topic in only:
                readers.setdefault(topic, []).append((kind, streams))
    lists: dict[tuple[tuple[int, int], ...], list[ConsumerThreadId]] = {}
    threads: dict[str, Sequence[ConsumerThreadId]] = {}
    for topic, kinds in readers.items():
        key = tuple(kinds)
        if key not in lists:
            lists[key] = [
                ConsumerThreadId(member, stream)
                for kind, streams in kinds
                for member in alike[kind][1]
                for stream in range(streams)
            ]
        threads[topic] = lists[key]
    return threads
