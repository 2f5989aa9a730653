"""Which script carries out which order."""

from __future__ import annotations

from zkconsumer.core import facts, orders
from zkconsumer.core.ops import Code
from zkconsumer.core.scripts import kafka_storage, legacy, membership, ownership, view
from zkconsumer.core.scripts.common import MemberScript, Refused, ScriptContext, SessionGone

ZkOrder = (
    orders.Register
    | orders.LoadView
    | orders.LoadBrokers
    | orders.CheckOwners
    | orders.Commit
    | orders.Release
    | orders.ClaimPartitions
    | orders.WatchBlockers
    | orders.Deregister
)


def script_for(order: ZkOrder, ctx: ScriptContext) -> MemberScript[facts.Fact]:
    """The script of ``order``. It ends with exactly one fact that repeats the order's token."""
    try:
        return (yield from _select(order, ctx))
    except SessionGone:
        return facts.ScriptFailed(order.token, Code.SESSION_EXPIRED)
    except Refused as refusal:
        return facts.ScriptFailed(order.token, refusal.code, refusal.path, refusal.detail)


def _select(order: ZkOrder, ctx: ScriptContext) -> MemberScript[facts.Fact]:
    scala = ctx.spec.scala
    match order:
        case orders.Register():
            return (yield from membership.register(order, ctx))
        case orders.LoadView():
            return (yield from view.load_view(order, ctx))
        case orders.LoadBrokers():
            return (yield from view.load_brokers(order, ctx))
        case orders.CheckOwners():
            return (yield from view.check_owners(order, ctx))
        case orders.Commit():
            if ctx.spec.kafka_storage:
                return (yield from kafka_storage.commit(order, ctx))
            return (yield from (legacy.commit if scala else ownership.commit)(order, ctx))
        case orders.Release():
            return (yield from (legacy.release if scala else ownership.release)(order, ctx))
        case orders.ClaimPartitions():
            if ctx.spec.kafka_storage:
                return (yield from kafka_storage.claim(order, ctx))
            return (yield from (legacy.claim if scala else ownership.claim)(order, ctx))
        case orders.WatchBlockers():
            return (yield from view.watch_blockers(order, ctx))
        case orders.Deregister():
            return (yield from membership.deregister(order, ctx))
