"""Scripts of a migratable member. They differ from those of a ZooKeeper group only where the mode
matters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.commands import (
    AckStored,
    LiveRegistered,
    ModeLoaded,
    ReadMode,
    StoreAck,
)
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, encode_member, encode_mode, read_mode
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Failed,
    Multi,
    MultiOp,
    Ok,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.scripts import kafka_storage, ownership
from zkconsumer.core.zookeeper.scripts.by_command import answer, script_for
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Refused,
    Script,
    ScriptContext,
    SessionGone,
    attempt,
    ensure_path,
    read,
)
from zkconsumer.core.zookeeper.znodes import encode_registration
from zkconsumer.errors import ZnodeFormatError

_NAMED: Final = 5
"""Number of members or partitions that a message names."""

Scripts = Callable[[Any, ScriptContext], MemberScript[Any]]


def scripts_of(paths: LivePaths, live: LiveMachine) -> Scripts:
    """Return the script for each command of a migratable member."""

    def select(command: Any, ctx: ScriptContext) -> MemberScript[Any]:
        match command:
            case ReadMode():
                return _read_mode(paths)
            case StoreAck():
                return _store_ack(command, ctx, paths)
            case commands.Register():
                script: MemberScript[Any] = _register(command, ctx, paths)
            case commands.Deregister():
                script = _deregister(command, ctx, paths)
            case commands.ClaimPartitions() if live.mode is not Mode.ZOOKEEPER:
                script = _claim(command, ctx)
            case commands.ClaimPartitions() if live.version <= 0:
                script = _claim_first(command, ctx)
            case commands.Commit() if live.mode is not Mode.ZOOKEEPER:
                script = _commit(command, ctx, live)
            case _:
                return script_for(command, ctx)
        return answer(command.token, script)

    return select


def _mode_of(paths: LivePaths) -> Script[tuple[Mode, int]]:
    """Read the mode and leave a watch. If the group has no mode znode, create it."""
    while True:
        try:
            mode, version = yield from read_mode(paths, watch=True)
        except ZnodeFormatError as error:
            raise Refused(Code.OTHER, paths.mode, str(error)) from None
        if version >= 0:
            return mode, version
        yield from ensure_path(set(), paths.mode.rpartition("/")[0])
        yield from attempt(Create(paths.mode, encode_mode(Mode.ZOOKEEPER)))


def _read_mode(paths: LivePaths) -> Script[ModeLoaded]:
    try:
        return ModeLoaded(*(yield from _mode_of(paths)))
    except (Refused, SessionGone) as error:
        return ModeLoaded(Mode.ZOOKEEPER, -1, str(error))


def _register(
    command: commands.Register, ctx: ScriptContext, paths: LivePaths
) -> Script[LiveRegistered | events.RegistrationRefused]:
    """Register in both places, in one transaction that checks the version of the mode.

    So a new session begins with the current mode. As in a ZooKeeper group, the session that owns
    the znodes decides, even after success.
    """
    spec = ctx.spec
    path, mine = spec.paths.member(spec.consumer_id), paths.member(spec.consumer_id)
    data = encode_registration(spec.subscription, ctx.now_ms(), ours=True)
    while True:
        mode, version = yield from _mode_of(paths)
        ops: list[MultiOp] = [Check(paths.mode, version)]
        ops += [Create(path, data, ephemeral=True), Create(mine, encode_member(None), True)]
        ops += [SetData(path, data, n) for n in range(command.epoch)]
        reply = yield from attempt(Multi(tuple(ops)))
        if isinstance(reply, Failed) and reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx.known_paths, spec.paths.ids)
            yield from ensure_path(ctx.known_paths, paths.members)
        elif isinstance(reply, Ok) or reply.code is Code.NODE_EXISTS:
            znodes = []
            for znode in (path, mine):
                lookup = yield from read(Exists(znode))
                stat = lookup.value if isinstance(lookup, Ok) else None
                if isinstance(stat, Stat):
                    znodes.append((znode, stat))
            for _, stat in znodes:
                if stat.ephemeral_owner != ctx.session_id:
                    return events.RegistrationRefused(command.token, stat.ephemeral_owner)
            if len(znodes) == 2 and znodes[0][1].version == command.epoch:
                return LiveRegistered(command.token, mode, version)
            for znode, stat in znodes:
                yield from attempt(Multi((Delete(znode, stat.version),)))
        elif reply.code not in (Code.CONNECTION_LOSS, Code.BAD_VERSION):
            raise Refused(reply.code, path)


def _deregister(
    command: commands.Deregister, ctx: ScriptContext, paths: LivePaths
) -> Script[events.Deregistered]:
    """Delete both registrations, but only if this session created them."""
    path = ctx.spec.paths.member(ctx.spec.consumer_id)
    for znode in (paths.member(ctx.spec.consumer_id), path):
        while True:
            lookup = yield from read(Exists(znode))
            stat = lookup.value if isinstance(lookup, Ok) else None
            if not isinstance(stat, Stat) or stat.ephemeral_owner != ctx.session_id:
                break
            reply = yield from attempt(
                Multi((Check(path, command.epoch), Delete(znode, stat.version)))
            )
            if isinstance(reply, Ok) or reply.code is not Code.CONNECTION_LOSS:
                break
    return events.Deregistered(command.token)


def _store_ack(command: StoreAck, ctx: ScriptContext, paths: LivePaths) -> Script[AckStored]:
    mine = paths.member(ctx.spec.consumer_id)
    text = encode_member(command.version, command.member_id)
    ops = (ownership.own_check(ctx, command.epoch), SetData(mine, text))
    try:
        while True:
            reply = yield from attempt(Multi(ops))
            if isinstance(reply, Ok):
                return AckStored(command.version)
            if reply.code is not Code.CONNECTION_LOSS:
                return AckStored(command.version, f"{mine}: {reply.code.value}")
    except (Refused, SessionGone) as error:
        return AckStored(command.version, str(error))


def _claim(command: commands.ClaimPartitions, ctx: ScriptContext) -> MemberScript[events.Claimed]:
    """Claim owner znodes. Start at the higher of both offsets."""

    def choose(tp: TopicPartition, claim: Claim, stored: int | None) -> Claim:
        chosen = kafka_storage.higher(claim, stored)
        if chosen is not claim:
            ctx.pauses.pop(tp, None)  # a plain consumer had it, and ZooKeeper does not know when
        return chosen

    claimed = yield from ownership.claim(command, ctx)
    return (yield from kafka_storage.choose_offsets(claimed, choose))


def _claim_first(
    command: commands.ClaimPartitions, ctx: ScriptContext
) -> MemberScript[events.Claimed]:
    """Claim owner znodes in a group whose mode was never changed.

    No migratable member of such a group has committed to Kafka. Higher offsets in Kafka come from
    members with ``offsets.storage=kafka``, or from an earlier use of the group; the member does
    not guess which.
    """
    claimed = yield from ownership.claim(command, ctx)
    if claimed.unregistered or not claimed.claims:
        return claimed
    stored = yield from kafka_storage.fetch(claimed.claims)
    in_zookeeper = {
        tp: claim.committed for tp, claim in claimed.claims.items() if claim.committed is not None
    }
    in_kafka = {tp: offset for tp, offset in stored.items() if offset is not None}
    ahead = lower(in_zookeeper, in_kafka)
    if ahead:
        raise Refused(Code.OTHER, "", ahead_in_kafka(ahead))
    return claimed


def _commit(
    command: commands.Commit, ctx: ScriptContext, live: LiveMachine
) -> MemberScript[events.Committed]:
    """Store positions in Kafka, then in ZooKeeper, because a plain consumer must not find older
    ones.

    Kafka accepts them only from a member of the current generation, and ZooKeeper only from the
    owner. Positions that Kafka refuses are not stored in ZooKeeper either. Positions from before an
    expulsion are not stored, because other members may have owned the partitions in between.
    """
    departures = live.departures
    while True:
        owned = yield from kafka_storage.confirm_owners(command, ctx)
        if live.departures != departures:
            raise Refused(Code.OTHER, "", kafka_storage.MEMBERSHIP_ENDED)
        try:
            stored = yield from kafka_storage.store(command, ctx, owned)
            break
        except kafka_storage.Outdated:
            command = kafka_storage.unchecked(command)
    positions = {
        tp: at
        for tp, at in command.positions.items()
        if tp in owned.claims and tp not in stored.broken
    }
    claims = {tp: command.claims[tp] for tp in positions}
    second = commands.Commit(command.token, command.epoch, positions, claims)
    written = yield from ownership.commit(second, ctx)
    return events.Committed(
        command.token,
        {**written.claims, **{tp: stored.claims[tp] for tp in stored.broken}},
        owned.fenced | written.fenced,
        {**stored.broken, **written.broken},
        written.foreign,
        written.unregistered,
    )


def lower(
    these: Mapping[TopicPartition, int], those: Mapping[TopicPartition, int]
) -> frozenset[str]:
    """Return the partitions whose offset in ``these`` is missing or lower than in ``those``."""
    return frozenset(str(tp) for tp, offset in those.items() if these.get(tp, -1) < offset)


def ahead_in_kafka(partitions: Set[str]) -> str:
    """Return the text for an obstacle: these offsets are higher in Kafka than in ZooKeeper."""
    return (
        f"offsets are higher in Kafka than in ZooKeeper: {named(partitions)}: if members store "
        "them there (offsets.storage=kafka), let all members store them in ZooKeeper again first; "
        "if they are from an earlier use of the group, stop the members and set these offsets with "
        "zkmigrate reset --store kafka; if ZooKeeper was restored from a backup, stop them and run "
        "zkmigrate reset --store both --to-current --all-topics"
    )


def named(names: Set[str]) -> str:
    """Join the first names, and add how many more there are."""
    first = sorted(names)[:_NAMED]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
