"""Groups in Kafka: lists and describes them for the command line.

``CoordinatorGroups`` is used from one thread, inside ``with``; it starts only the threads of
``log_ends``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple, Self

from zkconsumer.admin.describe import GroupRow
from zkconsumer.admin.log_ends import CLIENT_ID, LogEnds
from zkconsumer.broker.cluster_reader import ClusterReader
from zkconsumer.broker.groups.describe_groups import DEAD, DescribedGroup, DescribedMember
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.errors import BrokerError, UnknownGroupError


class StateRow(NamedTuple):
    """One row of ``groups describe --state`` for a group on a coordinator."""

    group: str
    coordinator: str
    assignment_strategy: str
    state: str
    members: int


class MemberRow(NamedTuple):
    """One row of ``groups describe --members`` for a group on a coordinator."""

    group: str
    consumer_id: str
    host: str
    client_id: str
    partitions: int
    assignment: str


class CoordinatorGroups:
    """Reads the data that the group commands need from brokers.

    Args:
        bootstrap: brokers as ``host:port,host:port``.
        timeout: seconds to wait for each broker.
        security: how to encrypt and log in; None for neither.

    A group that ``group_names`` returned is skipped if it no longer exists. For any other group
    that does not exist, reading its first row raises UnknownGroupError. ``notes`` lists everything
    that could not be read, one line each. Every method raises BrokerError when no broker answers.
    """

    columns: ClassVar[dict[str, tuple[str, ...]]] = {
        "names": ("group",),
        "offsets": GroupRow._fields,
        "members": MemberRow._fields,
        "state": StateRow._fields,
    }
    """The columns of each kind of rows."""

    def __init__(
        self, bootstrap: str, timeout: float = 30.0, security: SecurityConfig | None = None
    ) -> None:
        self._security = KafkaSecurity(SecurityConfig.parse({}) if security is None else security)
        self._timeout = timeout
        self._reader = ClusterReader(bootstrap, CLIENT_ID, min(timeout, 10.0), self._security)
        self._groups = GroupCoordinators(
            CLIENT_ID,
            lambda: self._reader.read().brokers,
            timeout,
            patience=timeout,
            security=self._security,
        )
        self._listed: frozenset[str] = frozenset()
        """The last result of ``group_names``."""
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._groups.close()
        self._reader.disconnect()

    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        names = self._groups.list_groups()
        self._listed = frozenset(names)
        return names

    def states(self, groups: Sequence[str]) -> Iterator[StateRow]:
        """Yield each group's state and number of members."""
        for group, description in self._described(groups):
            yield StateRow(
                group,
                _shown(description.coordinator),
                description.strategy,
                description.state,
                len(description.members),
            )

    def members(self, groups: Sequence[str]) -> Iterator[MemberRow]:
        """Yield a row for each member of these groups."""
        for group, description in self._described(groups):
            for member in description.members:
                yield MemberRow(
                    group,
                    member.member_id,
                    member.host,
                    member.client_id,
                    len(member.partitions),
                    ", ".join(map(str, member.partitions)),
                )

    def describe(self, groups: Sequence[str], lag: bool = True) -> Iterator[GroupRow]:
        """Yield a row for each partition that has an offset or an owner, and for each member
        without a partition."""
        asker = LogEnds(self._timeout, self._security)
        for group, description in self._described(groups):
            owners = {tp: member for member in description.members for tp in member.partitions}
            stored = self._groups.fetch(group, owners, stable=False)
            partitions = sorted(stored.keys() | owners.keys())
            ends = self._log_ends(asker, partitions) if lag else {}
            for tp in partitions:
                offset = stored[tp].offset if tp in stored else None
                end, owner = ends.get(tp), owners.get(tp)
                behind = end - offset if end is not None and offset is not None else None
                yield GroupRow(group, *tp, offset, end, behind, _id(owner), *_place(owner))
            for member in description.members:
                if not member.partitions:
                    nothing = (None,) * 5
                    yield GroupRow(group, *nothing, member.member_id, member.host, member.client_id)
        self.notes += asker.notes()

    def _described(self, groups: Sequence[str]) -> Iterator[tuple[str, DescribedGroup]]:
        named = {group: self._describe(group) for group in groups if group not in self._listed}
        for group in groups:
            try:
                description = named[group] if group in named else self._describe(group)
            except UnknownGroupError:
                self.notes.append(f"group {group} is skipped: it is gone")
            else:
                yield group, description

    def _describe(self, group: str) -> DescribedGroup:
        description = self._groups.describe(group)
        if description.state == DEAD and not description.members:
            known = self._groups.list_groups()
            if group not in known:
                raise UnknownGroupError(
                    f"group {group} does not exist on the brokers; `groups list "
                    f"--bootstrap-server` shows the existing ones"
                )
        return description

    def _log_ends(
        self, asker: LogEnds, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        try:
            view = self._reader.read()
        except BrokerError as error:
            self.notes.append(f"{error}: no log ends are known")
            return {}
        leaders = {}
        for tp in partitions:
            topic = view.topics.get(tp.topic)
            part = topic.partitions.get(tp.partition) if topic is not None else None
            if part is not None and part.leader >= 0:
                leaders[tp] = part.leader
        endpoints = {broker.broker_id: broker for broker in view.brokers}
        return asker.of(endpoints, leaders)


def _shown(broker: BrokerEndpoint) -> str:
    return f"{broker.host}:{broker.port} ({broker.broker_id})"


def _id(owner: DescribedMember | None) -> str | None:
    return None if owner is None else owner.member_id


def _place(owner: DescribedMember | None) -> tuple[str, str]:
    return ("", "") if owner is None else (owner.host, owner.client_id)
