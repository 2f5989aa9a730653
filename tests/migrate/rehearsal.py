"""Runs a plan on copies of its groups, on its own servers on this machine, and rolls it back.

``copy_groups`` reads the plan's groups: their znodes, their offsets in Kafka, and where each log
begins and ends. ``Rehearsal`` starts a ZooKeeper and a broker, creates the same groups and topics
there, and runs the plan as ``apply``, ``verify`` and ``rollback`` would. A log consists of empty
segments that begin and end at the same offsets, so no message is copied. Members are not copied,
because they must be stopped for the move. The real servers are only read. Used from one thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from zkmigrate import verify
from zkmigrate.apply import guard
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.apply.parallel import Run
from zkmigrate.errors import MigrationError
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import HeldNow, LogRange
from zkmigrate.plan.values import GroupPlan, Problem, Verdict
from zkmigrate.stores.cluster import Servers
from zkmigrate.stores.group_states import read_offsets
from zkmigrate.stores.sessions import Stores

from zkconsumer.admin.snapshot import MISPLACED, MOVED, GroupSnapshot, read_group
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import AclEntry, Create, Exists, Multi, MultiOp, Ok, SetAcl, Stat
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    attempt,
    ensure_path,
    packets,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import BROKER_TOPICS, GroupPaths, topic_path
from zkconsumer.servers import LocalCluster
from zkconsumer.zk.blocking import BlockingZk

KAFKA: Final = "3.9"
"""The Kafka release of the servers that are started."""
_BROKER: Final = 0


@dataclass(frozen=True, slots=True)
class GroupCopy:
    """A copy of one group. ``ids_data`` and ``ids_acl``: of the znode that may be locked."""

    snapshot: GroupSnapshot
    kafka_group: str
    kafka: Mapping[TopicPartition, StoredOffset]
    ids_data: bytes
    ids_acl: tuple[AclEntry, ...] | None


@dataclass(frozen=True, slots=True)
class EstateCopy:
    """Copies of the groups of a plan.

    ``topics``: topic to number of partitions and time of creation (a zxid).
    """

    groups: tuple[GroupCopy, ...]
    topics: Mapping[str, tuple[int, int]]
    ranges: Mapping[TopicPartition, LogRange]


class Rehearsed(NamedTuple):
    """The result for one group. ``verified`` and ``way_back`` are empty if there was no problem."""

    result: Result
    verified: str
    way_back: str

    @property
    def good(self) -> bool:
        """Whether the group would be moved, and could be moved back."""
        return self.result.outcome.good and not self.verified and not self.way_back


def copy_groups(stores: Stores, plans: Iterable[GroupPlan]) -> EstateCopy:
    """Read the data of planned groups. Raises ZkConsumerError."""
    every = list(plans)
    groups: list[GroupCopy] = []
    names: set[str] = set()
    for plan, contents in zip(
        every, stores.zk.run_all(_read(one.group) for one in every), strict=True
    ):
        snapshot, locked = contents
        names |= {
            *snapshot.offsets,
            *snapshot.misplaced,
            *(entry.tp.topic for entry in plan.entries),
        }
        known = [TopicPartition(topic, 0) for topic in snapshot.offsets]
        kafka = stores.fetch(plan.in_kafka, [*known, *(entry.tp for entry in plan.entries)])
        names |= {tp.topic for tp in kafka}
        acl = locked.acl.entries if locked.acl else None
        groups.append(GroupCopy(snapshot, plan.in_kafka, kafka, locked.data, acl))
    topics, ranges = stores.logs.of(names)
    return EstateCopy(
        tuple(groups),
        {
            name: (max(state.partitions, default=-1) + 1, state.czxid)
            for name, state in topics.items()
        },
        ranges,
    )


def _read(group: str) -> Script[tuple[GroupSnapshot, guard.Found]]:
    snapshot = yield from read_group(group)
    return snapshot or GroupSnapshot(group), (yield from guard.look(group))


class Rehearsal:
    """Servers with copies of groups. Use as a context manager; nothing is left of them.

    Args:
        copy: the groups to create there.
        folder: an empty one for the servers' files.
        on_step: called with the name of each step.
    """

    def __init__(self, copy: EstateCopy, folder: Path, on_step: Callable[[str], object]) -> None:
        self._copy = copy
        self._folder = folder
        self._on_step = on_step
        self._cluster = LocalCluster(KAFKA, dir=folder / "servers")

    def __enter__(self) -> Rehearsal:
        self._on_step("servers to start")
        self._cluster.start()
        try:
            self._on_step("copies of the groups")
            self._fill()
        except BaseException:
            self._cluster.kill()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._cluster.kill()

    def _fill(self) -> None:
        broker = self._cluster.broker_servers[0]
        broker.stop()
        with BlockingZk(self._cluster.zookeeper) as zk:
            # An offset that is older than its topic is so in the copy, too.
            for _ in zk.run_all(_make_group(one, self._older) for one in self._copy.groups):
                pass
            for name, (partitions, _) in self._copy.topics.items():
                zk.run(_make_topic(name, partitions))
            for _ in zk.run_all(_make_group(one) for one in self._copy.groups):
                pass
            for one in self._copy.groups:
                if one.ids_acl is not None:
                    zk.run(_make_ids(one))
        logs = self._folder / "servers" / "data" / f"broker-{_BROKER}"
        for tp, log in self._copy.ranges.items():
            place = logs / f"{tp.topic}-{tp.partition}"
            place.mkdir()
            for offset in {log.earliest, log.latest}:
                (place / f"{offset:020}.log").touch()
        broker.start()
        broker.wait_ready()
        with Stores(Servers(self._cluster.zookeeper)) as stores:
            _, ranges = stores.logs.covering(self._copy.ranges.keys(), 60.0)
            wrong = [tp for tp, log in self._copy.ranges.items() if ranges.get(tp) != log]
            if wrong:
                raise MigrationError(f"the copy of {min(wrong)} differs from the log: run it again")
            for one in self._copy.groups:
                if one.kafka:
                    stores.kafka.commit(one.kafka_group, one.kafka)

    def _older(self, topic: str, stat: Stat) -> bool:
        original = self._copy.topics.get(topic)
        return original is not None and stat.mzxid < original[1]

    def run(
        self,
        plan: PlanFile,
        parallel: int,
        lock: bool,
        on_group: Callable[[Result], object],
    ) -> Iterator[Rehearsed]:
        """Apply, verify and roll back; yield the result for each group."""
        with Stores(Servers(self._cluster.zookeeper)) as stores:
            here = replace(plan, groups=tuple(self._translated(plan, stores)), cluster=None)
            before = _held(stores, here)
            path = self._folder / "journal"
            with Journal(path, here.digest) as journal:
                migrator = Migrator(stores, lock=lock, parallel=parallel)
                results = migrator.apply(here, Run(journal, idle=True), on_group)
            differences = _compared(stores, here, results)
            self._on_step("the way back")
            with Journal(path, here.digest) as journal:
                migrator = Migrator(stores, parallel=parallel)
                back = {
                    one.group: one for one in migrator.rollback(here, Run(journal), lambda _: None)
                }
            after = _held(stores, here)
        for one in results:
            way_back = "" if back[one.group].outcome.good else back[one.group].why
            if not way_back and before[one.group] != after[one.group]:
                way_back = "a rollback does not restore what was there"
            yield Rehearsed(one, differences.get(one.group, ""), way_back)

    def _translated(self, plan: PlanFile, stores: Stores) -> Iterator[GroupPlan]:
        """The plan's groups with the versions and moments of creation that the copies have."""
        names = sorted(self._copy.topics)
        nodes = stores.zk.run(read_many(map(topic_path, names)))
        czxids = {
            name: node.stat.czxid
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }
        for group in plan.groups:
            entries = tuple(
                entry if entry.zk_version is None else replace(entry, zk_version=0)
                for entry in group.entries
            )
            topics = {topic: czxids.get(topic, 0) for topic in group.topics}
            yield replace(group, entries=entries, topics=topics)


def _held(stores: Stores, plan: PlanFile) -> dict[str, HeldNow | str]:
    return {
        group.group: offsets.what if isinstance(offsets, Problem) else offsets.offsets
        for group, offsets in read_offsets(stores, plan.groups)
    }


def _compared(stores: Stores, plan: PlanFile, results: Iterable[Result]) -> dict[str, str]:
    """Return the differences that ``verify`` finds in moved groups, by group; only if there are
    any."""
    done = {one.group for one in results if one.outcome is Outcome.DONE}
    differences: dict[str, str] = {}
    moved = [group for group in plan.groups if group.group in done and plan.at_apply is None]
    for group, held in read_offsets(stores, moved):
        if isinstance(held, Problem):
            differences[group.group] = held.what
            continue
        every = list(verify.compare(group, plan.direction, held.offsets, held.marker))
        if every:
            differences[group.group] = f"{every[0].topic}-{every[0].partition}: {every[0].what}"
    return differences


def ready(plan: PlanFile) -> list[GroupPlan]:
    """Return the groups of a plan that apply would move."""
    return [group for group in plan.groups if group.verdict is Verdict.READY]


def _make_group(
    one: GroupCopy, wanted: Callable[[str, Stat], bool] = lambda _topic, _stat: True
) -> Script[None]:
    """Create those of a group's znodes that are wanted and not there yet."""
    paths = GroupPaths(one.snapshot.group)
    known: set[str] = set()
    todo: list[tuple[str, tuple[MultiOp, ...]]] = []
    trees = (
        (paths.offsets, one.snapshot.offsets),
        (f"{paths.root}/{MISPLACED}", one.snapshot.misplaced),
    )
    for root, tree in trees:
        for topic, nodes in tree.items():
            some = {name: node for name, node in nodes.items() if wanted(topic, node.stat)}
            if some:
                yield from ensure_path(known, f"{root}/{topic}")
            for name, node in some.items():
                path = f"{root}/{topic}/{name}"
                there = yield from read(Exists(path))
                if not (isinstance(there, Ok) and there.value is not None):
                    todo.append((path, (Create(path, node.data),)))
    if one.snapshot.moved is not None and wanted("", one.snapshot.moved.stat):
        yield from ensure_path(known, paths.root)
        path = f"{paths.root}/{MOVED}"
        todo.append((path, (Create(path, one.snapshot.moved.data),)))
    for packet in packets(todo):
        reply = yield from attempt(Multi(tuple(op for ops in packet.values() for op in ops)))
        if not isinstance(reply, Ok):
            raise MigrationError(f"{paths.root}: cannot be copied: {reply.code.value}")


def _make_topic(name: str, partitions: int) -> Script[None]:
    yield from ensure_path(set(), BROKER_TOPICS)
    data = {"version": 1, "partitions": {str(number): [_BROKER] for number in range(partitions)}}
    yield from attempt(Create(topic_path(name), json.dumps(data).encode()))


def _make_ids(one: GroupCopy) -> Script[None]:
    path = GroupPaths(one.snapshot.group).ids
    yield from ensure_path(set(), path.rpartition("/")[0])
    yield from attempt(Create(path, one.ids_data))
    assert one.ids_acl is not None
    try:
        yield from attempt(SetAcl(path, one.ids_acl, -1))
    except Refused as refused:
        raise MigrationError(f"{path}: its access list cannot be copied: {refused}") from None
