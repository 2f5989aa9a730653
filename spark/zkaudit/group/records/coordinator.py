"""Rules about groups on the coordinator: storms, flapping members, two owners at once.

They read the records of one group in ``__consumer_offsets``. Compaction removes older records, so
these rules may miss findings, and their counts are lower bounds. The records do not show why a
member left. So none of these findings is proven.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from zkaudit.group.coverage import Coverage
from zkaudit.group.records.overlaps import Interval, Overlap, overlaps
from zkaudit.group.records.storms import recent, storms_of
from zkaudit.group.rules.load import per_minute
from zkaudit.group.rules.rule import Evidence, Finding
from zkaudit.limits import Limits

OWN_PROTOCOL: Final = "zkconsumer-live-"
"""Prefix of the strategy's name while all members on the coordinator are migratable
(``zkconsumer.core.migration.strategy.OWN_PREFIX``)."""
SLOT_MS: Final = 5_000
"""Milliseconds in which the epochs of a KIP-848 group count as one rebalance, because the
coordinator increases the epoch for each member."""


class State(NamedTuple):
    """A state of the group on its coordinator: a row of table ``generations``. ``time``:
    microseconds since 1970."""

    log_partition: int
    log_offset: int
    time: int | None
    is_classic: bool
    generation: int | None
    protocol: str | None
    members: Sequence[str]
    clients: Mapping[str, str]
    hosts: Mapping[str, str]

    @property
    def ms(self) -> int:
        """The time of the state in milliseconds since 1970."""
        return (self.time or 0) // 1000

    @property
    def order(self) -> tuple[int, int]:
        """The key by which states are sorted by time."""
        return self.ms, self.log_offset

    @property
    def place(self) -> str:
        """The place of the state's record in the log, as text."""
        return (
            f"generation {self.generation}, __consumer_offsets-{self.log_partition}, offset "
            f"{self.log_offset}"
        )

    def source(self, member: str) -> str | None:
        """Return the client id and host of a member as text. They stay the same when the member
        restarts; its id does not."""
        client, host = self.clients.get(member), self.hosts.get(member)
        if client is None or host is None:
            return None
        return f"client id {client} on host {host.removeprefix('/')}"


@dataclass(frozen=True, slots=True)
class Change:
    """A state whose generation differs from the previous state's."""

    state: State
    before: State | None
    emptied: int
    """How often the group had been empty before."""

    @property
    def left(self) -> list[str]:
        """The members that left."""
        members = set(self.state.members)
        before = () if self.before is None else self.before.members
        return [member for member in dict.fromkeys(before) if member not in members]

    @property
    def joined(self) -> list[str]:
        """The members that joined; unknown for the oldest state in the log."""
        if self.before is None:
            return []
        before = set(self.before.members)
        return [member for member in dict.fromkeys(self.state.members) if member not in before]


class Owned(NamedTuple):
    """An interval in which a partition belonged to a member: a row of the table
    ``group_ownership``."""

    topic: str
    partition: int
    member: str
    session: int | None
    by_znode: bool
    """Whether the member had the owner znode. Otherwise the coordinator had assigned the partition
    to it."""
    start: int
    end: int
    start_zxid: int | None


class Lowered(NamedTuple):
    """A commit of a lower offset than before: a row of the table ``commits`` with ``store`` =
    ``kafka``."""

    topic: str
    partition: int
    time: int | None
    offset: int
    previous: int
    log_partition: int
    log_offset: int


def changes_of(states: Iterable[State]) -> Iterator[Change]:
    """Yield the changes of a group's generation, in the order of the log.

    Generations in which all members are migratable are left out, because a live move causes them.
    """
    before: State | None = None
    emptied = 0
    for state in states:
        own = (state.protocol or "").startswith(OWN_PROTOCOL)
        changed = before is None or state.generation != before.generation
        if not own and (state.generation or 0) > 0 and state.time is not None and changed:
            yield Change(state, before, emptied)
        emptied += not state.members
        before = state


class _Rebalances(NamedTuple):
    """The rebalances that a change represents."""

    change: Change
    times: int


def storms(group: str, changes: Sequence[Change], limits: Limits) -> Iterator[Finding]:
    """Return one finding for each period with many generations.

    The limits are the same as for storms in ZooKeeper. The coordinator also counts generations that
    no member completed, so the generation may rise by more than one between two states. These
    generations are spread over the time between the states, and only those within ``storm_seconds``
    are counted.
    """
    span = int(limits.storm_seconds * 1000)
    timed = sorted(_timed(changes, span), key=lambda rebalance: rebalance.change.state.order)
    points = [(rebalance.change.state.ms, rebalance.times) for rebalance in timed]
    for storm in storms_of(points, span, limits.storm_rebalances):
        yield _storm(group, [timed[n] for n in storm.places], storm.most, changes, limits)


def _timed(changes: Iterable[Change], span: int) -> Iterator[_Rebalances]:
    slot: int | None = None
    for change in changes:
        state, before = change.state, change.before
        if not state.is_classic:
            last, slot = slot, state.ms // SLOT_MS
            if slot != last:
                yield _Rebalances(change, 1)
            continue
        times = 1
        if before is not None and before.time is not None:
            steps = max((state.generation or 0) - (before.generation or 0), 1)
            times = max(int(steps * min(1, span / max(state.ms - before.ms, 1))), 1)
        yield _Rebalances(change, times)


def _storm(
    group: str, inside: Sequence[_Rebalances], most: int, changes: Iterable[Change], limits: Limits
) -> Finding:
    states = sorted(
        (rebalance.change for rebalance in inside), key=lambda change: change.state.log_offset
    )
    first, last = states[0].state, states[-1].state
    times = [change.state.time or 0 for change in states]
    minutes = (max(times) // 1000 - min(times) // 1000) / 60_000
    times_in_all = sum(rebalance.times for rebalance in inside)
    rate = per_minute(times_in_all, max(minutes, 1), most, limits)
    sources = Counter[str]()
    for change in changes:
        if change.before and first.log_offset <= change.state.log_offset <= last.log_offset:
            sources.update(filter(None, map(change.before.source, change.left)))
    text = ""
    count, source = max(((n, s) for s, n in sources.items()), default=(0, ""))
    if count > sources.total() / 2 and sources.total() > 2:
        text = f" Of these, {count} were members with {source}."
    if states[0].before is None:
        text += " It may have begun earlier: compaction removes older records."
    return Finding(
        severity="high" if rate >= limits.storm_per_minute else "medium",
        kind="rebalance storm",
        basis="inferred",
        sentence=f"Group {group} rebalanced {most} times within {limits.storm_seconds:g} s on the "
        f"coordinator; members left it {sum(len(change.left) for change in states)} times.{text}",
        evidence=_records(first, last),
        zxid=None,
        time=min(times),
        end_time=max(times),
    )


class _Step(NamedTuple):
    """A member of a source joined (1) or left (-1)."""

    state: State
    step: int
    own: int
    """Number of members of the source before the step."""


def flapping(group: str, changes: Sequence[Change], limits: Limits) -> Iterator[Finding]:
    """Return one finding for each client whose members left and returned repeatedly while others
    stayed.

    A client id on a host may have several members, and a rolling restart replaces each once. So the
    number of returns is divided by the number of members. If the group was empty in between, it was
    stopped, and this does not count as a return.
    """
    span = int(limits.flapping_seconds * 1000)
    steps: defaultdict[str, defaultdict[int, list[_Step]]] = defaultdict(lambda: defaultdict(list))
    for change in changes:
        for number, state, members in (
            (-1, change.before, change.left),
            (1, change.state, change.joined),
        ):
            for source, own in _sources(state, members):
                steps[source][change.emptied].append(_Step(change.state, number, own))
    for source, by_stop in sorted(steps.items()):
        returns = sorted(
            (state for of_stop in by_stop.values() for state in _returns(of_stop)),
            key=lambda state: state.order,
        )
        own = max(step.own for of_stop in by_stop.values() for step in of_stop)
        most = max(recent([(state.ms, 1) for state in returns], span), default=0)
        if most / own >= limits.flapping_expiries:
            yield _flapping(group, source, own, most, returns, limits)


def _sources(state: State | None, members: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Return the sources of some members, each with its number of members in a state."""
    if state is not None and members:
        count = Counter(map(state.source, state.clients))
        for source in map(state.source, members):
            if source is not None:
                yield source, count[source]


def _returns(steps: Iterable[_Step]) -> Iterator[State]:
    """Return the states in which a member returned. Joins that follow no leave are new members."""
    joins = surplus = new = returns = 0
    for state, step, _ in steps:
        joins += step > 0
        surplus += step
        new = max(new, surplus)
        if joins - new > returns:
            yield state
        returns = joins - new


def _flapping(
    group: str, source: str, own: int, most: int, returns: Sequence[State], limits: Limits
) -> Finding:
    first, *_, last = sorted((*returns, *returns), key=lambda state: state.log_offset)
    who = "The member with" if own == 1 else f"Up to {own} members at a time with"
    return Finding(
        severity="medium",
        kind="flapping member",
        basis="inferred",
        sentence=f"{who} {source} left group {group} and returned {most} times within "
        f"{limits.flapping_seconds:g} s, while other members stayed. Each time rebalances the "
        "group. The coordinator's records do not show why it left.",
        evidence=_records(first, last),
        zxid=None,
        time=first.time,
        end_time=last.time,
    )


def _records(*states: State) -> tuple[Evidence, ...]:
    return tuple(Evidence("generations", None, None, None, state.place) for state in states)


def two_owners(
    group: str, owned: Iterable[Owned], moves: bool, coverage: Coverage, limits: Limits
) -> Iterator[Finding]:
    """Return the findings about a partition that the coordinator assigned to a consumer while a
    member had its owner znode.

    ``owned``: the owners of that partition. The two times are from different clocks. It is not
    proven that both delivered: a member that the coordinator expels stops by itself, and a member
    whose session expired had stopped before. In a live move, members notice each other. In other
    groups they do not, so there the finding is more severe. But if the logs begin late, they may
    not show that the group is in a live move.
    """
    least = int(limits.skew_seconds * 1e6)
    intervals = (Interval(row.member, row.start, row.end, row) for row in owned)
    for both in overlaps(intervals):
        if both.row.by_znode != both.other.by_znode and both.end - both.begin >= least:
            yield _two_owners(group, both, moves, coverage)


def _two_owners(group: str, both: Overlap[Owned], moves: bool, coverage: Coverage) -> Finding:
    here, there = (both.row, both.other) if both.row.by_znode else (both.other, both.row)
    zxid = here.start_zxid
    known_from = None if zxid is None else coverage.known_from(coverage.segment(zxid))
    known = zxid is not None and known_from is not None and zxid >= known_from
    text = ""
    if not moves and not known:
        text = " The logs begin too late to show whether the group was moving while it ran."
    stopped = "the member had stopped" if moves else "one of them had stopped"
    return Finding(
        severity="high" if known and not moves else "medium",
        kind="two owners during a move" if moves else "two owners",
        basis="inferred",
        sentence=f"{here.topic}-{here.partition} of group {group} was assigned to {there.member} "
        f"by the coordinator while member {here.member} had its owner znode, for "
        f"{(both.end - both.begin) / 1e6:,.1f} s (measured with two clocks). Both may have "
        f"delivered, unless {stopped}. Journals would show which.{text}",
        evidence=(
            Evidence("group_ownership", zxid, None, here.session, "owner znode"),
            Evidence("group_ownership", None, None, None, there.member),
        ),
        zxid=zxid,
        time=both.begin,
        end_time=both.end,
        topic=here.topic,
        partition=here.partition,
        member=here.member,
        session=here.session,
    )


def went_back(group: str, lowered: Lowered) -> Finding:
    """Return the finding about an offset in Kafka that was lowered."""
    steps = f"{lowered.previous} -> {lowered.offset}"
    record = f"__consumer_offsets-{lowered.log_partition} offset {lowered.log_offset}"
    return Finding(
        severity="medium",
        kind="offset regression",
        basis="proven",
        sentence=f"The committed offset of {lowered.topic}-{lowered.partition} of group {group} in "
        f"Kafka went back from {lowered.previous} to {lowered.offset}. Kafka does not record which "
        "client wrote it.",
        evidence=(Evidence("commits", None, None, None, f"{steps} at {record}"),),
        zxid=None,
        time=lowered.time,
        topic=lowered.topic,
        partition=lowered.partition,
        effect="unknown",
    )
