"""The client of a group's coordinator: carries out a member's commands, one request each.

A ``GroupClient`` is used by one thread; a second one, for heartbeats, by another. ``interrupt``
may be called by any thread. Requests are kafka-python's message objects in versions without tagged
fields. Errors are returned as ``RequestFailed``, never raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.groups.coordinator_calls import (
    FetchedOffsets,
    StoredOffset,
    commit,
    fetch_offsets,
    search_coordinator,
)
from zkconsumer.broker.groups.describe_groups import describe_groups
from zkconsumer.broker.known_brokers import KnownBrokers
from zkconsumer.broker.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MetadataRequest,
    MetadataResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from zkconsumer.broker.metadata import ask_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.core.groups import commands, events
from zkconsumer.core.groups.events import Event, GroupMember
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.core.zookeeper.ops import Permission, Permit, always
from zkconsumer.errors import BrokerError, UnsupportedBrokerError

JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
_GRACE: Final = 10.0
"""Seconds that JoinGroup may take in addition to the rebalance timeout."""

OnExchange = Callable[[BrokerEndpoint, Any, Any], object]
"""Called on the client's thread with each request and its answer, as kafka-python's objects."""


class GroupClient:
    """Carries out commands for one member.

    Args:
        group: ``group.id``.
        client_id: ``client.id``.
        instance_id: ``group.instance.id``, which brokers before 2.3 do not support.
        brokers: the brokers to ask for the coordinator. session_timeout, rebalance_timeout:
            seconds, sent to the coordinator. 0: this client reads and commits offsets without
            being a member; brokers since 0.8.2 can do that. A member does not read offsets while
            an open transaction commits them, as in Java (KIP-447).
        timeout: seconds for connecting and for each answer except those that wait for other
            members.
        on_exchange: see ``OnExchange``.
    """

    _commit_versions: ClassVar[Sequence[int]] = (7, 2, 1)

    def __init__(
        self,
        group: str,
        client_id: str,
        instance_id: str | None,
        brokers: KnownBrokers,
        *,
        timeout: float,
        session_timeout: float = 0.0,
        rebalance_timeout: float = 0.0,
        on_exchange: OnExchange | None = None,
        security: KafkaSecurity | None = None,
    ) -> None:
        self._group = group
        self._client_id = client_id
        self._instance_id = instance_id
        self._brokers = brokers
        self._session_timeout = session_timeout
        self._rebalance_timeout = rebalance_timeout
        self._timeout = timeout
        self._on_exchange = on_exchange
        self._security = security
        self._lock = threading.Lock()
        self._closed = False
        self._connections: dict[tuple[BrokerEndpoint, float], BrokerConnection] = {}
        self.coordinator: BrokerEndpoint | None = None
        """Address of the coordinator. Written by ``find`` or, for heartbeats, by the owner."""

    def interrupt(self) -> None:
        """Wake the thread that waits for an answer. It gets no answer, and requests that were
        not sent yet are never sent. Any thread."""
        self._abort(discard=True)

    def close(self) -> None:
        """Close all connections permanently. The system may still send data that is already in a
        socket's buffer, such as a LeaveGroup request. Any thread."""
        self._closed = True
        self._abort(discard=False)

    def _abort(self, *, discard: bool) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.abort(discard=discard)
            self._connections.clear()

    def execute(self, command: Any, permission: Permission = always) -> Any:
        """Carry out ``command``. Return the answer, or ``RequestFailed``. Raises nothing.

        ``permission`` is checked right before a commit is sent.
        """
        try:
            return self._answer(command, permission)
        except UnsupportedBrokerError as error:
            return events.RequestFailed(command.token, ErrorCode.UNSUPPORTED_VERSION, str(error))
        except BrokerError as error:
            return events.RequestFailed(command.token, UNREACHABLE, str(error))

    def _answer(self, command: Any, permission: Permission) -> Any:
        match command:
            case commands.FindCoordinator():
                return self._find(command)
            case commands.LoadTopics():
                return self._load_topics(command)
            case commands.JoinGroup():
                return self._join(command)
            case commands.SyncGroup():
                return self._sync(command)
            case commands.Heartbeat():
                return self._heartbeat(command)
            case commands.LeaveGroup():
                return self._leave(command)
            case commands.FetchOffsets():
                return self._fetch(command)
            case commands.CommitOffsets():
                return self._commit(command, permission)

    # -- any broker ------------------------------------------------------------------------------

    def _find(self, command: commands.FindCoordinator) -> Event:
        if self.coordinator is not None:  # it has failed, or is the coordinator no more
            self._brokers.failed(self.coordinator)
            self.coordinator = None
        search = search_coordinator(
            self._group,
            self._brokers.least_loaded(),
            self._connection,
            ask=lambda connection: partial(self._call, connection),
            accept=self._check_protocol,
            failed=self._brokers.failed,
        )
        self.coordinator = search.coordinator
        if search.coordinator is None:
            code = search.code or UNREACHABLE
            return events.RequestFailed(command.token, code, str(search.error))
        return events.CoordinatorFound(command.token)

    def _check_protocol(self, connection: BrokerConnection) -> None:
        if not self._session_timeout:
            return
        self._require(
            connection,
            JOIN_GROUP,
            1,
            "is older than 0.10.1 and cannot coordinate this group: use ZookeeperConsumerConnector",
        )
        if self._instance_id is not None:
            self._require(
                connection,
                JOIN_GROUP,
                5,
                "is older than 2.3 and does not support static members: leave group.instance.id "
                "out",
            )

    def _require(self, connection: BrokerConnection, key: int, version: int, lack: str) -> None:
        """Raise UnsupportedBrokerError if the broker does not support a version of a request.

        A broker that is starting or stopping, or a proxy, may have closed the connection as an
        old broker does. A Metadata request distinguishes them, because an old broker answers it.
        """
        try:
            connection.version(key, version)
            return
        except UnsupportedBrokerError:
            connection.close()
        self._call(connection, MetadataRequest(topics=[]), MetadataResponse, 0)
        try:
            connection.version(key, version)
        except UnsupportedBrokerError:
            at = connection.endpoint
            raise UnsupportedBrokerError(f"the broker at {at.host}:{at.port} {lack}") from None

    def _load_topics(self, command: commands.LoadTopics) -> Event:
        connection = self._to_coordinator()
        answer = ask_metadata(connection, command.topics, partial(self._call, connection))
        with mapped_errors(connection.endpoint):
            partitions = {
                topic.name: len(topic.partitions)
                for topic in answer.topics
                if topic.partitions and (command.topics is None or topic.name in command.topics)
            }
            wanted = command.topics or ()
            errors = {
                topic.name: topic.error_code for topic in answer.topics if topic.name in wanted
            }
        self._brokers.learn(answer.brokers)
        refused = {topic: code for topic, code in errors.items() if code}
        return events.TopicsLoaded(command.token, partitions, answer.brokers, refused)

    # -- the coordinator -------------------------------------------------------------------------

    def _join(self, command: commands.JoinGroup) -> Event:
        connection = self._to_coordinator(self._rebalance_timeout + _GRACE)
        version = connection.version(JOIN_GROUP, 5, 1)
        kind = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=round(self._session_timeout * 1000),
            rebalance_timeout_ms=round(self._rebalance_timeout * 1000),
            member_id=command.member_id,
            protocol_type="consumer",
            protocols=[
                kind(name=name, metadata=metadata, version=version)
                for name, metadata in command.protocols
            ],
            **self._instance(version == 5),
        )
        answer = self._call(connection, request, JoinGroupResponse, version)
        if answer.error_code:
            failed = self._failed(command.token, answer.error_code, "JoinGroup")
            detail = failed.detail
            if answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                detail += self._strategies(connection, [name for name, _ in command.protocols])
            return events.RequestFailed(failed.token, failed.code, detail, answer.member_id)
        with mapped_errors(connection.endpoint):
            members = tuple(
                GroupMember(
                    member.member_id,
                    member.group_instance_id if version == 5 else None,
                    _raw(member.metadata),
                )
                for member in answer.members
            )
        return events.Joined(
            command.token,
            answer.member_id,
            answer.generation_id,
            answer.leader,
            answer.protocol_name,
            members,
        )

    def _strategies(self, connection: BrokerConnection, offered: Sequence[str]) -> str:
        """Return the group's strategies and those that this member offers, for an error."""
        try:
            described = describe_groups([self._group], connection, partitions=False)[self._group]
        except BrokerError:
            used = "another strategy"
        else:
            used = repr(described.strategy) if described.strategy else "another strategy"
        return (
            f": the group's members use {used}, and this member offers {', '.join(offered)}: set "
            "partition.assignment.strategy to one that all members have"
        )

    def _sync(self, command: commands.SyncGroup) -> Event:
        connection = self._to_coordinator(self._rebalance_timeout + _GRACE)
        version = connection.version(SYNC_GROUP, 3, 0)
        kind = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=command.generation,
            member_id=command.member_id,
            assignments=[
                kind(member_id=member, assignment=assignment, version=version)
                for member, assignment in command.assignments.items()
            ],
            **self._instance(version == 3),
        )
        answer = self._call(connection, request, SyncGroupResponse, version)
        if answer.error_code:
            return self._failed(command.token, answer.error_code, "SyncGroup")
        with mapped_errors(connection.endpoint):
            return events.Synced(command.token, _raw(answer.assignment))

    def _heartbeat(self, command: commands.Heartbeat) -> Event:
        connection = self._to_coordinator()
        version = connection.version(HEARTBEAT, 3, 0)
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=command.generation,
            member_id=command.member_id,
            **self._instance(version == 3),
        )
        answer = self._call(connection, request, HeartbeatResponse, version)
        return events.HeartbeatAnswered(command.token, answer.error_code)

    def _leave(self, command: commands.LeaveGroup) -> Event:
        connection = self._to_coordinator()
        version = connection.version(LEAVE_GROUP, 1, 0)
        request = LeaveGroupRequest(group_id=self._group, member_id=command.member_id)
        self._call(connection, request, LeaveGroupResponse, version)
        return events.Left(command.token)

    def _fetch(self, command: commands.FetchOffsets) -> Event:
        connection = self._to_coordinator()
        fetched = fetch_offsets(
            connection,
            self._group,
            command.partitions,
            stable=self._session_timeout > 0,
            ask=partial(self._call, connection),
        )
        return self._fetched(command, fetched)

    def _fetched(self, command: Any, fetched: FetchedOffsets) -> Event:
        code, what, stored = fetched
        if code:
            return events.RequestFailed(command.token, code, str(error_from_code(code, what)))
        offsets = {tp: stored[tp].offset if tp in stored else None for tp in command.partitions}
        return events.OffsetsFetched(command.token, offsets)

    def _commit(self, command: commands.CommitOffsets, permission: Permission) -> Event:
        connection = self._to_coordinator()

        def ask(request: Any, response: type[Any], version: int) -> Any:
            connection.ready()
            permit = permission()  # nothing delays the request after it
            if permit is not Permit.GRANTED:
                raise BrokerError(permit.value)
            return self._call(connection, request, response, version)

        codes = commit(
            connection,
            self._group,
            {tp: StoredOffset(offset) for tp, offset in command.positions.items()},
            *self._commit_versions,
            member_id=command.member_id,
            generation=command.generation,
            instance_id=self._instance_id,
            ask=ask,
        )
        return events.OffsetsCommitted(command.token, codes)

    # -- connections -----------------------------------------------------------------------------

    def _instance(self, known: bool) -> Mapping[str, Any]:
        return {"group_instance_id": self._instance_id} if known else {}

    def _failed(self, token: int, code: int, what: str) -> events.RequestFailed:
        text = str(error_from_code(code, f"{what} of group {self._group}"))
        return events.RequestFailed(token, code, text)

    def _to_coordinator(self, timeout: float | None = None) -> BrokerConnection:
        coordinator = self.coordinator
        if coordinator is None:
            raise BrokerError("the coordinator is unknown")
        return self._connection(coordinator, timeout)

    def _connection(
        self, endpoint: BrokerEndpoint, timeout: float | None = None
    ) -> BrokerConnection:
        key = (endpoint, timeout or self._timeout)
        with self._lock:
            if self._closed:
                raise BrokerError("this member has closed its connections")
            if key not in self._connections:
                self._connections[key] = BrokerConnection(
                    endpoint, self._client_id, key[1], 0, self._security
                )
            return self._connections[key]

    def _call(
        self, connection: BrokerConnection, request: Any, response: type[Any], version: int
    ) -> Any:
        answer = connection.call(request, response, version)
        self._brokers.answered(connection.endpoint)
        if self._on_exchange is not None:
            self._on_exchange(connection.endpoint, request, answer)
        return answer


def _raw(data: Any) -> bytes:
    """Return embedded data as bytes, from any form in which kafka-python returns it."""
    if data is None:
        return b""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    return bytes(data.encode())
