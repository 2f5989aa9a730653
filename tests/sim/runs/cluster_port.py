"""The brokers of a simulated cluster, for members that do not read below ``/brokers``.

The simulated brokers store their data in the simulated ZooKeeper, where members of this kind do not
look. Everything runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.core.zookeeper.cluster_view import ClusterView, PartitionView, TopicView
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    broker_path,
    decode_broker,
    decode_topic,
    topic_path,
)
from zkconsumer.sim.members.host import SimHost
from zkconsumer.sim.servers.zk import FakeZk

_LATENCY_S = (0.001, 0.2)
_SILENCE_S = (0.5, 2.0)
_SILENT = 0.1
"""Probability that the broker that is asked does not answer."""


class SimClusterPort:
    """The ``ClusterPort`` of a simulated member."""

    def __init__(self, zk: FakeZk, host: SimHost) -> None:
        self._zk = zk
        self._host = host

    def submit(self, request: None, on_answer: Callable[[ClusterView | str], object]) -> None:
        """See ``ClusterPort``: the answer is as old as the way back is long."""
        host = self._host
        if host.random.random() < _SILENT:
            host.within(_SILENCE_S, lambda: on_answer("no broker has answered"))
            return

        def arrived() -> None:
            view = cluster_view(self._zk)
            found = view if view.brokers else "no broker can be reached"
            host.within(_LATENCY_S, lambda: on_answer(found))

        host.kernel.schedule(_LATENCY_S[1] * host.random.random(), arrived)

    def close(self) -> None:
        """See ``ClusterPort``."""


def cluster_view(zk: FakeZk) -> ClusterView:
    """Return the cluster as its brokers know it at this moment."""
    brokers = []
    for name in zk.children(BROKER_IDS):
        path = broker_path(int(name))
        node = zk.get(path)
        if node is not None:
            brokers.append(decode_broker(path, int(name), node.data))
    topics: dict[str, TopicView] = {}
    for topic in zk.children(BROKER_TOPICS):
        path = topic_path(topic)
        node = zk.get(path)
        if node is not None:
            numbers = decode_topic(path, node.data)
            parts = {number: PartitionView(-1, -1, (), ()) for number in numbers}
            topics[topic] = TopicView(str(node.stat.czxid), parts)
    return ClusterView("sim", tuple(brokers), topics)
