"""The script for each command."""

from __future__ import annotations

from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Code
from zkconsumer.core.zookeeper.profiles import SCALA, profile_of
from zkconsumer.core.zookeeper.scripts import kafka_storage, legacy, membership, ownership, view
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Refused,
    ScriptContext,
    SessionGone,
)

ScriptCommand = (
    commands.Register
    | commands.LoadView
    | commands.LoadBrokers
    | commands.CheckOwners
    | commands.Commit
    | commands.Release
    | commands.ClaimPartitions
    | commands.WatchBlockers
    | commands.Deregister
)


def script_for(command: ScriptCommand, ctx: ScriptContext) -> MemberScript[events.Event]:
    """The script of ``command``. It ends with one event that repeats the command's token."""
    select = _as_the_jvm if profile_of(ctx.spec) is SCALA else _modern
    try:
        return (yield from select(command, ctx))
    except SessionGone:
        return events.ScriptFailed(command.token, Code.SESSION_EXPIRED)
    except Refused as refusal:
        return events.ScriptFailed(command.token, refusal.code, refusal.path, refusal.detail)


def _modern(command: ScriptCommand, ctx: ScriptContext) -> MemberScript[events.Event]:
    match command:
        case commands.Register():
            return (yield from membership.register(command, ctx))
        case commands.LoadView():
            return (yield from view.load_view(command, ctx))
        case commands.LoadBrokers():
            return (yield from view.load_brokers(command, ctx))
        case commands.CheckOwners():
            return (yield from view.check_owners(command, ctx))
        case commands.Commit() if ctx.spec.kafka_storage:
            return (yield from kafka_storage.commit(command, ctx))
        case commands.Commit():
            return (yield from ownership.commit(command, ctx))
        case commands.Release():
            return (yield from ownership.release(command, ctx))
        case commands.ClaimPartitions() if ctx.spec.kafka_storage:
            return (yield from kafka_storage.claim(command, ctx))
        case commands.ClaimPartitions():
            return (yield from ownership.claim(command, ctx))
        case commands.WatchBlockers():
            return (yield from view.watch_blockers(command, ctx))
        case commands.Deregister():
            return (yield from membership.deregister(command, ctx))


def _as_the_jvm(command: ScriptCommand, ctx: ScriptContext) -> MemberScript[events.Event]:
    """The scripts of the ``scala`` profile. The others it never needs."""
    match command:
        case commands.Register():
            return (yield from legacy.register(command, ctx))
        case commands.LoadView():
            return (yield from legacy.load_view(command, ctx))
        case commands.LoadBrokers():
            return (yield from legacy.load_brokers(command, ctx))
        case commands.Commit() if ctx.spec.kafka_storage:
            return (yield from legacy.commit_in_kafka(command, ctx))
        case commands.Commit():
            return (yield from legacy.commit(command, ctx))
        case commands.Release():
            return (yield from legacy.release(command, ctx))
        case commands.ClaimPartitions() if ctx.spec.kafka_storage:
            return (yield from legacy.claim_with_offsets_in_kafka(command, ctx))
        case commands.ClaimPartitions():
            return (yield from legacy.claim(command, ctx))
        case _:
            return (yield from _modern(command, ctx))
