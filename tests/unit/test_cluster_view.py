"""Reads below ``/brokers`` are answered from the brokers' data, as ZooKeeper would answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.zookeeper.cluster_view import (
    ClusterView,
    PartitionView,
    TopicView,
    answer,
    changed_paths,
    is_of_cluster,
    watched_by,
)
from zkconsumer.core.zookeeper.ops import (
    Code,
    Exists,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Listing,
    Node,
    Ok,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import decode_broker, decode_topic
from zkconsumer.servers.kraft import new_cluster_id

PART = PartitionView(1, 7, (1, 2), (1,))
VIEW = ClusterView(
    "c",
    (BrokerEndpoint(1, "h1", 9092), BrokerEndpoint(2, "h2", 9093)),
    {"a": TopicView("id-a", {0: PART, 1: PART}), "b": TopicView("", {0: PART})},
)


def document(path: str) -> Any:
    """Return the JSON of a znode."""
    reply = answer(VIEW, GetData(path))
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, Node)
    return json.loads(reply.value.data)


def test_znodes_are_as_members_and_tools_read_them() -> None:
    """Brokers, topics, states and the cluster's id. The readers of znodes understand them."""
    reply = answer(VIEW, GetMany(("/brokers/ids/2", "/brokers/ids/3", "/brokers/topics/a")))
    assert isinstance(reply, Ok)
    assert isinstance(reply.value, tuple)
    broker, missing, topic = reply.value
    assert isinstance(broker, Node)
    assert isinstance(topic, Node)
    assert missing is None
    assert decode_broker("/brokers/ids/2", 2, broker.data) == VIEW.brokers[1]
    assert decode_topic("/brokers/topics/a", topic.data) == (0, 1)
    assert document("/brokers/topics/a")["topic_id"] == "id-a"
    state = {"version": 1, "leader": 1, "leader_epoch": 7, "isr": [1]}
    assert document("/brokers/topics/a/partitions/1/state") == state
    assert document("/cluster/id")["id"] == "c"


@pytest.mark.parametrize(
    ("op", "reply"),
    [
        (GetChildren("/brokers/ids"), Ok(("1", "2"))),
        (GetChildren("/brokers/topics"), Ok(("a", "b"))),
        (GetChildren("/brokers/topics", False, True), Ok(Listing(("a", "b"), 0, 0))),
        (GetChildren("/brokers/none"), Failed(Code.NO_NODE)),
        (GetData("/brokers/topics/x"), Failed(Code.NO_NODE)),
        (GetData("/brokers/topics/a/partitions/9/state"), Failed(Code.NO_NODE)),
        (GetData("/brokers/topics/a/partitions/x/state"), Failed(Code.NO_NODE)),
        (Exists("/brokers/topics/x", watch=True), Ok(None)),
        (GetMany(("/brokers/ids", "/brokers/x"), children=True), Ok((("1", "2"), None))),
    ],
)
def test_replies_are_those_of_zookeeper(op: ZkOp, reply: object) -> None:
    """Lists, and znodes that do not exist."""
    assert is_of_cluster(op)
    assert answer(VIEW, op) == reply


@pytest.mark.parametrize(
    ("op", "everything", "ids_only"),
    [
        (GetData("/brokers/ids/1"), True, True),
        (GetData("/brokers/idsx"), True, False),
        (GetData("/brokers/topics/a"), True, False),
        (GetData("/cluster/id"), True, False),
        (GetData("/consumers/g/ids"), False, False),
        (GetMany(()), False, False),
    ],
)
def test_what_is_asked_of_brokers(op: ZkOp, everything: bool, ids_only: bool) -> None:
    """Everything below /brokers, or only the brokers' addresses if ZooKeeper belongs to the
    cluster."""
    assert is_of_cluster(op) is everything
    assert is_of_cluster(op, ids_only=True) is ids_only


def test_changes_fire_the_watches_that_zookeeper_would_fire() -> None:
    """Brokers, the list of topics, and each topic that appeared, disappeared, grew or was
    recreated."""
    grown = TopicView("id-a", {0: PART, 1: PART, 2: PART})
    moved = TopicView("", {0: PART._replace(leader=2)})
    again = TopicView("other", VIEW.topics["a"].partitions)

    def changed(**topics: TopicView) -> list[str]:
        return list(changed_paths(VIEW, ClusterView("c", VIEW.brokers, topics)))

    assert changed(**VIEW.topics) == []
    assert changed(a=grown, b=moved) == ["/brokers/topics/a"]
    assert changed(a=again, b=moved) == ["/brokers/topics/a"]
    assert changed(a=VIEW.topics["a"]) == ["/brokers/topics", "/brokers/topics/b"]
    fewer = ClusterView("c", VIEW.brokers[:1], VIEW.topics)
    assert list(changed_paths(VIEW, fewer)) == ["/brokers/ids"]


def test_watches_are_left_where_they_are_asked_for() -> None:
    """On one path, or on all paths of a batch."""
    assert watched_by(GetChildren("/brokers/ids", True)) == ("/brokers/ids",)
    assert watched_by(GetMany(("/a", "/b"), watch=True)) == ("/a", "/b")
    assert watched_by(GetData("/a")) == ()


def test_no_cluster_id_looks_like_an_option() -> None:
    """Kafka's tool would refuse it. One id in 64 begins with a hyphen."""
    assert not any(new_cluster_id().startswith("-") for _ in range(2000))
