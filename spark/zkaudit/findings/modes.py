"""Rules about groups that migrate while they run, from the modes of one group. Plain Python.

The rules use only facts in the logs: which mode was written when and by which session, and which
members were registered and had acknowledged it. Only members' journals show whether a member
delivered messages that it should not have (``findings.journals``). docs/adr/0006-live-move.md
describes the protocol. No Spark; runs in the driver's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from zkaudit.history.modes import (
    Group,
    LogGaps,
    Moment,
    Registration,
    Span,
    Wait,
    missing_between,
)
from zkconsumer.admin.ids_lock import PROBE_END
from zkconsumer.core.migration.modes import RULES, Mode, neighbours

LOOK_US: Final = 30_000_000
"""Longest time, in microseconds, that a tool may take to read a large group. It can miss a member
that registers in that time."""
SHOWN: Final = 5
"""At most this many members are named in a sentence."""
_ORDER: Final = {mode: number for number, mode in enumerate(Mode)}


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: columns of table ``findings``, and its evidence as tuples (table, zxid, idx,
    session, what)."""

    severity: str
    kind: str
    basis: str
    sentence: str
    begin: Moment
    end: Moment | None
    evidence: tuple[tuple[str, int | None, int | None, int | None, str], ...]
    member: str | None = None
    session: int | None = None


def judge(
    group: Group,
    last: Moment,
    standstill_seconds: float,
    closed: Mapping[int, int | None],
    log_gaps: LogGaps = (),
) -> Iterator[Found]:
    """Yield the findings about a group's live migrations.

    ``last``: the history's last transaction. ``closed``: for each session that wrote a mode, the
    zxid at which it was closed, or ``None``.
    """
    yield from _too_early(group, log_gaps)
    yield from _out_of_order(group)
    yield from _by_members(group)
    yield from _two_operators(group, closed, log_gaps)
    yield from _unlocked(group)
    yield from _legacy(group)
    yield from _standing(group, last, int(standstill_seconds * 1e6), log_gaps)


def _too_early(group: Group, log_gaps: LogGaps) -> Iterator[Found]:
    """Modes that were written while a member had not acknowledged the previous mode.

    The tool reads the group after it has read the previous mode, so it must have seen a member that
    was registered by then. A member that registered later may have joined after that read.
    """
    for span, following in pairwise(group.spans):
        end = span.end
        if span.ended != "next mode" or span.mode is None or following.mode is None or end is None:
            continue
        if missing_between(span.start.zxid, end.zxid, log_gaps):
            continue
        waits = [w for w in span.waits if not w.acknowledged and w.end and w.end.zxid == end.zxid]
        sure = [w for w in waits if w.begin.zxid == span.start.zxid]
        long = [w for w in waits if _seconds(w.begin, end) * 1e6 >= LOOK_US]
        late = sure or long
        if late:
            names = sorted({wait.member for wait in late})
            yield Found(
                "high" if sure else "medium",
                "mode written too early",
                "proven" if sure else "inferred",
                f"Mode {following.mode.value} of group {group.name} was written while "
                f"{_named(names)} had not acknowledged mode {span.mode.value}. Members may have "
                "acted on modes that are two steps apart.",
                following.start,
                None,
                (_wrote(following), *_waited(late)),
                names[0] if len(names) == 1 else None,
                following.session,
            )


def _out_of_order(group: Group) -> Iterator[Found]:
    """Modes that must not follow the previous one, contents that are not a mode, and modes that
    were deleted while members followed them."""

    def wrong(span: Span, text: str, begin: Moment, session: int | None) -> Found:
        evidence = (_wrote(span),)
        return Found(
            "high", "mode out of order", "proven", text, begin, None, evidence, session=session
        )

    before: Span | None = None
    for span in group.spans:
        known = span.created or (before is not None and before.ended == "next mode")
        earlier = None if before is None else before.mode
        if span.created:
            earlier = Mode.ZOOKEEPER
        if span.mode is None:
            text = f"The mode znode of group {group.name} was given a value that is not a mode. "
            text += "Its members cannot act on it."
            yield wrong(span, text, span.start, span.session)
        elif (
            known
            and earlier
            and span.mode not in (earlier, *neighbours(earlier))
            and not _completed(group, earlier, span)
        ):
            text = f"Mode {span.mode.value} of group {group.name} was written after mode "
            text += f"{earlier.value}. Only a change to a neighbouring mode is safe, and zkmigrate "
            text += "makes no others."
            yield wrong(span, text, span.start, span.session)
        if span.ended == "deleted" and span.end and span.mode not in (None, Mode.ZOOKEEPER):
            assert span.mode is not None
            there = [r.member for r in _of(group, True) if r.there(span.end.zxid)]
            if there:
                text = f"The mode znode of group {group.name} was deleted in mode "
                text += f"{span.mode.value} while {_named(sorted(set(there)))} followed it."
                yield wrong(span, text, span.end, None)
        before = span


def _completed(group: Group, earlier: Mode, span: Span) -> bool:
    """Whether ``zkmigrate live complete`` wrote a mode: no migratable member was left then."""
    if earlier is not Mode.OPEN or span.mode is not Mode.ZOOKEEPER:
        return False
    return not any(one.there(span.start.zxid) for one in _of(group, True))


def _by_members(group: Group) -> Iterator[Found]:
    """Modes that a member of the group wrote. Members only create the znode, for ``zookeeper``."""
    for span in group.spans:
        if span.session == 0 or (span.created and span.mode is Mode.ZOOKEEPER):
            continue
        writers = (r for r in group.registrations if r.session == span.session and _consumer(r))
        writer = next((r for r in writers if r.there(span.start.zxid)), None)
        if writer is not None and span.mode is not None:
            yield Found(
                "high",
                "mode written by a member",
                "proven",
                f"Member {writer.member} of group {group.name} wrote mode {span.mode.value}. Only "
                "zkmigrate may do so, because it checks the whole group first.",
                span.start,
                None,
                (_wrote(span),),
                writer.member,
                span.session,
            )


def _two_operators(
    group: Group, closed: Mapping[int, int | None], log_gaps: LogGaps
) -> Iterator[Found]:
    """Modes that another session reverted while the session that wrote them was open."""
    for (first, span), (_, following) in pairwise(pairwise(group.spans)):
        if not (first.ended == span.ended == "next mode"):
            continue
        if first.mode is None or span.mode is None or following.mode is None:
            continue
        there = _ORDER[span.mode] - _ORDER[first.mode]
        back = _ORDER[following.mode] - _ORDER[span.mode]
        if there * back >= 0 or span.session == following.session:
            continue
        if 0 in (span.session, following.session) or span.session not in closed:
            continue
        ended = closed[span.session]
        if ended is not None and ended <= following.start.zxid:
            continue
        if not missing_between(span.start.zxid, following.start.zxid, log_gaps):
            yield Found(
                "medium",
                "two operators",
                "inferred",
                f"Session {_hex(following.session)} moved group {group.name} back from mode "
                f"{span.mode.value} to {following.mode.value} while session {_hex(span.session)}, "
                f"which had written {span.mode.value}, was still open. Two operators may be "
                "working on the group.",
                following.start,
                None,
                (_wrote(span), _wrote(following)),
                session=following.session,
            )


def _unlocked(group: Group) -> Iterator[Found]:
    """Locks of ``ids`` that were removed in a mode that keeps legacy consumers out."""
    for lock in group.locks:
        span = group.span_at(lock.at.zxid)
        if lock.locked or span is None or span.ended == "unknown":
            continue
        if span.mode is not None and not RULES[span.mode].legacy:
            yield Found(
                "high",
                "unlocked during a move",
                "proven",
                f"Session {_hex(lock.session)} unlocked the ids of group {group.name} in mode "
                f"{span.mode.value}. Legacy consumers could register, although members do not "
                "share partitions with them in this mode.",
                lock.at,
                None,
                (_wrote(span), ("sessions", lock.at.zxid, None, lock.session, "unlocked")),
                session=lock.session,
            )


def _closed_spans(group: Group) -> list[Span]:
    """Times in which legacy consumers are kept out. Successive modes count as one."""
    merged: list[Span] = []
    joined = False
    for span in group.spans:
        shut = span.mode is not None and not RULES[span.mode].legacy
        if shut and joined:
            merged[-1] = replace(merged[-1], end=span.end, ended=span.ended)
        elif shut:
            merged.append(span)
        joined = shut and span.ended == "next mode"
    return merged


def _legacy(group: Group) -> Iterator[Found]:
    """Members that are not migratable but registered in a mode that keeps them out."""
    for span in _closed_spans(group):
        for one in _of(group, False):
            if one.start is None or one.session is None or not _consumer(one):
                continue
            was = one.there(span.start.zxid)
            came = one.start.zxid > span.start.zxid and (
                span.end is None or one.start.zxid < span.end.zxid
            )
            if not (was or came):
                continue
            begin = span.start if was else one.start
            mode = span if was else group.span_at(one.start.zxid) or span
            name = mode.mode.value if mode.mode else "?"
            ends = [end for end in (one.end, span.end) if end is not None]
            how = (
                f"was still registered when mode {name} was written"
                if was
                else f"registered in mode {name}"
            )
            yield Found(
                "high",
                "legacy member in a locked group",
                "proven" if one.logged else "inferred",
                f"Member {one.member} of group {group.name}, which is not migratable, {how}. It "
                "follows ZooKeeper's assignment in every mode.",
                begin,
                min(ends, key=lambda end: end.zxid) if ends else None,
                (_wrote(mode), _registered(one.member, one.start, one.session)),
                one.member,
                one.session,
            )


def _standing(group: Group, last: Moment, limit_us: int, log_gaps: LogGaps) -> Iterator[Found]:
    """Modes that a member did not acknowledge for a long time, and groups left in the middle of a
    migration."""
    for span in group.spans:
        if span.mode is None or (span.created and span.mode is Mode.ZOOKEEPER):
            continue  # a group that was never moved
        waits = [
            w
            for w in span.waits
            if _seconds(w.begin, w.end or last) * 1e6 >= limit_us
            and not missing_between(w.begin.zxid, (w.end or last).zxid, log_gaps)
        ]
        if waits:
            names = sorted({wait.member for wait in waits})
            longest = max(waits, key=lambda w: _seconds(w.begin, w.end or last))
            ends = [wait.end for wait in waits if wait.end is not None]
            yield Found(
                "medium",
                "migration stands still",
                "proven",
                f"Mode {span.mode.value} of group {group.name} was not acknowledged by "
                f"{_named(names)} for {_seconds(longest.begin, longest.end or last):,.1f} s. Until "
                "then the next mode cannot be written.",
                min((wait.begin for wait in waits), key=lambda begin: begin.zxid),
                max(ends, key=lambda end: end.zxid) if len(ends) == len(waits) else None,
                (_wrote(span), *_waited(waits)),
                names[0] if len(names) == 1 else None,
            )
        elif span.mode in (Mode.LOCKED, Mode.KAFKA) and span.ended != "unknown":
            seconds = _seconds(span.start, span.end or last)
            if seconds * 1e6 >= limit_us:
                lasted = "was" if span.end else "has been"
                yield Found(
                    "low",
                    "migration stands still",
                    "proven",
                    f"Group {group.name} {lasted} in mode {span.mode.value} for {seconds:,.1f} s: "
                    "neither legacy consumers nor plain Kafka consumers can join.",
                    span.start,
                    span.end,
                    (_wrote(span),),
                    session=span.session or None,
                )


def _of(group: Group, migratable: bool) -> Sequence[Registration]:
    return [
        one
        for one in group.registrations
        if ((one.member, one.session) in group.migratable) is migratable
    ]


def _consumer(one: Registration) -> bool:
    """Whether a consumer, not zkmigrate, made the registration."""
    return one.wants and not one.member.endswith(PROBE_END)


def _seconds(begin: Moment, end: Moment) -> float:
    """Seconds between two transactions by the leader's clock; 0 if unknown."""
    return 0.0 if begin.us is None or end.us is None else max(0, end.us - begin.us) / 1e6


def _wrote(span: Span) -> tuple[str, int, int | None, int | None, str]:
    mode = span.mode.value if span.mode else "?"
    return "migrations", span.start.zxid, span.idx, span.session or None, f"wrote mode {mode}"


def _registered(
    member: str, at: Moment, session: int
) -> tuple[str, int, int | None, int | None, str]:
    return "registrations", at.zxid, None, session, f"{member} was registered"


def _waited(waits: Sequence[Wait]) -> list[tuple[str, int, int | None, int | None, str]]:
    return [_registered(wait.member, wait.begin, wait.session) for wait in waits[:SHOWN]]


def _hex(session: int) -> str:
    return f"0x{session & (1 << 64) - 1:x}"


def _named(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
