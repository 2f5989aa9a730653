"""Requests of the consumer group protocol: their bytes, and incomplete answers."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.specs import kip848_spec
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import (
    StoredOffset,
    commit,
    commit_several,
    fetch_several,
)
from zkconsumer.broker.groups.kip848_client import WITH_EPOCH, ConsumerGroupClient
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.messages import OffsetCommitResponse, OffsetFetchResponse
from zkconsumer.broker.schemas import ConsumerGroupHeartbeatResponse
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.groups.commands import LeaveGroup
from zkconsumer.core.groups.kip848_commands import FetchMemberOffsets, MemberHeartbeat
from zkconsumer.core.groups.kip848_events import MemberHeartbeatAnswered
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.errors import BrokerError

TOPIC = uuid.UUID(int=5)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
JOIN = MemberHeartbeat(0, "m", 0, True, {})
ACCEPTED = b"\0" + bytes(4) + b"\0\0" + b"\0" + b"\x02m" + b"\0\0\0\x03" + b"\0\0\x13\x88"
"""An answer's head and its fields up to the assignment: member ``m``, epoch 3, 5000 ms."""


class Broker:
    """Gives the same bytes as every answer, and keeps the request."""

    endpoint = BrokerEndpoint(0, "127.0.0.1", 1)

    def __init__(self, answer: bytes, highest: int = 9) -> None:
        self.answer, self.highest = answer, highest
        self.sent = b""

    def version(self, _key: int, *wanted: int) -> int:
        return next(one for one in wanted if one <= self.highest)

    decode, call = BrokerConnection.decode, BrokerConnection.call
    send_all = BrokerConnection.send_all

    def ready(self, requests: int) -> None:
        self.ready_for = requests

    def exchange_all(self, _key: int, _version: int, bodies: list[bytes]) -> list[memoryview]:
        self.sent, self.sent_together = bodies[0], bodies
        return [memoryview(self.answer)] * len(bodies)


def asked(broker: Broker, command: Any, **changes: Any) -> Any:
    """Carry out a member's command at ``broker``; return the answer."""
    known = KnownBrokers(lambda: (), lambda _: 0)
    client: Any = ConsumerGroupClient(kip848_spec(**changes), "tests", known, timeout=1.0)
    client.coordinator = broker.endpoint
    client._connection = lambda *_: broker
    return client.execute(command)


def test_a_heartbeat_of_a_member_at_rest_names_only_the_member() -> None:
    """Everything unchanged is null, in Kafka's own layout."""
    broker = Broker(ACCEPTED + b"\xff" + b"\0", highest=0)
    answer = asked(broker, MemberHeartbeat(0, "m", 3, False, None))
    nulls = b"\0" + b"\0" + b"\xff\xff\xff\xff" + b"\0" + b"\0" + b"\0"
    assert broker.sent == b"\0" + b"\x02g" + b"\x02m" + b"\0\0\0\x03" + nulls + b"\0"
    assert answer == MemberHeartbeatAnswered(0, 0, "", 3, 5.0, None)


def test_a_joining_member_owns_nothing_and_says_so() -> None:
    """An empty list is not null. Null would mean "as before"."""
    broker = Broker(ACCEPTED + b"\xff" + b"\0")
    asked(broker, JOIN, instance_id="i", rack="r", assignor="range")
    fields = b"\x02i" + b"\x02r" + b"\0\0\x75\x30" + b"\x02\x02t" + b"\0" + b"\x06range" + b"\x01"
    assert broker.sent == b"\0" + b"\x02g" + b"\x02m" + bytes(4) + fields + b"\0"


def test_an_assignment_is_told_apart_from_none() -> None:
    """Empty: all partitions are taken away. Null: as before."""
    one = b"\x02" + TOPIC.bytes + b"\x03" + b"\0\0\0\0" + b"\0\0\0\x02" + b"\0"
    given = {b"\x01" + one: {str(TOPIC): (0, 2)}, b"\x01" + b"\x01": {}}
    for raw, assignment in given.items():
        assert asked(Broker(ACCEPTED + raw + b"\0" + b"\0"), JOIN).assignment == assignment


def test_a_pattern_needs_a_broker_that_evaluates_it() -> None:
    """Version 0 has no field for it, and without a pattern the member would get no partitions."""
    broker = Broker(ACCEPTED + b"\xff" + b"\0", highest=0)
    refused = asked(broker, JOIN, subscription=Subscription(Pattern.WHITE_LIST, {"a.*": 1}))
    assert refused.code == ErrorCode.UNSUPPORTED_VERSION
    assert "127.0.0.1:1 is older than 4.0" in refused.detail
    assert broker.sent == b""


@pytest.mark.parametrize("cut", [0, 1, 9, 19])
def test_a_damaged_answer_is_an_error_of_the_broker(cut: int) -> None:
    """Whatever part is missing."""
    failed = asked(Broker((ACCEPTED + b"\xff" + b"\0")[:cut]), LeaveGroup(0, "m"))
    assert (failed.code, "broker 0 at 127" in failed.detail) == (UNREACHABLE, True)


def encoded(kind: type[Any], **fields: object) -> bytes:
    """Return an answer in version 9 with an empty head."""
    return b"\0" + bytes(kind(throttle_time_ms=0, **fields).encode(version=9))


def stored(number: int, offset: int, code: int = 0) -> Any:
    """A partition of an answer to OffsetFetch."""
    kind = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
    return kind.OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=offset,
        committed_leader_epoch=4,
        metadata="",
        error_code=code,
        version=9,
    )


def offsets(*parts: SimpleNamespace, code: int = 0) -> Any:
    """A broker that answers OffsetFetch with ``parts`` of the topic ``t``."""
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = kind.OffsetFetchResponseTopics(name="t", partitions=list(parts), version=9)
    group = kind(group_id="g", topics=[topic] if parts else [], error_code=code, version=9)
    return Broker(encoded(OffsetFetchResponse, groups=[group]))


def test_offsets_are_read_with_the_epoch() -> None:
    """A negative offset means none. A partition that is left out has not been read."""

    def fetched(broker: Broker) -> Any:
        return asked(broker, FetchMemberOffsets(0, "m", 3, frozenset({T0, T1})))

    assert fetched(offsets(stored(0, 7), stored(1, -1))).offsets == {T0: 7, T1: None}
    assert fetched(offsets(stored(0, 7))).code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    old = fetched(offsets(code=ErrorCode.STALE_MEMBER_EPOCH))
    assert "stored offsets of group g" in old.detail
    assert old.code == ErrorCode.STALE_MEMBER_EPOCH
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    unstable = fetched(offsets(stored(0, -1, code), stored(1, 7)))
    assert (unstable.code, f"stored offset of {T0}" in unstable.detail) == (code, True)


def test_the_offsets_of_several_groups_are_decoded_if_they_have_changed() -> None:
    """A group with a failure is left out, and one without offsets has none."""
    kind = OffsetFetchResponse.OffsetFetchResponseGroup
    topic = kind.OffsetFetchResponseTopics(name="t", partitions=[stored(0, 7)], version=9)
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    groups = [
        kind(group_id="g", topics=[topic], error_code=0, version=9),
        kind(group_id="h", topics=[], error_code=code, version=9),
        kind(group_id="i", topics=[], error_code=0, version=9),
    ]
    broker: Any = Broker(encoded(OffsetFetchResponse, groups=groups))
    found = fetch_several(broker, "ghi")
    assert found.offsets == {"g": {T0: StoredOffset(7, 4)}, "i": {}}
    assert (
        broker.sent == b"\0" + b"\x04" + b"".join(b"\x02%c\0\0" % name for name in b"ghi") + b"\1\0"
    )
    assert fetch_several(broker, "ghi", found) is found
    fetch_several(broker, "g", only={"g": [T0]})
    assert broker.sent == b"\0" + b"\x02" + b"\x02g" + b"\x02\x02t\x02\0\0\0\0\0\0" + b"\1\0"
    topic.partitions[0].committed_offset = 8
    broker.answer = encoded(OffsetFetchResponse, groups=groups)
    assert fetch_several(broker, "ghi", found).offsets["g"] == {T0: StoredOffset(8, 4)}
    broker.answer = broker.answer[:-9]
    with pytest.raises(BrokerError, match="broker 0 at 127"):
        fetch_several(broker, "ghi", found)


def test_commits_of_several_groups_are_permitted_and_sent_together() -> None:
    """Without permission nothing is sent. What an answer leaves out counts as not stored."""
    kind = OffsetCommitResponse.OffsetCommitResponseTopic
    part = kind.OffsetCommitResponsePartition(partition_index=0, error_code=0, version=6)
    topic = kind(name="t", partitions=[part], version=6)
    answer = OffsetCommitResponse(throttle_time_ms=0, topics=[topic]).encode(version=6)
    broker: Any = Broker(answer)
    offsets = {"g": {T0: StoredOffset(1)}, "h": {T0: StoredOffset(2), T1: StoredOffset(3)}}
    assert commit_several(broker, offsets, 6, permit=lambda: False) == {}
    assert not hasattr(broker, "sent_together")
    assert commit_several(broker, offsets, 6, permit=lambda: broker.ready_for == 2) == {
        "g": {T0: 0},
        "h": {T0: 0, T1: ErrorCode.COORDINATOR_NOT_AVAILABLE},
    }
    assert [body[:3] for body in broker.sent_together] == [b"\0\1g", b"\0\1h"]


def test_a_partition_that_an_answer_leaves_out_is_not_committed() -> None:
    """It is sent again."""
    kind = OffsetCommitResponse.OffsetCommitResponseTopic
    part = kind.OffsetCommitResponsePartition(partition_index=0, error_code=0, version=9)
    topic = kind(name="t", partitions=[part], version=9)
    broker: Any = Broker(encoded(OffsetCommitResponse, topics=[topic]))
    offsets = {T0: StoredOffset(1), T1: StoredOffset(2)}
    codes = commit(broker, "g", offsets, WITH_EPOCH, member_id="m", generation=3)
    assert codes == {T0: 0, T1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert b"\x02g" + b"\0\0\0\x03" + b"\x02m" in broker.sent


def test_the_answer_has_the_key_of_its_request() -> None:
    """kafka-python uses it to find the class of an answer."""
    assert ConsumerGroupHeartbeatResponse.API_KEY == 68
