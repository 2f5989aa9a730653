"""Scripts that claim and release partitions, fenced by the version of the offset znode.

The offset znode is used because a recreated owner znode starts at version 0 again, whereas the
offset znode is persistent and its version only grows. A claim rewrites the stored offset
unchanged, which invalidates all requests that an earlier owner still has in flight. Restored
servers reuse versions; see ``Claim.unchecked`` and ``ZkPort.submit``. While there is no offset
znode, the version of the member's own registration is checked instead. That check succeeds exactly
as long as the session that registered exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Multi,
    MultiOp,
    Node,
    Ok,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Script,
    ScriptContext,
    attempt,
    attempt_all,
    batches,
    ensure_path,
    nodes_of,
    packets,
    read_all,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import decode_offset, encode_offset
from zkconsumer.errors import ZnodeFormatError


def own_check(ctx: ScriptContext, epoch: int) -> Check:
    """Return a check that succeeds in a multi only while the session that registered is alive."""
    return Check(ctx.spec.paths.member(ctx.spec.consumer_id), epoch)


def stored_offset(path: str, node: Node) -> int | None:
    """Return the offset in an offset znode; ``None`` if the number is negative, which means no
    offset.

    Raises ZnodeFormatError.
    """
    offset = decode_offset(path, node.data)
    return offset if offset >= 0 else None


def first_offset(ctx: ScriptContext, tp: TopicPartition, node: Node) -> int | None:
    """Return the offset in ZooKeeper for a claim; ``None`` if offsets are read from Kafka instead.

    Raises ZnodeFormatError.
    """
    if ctx.spec.kafka_storage and not ctx.spec.dual_commit:
        return None
    return stored_offset(ctx.spec.paths.offset(tp), node)


def read_owner_and_offset(
    ctx: ScriptContext, partitions: Iterable[TopicPartition]
) -> MemberScript[dict[TopicPartition, tuple[Node | None, Node | None]]]:
    """Read the owner znode and the offset znode of each partition, the offset first.

    So if this session is the owner, it was still the owner after the offset's version was read. Any
    member that claims the partition later changes that version.
    """
    wanted = list(partitions)
    paths = ctx.spec.paths
    pairs = (path for tp in wanted for path in (paths.offset(tp), paths.owner(tp)))
    replies = yield from read_all(list(batches(pairs)))
    nodes = [node for reply in replies for node in nodes_of(reply)]
    return {tp: (nodes[2 * i + 1], nodes[2 * i]) for i, tp in enumerate(wanted)}


class _Claiming:
    """Progress of one claim command."""

    def __init__(self, command: commands.ClaimPartitions, ctx: ScriptContext) -> None:
        self.ctx = ctx
        self.paths = ctx.spec.paths
        self.check = own_check(ctx, command.epoch)
        self.wanted: Mapping[TopicPartition, ConsumerThreadId] = command.wanted
        self.claims: dict[TopicPartition, Claim] = {}
        self.blocked: dict[TopicPartition, str] = {}
        self.sessions: dict[TopicPartition, int] = {}
        self.outdated: set[TopicPartition] = set()
        self.broken: dict[TopicPartition, str] = {}
        self.unregistered = False
        #: When offsets had changed the last time, at the first look.
        self._changed_ms: dict[TopicPartition, int] = {}
        #: Offsets as they were after the partition was won.
        self.looked: dict[TopicPartition, Node | None] = {}

    def operations(
        self, tp: TopicPartition, owner: Node | None, offset: Node | None
    ) -> tuple[MultiOp, ...] | None:
        """Return the operations that claim ``tp``; ``None`` if it cannot be claimed now."""
        path = self.paths.owner(tp)
        text = str(self.wanted[tp]).encode()
        ops: list[MultiOp] = []
        # DEVIATION-11: the JVM treats an equal text as its own owner znode, in any session.
        if owner is not None and owner.stat.ephemeral_owner != self.ctx.session_id:
            self.blocked[tp] = owner.data.decode(errors="replace")
            self.sessions[tp] = owner.stat.ephemeral_owner
            return None
        if owner is not None and owner.data != text:
            ops.append(Delete(path, owner.stat.version))
            owner = None
        if owner is None:
            ops.append(Create(path, text, ephemeral=True))
        if offset is not None:
            self._changed_ms.setdefault(tp, offset.stat.mtime_ms)
            try:
                first_offset(self.ctx, tp, offset)
            except ZnodeFormatError as fault:
                # DEVIATION-20: in the JVM one unreadable offset fails the attempt.
                self.broken[tp] = str(fault)
                return None
            # DEVIATION-03: the JVM reads offsets before it claims.
            ops.append(SetData(self.paths.offset(tp), offset.data, offset.stat.version))
        return tuple(ops)

    def won(self, tp: TopicPartition, offset: Node | None, last: object) -> None:
        """Record that the multi that contained ``tp`` succeeded."""
        if offset is None:
            self.claims[tp] = Claim(self.wanted[tp], None, None)
            self.ctx.pauses.pop(tp, None)
        else:
            assert isinstance(last, Stat)
            committed = first_offset(self.ctx, tp, offset)
            self.claims[tp] = Claim(self.wanted[tp], last.version, committed)
            topic = self.ctx.decoded.get(tp.topic)
            if committed is not None and topic and offset.stat.mzxid < topic[0].stat.czxid:
                self.outdated.add(tp)
            self.ctx.pauses[tp] = max(0, last.mtime_ms - self._changed_ms[tp]) / 1000


def claim(command: commands.ClaimPartitions, ctx: ScriptContext) -> MemberScript[events.Claimed]:
    """Claim as many free partitions as possible. Return the members that block the others.

    Owner znode and offset are read first. Then packets of partitions are claimed in one multi
    each. If a packet fails, its remaining partitions are read again. The reads decide, so lost
    answers, lost races and changed offsets need no special cases. The packets are sent together,
    followed by the read that ``_touch_new_offsets`` needs.
    """
    state = _Claiming(command, ctx)
    todo = sorted(command.wanted)
    while todo and not state.unregistered:
        znodes = yield from read_owner_and_offset(ctx, todo)
        todo = []
        prepared = []
        for tp, (owner, offset) in znodes.items():
            ops = state.operations(tp, owner, offset)
            if ops == ():
                state.won(tp, None, None)
            elif ops is not None:
                prepared.append((tp, ops))
        ctx.known_paths.update(
            ctx.spec.paths.owners_topic(tp.topic) for tp, (owner, _) in znodes.items() if owner
        )
        yield from _ensure(ctx, state.paths.owners_topic, (tp for tp, _ in prepared))
        new = [
            tp for tp, (_, offset) in znodes.items() if offset is None and tp not in state.blocked
        ]
        looks = list(batches(state.paths.offset(tp) for tp in new))
        # DEVIATION-02: the JVM creates owner znodes one by one; one conflict undoes them all.
        sent = list(packets(prepared))
        replies = yield from attempt_all(
            [*(_multi(state.check, packet) for packet in sent), *looks]
        )
        for packet, reply in zip(sent, replies, strict=False):
            if isinstance(reply, Ok):
                assert isinstance(reply.value, tuple)
                position = 1
                for tp, packet_ops in packet.items():
                    position += len(packet_ops)
                    state.won(tp, znodes[tp][1], reply.value[position - 1])
            elif reply.code in (Code.NO_NODE, Code.BAD_VERSION) and reply.index == 0:
                state.unregistered = True
            else:
                if reply.code is Code.NO_NODE:
                    ctx.known_paths.clear()
                    yield from _ensure(ctx, state.paths.owners_topic, packet)
                todo += packet
        if all(isinstance(reply, Ok) for reply in replies):
            nodes = [node for reply in replies[len(sent) :] for node in nodes_of(reply)]
            state.looked.update(zip(new, nodes, strict=True))
    if not state.unregistered:
        yield from _touch_new_offsets(state)
    return events.Claimed(
        command.token,
        state.claims,
        state.blocked,
        state.broken,
        state.unregistered,
        state.sessions,
        frozenset(state.outdated),
    )


def _ensure(
    ctx: ScriptContext, parent: Callable[[str], str], partitions: Iterable[TopicPartition]
) -> Script[None]:
    """Create the parents of owner znodes or offset znodes, unless they are known to exist."""
    for topic in sorted({tp.topic for tp in partitions}):
        yield from ensure_path(ctx.known_paths, parent(topic))


def _multi(check: Check, packet: Mapping[TopicPartition, list[MultiOp]]) -> Multi:
    return Multi((check, *(op for ops in packet.values() for op in ops)))


def _touch_new_offsets(state: _Claiming) -> Script[None]:
    """Read missing offsets again, because an earlier owner's first commit may have arrived.

    This session now has the owner znode, so it starts from this offset. Rewriting the offset
    fences all later requests of the earlier owner.
    """
    missing = [tp for tp, claim_ in state.claims.items() if claim_.version is None]
    while missing:
        again = [tp for tp in missing if tp not in state.looked]
        nodes = yield from read_many([state.paths.offset(tp) for tp in again])
        state.looked.update(zip(again, nodes, strict=True))
        offsets = {tp: node for tp in missing if (node := state.looked.pop(tp)) is not None}
        missing = []
        for tp, node in offsets.items():
            path = state.paths.offset(tp)
            try:
                committed = first_offset(state.ctx, tp, node)
            except ZnodeFormatError as fault:
                state.broken[tp] = str(fault)
                del state.claims[tp]
                continue
            change = SetData(path, node.data, node.stat.version)
            reply = yield from attempt(_multi(state.check, {tp: [change]}))
            if isinstance(reply, Ok):
                assert isinstance(reply.value, tuple)
                stat = reply.value[1]
                assert isinstance(stat, Stat)
                state.claims[tp] = Claim(state.wanted[tp], stat.version, committed)
            elif reply.index == 0 and reply.code is not Code.CONNECTION_LOSS:
                state.unregistered = True
                return
            else:
                missing.append(tp)


def release(command: commands.Release, ctx: ScriptContext) -> MemberScript[events.Released]:
    """Delete owner znodes of this session.

    Only the session that created an ephemeral znode deletes it. So it is safe to read its owner
    and then delete it, even if other members changed the partition in the meantime (a JVM member's
    claim does not change the offset). The offset's version is checked in the same multi, so that a
    late request does not delete the znode of a member that has claimed the partition since. (While
    there is no offset znode, that can happen only if an operator deletes the owner znode of a
    partition at the moment of its release.)

    Unless the group is mixed, any other member's claim changes the offset. If the version is still
    the one in this member's claim, the owner znode is also this member's, and no read is needed.
    """
    check = own_check(ctx, command.epoch)
    foreign: set[TopicPartition] = set()
    unregistered = False
    todo = sorted(command.claims)

    def deletion(tp: TopicPartition, version: int | None) -> tuple[MultiOp, ...]:
        delete = Delete(ctx.spec.paths.owner(tp))
        if version is None:
            return (delete,)
        return (Check(ctx.spec.paths.offset(tp), version), delete)

    prepared: list[tuple[TopicPartition, tuple[MultiOp, ...]]] = []
    if not command.mixed:
        claims = command.claims.items()
        versions = {tp: claim_.version for tp, claim_ in claims if not claim_.unchecked}
        prepared = [(tp, deletion(tp, at)) for tp in todo if (at := versions.get(tp)) is not None]
        todo = [tp for tp in todo if versions.get(tp) is None]
    while (todo or prepared) and not unregistered:
        if not prepared:
            for tp, (owner, offset) in (yield from read_owner_and_offset(ctx, todo)).items():
                if owner is None:
                    continue
                # DEVIATION-04: the JVM deletes owner znodes by path, even those of other members.
                if owner.stat.ephemeral_owner != ctx.session_id:
                    foreign.add(tp)
                else:
                    prepared.append((tp, deletion(tp, offset.stat.version if offset else None)))
            todo = []
        sent, prepared = list(packets(prepared)), []
        replies = yield from attempt_all([_multi(check, packet) for packet in sent])
        for packet, reply in zip(sent, replies, strict=True):
            if isinstance(reply, Ok):
                continue
            if reply.index == 0 and reply.code in (Code.NO_NODE, Code.BAD_VERSION):
                unregistered = True
                break
            todo += packet
    return events.Released(command.token, frozenset(foreign), unregistered)


def commit(command: commands.Commit, ctx: ScriptContext) -> MemberScript[events.Committed]:
    """Store positions by compare-and-set. No offset is ever lowered.

    A refused version means that another process wrote the offset. If this session still has the
    owner znode, that was a foreign writer (a JVM member that lost the partition, or a tool), and
    the larger offset is kept. Otherwise this member is the previous owner, and the partition is
    fenced. Without an offset znode there is no version to compare, so the owner znode is read
    before the first commit. The same applies after the connection was re-established
    (``Claim.unchecked``).
    """
    check = own_check(ctx, command.epoch)
    paths = ctx.spec.paths
    claims = dict(command.claims)
    fenced: set[TopicPartition] = set()
    foreign: set[TopicPartition] = set()
    broken: dict[TopicPartition, str] = {}
    unregistered = False
    todo: list[TopicPartition] = []
    suspects: list[TopicPartition] = []
    for tp, position in sorted(command.positions.items()):
        held = claims[tp]
        if held.version is None or held.unchecked:
            suspects.append(tp)
        elif held.is_behind(position):
            todo.append(tp)
    if suspects:  # first: saves a refusal for each topic
        yield from ensure_path(ctx.known_paths, paths.offsets)
    yield from _ensure(ctx, paths.offsets_topic, suspects)

    # DEVIATION-05: in the JVM the last writer wins, and offsets may go back.
    def operation(tp: TopicPartition) -> tuple[MultiOp, ...]:
        data = encode_offset(command.positions[tp])
        version = claims[tp].version
        if version is None:
            return (Create(paths.offset(tp), data),)
        return (SetData(paths.offset(tp), data, version),)

    def look_again(tp: TopicPartition, owner: Node | None, offset: Node | None) -> None:
        claimed = claims[tp]
        if owner is None or owner.stat.ephemeral_owner != ctx.session_id:
            fenced.add(tp)
            return
        if offset is None:
            claims[tp] = Claim(claimed.thread, None, None)
            todo.append(tp)
            return
        try:
            stored = stored_offset(paths.offset(tp), offset)
        except ZnodeFormatError as fault:
            broken[tp] = str(fault)
            return
        other = claimed.unchecked and not claimed.lags and stored != claimed.committed
        untouched = offset.stat.version == claimed.version and not other
        older = claimed.unchecked and offset.stat.version < (claimed.version or 0)
        if not (untouched or older) and stored != command.positions[tp]:
            foreign.add(tp)
        current = Claim(
            claimed.thread, offset.stat.version, stored, claimed.invalidated and untouched
        )
        claims[tp] = current
        if current.is_behind(command.positions[tp]):
            todo.append(tp)

    while (todo or suspects) and not unregistered:
        for tp, nodes in (yield from read_owner_and_offset(ctx, suspects)).items():
            look_again(tp, *nodes)
        suspects = []
        sent = list(packets((tp, operation(tp)) for tp in sorted(todo)))
        replies = yield from attempt_all([_multi(check, packet) for packet in sent])
        for packet, reply in zip(sent, replies, strict=True):
            if isinstance(reply, Ok):
                assert isinstance(reply.value, tuple)
                ctx.stored.zookeeper += len(packet)
                for tp, value in zip(packet, reply.value[1:], strict=True):
                    version = value.version if isinstance(value, Stat) else 0
                    claims[tp] = Claim(claims[tp].thread, version, command.positions[tp])
            elif reply.index == 0 and reply.code in (Code.NO_NODE, Code.BAD_VERSION):
                unregistered = True
                break
            else:
                if reply.code is Code.NO_NODE:
                    ctx.known_paths.clear()
                    yield from _ensure(ctx, paths.offsets_topic, packet)
                suspects += packet
        todo.clear()
    settled = {tp: kept for tp, kept in claims.items() if tp not in fenced and tp not in broken}
    return events.Committed(
        command.token, settled, frozenset(fenced), broken, frozenset(foreign), unregistered
    )
