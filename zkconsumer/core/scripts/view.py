"""Scripts that read: the group's view, the brokers, the owners of held partitions."""

from __future__ import annotations

from zkconsumer.core import facts, orders
from zkconsumer.core.ops import Code, Exists, GetChildren, GetData, Node, Ok
from zkconsumer.core.orders import Scope
from zkconsumer.core.scripts.common import Refused, Script, ScriptContext, read, read_many
from zkconsumer.core.topic_filter import expand
from zkconsumer.core.types import BrokerEndpoint, Pattern, Subscription
from zkconsumer.core.view import GroupView
from zkconsumer.core.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    broker_path,
    decode_broker,
    decode_registration,
    decode_topic,
    topic_path,
)
from zkconsumer.errors import ZkConsumerError


def _children(path: str, watch: bool) -> Script[list[str]]:
    """Children in a fixed order; when ``path`` is missing its creation is watched instead."""
    while True:
        reply = yield from read(GetChildren(path, watch))
        if isinstance(reply, Ok):
            assert isinstance(reply.value, tuple)
            return sorted(str(name) for name in reply.value)
        if not watch:
            return []
        found = yield from read(Exists(path, watch=True))
        if isinstance(found, Ok) and found.value is None:
            return []


def _brokers(ctx: ScriptContext, quarantined: dict[str, str]) -> Script[tuple[BrokerEndpoint, ...]]:
    names = [name for name in (yield from _children(BROKER_IDS, True)) if name.isdecimal()]
    paths = [broker_path(int(name)) for name in names]
    if ctx.spec.scala:
        nodes: list[Node | None] = []
        for path in paths:
            nodes += yield from read_many([path])
    else:
        nodes = yield from read_many(paths)
    endpoints = []
    for name, path, node in zip(names, paths, nodes, strict=True):
        if node is None:
            continue
        try:
            endpoints.append(decode_broker(path, int(name), node.data))
        except ZkConsumerError as fault:
            quarantined[path] = str(fault)
    return tuple(endpoints)


def load_brokers(order: orders.LoadBrokers, ctx: ScriptContext) -> Script[facts.BrokersLoaded]:
    """Read ``/brokers/ids`` and leave a watch on the list."""
    return facts.BrokersLoaded(order.token, (yield from _brokers(ctx, {})))


def _own_registration(ctx: ScriptContext, epoch: int) -> Script[bool]:
    """Whether the registration is there and still as this session made it (the JVM: is there)."""
    path = ctx.spec.paths.member(ctx.spec.consumer_id)
    reply = yield from read(GetData(path))
    if not (isinstance(reply, Ok) and isinstance(reply.value, Node)):
        return False
    stat = reply.value.stat
    return ctx.spec.scala or (stat.ephemeral_owner, stat.version) == (ctx.session_id, epoch)


def load_view(order: orders.LoadView, ctx: ScriptContext) -> Script[facts.ViewLoaded]:
    """Read the group: own registration, brokers, members, their registrations, topics.

    Order of reads as in Scala 1.1.1 ``ZKRebalancerListener.rebalance``. In the ``scala`` profile
    each znode is read on its own, otherwise reads are pipelined. A member whose registration has
    vanished between listing and reading has left; the watch on the list tells about it. In the
    ``scala`` profile that, and any registration that cannot be used, fails the attempt.
    """
    spec = ctx.spec
    quarantined: dict[str, str] = {}
    registered, brokers = True, tuple[BrokerEndpoint, ...]()
    if order.scope is not Scope.GROUP:
        registered = yield from _own_registration(ctx, order.epoch)
        brokers = yield from _brokers(ctx, quarantined)
    if order.scope is Scope.OWN or not registered:
        return facts.ViewLoaded(order.token, GroupView(registered, brokers, {}, quarantined, {}))

    member_ids = yield from _children(spec.paths.ids, True)
    registration_paths = [f"{spec.paths.ids}/{member}" for member in member_ids]
    nodes: list[Node | None] = []
    if spec.scala:
        for path in registration_paths:
            nodes += yield from read_many([path])
    else:
        nodes = yield from read_many(registration_paths)

    subscriptions: dict[str, Subscription] = {}
    for member, path, node in zip(member_ids, registration_paths, nodes, strict=True):
        if node is None:
            if spec.scala:
                raise Refused(Code.NO_NODE, path)
            continue
        try:
            subscriptions[member] = decode_registration(path, node.data)
        except ZkConsumerError as fault:
            quarantined[path] = str(fault)

    all_topics: list[str] = []
    if any(found.pattern is not Pattern.STATIC for found in subscriptions.values()):
        all_topics = yield from _children(BROKER_TOPICS, True)

    members: dict[str, dict[str, int]] = {}
    for member, subscription in subscriptions.items():
        try:
            path = f"{spec.paths.ids}/{member}"
            members[member] = expand(path, subscription, all_topics, spec.exclude_internal)
        except ZkConsumerError as fault:
            quarantined[path] = str(fault)

    # DEVIATION-12: in the JVM one bad registration fails every member's attempt.
    if spec.scala and quarantined:
        raise Refused(Code.OTHER, min(quarantined))
    if spec.assignor.name == "range":
        topics = sorted(members.get(spec.consumer_id, {}))
    else:
        topics = sorted({topic for expanded in members.values() for topic in expanded})
    partitions = yield from _partitions(topics, quarantined)
    return facts.ViewLoaded(order.token, GroupView(True, brokers, members, quarantined, partitions))


def _partitions(
    topics: list[str], quarantined: dict[str, str]
) -> Script[dict[str, tuple[int, ...]]]:
    """Partitions of each topic, watching its znode, or its creation where there is none."""
    paths = [topic_path(topic) for topic in topics]
    nodes = yield from read_many(paths, watch=True)
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, path, found in zip(topics, paths, nodes, strict=True):
        node = found
        while node is None:
            reply = yield from read(Exists(path, watch=True))
            if isinstance(reply, Ok) and reply.value is None:
                break
            (node,) = yield from read_many([path], watch=True)
        if node is None:
            continue
        try:
            partitions[topic] = decode_topic(path, node.data)
        except ZkConsumerError as fault:
            quarantined[path] = str(fault)
    return partitions


def check_owners(order: orders.CheckOwners, ctx: ScriptContext) -> Script[facts.OwnersChecked]:
    """Compare the owner znodes of held partitions with the current session."""
    partitions = sorted(order.partitions)
    nodes = yield from read_many([ctx.spec.paths.owner(tp) for tp in partitions])
    foreign = frozenset(
        tp
        for tp, node in zip(partitions, nodes, strict=True)
        if node is None or node.stat.ephemeral_owner != ctx.session_id
    )
    return facts.OwnersChecked(order.token, foreign)


def watch_blockers(
    order: orders.WatchBlockers, ctx: ScriptContext
) -> Script[facts.BlockersWatched]:
    """Leave a watch on each blocking owner znode; say so when one has gone meanwhile."""
    gone = False
    for tp in sorted(order.partitions):
        reply = yield from read(Exists(ctx.spec.paths.owner(tp), watch=True))
        gone = gone or (isinstance(reply, Ok) and reply.value is None)
    return facts.BlockersWatched(order.token, gone)
