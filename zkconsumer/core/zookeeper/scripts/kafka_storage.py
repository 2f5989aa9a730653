"""Claims and commits with ``offsets.storage=kafka``: owners in ZooKeeper, offsets in Kafka.

Rules of Scala 1.1.1 ``fetchOffsets`` and ``commitOffsets``: with ``dual.commit.enabled`` offsets
are written to both stores and the larger one is read; without it only Kafka is used, and ZooKeeper
is not a fallback.

Kafka cannot fence a commit without membership, and stores the last one that arrives. So the default
profile writes offsets to Kafka only after ZooKeeper has confirmed the ownership: with the fenced
commit in dual mode, otherwise by reading the owner znodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Code, Failed, FetchOffsets, StoreOffsets
from zkconsumer.core.zookeeper.scripts import ownership, view
from zkconsumer.core.zookeeper.scripts.common import MemberScript, Refused, ScriptContext

Choice = Callable[[TopicPartition, Claim, int | None], Claim]
"""Returns the claim to use, from a claim with its offset in ZooKeeper, and the offset in Kafka."""
MEMBERSHIP_ENDED: Final = "offsets in Kafka: the member has left the coordinator's group meanwhile"


def claim(command: commands.ClaimPartitions, ctx: ScriptContext) -> MemberScript[events.Claimed]:
    """Claim owner znodes, then read the offsets of the claimed partitions."""
    # DEVIATION-03: the JVM reads offsets before it claims.
    claimed = yield from ownership.claim(command, ctx)
    return (yield from with_offsets(claimed, ctx))


def with_offsets(claimed: events.Claimed, ctx: ScriptContext) -> MemberScript[events.Claimed]:
    """Set each claim's offset to the one in Kafka or, with ``dual.commit.enabled``, to the higher
    of the offsets in Kafka and in ZooKeeper."""

    def choose(_tp: TopicPartition, claim_: Claim, stored: int | None) -> Claim:
        if ctx.spec.dual_commit:
            # DEVIATION-31: the JVM leaves ZooKeeper's offset lower until the position changes.
            return higher(claim_, stored)
        return replace(claim_, committed=stored)

    return choose_offsets(claimed, choose)


def higher(claim_: Claim, stored: int | None) -> Claim:
    """Return the claim with the higher of its offset in ZooKeeper and the offset in Kafka.

    If the offset in ZooKeeper is lower, the next commit raises it, even without new messages.
    """
    if stored is None or (claim_.committed is not None and claim_.committed >= stored):
        return claim_
    return replace(claim_, committed=stored, lags=True)


def choose_offsets(claimed: events.Claimed, choose: Choice) -> MemberScript[events.Claimed]:
    """Read the offsets of the claimed partitions in Kafka, and pass them to ``choose``."""
    if claimed.unregistered:
        return replace(claimed, claims={})  # their offsets are not known
    if not claimed.claims:
        return claimed
    stored = yield from fetch(claimed.claims)
    claims = {tp: choose(tp, claim_, stored[tp]) for tp, claim_ in claimed.claims.items()}
    return replace(claimed, claims=claims)


def fetch(partitions: Iterable[TopicPartition]) -> MemberScript[dict[TopicPartition, int | None]]:
    """Read offsets in Kafka; ``None`` if there is none. Raises Refused."""
    wanted = tuple(sorted(partitions))
    reply = yield FetchOffsets(wanted)
    if isinstance(reply, Failed):
        raise Refused(Code.OTHER, "", reply.detail)
    assert isinstance(reply.value, tuple)
    return {
        tp: offset if isinstance(offset, int) else None
        for tp, offset in zip(wanted, reply.value, strict=True)
    }


def commit(command: commands.Commit, ctx: ScriptContext) -> MemberScript[events.Committed]:
    """Store positions in Kafka and, with ``dual.commit.enabled``, also in ZooKeeper.

    All positions are sent to Kafka, even unchanged ones, because an offset that is not written
    for long enough expires (KAFKA-1510).
    """
    while True:
        if ctx.spec.dual_commit:
            # DEVIATION-27: the JVM writes to Kafka first, even if another member already owns the
            # partition.
            settled = yield from ownership.commit(command, ctx)
        else:
            settled = yield from confirm_owners(command, ctx)
        if settled.unregistered:
            return settled
        try:
            return (yield from store(command, ctx, settled))
        except Outdated:
            command = unchecked(command)


class Outdated(Exception):
    """The connection to ZooKeeper was re-established after the owners were read."""


def unchecked(command: commands.Commit) -> commands.Commit:
    """Return the command with all claims marked ``unchecked``, because their versions are not
    trusted."""
    claims = {tp: replace(claim_, unchecked=True) for tp, claim_ in command.claims.items()}
    return replace(command, claims=claims)


def confirm_owners(command: commands.Commit, ctx: ScriptContext) -> MemberScript[events.Committed]:
    """Read the owner znodes. Return the claims that this session still owns, and the fenced
    partitions."""
    fenced = yield from view.not_owned(command.positions, ctx)
    claims = {
        tp: replace(claim_, unchecked=False)
        for tp, claim_ in command.claims.items()
        if tp not in fenced
    }
    return events.Committed(command.token, claims, fenced)


def store(
    command: commands.Commit, ctx: ScriptContext, settled: events.Committed
) -> MemberScript[events.Committed]:
    """Write to Kafka the offsets that ZooKeeper has confirmed. An offset that Kafka refuses is not
    committed. Raises Outdated."""
    positions = []
    for tp, position in sorted(command.positions.items()):
        if tp in settled.claims:
            stored = settled.claims[tp]
            if stored.committed is not None and not stored.invalidated:
                position = max(position, stored.committed)
            positions.append((tp, position))
    if not positions:
        return settled
    reply = yield StoreOffsets(tuple(positions))
    if reply == Failed(Code.CONNECTION_LOSS):
        raise Outdated
    if isinstance(reply, Failed):
        raise Refused(Code.OTHER, "", reply.detail)
    assert isinstance(reply.value, tuple)
    claims, broken = dict(settled.claims), dict(settled.broken)
    for (tp, position), fault in zip(positions, reply.value, strict=True):
        if isinstance(fault, str):
            broken[tp] = fault
            before = command.claims[tp]
            claims[tp] = replace(
                claims[tp], committed=before.committed, invalidated=before.invalidated
            )
        else:
            ctx.stored.kafka += 1
            claims[tp] = replace(claims[tp], committed=position, invalidated=False)
    return replace(settled, claims=claims, broken=broken)


def script_for(command: Any, ctx: ScriptContext) -> MemberScript[Any] | None:
    """Return the script of ``command``; ``None`` if it is the same as for offsets in ZooKeeper."""
    match command:
        case commands.ClaimPartitions():
            return claim(command, ctx)
        case commands.Commit():
            return commit(command, ctx)
    return None
