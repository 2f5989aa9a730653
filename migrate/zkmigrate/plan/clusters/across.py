"""Decides which offsets a mirror stores in another cluster. Pure.

An offset that the mirror stores there carries a mark in its metadata: the offset in the group's
cluster that it stands for, its proof, and the ids of the cluster and of both topics. So the mirror
has no state of its own, and an offset without a mark was committed by another client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from zkconsumer.core.common.types import TopicPartition
from zkmigrate.model import GroupState, KafkaOffset, Store, number
from zkmigrate.plan.clusters.translation import Proof, Translation
from zkmigrate.plan.mirror import reading_of
from zkmigrate.reasons import Reason
from zkmigrate.text import shown

_MARK: Final = "zkmigrate mirror --to-cluster "
Why = tuple[Reason, str]
"""Why an offset is not stored."""


def differing(
    planned: Mapping[TopicPartition, int | None], held: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the partitions whose offset in the other cluster differs from the plan. Partitions
    without an offset there, or without a plan, do not count."""
    return [tp for tp, one in sorted(held.items()) if planned.get(tp, one) != one]


class Copy(NamedTuple):
    """An offset that a mirror has stored in another cluster.

    ``source``: the offset in the group's own cluster, of which ``offset`` is the translation.
    ``ids``: the ids of the cluster and of both topics.
    """

    offset: int
    source: int
    proof: Proof
    ids: str

    @property
    def mark(self) -> str:
        """The metadata with which the offset is committed."""
        return f"{_MARK}{self.offset} {self.source} {self.proof.value} {self.ids}"


def copy_in(held: KafkaOffset) -> Copy | None:
    """Return a committed offset as a copy; ``None`` if it was not committed by a mirror."""
    try:
        offset, source, proof, ids = held.metadata.removeprefix(_MARK).split(" ", 3)
        found = Copy(int(offset), int(source), Proof(proof), ids)
    except ValueError:
        return None
    return found if (found.offset, found.mark) == (held.offset, held.metadata) else None


def positions(
    state: GroupState, lead: Store | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Why]] | Why:
    """Return the offsets to translate, and why other partitions' offsets are not translated. If
    none can be translated, return only the reason.

    ``lead``: the store whose offsets are right. Without it, the stores must not differ, but Kafka
    alone may have offsets.
    """
    reading = reading_of(state)
    source = lead or (Store.ZOOKEEPER if state.offsets(Store.ZOOKEEPER) else Store.KAFKA)
    if (obstacle := reading.obstacle(source)) is not None:
        return obstacle
    every = list(reading.partitions())
    moved_back = state.marker is not None and state.marker.moved_to is Store.ZOOKEEPER
    if lead is None and source is Store.ZOOKEEPER and not moved_back:
        differ = [
            f"{tp}: zookeeper has {reading.offset(Store.ZOOKEEPER, tp)}, kafka {held}"
            for tp in every
            if (held := number(state.kafka.get(tp))) is not None
            and held != reading.offset(Store.ZOOKEEPER, tp)
        ]
        if differ:
            text = "choose the store whose offsets are right with --lead"
            return Reason.CONFLICT, f"{shown(differ)}: {text}"
    found: dict[TopicPartition, int] = {}
    waits: dict[TopicPartition, Why] = {}
    for tp in every:
        here = reading.offset(source, tp)
        if here is None:
            if lead is not None and (held := reading.offset(source.other, tp)) is not None:
                waits[tp] = Reason.CONFLICT, f"only {source.other.value} has an offset, {held}"
        elif source is Store.ZOOKEEPER and reading.is_stale(tp):
            waits[tp] = Reason.RECREATED, f"its topic is younger than {here}"
        else:
            found[tp] = here
    return found, waits


def obstacle_to(offset: int, ids: str, before: Copy | None) -> Why | None:
    """Return why a copy must not be replaced by a translation of ``offset``. ``before``: the
    copy."""
    if before is None:
        return None
    delete = "delete the group's offsets of the topic in the other cluster"
    if before.ids != ids:
        return Reason.RECREATED, f"a topic was recreated since its offset was copied: {delete}"
    if offset < before.source:
        text = f"went back from {before.source} to {offset}, and offsets there are never lowered"
        return Reason.WOULD_LOWER, f"{text}: if this is right, {delete}"
    return None


def next_copy(
    before: Copy | None, found: Iterable[tuple[int, Translation]], lower: bool, ids: str
) -> Copy | Why | None:
    """Return the copy to store; ``None`` if none is better than ``before``. Return the reason if
    the translations contradict each other.

    ``found``: offsets of the group and their translations, the latest last. ``lower``: a lower
    bound is accepted.
    """
    best = before
    for source, one in found:
        proven = one.proof is Proof.PROVEN
        if one.low is None or not (proven or lower):
            continue
        low = one.low
        if best is not None and low < best.offset:
            if proven:
                text = f"{source} is proven to be {low} there, and {best.source} {best.offset}"
                return Reason.NOT_PROVEN, f"{text}, which is not the same order"
            low = best.offset  # the copy of an earlier offset is a lower bound, too
        new = Copy(low, source, one.proof, ids)
        if best is None or _rank(new) > _rank(best):
            best = new
    return None if best == before else best


def lag(offset: int, copy: Copy | None) -> int:
    """Return how far a copy is behind ``offset``, in offsets of the group's own cluster."""
    return offset if copy is None else max(0, offset - copy.source)


def _rank(copy: Copy) -> tuple[int, int, bool]:
    return copy.offset, copy.source, copy.proof is Proof.PROVEN


def in_step(offsets: Mapping[TopicPartition, int], copies: Mapping[TopicPartition, Copy]) -> bool:
    """Whether each partition's offset has an up-to-date copy."""
    return all(tp in copies and copies[tp].source == offset for tp, offset in offsets.items())
