"""Who owned a partition at some time, and the last offset committed before it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.errors import InputMissingError
from zkaudit.group import UNKNOWN, Commit, Lifetime, Moment, Unknown, Write, znode_of
from zkaudit.group.znodes import OFFSETS, OWNERS
from zkaudit.history.committed import Range, within
from zkaudit.history.facts import events_of
from zkaudit.local.events import Session, Sessions, fold_of, sessions_of
from zkaudit.local.history import GroupHistory, Question, inside, read
from zkaudit.sources.rows import sample_of
from zkaudit.sources.selection import milliseconds

_MOST_NAMES: Final = 5
_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """The owner of a partition at a time.

    Args:
        zxid: the group's last transaction up to that time; 0 if there is none.
        owner: the owner znode, from its creation to its end, as far as the logs show them;
            ``None``: the partition had no owner.
        free_since: if there was no owner, when the last owner znode was deleted; ``None``: the logs
            show no earlier owner.
        session: the owner's session.
        offset: the content of the offset znode; ``None``: there was none.
        committed: the write of that offset, if the logs show it.
        unsure: why the answer may be wrong or incomplete, as sentences.
    """

    chroot: str
    topic: str
    partition: int
    zxid: int
    owner: Lifetime | Unknown | None
    free_since: Moment | None
    session: Session | None
    offset: Write | Unknown | None
    committed: Commit | None
    unsure: Sequence[str]
    history: GroupHistory
    sessions: Sessions


def who(question: Question, topic: str, partition: int, at: str) -> list[Answer]:
    """Return who owned a partition at an ISO time (UTC). There is one answer for each chroot in
    which the group has the partition.

    The times in ``question`` are ignored. Raises the errors of ``history.read``, and
    InputMissingError if the logs show no such partition of the group.
    """
    # Later logs are read only if they are needed to say how the ownership ended.
    moment = min(datetime.fromisoformat(at), datetime.max.replace(tzinfo=UTC) - _MS)
    after = (moment + _MS).isoformat(" ")
    question = replace(question, start=at, end=after, options=("--at", "--at"))
    history = read(question)
    group = question.group
    assert group is not None
    answers = _answers(history, group, (topic, partition), milliseconds(at))
    held = [a for a in answers if isinstance(a.owner, Lifetime) and a.owner.end is None]
    if not held or not history.stopped_early:
        return answers
    history = read(replace(question, end=None))
    return _answers(history, group, (topic, partition), milliseconds(at))


def _answers(
    history: GroupHistory, group: str, partition: tuple[str, int], at_ms: int
) -> list[Answer]:
    name = f"{partition[0]}/{partition[1]}"
    roots = [f"{chroot}/consumers/{group}" for chroot in _chroots(history, group, partition)]
    zxid, twice, gap = _position(history, at_ms)
    paths = [f"{root}/{tree}/{name}" for root in roots for tree in (OWNERS, OFFSETS)]
    path = history.rows["path"]
    needed = pc.or_(pc.is_in(path, pa.array(paths)), pc.match_substring(path, "/ids/"))
    events = events_of(history.rows.filter(pc.or_kleene(needed, pc.is_null(path))))
    fold = fold_of(history, events)
    before = [event for event in events if event.zxid <= zxid]
    committed = {}
    for event in before:
        for row in fold.apply(event):
            if isinstance(row, Commit):
                committed[row.znode.path] = row
    owners = [fold.owner(f"{root}/{OWNERS}/{name}", zxid) for root in roots]
    offsets = [fold.offset(f"{root}/{OFFSETS}/{name}", zxid) for root in roots]
    for event in events[len(before) :]:
        fold.apply(event)
    fold.finish()
    doubts = [_doubts(history, owner, twice, gap, zxid) for owner, _ in owners]
    if gap is not None:
        owners = [(UNKNOWN, None) for _ in roots]
        offsets = [UNKNOWN for _ in roots]
    sessions = sessions_of(history)
    times = {event.zxid: event.time for event in before}
    answers = []
    for root, (owner, free_since), offset, unsure in zip(
        roots, owners, offsets, doubts, strict=True
    ):
        commit = committed.get(f"{root}/{OFFSETS}/{name}")
        if commit is None or not isinstance(offset, Write) or offset.zxid != commit.zxid:
            commit = None
        session = owner.session if isinstance(owner, Lifetime) else None
        answers.append(
            Answer(
                root.removesuffix(f"/consumers/{group}"),
                *partition,
                zxid,
                owner,
                None if free_since is None else Moment(free_since, 0, times.get(free_since)),
                None if session is None else sessions[session],
                offset,
                commit,
                unsure,
                history,
                sessions,
            )
        )
    return answers


def _position(history: GroupHistory, at_ms: int) -> tuple[int, bool, Range | None]:
    """Return the last transaction at or before a time. Also return whether a later leader's
    clock was behind, so that the time occurs twice, and the log gap (first and last zxid) that
    contains the time."""
    points = [(history.rows["zxid"].to_numpy(), history.rows["time"].cast(pa.int64()).to_numpy())]
    for run in history.logged:
        if run.first is None or run.last is None:
            continue
        sample = sample_of(run.first, run.last)
        if len(sample) == len(run.times):
            points.append((sample, np.asarray(run.times, np.int64) * 1000))
        edges = [(run.first, run.first_ms), (run.last, run.last_ms)]
        known = np.array([(zxid, ms * 1000) for zxid, ms in edges if ms is not None], np.int64)
        points.append(tuple(known.reshape(-1, 2).T))
    zxids, times = (np.concatenate(column) for column in zip(*points, strict=True))
    kept = ~inside(zxids, history.plan.dropped)
    order = np.argsort(zxids[kept], kind="stable")
    zxids, times = zxids[kept][order], times[kept][order]
    past = np.flatnonzero(times < (at_ms + 1) * 1000)
    if not len(past):
        return 0, False, None
    last = int(past[-1])
    zxid = int(zxids[last])
    following = int(zxids[last + 1]) if last + 1 < len(zxids) else 2**63 - 1
    gaps = ((first, end) for first, end in history.plan.log_gaps if zxid < first < following)
    gap = next(gaps, None) if int(times[last]) // 1000 < at_ms else None
    return zxid, bool((times[:last] >= (at_ms + 1) * 1000).any()), gap


def _chroots(history: GroupHistory, group: str, partition: tuple[str, int]) -> list[str]:
    """Return the chroots in which the group has a partition. Raises InputMissingError if there are
    none."""
    listed = pc.list_flatten(history.rows["deleted"])
    columns = (history.rows["path"], listed, history.nodes["path"])
    paths = {path for column in columns for path in column.unique().to_pylist()}
    znodes = [znode for path in paths if path and (znode := znode_of(path)) is not None]
    mine = [znode for znode in znodes if znode.group == group and znode.tree in (OWNERS, OFFSETS)]
    if here := {z.chroot for z in mine if (z.topic, z.partition) == partition}:
        return sorted(here)
    topic, number = partition
    numbers = sorted({z.partition for z in mine if z.topic == topic and z.partition is not None})
    topics = sorted({znode.topic for znode in mine})
    if numbers:
        known = f"for {topic} they show partitions {numbers[0]} to {numbers[-1]}"
    elif topics:
        near = difflib.get_close_matches(topic, topics, n=3) or topics[:_MOST_NAMES]
        known = f"they show topic{'s' if len(near) > 1 else ''} {', '.join(near)}"
    else:
        known = "they show no partition of this group"
    raise InputMissingError(f"{topic}-{number}: the logs do not show this partition: {known}")


def _doubts(
    history: GroupHistory,
    owner: Lifetime | Unknown | None,
    twice: bool,
    gap: Range | None,
    zxid: int,
) -> list[str]:
    """Return the reasons why the answer is uncertain."""
    unsure = []
    if twice:
        unsure.append(
            "The clock went back when the leader changed, so this time occurs twice. The answer is "
            "for the later one."
        )
    if gap is not None:
        before = "its owner is unknown" if owner is UNKNOWN else "the partition had no owner"
        if isinstance(owner, Lifetime):
            before = f"the owner was {owner.member or 'a member that the logs do not show'}"
        unsure.append(
            f"This time is in a log gap: no log has the transactions {gap[0]:#x} to {gap[1]:#x}. "
            f"Before it, at {zxid:#x}, {before}."
        )
        return unsure
    if owner is UNKNOWN:
        unsure.append("A log gap hides whether the partition had an owner.")
    if not isinstance(owner, Lifetime):
        return unsure
    edges = [moment.zxid for moment in (owner.start, owner.end) if isinstance(moment, Moment)]
    if any(within(zxid, history.plan.unconfirmed) for zxid in edges):
        unsure.append(
            "The claim or its end is not in a majority of the servers' logs: it may never have "
            "been committed."
        )
    if owner.last_seen is not None:
        unsure.append(
            f"A log gap hides how the ownership ended: the owner znode existed at "
            f"{owner.last_seen:#x}."
        )
    return unsure
