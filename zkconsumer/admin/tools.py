"""Runs the tools on real servers: reads snapshots, asks brokers, makes changes.

``GroupTools`` is used from one thread, inside ``with``. A group name that no group can have raises
ConfigError.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from zkconsumer.admin.change import (
    Deletion,
    Progress,
    active,
    delete,
    plan_deletion,
    read_stored,
    write_offsets,
)
from zkconsumer.admin.cluster_zk import ClusterZk
from zkconsumer.admin.describe import (
    GroupMemberRow,
    GroupRow,
    GroupStateRow,
    group_rows,
    member_rows,
    state_row,
    with_stored_offsets,
)
from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.reads import children_of, read_tree
from zkconsumer.admin.snapshot import (
    GroupSnapshot,
    Registrations,
    in_batches,
    interpret,
    list_groups,
    read_group,
    topics_of,
    uses_filter,
)
from zkconsumer.admin.topics import (
    BrokersSnapshot,
    PartitionRow,
    TopicRow,
    TopicSnapshot,
    leaders,
    list_topics,
    partition_rows,
    read_brokers,
    read_topic,
    topic_row,
    unusable,
)
from zkconsumer.admin.verifier import Finding, verify
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script
from zkconsumer.core.zookeeper.view import Assignor
from zkconsumer.core.zookeeper.znodes import (
    BROKER_TOPICS,
    GroupPaths,
    decode_offset,
    is_legal_group,
    is_legal_topic,
)
from zkconsumer.errors import (
    GroupChangedError,
    GroupError,
    UnknownGroupError,
    ZnodeFormatError,
)

if TYPE_CHECKING:
    from zkconsumer.admin.log_ends import LogEnds
    from zkconsumer.broker.security import KafkaSecurity


class GroupCounts(NamedTuple):
    """One row of ``groups list --counts``.

    ``members`` is the number of registered members, ``topics`` the number of topics that are owned
    or have offsets.
    """

    group: str
    members: int
    topics: int


class Change(NamedTuple):
    """One offset that an import would write. ``old`` is ``None`` if there is no usable
    offset yet."""

    group: str
    topic: str
    partition: int
    old: int | None
    new: int

    @property
    def key(self) -> OffsetKey:
        """The group and the partition of the offset."""
        return OffsetKey(self.group, self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What an import would do: the ``changes`` to write, and the number of offsets that are
    ``unchanged``."""

    changes: tuple[Change, ...]
    unchanged: int
    stored: Mapping[OffsetKey, Node]
    members: Mapping[str, Sequence[str]]
    """Registered members of each active group."""


def _no_progress(_count: int) -> None:
    return None


class GroupTools:
    """All actions of the group commands.

    Args:
        zookeeper: ``host:port/chroot``.
        timeout: seconds to wait for ZooKeeper, and for each broker.
        security: how to encrypt and log in; None for neither.
        bootstrap: brokers as ``host:port,host:port``, see ``ClusterZk``.

    ``notes`` lists everything that could not be read although the work continued, one line each.
    Every method raises a subclass of ZooKeeperError when ZooKeeper does not answer.
    """

    columns: ClassVar[dict[str, tuple[str, ...]]] = {
        "names": ("group",),
        "counts": GroupCounts._fields,
        "offsets": GroupRow._fields[:-1],  # only members on brokers have a client id
        "members": GroupMemberRow._fields,
        "state": GroupStateRow._fields,
    }
    """The columns of each kind of rows."""

    def __init__(
        self,
        zookeeper: str,
        timeout: float = 30.0,
        security: SecurityConfig | None = None,
        bootstrap: str | None = None,
    ) -> None:
        self._keys = SecurityConfig.parse({}) if security is None else security
        self._zk = ClusterZk(zookeeper, timeout, bootstrap, security=self._keys)
        self._timeout = timeout
        self._kafka: KafkaSecurity | None = None
        self.notes: list[str] = []

    def __enter__(self) -> Self:
        self._zk.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._zk.__exit__(*_error)

    def _security(self) -> KafkaSecurity:
        # Not above: loading kafka-python takes longer than most of the other commands.
        from zkconsumer.broker.security import KafkaSecurity

        if self._kafka is None:
            self._kafka = KafkaSecurity(self._keys)
        return self._kafka

    # -- groups --------------------------------------------------------------------------------

    def group_names(self) -> list[str]:
        """Return all groups, sorted. Names that no group can have are left out and noted."""
        return self._legal(self._zk.run(list_groups()), is_legal_group, "/consumers", "group")

    def _legal(
        self, names: Iterable[str], is_legal: Callable[[str], bool], root: str, kind: str
    ) -> list[str]:
        """Leave out invalid names, with a note for each."""
        legal = []
        for name in names:
            if is_legal(name):
                legal.append(name)
            else:
                self.notes.append(f"{root}/{name} is skipped: no {kind} can have that name")
        return legal

    def counts(self, groups: Iterable[str]) -> Iterator[GroupCounts]:
        """Yield a row for each of these groups."""
        return self._zk.run_all(map(_counts, groups))

    def describe(
        self, groups: Sequence[str], lag: bool = True, kafka_offsets: bool = False
    ) -> Iterator[GroupRow]:
        """Yield the rows of these groups. Raises UnknownGroupError.

        Without ``lag`` no broker is asked for log ends. With ``kafka_offsets`` a group's offset in
        Kafka takes precedence over the one in ZooKeeper. If a broker does not answer, a note is
        added.
        """
        for known in self._read(groups, lag):
            rows: list[GroupRow] = []
            for snapshot, registrations in known.groups:
                table, notes = group_rows(snapshot, registrations, known.topics, known.ends)
                rows += table
                self.notes += notes
            yield from self._with_stored_offsets(rows) if kafka_offsets else rows

    def members(self, groups: Sequence[str]) -> Iterator[GroupMemberRow]:
        """Yield a row for each registered member of these groups. Raises UnknownGroupError."""
        for known in self._read(groups, lag=False):
            for pair in known.groups:
                yield from member_rows(*pair)

    def states(self, groups: Sequence[str]) -> Iterator[GroupStateRow]:
        """Yield the state of each of these groups. Raises UnknownGroupError."""
        for known in self._read(groups, lag=False):
            for pair in known.groups:
                yield state_row(*pair, known.topics)

    def tree(self, group: str) -> dict[str, Node]:
        """Return every znode of a group by its path. Raises UnknownGroupError."""
        self._existing([group])
        return self._zk.run(read_tree(GroupPaths(group).root))

    def _with_stored_offsets(self, rows: list[GroupRow]) -> list[GroupRow]:
        # Not above: loading kafka-python takes longer than most of the other commands.
        from zkconsumer.admin.log_ends import fetch_stored

        wanted: dict[str, list[TopicPartition]] = {}
        for row in rows:
            if row.topic is not None and row.partition is not None:
                partition = TopicPartition(row.topic, row.partition)
                wanted.setdefault(row.group, []).append(partition)
        brokers = self._zk.run(read_brokers(self._keys.listener))
        endpoints = list(brokers.endpoints.values())
        stored, notes = fetch_stored(endpoints, wanted, self._timeout, self._security())
        self.notes += notes
        return with_stored_offsets(rows, stored)

    def verify(
        self,
        groups: Sequence[str],
        lag: bool = True,
        assignor: Assignor | None = None,
        *,
        idle: bool = False,
    ) -> Iterator[Finding]:
        """Yield the problems of these groups. Raises UnknownGroupError.

        ``idle``: also report members that own nothing although every strategy would assign
        partitions to them.
        """
        for known in self._read(groups, lag):
            for pair in known.groups:
                yield from verify(*pair, known.topics, known.ends, assignor, idle=idle)

    def plan_delete(self, group: str, topic: str | None = None, force: bool = False) -> Deletion:
        """Return the znodes that ``delete`` would remove. Raises the errors of ``delete``."""
        return self._with_near_names(group, plan_deletion(group, topic, force=force))

    def delete(
        self,
        group: str,
        topic: str | None = None,
        progress: Progress = _no_progress,
        force: bool = False,
    ) -> Deletion:
        """Delete a group without members, or one of its topics; return the deleted znodes.

        ``force``: delete it even if the group was moved to Kafka, is locked, or is in a live move.
        Raises UnknownGroupError, GroupActiveError, GroupChangedError, ProtectedGroupError.
        """
        return self._with_near_names(group, delete(group, topic, progress, force))

    # -- offsets -------------------------------------------------------------------------------

    def plan_import(self, offsets: Mapping[OffsetKey, int]) -> ImportPlan:
        """Compare these offsets with the stored ones, and return the changes that an import would
        make."""
        groups = sorted({key.group for key in offsets})
        lists = self._zk.run(children_of(GroupPaths(group).ids for group in groups))
        listed = zip(groups, lists, strict=True)
        stored = self._zk.run(read_stored(sorted(offsets)))
        changes = []
        for key in sorted(offsets):
            old = None
            if key in stored:
                try:
                    old = decode_offset(key.path, stored[key].data)
                except ZnodeFormatError as fault:
                    self.notes.append(f"{fault}; it would be replaced")
            if old != offsets[key]:
                changes.append(Change(*key, old, offsets[key]))
        return ImportPlan(
            tuple(changes),
            len(offsets) - len(changes),
            stored,
            {group: members for group, members in listed if members},
        )

    def carry_out(
        self, plan: ImportPlan, force: bool = False, progress: Progress = _no_progress
    ) -> None:
        """Write a plan's changes and read them back.

        Each offset is written only if it has not changed since the plan was made. Without
        ``force``, the group must have no member, and must not have been moved to Kafka, be locked,
        or be in a live move. Raises GroupActiveError and ProtectedGroupError before a group is
        written, GroupChangedError if another client changed a group in the meantime. Other groups
        may have been written by then.
        """
        by_group: dict[str, dict[OffsetKey, int]] = {}
        for change in plan.changes:
            by_group.setdefault(change.group, {})[change.key] = change.new
        if not force:
            for group, members in plan.members.items():
                if group in by_group:
                    raise active(group, list(members))
        for _ in self._zk.run_all(
            write_offsets(group, changes, plan.stored, force, progress)
            for group, changes in by_group.items()
        ):
            pass
        written = {key: new for changes in by_group.values() for key, new in changes.items()}
        read_back = self._zk.run(read_stored(written))
        for key, new in written.items():
            node = read_back.get(key)
            if node is None or node.data != b"%d" % new:
                raise GroupChangedError(
                    f"{key.path} was written but now contains another value: a consumer of group "
                    f"{key.group} is running: stop it, then run the command again"
                )

    # -- topics --------------------------------------------------------------------------------

    def list_topics(self) -> list[TopicRow]:
        """Return a row for each topic."""
        topics, brokers = self._all_topics(sorted(self._zk.run(list_topics())))
        return [topic_row(topic, brokers.registered) for topic in topics.values()]

    def describe_topics(self, topics: Sequence[str] | None = None) -> list[PartitionRow]:
        """Return a row for each partition of these topics, or of all topics. Raises GroupError."""
        names = sorted(self._zk.run(list_topics()))
        for topic in topics or ():
            if topic not in names:
                raise GroupError(_unknown("topic", topic, names))
        descriptions, brokers = self._all_topics(list(topics or names))
        return [
            row
            for topic in descriptions.values()
            for row in partition_rows(topic, brokers.registered)
        ]

    # -- inside --------------------------------------------------------------------------------

    def _all_topics(self, names: list[str]) -> tuple[dict[str, TopicSnapshot], BrokersSnapshot]:
        brokers = self._zk.run(read_brokers(self._keys.listener))
        topics = self._topics(self._legal(names, is_legal_topic, BROKER_TOPICS, "topic"))
        for topic in topics.values():
            self.notes += topic.faults
        return topics, brokers

    def _topics(self, names: Iterable[str]) -> dict[str, TopicSnapshot]:
        chosen = [name for name in names if is_legal_topic(name)]
        descriptions = self._zk.run_all(map(read_topic, chosen))
        return {topic.topic: topic for topic in descriptions if topic is not None}

    def _existing(self, groups: Sequence[str]) -> list[str]:
        known = dict.fromkeys(self._zk.run(list_groups()))
        for group in groups:
            if group not in known:
                raise UnknownGroupError(_unknown("group", group, list(known)))
        return list(dict.fromkeys(groups))

    def _with_near_names(self, group: str, script: Script[Deletion]) -> Deletion:
        self._existing([group])
        return self._zk.run(script)

    def _read(self, groups: Sequence[str], lag: bool) -> Iterator[_Known]:
        """Yield the groups in batches, so that many groups need little memory."""
        chosen = self._existing(groups)
        names: list[str] | None = None
        asker: LogEnds | None = None
        found = zip(chosen, self._zk.run_all(map(read_group, chosen)), strict=True)
        for some in in_batches(found):
            snapshots = list(filter(None, some.values()))
            if names is None and any(map(uses_filter, snapshots)):
                names = self._zk.run(list_topics())
            interpreted = [(snapshot, interpret(snapshot, names or ())) for snapshot in snapshots]
            wanted = {topic for pair in interpreted for topic in topics_of(*pair)}
            topics = self._topics(sorted(wanted))
            ends: dict[TopicPartition, int] = {}
            if lag and topics:
                if asker is None:
                    # Not above: loading kafka-python takes longer than most of the other commands.
                    from zkconsumer.admin.log_ends import LogEnds

                    brokers = self._zk.run(read_brokers(self._keys.listener))
                    self.notes += unusable(brokers, self._zk.has_bootstrap)
                    asker = LogEnds(self._timeout, self._security())
                ends = asker.of(brokers.endpoints, leaders(topics.values()))
            yield _Known(interpreted, topics, ends)
        if asker is not None:
            self.notes += asker.notes()


class _Known(NamedTuple):
    groups: list[tuple[GroupSnapshot, Registrations]]
    topics: dict[str, TopicSnapshot]
    ends: dict[TopicPartition, int]


def _counts(group: str) -> Script[GroupCounts]:
    paths = GroupPaths(group)
    members, owned, stored = yield from children_of((paths.ids, paths.owners, paths.offsets))
    return GroupCounts(group, len(members), len({*owned, *stored}))


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, list(filter(is_legal_group, known)), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"there is no {kind} {name} in this ZooKeeper{hint}"
