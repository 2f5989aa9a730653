"""Rules about one group that do not read its znodes: journals of members, records of a coordinator.

``Records`` has the data of a group, and ``Records.findings`` calls the rules::

    journals     overlapping deliveries, gaps, resets, views that differ
    coordinator  storms, members that come and go, two owners, offsets in Kafka that went back

All rows of a group are in memory, except commits: ``Records.committed`` reads one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from zkaudit.group.coverage import Coverage
from zkaudit.group.records import coordinator, journals
from zkaudit.group.records.coordinator import Lowered, Owned, State
from zkaudit.group.records.journals import Committed, Delivered, Delivery, TopicPartition, View
from zkaudit.group.rules.load import Herd, herd_finding
from zkaudit.group.rules.rule import Finding
from zkaudit.limits import Limits

__all__ = ["Committed", "Delivery", "Herd", "Lowered", "Owned", "Records", "State", "View"]


@dataclass(slots=True)
class Records:
    """The journals of a group's members, and the coordinator's records of the group. First add all
    other data, then call ``committed`` with each commit."""

    group: str
    moves: bool = False
    """Whether the group has a mode of a live migration."""
    registered: list[str] = field(default_factory=list)
    """Members that were ever registered."""
    deliveries: list[Delivery] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    herds: list[Herd] = field(default_factory=list)
    """Changes that woke at least ``Limits.herd_members`` members."""
    states: list[State] = field(default_factory=list)
    """States in the order of the log."""
    owned: list[Owned] = field(default_factory=list)
    kafka: list[Lowered] = field(default_factory=list)
    """Offsets in Kafka that were lowered."""
    _delivered: dict[TopicPartition, Delivered] | None = None
    _past: dict[tuple[TopicPartition, str], Committed] = field(default_factory=dict)
    """The first commit with the highest offset past all deliveries, by partition and member."""

    def committed(self, commit: Committed) -> None:
        """Compare a commit by an owner with the deliveries. Call it in the order of the commits."""
        partition = commit.topic, commit.partition
        delivered = self._journaled().get(partition)
        if delivered is None or delivered.reached is None or commit.offset <= delivered.reached:
            return
        if commit.member in delivered.members:
            first = self._past.setdefault((partition, commit.member), commit)
            if commit.offset > first.offset:
                self._past[partition, commit.member] = first._replace(offset=commit.offset)

    def _journaled(self) -> dict[TopicPartition, Delivered]:
        """Return the deliveries of each partition if all members kept journals,
        otherwise nothing."""
        if self._delivered is None:
            complete = journals.are_complete(self.deliveries, self.registered)
            every = journals.by_partition(self.deliveries) if complete else {}
            self._delivered = {place: Delivered(mine) for place, mine in every.items()}
        return self._delivered

    def findings(self, coverage: Coverage, limits: Limits) -> Iterator[Finding]:
        """Yield the findings of all rules."""
        for mine in journals.by_partition(self.deliveries).values():
            yield from journals.double_deliveries(self.group, mine, limits)
            yield from journals.offset_resets(self.group, mine)
        for delivered in self._journaled().values():
            yield from journals.delivery_gaps(self.group, delivered.rows)
        for (partition, _), past in self._past.items():
            reached = self._journaled()[partition].reached
            assert reached is not None
            yield journals.past_delivery(self.group, past, reached)
        yield from journals.views_apart(self.group, self.views, limits)
        for herd in self.herds:
            yield herd_finding(self.group, herd)
        logs = groupby(self.states, attrgetter("log_partition"))
        changes = [change for _, states in logs for change in coordinator.changes_of(states)]
        yield from coordinator.storms(self.group, changes, limits)
        yield from coordinator.flapping(self.group, changes, limits)
        for owned in _by_partition(self.owned):
            yield from coordinator.two_owners(self.group, owned, self.moves, coverage, limits)
        for lowered in self.kafka:
            yield coordinator.went_back(self.group, lowered)


def _by_partition(owned: Iterable[Owned]) -> Iterator[list[Owned]]:
    place = attrgetter("topic", "partition")
    for _, mine in groupby(sorted(owned, key=place), place):
        yield list(mine)
