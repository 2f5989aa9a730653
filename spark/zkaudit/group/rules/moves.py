"""The rule about offsets that are written after a group was moved to Kafka."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zkaudit.group.events import Commit, Kind, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import hex_of, partition_of


@dataclass(slots=True)
class _Writes:
    """What one session wrote to an offset after a move."""

    moved_zxid: int
    first: Commit
    last: Commit
    times: int = 1


class CommitsPastMoves(Rule):
    """Offsets written to ZooKeeper after the group was moved to Kafka, except by the migration."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._writes: dict[tuple[str, int, int], _Writes] = {}
        """By path, session and move."""

    def committed(self, commit: Commit) -> Iterable[Finding]:
        """Count a write after a move."""
        moved_zxid = self.group.moved_to_kafka
        if moved_zxid is not None and commit.kind is Kind.COMMIT:
            key = commit.znode.path, commit.session, moved_zxid
            writes = self._writes.get(key)
            if writes is None:
                self._writes[key] = _Writes(moved_zxid, commit, commit)
            else:
                writes.last = commit
                writes.times += 1
        return ()

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the writes of each session."""
        for writes in self._writes.values():
            if not self.group.is_mover(writes.first.session):
                yield self._finding(writes)

    def _finding(self, writes: _Writes) -> Finding:
        first, last = writes.first, writes.last
        znode, session = first.znode, first.session
        writer = self.group.member(session) or f"Session {hex_of(session)}"
        offsets = ("?" if commit.offset is None else commit.offset for commit in (first, last))
        begin, newest = offsets
        many = writes.times > 1
        return Finding(
            severity="critical",
            kind="commit past the end of a move",
            basis="proven",
            sentence=f"{writer} wrote {writes.times} times to the offset of {partition_of(znode)} "
            f"of group {self.group.name} in ZooKeeper, the last time {newest}, after the group had "
            "been moved to Kafka. Members that read their offsets from Kafka do not see it.",
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
