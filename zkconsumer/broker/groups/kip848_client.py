"""The client of a member in the consumer group protocol (KIP-848).

The requests have the member's epoch, which the coordinator increases with each change of the
assignment, and compares with its own. ``ConsumerGroupClient`` carries out a member's commands, one
request each. It is used by one thread; a second one, for heartbeats, by another. As in
``GroupClient``, its errors are returned, not raised.

Source: ConsumerGroupHeartbeatRequest.json, OffsetCommitRequest.json and OffsetFetchRequest.json of
Kafka 4.0. Topics are named by id in heartbeats, and by name in version 9 of the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from zkconsumer.broker.api_versions import CONSUMER_GROUP_HEARTBEAT, OFFSET_FETCH
from zkconsumer.broker.connection import BrokerConnection, mapped_errors
from zkconsumer.broker.groups.classic_client import GroupClient, OnExchange
from zkconsumer.broker.groups.coordinator_calls import FetchedOffsets, offsets_in
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.messages import OffsetFetchRequest, OffsetFetchResponse
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.broker.schemas import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.commands import LeaveGroup
from zkconsumer.core.groups.events import Event, Left
from zkconsumer.core.groups.formats.consumer_protocol import by_topic
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.zookeeper.ops import Permission
from zkconsumer.errors import UnsupportedBrokerError

LEAVE: Final = -1
"""Epoch of a member that leaves permanently."""
LEAVE_STATIC: Final = -2
"""Epoch of a static member that will return with the same ``group.instance.id``."""

_BY_ID: Final = 12
"""A version of Metadata that finds topics by id."""
WITH_EPOCH: Final = 9
"""The first version of OffsetCommit and OffsetFetch that supports member epochs."""

Partitions = Mapping[str, tuple[int, ...]]
"""Partition numbers by topic id."""

_SUPPORTED: Final = 1
"""Version of ConsumerGroupHeartbeat in Kafka 4.0; 0 was a preview."""


class ConsumerGroupClient(GroupClient):
    """Carries out commands for one member of the consumer group protocol. The arguments are those
    of ``GroupClient``."""

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

    def _subscribed(self, at: BrokerConnection, version: int) -> Mapping[str, Any]:
        """Return the subscription as fields of a heartbeat.

        The coordinator of brokers since 4.0 evaluates the pattern, which has RE2 syntax. Without
        an assignor, it chooses one.
        """
        spec, named = self._spec, self._spec.topics_named
        fields: dict[str, Any] = {
            "rack_id": spec.rack,
            "rebalance_timeout_ms": round(spec.rebalance_timeout * 1000),
            "subscribed_topic_names": None if named is None else list(named),
            "server_assignor": spec.assignor,
        }
        if version >= _SUPPORTED:
            fields["subscribed_topic_regex"] = spec.regex
        elif spec.regex is not None:
            raise UnsupportedBrokerError(
                f"the broker at {at.endpoint.host}:{at.endpoint.port} is older than 4.0 and does "
                "not support topic patterns: name the topics"
            )
        return fields

    def _beat(self, command: commands.MemberHeartbeat) -> events.MemberHeartbeatAnswered:
        """Send one heartbeat.

        ``member_id`` is the member's own choice and stays the same (KIP-1082). ``owned`` None
        means "as in my last heartbeat"; a member that joins sends an empty one. After a lost
        answer ``owned`` must be given, because the coordinator accepts the previous epoch only
        with partitions that the member still owns, and otherwise answers FENCED_MEMBER_EPOCH.
        """
        connection = self._to_coordinator()
        version = connection.version(CONSUMER_GROUP_HEARTBEAT, _SUPPORTED, 0)
        kind = ConsumerGroupHeartbeatRequest.TopicPartitions
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=command.member_id,
            member_epoch=command.epoch,
            instance_id=self._instance_id,
            topic_partitions=None
            if command.owned is None
            else [
                kind(topic_id=uuid.UUID(topic), partitions=list(numbers), version=version)
                for topic, numbers in command.owned.items()
            ],
            **(self._subscribed(connection, version) if command.full else {}),
        )
        answer = self._call(connection, request, ConsumerGroupHeartbeatResponse, version)
        with mapped_errors(connection.endpoint):
            given = answer.assignment
            return events.MemberHeartbeatAnswered(
                command.token,
                answer.error_code,
                answer.error_message or "",
                answer.member_epoch,
                answer.heartbeat_interval_ms / 1000,
                None
                if given is None
                else {
                    str(topic.topic_id): tuple(topic.partitions) for topic in given.topic_partitions
                },
            )

    def _read_names(self, command: commands.ReadTopicNames) -> events.TopicNamesRead:
        """Return names of topics by id, with Metadata 12."""
        connection = self._to_coordinator()
        ids = list(map(uuid.UUID, command.ids))
        answer = ask_metadata(connection, ids, partial(self._call, connection), (_BY_ID,))
        with mapped_errors(connection.endpoint):
            names = {
                str(topic.topic_id): str(topic.name)
                for topic in answer.topics
                if topic.name and topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID
            }
        self._brokers.learn(answer.brokers)
        return events.TopicNamesRead(command.token, names, answer.brokers)

    def _fetch_as_member(self, command: commands.FetchMemberOffsets) -> Event:
        """Read offsets as a member. OffsetFetch 9 fails for a member with an old epoch."""
        connection = self._to_coordinator()
        connection.version(OFFSET_FETCH, WITH_EPOCH)
        left = set(command.partitions)
        if not left:
            return self._fetched(command, FetchedOffsets(0, "", {}))
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        topic = kind.OffsetFetchRequestTopics
        request = OffsetFetchRequest(
            groups=[
                kind(
                    group_id=self._group,
                    member_id=command.member_id,
                    member_epoch=command.epoch,
                    topics=[
                        topic(name=name, partition_indexes=indexes, version=WITH_EPOCH)
                        for name, indexes in by_topic(left).items()
                    ],
                    version=WITH_EPOCH,
                )
            ],
            require_stable=True,
        )
        answer = self._call(connection, request, OffsetFetchResponse, WITH_EPOCH)
        with mapped_errors(connection.endpoint):
            (entry,) = answer.groups
            if entry.error_code:
                left.clear()
            what = f"stored offsets of group {self._group}"
            fetched = offsets_in(entry.topics, left, WITH_EPOCH, entry.error_code, what)
        return self._fetched(command, fetched)

    def _leave_as_member(self, command: LeaveGroup) -> Left:
        epoch = LEAVE if self._instance_id is None else LEAVE_STATIC
        self._beat(
            commands.MemberHeartbeat(
                command.token, command.member_id, epoch, full=False, owned=None
            )
        )
        return Left(command.token)
