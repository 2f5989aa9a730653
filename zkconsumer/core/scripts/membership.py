"""Scripts that register a member and take its registration away."""

from __future__ import annotations

from zkconsumer.core import facts, orders
from zkconsumer.core.ops import (
    Check,
    Code,
    Create,
    Delete,
    Exists,
    Multi,
    MultiOp,
    Ok,
    SetData,
    Stat,
)
from zkconsumer.core.scripts.common import (
    Refused,
    Script,
    ScriptContext,
    attempt,
    ensure_path,
    read,
)
from zkconsumer.core.znodes import encode_registration


def register(
    order: orders.Register, ctx: ScriptContext
) -> Script[facts.Registered | facts.RegistrationRefused]:
    """Create the registration and bring it to version ``epoch``, in one multi.

    The data's timestamp is the moment of registration (Scala 1.1.1 ZookeeperConsumerConnector
    ``registerConsumerInZK``). When the znode is there already, the session that owns it decides:
    ours means that an earlier answer was lost.
    """
    spec = ctx.spec
    path = spec.paths.member(spec.consumer_id)
    data = encode_registration(spec.subscription, ctx.now_ms())
    create = Create(path, data, ephemeral=True)
    ops: list[MultiOp] = [create]
    ops += [SetData(path, data, version) for version in range(order.epoch)]
    yield from ensure_path(ctx, spec.paths.ids)
    while True:
        reply = yield from attempt(Multi(tuple(ops)) if order.epoch else create)
        if isinstance(reply, Ok):
            return facts.Registered(order.token)
        if reply.code is Code.NO_NODE:
            ctx.known_paths.clear()
            yield from ensure_path(ctx, spec.paths.ids)
        elif reply.code is Code.NODE_EXISTS:
            found = yield from read(Exists(path))
            stat = found.value if isinstance(found, Ok) else None
            if not isinstance(stat, Stat):
                continue
            if stat.ephemeral_owner != ctx.session_id:
                return facts.RegistrationRefused(order.token, stat.ephemeral_owner)
            if stat.version == order.epoch:
                return facts.Registered(order.token)
            yield from attempt(Delete(path, stat.version))
        elif reply.code is not Code.CONNECTION_LOSS:
            raise Refused(reply.code, path)


def deregister(order: orders.Deregister, ctx: ScriptContext) -> Script[facts.Deregistered]:
    """Delete the registration, but only the one that this session made."""
    path = ctx.spec.paths.member(ctx.spec.consumer_id)
    while True:
        reply = yield from attempt(Multi((Check(path, order.epoch), Delete(path, order.epoch))))
        if isinstance(reply, Ok) or reply.code is not Code.CONNECTION_LOSS:
            return facts.Deregistered(order.token)
