"""``/consumers/GROUP/record/mirror``: the agreed state of a group's mirror. Scripts.

The JSON has the leading store and since when it leads, the offsets that both stores had when they
were last compared, the transactions that created their topics, and why the mirror has stopped, if
it has. Whether a group is mirrored is in its record, which every command reads. A write to this
znode checks its version and the record's, so two processes cannot act on the same reading. In a
transaction it precedes the offsets, by which ``zkaudit`` recognizes these.

``/consumers/GROUP/record/lease`` is the ephemeral znode of the process that mirrors the group. It
saves a second process the work. It does no harm if two processes believe that they hold it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import islice, zip_longest
from typing import Final, NamedTuple

from zkconsumer.admin.reads import children
from zkconsumer.admin.snapshot import partition_number
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Multi,
    MultiOp,
    Node,
    Ok,
    Reply,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.scripts.common import (
    PACKET_BYTES,
    Script,
    T,
    attempt,
    ensure_path,
    packets,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset, is_legal_topic, topic_path
from zkconsumer.errors import ZnodeFormatError, ZooKeeperError
from zkmigrate.errors import GroupRefusedError, refused
from zkmigrate.model import Mirror, Record, Store, ZkOffset, by_topic
from zkmigrate.plan.status import is_migrator
from zkmigrate.reasons import Reason
from zkmigrate.stores import record
from zkmigrate.stores.migration_marker import offsets_in
from zkmigrate.stores.offset_znodes import zk_offset

FORMAT: Final = 1
END: Final = "mirror --end"
"""Command in the record of a group that is no longer mirrored."""


def path(group: str) -> str:
    """Return the path of the znode with the agreed state of a group's mirror."""
    return f"{record.path(group)}/mirror"


def lease_path(group: str, to: str = "") -> str:
    """Return the path of the lease of a group's mirror. ``to``: the id of the other cluster, if the
    mirror copies to one."""
    return f"{record.path(group)}/lease" + (f"-{to}" if to else "")


def encode(mirror: Mirror) -> bytes:
    """Return the agreed state as data for the mirror's znode. Raises ZooKeeperError if the offsets
    do not fit."""
    data = record.as_json(
        {
            "version": FORMAT,
            "leader": mirror.leader.value,
            "since_ms": mirror.since_ms,
            "offsets": by_topic(mirror.values),
            "topics": dict(sorted(mirror.topics.items())),
            "stopped": mirror.stopped,
        }
    )
    if len(data) > record.MAX_BYTES - PACKET_BYTES:
        raise ZooKeeperError(
            f"{len(mirror.values)} offsets are too many for a mirror: move the group while it is "
            "stopped"
        )
    return data


def decode(where: str, node: Node) -> Mirror:
    """Decode the content of the mirror's znode. Raises ZnodeFormatError."""
    try:
        document = json.loads(node.data.decode())
        if document["version"] != FORMAT:
            raise ZnodeFormatError(
                where, "was written by another version of zkmigrate: use that version"
            )
        stopped = document["stopped"]
        return Mirror(
            Store(document["leader"]),
            record.whole(document["since_ms"], 0),
            {_one(*tp): offset for tp, offset in offsets_in(document["offsets"]).items()},
            {str(name): record.whole(at) for name, at in document["topics"].items()},
            None if stopped is None else (Reason(stopped[0]).value, str(stopped[1])),
            node.stat.version,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise ZnodeFormatError(where, "was not written by a mirror of zkmigrate") from None


@cache
def _one(topic: str, partition: int) -> TopicPartition:
    """Return a partition as the same object for all groups, which saves memory."""
    return TopicPartition(topic, partition)


class InZooKeeper(NamedTuple):
    """A mirrored group's data in ZooKeeper.

    ``mirror``: ``None`` if the group is not mirrored. ``lease``: the znode of the process that runs
    the mirror. ``old``: the group's members. ``offsets``: its offset znodes. ``watched``: whether a
    watch fires when any of this changes, except ``mirror`` and the creation of ``lease``.
    ``losses``: how often the connection had been lost when this was read. After another loss
    nothing is written, because a server that was restored from a backup uses the same versions
    again.
    """

    group: str
    record: Record
    mirror: Mirror | None
    lease: Node | None
    old: tuple[str, ...]
    offsets: Mapping[TopicPartition, ZkOffset]
    watched: bool = False
    losses: int | None = None


def look(group: str, watch: bool = False) -> Script[InZooKeeper]:
    """Read a mirrored group's data in ZooKeeper. Raises ZnodeFormatError.

    ``watch``: set watches on all znodes that exist, except on the agreed state. A write fails
    anyway if another process has changed the agreed state, because it checks the version. The
    record and the agreed state are read first, so that later changes by other commands make every
    write fail. Members are read last: a member that has committed is then seen, unless it has
    already left.
    """
    paths = GroupPaths(group)
    where = [record.path(group), path(group)]
    while True:
        written, lease = yield from read_many([where[0], lease_path(group)], watch)
        (agreed,) = yield from read_many([where[1]])
        found = Record() if written is None else record.decode(where[0], written)
        if agreed is not None or not found.mirror:
            break
        if (yield from record.read(group)) == found:
            raise ZnodeFormatError(
                where[1], "has disappeared: start again with zkmigrate mirror --lead"
            )
    mirror = decode(where[1], agreed) if agreed is not None and found.mirror else None
    topics = yield from children(paths.offsets, watch)
    wanted: list[TopicPartition] = []
    for topic in filter(is_legal_topic, topics or ()):
        names = yield from children(paths.offsets_topic(topic), watch)
        numbers = map(partition_number, names or ())
        wanted += [_one(topic, number) for number in numbers if number is not None]
    there = yield from _read_offsets(group, wanted, watch)
    members = yield from children(paths.ids, watch)
    exist = None not in (mirror, topics, members) and len(there) == len(wanted)
    old = _without_migrators(group, members)
    return InZooKeeper(group, found, mirror, lease, old, there, watch and exist)


def look_again(at: InZooKeeper, fired: Collection[str]) -> Script[InZooKeeper]:
    """Read again what has changed since ``at`` was read with watches.

    ``fired``: the paths of the watches that have fired. Returns the same object if nothing has
    changed.
    """
    if not fired:
        return at
    paths = GroupPaths(at.group)
    changed = [tp for tp in at.offsets if paths.offset(tp) in fired]
    if len(changed) != len(fired):
        return (yield from look(at.group, True))
    now = yield from _read_offsets(at.group, changed, True)
    if len(now) != len(changed):
        return (yield from look(at.group, True))
    members = yield from children(paths.ids)
    old = _without_migrators(at.group, members)
    if old == at.old and all(at.offsets[tp] == one for tp, one in now.items()):
        return at
    return at._replace(old=old, offsets={**at.offsets, **now})


def _read_offsets(
    group: str, partitions: Sequence[TopicPartition], watch: bool
) -> Script[dict[TopicPartition, ZkOffset]]:
    paths = list(map(GroupPaths(group).offset, partitions))
    nodes = yield from read_many(paths, watch)
    each = zip(partitions, paths, nodes, strict=True)
    return {tp: zk_offset(path, node) for tp, path, node in each if node is not None}


def _without_migrators(group: str, members: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(name for name in members or () if not is_migrator(group, name))


def read_mirror(group: str) -> Script[tuple[Mirror | None, str]]:
    """Return the agreed state of a group's mirror, and the operator who is running it. Raises
    ZnodeFormatError."""
    node, lease = yield from read_many([path(group), lease_path(group)])
    by = "" if lease is None else lease.data.decode(errors="replace").partition(" ")[0]
    return None if node is None else decode(path(group), node), by


def take_lease(group: str, run: str, to: str = "") -> Script[Node | None]:
    """Take a group's lease if it is free. Return the lease's znode, and leave a watch on it."""
    where = lease_path(group, to)
    yield from attempt(Create(where, _lease_data(run), ephemeral=True))
    (node,) = yield from read_many([where], True)
    return node


def lease_of(lease: Node | None, run: str) -> int:
    """Return the session that has a lease; 0 if this run of ``mirror`` does not have the lease."""
    if lease is None or lease.data != _lease_data(run):
        return 0
    return lease.stat.ephemeral_owner


def _lease_data(run: str) -> bytes:
    return f"{record.operator()} {run} {os.getpid()}".encode()


def take_lease_to(group: str, run: str, to: str) -> Script[Node | None]:
    """Take the lease of a group's mirror to another cluster, if it is free. Return the lease's
    znode. Only reads if the lease exists, as this is called often."""
    (node,) = yield from read_many([lease_path(group, to)])
    return node if node is not None else (yield from take_lease(group, run, to))


def permit_to(group: str, serial: int, to: str, session: int) -> Script[bool]:
    """Whether a group that is mirrored to another cluster may still be written.

    The group's record must have the version ``serial``. ``session`` must have the lease; 0: no
    lease is needed.
    """
    if not (yield from record.is_still(group, serial)):
        return False
    (node,) = yield from read_many([lease_path(group, to)])
    return not session or (node is not None and node.stat.ephemeral_owner == session)


def free_lease(at: InZooKeeper) -> Script[bool]:
    """Delete a lease if its process ran on this machine and has ended. Return whether it was
    deleted.

    A lease that is not deleted lasts until its session expires.
    """
    assert at.lease is not None
    by, _, rest = at.lease.data.decode(errors="replace").partition(" ")
    process = rest.rpartition(" ")[2]
    if by != record.operator() or not process.isdecimal():
        return False
    try:
        os.kill(int(process), 0)
        return False
    except ProcessLookupError:
        pass
    except (OSError, OverflowError):  # it is not ours
        return False
    reply = yield from attempt(Delete(lease_path(at.group), at.lease.stat.version))
    return isinstance(reply, Ok)


class Asked(NamedTuple):
    """A request for permission to write a mirrored group.

    ``at``: the group's data. ``session``: the session that must have the lease; 0: no lease is
    needed. ``topics``: the zxid of the creation of each topic.
    """

    at: InZooKeeper
    session: int
    topics: Mapping[str, int]


def permit(asked: Sequence[Asked]) -> Script[list[bool]]:
    """Return for each group whether its record, agreed state, lease and topics are unchanged.

    ZooKeeper's leader checks the records and the agreed states in one request. If one has changed,
    no group is permitted. The rest is read after that, so it is not older.
    """
    first, checks, paths = asked[0].at, list[MultiOp](), list[str]()
    for at, _, topics in asked:
        assert at.mirror is not None
        checks.append(Check(record.path(at.group), at.record.version))
        checks.append(Check(path(at.group), at.mirror.version))
        paths += [lease_path(at.group), *map(topic_path, topics)]
    if not (yield from record.is_still(first.group, first.record.version, checks[1:])):
        return [False] * len(asked)
    nodes = iter((yield from read_many(paths)))
    permitted: list[bool] = []
    for _, session, topics in asked:
        lease = next(nodes)
        held = not session or (lease is not None and lease.stat.ephemeral_owner == session)
        created = [node and node.stat.czxid for node in islice(nodes, len(topics))]
        permitted.append(held and created == list(topics.values()))
    return permitted


def write(
    at: InZooKeeper, mirror: Mirror, offsets: Mapping[TopicPartition, int]
) -> Script[InZooKeeper]:
    """Write offsets and the agreed state to ZooKeeper in one request. Return the new content.

    Many offsets need several requests, each with the matching part of the agreed state. Raises
    GroupRefusedError if another client or command has changed any of it. The watches on the offsets
    fire, so they are set again when the group is read next.
    """
    paths = GroupPaths(at.group)
    known: set[str] = set()
    for topic in sorted({tp.topic for tp in offsets.keys() - at.offsets.keys()}):
        yield from ensure_path(known, paths.offsets_topic(topic))
    first = at.mirror
    assert first is not None
    agreed = {tp: offset for tp, offset in mirror.values.items() if tp not in offsets}
    agreed |= {tp: first.values[tp] for tp in offsets if tp in first.values}
    ops = ((tp, (_offset_op(at, tp, offset),)) for tp, offset in sorted(offsets.items()))
    version = first.version
    now = dict(at.offsets)
    unknown: list[TopicPartition] = []
    for packet in list(packets(ops)) or [{}]:
        agreed |= {tp: offsets[tp] for tp in packet}
        data = encode(Mirror(mirror.leader, mirror.since_ms, agreed, mirror.topics))
        some = [op for several in packet.values() for op in several]
        check = Check(record.path(at.group), at.record.version)
        multi = Multi((check, SetData(path(at.group), data, version), *some))
        while not isinstance((reply := (yield from attempt(multi))), Ok):
            if reply.code is Code.CONNECTION_LOSS:
                (node,) = yield from read_many([path(at.group)])
                if node is not None and (node.stat.version, node.data) == (version + 1, data):
                    break
            raise changed(at.group)
        stats = reply.value[2:] if isinstance(reply, Ok) and isinstance(reply.value, tuple) else ()
        for tp, stat in zip_longest(packet, stats):
            if isinstance(stat, Stat):
                now[tp] = ZkOffset(offsets[tp], stat.version, stat.mzxid, stat.mtime_ms)
            else:
                unknown.append(tp)
        version += 1
    if offsets and not at.watched:
        return (yield from look(at.group))
    written = Mirror(mirror.leader, mirror.since_ms, agreed, mirror.topics, version=version)
    after = at._replace(mirror=written, offsets=now)
    return (yield from look_again(after, list(map(paths.offset, unknown))))


def unless_lost(
    ats: Collection[InZooKeeper], losses: Callable[[], int], script: Script[T]
) -> Script[T]:
    """Run a script that relies on these readings, but send no ``Multi`` after the connection was
    lost.

    ``losses``: returns how often the connection has been lost. Raises GroupRefusedError.
    """
    reply: Reply | None = None
    try:
        while True:
            op = next(script) if reply is None else script.send(reply)
            for at in ats if isinstance(op, Multi) else ():
                if at.losses not in (None, losses()):
                    raise changed(at.group)
            reply = yield op
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        script.close()


def changed(group: str) -> GroupRefusedError:
    """Return the error for a group that another command has changed. It must be read again."""
    return refused(group, Reason.OTHER_OPERATOR, record.MEANWHILE)


def written_op(at: InZooKeeper, mirror: Mirror) -> MultiOp:
    """Return the operation that writes the agreed state. It fails if the znode has changed since it
    was read."""
    version = -1 if at.mirror is None else at.mirror.version
    return record.put(path(at.group), encode(mirror), version)


def checks(at: InZooKeeper) -> Iterable[MultiOp]:
    """Return operations that fail if one of the offset znodes has changed since it was read."""
    paths = GroupPaths(at.group)
    return [Check(paths.offset(tp), one.version) for tp, one in sorted(at.offsets.items())]


def _offset_op(at: InZooKeeper, tp: TopicPartition, offset: int) -> MultiOp:
    before, where = at.offsets.get(tp), GroupPaths(at.group).offset(tp)
    return record.put(where, encode_offset(offset), -1 if before is None else before.version)
