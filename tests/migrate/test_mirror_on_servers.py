"""A group of the original consumer is mirrored on real servers, while a producer runs."""

from __future__ import annotations

import os
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply.outcome import Outcome
from zkmigrate.mirror.mirroring import Mirroring
from zkmigrate.stores import mirror_state

from tests.migrate.conftest import Bench
from tests.migrate.mirror_faults import LIMIT_S, Faults
from tests.migrate.mirrored import Mirrored, New, Old
from tests.support.legacy_jvm import JvmMembers
from zkconsumer import CoordinatorConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import StoredOffset, commit
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.servers import LocalCluster, wait_until

NEW = ("kafka-python", "librdkafka")


@pytest.mark.timeout(400)
def test_there_and_back_and_there(
    cluster: LocalCluster, jvm: JvmMembers, tmp_path: Path, group: str, topic: str
) -> None:
    """Four members of the original consumer with 24 partitions are replaced by those of librdkafka,
    Java and kafka-python, come back, and are replaced again. The mirror is killed in between. No
    message is lost, and none is repeated that its program had committed when it stopped. Besides
    the programs' own stop and start, delivery is interrupted for less than three seconds.

    ``ZKC_SEED`` draws for how long each program runs, and in which order new members start. Without
    it other tests use the machine, too: a change may take longer, and 300 messages a second are
    sent, not 1,000.
    """
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(10**6))
    rate = 1000 if "ZKC_SEED" in os.environ else 300
    print(f"repeat with ZKC_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    with Mirrored(cluster, jvm, (group, topic), 24, tmp_path, print, rate) as one:

        def new() -> New:
            return one.new(*chance.sample(("librdkafka", "java", "kafka-python"), 3))

        def run(members: Old | New) -> None:
            one.wait_delivered(members, chance.randint(rate, 5 * rate))

        one.java()
        old = one.old(4)
        one.start_mirror()
        for number in range(2):
            run(old)
            members = one.change(old, "cut-over", new)
            run(members)
            if number:
                break
            one.kill_mirror()
            run(members)
            old = one.change(members, "undo", lambda: one.old(4))
            one.start_mirror()
        assert one.command("complete", "--execute")["outcome"] == "done"
        one.finish(members)
        print(one.figures())  # noqa: T201
        assert one.lost() == []
        assert one.repeated() <= one.uncommitted
        row = one.status()
        assert (row["case"], row["locked"], row["kafka_lag"]) == ("moved and used", "locked", 0)
        limit = 3.0 if "ZKC_SEED" in os.environ else 6 * 3.0
        assert max(one.command for one in one.changes) < limit, one.changes


@pytest.mark.timeout(1800)
def test_killed_at_random(tmp_path: Path) -> None:
    """Everything is killed, suspended or cut off, while the group goes there and back. After each
    fault both stores are soon in step, or the mirror names the group. No message is lost, and the
    mirror lowers no offset.

    ``ZKC_SEED`` draws, ``MIRROR_FAULTS`` is the number of faults (``make mirror-faults``: 40).
    Without it other tests use the machine, too, and a recovery may take longer.
    """
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(10**6))
    count = int(os.environ.get("MIRROR_FAULTS", "3"))
    print(f"repeat with ZKC_SEED={seed} MIRROR_FAULTS={count}")  # noqa: T201
    faults = Faults(seed, tmp_path, print)
    one = faults.play(count)
    print(one.figures())  # noqa: T201
    assert one.lost() == []
    assert faults.lowered == []
    limit = LIMIT_S if "MIRROR_FAULTS" in os.environ else 6 * LIMIT_S
    assert [str(one) for one in faults.recoveries if not one.good(limit)] == []


def test_a_client_that_commits_through_the_broker(bench: Bench, group: str, topic: str) -> None:
    """With OffsetCommit version 0 the broker writes to ZooKeeper, and the client has no
    registration there. Its offsets are copied, it continues where the new program has stopped, and
    it is named if it commits after the cut-over."""
    bench.topic(topic, 2)
    with bench.stores() as stores:
        mirror = Mirroring(stores)

        def in_step(*offsets: int) -> bool:
            steps = list(mirror.steps([group]))
            assert all(one.good for one in steps), steps
            found = bench.kafka.fetch(group, places)
            return [found[tp].offset for tp in places if tp in found] == [*offsets]

        places = [TopicPartition(topic, number) for number in range(2)]
        version_0(bench, group, topic, 5, 3)
        assert [one.outcome for one in mirror.begin([group], None, True)] == [Outcome.DONE]
        assert in_step(5, 3)
        version_0(bench, group, topic, 7, 3)
        wait_until(lambda: in_step(7, 3), 20, "the offset is copied")
        assert mirror.cut_over(group, True, 0).outcome is Outcome.DONE
        bench.set_kafka(group, topic, {0: 9, 1: 4})
        znode = f"/consumers/{group}/offsets/{topic}/0"
        wait_until(lambda: in_step(9, 4) and bench.client.get(znode)[0] == b"9", 20, "it is copied")
        assert mirror.back(group, True, 0).outcome is Outcome.DONE
        version_0(bench, group, topic, 11, 6)
        wait_until(lambda: in_step(11, 6), 20, "the offset is copied")
        assert mirror.cut_over(group, True, 0).outcome is Outcome.DONE
        version_0(bench, group, topic, 12, 6)

        def stopped() -> bool:
            (step,) = mirror.steps([group])
            return step.state == "stopped" and "12" in step.why and "11" in step.why

        wait_until(stopped, 20, "the client is named")


def test_members_of_this_library(bench: Bench, group: str, topic: str) -> None:
    """They are not told of the mirror. The group's member changes from ZooKeeper to the coordinator
    and back, and gets each message exactly once."""
    bench.topic(topic, 2)
    where = {"group.id": group, "auto.offset.reset": "smallest", "consumer.timeout.ms": "60000"}
    got: list[tuple[int, int]] = []

    def consume(connector: Any, count: int) -> None:
        (stream,) = connector.create_message_streams({topic: 1})[topic]
        for message in islice(stream, count):
            got.append((message.partition, message.offset))
            stream.mark_consumed()
        assert all(one.good for one in mirror.steps([group]))
        connector.shutdown()

    def in_zookeeper(count: int) -> None:
        at = bench.cluster.zookeeper
        consume(ZookeeperConsumerConnector({**where, "zookeeper.connect": at}), count)

    def in_kafka(count: int) -> None:
        at = bench.cluster.bootstrap
        consume(CoordinatorConsumerConnector({**where, "bootstrap.servers": at}), count)

    with bench.stores() as stores:
        mirror = Mirroring(stores)
        in_zookeeper(5)
        assert [one.outcome for one in mirror.begin([group], None, True)] == [Outcome.DONE]
        in_zookeeper(6)
        assert mirror.cut_over(group, True, 30).outcome is Outcome.DONE
        in_kafka(9)
        assert mirror.back(group, True, 30).outcome is Outcome.DONE
        in_zookeeper(20)
    assert sorted(got) == [(partition, offset) for partition in range(2) for offset in range(20)]


def version_0(bench: Bench, group: str, topic: str, *offsets: int) -> None:
    """Commit through the broker to ZooKeeper."""
    server = bench.cluster.broker_servers[0]
    connection = BrokerConnection(BrokerEndpoint(0, "127.0.0.1", server.port), "tests", 15.0, 0)
    wanted = {TopicPartition(topic, at): StoredOffset(one) for at, one in enumerate(offsets)}
    assert set(commit(connection, group, wanted, 0).values()) == {0}
    connection.close()


def test_a_watch_fires(bench: Bench, group: str, topic: str) -> None:
    """A mirror learns that way which offsets have changed."""
    bench.set_zk(group, topic, {0: 5})
    with bench.stores() as stores:
        stores.zk.run(mirror_state.look(group, watch=True))
        bench.set_zk(group, topic, {0: 6})
        path = f"/consumers/{group}/offsets/{topic}/0"
        wait_until(lambda: path in (stores.zk.fired() or ()), 30, "the watch fires")
