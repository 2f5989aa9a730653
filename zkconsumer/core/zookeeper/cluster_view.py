"""The brokers' description of the cluster, in the form of the znodes below ``/brokers``. Pure.

A cluster without ZooKeeper (KRaft) has no such znodes. So that their readers need no change,
``answer`` replies to them from a ``ClusterView``. Any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.ops import (
    Code,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Listing,
    Node,
    OffsetOp,
    Ok,
    Reply,
    Stat,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, BROKER_TOPICS

CLUSTER_ID: Final = "/cluster/id"
_STAT: Final = Stat(0, 0, 0, 0)


class PartitionView(NamedTuple):
    """One partition. ``leader`` is -1 if there is none, and an unknown epoch is -1."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. ``topic_id`` is empty if brokers have none (before 2.8)."""

    topic_id: str
    partitions: Mapping[int, PartitionView]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A broker's view of its cluster. ``cluster_id`` is ``None`` before 0.10.1."""

    cluster_id: str | None = None
    brokers: tuple[BrokerEndpoint, ...] = ()
    topics: Mapping[str, TopicView] = field(default_factory=dict)
    protocol: str = "PLAINTEXT"
    """Protocol of these brokers' listeners, as in ``security.protocol``."""


def is_cluster_path(path: str, ids_only: bool = False) -> bool:
    """Whether the brokers have the data of this znode. ``ids_only``: only data about brokers."""
    if ids_only:
        return path == BROKER_IDS or path.startswith(BROKER_IDS + "/")
    return path == CLUSTER_ID or path.startswith("/brokers/")


def is_of_cluster(op: ZkOp | OffsetOp, ids_only: bool = False) -> bool:
    """Whether an operation reads znodes whose data the brokers have. No operation reads both such
    znodes and others."""
    if isinstance(op, GetMany):
        return bool(op.paths) and is_cluster_path(op.paths[0], ids_only)
    if isinstance(op, Exists | GetData | GetChildren):
        return is_cluster_path(op.path, ids_only)
    return False


def watched_by(op: ZkOp | OffsetOp) -> tuple[str, ...]:
    """Return the paths on which an operation sets watches."""
    if isinstance(op, GetMany):
        return op.paths if op.watch else ()
    if isinstance(op, Exists | GetData | GetChildren):
        return (op.path,) if op.watch else ()
    return ()


def answer(view: ClusterView, op: ZkOp | OffsetOp) -> Reply:
    """Return the reply to an operation for which ``is_of_cluster`` is true."""
    if isinstance(op, GetMany):
        if op.children:
            return Ok(tuple(_children(view, path) for path in op.paths))
        return Ok(tuple(_node(view, path) for path in op.paths))
    if isinstance(op, GetChildren):
        names = _children(view, op.path)
        if names is None:
            return Failed(Code.NO_NODE)
        return Ok(Listing(names, 0, 0) if op.counted else names)
    assert isinstance(op, Exists | GetData)
    node = _node(view, op.path)
    if isinstance(op, Exists):
        return Ok(None if node is None else node.stat)
    return Failed(Code.NO_NODE) if node is None else Ok(node)


def changed_paths(before: ClusterView, after: ClusterView) -> Iterator[str]:
    """Yield the paths that differ between two views, so that watches on them fire."""
    if before.brokers != after.brokers:
        yield BROKER_IDS
    if before.topics.keys() != after.topics.keys():
        yield BROKER_TOPICS
    for name in sorted({*before.topics, *after.topics}):
        old, new = before.topics.get(name), after.topics.get(name)
        if (
            old is None
            or new is None
            or old.topic_id != new.topic_id
            or old.partitions.keys() != new.partitions.keys()
        ):
            yield f"{BROKER_TOPICS}/{name}"


def _children(view: ClusterView, path: str) -> tuple[str, ...] | None:
    if path == BROKER_IDS:
        return tuple(str(broker.broker_id) for broker in view.brokers)
    if path == BROKER_TOPICS:
        return tuple(view.topics)
    return None


def _node(view: ClusterView, path: str) -> Node | None:
    document = _document(view, path)
    return None if document is None else Node(json.dumps(document).encode(), _STAT)


def _document(view: ClusterView, path: str) -> Mapping[str, object] | None:
    if path == CLUSTER_ID:
        return None if view.cluster_id is None else {"version": "1", "id": view.cluster_id}
    parts = path.removeprefix("/brokers/").split("/")
    match parts:
        case ["ids", name]:
            for broker in view.brokers:
                if str(broker.broker_id) == name:
                    listener = f"{view.protocol}://{broker.host}:{broker.port}"
                    return {"version": 4, "endpoints": [listener]}
        case ["topics", topic] if topic in view.topics:
            known = view.topics[topic]
            replicas = {str(n): list(part.replicas) for n, part in known.partitions.items()}
            return {"version": 3, "topic_id": known.topic_id, "partitions": replicas}
        case ["topics", topic, "partitions", name, "state"] if topic in view.topics:
            partitions = view.topics[topic].partitions
            part = partitions.get(int(name)) if name.isdigit() else None
            if part is not None:
                return {
                    "version": 1,
                    "leader": part.leader,
                    "leader_epoch": part.leader_epoch,
                    "isr": list(part.isr),
                }
        case ["ids"] | ["topics"]:
            return {}
    return None
