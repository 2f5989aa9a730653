"""One group of zkconsumer, librdkafka and Java members, of both protocols, on a broker of Kafka
4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest

from tests.integration.group_members import (
    Java,
    Join,
    Jvm,
    Librdkafka,
    Member,
    Ours,
    group_state,
)
from tests.support.groups import Producer
from zkconsumer.servers import LocalCluster, wait_until

MAKES: Final = ("ours", "java", "librdkafka")
PARTITIONS: Final = 12
SETTLED: Final = 40
"""Seconds within which a group must be stable. It usually takes two or three."""

Start = Callable[[str, str], Member]
Settle = Callable[[Sequence[Member]], None]


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """A JVM with the consumer of Kafka 4."""
    running = Jvm(tmp_path_factory.mktemp("jvm"), "4")
    yield running
    running.close()


@pytest.fixture
def everyone() -> list[Member]:
    """All members of the test, including those that have left."""
    return []


@pytest.fixture
def start(
    kraft: LocalCluster, jvm: Jvm, group: str, topic: str, everyone: list[Member]
) -> Iterator[Start]:
    """Starts a member of a client and a protocol. Members that are still running stop after the
    test."""

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


@pytest.fixture
def settle(kraft: LocalCluster, group: str) -> Settle:
    """Waits until each member has a share, each partition has one owner, and no rebalance is under
    way."""

    def wait(members: Sequence[Member]) -> None:
        def settled() -> bool:
            stable = group_state(kraft, group) == "Stable"
            shares = [set(member.partitions) for member in members]
            for member in members:
                member.got()  # fails if the member has failed
            owned = len(set().union(*shares)) == sum(map(len, shares)) == PARTITIONS
            return stable and owned and all(shares)

        try:
            wait_until(settled, SETTLED, "each partition has one owner")
        except Exception as error:
            error.add_note(f"{[(type(one).__name__, sorted(one.partitions)) for one in members]}")
            raise

    return wait


def check_deliveries(producer: Producer, everyone: Sequence[Member]) -> None:
    """Everything that was sent is delivered once, and ours never lost a partition."""
    sent = set(producer.stop())
    got = lambda: [found for member in everyone for found in member.got()]  # noqa: E731
    wait_until(lambda: set(got()) >= sent, SETTLED, "everything is delivered")
    receivers: dict[tuple[int, int], list[str]] = {}
    for number, member in enumerate(everyone):
        for place in member.got():
            receivers.setdefault(place, []).append(f"{number} {type(member).__name__}")
    twice = {place: names for place, names in sorted(receivers.items()) if len(names) > 1}
    assert not twice, f"{len(twice)} of {len(sent)} are delivered twice: {list(twice.items())[:20]}"
    ours = [member for member in everyone if isinstance(member, Ours)]
    assert not sum(member.connector.metrics().lost_owners for member in ours)


def test_members_of_all_makes_and_both_protocols_share_a_group(
    kraft: LocalCluster, start: Start, settle: Settle, topic: str, everyone: list[Member]
) -> None:
    """Six members run under load, and each partition has one owner. One member of each client
    leaves, and the others get its share. Everything is delivered once.

    The classic members settle first. If the first member of the other protocol joins during a
    rebalance, the coordinator of Kafka 4.4 can give partitions away before their owner has joined
    again. This was seen with members of Java and librdkafka alone, too."""
    with Producer(kraft.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer:
        members: dict[tuple[str, str], Member] = {}
        for protocol in ("classic", "consumer"):
            members |= {(make, protocol): start(make, protocol) for make in MAKES}
            settle(list(members.values()))
        for leaver in (("java", "consumer"), ("ours", "classic"), ("librdkafka", "classic")):
            members.pop(leaver).close()
            settle(list(members.values()))
        check_deliveries(producer, everyone)


def test_a_mixed_group_is_rolled_to_the_protocol_and_back(
    kraft: LocalCluster, start: Start, settle: Settle, topic: str, everyone: list[Member]
) -> None:
    """One member of each client restarts at a time, from classic to consumer and back. Before the
    last member of the new protocol leaves, the classic ones have reached the group epoch.
    Everything is delivered once."""
    with Producer(kraft.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer:
        members = {make: start(make, "classic") for make in MAKES}
        settle(list(members.values()))
        for protocol in ("consumer", "classic"):
            for make in MAKES:
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
