"""Scripts that register a member and delete its registration."""

from __future__ import annotations

from zkconsumer.core.zookeeper import commands, events
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
    Reply,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.scripts.common import (
    MemberScript,
    Refused,
    Script,
    ScriptContext,
    attempt,
    attempt_all,
    ensure_path,
    read,
)
from zkconsumer.core.zookeeper.znodes import encode_registration


def register(
    command: commands.Register, ctx: ScriptContext
) -> MemberScript[events.Registered | events.RegistrationRefused]:
    """Create the registration and raise its version to ``epoch``, in one multi.

    Most groups exist already, so the parents are created only if they are missing.

    The data's timestamp is the moment of registration (Scala 1.1.1 ZookeeperConsumerConnector
    ``registerConsumerInZK``). The script then reads which session owns the znode, even if the multi
    succeeded. The client library may have sent the multi in a session that this member does not
    know yet, and the check of the registration would then pass in the wrong session. The read is
    sent right after the multi.
    """
    spec = ctx.spec
    path = spec.paths.member(spec.consumer_id)
    data = encode_registration(spec.subscription, ctx.now_ms(), ours=True)
    create = Create(path, data, ephemeral=True)
    # DEVIATION-13: the JVM's registration keeps version 0.
    ops: list[MultiOp] = [create]
    ops += [SetData(path, data, version) for version in range(command.epoch)]
    request = Multi(tuple(ops)) if command.epoch else create
    look = Exists(path)
    while True:
        reply, lookup = yield from attempt_all([request, look])
        if isinstance(reply, Failed) and reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx.known_paths, spec.paths.ids)
        elif isinstance(reply, Ok) or reply.code is Code.NODE_EXISTS:
            if isinstance(lookup, Failed):
                lookup = yield from read(look)
            if (answer := (yield from judge(command, ctx, lookup))) is not None:
                return answer
        elif reply.code is not Code.CONNECTION_LOSS:
            raise Refused(reply.code, path)


def judge(
    command: commands.Register, ctx: ScriptContext, lookup: Reply
) -> Script[events.Registered | events.RegistrationRefused | None]:
    """Return whether this session owns the registration, as an event; ``None``: create it again. An
    outdated registration of this session is deleted first."""
    stat = lookup.value if isinstance(lookup, Ok) else None
    if not isinstance(stat, Stat):
        return None
    if stat.ephemeral_owner != ctx.session_id:
        return events.RegistrationRefused(command.token, stat.ephemeral_owner)
    if stat.version == command.epoch:
        return events.Registered(command.token)
    gone = Delete(ctx.spec.paths.member(ctx.spec.consumer_id), stat.version)
    yield from attempt(Multi((gone,)))  # it is not sent after a reconnection
    return None


def deregister(command: commands.Deregister, ctx: ScriptContext) -> Script[events.Deregistered]:
    """Delete the registration if this session created it.

    Path and version are not enough: another process with the same ``consumer.id`` uses the same
    path, and in its first session the same version. The owner of the znode decides.
    """
    path = ctx.spec.paths.member(ctx.spec.consumer_id)
    while True:
        lookup = yield from read(Exists(path))
        stat = lookup.value if isinstance(lookup, Ok) else None
        if not isinstance(stat, Stat) or stat.ephemeral_owner != ctx.session_id:
            return events.Deregistered(command.token)
        reply = yield from attempt(Multi((Check(path, command.epoch), Delete(path, command.epoch))))
        if isinstance(reply, Ok) or reply.code is not Code.CONNECTION_LOSS:
            return events.Deregistered(command.token)
