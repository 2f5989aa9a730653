"""Reads the members of groups of both protocols from their coordinator. Stateless.

DescribeGroups supports only the classic protocol. For a KIP-848 group, a broker answers that it is
``Dead`` and has no members. So each dead group is also requested with ConsumerGroupDescribe, if the
broker supports that (since 4.0). Runs on the thread that owns the connection. Source:
DescribeGroupsResponse.json and ConsumerGroupDescribeResponse.json of Kafka 4.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from zkconsumer.broker.api_versions import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS
from zkconsumer.broker.connection import BrokerConnection, mapped_errors
from zkconsumer.broker.groups.coordinator_calls import check
from zkconsumer.broker.messages import DescribeGroupsRequest, DescribeGroupsResponse
from zkconsumer.broker.schemas import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.errors import UnsupportedBrokerError

DEAD: Final = "Dead"
_DELETE: Final = 6
"""AclOperation.DELETE, one of the operations that a client may be allowed (KIP-430)."""


class DescribedMember(NamedTuple):
    """One member, as described by its coordinator. ``partitions`` is its current assignment."""

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class DescribedGroup(NamedTuple):
    """One group, as described by its coordinator.

    ``state`` is Kafka's name for it: ``Stable``, ``Empty``, ``PreparingRebalance``,
    ``Reconciling``, ``Dead``, ...; ``strategy`` is the assignment strategy on which the members
    agreed (empty without members), or the coordinator's assignor.
    """

    coordinator: BrokerEndpoint
    state: str
    strategy: str
    members: tuple[DescribedMember, ...]


def describe_groups(
    groups: Sequence[str], connection: BrokerConnection, partitions: bool = True
) -> dict[str, DescribedGroup]:
    """Describe groups that have the same coordinator. A group that does not exist is ``Dead``.

    Without ``partitions``, assignments are not read, because other clients may use another format
    for them.

    Raises UnsupportedBrokerError for 0.8.2 brokers, whose coordinators have no members, and the
    errors of ``BrokerConnection.call``.
    """
    version = connection.version(DESCRIBE_GROUPS, 0)
    request = DescribeGroupsRequest(groups=list(groups))
    answer = connection.call(request, DescribeGroupsResponse, version)
    with mapped_errors(connection.endpoint):
        descriptions: dict[str, DescribedGroup] = {}
        for group in answer.groups:
            check(group.error_code, f"members of group {group.group_id}")
            readable = partitions and group.protocol_type in ("consumer", "")
            members = tuple(
                _member(member, _given(member.member_assignment) if readable else ())
                for member in group.members
            )
            descriptions[group.group_id] = DescribedGroup(
                connection.endpoint, group.group_state, group.protocol_data, members
            )
        if descriptions.keys() != set(groups):
            raise ValueError("the response describes different groups than requested")
    dead = [
        name for name, group in descriptions.items() if group.state == DEAD and not group.members
    ]
    return descriptions | _by_kip_848(dead, connection)


def undeletable(groups: Sequence[str], connection: BrokerConnection) -> frozenset[str]:
    """Return the coordinator's groups whose offsets this client may not delete; none if the broker
    does not report this (before 2.3). Changes nothing."""
    try:
        version = connection.version(DESCRIBE_GROUPS, 3)
    except UnsupportedBrokerError:
        return frozenset()
    request = DescribeGroupsRequest(groups=list(groups), include_authorized_operations=True)
    answer = connection.call(request, DescribeGroupsResponse, version)
    with mapped_errors(connection.endpoint):
        return frozenset(
            group.group_id
            for group in answer.groups
            if not group.error_code
            and group.authorized_operations is not None
            and _DELETE not in group.authorized_operations
        )


def _by_kip_848(groups: Sequence[str], connection: BrokerConnection) -> dict[str, DescribedGroup]:
    """Return the KIP-848 groups among these groups."""
    if not groups:
        return {}
    try:
        version = connection.version(CONSUMER_GROUP_DESCRIBE, 0)
    except UnsupportedBrokerError:
        return {}
    request = ConsumerGroupDescribeRequest(
        group_ids=list(groups), include_authorized_operations=False
    )
    answer = connection.call(request, ConsumerGroupDescribeResponse, version)
    unknown = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
    with mapped_errors(connection.endpoint):
        descriptions: dict[str, DescribedGroup] = {}
        for group in answer.groups:
            if group.error_code in unknown:  # or the protocol is disabled
                continue
            check(group.error_code, f"members of group {group.group_id}")
            members = tuple(
                _member(
                    member,
                    (
                        TopicPartition(topic.topic_name, number)
                        for topic in member.assignment.topic_partitions
                        for number in topic.partitions
                    ),
                )
                for member in group.members
            )
            descriptions[group.group_id] = DescribedGroup(
                connection.endpoint, group.group_state, group.assignor_name, members
            )
        return descriptions


def _given(assignment: Any) -> Iterable[TopicPartition]:
    return decode_assignment(assignment).partitions


def _member(member: Any, partitions: Iterable[TopicPartition]) -> DescribedMember:
    host = member.client_host.lstrip("/")
    return DescribedMember(member.member_id, member.client_id, host, tuple(sorted(partitions)))
