"""Reads groups from both stores: everything for a plan, or only the offsets for a comparison.

Groups are read in batches. A group that cannot be read has a problem instead of a state; other
groups are not affected. Used from the thread that uses ``Stores``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from zkconsumer.admin.printable import printable
from zkconsumer.admin.snapshot import GroupSnapshot, in_batches, interpret, read_group
from zkconsumer.admin.verifier import Kind as Finding, verify
from zkconsumer.broker.groups.coordinator_calls import PendingOffsetsError
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, is_legal_group, is_legal_topic
from zkconsumer.errors import BrokerError, ZkConsumerError, ZnodeFormatError, ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.model import (
    GroupState,
    KafkaOffset,
    Mirror,
)
from zkmigrate.plan.cases import Case, case_of
from zkmigrate.plan.findings import bad_name
from zkmigrate.plan.status import is_migrator
from zkmigrate.plan.values import GroupPlan, Problem
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, mirror_state, record
from zkmigrate.stores.migration_marker import decoded
from zkmigrate.stores.offset_znodes import (
    misplaced_offsets,
    misplaced_root,
    numbered,
    offset_partitions,
    offsets_at,
    readable_at,
    zk_offset,
)
from zkmigrate.stores.sessions import Stores


def read_states(
    stores: Stores,
    groups: Iterable[str],
    from_file: Mapping[str, Mapping[TopicPartition, int]],
    commit_times: bool,
    renamed: Mapping[str, str] | None = None,
) -> Iterator[GroupState | tuple[str, Problem]]:
    """Yield the state of each group, or its problem if it cannot be read or its name is invalid.

    ``from_file``: offsets from a file, by group. ``commit_times``: also look up when each offset
    was committed to Kafka, which reads the coordinators' logs. ``renamed``: groups' names in Kafka;
    by default the names under which groups were moved.
    """
    every = list(groups)
    called = dict(renamed or {})
    times = stores.commit_times([called.get(name, name) for name in every]) if commit_times else {}
    hidden = stores.hidden_topics()
    for chunk in in_batches(zip(every, stores.zk.run_all(map(_read, every)), strict=True)):
        problems = {name: one for name, one in chunk.items() if isinstance(one, Problem)}
        parts = {name: one for name, one in chunk.items() if isinstance(one, GroupSnapshot)}
        known = {
            name: decoded(name, part.moved, part.mode, part.record, part.migratable)
            for name, part in parts.items()
        }
        _learn(stores, ((*part.offsets, *part.owners, *part.misplaced) for part in parts.values()))
        asked: defaultdict[str, set[TopicPartition]] = defaultdict(set)
        for name, snapshot in parts.items():
            there = called.setdefault(name, known[name].kafka_group or name)
            asked[there].update(_partitions(stores, snapshot))
        committed = stores.fetch_each(asked)
        kafka: dict[str, dict[TopicPartition, KafkaOffset]] = {}
        for name in parts:
            there = called[name]
            found = committed[there]
            if isinstance(found, BrokerError):
                problems[name] = unreadable_group(name, found)
            else:
                kafka[name] = {
                    tp: KafkaOffset(*stored, times.get((there, tp))) for tp, stored in found.items()
                }
        partitions = ((*kafka[name], *from_file.get(name, ())) for name in kafka)
        _learn(stores, ((tp.topic for tp in some) for some in partitions))
        for name in kafka:
            stores.logs.past_ends(_offsets(parts[name], kafka[name], from_file.get(name, {})))
        mirrored = [name for name, one in known.items() if one.record.mirror]
        reads = stores.zk.run_all(_mirror(name, known[name].record.version) for name in mirrored)
        mirrors = dict(zip(mirrored, reads, strict=True))
        problems |= {name: one for name, one in mirrors.items() if isinstance(one, Problem)}
        unseen = hidden | _unproven(stores, parts.values(), kafka, from_file)
        joined = stores.kafka.members_of([called[name] for name in kafka])
        for name in chunk:
            members = joined.get(called.get(name, name), ())
            if name in problems:
                yield name, problems[name]
            elif isinstance(members, BrokerError):
                yield name, unreadable_group(name, members)
            else:
                offsets = from_file.get(name)
                part = parts[name]
                state = _state(stores, part, known[name], kafka[name], members, offsets, unseen)
                there = called[name]
                state = replace(state, kafka_group="" if there == name else there)
                if isinstance(mirror := mirrors.get(name), tuple):
                    agreed, by, faults = mirror
                    faults = (*state.faults, *faults)
                    state = replace(state, mirror=agreed, mirrored_by=by, faults=faults)
                yield state


def _read(group: str) -> Script[GroupSnapshot | Problem]:
    """Return a group in ZooKeeper, or why it cannot be read."""
    if not is_legal_group(group):
        return bad_name(group)
    content = yield from or_refusal(read_group(group))
    if isinstance(content, ZooKeeperError):
        return unreadable_group(group, content)
    return content or GroupSnapshot(group, exists=False)


def _mirror(
    group: str, serial: int
) -> Script[tuple[Mirror | None, str, tuple[str, ...]] | Problem]:
    """Return the state of a group's mirror, who runs it, and which data is unreadable. If another
    command has ended the mirror since the record had the version ``serial``, return this problem.
    """
    try:
        mirror, by = yield from mirror_state.read_mirror(group)
    except ZnodeFormatError as fault:
        return None, "", (str(fault),)
    if mirror is None and (now := (yield from record.read(group))).version != serial:
        return Problem(Reason.OTHER_OPERATOR, *record.overtaken(now))
    gone = f"{mirror_state.path(group)} is gone: begin again with zkmigrate mirror --lead"
    return mirror, by, () if mirror is not None else (gone,)


def case_in(stores: Stores, group: str, in_kafka: str = "") -> Case:
    """Read one group and return its case. ``in_kafka``: its name in Kafka, if different."""
    renamed = {group: in_kafka} if in_kafka else None
    (state,) = read_states(stores, [group], {}, False, renamed)
    return case_of(state) if isinstance(state, GroupState) else Case.UNREADABLE


def read_offsets(
    stores: Stores, plans: Iterable[GroupPlan]
) -> Iterator[tuple[GroupPlan, GroupState | Problem]]:
    """Yield each planned group with its offsets in both stores, its marker and its record, or with
    the problem if it cannot be read.

    The result contains a topic only if one of its planned offsets is missing from the store to
    which the group was moved.
    """
    for plan, found in stores.zk.run_all(map(_in_zookeeper, plans)):
        if isinstance(found, ZooKeeperError):
            yield plan, unreadable_group(plan.group, found)
            continue
        state, below = found
        try:
            misplaced = offsets_at(misplaced_root(plan.group), below.items())
            committed = stores.fetch(plan.in_kafka, [entry.tp for entry in plan.entries])
        except (ZnodeFormatError, BrokerError) as error:
            yield plan, unreadable_group(plan.group, error)
            continue
        if state.faults:
            what = "; ".join(state.faults)
            yield plan, Problem(Reason.UNREADABLE, what, "repair it, then run it again")
            continue
        kafka = {tp: KafkaOffset(*one) for tp, one in committed.items()}
        state = replace(state, kafka=kafka, misplaced=misplaced)
        lacking: set[str] = set()
        if state.marker is not None and state.marker.moved_to is not None:
            held = state.offsets(state.marker.moved_to)
            wanted = (one.tp for one in plan.entries if one.to is not None)
            lacking = {tp.topic for tp in wanted if tp not in held}
        yield plan, replace(state, topics=stores.logs.topics(lacking) if lacking else {})


_Found = tuple[GroupState, dict[TopicPartition, Node]]


def _in_zookeeper(plan: GroupPlan) -> Script[tuple[GroupPlan, _Found | ZooKeeperError]]:
    return plan, (yield from or_refusal(_nodes(plan.group)))


def _nodes(group: str) -> Script[_Found]:
    """Return a group in ZooKeeper with its offsets, and its znodes below ``offset``."""
    wanted = yield from offset_partitions(group)
    nodes = yield from read_many(map(GroupPaths(group).offset, wanted))
    others = yield from misplaced_offsets(group)
    state = yield from migration_marker.state_of(group)
    pairs = zip(wanted, nodes, strict=True)
    zk = {tp: zk_offset("", node) for tp, node in pairs if node is not None}
    return replace(state, zk=zk), others


def _learn(stores: Stores, topics: Iterable[Iterable[str]]) -> None:
    """Read data about the topics of many groups together."""
    stores.logs.of({topic for some in topics for topic in some})


def _offsets(
    snapshot: GroupSnapshot,
    kafka: Mapping[TopicPartition, KafkaOffset],
    from_file: Mapping[TopicPartition, int],
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield every offset of a group, from all places."""
    for tree in (snapshot.offsets, snapshot.misplaced):
        yield from readable_at("", numbered(tree))[0].items()
    yield from ((tp, committed.offset) for tp, committed in kafka.items())
    yield from from_file.items()


def _partitions(stores: Stores, snapshot: GroupSnapshot) -> list[TopicPartition]:
    """Return the partitions to request from brokers that do not list a group's offsets."""
    topics = {*snapshot.offsets, *snapshot.owners}
    partitions = {tp for tp, _ in numbered(snapshot.offsets)}
    for topic, state in stores.logs.of(topics)[0].items():
        partitions |= {TopicPartition(topic, number) for number in state.partitions}
    return sorted(partitions)


def foreign_znodes(snapshot: GroupSnapshot) -> tuple[str, ...]:
    """Return the paths of a group's znodes in another client's layout, including those of live
    members."""
    return tuple(
        finding.where
        for finding in verify(snapshot, interpret(snapshot, ()), {}, {})
        if finding.kind is Finding.FOREIGN_LAYOUT
    )


def _state(
    stores: Stores,
    snapshot: GroupSnapshot,
    known: GroupState,
    kafka: Mapping[TopicPartition, KafkaOffset],
    joined: tuple[str, ...],
    from_file: Mapping[TopicPartition, int] | None,
    hidden: frozenset[str],
) -> GroupState:
    path = snapshot.paths.offset
    zk = {tp: zk_offset(path(tp), node) for tp, node in numbered(snapshot.offsets)}
    misplaced, faults = readable_at(misplaced_root(snapshot.group), numbered(snapshot.misplaced))
    marker = known.marker
    faults += known.faults
    names = {tp.topic for tp in (*kafka, *(from_file or ()), *(marker.in_target if marker else ()))}
    names |= {*snapshot.offsets, *snapshot.misplaced}
    topics, ranges = stores.logs.of(names)
    faults += [why for name, why in sorted(stores.logs.unreadable.items()) if name in names]
    # A child of ``owners`` with such a name is a run that holds a locked group.
    migrators = [name for name in snapshot.owners if is_migrator(snapshot.group, name)]
    return replace(
        known,
        members=tuple(sorted({*snapshot.members, *migrators})),
        owners={tp: node.data.decode(errors="replace") for tp, node in numbered(snapshot.owners)},
        coordinator_members=joined,
        zk=zk,
        kafka=kafka,
        ranges=ranges,
        topics=topics,
        misplaced=misplaced,
        foreign=foreign_znodes(snapshot),
        faults=tuple(faults),
        hidden=hidden,
        from_file=from_file,
        exists=snapshot.exists,
    )


def _unproven(
    stores: Stores,
    snapshots: Iterable[GroupSnapshot],
    kafka: Mapping[str, Mapping[TopicPartition, object]],
    from_file: Mapping[str, Mapping[TopicPartition, int]],
) -> frozenset[str]:
    """Return the topics with offsets that are not listed, although no broker reports them as
    deleted.

    Without ZooKeeper a broker lists all topics, and leaves out those that may not be described.
    Only a request for the topic's name shows whether it exists.
    """
    if stores.zk.live:
        return frozenset()
    names: set[str] = set()
    for one in snapshots:
        names |= {*one.offsets, *one.misplaced}
        names |= {tp.topic for tp in (*kafka.get(one.group, ()), *from_file.get(one.group, ()))}
    missing = {name for name in names if is_legal_topic(name)} - set(stores.logs.of(names)[0])
    return frozenset(missing - stores.kafka.absent(missing)) if missing else frozenset()


def unreadable_group(group: str, error: ZkConsumerError) -> Problem:
    """Return the problem of a group that cannot be read from ZooKeeper or from its coordinator."""
    leave = f"leave the group out with --exclude {group}"
    if isinstance(error.__cause__, PendingOffsetsError):
        fix = f"let the transaction end and run this again, or {leave}"
        return Problem(Reason.UNREADABLE, printable(str(error)), fix)
    if isinstance(error, BrokerError) and error.retriable:
        fix = f"bring its broker back and run this again, or {leave}"
        return Problem(Reason.COORDINATOR_AWAY, printable(str(error)), fix)
    fix = "repair it" if isinstance(error, ZnodeFormatError) else "allow it to be read"
    return Problem(Reason.UNREADABLE, printable(str(error)), f"{fix}, or {leave}")
