"""One group of our members, librdkafka's and Java's, of both protocols, on a broker of Kafka 4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest

from tests.integration.group_members import Java, Join, Jvm, Librdkafka, Member, Ours
from zkconsumer.testing import LocalCluster, wait_until
from zkconsumer.testing.groups import Producer

PARTITIONS: Final = 12
SETTLED: Final = 40
"""Seconds within which a group must have settled; it takes two or three."""

Start = Callable[[str, str], Member]


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A JVM with the consumer of Kafka 4."""
    running = Jvm(tmp_path_factory.mktemp("jvm"), "4")
    yield running
    running.close()


@pytest.fixture
def everyone() -> list[Member]:
    """All members of the test, also those that have left."""
    return []


@pytest.fixture
def start(
    kraft: LocalCluster, jvm: Jvm, group: str, topic: str, everyone: list[Member]
) -> Iterator[Start]:
    """Starts a member of a make and a protocol; those that are left end with the test."""

    def one(make: str, protocol: str) -> Member:
        join = Join(kraft.bootstrap, group, topic, "range", protocol=protocol)
        match make:
            case "ours":
                everyone.append(Ours(join))
            case "java":
                everyone.append(Java(join, jvm))
            case _:
                everyone.append(Librdkafka(join))
        return everyone[-1]

    kraft.create_topic(topic, PARTITIONS)
    yield one
    for member in everyone:
        member.close()


def settle(members: Sequence[Member]) -> None:
    """Wait until each has a share, and each partition is one member's."""

    def settled() -> bool:
        shares = [set(member.partitions) for member in members]
        for member in members:
            member.got()  # fails if the member has failed
        return all(shares) and len(set().union(*shares)) == sum(map(len, shares)) == PARTITIONS

    try:
        wait_until(settled, SETTLED, "each partition is one member's")
    except Exception as error:
        error.add_note(f"{[(type(one).__name__, sorted(one.partitions)) for one in members]}")
        raise


def check_deliveries(producer: Producer, everyone: Sequence[Member]) -> None:
    """All that was sent is delivered, and nothing twice."""
    sent = set(producer.stop())
    got = lambda: [found for member in everyone for found in member.got()]  # noqa: E731
    wait_until(lambda: set(got()) >= sent, SETTLED, "everything is delivered")
    twice = len(got()) - len(set(got()))
    assert not twice, f"{twice} of {len(sent)} are delivered twice"


def test_members_of_all_makes_and_both_protocols_share_a_group(
    kraft: LocalCluster, start: Start, topic: str, everyone: list[Member]
) -> None:
    """Six members under load: each partition is one member's. One of each make leaves, and the
    others get its share. Everything is delivered, and nothing twice."""
    with Producer(kraft.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer:
        members = {
            (make, protocol): start(make, protocol)
            for protocol in ("classic", "consumer")
            for make in ("ours", "java", "librdkafka")
        }
        settle(list(members.values()))
        for leaver in (("java", "consumer"), ("ours", "classic"), ("librdkafka", "classic")):
            members.pop(leaver).close()
            settle(list(members.values()))
        check_deliveries(producer, everyone)


def test_a_mixed_group_is_rolled_to_the_protocol_and_back(
    kraft: LocalCluster, start: Start, topic: str, everyone: list[Member]
) -> None:
    """One of each make restarts, one after the other, classic to consumer to classic. Before the
    last member of the new protocol leaves, the classic ones have caught up with the group epoch.
    Everything is delivered, and nothing twice."""
    makes = ("ours", "java", "librdkafka")
    with Producer(kraft.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer:
        members = {make: start(make, "classic") for make in makes}
        settle(list(members.values()))
        for protocol in ("consumer", "classic"):
            for make in makes:
                if (make, protocol) == ("librdkafka", "classic"):
                    ours, java = members["ours"], members["java"]
                    assert isinstance(ours, Ours)
                    assert isinstance(java, Java)
                    wait_until(
                        lambda ours=ours, java=java: ours.generation == java.generation,  # type: ignore[misc]
                        SETTLED,
                        "the classic members have caught up",
                    )
                members[make].close()
                members[make] = start(make, protocol)
                settle(list(members.values()))
        check_deliveries(producer, everyone)
