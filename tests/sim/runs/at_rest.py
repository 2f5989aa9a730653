"""The judges of a simulated ZooKeeper group at rest: its owners, its fetchers and its views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.view import GroupView
from zkconsumer.sim.judges.invariants import Violation


@dataclass(frozen=True, slots=True)
class MemberAtRest:
    """A live member in a group that no longer changes. ``legacy``: of the ``scala`` profile."""

    consumer_id: str
    session: int
    legacy: bool
    fetching: frozenset[TopicPartition]
    view: GroupView | None
    mine: Mapping[TopicPartition, ConsumerThreadId]


def no_orphan(
    at: float,
    partitions: Iterable[TopicPartition],
    owners: Mapping[TopicPartition, int],
    members: Collection[MemberAtRest],
) -> list[Violation]:
    """Every partition has exactly one live owner, and only that owner fetches it.

    A legacy member's partitions may be without an owner, because its attempts are limited.
    """
    found = []
    of_session = {member.session: member for member in members}
    legacy_share = {tp for member in members if member.legacy for tp in member.mine}
    for tp in partitions:
        owner = of_session.get(owners.get(tp, 0))
        fetchers = sorted(m.consumer_id for m in members if tp in m.fetching)
        if owner is None:
            if tp not in legacy_share:
                text = f"{tp}: owned by session {owners.get(tp)}, fetched by {fetchers}"
                found.append(Violation("no_orphan_at_rest", at, text))
        elif fetchers != [owner.consumer_id] and not owner.legacy:
            text = f"{tp}: owned by {owner.consumer_id}, fetched by {fetchers}"
            found.append(Violation("no_orphan_at_rest", at, text))
    return found


def no_member_without_share(
    at: float,
    should: Mapping[TopicPartition, ConsumerThreadId],
    owners: Mapping[TopicPartition, int],
    members: Collection[MemberAtRest],
) -> list[Violation]:
    """Every member of the default profile fetches exactly its part of the assignment ``should``.

    A partition that a legacy member still owns, although it is assigned to another member, is
    ignored.
    """
    found = []
    legacy = {member.session for member in members if member.legacy}
    for member in members:
        if member.legacy:
            continue
        share = {tp for tp, thread in should.items() if thread.consumer == member.consumer_id}
        share = {tp for tp in share if owners.get(tp) not in legacy}
        if share != member.fetching:
            text = (
                f"{member.consumer_id}: lacks {sorted(share - member.fetching)}, "
                f"has too much {sorted(member.fetching - share)}"
            )
            found.append(Violation("no_member_without_share", at, text))
    return found


def no_lost_trigger(
    at: float, truth: Mapping[str, GroupView], members: Collection[MemberAtRest]
) -> list[Violation]:
    """Every member's view equals the one it would read now (``truth``, by consumer id)."""
    return [
        Violation("no_lost_trigger", at, f"{member.consumer_id}: its view is not the tree")
        for member in members
        if not member.legacy and member.view != truth[member.consumer_id]
    ]


__all__ = ["no_lost_trigger", "no_member_without_share", "no_orphan"]
