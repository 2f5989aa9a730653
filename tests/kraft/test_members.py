"""A group that coordinates in ZooKeeper while its brokers use KRaft."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.groups import GroupWatch, Reader
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.errors import ConfigError, ForeignMemberError
from zkconsumer.servers import wait_until
from zkconsumer.servers.produce import send


@pytest.fixture
def config(left: Any, group: str) -> dict[str, object]:
    """A member that gets all metadata from the brokers, and reacts quickly."""
    return {
        "zookeeper.connect": left.address,
        "zkconsumer.brokers": "bootstrap",
        "bootstrap.servers": left.kraft.bootstrap,
        "zkconsumer.reread.interval.ms": 1500,
        "group.id": group,
        "zookeeper.session.timeout.ms": 4000,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 500,
        "refresh.leader.backoff.ms": 50,
    }


def test_members_share_partitions_and_commit_in_zookeeper(
    left: Any, config: dict[str, object], group: str, topic: str
) -> None:
    """Two members share a topic and follow new partitions. The next member continues at the exact
    next message."""
    left.topic(topic, partitions=4, messages=10)
    with GroupWatch(left.address, group) as watch:
        with ZookeeperConsumerConnector(config) as first:
            reader = Reader(first.create_message_streams({topic: 1})[topic])
            reader.wait(40)
            with ZookeeperConsumerConnector(config) as second:
                second.create_message_streams({topic: 1})
                shared = watch.wait_owners(
                    topic, lambda owners: len(set(owners.values())) == 2, 15, "both own some"
                )
                assert len(shared) == 4
            left.kraft.add_partitions(topic, 6)
            watch.wait_owners(topic, lambda owners: len(owners) == 6, 15, "all six are owned")
        assert sum(watch.offsets(topic).values()) == 40
        send(left.kraft.bootstrap, topic, [(b"k%d" % n, b"new") for n in range(30)])
        with ZookeeperConsumerConnector(config) as third:
            later = Reader(third.create_message_streams({topic: 1})[topic])
            later.wait(30)
        assert [one.value for one in later.deliveries] == [b"new"] * 30
        wait_until(
            lambda: sum(watch.offsets(topic).values()) == 70, 10, "the last offsets are stored"
        )
    assert not left.client.exists("/brokers")


def test_a_filter_finds_topics_that_are_created_and_deleted(
    left: Any, config: dict[str, object], group: str, unique: str
) -> None:
    """Topics are created and deleted, although ZooKeeper has no znodes for them."""
    one, other = f"{unique}-1", f"{unique}-2"
    left.topic(one, 2, 5)
    with (
        GroupWatch(left.address, group) as watch,
        ZookeeperConsumerConnector(config) as member,
    ):
        reader = Reader(member.create_message_streams_by_filter(Whitelist(f"{unique}-.*")))
        reader.wait(10)
        left.topic(other, 2, 5)
        reader.wait(20)
        left.kraft.delete_topic(one)
        watch.wait_owners(one, lambda owners: not owners, 15, "the deleted topic is let go")
        assert len(watch.owners(other)) == 2


def test_a_jvm_member_is_refused(
    left: Any, config: dict[str, object], group: str, topic: str
) -> None:
    """With a JVM member in the group, our member does not start. A JVM member that joins later gets
    no share."""
    left.topic(topic, 2, 5)
    with JvmMembers("1.1") as jvm, GroupWatch(left.address, group) as watch:
        theirs = {
            "zookeeper.connect": left.address,
            "group.id": group,
            "consumer.id": "jvm",
            "zookeeper.session.timeout.ms": 4000,
        }
        with ZookeeperConsumerConnector(config) as ours:
            reader = Reader(ours.create_message_streams({topic: 1})[topic])
            watch.wait_owners(topic, lambda owners: len(owners) == 2, 15, "ours owns both")
            JvmMember(jvm, theirs, {topic: 2})
            wait_until(lambda: len(watch.members()) == 2, 15, "the JVM's member is registered")
            wait_until(
                lambda: ours.metrics().quarantined_registrations == 1, 15, "our members ignore it"
            )
            reader.wait(10)
            assert len(watch.owners(topic)) == 2
        with (
            pytest.raises(ForeignMemberError, match="of the JVM's consumer"),
            ZookeeperConsumerConnector(config) as late,
        ):
            late.create_message_streams({topic: 1})
        assert len(watch.members()) == 1


def test_brokers_of_bootstrap_win_over_those_in_zookeeper(
    left: Any, config: dict[str, object], topic: str
) -> None:
    """Topics are read from ZooKeeper, as JVM members do, but the bootstrap brokers are asked for
    broker addresses."""
    left.topic(topic, 2, 5)
    left.remember(topic)
    secured = {"version": 4, "endpoints": ["SASL_SSL://nowhere:9093"], "host": None, "port": -1}
    left.client.create("/brokers/ids/0", json.dumps(secured).encode(), makepath=True)
    config["zkconsumer.brokers"] = "zookeeper"
    with ZookeeperConsumerConnector(config) as member:
        Reader(member.create_message_streams({topic: 1})[topic]).wait(10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bootstrap.servers": None}, "zkconsumer.brokers=bootstrap needs brokers to ask"),
        ({"bootstrap.servers": "a b"}, "bootstrap.servers=a b"),
        ({"zkconsumer.profile": "scala"}, "bootstrap.servers is not for zkconsumer.profile=scala"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    config: dict[str, object], change: dict[str, object], said: str
) -> None:
    """The constructor refuses them before anything is connected."""
    with pytest.raises(ConfigError, match=said):
        ZookeeperConsumerConnector(config | change)
