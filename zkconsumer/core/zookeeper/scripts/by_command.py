"""The script for each command."""

from __future__ import annotations

from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import ScriptCommand
from zkconsumer.core.zookeeper.ops import Code
from zkconsumer.core.zookeeper.profiles import SCALA, profile_of
from zkconsumer.core.zookeeper.scripts import membership, ownership, view
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Refused,
    ScriptContext,
    SessionGone,
)


def script_for(command: ScriptCommand, ctx: ScriptContext) -> MemberScript[events.Event]:
    """Return the script of ``command``. It ends with one event that repeats the command's token."""
    script: MemberScript[events.Event] | None = None
    if profile_of(ctx.spec) is SCALA:
        from zkconsumer.core.zookeeper.scripts import legacy

        script = legacy.script_for(command, ctx)
    elif ctx.spec.kafka_storage:
        from zkconsumer.core.zookeeper.scripts import kafka_storage

        script = kafka_storage.script_for(command, ctx)
    return answer(command.token, script or _usual(command, ctx))


def _usual(command: ScriptCommand, ctx: ScriptContext) -> MemberScript[events.Event]:
    match command:
        case commands.Register():
            return membership.register(command, ctx)
        case commands.LoadView():
            return view.load_view(command, ctx)
        case commands.LoadBrokers():
            return view.load_brokers(command, ctx)
        case commands.CheckOwners():
            return view.check_owners(command, ctx)
        case commands.Commit():
            return ownership.commit(command, ctx)
        case commands.Release():
            return ownership.release(command, ctx)
        case commands.ClaimPartitions():
            return ownership.claim(command, ctx)
        case commands.WatchBlockers():
            return view.watch_blockers(command, ctx)
        case commands.Deregister():
            return membership.deregister(command, ctx)


def answer(token: int, script: MemberScript[events.Event]) -> MemberScript[events.Event]:
    """Run ``script`` and return its event, or ``ScriptFailed`` with ``token`` and the reason."""
    try:
        return (yield from script)
    except SessionGone:
        return events.ScriptFailed(token, Code.SESSION_EXPIRED)
    except Refused as refusal:
        return events.ScriptFailed(token, refusal.code, refusal.path, refusal.detail)
