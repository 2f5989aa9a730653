"""Requests to a group's coordinator that several clients send: find it, read and commit offsets.

When the coordinator moves, loads, is unavailable or gets no answer from its replicas, or when the
connection breaks, the clients search it again until a deadline. Any thread; state belongs to the
callers.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from zkconsumer.broker.api_versions import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.known_brokers import in_time
from zkconsumer.broker.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from zkconsumer.core.common.error_codes import AWAY, ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.consumer_protocol import by_topic
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    CommitFailedError,
    UnsupportedBrokerError,
)

_STABLE: Final = 7
"""The version of OffsetFetch that supports transactions."""
_SEVERAL: Final = 8
"""The version of OffsetFetch that returns the offsets of several groups (KIP-709)."""

T = TypeVar("T")
Ask = Callable[[Any, type[Any], int], Any]
"""Sends a request in a version and returns the answer, as ``BrokerConnection.call`` does."""


class StoredOffset(NamedTuple):
    """A committed offset. ``leader_epoch`` is -1 if it was committed without one."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class FetchedOffsets(NamedTuple):
    """A coordinator's stored offsets. ``code`` is the error code of the first failure, or 0.
    ``what`` names what failed."""

    code: int
    what: str
    offsets: dict[TopicPartition, StoredOffset]


class Answered(NamedTuple):
    """All offsets of several groups, and the answer that contained them."""

    raw: bytes
    offsets: dict[str, dict[TopicPartition, StoredOffset]]


class PendingOffsetsError(BrokerError):
    """A transaction that commits offsets of the group is open, so the offsets are not known yet."""


class TryAgainError(Exception):
    """The coordinator was not available or not ready. The attempt may be repeated."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(str(error))
        self.error = error


def until(
    once: Callable[[], T],
    forget: Callable[[], object],
    timeout: float,
    backoff: float,
    closed: threading.Event,
    what: str,
) -> T:
    """Repeat ``once`` until it succeeds, for at most ``timeout`` seconds. Return its result.

    ``forget`` is called after each failure, then ``backoff`` seconds pass. Raises
    CommitFailedError when the time has passed or ``closed`` is set, and any other error of
    ``once``.
    """
    # DEVIATION-28: the JVM searches and reads indefinitely, and retries only some commits.
    deadline = time.monotonic() + timeout
    while True:
        try:
            return once()
        except TryAgainError as again:
            error = again.error
        except BrokerUnavailableError as unavailable:
            error = unavailable
        forget()
        wait = min(backoff, deadline - time.monotonic())
        if wait <= 0 or closed.wait(wait):
            raise CommitFailedError(
                f"{what} did not answer within {timeout:g} s: {error}"
            ) from error


def check(code: int, what: str) -> None:
    """Raise an error for a code other than 0, or TryAgainError if the request may be repeated."""
    if code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
        raise TryAgainError(PendingOffsetsError(f"{what}: an open transaction is committing it"))
    if code:
        error = error_from_code(code, what)
        raise TryAgainError(error) if code in AWAY else error


class Search(NamedTuple):
    """The coordinator that was found, or why the last broker did not name one.

    ``code`` is 0 if that broker did not answer.
    """

    coordinator: BrokerEndpoint | None
    code: int
    error: BrokerError


def search_coordinator(
    group: str,
    brokers: Iterable[BrokerEndpoint],
    connect: Callable[[BrokerEndpoint], BrokerConnection],
    *,
    ask: Callable[[BrokerConnection], Ask] = lambda connection: connection.call,
    accept: Callable[[BrokerConnection], object] = lambda connection: None,
    failed: Callable[[BrokerEndpoint], object] = lambda broker: None,
) -> Search:
    """Ask one broker after another for a group's coordinator, each for a short time only.

    ``ask`` returns the function that sends a request on a connection. ``accept`` is called with
    the coordinator's connection, and ``failed`` with each broker or coordinator that does not
    answer. Raises UnsupportedBrokerError.
    """
    search = Search(None, 0, BrokerUnavailableError("no broker is known"))
    for broker, seconds in in_time(brokers, math.inf):
        asked = broker
        try:
            connection = connect(broker)
            connection.limit_opening(seconds)
            version = connection.version(FIND_COORDINATOR, 0)
            request = FindCoordinatorRequest(key=group)
            answer = ask(connection)(request, FindCoordinatorResponse, version)
            with mapped_errors(connection.endpoint):
                code = answer.error_code
                asked = BrokerEndpoint(answer.node_id, answer.host, answer.port)
            if code:
                error = error_from_code(code, f"coordinator of group {group}")
                search = Search(None, code, error)
                continue
            connection = connect(asked)
            connection.limit_opening(math.inf)
            accept(connection)
        except UnsupportedBrokerError:
            raise
        except BrokerError as error:
            failed(asked)
            search = Search(None, 0, error)
            continue
        return search._replace(coordinator=asked)
    return search


def fetch_offsets(
    connection: BrokerConnection,
    group: str,
    partitions: Iterable[TopicPartition],
    *,
    all_stored: bool = False,
    stable: bool = False,
    ask: Ask | None = None,
) -> FetchedOffsets:
    """Request the stored offsets of ``partitions``. A negative number means that there is none.

    With ``stable``, brokers since 2.5 answer UNSTABLE_OFFSET_COMMIT while a transaction that
    commits offsets of the group is open (KIP-447); older brokers return the previous offset. With
    ``all_stored``, brokers since 0.10.2 return the offsets of all partitions. ``ask`` sends a
    request, ``connection.call`` by default. Version 0 is not used: it would read ZooKeeper.
    """
    # DEVIATION-29: since version 2 a failure stands once for the whole answer. A broker of 3.9 that
    # is not the coordinator answers version 1 without a failure, and names no partition at all:
    # that is no "nothing stored".
    version = connection.version(OFFSET_FETCH, *((_STABLE,) if stable else ()), 5, 2, 1)
    everything = all_stored and version > 1
    left = set() if everything else set(partitions)
    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [
        topic(name=name, partition_indexes=indexes, version=version)
        for name, indexes in by_topic(left).items()
    ]
    if not topics and not everything:
        return FetchedOffsets(0, "", {})
    request = OffsetFetchRequest(
        group_id=group,
        topics=topics or None,
        **({"require_stable": True} if version == _STABLE else {}),
    )
    answer = (ask or connection.call)(request, OffsetFetchResponse, version)
    code, what = (answer.error_code if version > 1 else 0), f"stored offsets of group {group}"
    with mapped_errors(connection.endpoint):
        return offsets_in(answer.topics, left, version, code, what)


def fetch_several(
    connection: BrokerConnection,
    groups: Iterable[str],
    before: Answered | None = None,
    only: Mapping[str, Iterable[TopicPartition]] | None = None,
) -> Answered:
    """Request stored offsets of groups with the same coordinator, as ``fetch_offsets`` does: all
    offsets, or those of the partitions in ``only``.

    Groups whose offsets are not immediately available are left out, for example if a transaction
    is open. ``before``: an earlier result, which is returned if the answer is the same. Raises
    UnsupportedBrokerError for brokers before 3.0.
    """
    version = connection.version(OFFSET_FETCH, _SEVERAL)
    kind = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = kind.OffsetFetchRequestTopics

    def topics(group: str) -> list[Any] | None:
        if only is None:
            return None
        return [
            topic(name=name, partition_indexes=indexes, version=version)
            for name, indexes in by_topic(only[group]).items()
        ]

    asked = [kind(group_id=name, topics=topics(name), version=version) for name in groups]
    request = OffsetFetchRequest(groups=asked, require_stable=True)
    raw = bytes(connection.send_all([request], version)[0])
    if before is not None and before.raw == raw:
        return before
    answer = connection.decode(OffsetFetchResponse, memoryview(raw), version)
    offsets: dict[str, dict[TopicPartition, StoredOffset]] = {}
    with mapped_errors(connection.endpoint):
        for entry in answer.groups:
            found = offsets_in(entry.topics, set(), version, entry.error_code, entry.group_id)
            if not found.code:
                offsets[entry.group_id] = found.offsets
    return Answered(raw, offsets)


def offsets_in(
    topics: Iterable[Any], left: set[TopicPartition], version: int, code: int, what: str
) -> FetchedOffsets:
    """Return the offsets in a response whose error code is ``code``.

    Removes the response's partitions from ``left``. If some remain, the result's code is
    COORDINATOR_NOT_AVAILABLE.
    """
    offsets: dict[TopicPartition, StoredOffset] = {}
    unknown, has_epochs = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, version >= 5
    for entry in topics:
        for part in entry.partitions:
            tp = TopicPartition(entry.name, part.partition_index)
            left.discard(tp)
            if part.error_code and part.error_code != unknown:
                if not code:
                    code, what = part.error_code, f"stored offset of {tp}"
            elif part.committed_offset >= 0:
                epoch = part.committed_leader_epoch if has_epochs else -1
                offsets[tp] = StoredOffset(part.committed_offset, epoch, part.metadata or "")
    if left and not code:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return FetchedOffsets(code, what, offsets)


def commit(
    connection: BrokerConnection,
    group: str,
    offsets: Mapping[TopicPartition, StoredOffset],
    *versions: int,
    ask: Ask | None = None,
    **member: Any,
) -> dict[TopicPartition, int]:
    """Commit offsets, by default without being a member. Return the code for each partition.

    ``versions``: the request's versions in order of preference, among 1, 2, 6, 7 and 9. Leader
    epochs exist since version 6. ``ask`` sends a request, ``connection.call`` by default.
    ``member``: see ``commit_request``.

    In version 9 ``generation`` is the epoch of a KIP-848 member. A Kafka 4.4 broker accepts the
    current epoch for any partition, even one that the member does not own. It accepts an older
    epoch for partitions that the member has kept since then. If it refuses one partition
    (STALE_MEMBER_EPOCH), it refuses the whole request. Before a member sends the same commit with a
    newer epoch, it must leave out the partitions that it has released.
    """
    version = connection.version(OFFSET_COMMIT, *versions)
    request = commit_request(group, offsets, version, **member)
    answer = (ask or connection.call)(request, OffsetCommitResponse, version)
    return _codes(connection, offsets, answer)


def commit_several(
    connection: BrokerConnection,
    offsets: Mapping[str, Mapping[TopicPartition, StoredOffset]],
    *versions: int,
    permit: Callable[[], bool],
) -> dict[str, dict[TopicPartition, int]]:
    """Commit offsets of groups with the same coordinator, without being a member; return the code
    for each partition, by group.

    All requests, one for each group, are sent together as soon as ``permit`` has returned true. If
    it returns false, nothing is sent and the result is empty. Raises the same errors as ``commit``;
    after an error it is unknown which offsets were stored.
    """
    version = connection.version(OFFSET_COMMIT, *versions)
    requests = [commit_request(group, some, version) for group, some in offsets.items()]
    connection.ready(len(requests))
    if not permit():
        return {}
    answers = connection.send_all(requests, version)
    return {
        group: _codes(connection, some, connection.decode(OffsetCommitResponse, answer, version))
        for (group, some), answer in zip(offsets.items(), answers, strict=True)
    }


def commit_request(
    group: str,
    offsets: Mapping[TopicPartition, StoredOffset],
    version: int,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    """Return an OffsetCommit request, by default from a client that is not a member.
    ``instance_id`` exists since version 7."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition

    def part(tp: TopicPartition) -> Any:
        stored = offsets[tp]
        extra: dict[str, Any] = {"commit_timestamp": -1} if version == 1 else {}
        if version >= 6:
            extra["committed_leader_epoch"] = stored.leader_epoch
        return partition(
            partition_index=tp.partition,
            committed_offset=stored.offset,
            committed_metadata=stored.metadata,
            version=version,
            **extra,
        )

    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            topic(
                name=name,
                partitions=[part(TopicPartition(name, index)) for index in indexes],
                version=version,
            )
            for name, indexes in by_topic(offsets).items()
        ],
        **({"retention_time_ms": -1} if version == 2 else {}),
        **({"group_instance_id": instance_id} if version >= 7 else {}),
    )


def _codes(
    connection: BrokerConnection, offsets: Iterable[TopicPartition], answer: Any
) -> dict[TopicPartition, int]:
    with mapped_errors(connection.endpoint):
        codes = {
            TopicPartition(entry.name, part.partition_index): part.error_code
            for entry in answer.topics
            for part in entry.partitions
        }
    return {tp: codes.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE) for tp in offsets}


def settle(
    codes: Mapping[TopicPartition, int],
    left: dict[TopicPartition, StoredOffset],
    refused: dict[TopicPartition, BrokerError],
) -> None:
    """Remove stored and refused partitions from ``left``, and add the errors of the refused ones to
    ``refused``.

    Raises TryAgainError if the coordinator was not available for the other partitions.
    """
    again: BrokerError | None = None
    for tp, code in codes.items():
        error = error_from_code(code, f"commit of {tp}") if code else None
        if error is not None and code in AWAY:
            again = error
            continue
        del left[tp]
        if error is not None:
            refused[tp] = error
    if again is not None:
        raise TryAgainError(again)
