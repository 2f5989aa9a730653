"""After a live move, consumers of Java and librdkafka take over from migratable members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.integration.test_coordinator_mixed import Join, Jvm, Member, jvm, start
from tests.integration.test_live_move import Make, acknowledged, config, held, make, move
from tests.support.groups import Producer, Reader
from zkconsumer.core.migration.modes import Mode
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.zk.blocking import BlockingZk

PARTITIONS = 8
__all__ = ["Jvm", "config", "jvm", "make", "start"]


def test_java_and_librdkafka_take_over(
    cluster: LocalCluster,
    make: Make,
    start: Callable[[str, Join], Member],
    topic: str,
    group: str,
) -> None:
    """In mode ``open`` both join, and the migratable members leave one at a time. Every partition
    continues at the exact next message. Nothing is lost or repeated."""
    cluster.create_topic(topic, PARTITIONS)
    with (
        Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.002) as producer,
        BlockingZk(cluster.zookeeper) as zk,
    ):
        strategies = {"zkconsumer_live_strategies": "cooperative-sticky"}
        mine = [make(consumer_id=f"m{n}", **strategies) for n in range(2)]
        readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in mine]
        wait_until(lambda: [held(one) for one in mine] == [4, 4], 20, "they share")
        acknowledged(zk, group, 2, 0)
        for mode in (Mode.LOCKED, Mode.KAFKA, Mode.OPEN):
            move(zk, group, mode, 2)
        join = Join(cluster.bootstrap, group, topic, "cooperative-sticky", None)
        plain: list[Member] = []
        for make_of, left in (("java", 6), ("librdkafka", 4)):
            plain.append(start(make_of, join))
            wait_until(
                lambda: len(plain[-1].partitions) >= 2 and sum(map(held, mine)) <= left,  # noqa: B023
                30,
                f"{make_of} has its share",
            )
            before = len(plain[-1].got())
            wait_until(lambda: len(plain[-1].got()) > before + 20, 30, f"{make_of} reads")  # noqa: B023
        for member in mine:
            member.shutdown()
        wait_until(
            lambda: [len(one.partitions) for one in plain] == [4, 4], 30, "both own everything"
        )
        sent = producer.stop()

        def got() -> Counter[tuple[int, int]]:
            ours = ((one.partition, one.offset) for some in readers for one in some.deliveries)
            return Counter(ours) + Counter(found for one in plain for found in one.got())

        wait_until(lambda: got().keys() >= set(sent), 30, "everything is read")
    assert got().keys() == set(sent)
    assert got().total() == len(sent), "delivered twice"
