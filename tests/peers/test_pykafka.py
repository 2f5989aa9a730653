"""pykafka's balanced consumer in a group of ours: its znodes are not the JVM's."""

from __future__ import annotations

from tests.peers.clients import Start, command, filled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until


def test_a_member_that_is_not_understood(
    cluster: LocalCluster, start: Start, group: str, topic: str
) -> None:
    """Both read everything. `health` is not ok and names the other member, and so does `groups
    verify`."""
    expected = filled(cluster, topic, 4, 100)
    other = start("pykafka", topic)
    wait_until(lambda: len(other.got) == len(expected), 60, f"all is read: {other.errors[-3:]}")
    config = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "auto.offset.reset": "smallest",
    }
    with ZookeeperConsumerConnector(config) as ours:
        ours.create_message_streams({topic: 1})
        wait_until(lambda: ours.health().owned == 4, 60, "all is ours")
        wait_until(
            lambda: (
                not (health := ours.health(5.0)).ok
                and f"/consumers/{group}/ids/" in str(health.reasons)
            ),
            30,
            "health names the member that is not understood",
        )
        verified = command(
            "zkconsumer", "groups", "verify", group, "--zookeeper", cluster.zookeeper
        )
        assert verified.returncode == 1, verified.stdout + verified.stderr
        assert "foreign-layout" in verified.stdout
