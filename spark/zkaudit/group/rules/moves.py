"""Rules about groups that move between ZooKeeper and Kafka.

``CommitsPastMoves`` is about groups that were stopped and moved (the migration marker). The others
are about live moves. They use only facts in the logs: which mode was written
when and by which session, and which members were registered and had acknowledged it. Only members'
journals show whether a member delivered messages that it should not have.
docs/how-to/move-live.md describes the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import FROM_SNAPSHOT, Commit, Kind, Lifetime, Moment
from zkaudit.group.live_moves import LiveMove, Span, Wait
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import clocks, partition_of, seconds_between, timed
from zkaudit.group.subscriptions import registered
from zkaudit.text import hex_of
from zkconsumer.admin.ids_lock import PROBE_END
from zkconsumer.core.migration.modes import RULES, Mode, neighbours

LOOK_SECONDS: Final = 30
"""Longest time that a tool may take to read a large group. It can miss a member that registers in
that time."""
SHOWN: Final = 5
"""Largest number of members named in a sentence."""
_ORDER: Final = {mode: number for number, mode in enumerate(Mode)}


@dataclass(slots=True)
class _Writes:
    """The writes of one session to an offset after a move."""

    moved_zxid: int
    may_be_back: bool
    """Whether a log gap may hide that the group was moved back before."""
    first: Commit
    last: Commit
    times: int = 1


class CommitsPastMoves(Rule):
    """Finds sessions that wrote offsets to ZooKeeper after the group was moved to Kafka. Writes by
    the migration itself do not count."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._writes: dict[tuple[str, int, int, bool], _Writes] = {}
        """Writes by path, session, move, and whether the group may have been moved back."""

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Count a write after a move."""
        moved_zxid = self.group.moved_to_kafka
        if moved_zxid is not None and commit.kind is Kind.COMMIT:
            back = self.group.may_be_back
            key = commit.znode.path, commit.session, moved_zxid, back
            writes = self._writes.get(key)
            if writes is None:
                self._writes[key] = _Writes(moved_zxid, back, commit, commit)
            else:
                writes.last = commit
                writes.times += 1
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the writes of each session."""
        for writes in self._writes.values():
            if not self.group.is_migration(writes.first):
                yield self._finding(writes)

    def _finding(self, writes: _Writes) -> Finding:
        first, last = writes.first, writes.last
        znode, session = first.znode, first.session
        writer = self.group.member(session) or f"Session {hex_of(session)}"
        offsets = ("?" if commit.offset is None else commit.offset for commit in (first, last))
        begin, newest = offsets
        many = writes.times > 1
        doubt = ", unless it was moved back in a log gap" if writes.may_be_back else ""
        owner = first.owner
        is_owner = owner is UNKNOWN or (owner is not None and owner.session == session)
        unseen = "Members that read their offsets from Kafka do not see it."
        if is_owner:
            unseen = (
                "Members that read their offsets from Kafka do not see it, unless this member "
                "commits to both stores (offsets.storage=kafka, dual.commit.enabled=true)."
            )
        return Finding(
            severity="critical",
            kind="commit past the end of a move",
            basis="inferred" if writes.may_be_back or is_owner else "proven",
            sentence=f"{writer} wrote {writes.times} times to the offset of {partition_of(znode)} "
            f"of group {self.group.name} in ZooKeeper, the last time {newest}, after the group had "
            f"been moved to Kafka{doubt}. {unseen}",
            evidence=(
                Evidence("moves", writes.moved_zxid, what="moved to kafka"),
                Evidence("commits", first.zxid, first.idx, session, f"wrote {begin}"),
            ),
            zxid=first.zxid,
            time=first.time,
            end_zxid=last.zxid if many else None,
            end_time=last.time if many else None,
            topic=znode.topic,
            partition=znode.partition,
            member=self.group.member(session),
            session=session,
        )


class TooEarly(Rule):
    """Finds modes that were written before a member had acknowledged the previous one.

    ``zkmigrate`` reads the group's members after it has written a mode. So it must have known each
    member that was registered at the write. A member that registered later may have joined after
    ``zkmigrate`` read them.
    """

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Check each mode that was replaced by another one."""
        for span, following in pairwise(move.spans):
            end = span.end
            if span.ended != "next mode" or not (span.mode and following.mode and end):
                continue
            if move.coverage.is_missing(span.start.zxid, end.zxid):
                continue
            waits = [
                wait
                for wait in span.waits
                if not wait.acknowledged and wait.end and wait.end.zxid == end.zxid
            ]
            sure = [wait for wait in waits if wait.begin.zxid == span.start.zxid]
            late = sure or [wait for wait in waits if _seconds(wait.begin, end) >= LOOK_SECONDS]
            if late:
                yield self._finding(span, following, late, bool(sure))

    def _finding(self, span: Span, following: Span, late: Sequence[Wait], sure: bool) -> Finding:
        names = sorted({wait.member for wait in late})
        return Finding(
            severity="high" if sure else "medium",
            kind="mode written too early",
            basis="proven" if sure else "inferred",
            sentence=f"Mode {_name(following)} of group {self.group.name} was written while "
            f"{_named(names)} had not acknowledged mode {_name(span)}. Members may have acted on "
            "modes that are two steps apart.",
            evidence=(_wrote(following), *_waited(late)),
            zxid=following.start.zxid,
            time=following.start.time,
            member=names[0] if len(names) == 1 else None,
            session=following.session,
        )


class OutOfOrder(Rule):
    """Finds modes that are unknown, cannot follow the previous one, or were deleted while members
    followed them."""

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Compare each mode with the previous one, and check how it ended."""
        before: Span | None = None
        for span in move.spans:
            if text := self._fault(move, before, span):
                yield self._finding(text, span, span.start, span.session)
            if span.ended == "deleted" and span.end and span.mode not in (None, Mode.ZOOKEEPER):
                followers = {
                    one.znode.name
                    for one in move.of_members(migratable=True)
                    if one.existed_before(span.end.zxid)
                }
                if followers:
                    text = f"The mode znode of group {self.group.name} was deleted in mode "
                    text += f"{_name(span)} while {_named(sorted(followers))} followed it."
                    yield self._finding(text, span, span.end, None)
            before = span

    def _fault(self, move: LiveMove, before: Span | None, span: Span) -> str:
        """Return the fault of a written mode, if any."""
        earlier = Mode.ZOOKEEPER if span.created else None
        if before is not None and before.ended == "next mode" and not span.created:
            earlier = before.mode
        if span.mode is None:
            text = f"The mode znode of group {self.group.name} was given a value that is not a "
            return text + "mode. Its members cannot act on it."
        if earlier is None or span.mode in (earlier, *neighbours(earlier)):
            return ""
        if earlier is Mode.OPEN and span.mode is Mode.ZOOKEEPER:
            ours = move.of_members(migratable=True)
            if not any(one.existed_before(span.start.zxid) for one in ours):
                return ""  # zkmigrate complete
        text = f"Mode {_name(span)} of group {self.group.name} was written after mode "
        text += f"{earlier.value}. Only a change to a neighbouring mode is safe, and zkmigrate "
        return text + "makes no others."

    def _finding(self, text: str, span: Span, at: Moment, session: int | None) -> Finding:
        return Finding(
            severity="high",
            kind="mode out of order",
            basis="proven",
            sentence=text,
            evidence=(_wrote(span),),
            zxid=at.zxid,
            time=at.time,
            session=session,
        )


class WrittenByMembers(Rule):
    """Finds modes that a member wrote. A member may only create the znode with mode
    ``zookeeper``."""

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Check whether the writer of each mode was a member."""
        for span in move.spans:
            if not (span.session and span.mode) or (span.created and span.mode is Mode.ZOOKEEPER):
                continue
            writers = (
                one.znode.name
                for one in move.registrations
                if one.session == span.session
                and _is_consumer(one)
                and one.existed_before(span.start.zxid)
            )
            writer = next(writers, None)
            if writer is not None:
                yield Finding(
                    severity="high",
                    kind="mode written by a member",
                    basis="proven",
                    sentence=f"Member {writer} of group {self.group.name} wrote mode "
                    f"{_name(span)}. Only zkmigrate may do so, because it checks the whole group "
                    "first.",
                    evidence=(_wrote(span),),
                    zxid=span.start.zxid,
                    time=span.start.time,
                    member=writer,
                    session=span.session,
                )


class TwoOperators(Rule):
    """Finds modes that another session reverted while the session that wrote them was still
    open."""

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Compare each mode with the previous and the next one."""
        for (first, span), (_, following) in pairwise(pairwise(move.spans)):
            if not (first.ended == span.ended == "next mode"):
                continue
            if not (first.mode and span.mode and following.mode):
                continue
            forth = _ORDER[span.mode] - _ORDER[first.mode]
            back = _ORDER[following.mode] - _ORDER[span.mode]
            if forth * back >= 0 or span.session == following.session:
                continue
            if 0 in (span.session, following.session):
                continue
            ended = move.closed.get(span.session)
            if ended is not None and ended <= following.start.zxid:
                continue
            if not move.coverage.is_missing(span.start.zxid, following.start.zxid):
                yield self._finding(span, following)

    def _finding(self, span: Span, following: Span) -> Finding:
        return Finding(
            severity="medium",
            kind="two operators",
            basis="inferred",
            sentence=f"Session {hex_of(following.session)} moved group {self.group.name} back from "
            f"mode {_name(span)} to {_name(following)} while session {hex_of(span.session)}, "
            f"which had written {_name(span)}, was still open. Two operators may be working on the "
            "group.",
            evidence=(_wrote(span), _wrote(following)),
            zxid=following.start.zxid,
            time=following.start.time,
            session=following.session,
        )


class Unlocked(Rule):
    """Finds groups that were unlocked in a mode that must keep legacy consumers out."""

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Check the mode at each change of the group's lock."""
        for lock in move.locks:
            span = move.span_at(lock.at.zxid)
            if lock.locked or span is None or span.ended == "unknown" or not _keeps_out(span):
                continue
            yield Finding(
                severity="high",
                kind="unlocked during a move",
                basis="proven",
                sentence=f"Session {hex_of(lock.session)} unlocked the ids of group "
                f"{self.group.name} in mode {_name(span)}. Legacy consumers could register, "
                "although members do not share partitions with them in this mode.",
                evidence=(
                    _wrote(span),
                    Evidence("sessions", lock.at.zxid, None, lock.session, "unlocked"),
                ),
                zxid=lock.at.zxid,
                time=lock.at.time,
                session=lock.session,
            )


class LegacyMembers(Rule):
    """Finds legacy members that were registered in a mode that must keep them out."""

    def live_move(self, move: LiveMove) -> Iterator[Finding]:
        """Check whether legacy members were registered in such a mode."""
        for span in _closed(move.spans):
            for one in move.of_members(migratable=False):
                start = one.start
                if start is UNKNOWN or one.session is None or not _is_consumer(one):
                    continue
                until = None if span.end is None else span.end.zxid
                if one.existed_before(span.start.zxid):
                    yield self._finding(one, start, one.session, span, span, span.start)
                elif start.zxid > span.start.zxid and (until is None or start.zxid < until):
                    mode = move.span_at(start.zxid) or span
                    is_over = mode.ended == "unknown" and self.group.coverage.is_missing(
                        mode.seen_zxid, start.zxid
                    )
                    if not is_over:
                        yield self._finding(one, start, one.session, span, mode, start)

    def _finding(
        self, one: Lifetime, start: Moment, session: int, span: Span, mode: Span, begin: Moment
    ) -> Finding:
        member = one.znode.name
        how = f"registered in mode {_name(mode)}"
        if begin is not start:
            how = f"was still registered when mode {_name(mode)} was written"
        ends = [end for end in (one.end, span.end) if end is not None]
        end = min(ends, key=lambda end: end.zxid, default=None)
        return Finding(
            severity="high",
            kind="legacy member in a locked group",
            basis="inferred" if start.idx == FROM_SNAPSHOT else "proven",
            sentence=f"Member {member} of group {self.group.name}, which is not migratable, {how}. "
            "It follows ZooKeeper's assignment in every mode.",
            evidence=(_wrote(mode), _registered(member, start, session)),
            zxid=begin.zxid,
            time=begin.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            member=member,
            session=session,
        )


class StandsStill(Rule):
    """Finds modes that a member did not acknowledge for a long time, and groups that were left in
    the middle of a move."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._move: LiveMove | None = None

    def live_move(self, move: LiveMove) -> Iterable[Finding]:
        """Keep the modes for ``finish``, because the last mode may last until the end of the
        history."""
        self._move = move
        return ()

    def finish(self, end: Moment) -> Iterator[Finding]:
        """Check how long members took to acknowledge each mode, and how long the mode lasted."""
        for span in self._move.spans if self._move is not None else ():
            if span.mode is None or (span.created and span.mode is Mode.ZOOKEEPER):
                continue  # a group that was never moved
            waits = [
                wait
                for wait in span.waits
                if self._is_long(wait.begin, wait.end or end)
                and not self.group.coverage.is_missing(wait.begin.zxid, (wait.end or end).zxid)
            ]
            between = span.mode in (Mode.LOCKED, Mode.KAFKA) and span.ended != "unknown"
            if waits:
                yield self._unacknowledged(span, waits, end)
            elif between and self._is_long(span.start, span.end or end):
                yield self._left(span, end)

    def _is_long(self, begin: Moment, end: Moment) -> bool:
        return _seconds(begin, end) >= self.group.limits.standstill_seconds

    def _unacknowledged(self, span: Span, waits: Sequence[Wait], now: Moment) -> Finding:
        names = sorted({wait.member for wait in waits})
        begin = min((wait.begin for wait in waits), key=lambda begin: begin.zxid)
        ends = [wait.end for wait in waits if wait.end is not None]
        end = max(ends, key=lambda end: end.zxid) if len(ends) == len(waits) else None
        seconds = max(_seconds(wait.begin, wait.end or now) for wait in waits)
        until = max((wait.end or now).zxid for wait in waits)
        return Finding(
            severity="medium",
            kind="migration stands still",
            basis=timed(begin.zxid, until),
            sentence=f"Mode {_name(span)} of group {self.group.name} was not acknowledged by "
            f"{_named(names)} for {seconds:,.1f} s. Until then the next mode cannot be written."
            + clocks(begin.zxid, until),
            evidence=(_wrote(span), *_waited(waits)),
            zxid=begin.zxid,
            time=begin.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            member=names[0] if len(names) == 1 else None,
        )

    def _left(self, span: Span, now: Moment) -> Finding:
        lasted = "was" if span.end else "has been"
        until = span.end or now
        seconds = _seconds(span.start, until)
        return Finding(
            severity="low",
            kind="migration stands still",
            basis=timed(span.start.zxid, until.zxid),
            sentence=f"Group {self.group.name} {lasted} in mode {_name(span)} for {seconds:,.1f} "
            "s: neither legacy consumers nor plain Kafka consumers can join."
            + clocks(span.start.zxid, until.zxid),
            evidence=(_wrote(span),),
            zxid=span.start.zxid,
            time=span.start.time,
            end_zxid=None if span.end is None else span.end.zxid,
            end_time=None if span.end is None else span.end.time,
            session=span.session or None,
        )


def _keeps_out(span: Span) -> bool:
    """Whether legacy consumers cannot register in a mode."""
    return span.mode is not None and not RULES[span.mode].legacy


def _closed(spans: Iterable[Span]) -> Sequence[Span]:
    """Return the intervals in which legacy consumers are kept out. Successive modes are merged."""
    merged: list[Span] = []
    joined = False
    for span in spans:
        if _keeps_out(span) and joined:
            merged[-1] = replace(merged[-1], end=span.end, ended=span.ended)
        elif _keeps_out(span):
            merged.append(span)
        joined = _keeps_out(span) and span.ended == "next mode"
    return merged


def _is_consumer(one: Lifetime) -> bool:
    """Whether a registration is that of a consumer, not of zkmigrate, which subscribes
    to nothing."""
    wants = bool(registered(one.data).subscription)
    return wants and not one.znode.name.endswith(PROBE_END)


def _seconds(begin: Moment, end: Moment) -> float:
    """Return the seconds between two transactions by the leader's clock; 0 if unknown."""
    return max(0.0, seconds_between(begin.time, end.time))


def _name(span: Span) -> str:
    return "?" if span.mode is None else span.mode.value


def _wrote(span: Span) -> Evidence:
    what = f"wrote mode {_name(span)}"
    return Evidence("migrations", span.start.zxid, span.start.idx, span.session or None, what)


def _registered(member: str, at: Moment, session: int) -> Evidence:
    return Evidence("registrations", at.zxid, None, session, f"{member} was registered")


def _waited(waits: Sequence[Wait]) -> list[Evidence]:
    return [_registered(wait.member, wait.begin, wait.session) for wait in waits[:SHOWN]]


def _named(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
