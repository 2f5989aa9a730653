"""Scripts that only read: the group's view, the brokers, the owners of held partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zkconsumer.core.common.types import BrokerEndpoint, Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.known import Known
from zkconsumer.core.zookeeper.ops import Exists, GetChildren, Listing, Node, Ok, Reply, ZkOp
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Script,
    ScriptContext,
    batches,
    nodes_of,
    read,
    read_all,
    read_many,
)
from zkconsumer.core.zookeeper.view import GroupView
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    broker_path,
    child_number,
    decode_broker,
    decode_registration,
    decode_topic,
    is_ours,
    other_regexes,
    topic_path,
)
from zkconsumer.errors import ZkConsumerError, ZnodeFormatError


def _listed(op: GetChildren, reply: Reply | None = None) -> Script[tuple[str, ...] | Listing]:
    """Return the answer to ``op``. If the path is missing, watch its creation.

    ``reply``: the answer, if it has already arrived.
    """
    while True:
        reply = reply or (yield from read(op))
        if isinstance(reply, Ok):
            assert isinstance(reply.value, tuple | Listing)
            return reply.value  # type: ignore[return-value]
        if not op.watch:
            break
        created = yield from read(Exists(op.path, watch=True))
        if isinstance(created, Ok) and created.value is None:
            break
        reply = None
    return Listing((), 0, 0) if op.counted else ()


def children_of(path: str) -> Script[tuple[str, ...]]:
    """Read the children of a path in ZooKeeper's order, and watch them."""
    names = yield from _listed(GetChildren(path, True))
    assert isinstance(names, tuple)
    return names


def broker_names(listed: Iterable[str]) -> list[str]:
    """Return the names that are broker ids, sorted as text."""
    return [name for name in sorted(listed) if child_number(name) is not None]


def _broker_nodes() -> Script[dict[str, Node]]:
    """Return the brokers' znodes by name. Their list is watched."""
    names = broker_names((yield from children_of(BROKER_IDS)))
    paths = [broker_path(int(name)) for name in names]
    nodes = yield from read_many(paths)
    return {name: node for name, node in zip(names, nodes, strict=True) if node is not None}


def endpoints_of(
    nodes: Mapping[str, Node], quarantined: dict[str, str], ctx: ScriptContext
) -> tuple[BrokerEndpoint, ...]:
    """Return the brokers in these znodes. Unusable ones are added to ``quarantined``."""
    endpoints = []
    for name, node in nodes.items():
        path = broker_path(int(name))
        try:
            endpoints.append(decode_broker(path, int(name), node.data, ctx.listener))
        except ZkConsumerError as fault:
            quarantined[path] = str(fault)
    return tuple(endpoints)


def load_brokers(command: commands.LoadBrokers, ctx: ScriptContext) -> Script[events.BrokersLoaded]:
    """Read ``/brokers/ids`` and leave a watch on the list."""
    nodes = yield from _broker_nodes()
    return events.BrokersLoaded(command.token, endpoints_of(nodes, {}, ctx))


def load_view(command: commands.LoadView, ctx: ScriptContext) -> MemberScript[events.ViewLoaded]:
    """Read brokers, members, registrations and topics of the group, except those that are known.

    Reads that do not depend on each other are sent together: first the lists and this member's
    topics, then the listed znodes. A member whose registration was deleted between listing and
    reading has left; the watch on the list reports it.
    """
    spec, known = ctx.spec, command.known
    quarantined: dict[str, str] = {}
    first = yield from _lists(known, ctx)
    broker_nodes, registrations = yield from _what_is_listed(known, first, ctx)
    brokers, listing = endpoints_of(broker_nodes, quarantined, ctx), first.listing
    if not _is_own(registrations.get(spec.consumer_id), ctx, command.epoch):
        known = Known(broker_nodes, listing, registrations, known.topics)
        return events.ViewLoaded(
            command.token, GroupView(False, brokers, {}, quarantined, {}), known
        )
    listed = {name: registrations[name] for name in listing.names if name in registrations}
    foreign = _foreign(ctx, listed) if spec.bootstrap else {}
    quarantined |= foreign
    ours = {
        name: node for name, node in listed.items() if f"{spec.paths.ids}/{name}" not in foreign
    }
    members = yield from expand_all(ctx, ours, quarantined)
    nodes = yield from topic_nodes(needed_topics(ctx, members), {**known.topics, **first.topics})
    partitions = partitions_of(nodes, quarantined, ctx)
    known = Known(broker_nodes, listing, registrations, nodes)
    doubtful = _doubtful(ctx, ours)
    others = tuple(sorted(foreign))
    mixed = not all(is_ours(node.data) for node in listed.values())
    view = GroupView(True, brokers, members, quarantined, partitions, others, doubtful, mixed)
    return events.ViewLoaded(command.token, view, known)


def _doubtful(ctx: ScriptContext, registrations: Mapping[str, Node]) -> dict[str, str]:
    """Return registrations that members may read differently, by path, with the reason.

    A whitelist has one regex. kafka-node lists several topics in one, of which the JVM's consumer
    reads only the first.
    """
    reasons: dict[str, str] = {}
    for name, node in registrations.items():
        path = f"{ctx.spec.paths.ids}/{name}"
        if several := other_regexes(path, node.data):
            reason = (
                f"has a topic filter with {1 + len(several)} names, which no member of the JVM's "
                "consumer has: only the first counts here and in the JVM, but its member (such as "
                f"kafka-node) reads {several[0]!a} too: give it one topic, or its own group"
            )
            reasons[path] = str(ZnodeFormatError(path, reason))
    return reasons


def _foreign(ctx: ScriptContext, registrations: Mapping[str, Node]) -> dict[str, str]:
    """Return members of other libraries by path, and why they are left out. They read brokers
    and topics from ZooKeeper, so they would compute a different assignment. Members without a
    common topic do no harm."""
    reasons: dict[str, str] = {}
    for name, node in registrations.items():
        path = f"{ctx.spec.paths.ids}/{name}"
        try:
            shares = bool(decode_registration(path, node.data).topics)
        except ZkConsumerError:
            continue  # it is left out anyway
        if shares and not is_ours(node.data):
            reason = (
                "is a member of the JVM's consumer, or of an older zkconsumer, which finds brokers "
                "in ZooKeeper only: all members of a group with zkconsumer.brokers=bootstrap "
                "must use this release of zkconsumer: stop it"
            )
            reasons[path] = str(ZnodeFormatError(path, reason))
    return reasons


def _is_own(node: Node | None, ctx: ScriptContext, epoch: int) -> bool:
    """Whether the registration exists and is still as this session made it."""
    expected = (ctx.session_id, epoch)
    return node is not None and (node.stat.ephemeral_owner, node.stat.version) == expected


@dataclass(frozen=True, slots=True)
class _First:
    """Data that can be read first. ``topics``: this member's existing topics."""

    brokers: list[str]
    listing: Listing
    topics: Mapping[str, Node]


def _lists(known: Known, ctx: ScriptContext) -> MemberScript[_First]:
    """Return names of brokers (unless known) and members, and this member's topics to read."""
    own = ctx.spec.subscription
    static = own.pattern is Pattern.STATIC
    topics = [name for name in sorted(own.topics) if name not in known.topics] if static else []
    brokers = GetChildren(BROKER_IDS, True)
    members = GetChildren(ctx.spec.paths.ids, True, True)
    ops: list[ZkOp] = [] if known.brokers else [brokers]
    ops += batches(map(topic_path, topics), watch=True)
    replies = yield from read_all([*ops, members])
    listing = yield from _listed(members, replies.pop())
    assert isinstance(listing, Listing)
    names: list[str] = []
    if not known.brokers:
        listed = yield from _listed(brokers, replies.pop(0))
        assert isinstance(listed, tuple)
        names = broker_names(listed)
    nodes = [node for reply in replies for node in nodes_of(reply)]
    return _First(names, listing, _existing(topics, nodes))


def _what_is_listed(
    known: Known, first: _First, ctx: ScriptContext
) -> MemberScript[tuple[Mapping[str, Node], Mapping[str, Node]]]:
    """Return brokers' znodes by name, and registrations by consumer id, in ascending order."""
    listing, ids = first.listing, ctx.spec.paths.ids
    still = known.registrations_still(listing)
    new = [name for name in sorted(listing.names) if name not in still]
    members = list(batches(f"{ids}/{name}" for name in new))
    brokers = list(batches(broker_path(int(name)) for name in first.brokers))
    replies = yield from read_all([*members, *brokers])
    nodes = [node for reply in replies for node in nodes_of(reply)]
    registrations = still
    if new or len(still) != len(listing.names):
        registrations = dict(sorted({**still, **_existing(new, nodes)}.items()))
    return known.brokers or _existing(first.brokers, nodes[len(new) :]), registrations


def _existing(names: Iterable[str], nodes: Iterable[Node | None]) -> dict[str, Node]:
    """Return znodes by name, without those that do not exist."""
    return {name: node for name, node in zip(names, nodes, strict=False) if node is not None}


def expand_all(
    ctx: ScriptContext, registrations: Mapping[str, Node], quarantined: dict[str, str]
) -> Script[dict[str, Mapping[str, int]]]:
    """Return each member's topics with their streams; filters are applied to all topics."""
    paths = {member: f"{ctx.spec.paths.ids}/{member}" for member in registrations}
    subscriptions: dict[str, Subscription] = {}
    for member, node in registrations.items():
        try:
            subscriptions[member] = decode_registration(paths[member], node.data)
        except ZkConsumerError as fault:
            quarantined[paths[member]] = str(fault)
    all_topics: tuple[str, ...] = ()
    if any(subscription.pattern is not Pattern.STATIC for subscription in subscriptions.values()):
        all_topics = yield from children_of(BROKER_TOPICS)
    members, unusable = ctx.expansions.of(subscriptions, all_topics, ctx.spec.exclude_internal)
    quarantined |= {
        paths[member]: str(ZnodeFormatError(paths[member], why)) for member, why in unusable.items()
    }
    return members


def needed_topics(ctx: ScriptContext, members: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the topics on which this member's share depends."""
    if ctx.spec.assignor.name == "range":
        return sorted(members.get(ctx.spec.consumer_id, {}))
    distinct = {id(expanded): expanded for expanded in members.values()}
    return sorted({topic for expanded in distinct.values() for topic in expanded})


def topic_nodes(topics: list[str], known: Mapping[str, Node]) -> Script[Mapping[str, Node]]:
    """Read and watch the znodes of topics; watch the creation of those that do not exist."""
    if all(topic in known for topic in topics):
        return known if len(known) == len(topics) else {topic: known[topic] for topic in topics}
    new = [topic for topic in topics if topic not in known]
    nodes = yield from read_many([topic_path(topic) for topic in new], watch=True)
    fresh = dict(zip(new, nodes, strict=True))
    for topic in new:
        while fresh[topic] is None:
            reply = yield from read(Exists(topic_path(topic), watch=True))
            if isinstance(reply, Ok) and reply.value is None:
                break
            (fresh[topic],) = yield from read_many([topic_path(topic)], watch=True)
    merged = {topic: known.get(topic) or fresh[topic] for topic in topics}
    return {topic: node for topic, node in merged.items() if node is not None}


def partitions_of(
    nodes: Mapping[str, Node], quarantined: dict[str, str], ctx: ScriptContext
) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic. Only znodes that were read again are decoded again.

    A topic whose znode has become unusable keeps its earlier partitions.
    """
    partitions: dict[str, tuple[int, ...]] = {}
    decoded: dict[str, tuple[Node, tuple[int, ...]]] = {}
    for topic, node in nodes.items():
        before = ctx.decoded.get(topic)
        try:
            if before is None or before[0] is not node:
                before = (node, decode_topic(topic_path(topic), node.data))
        except ZkConsumerError as fault:
            quarantined[topic_path(topic)] = str(fault)
        if before is not None:
            decoded[topic] = before
            partitions[topic] = before[1]
    ctx.decoded = decoded
    return partitions


def check_owners(command: commands.CheckOwners, ctx: ScriptContext) -> Script[events.OwnersChecked]:
    """Compare the owner znodes of held partitions with the current session."""
    return events.OwnersChecked(command.token, (yield from not_owned(command.partitions, ctx)))


def not_owned(
    partitions: Iterable[TopicPartition], ctx: ScriptContext
) -> Script[frozenset[TopicPartition]]:
    """Return the partitions whose owner znode is missing or belongs to another session."""
    paths = {tp: ctx.spec.paths.owner(tp) for tp in sorted(partitions)}
    nodes = zip(paths, (yield from read_many(paths.values())), strict=True)
    mine = {tp for tp, node in nodes if node and node.stat.ephemeral_owner == ctx.session_id}
    return frozenset(paths.keys() - mine)


def watch_blockers(
    command: commands.WatchBlockers, ctx: ScriptContext
) -> MemberScript[events.BlockersWatched]:
    """Set a watch on each blocking owner znode; report if one was deleted in the meantime."""
    owners = (ctx.spec.paths.owner(tp) for tp in sorted(command.partitions))
    replies = yield from read_all([Exists(owner, watch=True) for owner in owners])
    gone = any(isinstance(reply, Ok) and reply.value is None for reply in replies)
    return events.BlockersWatched(command.token, gone)
