"""Sums the figures of a run, in the same way from a journal or during the run. Pure.

Times are microseconds on the run's clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from zkconsumer.core.common.commands import Report, SetTimer
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.commands import Command, Scope
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.ops import Multi, OffsetOp, Reply, ZkOp
from zkconsumer.core.zookeeper.scripts.common import path_of
from zkconsumer.herd.owner_spans import Ownership
from zkconsumer.herd.wire import Cost, cost, watch_event_bytes
from zkconsumer.journal.counts import GROUP_KINDS, kind_of
from zkconsumer.journal.recorder import Entry

#: Width of a bar in requests over time.
BUCKET_US = 100_000


@dataclass(slots=True)
class Sums:
    """Sums of costs."""

    requests: int = 0
    reads: int = 0
    writes: int = 0
    changes: int = 0
    bytes_out: int = 0
    bytes_in: int = 0

    def add(self, spent: Cost) -> None:
        """Add a cost."""
        self.requests += spent.requests
        self.reads += spent.reads
        self.writes += spent.writes
        self.changes += spent.changes
        self.bytes_out += spent.bytes_out
        self.bytes_in += spent.bytes_in

    @property
    def bytes(self) -> int:
        """Number of bytes in both directions."""
        return self.bytes_out + self.bytes_in

    @property
    def operations(self) -> int:
        """Number of znodes read and transactions requested."""
        return self.reads + self.writes


@dataclass(slots=True)
class MemberTally(Sums):
    """The counts of one member."""

    watches_fired: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    conflicts: int = 0
    gave_up: int = 0


@dataclass(slots=True)
class Tally:
    """Counts since ``start``. Ownership is recorded from the beginning.

    ``kinds`` has sums by kind of operation, ``members`` by member.
    """

    start: int = 0
    members: dict[str, MemberTally] = field(default_factory=dict)
    kinds: dict[str, Sums] = field(default_factory=dict)
    ownership: Ownership = field(default_factory=Ownership)
    _requests: Counter[int] = field(default_factory=Counter)
    _rates: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    def reset(self, start: int) -> None:
        """Forget the counts, and count from ``start`` on."""
        self.start = start
        self.members.clear()
        self.kinds.clear()
        self._requests.clear()
        self._rates.clear()

    def member(self, name: str) -> MemberTally:
        """Return the counts of ``name``."""
        tally = self.members.get(name)
        if tally is None:
            tally = self.members[name] = MemberTally()
        return tally

    def spend(self, at: int, member: str, kind: str, spent: Cost, began: int | None = None) -> None:
        """Count the cost of an action of ``member`` at the time ``at``, or evenly from ``began`` to
        ``at``."""
        self.member(member).add(spent)
        sums = self.kinds.get(kind)
        if sums is None:
            sums = self.kinds[kind] = Sums()
        sums.add(spent)
        last = (at - self.start) // BUCKET_US
        first = last if began is None else max(0, (began - self.start) // BUCKET_US)
        if first == last:
            self._requests[last] += spent.requests
        else:
            self._rates[first] += spent.requests / (last + 1 - first)
            self._rates[last + 1] -= spent.requests / (last + 1 - first)

    def requests(self) -> list[float]:
        """Number of requests answered in each tenth of a second after ``start``."""
        length = max([*self._requests, *self._rates, -1]) + 1
        rate, series = 0.0, []
        for bucket in range(length):
            rate += self._rates[bucket]
            series.append(round(self._requests[bucket] + rate, 3))
        return series

    @property
    def total(self) -> MemberTally:
        """The sums over all members."""
        total = MemberTally()
        for share in self.members.values():
            for name in MemberTally.__dataclass_fields__:
                setattr(total, name, getattr(total, name) + getattr(share, name))
        return total

    # -- while it happens

    def event(self, member: str, event: Event) -> None:
        """Count an event that a member received."""
        if isinstance(event, events.Changed):
            self._fired(member, event.path, 0)
        elif isinstance(event, events.Claimed):
            self._claimed(member, len(event.blocked))

    def command(self, member: str, command: Command) -> None:
        """Count a command that a member's core issued."""
        match command:
            case commands.LoadView(scope=scope):
                self._commanded(member, "LoadView", scope.value)
            case SetTimer(name=name):
                self._commanded(member, "SetTimer", name)
            case Report(event=event):
                self._commanded(member, "Report", event)

    # -- what counts, from either source

    def _fired(self, member: str, path: str, chroot: int) -> None:
        share = self.member(member)
        share.watches_fired += 1
        share.bytes_in += watch_event_bytes(path, chroot)

    def _claimed(self, member: str, blocked: int) -> None:
        if blocked:
            self.member(member).conflicts += blocked

    def _commanded(self, member: str, name: str, what: str) -> None:
        """Count a command. ``what``: the view's scope, the timer, or the report."""
        share = self.member(member)
        match name, what:
            case "LoadView", _ if what != Scope.GROUP.value:
                share.attempts += 1
            case "SetTimer", "backoff":
                share.failed_attempts += 1
            case "Report", "rebalance-failed":
                share.failed_attempts += 1
                share.gave_up += 1

    def fetches(
        self, at: int, member: str, name: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Record that a member of a group in Kafka owns ``partitions`` (``name`` is
        ``StartFetching``), or no longer owns them."""
        change = self.ownership.took if name == "StartFetching" else self.ownership.lost
        for tp in partitions:
            change(at, tp, member)

    def did(self, at: int, sent: int, member: str, op: ZkOp | OffsetOp, reply: Reply) -> None:
        """Count an answered operation of a member."""
        path = "" if isinstance(op, OffsetOp | Multi) else path_of(op)
        self.spend(at, member, kind_of(type(op).__name__, path), cost(op, reply), sent)

    def asked(self, member: str, name: str, result: str) -> None:
        """Count a request ``name`` to the coordinator, whose outcome was ``result``."""
        share = self.member(member)
        if name == "JoinGroup" and not result.startswith("MEMBER_ID_REQUIRED"):
            share.attempts += 1
        elif name != "SyncGroup":
            return
        share.failed_attempts += result != "ok"

    # -- from a journal

    def _group_entry(self, entry: Entry, name: str) -> None:
        """Add a line of a member of a group in Kafka."""
        at, member = entry["at"], entry["member"]
        if entry["kind"] == "op":
            if at >= self.start:
                spent = _cost_of(entry)
                self.spend(at, member, GROUP_KINDS.get(name, name), spent, entry["sent"])
                self.asked(member, name, entry["result"])
        elif entry["kind"] == "command" and name in ("StartFetching", "Forget", "Drop"):
            named = (text.rpartition("-") for text in entry.get("partitions", ()))
            partitions = [TopicPartition(topic, int(number)) for topic, _, number in named]
            self.fetches(at, member, name, partitions)

    def entry(self, entry: Entry, chroot: int = 0) -> None:
        """Count one line of a journal. Lines must be added in chronological order."""
        at, member, name = entry["at"], entry.get("member", ""), entry.get("name", "")
        kind = entry["kind"]
        if "generation" in entry:
            self._group_entry(entry, name)
            return
        if kind == "op":
            for path in entry.get("deleted", ()):
                if tp := owner_partition(path):
                    self.ownership.lost(at, tp, member)
            for path in entry.get("created", ()):
                if tp := owner_partition(path):
                    self.ownership.took(at, tp, member)
        elif name == "Close" or (kind == "action" and name == "crash"):
            self.ownership.gone(at, member)
        if at < self.start:
            return
        if kind == "op":
            spent = _cost_of(entry)
            self.spend(at, member, kind_of(name, entry.get("path", "")), spent, entry["sent"])
        elif kind == "event":
            if name == "Changed":
                self._fired(member, entry["path"], chroot)
            elif name == "Claimed":
                self._claimed(member, len(entry.get("blocked", ())))
        elif kind == "command":
            what = entry.get("result" if name == "Report" else "detail", "")
            self._commanded(member, name, what)


def owner_partition(path: str) -> TopicPartition | None:
    """Return the partition whose owner znode has this path; ``None`` for other paths."""
    parts = path.split("/")
    if len(parts) != 6 or parts[1] != "consumers" or parts[3] != "owners":
        return None
    return TopicPartition(parts[4], int(parts[5])) if parts[5].isdecimal() else None


def _cost_of(entry: Entry) -> Cost:
    """Return the cost of an operation from its line. Journals of running members have no sizes."""
    return Cost(*(entry.get(name, 0) for name in Cost.__slots__))
