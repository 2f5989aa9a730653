"""Scripts of the ``scala`` profile, which behave exactly like the JVM.

One round trip for each znode, offsets read before the claim, no fencing, values compared instead
of sessions. They reproduce the legacy behaviour; the default profile uses the modules
``membership``, ``view``, ``ownership`` and ``kafka_storage``. Source: Scala 1.1.1
ZookeeperConsumerConnector (``fetchOffsets``, ``commitOffsetToZooKeeper``,
``reflectPartitionOwnershipDecision``, ``deletePartitionOwnershipFromZK``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zkconsumer.core.common.types import BrokerEndpoint, ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Scope
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Code, Create, Delete, Exists, GetData, Node, Ok, SetData
from zkconsumer.core.zookeeper.scripts import kafka_storage, membership, view
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Refused,
    Script,
    ScriptContext,
    attempt,
    ensure_path,
    read,
    read_many,
)
from zkconsumer.core.zookeeper.scripts.ownership import first_offset
from zkconsumer.core.zookeeper.view import GroupView
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    broker_path,
    encode_offset,
    encode_registration,
)
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
                offsets[tp] = first_offset(ctx, tp, reply.value)
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
    """Create one owner znode. Return the text of the conflicting one, or ``None`` after success."""
    path = ctx.spec.paths.owner(tp)
    while True:
        reply = yield from attempt(Create(path, str(thread).encode(), ephemeral=True))
        if isinstance(reply, Ok):
            return None
        if reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx.known_paths, ctx.spec.paths.owners_topic(tp.topic))
        elif reply.code is Code.NODE_EXISTS:
            answer = yield from read(GetData(path))
            if not (isinstance(answer, Ok) and isinstance(answer.value, Node)):
                return "an owner that has just left"
            text = answer.value.data.decode(errors="replace")
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


def claim_with_offsets_in_kafka(
    command: commands.ClaimPartitions, ctx: ScriptContext
) -> MemberScript[events.Claimed]:
    """Claim owner znodes, then read the offsets of the claimed partitions."""
    claimed = yield from claim(command, ctx)
    claimed = yield from kafka_storage.with_offsets(claimed, ctx)
    # ZooKeeper's offset stays as it is until the position changes.
    claims = {tp: replace(claim_, lags=False) for tp, claim_ in claimed.claims.items()}
    return replace(claimed, claims=claims)


def commit_in_kafka(command: commands.Commit, ctx: ScriptContext) -> MemberScript[events.Committed]:
    """Store offsets in Kafka; with dual commit, also store in ZooKeeper those that Kafka
    accepted."""
    unlimited = {tp: replace(claim, committed=None) for tp, claim in command.claims.items()}
    settled = events.Committed(command.token, unlimited)
    stored = yield from kafka_storage.store(command, ctx, settled)
    if not ctx.spec.dual_commit:
        return stored
    positions = {tp: at for tp, at in command.positions.items() if tp not in stored.broken}
    written = yield from commit(replace(command, positions=positions), ctx)
    return replace(stored, claims=written.claims)


def register(
    command: commands.Register, ctx: ScriptContext
) -> Script[events.Registered | events.RegistrationRefused]:
    """Create the registration, and read its owner only if it already exists."""
    spec = ctx.spec
    path = spec.paths.member(spec.consumer_id)
    data = encode_registration(spec.subscription, ctx.now_ms(), ours=False)
    yield from ensure_path(ctx.known_paths, spec.paths.ids)
    while True:
        reply = yield from attempt(Create(path, data, ephemeral=True))
        if isinstance(reply, Ok):
            return events.Registered(command.token)
        if reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx.known_paths, spec.paths.ids)
        elif reply.code is Code.NODE_EXISTS:
            lookup = yield from read(Exists(path))
            if (answer := (yield from membership.judge(command, ctx, lookup))) is not None:
                return answer
        elif reply.code is not Code.CONNECTION_LOSS:
            raise Refused(reply.code, path)


def _broker_nodes() -> Script[dict[str, Node]]:
    """Return the brokers' znodes by name, read one at a time. Their list is watched."""
    nodes: dict[str, Node] = {}
    for name in view.broker_names((yield from view.children_of(BROKER_IDS))):
        (node,) = yield from read_many([broker_path(int(name))])
        if node is not None:
            nodes[name] = node
    return nodes


def load_brokers(command: commands.LoadBrokers, ctx: ScriptContext) -> Script[events.BrokersLoaded]:
    """Read ``/brokers/ids`` and leave a watch on the list."""
    nodes = yield from _broker_nodes()
    return events.BrokersLoaded(command.token, view.endpoints_of(nodes, {}, ctx))


def load_view(command: commands.LoadView, ctx: ScriptContext) -> Script[events.ViewLoaded]:
    """Read the group in the order of Scala 1.1.1 ``ZKRebalancerListener.rebalance``, one znode at
    a time.

    A registration that was deleted after it was listed, or that is unusable, fails the attempt.
    """
    spec, ids = ctx.spec, ctx.spec.paths.ids
    quarantined: dict[str, str] = {}
    brokers: tuple[BrokerEndpoint, ...] = ()
    if command.scope is not Scope.GROUP:
        own = yield from read(GetData(spec.paths.member(spec.consumer_id)))
        brokers = view.endpoints_of((yield from _broker_nodes()), quarantined, ctx)
        if command.scope is Scope.OWN or not isinstance(own, Ok):
            empty = GroupView(isinstance(own, Ok), brokers, {}, quarantined, {})
            return events.ViewLoaded(command.token, empty)
    registrations: dict[str, Node] = {}
    for member in (yield from view.children_of(ids)):
        (node,) = yield from read_many([f"{ids}/{member}"])
        if node is None:
            raise Refused(Code.NO_NODE, f"{ids}/{member}")
        registrations[member] = node
    members = yield from view.expand_all(ctx, registrations, quarantined)
    # DEVIATION-12: in the JVM one bad registration fails every member's attempt.
    if bad := [path for path in quarantined if path.startswith(ids + "/")]:
        raise Refused(Code.OTHER, min(bad))
    nodes = yield from view.topic_nodes(view.needed_topics(ctx, members), {})
    partitions = view.partitions_of(nodes, quarantined, ctx)
    return events.ViewLoaded(
        command.token, GroupView(True, brokers, members, quarantined, partitions)
    )


def script_for(command: Any, ctx: ScriptContext) -> MemberScript[events.Event] | None:
    """Return the script of ``command``; ``None`` if the default profile's script applies."""
    kafka = ctx.spec.kafka_storage
    match command:
        case commands.Register():
            return register(command, ctx)
        case commands.LoadView():
            return load_view(command, ctx)
        case commands.LoadBrokers():
            return load_brokers(command, ctx)
        case commands.Commit():
            return commit_in_kafka(command, ctx) if kafka else commit(command, ctx)
        case commands.Release():
            return release(command, ctx)
        case commands.ClaimPartitions():
            return claim_with_offsets_in_kafka(command, ctx) if kafka else claim(command, ctx)
    return None
