"""Rules about members' journals: overlapping deliveries, and different views.

The rows are those of the tables ``deliveries`` and ``views`` for one group. Times are microseconds
by the members' clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from zkaudit.group.records.overlaps import Interval, Overlap, overlaps
from zkaudit.group.rules.rule import Evidence, Finding
from zkaudit.limits import Limits

SHOWN: Final = 5
"""Largest number of members named in a sentence."""

TopicPartition = tuple[str, int]


class Delivery(NamedTuple):
    """A period during which a member delivered messages of a partition: a row of the table
    ``deliveries``."""

    topic: str
    partition: int
    member: str
    session: int | None
    start: int
    end: int
    ended: str
    start_offset: int | None
    end_offset: int | None
    reset: bool
    reset_from: int | None
    reset_to: int | None
    file: str
    line: int

    @property
    def evidence(self) -> Evidence:
        """The line of the journal, as evidence."""
        return Evidence("deliveries", None, None, self.session, _line(self.file, self.line))


class View(NamedTuple):
    """A period during which a member acted on what it had read about the group: a row of the table
    ``views``."""

    member: str
    start: int
    end: int
    members: tuple[str, ...]
    file: str
    line: int


class Committed(NamedTuple):
    """A commit by the owner of a partition: a row of the table ``commits``."""

    topic: str
    partition: int
    member: str
    zxid: int
    idx: int
    time: int | None
    session: int
    offset: int


class Delivered:
    """The messages of a partition that members delivered, according to their journals."""

    def __init__(self, rows: Sequence[Delivery]) -> None:
        self.rows = rows
        self.members = {row.member for row in rows}
        self.reached: int | None = None
        """The offset up to which messages were delivered; ``None`` if the journals do
        not show it."""
        if not any(row.reset or row.end_offset is None for row in rows):
            self.reached = max(row.end_offset or 0 for row in rows)


def by_partition(deliveries: Iterable[Delivery]) -> dict[TopicPartition, list[Delivery]]:
    """Return the deliveries of each partition."""
    grouped: defaultdict[TopicPartition, list[Delivery]] = defaultdict(list)
    for row in deliveries:
        grouped[row.topic, row.partition].append(row)
    return grouped


def are_complete(deliveries: Iterable[Delivery], registered: Iterable[str]) -> bool:
    """Whether all members of a group kept journals that were completely read."""
    is_open: dict[str, bool] = dict.fromkeys(registered, True)
    kept: dict[str, bool] = {}
    for row in deliveries:
        kept[row.member] = kept.get(row.member, False) or row.ended == "open"
    return not any((is_open | kept).values())


def double_deliveries(
    group: str, deliveries: Sequence[Delivery], limits: Limits
) -> Iterator[Finding]:
    """Return the findings about two members that delivered from one partition at the same time, or
    delivered the same messages."""
    skew = max(int(limits.skew_seconds * 1e6), 1)
    reported: list[tuple[frozenset[str], int, int]] = []
    # A reset begins another range of offsets: one microsecond later, the two are not merged.
    times = (Interval(d.member, d.start + d.reset, d.end, d) for d in deliveries)
    for both in overlaps(times):
        if both.end - both.begin >= skew:
            low, high = _shared(both)
            if low is not None and high is not None and high > low:
                reported.append((_pair(both), low, high))
            yield _at_once(group, both, low, high)
    offsets = (
        Interval(d.member, d.start_offset, d.end_offset, d)
        for d in deliveries
        if d.start_offset is not None and d.end_offset is not None
    )
    for again in overlaps(offsets):
        known = any(
            pair == _pair(again) and again.begin < to and again.end > since
            for pair, since, to in reported
        )
        if not known:
            yield _again(group, again)


def _shared(both: Overlap[Delivery]) -> tuple[int | None, int | None]:
    """Return the offsets that both delivered, from the first to the last."""
    starts = [d.start_offset for d in both[:2] if d.start_offset is not None]
    ends = [d.end_offset for d in both[:2] if d.end_offset is not None]
    return max(starts, default=None), min(ends, default=None)


def _at_once(group: str, both: Overlap[Delivery], low: int | None, high: int | None) -> Finding:
    row, other = both.row, both.other
    is_shared = low is not None and high is not None and high > low
    text = "their journals show no message that both delivered."
    if is_shared:
        assert high is not None
        text = f"offsets {low} to {high - 1} were delivered by both."
    return Finding(
        severity="critical" if is_shared else "high",
        kind="overlapping delivery",
        basis="measured",
        sentence=f"Members {row.member} and {other.member} were both delivering messages of "
        f"{row.topic}-{row.partition} of group {group} for "
        f"{(both.end - both.begin) / 1e6:,.1f} s; {text}",
        evidence=(row.evidence, other.evidence),
        zxid=None,
        time=both.begin,
        end_time=both.end,
        topic=row.topic,
        partition=row.partition,
        member=row.member,
        session=row.session,
    )


def _again(group: str, again: Overlap[Delivery]) -> Finding:
    row, other = again.row, again.other
    return Finding(
        severity="low",
        kind="delivered twice",
        basis="measured",
        sentence=f"In {row.topic}-{row.partition} of group {group}, {again.end - again.begin} "
        f"messages (offsets {again.begin} to {again.end - 1}) were delivered by {other.member} "
        f"and by {row.member}, at different times.",
        evidence=(row.evidence, other.evidence),
        zxid=None,
        time=max(row.start, other.start),
        topic=row.topic,
        partition=row.partition,
        member=row.member,
        session=row.session,
    )


def delivery_gaps(group: str, deliveries: Sequence[Delivery]) -> Iterator[Finding]:
    """Return the findings about messages that no member delivered, although a member delivered
    later ones.

    Messages that a reset skipped are left to ``offset_resets``. Call it only if the journals are
    complete (``are_complete``).
    """
    before: Delivery | None = None
    for row in sorted(deliveries, key=lambda d: (d.start, d.end, d.member)):
        # Where a reset led to is unknown if nothing was committed after it.
        if row.reset and row.end_offset is None:
            return
        if before is not None and row.start_offset is not None and not row.reset:
            reached = before.end_offset or 0
            if row.start_offset > reached:
                yield _gap(group, before, row, reached, row.start_offset)
        if row.end_offset is not None and (before is None or _end(row) > _end(before)):
            before = row


def _end(row: Delivery) -> tuple[int, str, int, str, int]:
    return row.end_offset or 0, row.member, row.session or 0, row.file, row.line


def _gap(group: str, before: Delivery, after: Delivery, low: int, high: int) -> Finding:
    return Finding(
        severity="high",
        kind="delivery gap",
        basis="measured",
        sentence=f"In {after.topic}-{after.partition} of group {group} no member delivered "
        f"{high - low} messages (offsets {low} to {high - 1}): {before.member} stopped before "
        f"them, and {after.member} began after them.",
        evidence=(after.evidence, before.evidence),
        zxid=None,
        time=after.start,
        topic=after.topic,
        partition=after.partition,
        member=after.member,
        session=after.session,
        effect="lost",
        messages=high - low,
    )


def offset_resets(group: str, deliveries: Sequence[Delivery]) -> Iterator[Finding]:
    """Return the findings about positions outside the log that ``auto.offset.reset`` replaced.

    A reset because no offset was stored is ignored. If the offset was below the log's start,
    messages were deleted before they were read. If it was above the log's end, the log was
    truncated, the topic was recreated, or a wrong offset was stored.
    """
    last: dict[tuple[str, str], Delivery] = {}
    for row in sorted(deliveries, key=lambda d: (d.start, d.line)):
        before = last.get((row.member, row.file))
        last[row.member, row.file] = row
        reached = before.end_offset if before is not None and before.ended == "reset" else None
        known = reached if row.reset_from is None else row.reset_from
        if row.reset and known is not None:
            yield _reset(group, row, known)


def _reset(group: str, row: Delivery, reached: int) -> Finding:
    before, after = row.reset_from, row.reset_to
    count = None if before is None or after is None else after - before
    severity, basis, effect = "medium", "measured", "unknown"
    if count is None:
        text = " because it was not in the log. Its journal does not show from which offset to "
        text += f"which; it had reached {reached}"
        if row.start_offset is not None:
            text += f", and was at {row.start_offset} when it next committed"
        text += "."
    else:
        text = f" from {before} to {after}, "
        if count > 0:
            severity, effect = "high", "lost"
            text += f"because the log began after it: up to {count} messages were not delivered."
        elif count < 0:
            basis, effect = "inferred", "repeated"
            text += f"because the log ended before it: up to {-count} messages are delivered "
            text += "again, unless the log was truncated or the topic was recreated."
        else:
            severity, effect = "info", "none"
            text += "which has no effect."
    return Finding(
        severity=severity,
        kind="offset reset",
        basis=basis,
        sentence=f"Member {row.member} reset its offset of {row.topic}-{row.partition} of group "
        f"{group}{text}",
        evidence=(row.evidence,),
        zxid=None,
        time=row.start,
        topic=row.topic,
        partition=row.partition,
        member=row.member,
        session=row.session,
        effect=effect,
        messages=None if count is None else abs(count),
    )


def past_delivery(group: str, past: Committed, delivered: int) -> Finding:
    """Return the finding about a member that committed an offset past every delivered message.

    ``past``: its first such commit, with the highest offset.
    """
    count = past.offset - delivered
    return Finding(
        severity="high",
        kind="commit past delivery",
        basis="measured",
        sentence=f"Member {past.member} committed {past.offset} for {past.topic}-{past.partition} "
        f"of group {group}, although the members' journals show deliveries up to {delivered} only: "
        f"{count} messages were committed and not delivered.",
        evidence=(Evidence("commits", past.zxid, past.idx, past.session, f"up to {past.offset}"),),
        zxid=past.zxid,
        time=past.time,
        topic=past.topic,
        partition=past.partition,
        member=past.member,
        session=past.session,
        effect="lost",
        messages=count,
    )


def views_apart(group: str, views: Iterable[View], limits: Limits) -> Iterator[Finding]:
    """Return the findings about members that acted on different views of the group for too long.

    A view counts only from ``view_seconds`` after it was read, because a member that has not yet
    noticed a change will soon read again.
    """
    wait = int(limits.view_seconds * 1e6)
    times = (Interval(view.members, view.start + wait, view.end, view) for view in views)
    for apart in overlaps(times):
        row, other = apart.row, apart.other
        seconds = (apart.end - apart.begin) / 1e6
        yield Finding(
            severity="high",
            kind="members whose views disagree",
            basis="measured",
            sentence=f"For {seconds:,.1f} s two members of group {group} had different views of "
            f"it: {other.member} saw {_names(other.members)}, {row.member} saw "
            f"{_names(row.members)}.",
            evidence=tuple(
                Evidence("views", None, None, None, _line(view.file, view.line))
                for view in (row, other)
            ),
            zxid=None,
            time=apart.begin,
            end_time=apart.end,
            member=row.member,
        )


def _pair(both: Overlap[Delivery]) -> frozenset[str]:
    return frozenset((both.row.member, both.other.member))


def _line(file: str, line: int) -> str:
    """Return name of the file and line. The table has the file's path."""
    return f"{file.rpartition('/')[2]}:{line}"


def _names(members: Sequence[str]) -> str:
    more = ", ..." if len(members) > SHOWN else ""
    return f"{len(members)} ({', '.join(members[:SHOWN])}{more})"
