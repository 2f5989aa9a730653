"""The environment of a simulated ZooKeeper group: servers, brokers, topics, and an observer.

The observer follows commits and deliveries. Everything runs inside kernel events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper.ops import Create, Delete, MultiOp, Ok, SetData
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    topic_path,
)
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.plane import Source
from zkconsumer.sim.servers.zk import FakeZk, Txn
from zkconsumer.sim.servers.zk_tree import Change

GROUP = "g"
#: A time between two periodic readings that no run lasts.
NEVER = 1000.0


@dataclass(slots=True)
class World:
    """ZooKeeper, brokers, and topics with records, for the members of one group."""

    kernel: Kernel
    zk: FakeZk
    data: Source
    observer: Observer
    paths: GroupPaths = field(default_factory=lambda: GroupPaths(GROUP))
    members: list[Any] = field(default_factory=list)
    history: list[str] | None = None

    def begin(self, brokers: Iterable[int]) -> None:
        """Create the first znodes, register ``brokers``, and let the observer follow each
        transaction."""
        self.zk.on_commit(self._committed)
        for path in ("/brokers", BROKER_IDS, BROKER_TOPICS, "/consumers"):
            self.do(Create(path))
        for broker in brokers:
            self.add_broker(broker)

    def do(self, op: MultiOp) -> bool:
        """Carry out a write as an administrator; return false if it is refused."""
        return isinstance(self.zk.do(op), Ok)

    def add_broker(self, broker: int) -> None:
        """Register a broker."""
        self.set_broker(broker, BrokerEndpoint(broker, f"b{broker}", 9092))

    def set_broker(self, broker: int, at: BrokerEndpoint | None) -> None:
        """Register a broker again, or end its registration."""
        self.do(Delete(broker_path(broker)))
        if at is not None:
            document = {"version": 1, "host": at.host, "port": at.port, "timestamp": "1"}
            self.do(Create(broker_path(broker), json.dumps(document).encode()))

    @property
    def topics(self) -> dict[str, int]:
        """Number of partitions of each topic that exists."""
        return self.data.topics

    def set_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, or give it more partitions."""
        self.data.add_partitions(topic, partitions)
        document = {"version": 1, "partitions": {str(n): [n % 2] for n in range(partitions)}}
        data = json.dumps(document).encode()
        if not self.do(SetData(topic_path(topic), data)):
            self.do(Create(topic_path(topic), data))

    def _committed(self, zxid: int, txn: Txn) -> None:
        """Pass each transaction to the observer at the moment it is committed."""
        if self.history is not None:
            changes = "; ".join(map(_shown, txn.changes))
            self.history.append(f"{self.kernel.now_us} txn {zxid} {txn.session_id} {changes}")
        observer, now = self.observer, self.kernel.now
        if txn.closes_session:
            observer.session_ended(txn.session_id)
        for change in txn.changes:
            parts = change.path.split("/")
            if len(parts) != 6 or parts[1] != "consumers" or not parts[5].isdecimal():
                continue
            tp = TopicPartition(parts[4], int(parts[5]))
            before, after = change.before, change.after
            if parts[3] == "owners" and (before is None or after is None):
                owner = after.stat.ephemeral_owner if after is not None else None
                fenced = self.zk.get(self.paths.offset(tp)) is not None
                observer.owner_changed(now, tp, owner, txn.session_id, fenced=fenced)
            elif parts[3] == "offsets" and txn.session_id:
                was = int(before.data) if before is not None else None
                observer.offset_changed(
                    now, tp, was, int(after.data) if after is not None else None, txn.session_id
                )


def _shown(change: Change) -> str:
    """Return a change as text for the history, without long contents, because those of tools
    contain times."""
    if change.acl is not None:
        return f"{change.path} access list {change.acl}"
    if change.after is None:
        return f"{change.path} deleted"
    data, stat = change.after.data, change.after.stat
    content = f"{len(data)} bytes" if len(data) > 40 else repr(data)
    return f"{change.path} {content} version {stat.version} session {stat.ephemeral_owner}"
