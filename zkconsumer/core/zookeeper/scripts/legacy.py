"""Scripts of the ``scala`` profile: claims, releases and commits exactly as the JVM does them.

One round trip for each znode, offsets read before the claim, no fencing, values compared instead
of sessions. They exist to reproduce the legacy effects; the default profile uses ``ownership``.
Source: Scala 1.1.1 ZookeeperConsumerConnector (``fetchOffsets``, ``commitOffsetToZooKeeper``,
``reflectPartitionOwnershipDecision``, ``deletePartitionOwnershipFromZK``).
"""

from __future__ import annotations

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Code, Create, Delete, GetData, Node, Ok, SetData
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    ScriptContext,
    attempt,
    ensure_path,
    read,
)
from zkconsumer.core.zookeeper.scripts.ownership import stored_offset
from zkconsumer.core.zookeeper.znodes import encode_offset
from zkconsumer.errors import ZnodeFormatError


def claim(command: commands.ClaimPartitions, ctx: ScriptContext) -> Script[events.Claimed]:
    """Read all offsets, then create all owner znodes; one conflict undoes the whole attempt."""
    paths = ctx.spec.paths
    offsets: dict[TopicPartition, int | None] = {}
    for tp in sorted(command.wanted):
        reply = yield from read(GetData(paths.offset(tp)))
        offsets[tp] = None
        if isinstance(reply, Ok) and isinstance(reply.value, Node):
            try:
                offsets[tp] = stored_offset(paths.offset(tp), reply.value)
            except ZnodeFormatError as fault:
                raise Refused(Code.OTHER, paths.offset(tp)) from fault
    claims: dict[TopicPartition, Claim] = {}
    blocked: dict[TopicPartition, str] = {}
    for tp in sorted(command.wanted):
        blocker = yield from _claim_one(ctx, tp, command.wanted[tp])
        if blocker is None:
            claims[tp] = Claim(command.wanted[tp], None, offsets[tp])
        else:
            blocked[tp] = blocker
    if blocked:
        for tp in claims:
            yield from _delete(paths.owner(tp))
        claims = {}
    return events.Claimed(command.token, claims, blocked)


def _claim_one(
    ctx: ScriptContext, tp: TopicPartition, thread: ConsumerThreadId
) -> Script[str | None]:
    """Create one owner znode; the text of the conflicting one, or ``None`` for success."""
    path = ctx.spec.paths.owner(tp)
    while True:
        reply = yield from attempt(Create(path, str(thread).encode(), ephemeral=True))
        if isinstance(reply, Ok):
            return None
        if reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx.known_paths, ctx.spec.paths.owners_topic(tp.topic))
        elif reply.code is Code.NODE_EXISTS:
            found = yield from read(GetData(path))
            if not (isinstance(found, Ok) and isinstance(found.value, Node)):
                return "an owner that has just left"
            text = found.value.data.decode(errors="replace")
            return None if text == str(thread) else text


def _delete(path: str) -> Script[None]:
    while True:
        reply = yield from attempt(Delete(path))
        if isinstance(reply, Ok) or reply.code is not Code.CONNECTION_LOSS:
            return


def release(command: commands.Release, ctx: ScriptContext) -> Script[events.Released]:
    """Delete owner znodes by path, whichever session owns them."""
    for tp in sorted(command.claims):
        yield from _delete(ctx.spec.paths.owner(tp))
    return events.Released(command.token)


def commit(command: commands.Commit, ctx: ScriptContext) -> Script[events.Committed]:
    """Write each offset that differs from the last one written or read; the last writer wins."""
    claims = dict(command.claims)
    for tp, position in sorted(command.positions.items()):
        if claims[tp].committed == position:
            continue
        path = ctx.spec.paths.offset(tp)
        data = encode_offset(position)
        while True:
            reply = yield from attempt(SetData(path, data))
            if isinstance(reply, Ok):
                break
            if reply.code is Code.NO_NODE:
                yield from ensure_path(ctx.known_paths, ctx.spec.paths.offsets_topic(tp.topic))
                created = yield from attempt(Create(path, data))
                if isinstance(created, Ok):
                    break
                ctx.known_paths.clear()
        claims[tp] = Claim(claims[tp].thread, None, position)
        ctx.stored.zookeeper += 1
    return events.Committed(command.token, claims)
