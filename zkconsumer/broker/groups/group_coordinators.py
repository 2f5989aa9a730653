"""Offsets and members of many groups at their coordinators, for tools that are not members.

One thread uses a ``GroupCoordinators``; ``another`` returns one for a further thread. It keeps one
connection to each broker, looks up each group's coordinator when it needs it, and retries until a
deadline.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar

from zkconsumer.broker.api_versions import OFFSET_COMMIT, OFFSET_FETCH
from zkconsumer.broker.connection import BrokerConnection, error_from_code, mapped_errors
from zkconsumer.broker.groups import offset_times
from zkconsumer.broker.groups.coordinator_calls import (
    Answered,
    PendingOffsetsError,
    StoredOffset,
    TryAgainError,
    check,
    commit,
    commit_several,
    fetch_offsets,
    fetch_several,
    search_coordinator,
    settle,
    until,
)
from zkconsumer.broker.groups.describe_groups import DescribedGroup, describe_groups, undeletable
from zkconsumer.broker.known_brokers import in_time
from zkconsumer.broker.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from zkconsumer.broker.metadata import fetch_metadata
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.broker.types import ClusterMetadata
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.groups.formats.consumer_protocol import by_topic
from zkconsumer.errors import (
    BrokerError,
    BrokerUnavailableError,
    CommitFailedError,
    GroupActiveError,
    UnsupportedBrokerError,
)

BATCH: Final = 2000
"""Number of partitions or topics in one request."""
LIST_GROUPS: Final = 16
DESCRIBE_CONFIGS: Final = 32
OFFSET_DELETE: Final = 47
_BROKER_RESOURCE: Final = 4
_RETENTION: Final = "offsets.retention.minutes"
_DAY_MINUTES: Final = 1440
_COMMIT_VERSIONS: Final = (6, 2, 1)
_NONE: Final = -1
_NO_BROKER: Final = "no broker is registered in ZooKeeper"

_EMPTY: Final[Mapping[Any, Any]] = MappingProxyType({})

T = TypeVar("T")


class GroupCoordinators:
    """Sends requests to the coordinators of any groups. Use it as a context manager.

    Args:
        client_id: sent with every request.
        brokers: returns the registered brokers.
        timeout: seconds for connecting and for each answer.
        patience: seconds to wait for a coordinator that moves, loads or does not answer.
        backoff: seconds between attempts.
        place: returns a key that all groups of the same coordinator share.
        on_wait: called once with the reason for each wait.

    A coordinator that did not answer is not asked again for ``patience`` seconds: operations on its
    other groups fail at once. Meanwhile, operations on groups of other coordinators wait only a
    tenth of ``patience``, because coordinators usually fail together. Every method raises
    BrokerError if no coordinator answers in time, or if it refuses.
    """

    def __init__(
        self,
        client_id: str,
        brokers: Callable[[], Sequence[BrokerEndpoint]],
        timeout: float = 10.0,
        patience: float = 60.0,
        backoff: float = 0.2,
        place: Callable[[str], Hashable] = str,
        on_wait: Callable[[str], object] = lambda _what: None,
        security: KafkaSecurity | None = None,
        before_request: Callable[[], object] | None = None,
    ) -> None:
        self._before_request = before_request
        self._client_id = client_id
        self._brokers = brokers
        self._timeout = timeout
        self._patience = patience
        self._backoff = backoff
        self._security = security
        self._place = place
        self._on_wait = on_wait
        self._connections: dict[BrokerEndpoint, BrokerConnection] = {}
        self._coordinators: dict[Hashable, BrokerEndpoint] = {}
        """Coordinators by place."""
        self._given_up: dict[Hashable, tuple[float, str]] = {}
        """Places and brokers that did not answer, until when they are skipped, and why."""
        self._closed = threading.Event()
        self._is_another = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def another(self) -> Self:
        """Return an equal object for another thread, with its own connections.

        Both share the lists of known coordinators and of those that did not answer, and the effect
        of ``stop_waiting``. Closing the new one has no effect on this one.
        """
        other = copy(self)
        other._connections = {}
        other._is_another = True
        return other

    def close(self) -> None:
        """Close this object's connections. Closing the first object also makes all waits fail,
        including those of objects from ``another``."""
        if not self._is_another:
            self._closed.set()
        self._disconnect()

    def stop_waiting(self) -> None:
        """Make waits fail immediately from now on. Any thread."""
        self._closed.set()

    # -- groups --------------------------------------------------------------------------------

    def list_groups(self) -> list[str]:
        """Return the sorted names of all groups that coordinators know. 0.8.2 brokers cannot list
        them."""

        def ask(endpoint: BrokerEndpoint) -> list[str]:
            connection = self._connection(endpoint)
            version = connection.version(LIST_GROUPS, 0)
            answer = connection.call(ListGroupsRequest(), ListGroupsResponse, version)
            with mapped_errors(endpoint):
                check(answer.error_code, f"groups of broker {endpoint.broker_id}")
                return [group.group_id for group in answer.groups]

        names: set[str] = set()
        for broker in self._brokers():
            names.update(self._until(partial(ask, broker), f"broker {broker.broker_id}"))
        return sorted(names)

    def members(self, group: str) -> tuple[str, ...]:
        """Return the group's members, as ``<client id> at <host> (<member id>)``.

        Empty with 0.8.2 brokers, whose coordinators have no members.
        """
        return self._at_coordinator(group, partial(_members, [group]))[group]

    def describe(self, group: str) -> DescribedGroup:
        """Return the group's state and members as its coordinator describes them.

        A group that does not exist has the state ``Dead``. Raises UnsupportedBrokerError for 0.8.2
        brokers.
        """
        return self._at_coordinator(group, partial(describe_groups, [group]))[group]

    def members_of(self, groups: Iterable[str]) -> dict[str, tuple[str, ...] | BrokerError]:
        """Return the result of ``members`` for many groups, or why it is unknown."""
        members: dict[str, tuple[str, ...] | BrokerError] = {}
        together: defaultdict[Hashable, list[str]] = defaultdict(list)
        for group in groups:
            together[self._place(group)].append(group)
        for some in together.values():
            try:
                members.update(self._at_coordinator(some[0], partial(_members, some)))
            except BrokerError:  # whose groups, the next attempt says of each
                for group in some:
                    try:
                        members[group] = self.members(group)
                    except BrokerError as error:
                        members[group] = error
        return members

    def undeletable(self, groups: Iterable[str]) -> frozenset[str]:
        """Return the groups whose offsets may not be deleted, as far as coordinators report it.

        Each coordinator is asked once, without waiting for one that does not answer.
        """
        together: defaultdict[Hashable, list[str]] = defaultdict(list)
        for group in groups:
            together[self._place(group)].append(group)
        groups_kept: set[str] = set()
        for some in together.values():
            with suppress(BrokerError, TryAgainError):
                groups_kept |= undeletable(some, self._connection(self._find(some[0])))
        return frozenset(groups_kept)

    # -- offsets -------------------------------------------------------------------------------

    def coordinator(self, group: str) -> BrokerEndpoint:
        """Find the group's coordinator, and return its address."""
        return self._until(lambda: self._find(group), _name_of(group))

    def stored(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return the stored offsets of these partitions. Negative ones are left out."""
        wanted = list(partitions)
        if not wanted:
            return {}
        return self._at_coordinator(group, partial(_fetch_stored, group, wanted, False, False))

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, BrokerError]:
        """Store offsets. Return the error of each refused partition.

        ``permit`` is called right before each request; its errors end the operation. ``permit``
        must not use this object, whose connection is prepared for the request. The leader epoch is
        stored by brokers since 2.1. Raises GroupActiveError when the coordinator refuses because
        the group has members.
        """
        left, refused = dict(offsets), dict[TopicPartition, BrokerError]()

        def tell(connection: BrokerConnection) -> None:
            def ask(request: Any, response: type[Any], version: int) -> Any:
                connection.ready()  # nothing delays the request after the question
                permit()
                return connection.call(request, response, version)

            for batch in _batches(left):
                some = {tp: left[tp] for tp in batch}
                codes = commit(connection, group, some, *_COMMIT_VERSIONS, ask=ask)
                if ErrorCode.UNKNOWN_MEMBER_ID in codes.values():
                    raise GroupActiveError(
                        f"the coordinator refuses commits to group {group} because consumers "
                        "have joined it: stop them first"
                    )
                settle(codes, left, refused)

        if left:
            self._at_coordinator(group, tell)
        return refused

    def commit_several(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, StoredOffset]],
        permit: Callable[[], bool],
    ) -> set[str]:
        """Store offsets of many groups at the same time; return the groups whose offsets are all
        known to be stored.

        Nothing is tried twice and no coordinator is looked up: for the other groups, ``commit``
        tries again, or shows why. ``permit`` is called right before the requests to each
        coordinator, which are not sent if it returns false.
        """
        together: defaultdict[BrokerEndpoint, dict[str, Mapping[TopicPartition, StoredOffset]]]
        together = defaultdict(dict)
        for group, some in offsets.items():
            endpoint = self._coordinators.get(self._place(group))
            if endpoint is not None and not self._why_given_up(endpoint) and len(some) <= BATCH:
                together[endpoint][group] = some
        stored: set[str] = set()
        for endpoint, commits in together.items():
            with suppress(BrokerError):
                codes = commit_several(
                    self._connection(endpoint), commits, *_COMMIT_VERSIONS, permit=permit
                )
                stored |= {group for group, some in codes.items() if not any(some.values())}
        return stored

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition], stable: bool = True
    ) -> dict[TopicPartition, StoredOffset]:
        """Return all stored offsets of a group. Negative ones, such as the -1 that stands for no
        offset, are left out.

        With ``stable``, waits for open transactions that commit offsets of the group, with brokers
        since 2.5. Topics that may not be described are left out without an error; see ``hidden``.
        Brokers before 0.10.2 cannot return all offsets, so ``partitions`` are requested from them.
        """
        return self._at_coordinator(
            group, partial(_fetch_stored, group, list(partitions), True, stable)
        )

    def fetch_several(
        self,
        groups: Iterable[str],
        before: Mapping[tuple[str, ...], Answered] = _EMPTY,
        only: Mapping[str, Iterable[TopicPartition]] | None = None,
    ) -> dict[tuple[str, ...], Answered]:
        """Return all stored offsets of many groups, as ``fetch`` does. Each key of the result is a
        tuple of groups that were requested together. ``only``: the partitions of each group to ask
        for, instead of all.

        Groups whose offsets are not immediately available are left out: ``fetch`` waits for them,
        or reports why. All groups of brokers before 3.0 are left out, too. ``before``: an earlier
        result. Equal answers are not decoded, and the same object is returned.
        """
        together: defaultdict[Hashable, list[str]] = defaultdict(list)
        for group in groups:
            place = self._place(group)
            together[self._coordinators.get(place, place)].append(group)
        found: dict[tuple[str, ...], Answered] = {}
        for some in map(tuple, together.values()):
            ask = partial(fetch_several, groups=some, before=before.get(some), only=only)
            with suppress(BrokerError):
                found[some] = self._at_coordinator(some[0], ask)
        return found

    def hidden(self, topics: Iterable[str]) -> frozenset[str]:
        """Return which of the topics may not be described, so that their offsets are not visible.

        Brokers before 1.0 do not report them.
        """
        return frozenset().union(*(metadata.hidden for metadata in self._describe(topics)))

    def absent(self, topics: Iterable[str]) -> frozenset[str]:
        """Return the topics that do not exist, according to a broker that was asked for each by
        name. A list of all topics is no proof, because brokers leave out those that may not be
        described."""
        return frozenset().union(*(metadata.absent for metadata in self._describe(topics)))

    def _describe(self, topics: Iterable[str]) -> list[ClusterMetadata]:
        wanted = sorted(topics)

        def ask() -> list[ClusterMetadata]:
            connection = self._connection(self._any_broker())
            starts = range(0, len(wanted), BATCH)
            return [fetch_metadata(connection, wanted[at : at + BATCH]) for at in starts]

        return self._until(ask, "the broker")

    def tells_all(self, group: str) -> bool:
        """Whether ``fetch`` returns all stored offsets of a group, not only the requested ones."""

        def ask(connection: BrokerConnection) -> bool:
            try:
                return connection.version(OFFSET_FETCH, 2) > 0
            except UnsupportedBrokerError:
                return False

        return self._at_coordinator(group, ask)

    def log_end(self, group: str, partition: int) -> int:
        """Return the log end offset of the group's ``partition`` of ``__consumer_offsets``."""
        return self._at_coordinator(group, lambda at: offset_times.log_end(at, partition))

    def commits_since(
        self, group: str, partition: int, position: int
    ) -> list[tuple[TopicPartition, int | None]]:
        """Return the group's commits in order, from ``position`` (a result of ``log_end``) on;
        ``None`` is a deletion."""
        return self._at_coordinator(
            group, lambda at: offset_times.commits_since(at, group, partition, position)
        )

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, BrokerError]:
        """Delete the group's offsets of these partitions. Return the error of each refused
        partition.

        ``permit`` is called right before the request; its errors end the operation. Brokers before
        2.4 cannot delete offsets; -1 is stored instead, which consumers treat as no offset.
        """
        wanted = list(partitions)

        def tell(connection: BrokerConnection) -> dict[TopicPartition, BrokerError] | None:
            try:
                version = connection.version(OFFSET_DELETE, 0)
            except UnsupportedBrokerError:
                return None
            topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
            partition = topic.OffsetDeleteRequestPartition
            request = OffsetDeleteRequest(
                group_id=group,
                topics=[
                    topic(name=name, partitions=[partition(partition_index=i) for i in indexes])
                    for name, indexes in by_topic(wanted).items()
                ],
            )
            connection.ready()
            permit()
            answer = connection.call(request, OffsetDeleteResponse, version)
            with mapped_errors(connection.endpoint):
                if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                    return {}
                check(answer.error_code, f"deletion of offsets of group {group}")
                return {
                    TopicPartition(entry.name, part.partition_index): error_from_code(
                        part.error_code, f"deletion of the offset of {entry.name}"
                    )
                    for entry in answer.topics
                    for part in entry.partitions
                    if part.error_code
                }

        if not wanted:
            return {}
        refused = self._at_coordinator(group, tell)
        if refused is None:
            return self.commit(group, dict.fromkeys(wanted, StoredOffset(_NONE)), permit)
        return refused

    def retention_minutes(self) -> tuple[int, bool]:
        """Return the retention time of a group's offsets, and whether a broker reported it.

        Otherwise it is the default: 7 days since 2.0, 1 day before (KIP-186).
        """

        def ask() -> tuple[int, bool]:
            endpoint = self._any_broker()
            connection = self._connection(endpoint)
            connection.open()
            try:
                version = connection.version(DESCRIBE_CONFIGS, 1)
            except UnsupportedBrokerError:
                return _DAY_MINUTES, False
            resource = DescribeConfigsRequest.DescribeConfigsResource
            request = DescribeConfigsRequest(
                resources=[
                    resource(
                        resource_type=_BROKER_RESOURCE,
                        resource_name=str(endpoint.broker_id),
                        configuration_keys=[_RETENTION],
                        version=version,
                    )
                ],
                include_synonyms=False,
            )
            answer = connection.call(request, DescribeConfigsResponse, version)
            with mapped_errors(endpoint):
                for result in answer.results:
                    for config in result.configs or ():
                        if config.name == _RETENTION:
                            return int(config.value), True
            try:
                connection.version(OFFSET_COMMIT, 5)
            except UnsupportedBrokerError:
                return _DAY_MINUTES, False
            return 7 * _DAY_MINUTES, False

        return self._until(ask, "the broker")

    # -- connections ---------------------------------------------------------------------------

    def _forget(self) -> None:
        self._disconnect()
        self._coordinators.clear()

    def _disconnect(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, endpoint: BrokerEndpoint) -> BrokerConnection:
        if endpoint not in self._connections:
            self._connections[endpoint] = BrokerConnection(
                endpoint, self._client_id, self._timeout, 0, self._security, self._before_request
            )
        return self._connections[endpoint]

    def _any_broker(self) -> BrokerEndpoint:
        """Return a broker that accepts a connection."""
        error: BrokerError = BrokerUnavailableError(_NO_BROKER)
        for endpoint, seconds in in_time(self._order(self._brokers()), self._timeout):
            connection = self._connection(endpoint)
            connection.limit_opening(seconds)
            try:
                connection.open()
            except BrokerUnavailableError as failure:
                error = failure
            else:
                return endpoint
        raise error

    def _order(self, brokers: Sequence[BrokerEndpoint]) -> list[BrokerEndpoint]:
        """Return the order in which to ask brokers, because one of them may not answer."""
        mixed = random.sample(brokers, len(brokers))
        return sorted(mixed, key=lambda broker: self._why_given_up(broker) is not None)

    def _find(self, group: str) -> BrokerEndpoint:
        place = self._place(group)
        known = self._coordinators.get(place)
        if known is not None:
            return known
        brokers = self._order(self._brokers())
        if not brokers:
            raise BrokerUnavailableError(_NO_BROKER)
        search = search_coordinator(group, brokers, self._connection)
        if search.coordinator is None:
            check(search.code, f"coordinator of group {group}")
            raise search.error
        self._coordinators[place] = search.coordinator
        return search.coordinator

    def _at_coordinator(self, group: str, once: Callable[[BrokerConnection], T]) -> T:
        what = _name_of(group)
        asked: list[BrokerEndpoint] = []

        def ask() -> T:
            asked.clear()
            endpoint = self._find(group)
            self._refuse_given_up(endpoint, what)
            asked.append(endpoint)
            return once(self._connection(endpoint))

        place = (self._place(group),)
        self._refuse_given_up(place, what)
        others = [key for key in list(self._given_up) if self._why_given_up(key) is not None]
        patience = self._patience / 10 if others else self._patience
        try:
            return self._until(ask, what, patience)
        except _GivenUpError:
            raise
        except CommitFailedError as error:
            if isinstance(error.__cause__, PendingOffsetsError):
                raise  # it concerns this group only
            end = time.monotonic() + self._patience
            self._given_up[place] = end, str(error.__cause__)
            if asked and isinstance(error.__cause__, BrokerUnavailableError):
                self._given_up[asked[0]] = end, str(error.__cause__)
            raise

    def _why_given_up(self, key: Hashable) -> str | None:
        end, why = self._given_up.get(key, (0.0, ""))
        if end > time.monotonic():
            return why
        self._given_up.pop(key, None)
        return None

    def _refuse_given_up(self, key: Hashable, what: str) -> None:
        why = self._why_given_up(key)
        if why is not None:
            raise _GivenUpError(f"{what} did not answer a moment ago: {why}")

    def _until(self, once: Callable[[], T], what: str, patience: float | None = None) -> T:
        waiting = False

        def noted() -> T:
            nonlocal waiting
            try:
                return once()
            except (TryAgainError, BrokerUnavailableError):
                if not waiting:
                    waiting = True
                    self._on_wait(what)
                raise

        limit = self._patience if patience is None else patience
        return until(noted, self._forget, limit, self._backoff, self._closed, what)


class _GivenUpError(CommitFailedError):
    """The coordinator did not answer recently, so it is not asked again."""


def _fetch_stored(
    group: str,
    partitions: Sequence[TopicPartition],
    whole: bool,
    stable: bool,
    connection: BrokerConnection,
) -> dict[TopicPartition, StoredOffset]:
    """Request stored offsets, those of all partitions if ``whole``. Raises TryAgainError."""
    code, what, offsets = fetch_offsets(
        connection, group, partitions, all_stored=whole, stable=stable
    )
    check(code, what)
    return offsets


def _name_of(group: str) -> str:
    """Return the name of a group's coordinator for messages."""
    return f"the offset coordinator of group {group}"


def _batches(partitions: Iterable[TopicPartition]) -> list[list[TopicPartition]]:
    wanted = sorted(partitions)
    return [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]


def _members(groups: list[str], connection: BrokerConnection) -> dict[str, tuple[str, ...]]:
    """Return the members of groups that have the same coordinator."""
    try:
        descriptions = describe_groups(groups, connection, partitions=False)
    except UnsupportedBrokerError:
        return dict.fromkeys(groups, ())
    return {
        group: tuple(
            f"{member.client_id} at {member.host} ({member.member_id})"
            for member in described.members
        )
        for group, described in descriptions.items()
    }
