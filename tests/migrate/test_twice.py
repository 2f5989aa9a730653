"""Faults that need two events: another client acts before and after the migrator, or twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from zkmigrate.apply.journal import Journal, parse
from zkmigrate.apply.outcome import Outcome

from tests.migrate.test_simulated import T0, T1, Stores, at, marks
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Delete
from zkconsumer.core.zookeeper.znodes import GroupPaths


class Committed(Stores):
    """A group that holds 5 in Kafka, and a client that is not a member and commits around ours.

    ``before`` and ``after``: the offsets of T0 that it commits right before and after ours.
    """

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        super().__init__()
        self.committed = {T0: StoredOffset(5), T1: StoredOffset(5)}
        self._around = (before, after)
        self._log: list[tuple[TopicPartition, int]] = []

    def _foreign(self, offsets: tuple[int, ...]) -> None:
        for offset in offsets:
            self.committed = {**self.committed, T0: StoredOffset(offset)}
            self._log.append((T0, offset))

    def commit(
        self,
        group: str,
        new: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], object],
    ) -> Mapping[Any, Any]:
        """Commit; the first commit is surrounded by the client's."""
        (before, after), self._around = self._around, ((), ())
        self._foreign(before)
        found = super().commit(group, new, permit)
        self._log += [(tp, one.offset) for tp, one in new.items()]
        self._foreign(after)
        return found

    def commits_end(self, _group: str) -> int:
        """The position after the last commit."""
        return len(self._log)

    def commits_since(self, _group: str, position: int) -> list[tuple[TopicPartition, int]]:
        """All commits from a position."""
        return self._log[position:]


@pytest.mark.parametrize(
    ("before", "after"),
    [((8,), ()), ((8, 9), ()), ((), (9,)), ((8,), (9,)), ((8, 9), (10, 11)), ((9,), (8,)),
     ((8,), (7,)), ((7,), (9,))],
)  # fmt: skip
def test_the_last_offset_of_another_client_stays(
    before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """Whether it commits before our commit of 7, after it, or both: its last offset is what Kafka
    holds in the end, and the group is not called moved."""
    stores = Committed(before, after)
    result = stores.apply(stores.plan())
    last = (*before, *after)[-1]
    assert stores.committed[T0].offset == last
    assert stores.committed[T1].offset == 9, "that the client left alone"
    if last == 7:
        return  # what it committed last is what was planned
    assert result.outcome is Outcome.REFUSED, result
    assert stores.zk.text(f"{GroupPaths('g').root}/migration") is None
    assert not stores.claimed


def test_a_second_late_commit_is_noticed_like_the_first() -> None:
    """The source store is compared with what was moved, not with the first late commit."""
    stores = Stores()
    plan = stores.plan()

    def deregisters(op: object) -> bool:
        return isinstance(op, Delete) and op.path.startswith(GroupPaths("g").ids)

    at(stores, deregisters, lambda: stores.write(b"8"))
    assert "zookeeper holds 8, not 7" in stores.apply(plan).why
    stores.write(b"9")
    assert "zookeeper holds 9, not 7" in stores.apply(plan).why
    stores.write(b"7")
    assert stores.apply(plan).outcome is Outcome.WAS_DONE


def test_a_client_that_writes_and_writes_back_before_the_marker_is_noticed() -> None:
    """The offset is the old one again, but a consumer is alive."""
    stores = Stores()
    plan = stores.plan()

    def twice() -> None:
        stores.write(b"8")
        stores.write(b"7")

    at(stores, marks, twice)
    assert "while the group was moved" in stores.apply(plan).why


def test_a_journal_is_cut_again_after_a_second_power_failure(tmp_path: Path) -> None:
    """What was written after the first cut stays, and its numbers go on."""
    path = tmp_path / "journal"
    for number, torn in enumerate((b"t", b'{"step":"mark"}\t0', b"")):
        with Journal(path, "digest") as journal:
            assert [one["step"] for one in journal.records] == ["claim", "write"][:number]
            journal.write(group="g", step=("claim", "write", "mark")[number])
        with path.open("ab") as file:
            file.write(torn)
    records, good = parse("journal", path.read_bytes())
    assert [one.get("step") for one in records[1:]] == ["claim", "write", "mark"]
    assert good == path.stat().st_size
