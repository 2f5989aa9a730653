"""ConsumerGroupClient: carries out the commands of a KIP-848 member, one request each.

Used by one thread; a second one, for heartbeats, by another. As ``GroupClient``, no error leaves
this module as an exception.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from zkconsumer.broker.api_versions import CONSUMER_GROUP_HEARTBEAT
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import GroupClient, OnExchange
from zkconsumer.broker.groups.kip848_requests import (
    LEAVE,
    LEAVE_STATIC,
    WITH_EPOCH,
    Subscription,
    fetch_as_member,
    heartbeat,
    topic_names,
)
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.commands import LeaveGroup
from zkconsumer.core.groups.events import Left
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.zookeeper.ops import Permission

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
