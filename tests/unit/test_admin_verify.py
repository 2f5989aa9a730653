"""What ``groups verify`` finds and ``groups describe`` shows, from made-up snapshots."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from zkconsumer.admin.describe import (
    GroupRow,
    group_rows,
    host_of,
    member_rows,
    with_stored_offsets,
)
from zkconsumer.admin.snapshot import GroupSnapshot, interpret
from zkconsumer.admin.topics import (
    PartitionState,
    TopicSnapshot,
    partition_rows,
    topic_row,
)
from zkconsumer.admin.verifier import Finding, Kind, verify
from zkconsumer.core.common.assign import RoundRobinHash
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.core.zookeeper.view import Assignor


def node(data: str | bytes, session: int = 0) -> Node:
    """A znode with this content. With a session it is ephemeral."""
    return Node(data if isinstance(data, bytes) else data.encode(), Stat(1, 1, 0, session))


def registration(topics: str = '{"t":1}', pattern: str = "static", session: int = 1) -> Node:
    """A registration as the JVM writes it."""
    text = f'{{"version":1,"subscription":{topics},"pattern":"{pattern}","timestamp":"1"}}'
    return node(text, session)


def topic(name: str = "t", partitions: int = 2) -> TopicSnapshot:
    """A healthy topic."""
    states = {number: PartitionState(0, 0, (0,)) for number in range(partitions)}
    return TopicSnapshot(name, dict.fromkeys(range(partitions), (0,)), states)


def group(**parts: object) -> GroupSnapshot:
    """Group g with the members g_a (session 1) and g_b (session 2). Each owns one partition."""
    healthy: dict[str, object] = {
        "members": {"g_a": registration(), "g_b": registration(session=2)},
        "owners": {"t": {"0": node("g_a-0", 1), "1": node("g_b-0", 2)}},
        "offsets": {"t": {"0": node("10"), "1": node("20")}},
    }
    return GroupSnapshot("g", **{**healthy, **parts})  # type: ignore[arg-type]


def found(
    snapshot: GroupSnapshot,
    topics: tuple[TopicSnapshot, ...] = (topic(),),
    ends: Mapping[TopicPartition, int] | None = None,
    assignor: Assignor | None = None,
) -> list[Finding]:
    """Verify a snapshot."""
    by_name = {one.topic: one for one in topics}
    return verify(snapshot, interpret(snapshot, list(by_name)), by_name, ends or {}, assignor)


def kinds(findings: list[Finding]) -> list[tuple[Kind, str]]:
    """Return kind and path of each finding."""
    return [(finding.kind, finding.where) for finding in findings]


def test_a_healthy_group_has_no_findings() -> None:
    """Each partition has one owner, a live member with its session, and offsets are within the
    log."""
    ends = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 21}
    assert found(group(), ends=ends, assignor=Assignor("range")) == []


OWNERS = "/consumers/g/owners/t"


def test_an_owner_without_a_stream_is_right_if_it_is_a_member() -> None:
    """kafka-node and Go ports write the consumer id alone. If that is registered with the same
    session and subscribes to the topic, it owns the partition; otherwise not."""
    owners = {"t": {"0": node("g_a", 1), "1": node("g_b", 2)}}
    assert found(group(owners=owners), assignor=Assignor("range")) == []
    swapped = {"t": {"0": node("g_b", 2), "1": node("g_a", 1)}}
    assert [one.kind for one in found(group(owners=swapped), assignor=Assignor("range"))] == [
        Kind.MISASSIGNED,
        Kind.MISASSIGNED,
    ]
    members = {"g_a": registration('{"u":1}'), "g_b": registration(session=2)}
    faults = found(group(members=members, owners=owners), (topic(), topic("u")))
    assert (Kind.UNKNOWN_OWNER, f"{OWNERS}/0") in kinds(faults)
    assert any("does not subscribe to t" in one.what for one in faults)


@pytest.mark.parametrize(
    ("owners", "kind", "where", "says"),
    [
        ({"0": node("g_a-0", 1)}, Kind.UNOWNED, f"{OWNERS}/1", "partition 1"),
        ({"1": node("g_x-0", 2)}, Kind.UNKNOWN_OWNER, f"{OWNERS}/1", "not registered"),
        ({"1": node("g_b-1", 2)}, Kind.UNKNOWN_OWNER, f"{OWNERS}/1", "only 1 streams"),
        ({"1": node("g_b", 7)}, Kind.SESSION, f"{OWNERS}/1", "0x7, but g_b"),
        ({"1": node("g_z", 2)}, Kind.UNKNOWN_OWNER, f"{OWNERS}/1", "not registered"),
        ({"1": node("g_b-0", 7)}, Kind.SESSION, f"{OWNERS}/1", "0x7, but g_b"),
        ({"1": node("g_b-0", -7)}, Kind.SESSION, f"{OWNERS}/1", "0xfffffffffffffff9"),
        ({"1": node("g_b-0")}, Kind.SESSION, f"{OWNERS}/1", "not ephemeral"),
        ({"2": node("g_b-0", 2)}, Kind.UNKNOWN_PARTITION, f"{OWNERS}/2", "no such partition"),
        ({"3-1": node("g_b-0", 2)}, Kind.FOREIGN_LAYOUT, f"{OWNERS}/3-1", "pykafka"),
        ({"01": node("g_b-0", 2)}, Kind.FOREIGN_LAYOUT, f"{OWNERS}/01", "number"),
        ({"x": node("g_b-0", 2)}, Kind.FOREIGN_LAYOUT, f"{OWNERS}/x", "number"),
    ],
)
def test_owners_that_are_wrong(owners: dict[str, Node], kind: Kind, where: str, says: str) -> None:
    """Each fault of an owner znode is found once, at its path, and explained."""
    healthy = {"0": node("g_a-0", 1), "1": node("g_b-0", 2)}
    given = owners if kind is Kind.UNOWNED else {**healthy, **owners}
    (finding,) = found(group(owners={"t": given}))
    assert (finding.kind, finding.where) == (kind, where)
    assert says in finding.what
    assert finding.wrong


def test_owners_of_a_topic_that_nobody_subscribes_to() -> None:
    """Owners of a topic outside all subscriptions are found, whatever member they name."""
    owners = {**group().owners, "u": {"0": node("g_a-0", 1)}}
    (finding,) = found(group(owners=owners), (topic(), topic("u", 1)))
    assert finding.kind is Kind.UNKNOWN_OWNER
    assert "does not subscribe to u" in finding.what


def test_a_group_without_members() -> None:
    """Leftover owners are a fault. A group that only has offsets is healthy."""
    leftover = found(group(members={}))
    assert kinds(leftover) == [
        (Kind.UNKNOWN_OWNER, f"{OWNERS}/0"),
        (Kind.UNKNOWN_OWNER, f"{OWNERS}/1"),
    ]
    assert found(group(members={}, owners={})) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"t", "pykafka"),
        (b"{}", "poseidon"),
        (b"", "not JSON"),
        (b'{"subscription":{"t":1.0},"pattern":"static"}', "not an integer"),
        (b"[" * 5000, "not JSON"),
    ],
)
def test_registrations_that_cannot_be_used(data: bytes, says: str) -> None:
    """A registration that breaks a JVM group is named with the reason and, if known, the writer.
    Healthy members are judged as usual."""
    members = {**group().members, "evil": node(data, 9)}
    (finding,) = found(group(members=members))
    assert (finding.kind, finding.where) == (Kind.QUARANTINED, "/consumers/g/ids/evil")
    assert says in finding.what


def test_registrations_that_are_misread() -> None:
    """kafka-node's filter with several topics, and a registration that never ends, are named."""
    members = {
        "g_a": registration(),
        "g_b": registration('{"t":1,"u":1}', "white_list", session=2),
        "g_c": registration("{}", session=0),
    }
    assert [(f.kind, f.where[-3:]) for f in found(group(members=members))] == [
        (Kind.FOREIGN_LAYOUT, "g_b"),
        (Kind.REGISTRATION, "g_c"),
    ]


def test_offsets_that_cannot_be_right() -> None:
    """Malformed, negative and too large offsets, and names of Kafka 0.7, are found at their
    paths."""
    offsets = {
        "t": {"0": node(" 8"), "1": node("-1"), "2": node("5"), "3": node("6"), "1-3": node("7")},
        "b'orders'": {"0": node("1")},
    }
    ends = {TopicPartition("t", 2): 5, TopicPartition("t", 3): 5}
    root = "/consumers/g/offsets"
    assert kinds(found(group(offsets=offsets), ends=ends)) == [
        (Kind.BAD_OFFSET, f"{root}/t/0"),
        (Kind.BAD_OFFSET, f"{root}/t/1"),
        (Kind.ABOVE_END, f"{root}/t/3"),
        (Kind.FOREIGN_LAYOUT, f"{root}/t/1-3"),
        (Kind.FOREIGN_LAYOUT, f"{root}/b'orders'/0"),
    ]


def test_foreign_trees() -> None:
    """pykafka's bytes names, storm's partitions and 1.1.0's singular ``offset`` are recognised."""
    findings = found(
        group(
            owners={**group().owners, "b'orders'": {"3-0": node("g_a", 1)}},
            misplaced={"t": {"0": node("10"), "1": node("7")}},
            strange=("partition_0", "blobs"),
        )
    )
    assert [(f.kind, f.where) for f in findings] == [
        (Kind.FOREIGN_LAYOUT, "/consumers/g/owners/b'orders'"),
        (Kind.FOREIGN_LAYOUT, "/consumers/g/owners/b'orders'/3-0"),
        (Kind.MISPLACED, "/consumers/g/offset/t"),
        (Kind.FOREIGN_LAYOUT, "/consumers/g/partition_0"),
        (Kind.FOREIGN_LAYOUT, "/consumers/g/blobs"),
    ]
    assert "stored 1 offsets" in findings[2].what
    assert "1: 7 (offsets/: 20)" in findings[2].what
    assert "storm" in findings[3].what
    agreeing = {"t": {"0": node("10"), "1": node("20")}}
    assert found(group(misplaced=agreeing)) == []


def test_a_missing_topic_is_no_error() -> None:
    """A member may subscribe to a topic that does not exist yet, so this is only a warning."""
    members = {**group().members, "g_c": registration('{"later":1}', session=3)}
    (finding,) = found(group(members=members))
    assert finding.kind is Kind.TOPIC_MISSING
    assert not finding.wrong


def test_the_strategy_is_checked_only_when_asked() -> None:
    """Owners that follow another strategy, and members without their share, are found."""
    swapped = {"t": {"0": node("g_b-0", 2), "1": node("g_a-0", 1)}}
    assert found(group(owners=swapped)) == []
    assert kinds(found(group(owners=swapped), assignor=Assignor("range"))) == [
        (Kind.MISASSIGNED, f"{OWNERS}/0"),
        (Kind.MISASSIGNED, f"{OWNERS}/1"),
    ]
    alone = {"t": {"0": node("g_a-0", 1), "1": node("g_a-0", 1)}}
    assert kinds(found(group(owners=alone), assignor=Assignor("range"))) == [
        (Kind.MISASSIGNED, f"{OWNERS}/1"),
        (Kind.IDLE, "/consumers/g/ids/g_b"),
    ]


def test_the_hash_form_matters() -> None:
    """Twelve partitions assigned as in Kafka 1.0 are a fault for the older hash form."""
    order = [10, 11, *range(10)]
    members = {"g_c": registration('{"t12":12}')}
    threads = sorted(f"g_c-{stream}" for stream in range(12))
    dealt = {str(number): node(thread, 1) for number, thread in zip(order, threads, strict=True)}
    snapshot = group(members=members, owners={"t12": dealt}, offsets={})
    topics = (topic("t12", 12),)
    dash = Assignor("roundrobin", RoundRobinHash.DASH)
    brackets = Assignor("roundrobin", RoundRobinHash.BRACKETS)
    assert found(snapshot, topics, assignor=dash) == []
    wrong = found(snapshot, topics, assignor=brackets)
    assert {finding.kind for finding in wrong} == {Kind.MISASSIGNED}


def test_filters_mean_internal_topics_when_they_are_owned() -> None:
    """A group that reads internal topics by filter gets no finding for it. Other groups need not
    read them."""
    members = {"g_a": registration('{".*":1}', "white_list")}
    topics = (topic("t", 1), topic("__consumer_offsets", 1))
    plain = {"t": {"0": node("g_a-0", 1)}}
    both = {**plain, "__consumer_offsets": {"0": node("g_a-0", 1)}}
    assert found(group(members=members, owners=plain, offsets={}), topics) == []
    assert found(group(members=members, owners=both, offsets={}), topics) == []


# -- describe ----------------------------------------------------------------------------------


def test_rows_of_a_group() -> None:
    """First partitions of topics that are owned, have offsets or are subscribed to, then idle
    members."""
    a, b = "g_host.example-1795262003537-5b79a07e", "g_b"
    snapshot = group(
        members={a: registration(), b: registration('{"t":1}', session=2)},
        owners={"t": {"0": node(f"{a}-0", 1)}},
        offsets={"t": {"0": node("10"), "1": node("-1")}, "gone": {"4": node("7 ")}},
    )
    ends = {TopicPartition("t", 0): 15, TopicPartition("t", 1): 3}
    rows, notes = group_rows(snapshot, interpret(snapshot, []), {"t": topic()}, ends)
    assert rows == [
        GroupRow("g", "gone", 4, None, None, None, None, ""),
        GroupRow("g", "t", 0, 10, 15, 5, f"{a}-0", "host.example"),
        GroupRow("g", "t", 1, None, 3, None, None, ""),
        GroupRow("g", None, None, None, None, None, b, ""),
    ]
    assert len(notes) == 1
    assert notes[0].startswith("/consumers/g/offsets/gone/4: ")


def test_members_without_streams_have_their_partitions() -> None:
    """kafka-node and Go ports write the consumer id alone, which may end in a hyphen and digits."""
    member = "g_host.example-1795262003537-5b79a07e"
    snapshot = group(members={member: registration()}, owners={"t": {"1": node(member, 1)}})
    registrations = interpret(snapshot, [])
    (row,) = member_rows(snapshot, registrations)
    assert (row.consumer_id, row.partitions, row.assignment) == (member, 1, "t-1")
    rows, _ = group_rows(snapshot, registrations, {"t": topic()}, {})
    assert [(one.consumer_id, one.host) for one in rows] == [
        (None, ""),
        (member, "host.example"),
    ]


@pytest.mark.parametrize(
    ("consumer", "host"),
    [
        ("g_vm-1795262003537-5b79a07e", "vm"),
        ("g_my-host_1-1795262003537-a", "my-host_1"),
        ("g_c1", ""),
        ("h_vm-1795262003537-5b79a07e", ""),
        ("g_vm-1795262003537-5B79A07E", ""),
    ],
)
def test_host_of_a_consumer_id(consumer: str, host: str) -> None:
    """The host is taken only from ids of the JVM's form."""
    assert host_of("g", consumer) == host


# -- topics ------------------------------------------------------------------------------------


def test_states_of_partitions() -> None:
    """Without a leader, with an unregistered leader or without a state, a partition is leaderless.
    A shrunken ISR is marked."""
    snapshot = TopicSnapshot(
        "t",
        {0: (0, 1), 1: (1, 0), 2: (0, 1), 3: (0, 1), 4: (1,)},
        {
            0: PartitionState(0, 3, (1, 0)),
            1: PartitionState(None, 4, (1,)),
            2: PartitionState(0, 5, (0,)),
            3: PartitionState(9, 5, (0, 1)),
        },
    )
    rows = partition_rows(snapshot, frozenset({0, 1}))
    assert [row.state for row in rows] == [
        "ok",
        "leaderless",
        "under-replicated",
        "leaderless",
        "leaderless",
    ]
    assert rows[2] == ("t", 2, 0, 5, "0", "0,1", "under-replicated")
    assert topic_row(snapshot, frozenset({0, 1})) == ("t", 5, 1, 3, 1)


def test_offsets_that_are_stored_in_kafka_come_first() -> None:
    """The lag is counted from them too."""
    rows = [GroupRow("g", "t", number, 5, 100, 95, None, "") for number in (0, 1)]
    stored = {"g": {TopicPartition("t", 0): 40}}
    assert with_stored_offsets(rows, stored) == [
        rows[0]._replace(current_offset=40, lag=60),
        rows[1],
    ]
