"""Members with ``group.protocol=consumer`` (KIP-848) on a real broker of Kafka 4."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.groups import Producer, Reader, all_delivered, delivered_once
from tests.support.members import held, share, started
from zkconsumer import Trouble
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.common.topic_filter import Blacklist, Whitelist
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    UnsupportedBrokerError,
)
from zkconsumer.servers import LocalCluster, wait_until

Make = Callable[..., CoordinatorConsumerConnector]


@pytest.fixture
def config(kraft: LocalCluster, group: str) -> dict[str, object]:
    """Settings of a member that reads from the beginning and reacts quickly."""
    return {
        "bootstrap.servers": kraft.bootstrap,
        "group.id": group,
        "group.protocol": "consumer",
        "session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "refresh.leader.backoff.ms": 50,
        "metadata.max.age.ms": 300,
    }


@pytest.fixture
def make(config: dict[str, object]) -> Iterator[Make]:
    """Creates members that are shut down after the test."""
    with started(
        CoordinatorConsumerConnector, config, CommitFailedError
    ) as start:  # of killed members
        yield start


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_partitions_that_stay_never_pause(
    kraft: LocalCluster, make: Make, topic: str, assignor: str
) -> None:
    """A second member joins and leaves under load. Partitions that stay with the first one are
    started once, and no record is lost or repeated."""
    kraft.create_topic(topic, 6)
    with Producer(kraft.bootstrap, topic, range(6), interval=0.002) as producer:
        first = make(group_remote_assignor=assignor)
        readers = [Reader(first.create_message_streams({topic: 2})[topic])]
        wait_until(lambda: len(held(first)) == 6, 10, "the first member owns everything")
        assert first._plane is not None
        before = {tp: first._plane._held[tp][0] for tp in held(first)}
        second = make(group_remote_assignor=assignor)
        readers.append(Reader(second.create_message_streams({topic: 1})[topic]))
        wait_until(lambda: share([first, second], 6), 10, "both have their share")
        assert len(held(second)) == 3
        kept = held(first)
        wait_until(lambda: len(readers[1].deliveries) > 50, 10, "the second member reads")
        second.shutdown()
        wait_until(lambda: len(held(first)) == 6, 10, "the first member owns everything again")
        for tp in kept:
            assert first._plane._held[tp][0] is before[tp], f"{tp} was stopped"
        delivered_once(producer, readers)


def test_a_killed_member_is_replaced(kraft: LocalCluster, make: Make, topic: str) -> None:
    """Other members get its partitions after the session timeout, and lose nothing."""
    kraft.create_topic(topic, 4)
    with Producer(kraft.bootstrap, topic, range(4), interval=0.01) as producer:
        members = [make(), make()]
        readers = [Reader(one.create_message_streams({topic: 1})[topic]) for one in members]
        wait_until(lambda: share(members, 4), 10, "both have their share")
        killed = time.monotonic()
        assert members[1]._loop is not None
        members[1]._loop.give_up("killed", 1.0)
        wait_until(lambda: len(held(members[0])) == 4, 15, "the first member owns everything")
        assert time.monotonic() - killed < 6 + 5
        all_delivered(producer, readers)


def test_a_static_member_comes_back_to_its_partitions(
    kraft: LocalCluster, make: Make, topic: str
) -> None:
    """While the member is away, the others get none of its partitions."""
    kraft.create_topic(topic, 4)
    one, other = make(group_instance_id="one"), make(group_instance_id="other")
    Reader(one.create_message_streams({topic: 1})[topic])
    Reader(other.create_message_streams({topic: 1})[topic])
    wait_until(lambda: share([one, other], 4), 10, "both have their share")
    mine, theirs = held(one), held(other)
    one.shutdown()
    again = make(group_instance_id="one")
    Reader(again.create_message_streams({topic: 1})[topic])
    wait_until(lambda: held(again) == mine, 10, "it has the same partitions")
    assert held(other) == theirs


def test_an_instance_id_that_is_in_use(kraft: LocalCluster, make: Make, topic: str) -> None:
    """The second member waits for the session timeout, then its error names the key."""
    kraft.create_topic(topic, 1)
    one, other = (
        make(group_instance_id="one"),
        make(group_instance_id="one", session_timeout_ms=1000),
    )
    Reader(one.create_message_streams({topic: 1})[topic])
    with pytest.raises(BrokerError, match=r"UNRELEASED_INSTANCE_ID.*group.instance.id"):
        other.create_message_streams({topic: 1})
    assert len(held(one)) == 1


def test_the_broker_evaluates_a_pattern(
    kraft: LocalCluster, make: Make, topic: str, group: str
) -> None:
    """Topics created later are read too, but internal topics are not. A pattern that is not RE2,
    and a Blacklist, are refused."""
    kraft.create_topic(f"{topic}-a", 1)
    member = make()
    streams = member.create_message_streams_by_filter(Whitelist(f"{topic}-.*|__.*"))
    Reader(streams)
    wait_until(lambda: held(member) == {TopicPartition(f"{topic}-a", 0)}, 30, "the first topic")
    kraft.create_topic(f"{topic}-b", 2)
    wait_until(lambda: len(held(member)) == 3, 30, "the second topic")
    with pytest.raises(BrokerError, match=r"INVALID_REGULAR_EXPRESSION.*RE2"):
        make(group_id=f"{group}-2").create_message_streams_by_filter(Whitelist("(?=a).*"))
    with pytest.raises(ConfigError, match="Blacklist"):
        make(group_id=f"{group}-3").create_message_streams_by_filter(Blacklist("a"))


def test_a_topic_that_does_not_exist_is_the_reason_for_idleness(
    kraft: LocalCluster, make: Make, topic: str
) -> None:
    """It is in the health until the topic is created. Asking for it creates no topic."""

    def obstacles() -> list[str]:
        reasons = member.health(0.0).reasons
        return [reason.text for reason in reasons if reason.trouble is Trouble.UNASSIGNABLE]

    member = make()
    streams = member.create_message_streams({topic: 1})[topic]
    text = f"topic {topic} does not exist, nor does any other that it names"
    wait_until(lambda: obstacles() == [text], 30, "the reason is in the health")
    time.sleep(1)
    assert obstacles() == [text]
    kraft.create_topic(topic, 1)
    wait_until(lambda: len(held(member)) == 1, 30, "the member has the partition")
    assert obstacles() == []
    with Producer(kraft.bootstrap, topic, range(1)) as producer:
        producer.send(1)
        Reader(streams).wait(1)


def test_an_unknown_assignor_is_named(kraft: LocalCluster, make: Make, topic: str) -> None:
    """The error names the wrong key."""
    kraft.create_topic(topic, 1)
    with pytest.raises(BrokerError, match=r"UNSUPPORTED_ASSIGNOR.*group\.remote\.assignor"):
        make(group_remote_assignor="best").create_message_streams({topic: 1})


def test_a_broker_that_has_the_protocol_disabled(make: Make, topic: str) -> None:
    """The error names the broker's keys and the fix."""
    disabled = {"group.coordinator.rebalance.protocols": "classic"}
    with LocalCluster("4", properties=disabled) as cluster:
        cluster.create_topic(topic, 1)
        member = make(bootstrap_servers=cluster.bootstrap)
        expected = r"UNSUPPORTED_VERSION.*is disabled on the broker.*group\.coordinator\.rebalance"
        with pytest.raises(UnsupportedBrokerError, match=expected):
            member.create_message_streams({topic: 1})
        member.shutdown()


def test_the_tools_see_the_members(kraft: LocalCluster, make: Make, topic: str, group: str) -> None:
    """Who asks for a group as one of the classic protocol is told that it is dead."""
    kraft.create_topic(topic, 2)
    make().create_message_streams({topic: 1})
    both = (TopicPartition(topic, 0), TopicPartition(topic, 1))
    host, _, port = kraft.bootstrap.rpartition(":")
    broker = BrokerEndpoint(0, host, int(port))
    with GroupCoordinators("tests", lambda: [broker], 10.0, 30.0) as tools:
        wait_until(
            lambda: [one.partitions for one in tools.describe(group).members] == [both],
            10,
            "the member has both partitions",
        )
        found = tools.describe(group)
        assert (found.state, found.strategy) == ("Stable", "uniform")
        none = f"{group}-none"
        assert tools.describe(none).state == "Dead"
        named = tools.members_of([group, none])
        (member,) = found.members
        assert named == {
            group: (f"{member.client_id} at {member.host} ({member.member_id})",),
            none: (),
        }
