"""Requests of the consumer group protocol (KIP-848), and the client of a member that sends them.

The requests have the member's epoch, which the coordinator raises with each change of the
assignment, and which it compares with its own. ``ConsumerGroupClient`` carries out a member's
commands, one request each. It is used by one thread; a second one, for heartbeats, by another. As
with ``GroupClient``, none of its errors leaves this module as an exception.

Source: ConsumerGroupHeartbeatRequest.json, OffsetCommitRequest.json and OffsetFetchRequest.json of
Kafka 4.0. Topics are named by id in heartbeats, and by name in version 9 of the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from zkconsumer.broker.api_versions import (
    CONSUMER_GROUP_HEARTBEAT,
    OFFSET_FETCH,
)
from zkconsumer.broker.connection import BrokerConnection, mapped_errors
from zkconsumer.broker.groups.classic_client import GroupClient, OnExchange
from zkconsumer.broker.groups.coordinator_calls import Ask, FetchedOffsets, offsets_in
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.messages import OffsetFetchRequest, OffsetFetchResponse
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.broker.schemas import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.commands import LeaveGroup
from zkconsumer.core.groups.events import Left
from zkconsumer.core.groups.formats.consumer_protocol import by_topic
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.zookeeper.ops import Permission
from zkconsumer.errors import UnsupportedBrokerError

JOIN: Final = 0
"""Epoch of a member that joins, or joins again after it was fenced."""
LEAVE: Final = -1
"""Epoch of a member that leaves permanently."""
LEAVE_STATIC: Final = -2
"""Epoch of a static member that will return with the same ``group.instance.id``."""

_BY_ID: Final = 12
"""A version of Metadata that finds topics by id."""
WITH_EPOCH: Final = 9
"""The first version of OffsetCommit and OffsetFetch that knows member epochs."""

Partitions = Mapping[uuid.UUID, tuple[int, ...]]
"""Partition numbers by topic id."""


@dataclass(frozen=True)
class Subscription:
    """A member's subscription, which is sent as a whole when the member joins, and later only if it
    has changed.

    ``regex`` is RE2 syntax, evaluated by the coordinator, of brokers since 4.0. ``assignor`` None
    leaves the choice to the coordinator. ``rebalance_timeout`` in seconds.
    """

    topics: tuple[str, ...] | None
    rebalance_timeout: float
    regex: str | None = None
    assignor: str | None = None
    rack: str | None = None


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The coordinator's answer to a heartbeat.

    ``code`` 0: accepted. ``interval`` in seconds. ``assignment`` None: no change.
    """

    code: int
    detail: str
    member_id: str
    epoch: int
    interval: float
    assignment: Partitions | None


def heartbeat(
    connection: BrokerConnection,
    group: str,
    member_id: str,
    epoch: int,
    *,
    instance_id: str | None = None,
    subscription: Subscription | None = None,
    owned: Partitions | None = None,
    ask: Ask | None = None,
) -> HeartbeatAnswer:
    """Send one heartbeat: join (``JOIN``), acknowledge, stay, or leave (``LEAVE``).

    ``member_id`` is the member's own choice and stays the same (KIP-1082). ``owned`` None means "as
    in my last heartbeat"; a member that joins sends an empty one. After a lost answer ``owned``
    must be given: the coordinator accepts the previous epoch only with partitions that are still
    the member's, and answers FENCED_MEMBER_EPOCH otherwise.

    Raises UnsupportedBrokerError for brokers before 4.0 and for a ``regex`` that they do not
    know, and what ``BrokerConnection.exchange`` raises.
    """
    version = connection.version(CONSUMER_GROUP_HEARTBEAT, 1, 0)
    wanted: dict[str, Any] = {}
    if subscription is not None:
        wanted = {
            "rack_id": subscription.rack,
            "rebalance_timeout_ms": round(subscription.rebalance_timeout * 1000),
            "subscribed_topic_names": (
                None if subscription.topics is None else list(subscription.topics)
            ),
            "server_assignor": subscription.assignor,
        }
        if version >= 1:
            wanted["subscribed_topic_regex"] = subscription.regex
        elif subscription.regex is not None:
            where = f"{connection.endpoint.host}:{connection.endpoint.port}"
            raise UnsupportedBrokerError(
                f"the broker at {where} is older than 4.0 and does not support topic patterns: "
                "name the topics"
            )
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        topic_partitions=None
        if owned is None
        else [
            kind(topic_id=topic, partitions=list(numbers), version=version)
            for topic, numbers in owned.items()
        ],
        **wanted,
    )
    answer = (ask or connection.call)(request, ConsumerGroupHeartbeatResponse, version)
    with mapped_errors(connection.endpoint):
        assigned = answer.assignment
        return HeartbeatAnswer(
            answer.error_code,
            answer.error_message or "",
            answer.member_id or member_id,
            answer.member_epoch,
            answer.heartbeat_interval_ms / 1000,
            None
            if assigned is None
            else {
                uuid.UUID(str(topic.topic_id)): tuple(topic.partitions)
                for topic in assigned.topic_partitions
            },
        )


def topic_names(
    connection: BrokerConnection, ids: Iterable[uuid.UUID], ask: Ask | None = None
) -> tuple[dict[uuid.UUID, str], tuple[BrokerEndpoint, ...]]:
    """Ask for the names of topics; return those that exist, and all brokers.

    Metadata 12 finds topics by id. Raises the errors of ``BrokerConnection.exchange``.
    """
    answer = ask_metadata(connection, list(ids), ask, (_BY_ID,))
    with mapped_errors(connection.endpoint):
        names = {
            uuid.UUID(str(topic.topic_id)): str(topic.name)
            for topic in answer.topics
            if topic.name and topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID
        }
    return names, answer.brokers


def fetch_as_member(
    connection: BrokerConnection,
    group: str,
    member_id: str,
    epoch: int,
    partitions: Iterable[TopicPartition],
    ask: Ask | None = None,
) -> FetchedOffsets:
    """Request stored offsets with OffsetFetch 9, which fails for a member with an old epoch.

    A negative number means that there is no offset. Raises what ``BrokerConnection.exchange``
    raises.
    """
    connection.version(OFFSET_FETCH, WITH_EPOCH)
    left = set(partitions)
    what = f"stored offsets of group {group}"
    if not left:
        return FetchedOffsets(0, "", {})
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = kind.OffsetFetchRequestTopics
    request = OffsetFetchRequest(
        groups=[
            kind(
                group_id=group,
                member_id=member_id,
                member_epoch=epoch,
                topics=[
                    topic(name=name, partition_indexes=indexes, version=WITH_EPOCH)
                    for name, indexes in by_topic(left).items()
                ],
                version=WITH_EPOCH,
            )
        ],
        require_stable=True,
    )
    answer = (ask or connection.call)(request, OffsetFetchResponse, WITH_EPOCH)
    with mapped_errors(connection.endpoint):
        (entry,) = answer.groups
        if entry.error_code:
            left.clear()
        return offsets_in(entry.topics, left, WITH_EPOCH, entry.error_code, what)


_SUPPORTED = 1
"""Version of ConsumerGroupHeartbeat in Kafka 4.0; 0 was a preview."""


class ConsumerGroupClient(GroupClient):
    """Carries out commands for one member. The arguments are those of ``GroupClient``."""

    _commit_versions = (WITH_EPOCH,)

    def __init__(
        self,
        spec: Kip848Spec,
        client_id: str,
        brokers: KnownBrokers,
        *,
        timeout: float,
        on_exchange: OnExchange | None = None,
        security: KafkaSecurity | None = None,
    ) -> None:
        super().__init__(
            spec.group,
            client_id,
            spec.instance_id,
            brokers,
            session_timeout=spec.session_timeout,
            rebalance_timeout=spec.rebalance_timeout,
            timeout=timeout,
            on_exchange=on_exchange,
            security=security,
        )
        self._spec = spec
        self._subscription = Subscription(
            spec.topics_named, spec.rebalance_timeout, spec.regex, spec.assignor, spec.rack
        )

    def _answer(self, command: Any, permission: Permission) -> Any:
        match command:
            case commands.MemberHeartbeat():
                return self._beat(command)
            case commands.ReadTopicNames():
                return self._read_names(command)
            case commands.FetchMemberOffsets():
                return self._fetch_as_member(command)
            case LeaveGroup():
                return self._leave_as_member(command)
            case _:
                return super()._answer(command, permission)

    def _check_protocol(self, connection: BrokerConnection) -> None:
        self._require(
            connection,
            CONSUMER_GROUP_HEARTBEAT,
            _SUPPORTED,
            "is older than 4.0 and does not know group.protocol=consumer: set "
            "group.protocol=classic",
        )

    def _beat(self, command: commands.MemberHeartbeat) -> events.MemberHeartbeatAnswered:
        connection = self._to_coordinator()
        owned = command.owned
        answer = heartbeat(
            connection,
            self._group,
            command.member_id,
            command.epoch,
            instance_id=self._instance_id,
            subscription=self._subscription if command.full else None,
            owned=None
            if owned is None
            else {uuid.UUID(topic_id): n for topic_id, n in owned.items()},
            ask=partial(self._call, connection),
        )
        given = answer.assignment
        return events.MemberHeartbeatAnswered(
            command.token,
            answer.code,
            answer.detail,
            answer.epoch,
            answer.interval,
            None
            if given is None
            else {str(topic_id): numbers for topic_id, numbers in given.items()},
        )

    def _read_names(self, command: commands.ReadTopicNames) -> events.TopicNamesRead:
        connection = self._to_coordinator()
        ids = map(uuid.UUID, command.ids)
        names, brokers = topic_names(connection, ids, partial(self._call, connection))
        self._brokers.learn(brokers)
        by_id = {str(topic_id): name for topic_id, name in names.items()}
        return events.TopicNamesRead(command.token, by_id, brokers)

    def _fetch_as_member(self, command: commands.FetchMemberOffsets) -> Any:
        connection = self._to_coordinator()
        fetched = fetch_as_member(
            connection,
            self._group,
            command.member_id,
            command.epoch,
            command.partitions,
            partial(self._call, connection),
        )
        return self._fetched(command, fetched)

    def _leave_as_member(self, command: LeaveGroup) -> Left:
        connection = self._to_coordinator()
        heartbeat(
            connection,
            self._group,
            command.member_id,
            LEAVE if self._instance_id is None else LEAVE_STATIC,
            instance_id=self._instance_id,
            ask=partial(self._call, connection),
        )
        return Left(command.token)
