"""The effect of wrong or lowered offsets: findings about writes that were pending until it was
known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Commit, Lifetime, Write
from zkaudit.group.rules.pending import Lowered, Next, Writes, highest
from zkaudit.group.rules.rule import Evidence, Finding, Group, raised
from zkaudit.group.rules.words import clocks, offset_text, partition_of, span, who
from zkaudit.group.rules.writers import Role
from zkaudit.text import hex_of

_SHOWN: Final = 40
"""Number of characters shown of data that is not an offset."""
_REGRESSION: Final = "offset regression"


class _Verdict(NamedTuple):
    """The effect of wrong writes. Ranges of offsets exclude their end."""

    group: Group
    writes: Writes
    extent: int | None
    """As for ``judge_writes``."""
    reached: int | None
    """The position that the partition's owners had reached."""
    again: tuple[int, int] | None = None
    """The range that was delivered again, because the next owner started below that position."""
    lost: tuple[int, int] | None = None
    """The range that was not delivered, because a tool, a client through a broker, or a member
    that never owned the partition had raised the offset and the next owner started there."""
    may_resume: bool = False
    """Whether a tool had raised the offset, and the owner's next offset is above it."""
    may_skip: tuple[int, int] | None = None
    """The range that was not delivered, unless the writer had owned the partition."""
    is_start: bool = False
    """Whether a member started from the offset, and no owner's position is known."""
    is_hidden: bool = False
    """Whether a log gap hides whether a member started from the offset, if this would have an
    effect."""
    is_open: bool = False
    """Whether a member may have skipped or repeated messages."""


def judge_writes(
    group: Group, writes: Writes, extent: int | None, before_gap: bool
) -> Iterator[Finding]:
    """Yield the finding about writes by a session that did not own the partition, if they did harm.

    Args:
        group: the group.
        writes: the writes by the session.
        extent: the number of the topic's partitions, if a tool wrote all of them while the group
            was stopped.
        before_gap: whether transactions are missing after the last row of the partition.
    """
    reached, started, role = writes.reached, writes.started, writes.writer.role
    verdict = _Verdict(group, writes, extent, reached)
    is_first = reached is None and _is_first(group, writes.first)
    is_begin = is_first and not writes.was_claimed  # it only sets the beginning
    if started is not None and reached is not None:
        delivered_to = highest(reached, writes.delivered)
        assert delivered_to is not None
        if started < reached:
            verdict = verdict._replace(again=(started, reached))
        elif writes.writer.skips and started > delivered_to:
            verdict = verdict._replace(lost=(delivered_to, started))
        elif (skipped := _may_skip(writes)) is not None:
            verdict = verdict._replace(may_skip=skipped, is_open=True)
    elif started is not None and role is Role.TOOL:
        if is_begin:
            return
        verdict = verdict._replace(is_start=True, is_open=not is_first)
    if before_gap and writes.next is None and writes.start is None:
        is_hidden = writes.last.offset != reached and not is_begin
        verdict = verdict._replace(is_hidden=is_hidden, is_open=is_hidden)
    if role is Role.TOOL and reached is not None and _may_resume(writes, reached):
        verdict = verdict._replace(may_resume=True, is_open=True)
    yield _finding(verdict)


def _is_first(group: Group, commit: Commit) -> bool:
    """Whether the partition had no offset before a write."""
    return (commit.created or group.is_known(commit.zxid)) and _offset_before(commit) is None


def _may_skip(writes: Writes) -> tuple[int, int] | None:
    """Return the range that a session skipped which may not have owned the partition, and so may
    not have delivered it."""
    before, started, writer = writes.position_before, writes.started, writes.writer
    if writer.role is not Role.ORPHAN or writer.has_owned or before is None or started is None:
        return None
    return (before.offset, started) if started > before.offset else None


def _may_resume(writes: Writes, reached: int) -> bool:
    written, then = writes.last.offset, writes.next
    if written is None or written <= reached or then is None or then.offset is None:
        return False
    return then.offset >= written and then.role in (Role.OWNER, Role.UNKNOWN)


def _finding(verdict: _Verdict) -> Finding:
    writes = verdict.writes
    first, last = writes.first, writes.last
    effect, sentence = _effect(verdict)
    offsets = verdict.lost or verdict.again
    skipped = _skipped(verdict)
    if skipped and effect != "lost" and raised("info", skipped, verdict.group.limits) != "info":
        effect = "unknown"
        if verdict.may_skip is None:
            sentence += f" The offset is {skipped} above the one that its owners had reached."
    return Finding(
        severity=raised(_severity(verdict), skipped, verdict.group.limits),
        kind=_kind(verdict),
        basis="inferred" if _is_inferred(verdict) else "proven",
        sentence=f"{_what(verdict)}{_situation(verdict)}{sentence}",
        evidence=tuple(_evidence(verdict)),
        zxid=first.zxid,
        time=first.time,
        end_zxid=last.zxid if writes.times > 1 else None,
        end_time=last.time if writes.times > 1 else None,
        topic=first.znode.topic,
        partition=first.znode.partition,
        member=writes.writer.member,
        session=first.session,
        effect=effect,
        messages=None if offsets is None else offsets[1] - offsets[0],
    )


def _is_of_itself(writes: Writes) -> bool:
    """Whether the member owned the partition in another session."""
    member = writes.writer.member
    return member is not None and member == _owner_member(writes.first)


def _severity(verdict: _Verdict) -> str:
    writes, role = verdict.writes, verdict.writes.writer.role
    if verdict.lost:
        return "high" if role is Role.BROKER else "critical"
    if role is Role.ZOMBIE and writes.has_changed and not _is_of_itself(writes):
        return "critical"
    if verdict.again:
        return "medium" if role is Role.BROKER else "high"
    if role is Role.ORPHAN and writes.alive != 0:
        return "high"
    if role is Role.ZOMBIE or verdict.is_open or writes.writer.is_past_owner:
        return "medium"
    return "info"


def _skipped(verdict: _Verdict) -> int:
    """Return the number of offsets that were or may be skipped because of the last write."""
    writes, last = verdict.writes, verdict.writes.last.offset
    if (known := verdict.lost or verdict.may_skip) is not None:
        return known[1] - known[0]
    before = writes.position_before if writes.writer.role is Role.ORPHAN else writes.position
    is_repaired = writes.next is not None and not verdict.may_resume
    if last is None or before is None or is_repaired or verdict.again:
        return 0
    return max(0, last - before.offset)


def _kind(verdict: _Verdict) -> str:
    role = verdict.writes.writer.role
    if role is Role.ZOMBIE:
        return "zombie commit"
    if role is Role.ORPHAN:
        return "orphan commit"
    if role is Role.BROKER:
        return "offset written through a broker"
    if verdict.lost:
        return "lost messages"
    return _REGRESSION if verdict.again else "tool write"


def _is_inferred(verdict: _Verdict) -> bool:
    writes, role = verdict.writes, verdict.writes.writer.role
    tool = role is Role.TOOL
    if verdict.lost or verdict.is_open or role is Role.BROKER or writes.first.owner is UNKNOWN:
        return True
    if not tool and writes.writer.member is None:
        return True
    if role is Role.ORPHAN and writes.alive is None:
        return True
    if not verdict.again:
        return False
    before = writes.position_before
    if writes.last.offset is None or (before is not None and not before.is_sure):
        return True
    first = None if writes.start is None else writes.start.first
    reread = first is not None and verdict.reached is not None and first < verdict.reached
    return tool and not reread


def _evidence(verdict: _Verdict) -> Iterator[Evidence]:
    writes = verdict.writes
    first, last, owner = writes.first, writes.last, writes.first.owner
    session = first.session
    yield Evidence("commits", first.zxid, first.idx, session, f"wrote {_written(first)}")
    if writes.times > 1:
        yield Evidence("commits", last.zxid, last.idx, session, f"last wrote {_written(last)}")
    if isinstance(owner, Lifetime) and owner.start_zxid is not None:
        what = "owner at that time"
        yield Evidence("ownership", owner.start_zxid, None, owner.session, what)
    if first.free_since is not None:
        yield Evidence("ownership", first.free_since, None, None, "owner gone")
    if (verdict.lost or verdict.again) and writes.start is not None:
        if writes.position is not None and writes.position.at is not None:
            yield Evidence("commits", writes.position.at, None, None, "position before")
        claim = writes.start.claim
        yield Evidence("ownership", claim.start_zxid, None, claim.session, "next claim")


def _what(verdict: _Verdict) -> str:
    """Return a phrase that names the writer and the data."""
    writes, role = verdict.writes, verdict.writes.writer.role
    first, last, member = writes.first, writes.last, writes.writer.member
    by_broker, tool = role is Role.BROKER, role is Role.TOOL
    if member is not None:
        writer = who(verdict.group.name, member, first.session)
    elif by_broker:
        writer = (
            f"Broker {writes.writer.broker or '?'} (OffsetCommit v0, for a client that the log "
        )
        writer += "does not name)"
    elif tool:
        writer = f"Session {hex_of(first.session)}, which is not a member's,"
    else:
        writer = f"Session {hex_of(first.session)}, which may be a member's that registered before "
        writer += "the logs begin,"
    what = _written(first)
    if writes.times > 1:
        what = f"{writes.times} times, {what} to {_written(last)},"
    verb = "wrote" if tool or by_broker else "committed"
    return f"{writer} {verb} {what} for {partition_of(first.znode)} of group {verdict.group.name}"


def _situation(verdict: _Verdict) -> str:
    """Return a phrase about the owner of the partition."""
    writes, owner = verdict.writes, verdict.writes.first.owner
    if writes.writer.is_import:
        owner = None
    if owner is UNKNOWN:
        return ", whose owner is unknown"
    if owner is None:
        text = " while no member owned it"
        if writes.writer.role is not Role.ORPHAN:
            return text
        if writes.alive is None:
            text += ", members unknown: the logs do not show who was registered before they begin"
            return text
        return f"{text}, members registered then: {writes.alive}"
    session = "?" if owner.session is None else hex_of(owner.session)
    if _is_of_itself(writes):
        return f" although its other session {session} owned it"
    name = "another session" if owner.member is None else f"member {owner.member}"
    return f" although {name} (session {session}) owned it"


def _effect(verdict: _Verdict) -> tuple[str, str]:
    """Return the column ``effect``, and the end of the sentence."""
    writes, reached = verdict.writes, verdict.reached
    extent = ""
    if verdict.extent is not None:
        extent = f" The session wrote all {verdict.extent} partitions of the topic while the group "
        extent += "was stopped."
    if verdict.lost:
        start, offsets = verdict.lost[1], span(*verdict.lost)
        text = f"; {_claimer(writes)} started from it: {offsets} were not delivered."
        if writes.is_restarted:
            text = f"; {_claimer(writes)} claimed the partition next and its first commit is "
            text += f"{start}: up to {offsets} were not delivered."
        if writes.writer.role is Role.BROKER:
            text = f"{text[:-1]}, unless that client delivered them."
        return "lost", text + extent
    if verdict.again:
        where = str(verdict.again[0]) if writes.is_restarted else "it"
        offsets = span(*verdict.again)
        text = f"; {_claimer(writes)} started from {where}: {offsets} were delivered again."
        return "repeated", text + extent
    first, last = writes.first.offset, writes.last.offset
    is_tool = writes.writer.role is Role.TOOL
    restored = is_tool and last is not None and last == reached and first not in (None, last)
    return _harmless(verdict, restored), _ending(verdict, restored)


def _harmless(verdict: _Verdict, restored: bool) -> str:
    writes, last = verdict.writes, verdict.writes.last
    if verdict.may_resume or verdict.may_skip or verdict.is_start or verdict.is_hidden:
        return "unknown"
    if writes.next is not None or restored:
        return "repaired"
    owned = isinstance(writes.first.owner, Lifetime) and not writes.writer.is_import
    if last.offset == verdict.reached or writes.start is not None or not owned:
        return "none"
    return "unknown"


def _ending(verdict: _Verdict, restored: bool) -> str:
    writes = verdict.writes
    if verdict.may_resume:
        assert writes.next is not None
        return (
            f"; the next commit is {writes.next.offset}: the owner may have continued from there."
        )
    if verdict.may_skip:
        return (
            f"; {_claimer(writes)} started from it: {span(*verdict.may_skip)} were not delivered, "
            "unless this session had delivered them."
        )
    if restored:
        return "; its last write restored the offset."
    if verdict.is_start:
        return f"; {_claimer(writes)} started from it, and what the group had reached is unknown."
    if verdict.is_hidden:
        return "; a log gap hides whether a member started from it."
    if writes.writer.role is Role.ORPHAN or writes.last.offset == verdict.reached:
        return "."
    if writes.next is not None:
        return _overwritten(writes.last, writes.next)
    if writes.start is None and writes.writer.role is Role.TOOL:
        return "; no member has started from it."
    return "."


def judge_lowered(group: Group, lowered: Lowered) -> Finding:
    """Return the finding about an offset that was lowered by the owner, or by a session that may be
    the owner."""
    if lowered.writer.role is Role.OWNER:
        return _by_owner(group, lowered)
    return _by_unknown(group, lowered)


def _by_owner(group: Group, lowered: Lowered) -> Finding:
    """Return the finding about an offset that its owner lowered.

    Two threads of a member may commit in any order. A member delivers messages again if it started
    from the lower offset, which a later write between the two offsets shows. The next owner starts
    from it, although its first commit may not show that. An owner whose first commit is lower has
    started below.
    """
    offset, before, then = lowered.commit.offset, lowered.before, lowered.next
    assert offset is not None
    climbs = then is not None and then.offset is not None and offset < then.offset < before
    first = None if lowered.start is None else lowered.start.first
    starts = then is None and lowered.start is not None
    position = lowered.position
    is_sure = position is not None and position.is_sure
    begins = position is not None and position.is_start
    offsets, more = span(offset, before), ""
    if starts and first is not None and first >= before:
        is_sure = False
        offsets += f" were delivered again, unless {_claimer(lowered)}, whose first commit is "
        offsets += f"{first}, began elsewhere."
    elif climbs or starts:
        offsets += " were delivered again."
    elif begins:
        offsets += " are delivered again if it continued there."
    else:
        offsets = f"if a member started from there, {offsets} were delivered again. No later write "
        offsets += "shows that."
    if begins:
        more = " It is the first commit after a claim, so `auto.offset.reset` or a seek may have "
        more += "chosen where the owner began."
    is_again = climbs or starts or begins
    is_shown = climbs or starts or not begins
    return _lowered(
        lowered,
        severity="high" if is_again else "medium",
        basis="proven" if is_sure and is_shown else "inferred",
        sentence=f"{_went_back(group, lowered)}, written by its owner, {_writer(group, lowered)}: "
        f"{offsets}{more}",
        effect="repeated" if is_again else "unknown",
        messages=before - offset if is_again else None,
    )


def _by_unknown(group: Group, lowered: Lowered) -> Finding:
    """Return the finding about a session that may be the owner, rated as if there were an owner."""
    offset, then, start = lowered.commit.offset, lowered.next, lowered.start
    position = lowered.position
    assert offset is not None
    sentence = (
        f"{_went_back(group, lowered)}, written by {_writer(group, lowered)} while the owner is "
    )
    sentence += "unknown"
    by_other = then is not None and then.commit.session != lowered.commit.session
    severity, effect, messages = "high", "unknown", None
    if then is not None and by_other and lowered.own is None:
        severity, effect = "info", "repaired"
        sentence += _overwritten(lowered.commit, then)
    elif then is None and start is not None and position is not None and offset < position.offset:
        effect, messages = "repeated", position.offset - offset
        sentence += f"; {_claimer(lowered)} started from it: {span(offset, position.offset)} were "
        sentence += "delivered again."
    else:
        sentence += ": messages in between may be delivered again."
    return _lowered(
        lowered,
        severity=severity,
        basis="inferred",
        sentence=sentence,
        effect=effect,
        messages=messages,
    )


def _lowered(
    lowered: Lowered,
    *,
    severity: str,
    basis: str,
    sentence: str,
    effect: str,
    messages: int | None = None,
) -> Finding:
    commit = lowered.commit
    return Finding(
        severity=severity,
        kind=_REGRESSION,
        basis=basis,
        sentence=sentence,
        evidence=(
            Evidence("commits", lowered.before_at, None, None, f"wrote {lowered.before}"),
            Evidence("commits", commit.zxid, commit.idx, commit.session,
                     f"{lowered.before} -> {commit.offset}"),
        ),
        zxid=commit.zxid,
        time=commit.time,
        topic=commit.znode.topic,
        partition=commit.znode.partition,
        member=lowered.writer.member,
        session=commit.session,
        effect=effect,
        messages=messages,
    )  # fmt: skip


def _went_back(group: Group, lowered: Lowered) -> str:
    return (
        f"The committed offset of {partition_of(lowered.commit.znode)} of group {group.name} went "
        f"back from {lowered.before} to {lowered.commit.offset}"
    )


def _writer(group: Group, lowered: Lowered) -> str:
    session, member = lowered.commit.session, lowered.writer.member
    return f"session {hex_of(session)}" if member is None else who(group.name, member, session)


def _written(commit: Commit) -> str:
    """Return the written offset, or the data if it is not an offset."""
    if commit.offset is not None:
        return str(commit.offset)
    text = "" if commit.data is None else commit.data.decode("utf-8", "replace")
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}..."
    return f"'{text}', not an offset,"


def _offset_before(commit: Commit) -> int | None:
    return commit.previous.offset if isinstance(commit.previous, Write) else None


def _owner_member(commit: Commit) -> str | None:
    return commit.owner.member if isinstance(commit.owner, Lifetime) else None


def _claimer(pending: Writes | Lowered) -> str:
    """Return the member that claimed the partition next."""
    assert pending.start is not None
    claim = pending.start.claim
    if claim.member is not None:
        return f"member {claim.member}"
    return f"session {'?' if claim.session is None else hex_of(claim.session)}"


def _overwritten(commit: Commit, following: Next) -> str:
    time, seconds = following.commit.time, "?"
    if time is not None and commit.time is not None:
        seconds = f"{(time // 1000 - commit.time // 1000) / 1000:,.1f}"
    return (
        f"; overwritten with {offset_text(following.offset)} {seconds} s later, before any member "
        f"started from it.{clocks(commit.zxid, following.commit.zxid)}"
    )
