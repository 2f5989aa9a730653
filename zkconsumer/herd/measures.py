"""The cost of one membership change, with the same figures for real and simulated runs. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.herd.parameters import HerdGroup
from zkconsumer.herd.tally import BUCKET_US, MemberTally, Sums, Tally

#: Ownership over time is kept for this many partitions at most; a chart shows no more.
TIMELINE_PARTITIONS = 48


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one run, from the event until the group was stable.

    ``seconds_to_stable`` is from the event to the last change of an owner, or ``None`` if
    ``unowned_at_end`` partitions had no owner even then. ``unowned_seconds`` is the time without a
    live owner, summed over all partitions; ``unowned_longest`` is the maximum for a single
    partition. ``stopped`` partitions had no owner for some time; the others were delivered without
    a pause. ``operations`` are znodes read and transactions requested; ``requests`` are packets
    (one may read many znodes).
    """

    mode: str
    profile: str
    event: str
    members: int
    partitions: int
    topics: int
    seed: int
    watches_fired: int
    requests: int
    reads: int
    writes: int
    operations: int
    changes: int
    bytes_out: int
    bytes_in: int
    attempts: int
    failed_attempts: int
    gave_up: int
    conflicts: int
    moved: int
    seconds_to_stable: float | None
    unowned_at_end: int
    unowned_seconds: float
    unowned_longest: float
    stopped: int
    seconds_observed: float
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    by_member: dict[str, dict[str, int]] = field(default_factory=dict)
    requests_per_second: list[float] = field(default_factory=list)
    timeline: dict[str, list[tuple[float, float | None, str]]] = field(default_factory=dict)
    server: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return all figures for ``json.dumps``."""
        return asdict(self)


def _by_second(tenths: list[float]) -> list[float]:
    per = 1_000_000 // BUCKET_US
    return [round(sum(tenths[i : i + per]), 3) for i in range(0, len(tenths), per)]


def _sums(sums: Sums) -> dict[str, int]:
    return {
        "requests": sums.requests,
        "reads": sums.reads,
        "writes": sums.writes,
        "bytes": sums.bytes,
    }


def _share(share: MemberTally) -> dict[str, int]:
    return _sums(share) | {
        "watches_fired": share.watches_fired,
        "attempts": share.attempts,
        "failed_attempts": share.failed_attempts,
        "conflicts": share.conflicts,
    }


def measure(
    tally: Tally,
    partitions: Collection[TopicPartition],
    end_us: int,
    herd: HerdGroup,
    *,
    mode: str,
    seed: int = 0,
    server: dict[str, int] | None = None,
    notes: list[str] | None = None,
) -> Measures:
    """Compute the figures of a run of ``herd``. ``tally``: the counts from the event until
    ``end_us``."""
    start, total, ownership = tally.start, tally.total, tally.ownership
    unowned = ownership.unowned(start, end_us)
    gaps = [unowned.get(tp, end_us - start) for tp in partitions]
    missing = sum(ownership.owner(tp) is None for tp in partitions)
    stable = max(0, ownership.changed_at - start) / 1e6 if not missing else None
    moved = 0
    for spans in ownership.spans.values():
        before = [s for s in spans if s.start < start and (s.end is None or s.end >= start)]
        moved += bool(before) and before[-1].member != spans[-1].member
    shown = sorted(partitions)[:TIMELINE_PARTITIONS]
    timeline = {
        str(tp): [
            (
                round((max(span.start, start) - start) / 1e6, 3),
                None if span.end is None else round((span.end - start) / 1e6, 3),
                span.member,
            )
            for span in ownership.spans.get(tp, ())
            if span.end is None or span.end >= start
        ]
        for tp in shown
    }
    return Measures(
        mode=mode,
        profile=herd.profile,
        event=herd.event,
        members=herd.members,
        partitions=len(partitions),
        topics=herd.topics,
        seed=seed,
        watches_fired=total.watches_fired,
        requests=total.requests,
        reads=total.reads,
        writes=total.writes,
        operations=total.operations,
        changes=total.changes,
        bytes_out=total.bytes_out,
        bytes_in=total.bytes_in,
        attempts=total.attempts,
        failed_attempts=total.failed_attempts,
        gave_up=total.gave_up,
        conflicts=total.conflicts,
        moved=moved,
        seconds_to_stable=None if stable is None else round(stable, 3),
        unowned_at_end=missing,
        unowned_seconds=round(sum(gaps) / 1e6, 3),
        unowned_longest=round(max(gaps, default=0) / 1e6, 3),
        stopped=sum(gap > 0 for gap in gaps),
        seconds_observed=round((end_us - start) / 1e6, 3),
        by_kind={kind: _sums(sums) for kind, sums in sorted(tally.kinds.items())},
        by_member={name: _share(share) for name, share in sorted(tally.members.items())},
        requests_per_second=_by_second(tally.requests()),
        timeline=timeline,
        server=server or {},
        notes=notes or [],
    )
