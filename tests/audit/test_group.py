"""The fold over a group's events: owners and offsets of each commit, also behind log gaps.

Most tests are histories of a few events. The last ones are random: what the fold says of a history
with log gaps must be true in the whole history.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest
from zkaudit.group import (
    UNKNOWN,
    Act,
    Commit,
    Coverage,
    Ended,
    Event,
    Fold,
    Kind,
    LaterEvents,
    Lifetime,
    Moment,
    Replay,
    Shown,
    Write,
    replay,
    znode_of,
)

from tests.audit.group_histories import RandomGroup, cut

SEED = int(os.environ.get("AUDIT_SEED", "20261121"))
OWNER, OFFSET, IDS = (f"/consumers/g/{name}" for name in ("owners/t/0", "offsets/t/0", "ids/g_c"))


def claim(zxid: int, session: int, idx: int = 0) -> Event:
    """A member creates the owner znode."""
    return Event(zxid, idx, None, session, Act.CREATE, OWNER, b"g_c%d-0" % session, True)


def release(zxid: int, session: int, idx: int = 0) -> Event:
    """A session deletes the owner znode."""
    return Event(zxid, idx, None, session, Act.DELETE, OWNER)


def write(zxid: int, session: int, data: bytes = b"9", idx: int = 0) -> Event:
    """A session writes the offset."""
    return Event(zxid, idx, None, session, Act.SET, OFFSET, data)


def close(zxid: int, session: int, *deleted: str, cxid: int = 7) -> Event:
    """A session ends, and its close lists these znodes."""
    return Event(zxid, 0, None, session, Act.CLOSE, None, cxid=cxid, deleted=deleted)


def shown(zxid: int, path: str, data: bytes, created: int, session: int = 0) -> Shown:
    """A znode in a snapshot."""
    return Shown(zxid, path, data, created, None, created, None, session)


def owners(history: Replay) -> list[object]:
    """The session of the owner at each commit, or why there is none."""
    return [c.owner.session if isinstance(c.owner, Lifetime) else c.owner for c in history.commits]


def previous(commit: Commit) -> object:
    """The offset before a commit, or why there is none."""
    return commit.previous.offset if isinstance(commit.previous, Write) else commit.previous


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([release(2, 1)], Ended.RELEASED),
        ([release(2, 2)], Ended.FOREIGN_DELETE),
        ([close(2, 1, cxid=0)], Ended.EXPIRED),
        ([close(2, 1)], Ended.CLOSED),
        ([close(2, 2)], Ended.STILL_HELD),
        ([], Ended.STILL_HELD),
    ],
)
def test_how_an_owner_ended(events: list[Event], ended: Ended) -> None:
    """Each way in which an ownership interval can end has its own name."""
    assert [lifetime.ended for lifetime in replay([claim(1, 1), *events]).lifetimes] == [ended]


def test_the_first_end_of_a_session_counts() -> None:
    """A second close of the same session ends nothing."""
    history = replay([claim(1, 1), close(2, 1), close(3, 1)])
    assert [lifetime.end and lifetime.end.zxid for lifetime in history.lifetimes] == [2]


def test_the_close_of_an_old_session_does_not_end_a_new_owner() -> None:
    """The znode that another session has created since then stays."""
    history = replay([claim(1, 1), release(2, 1), claim(3, 2), close(4, 1), write(5, 2)])
    assert owners(history) == [2]
    assert [lifetime.ended for lifetime in history.lifetimes] == [Ended.RELEASED, Ended.STILL_HELD]


def test_what_an_offset_was_before_a_log_gap_is_not_what_it_was_just_before_a_write() -> None:
    """After a log gap the previous offset is unknown. So no offset has gone back, and a write of
    the same number counts as a commit. Without a log gap it is an unchanged write."""
    events = [write(1, 1), write(14, 1), write(15, 1)]
    cut, whole = (replay(events, Coverage(gaps)).commits for gaps in ([(3, 14)], []))
    assert [(previous(c), c.kind) for c in cut] == [
        (UNKNOWN, Kind.COMMIT), (UNKNOWN, Kind.COMMIT), (9, Kind.SAME),
    ]  # fmt: skip
    assert [(previous(c), c.kind) for c in whole[1:]] == [(9, Kind.SAME), (9, Kind.SAME)]


def test_a_snapshot_shows_the_offset_before_the_first_write_after_a_log_gap() -> None:
    """It was written before the log gap or in it, and the snapshot after it still has it."""
    history = replay([write(14, 1, b"12")], Coverage([(3, 14)]), [shown(13, OFFSET, b"9", 5)])
    assert [previous(commit) for commit in history.commits] == [9]


def test_a_created_offset_had_none_before() -> None:
    """That is known, unlike the offset before the first write in the logs."""
    created = Event(1, 0, None, 1, Act.CREATE, OFFSET, b"9")
    assert [previous(commit) for commit in replay([created]).commits] == [None]
    assert [previous(commit) for commit in replay([write(1, 1)]).commits] == [UNKNOWN]


def test_a_claim_is_an_unchanged_write_in_the_multi_that_creates_the_owner() -> None:
    """It fences the previous owner and is not a commit."""
    history = replay([write(1, 1), claim(2, 2), write(2, 2, idx=1), write(3, 2)])
    assert [commit.kind for commit in history.commits] == [Kind.COMMIT, Kind.CLAIM, Kind.SAME]


def test_a_member_that_deletes_its_owner_znode_and_commits_in_one_multi() -> None:
    """A multi is atomic, so the member still owns the partition. Another session that deletes the
    znode does not own it. If the logs do not show whose znode it was, the owner is unknown."""
    gap = Coverage([(0, 10)])
    for session, owner in ((1, 1), (2, None)):
        multi = [release(20, session), write(20, session, idx=1)]
        assert owners(replay([claim(10, 1), *multi], gap)) == [owner]
    assert owners(replay([release(20, 1), write(20, 1, idx=1)], gap)) == [UNKNOWN]


def test_the_end_of_a_session_shows_who_owned_before() -> None:
    """The end of a session lists an owner znode that is older than the logs. So its member was the
    owner until then, unless the logs show an earlier change. Afterwards there was no owner."""
    events = [write(10, 2), close(11, 1, OWNER, IDS), write(12, 2), claim(13, 2), write(14, 2)]
    history = replay(events, Coverage([(0, 10)]))
    assert owners(history) == [1, None, 2]
    first = history.commits[0].owner
    assert isinstance(first, Lifetime)
    assert first.member == "g_c"


@pytest.mark.parametrize("early", [[], [claim(2, 1)], [claim(2, 1), release(3, 1)]])
def test_a_claim_before_a_log_gap_does_not_hide_who_owned_behind_it(early: list[Event]) -> None:
    """The end of a session lists its znode behind a log gap, which existed since the gap. Whether
    it is the one that the session had claimed before is unknown, but not whose it was."""
    behind = [write(20, 1), close(21, 1, OWNER, cxid=0), write(22, 2)]
    history = replay([*early, *behind], Coverage([(10, 20)]))
    assert owners(history) == [1, None]
    assert [one.end and one.end.zxid for one in history.lifetimes][-1:] == [21]
    again = replay([*early, write(20, 1), claim(21, 1), close(22, 1, OWNER)], Coverage([(10, 20)]))
    assert owners(again) == [UNKNOWN]
    assert [one.start_zxid for one in again.lifetimes if one.ended is Ended.CLOSED] == [21]


def test_a_plain_delete_does_not_show_who_owned_before() -> None:
    """The znode existed since the log gap, and nothing shows whose it was."""
    history = replay([write(10, 2), release(11, 1), write(12, 2)], Coverage([(0, 10)]))
    assert owners(history) == [UNKNOWN, None]


def test_a_whole_snapshot_shows_that_there_was_no_owner() -> None:
    """From its last transaction on, a znode that it lacks did not exist."""
    history = replay([write(10, 2), write(12, 2)], Coverage([(0, 10)], (None, 11)))
    assert owners(history) == [UNKNOWN, None]


def test_a_whole_snapshot_shows_that_an_owner_is_gone() -> None:
    """A znode from before the log gap that the snapshot after it lacks has ended in the gap, also
    if the log shows the end of its session much later."""
    events = [claim(1, 1), write(10, 2), write(11, 2), close(20, 1)]
    history = replay(events, Coverage([(3, 10), (12, 20)], (0, 10, None)))
    assert owners(history) == [None, None]


def test_a_log_gap_hides_the_end_of_an_owner() -> None:
    """It ended after the last transaction that shows it. Nothing shows who claimed in the gap."""
    history = replay([claim(1, 1), close(20, 1), write(21, 2)], Coverage([(5, 20)]))
    (lifetime,) = history.lifetimes
    assert (lifetime.ended, lifetime.last_seen) == (Ended.UNKNOWN, 5)
    assert owners(history) == [UNKNOWN]


def test_a_snapshot_after_a_log_gap_shows_that_an_owner_is_still_there() -> None:
    """So its end is known, and the commits until then are the owner's."""
    snapshot = [shown(19, OWNER, b"g_c1-0", 1, session=1)]
    events = [claim(1, 1), write(20, 1), close(21, 1)]
    history = replay(events, Coverage([(5, 20)]), snapshot)
    assert [lifetime.ended for lifetime in history.lifetimes] == [Ended.CLOSED]
    assert owners(history) == [1]


def test_a_group_named_offsets_that_only_a_snapshot_shows() -> None:
    """Its znodes have ``/offsets/`` in their paths, as offsets do, and are members and owners."""
    root = "/consumers/offsets"
    snapshot = [
        shown(9, f"{root}/ids/offsets_c", b"{}", 1, session=5),
        shown(9, f"{root}/owners/t/0", b"offsets_c-0", 2, session=5),
    ]
    created = Event(10, 0, None, 9, Act.CREATE, f"{root}/offsets/t/0", b"7")
    history = replay([created], Coverage([(0, 10)]), snapshot)
    assert owners(history) == [5]
    trees = sorted((v.znode.group, v.znode.tree) for v in history.lifetimes)
    assert trees == [("offsets", "ids"), ("offsets", "owners")]


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/c/consumers/g/owners/t/12", ("/c", "g", "owners", "t", 12)),
        ("/consumers/g/offsets/t/0", ("", "g", "offsets", "t", 0)),
        ("/consumers/g/owners/t/7-12", ("", "g", "foreign", "t", 12)),
        ("/consumers/g/owners/b't'/7-12", ("", "g", "foreign", "t", 12)),
        ("/consumers/g/owners/t/name", ("", "g", "foreign", "t", None)),
        ("/consumers/g/ids/c", ("", "g", "ids", "", None)),
        ("/consumers/g/offsets/t/007", None),
        ("/consumers/g/ids/c/d", None),
        ("/consumers/g/owners/t", None),
        ("/brokers/ids/1", None),
    ],
)
def test_the_parts_of_a_path(path: str, parts: tuple[object, ...] | None) -> None:
    """Chroot, group, tree, topic and partition; none for znodes of other kinds."""
    znode = znode_of(path)
    found = znode and (znode.chroot, znode.group, znode.tree, znode.topic, znode.partition)
    assert found == parts


HISTORIES = {
    "whole": ([claim(1, 1), write(2, 1), release(3, 1), write(4, 2), claim(5, 3), close(6, 3)], ()),
    "begins late": ([write(11, 1), close(12, 1, OWNER), claim(14, 2), write(15, 2)], ((0, 11),)),
    "has a gap": ([claim(1, 1), write(2, 1), write(9, 1), close(12, 1), claim(13, 2)], ((2, 9),)),
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("snapshot", [False, True])
def test_the_state_after_a_transaction_is_what_a_commit_shows(name: str, snapshot: bool) -> None:
    """``Fold.owner`` and ``Fold.offset`` are the owner and the previous offset of a commit of
    another session just behind the transaction."""
    events, log_gaps = HISTORIES[name]
    begin = max((first for _, first in log_gaps), default=1)
    seen = [shown(begin - 1, OWNER, b"g_c1-0", 1, 1), shown(begin - 1, OFFSET, b"7", 1)]
    seen = seen if snapshot and begin > 1 else []
    known = (0, begin - 1) if seen and log_gaps else (0,) * (1 - len(log_gaps)) + (None,)
    coverage = Coverage(log_gaps, known)
    for zxid in range(events[0].zxid, events[-1].zxid + 1):
        if coverage.log_gaps and coverage.log_gaps[0][0] < zxid < begin:
            continue
        past = [event for event in events if event.zxid <= zxid]
        later = LaterEvents(coverage, seen)
        for event in events:
            later.read(event)
        states, commits = (Fold(coverage, seen, later) for _ in range(2))
        for event in past:
            states.apply(event)
            commits.apply(event)
        probe = Event(zxid, 2**31 - 1, None, 99, Act.SET, OFFSET, b"probe")
        (commit,) = (row for row in commits.apply(probe) if isinstance(row, Commit))
        owner, free_since = states.owner(OWNER, zxid)
        sessions = [o.session if isinstance(o, Lifetime) else o for o in (owner, commit.owner)]
        assert sessions[0] == sessions[1], zxid
        assert free_since == commit.free_since, zxid
        offset = states.offset(OFFSET, zxid)
        before = None if commit.previous is UNKNOWN and offset is None else commit.previous
        assert offset == before, zxid


@pytest.mark.parametrize("batch", range(10))
def test_what_is_said_of_a_cut_history_is_true_in_the_whole_one(batch: int) -> None:
    """From a cut history, lifetimes with a known beginning and end, and owners and previous offsets
    of commits, are still right. Snapshots show some previous offsets."""
    shown = 0
    for number in range(batch * 50, batch * 50 + 50):
        rng = random.Random(SEED + number)
        group = RandomGroup(rng, "g", steps=150)
        events, log_gaps = cut(rng, [group])
        whole, part = replay(group.events), replay(events, Coverage(log_gaps), group.shown)
        _compare_lifetimes(whole, part, f"AUDIT_SEED={SEED + number}")
        _compare_commits(whole, part, f"AUDIT_SEED={SEED + number}")
        alone = replay(events, Coverage(log_gaps)).commits
        shown += sum(
            a.previous is UNKNOWN and b.previous is not UNKNOWN
            for a, b in zip(alone, part.commits, strict=True)
        )
    assert shown


def _compare_lifetimes(whole: Replay, part: Replay, seed: str) -> None:
    every = {(v.znode.path, v.start_zxid): v for v in whole.lifetimes}
    for lifetime in part.lifetimes:
        if lifetime.start is UNKNOWN:
            continue
        true = every[lifetime.znode.path, lifetime.start_zxid]
        assert (lifetime.session, lifetime.data) == (true.session, true.data), seed
        if lifetime.ended is not Ended.UNKNOWN:
            assert (lifetime.end, lifetime.ended) == (true.end, true.ended), seed
        elif true.end is not None and lifetime.last_seen is not None:
            assert lifetime.last_seen < true.end.zxid, seed
            assert lifetime.end is None or true.end.zxid <= lifetime.end.zxid, seed


def _compare_commits(whole: Replay, part: Replay, seed: str) -> None:
    every = {(c.zxid, c.idx): c for c in whole.commits}
    for commit in part.commits:
        true = every[commit.zxid, commit.idx]
        if isinstance(commit.previous, Write):
            assert previous(commit) == previous(true), seed
        if isinstance(commit.owner, Lifetime):
            assert isinstance(true.owner, Lifetime), seed
            assert commit.owner.session == true.owner.session, seed
        elif commit.owner is None:
            assert true.owner is None, seed


def test_lifetimes_and_commits_of_random_histories_fit_together() -> None:
    """In a whole history the lifetimes of a znode follow one another without overlap, and each
    commit has the owner whose lifetime it is in."""
    owned = 0
    for number in range(100):
        group = RandomGroup(random.Random(SEED + number), "g", steps=150)
        history = replay(group.events)
        spans: dict[str, list[Lifetime]] = {}
        for lifetime in sorted(history.lifetimes, key=lambda v: v.start_zxid or 0):
            spans.setdefault(lifetime.znode.path, []).append(lifetime)
        for lifetimes in spans.values():
            for one, after in pairwise(lifetimes):
                assert isinstance(after.start, Moment)
                assert one.end is not None
                assert one.end[:2] < after.start[:2]
        for commit in history.commits:
            owner = commit.owner
            if isinstance(owner, Lifetime):
                owned += 1
                assert isinstance(owner.start, Moment)
                assert owner.start[:2] < (commit.zxid, commit.idx)
                released = owner.ended_by == commit.session and owner.end is not None
                assert (
                    owner.end is None
                    or owner.end[:2] >= (commit.zxid, commit.idx)
                    or (released and owner.end.zxid == commit.zxid)
                ), f"AUDIT_SEED={SEED + number}"
    assert owned > 1000
