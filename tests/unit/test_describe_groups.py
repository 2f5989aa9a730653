"""The members of a group as its coordinator describes them, in either protocol."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.admin.coordinator_groups import CoordinatorGroups
from zkconsumer.broker.api_versions import CONSUMER_GROUP_DESCRIBE
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.describe_groups import (
    DescribedGroup,
    DescribedMember,
    describe_groups,
    undeletable,
)
from zkconsumer.broker.schemas import ConsumerGroupDescribeResponse
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, UnknownGroupError, UnsupportedBrokerError

HERE = BrokerEndpoint(0, "127.0.0.1", 1)
DEAD = DescribedGroup(HERE, "Dead", "", ())


class Broker:
    """Reports each group as dead if it is asked for a classic group."""

    endpoint = HERE

    def __init__(self, *groups: Any, knows: bool = True) -> None:
        self.knows = knows
        self.asked = 0
        answer = ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=list(groups))
        self.answer = b"\0" + bytes(answer.encode(version=0))

    def version(self, key: int, *wanted: int) -> int:
        if key == CONSUMER_GROUP_DESCRIBE and not self.knows:
            raise UnsupportedBrokerError("as before 4.0")
        return wanted[0]

    decode, send_all = BrokerConnection.decode, BrokerConnection.send_all

    def call(self, request: Any, response: type[Any], version: int) -> Any:
        if response is ConsumerGroupDescribeResponse:
            broker: Any = self
            return BrokerConnection.call(broker, request, response, version)
        fields = {"group_state": "Dead", "protocol_type": "", "protocol_data": "", "members": []}
        return SimpleNamespace(
            groups=[SimpleNamespace(group_id=one, error_code=0, **fields) for one in request.groups]
        )

    def exchange_all(self, _key: int, _version: int, bodies: list[bytes]) -> list[memoryview]:
        self.asked += 1
        return [memoryview(self.answer) for _ in bodies]


def described(name: str, code: int = 0, numbers: tuple[int, ...] = ()) -> Any:
    """A group in the answer, with one member if it has partitions."""
    kind = ConsumerGroupDescribeResponse.DescribedGroup
    given = kind.Member.Assignment.TopicPartitions(
        topic_id=uuid.UUID(int=5), topic_name="t", partitions=list(numbers), version=0
    )
    member = kind.Member(
        member_id="m",
        member_epoch=3,
        client_id="c",
        client_host="/10.0.0.1",
        subscribed_topic_names=["t"],
        assignment=kind.Member.Assignment(topic_partitions=[given], version=0),
        target_assignment=kind.Member.TargetAssignment(topic_partitions=[], version=0),
        version=0,
    )
    return kind(
        error_code=code,
        group_id=name,
        group_state="Stable",
        group_epoch=3,
        assignment_epoch=3,
        assignor_name="uniform",
        members=[member] if numbers else [],
        version=0,
    )


def test_a_group_of_kip_848_is_not_taken_for_dead() -> None:
    """Its members are known with their partitions. A group that does not exist is dead."""
    unknown = described("no", ErrorCode.GROUP_ID_NOT_FOUND)
    broker: Any = Broker(described("g", numbers=(1, 0)), unknown)
    both = (TopicPartition("t", 0), TopicPartition("t", 1))
    members = (DescribedMember("m", "c", "10.0.0.1", both),)
    expected = {"g": DescribedGroup(HERE, "Stable", "uniform", members), "no": DEAD}
    assert describe_groups(["g", "no"], broker) == expected


def test_a_broker_that_does_not_know_the_protocol_is_not_asked() -> None:
    """Brokers before 4.0."""
    broker: Any = Broker(knows=False)
    assert describe_groups(["g"], broker) == {"g": DEAD}
    assert not broker.asked


def test_a_group_that_may_not_be_described_is_not_taken_for_dead() -> None:
    """A tool that does not know a group's members must not act."""
    broker: Any = Broker(described("g", ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        describe_groups(["g"], broker)


def test_a_description_waits_for_no_transaction() -> None:
    """While one commits offsets of the group, the offsets from before it are shown. A stream
    processor nearly always has one."""
    here = TopicPartition("t", 0)

    class Groups:
        def describe(self, _group: str) -> DescribedGroup:
            return DescribedGroup(HERE, "Empty", "", ())

        def fetch(self, _group: str, _owners: object, stable: bool = True) -> Any:
            assert not stable
            return {here: StoredOffset(5)}

    tools = CoordinatorGroups("b:1")
    tools._groups = Groups()  # type: ignore[assignment]
    assert [(*row[:4],) for row in tools.describe(["g"], lag=False)] == [("g", "t", 0, 5)]


class OneGroup:
    """Coordinators whose only group is ``g``. Another one, ``gone``, was listed before."""

    def __init__(self) -> None:
        self.listed = ["g", "gone"]

    def list_groups(self) -> list[str]:
        names, self.listed = self.listed, ["g"]
        return names

    def describe(self, group: str) -> DescribedGroup:
        member = DescribedMember("m", "c", "h", ())
        return DescribedGroup(HERE, "Stable", "", (member,)) if group == "g" else DEAD

    def fetch(self, _group: str, _owners: object, stable: bool = True) -> Any:
        return {}


@pytest.mark.parametrize(
    "rows",
    [
        CoordinatorGroups.states,
        CoordinatorGroups.members,
        partial(CoordinatorGroups.describe, lag=False),
    ],
)
def test_a_group_that_is_not_there_spoils_no_output(rows: Callable[..., Iterator[Any]]) -> None:
    """A group that was named and does not exist is an error before the first row. If all groups are
    described and one is gone, a note names it."""
    tools = CoordinatorGroups("b:1")
    tools._groups = OneGroup()  # type: ignore[assignment]
    listed = tools.group_names()
    with pytest.raises(UnknownGroupError, match="nosuch"):
        next(rows(tools, ["g", "nosuch"]))
    assert not tools.notes
    assert [row.group for row in rows(tools, listed)] == ["g"]
    assert tools.notes == ["group gone is skipped: it is gone"]


class Permissions(Broker):
    """Says what the client may do with each group: operations, ``None``, or an error's code."""

    def __init__(self, **groups: set[int] | int | None) -> None:
        super().__init__()
        self.groups = groups

    def version(self, key: int, *wanted: int) -> int:
        if not self.groups:
            raise UnsupportedBrokerError("as before 2.3")
        return wanted[0]

    def call(self, request: Any, response: Any, version: int) -> Any:
        assert request.include_authorized_operations
        assert request.encode(version=version)
        groups = [
            response.DescribedGroup(
                group_id=name,
                error_code=allowed if isinstance(allowed, int) else 0,
                group_state="Empty",
                protocol_type="",
                protocol_data="",
                members=[],
                authorized_operations=None if isinstance(allowed, int) else allowed,
            )
            for name, allowed in self.groups.items()
        ]
        answer = response(throttle_time_ms=0, groups=groups)
        return response.decode(answer.encode(version=version), version=version)


def test_the_right_to_delete_is_asked_for() -> None:
    """Read, Delete and Describe are 3, 6 and 8. A broker that does not say it, or answers with an
    error, has not refused it."""
    broker: Any = Permissions(all={3, 6, 8}, read={3, 8}, none=set(), silent=None, error=30)
    assert undeletable(list(broker.groups), broker) == {"read", "none"}
    old: Any = Permissions()
    assert undeletable(["g"], old) == frozenset()
