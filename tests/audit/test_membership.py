"""How many members a group has after each join and leave, also behind log gaps. No Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from zkaudit.group import Act, Coverage, Event, Fold, LaterEvents, Membership, Shown, audit_group
from zkaudit.limits import Limits

REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static"}'


def path(member: str) -> str:
    """A member's registration."""
    return f"/consumers/g/ids/{member}"


def join(zxid: int, member: str, session: int) -> Event:
    """A session registers a member."""
    return Event(zxid, 0, zxid, session, Act.CREATE, path(member), REGISTRATION, True)


def leave(zxid: int, member: str, session: int) -> Event:
    """A session deletes a registration."""
    return Event(zxid, 0, zxid, session, Act.DELETE, path(member))


def close(zxid: int, session: int) -> Event:
    """A session ends."""
    return Event(zxid, 0, zxid, session, Act.CLOSE)


def changes(
    *events: Event, gaps: Sequence[tuple[int, int]] = (), known: Sequence[int | None] = (0,),
    shown: Sequence[Shown] = (),
) -> list[tuple[int, str, str | None, int, int | None]]:  # fmt: skip
    """Zxid, member, change, step and the number of members of each change."""
    coverage = Coverage(gaps, known)
    fold = Fold(coverage, shown, LaterEvents(coverage, shown))
    rows = [row for event in events for row in fold.apply(event)]
    return [
        (row.at.zxid, row.registration.znode.name, row.change, row.step, row.members)
        for row in (*rows, *fold.finish())
        if isinstance(row, Membership)
    ]


def test_each_change_has_the_number_of_members_after_it() -> None:
    """The members of one session leave in the order of their names."""
    assert changes(
        join(1, "b", 1), join(2, "a", 1), join(3, "c", 2), leave(4, "c", 2), close(5, 1)
    ) == [
        (1, "b", "join", 1, 1),
        (2, "a", "join", 1, 2),
        (3, "c", "join", 1, 3),
        (4, "c", "leave", -1, 2),
        (5, "a", "leave", -1, 1),
        (5, "b", "leave", -1, 0),
    ]


BEHIND = (leave(13, "c", 3), leave(14, "d", 4), join(15, "e", 5), leave(16, "a", 1), close(17, 2))


@pytest.mark.parametrize(("known", "counts"), [(None, [None] * 5), (14, [None, 0, 1, 1, 1])])
def test_a_number_is_known_behind_a_log_gap_after_a_snapshot(
    known: int | None, counts: list[int | None]
) -> None:
    """It is right also for members of which only the end is known. Those that may have left in the
    gap do not count."""
    before = join(1, "a", 1), join(2, "b", 2)
    rows = changes(*before, *BEHIND, gaps=[(2, 13)], known=(0, known))
    assert [row for row in rows if row[2] is None] == [
        (2, "a", None, -1, None), (2, "b", None, -1, None)
    ]  # fmt: skip
    steps = [(row[0], *row[3:]) for row in rows if row[2] is not None]
    zxids, changed = (1, 2, 13, 14, 15, 16, 17), (1, 1, 0, 0, 1, 0, 0)
    assert steps == list(zip(zxids, changed, [1, 2, *counts], strict=True))


def test_a_join_in_a_log_gap_has_no_number() -> None:
    """A snapshot shows when the member joined, but not who else was there. This is also so before
    the logs begin."""
    for first in (0, 5):
        shown = [Shown(19, path("a"), REGISTRATION, 8, 8, 8, 8, 1)]
        rows = changes(join(20, "b", 2), gaps=[(first, 20)], known=(0, 19), shown=shown)
        assert rows == [(8, "a", "join", 1, None), (20, "b", "join", 1, 2)]


def test_a_herd_is_a_change_that_many_others_see() -> None:
    """A member that joins is not one of those that it wakes."""
    events = [join(zxid, f"m{zxid}", zxid) for zxid in range(1, 5)]
    found = audit_group([*events, leave(5, "m1", 1)], limits=Limits(herd_members=3))[1]
    assert [(one.kind, one.severity, one.basis, one.zxid, one.member) for one in found] == [
        ("herd", "low", "modelled", 4, "m4"), ("herd", "low", "modelled", 5, "m1")
    ]  # fmt: skip
    assert found[0].sentence == (
        "The join of m4 made up to 3 members of group g react, with 4 rebalances and 16 znode "
        "reads."
    )
    assert audit_group(events, limits=Limits(herd_members=4))[1] == []
