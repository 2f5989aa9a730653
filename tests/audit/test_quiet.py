"""Which groups are quiet: nothing happened in them but commits by their owners."""

from __future__ import annotations

import pytest
from zkaudit.history.quiet import QuietGroups, TimeRange

from tests.audit.quiet_histories import (
    BUSY,
    OF_TOPIC,
    QUIET,
    START_MS,
    TAKEN,
    THRESHOLDS,
    History,
    at,
    found,
    names_of,
    nodes,
    two_commit,
    wants,
)


@pytest.mark.parametrize("name", BUSY)
def test_what_makes_a_group_busy(name: str) -> None:
    """Each of these may be a finding, or the beginning of one."""
    history = History()
    BUSY[name](history)
    quiet = names_of(found([history]))
    assert "/g" not in quiet
    assert name in OF_TOPIC or "/other" in quiet


@pytest.mark.parametrize(
    ("count", "offset", "quiet"),
    [(120, 50_000, False), (120, 9_000, True), (10, 50_000, True)],
)
def test_a_step_that_is_large_for_its_topic(
    count: int, offset: int, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a finding only if the topic has enough other commits, and the step is not small. One
    that is slower than most consumers read is one too."""
    monkeypatch.setitem(THRESHOLDS, "jump_rate", 200_000.0)
    history = History()
    two_commit(range(count), range(count))(history)
    history.commit("g", 0, offset, time=at(1000 + count * 1000))
    assert ("/g" in names_of(found([history]))) == quiet


@pytest.mark.parametrize("name", QUIET)
def test_what_a_quiet_group_may_do(name: str) -> None:
    """None of these is a finding."""
    history = History()
    QUIET[name](history)
    assert {"/g", "/other"} <= names_of(found([history]))


def test_the_table_and_the_rest_of_the_snapshot() -> None:
    """A quiet group is one row. Its znodes are left out, and all others stay."""
    history, kafka = History(), History("/kafka", 1)
    history.znode("/consumers/g/ids/c", wants({"t": 1}), 9)
    history.znode("/consumers/x/ids/consumers/y/ids/a", b"", 9)
    history.znode("/consumers/old/offsets/u/0", b"7")
    history.log("delete", "/consumers/other/ids/b")
    kafka.log("delete", "/consumers/g/ids/b")
    quiet = found([history, kafka])
    assert quiet.table().to_pylist() == [
        {"chroot": "", "group": "g", "members": 3, "topics": ["t"], "partitions": 2, "commits": 2},
        {"chroot": "/kafka", "group": "other", "members": 2, "topics": ["t"], "partitions": 2,
         "commits": 2},
        {"chroot": "", "group": "old", "members": 0, "topics": [], "partitions": 0, "commits": 0},
    ]  # fmt: skip
    paths = [node["path"] for node in nodes([history, kafka])]
    left = [paths[number] for number in quiet.chosen().tolist()]
    of_quiet = ("/consumers/g/", "/kafka/consumers/other/", "/consumers/old/")
    assert left == [path for path in paths if not path.startswith(of_quiet)]
    assert {"/", "/consumers/other/owners/t/0", "/consumers/x/ids/consumers/y/ids/a"} <= set(left)


def test_batches_do_not_matter() -> None:
    """The znodes of a group may be in several batches."""
    history = History()
    history.commits(0, range(0, 120, 10))
    history.log("closeSession", session=history.session("other"))
    for batches in (1, 2, 5, 100):
        assert names_of(found([history], batches)) == {"/g"}


def test_an_empty_history() -> None:
    """Without any znode and row there is no group."""
    quiet = QuietGroups(TAKEN, TimeRange(START_MS, **THRESHOLDS))
    assert quiet.table().num_rows == 0
    assert len(quiet.chosen()) == 0
