"""The migrator waits for an open transaction that commits offsets."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition as Confluent
from zkmigrate.apply.outcome import Outcome
from zkmigrate.model import Direction, GroupState
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.group_states import read_states
from zkmigrate.stores.sessions import Stores

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.servers import wait_until

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]


def test_an_open_transaction_is_waited_for(bench: Bench, group: str, topic: str) -> None:
    """An offset that is committed in a transaction counts once the transaction ends. A plan back to
    ZooKeeper that is made meanwhile waits for it, and has the new offset."""
    bench.topic(topic, 1)
    bench.set_kafka(group, topic, {0: 3})
    where = {"bootstrap.servers": bench.cluster.broker_servers[0].address}
    producer = Producer({**where, "transactional.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    consumer = Consumer({**where, "group.id": group})
    member = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([Confluent(topic, 0, 9)], member, 30)
    made: list[object] = []
    thread = threading.Thread(
        target=lambda: made.append(bench.plan([group], Direction.KAFKA_TO_ZK)), daemon=True
    )
    began = time.monotonic()
    thread.start()
    thread.join(2.0)
    assert thread.is_alive(), "it waits"
    with Stores(Servers(bench.cluster.zookeeper, coordinator_timeout=1.0)) as stores:
        other = group + "-other"
        bench.set_kafka(other, topic, {0: 4})
        mine, theirs = read_states(stores, [group, other], {}, False)
        assert isinstance(mine, tuple)
        assert "an open transaction is committing it" in mine[1].what
        assert "let the transaction end" in mine[1].fix
        assert isinstance(theirs, GroupState), "only that group is unreadable"
    producer.commit_transaction(30)
    wait_until(lambda: made, 30, "the plan is made")
    print(f"{time.monotonic() - began:.1f} s")  # noqa: T201
    consumer.close()
    ((plan, journal),) = made  # type: ignore[misc]
    (found,) = plan.groups
    assert {entry.tp: entry.to for entry in found.entries} == {TopicPartition(topic, 0): 9}
    assert bench.apply(plan, journal)[0].outcome is Outcome.DONE
    assert bench.znodes(group)[f"/consumers/{group}/offsets/{topic}/0"] == b"9"
