"""Health: whether a member works, and if not, why.

``HealthMonitor`` checks a member once a second, on the watchdog's thread, and records when each
problem began and when each partition last made progress. Any thread may call ``read``, which waits
only for locks that are held briefly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from zkconsumer.core.common.faults import Fault, Faults, Reason, Trouble
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader

if TYPE_CHECKING:
    from zkconsumer.runtime.observation.stalled import OpenTransactions

MIN_SECONDS: Final = 30.0
"""Default number of seconds that a problem must last before it is reported."""

_AT_ONCE: Final = frozenset(
    {Trouble.FAILED, Trouble.STREAM_FAILED, Trouble.CLOSED, Trouble.NOT_STARTED}
)
_PAUSE: Final = 5.0
"""Seconds between two checks that mean that the process was stopped in between."""
_FINAL: Final = frozenset({Trouble.FAILED, Trouble.STREAM_FAILED})
_LOGGED_ELSEWHERE: Final = frozenset({Trouble.FAILED, Trouble.CLOSED, Trouble.NOT_STARTED})


@dataclass(frozen=True, slots=True)
class Health:
    """The condition of a member at one moment."""

    state: str
    """The member's state, with the names of ``Metrics.state``."""
    registered: bool
    """Whether the member is in its group, as far as it knows."""
    entitled: bool
    """Whether partitions are assigned to it."""
    owned: int
    """Number of partitions that it owns."""
    delivering: bool
    """Whether it owns partitions and delivery is not paused."""
    progress: Mapping[TopicPartition, float]
    """For each owned partition, the seconds since a message was consumed or a broker answered that
    there was none."""
    reasons: tuple[Reason, ...]
    """The problems, the worst first."""

    @property
    def ok(self) -> bool:
        """Whether there is no problem. A member that is not entitled to any partition is
        healthy."""
        return not self.reasons

    @property
    def alive(self) -> bool:
        """Whether the member works or can recover. If not, only a new connector helps."""
        return not any(reason.trouble in _FINAL for reason in self.reasons)

    @property
    def seconds_since_progress(self) -> float | None:
        """The longest time in ``progress``; ``None`` without partitions."""
        return max(self.progress.values(), default=None)


@dataclass(frozen=True, slots=True)
class Membership:
    """What the health monitor reads from a member of a group, in ZooKeeper or on the brokers."""

    state: str
    doing: str
    """The state as a phrase for messages."""
    registered: bool
    settled: bool
    """Whether no rebalance is in progress."""
    assigned: int
    owned: int
    faults: tuple[Fault, ...] = ()
    """Faults of the member itself, its partitions, and the registrations that it reads."""

    @property
    def failure(self) -> Fault | None:
        """The fault that has ended the membership, if any."""
        return next((fault for fault in self.faults if fault.trouble is Trouble.FAILED), None)


@dataclass(slots=True)
class _Seen:
    """The position of a partition, and since when it is there."""

    position: int | None
    answers: int
    at: float


@dataclass(slots=True)
class Sources:
    """The values that the health monitor reads. Any thread may call the methods."""

    membership: Callable[[], Membership]
    partitions: Callable[[], Iterable[tuple[PartitionTopicInfo, Reader]]]
    streams: Iterable[Reader]
    is_open: Callable[[], bool]
    """Whether the delivery gate is open."""
    listening: Callable[[], bool]
    """Whether the rebalance listener is being called."""
    group: str
    servers: str
    """The servers' name in messages."""
    refusals: Callable[[], Sequence[str]] = tuple
    """The brokers that refuse this member, or that it refuses."""
    clock: Callable[[], float] = field(default=time.monotonic)
    log: Callable[[int, str], object] = field(default=logging.getLogger("zkconsumer.member").log)
    """Logs a line with a level."""


class HealthMonitor:
    """Monitors one member with streams. Args: sources: where to read its values."""

    def __init__(self, sources: Sources) -> None:
        self._from = sources
        self._lock = threading.RLock()
        """Held only briefly, and while no other lock is held."""
        self._faults = Faults()
        self._seen: dict[PartitionTopicInfo, _Seen] = {}
        self._waits: OpenTransactions | None = None
        self._looked = sources.clock()
        self._logged: frozenset[Trouble] = frozenset()
        """The troubles that are currently logged. Written by the watchdog's thread."""
        self.lasting = 0
        """The number of faults at the last check. Written by the watchdog's thread."""

    def look(self) -> None:
        """Take a sample, and log changes. Called once a second."""
        reasons = {reason.trouble: reason for reason in self.read(MIN_SECONDS).reasons}
        self.lasting = sum(reason.count for reason in reasons.values())
        for trouble, reason in reasons.items():
            if trouble not in self._logged and trouble not in _LOGGED_ELSEWHERE:
                text = f"not healthy for {reason.seconds:.0f} s: {reason.text}"
                self._from.log(logging.WARNING, text)
        for trouble in sorted(self._logged - reasons.keys(), key=attrgetter("label")):
            self._from.log(logging.INFO, f"healthy again: {trouble.label} is over")
        self._logged = frozenset(reasons)

    def read(self, min_seconds: float) -> Health:
        """Return the current health. A problem is reported after ``min_seconds``."""
        sources, now = self._from, self._from.clock()
        member = sources.membership()
        partitions = list(sources.partitions())
        is_open = sources.is_open()
        with self._lock:
            self._leave_out_pause(now)
        faults = list(self._current(member, is_open))
        with self._lock:
            idle = self._progress(partitions, now)
            if self._waits is None and any(p.last_stable_offset is not None for p, _ in partitions):
                from zkconsumer.runtime.observation.stalled import OpenTransactions

                self._waits = OpenTransactions()
            if self._waits is not None:
                self._waits.look((info for info, _ in partitions), now)
            waits = [] if self._waits is None else self._waits.reasons(min_seconds)
            self._faults.replace(faults, now)
            since = self._faults.since
            kinds = {kind: self._faults.of(kind) for kind in since}
        if kinds:
            from zkconsumer.runtime.observation.stalled import in_words
        reasons = [
            Reason(kind, in_words(kind, faults, now), now - since[kind], len(faults))
            for kind, faults in kinds.items()
            if kind in _AT_ONCE or now - since[kind] >= min_seconds
        ]
        if is_open and member.failure is None:
            slow = [
                (info, stream)
                for info, stream in partitions
                if idle[info] >= min_seconds and stream.failure is None  # that is reported
            ]
            if slow:
                from zkconsumer.runtime.observation.stalled import stalled

                reasons += stalled(slow, idle)
        reasons += waits
        return Health(
            state=member.state,
            registered=member.registered,
            entitled=member.assigned > 0,
            owned=member.owned,
            delivering=is_open and bool(partitions) and member.failure is None,
            progress={info.topic_partition: seconds for info, seconds in idle.items()},
            reasons=tuple(reasons),
        )

    def _leave_out_pause(self, now: float) -> None:
        """Exclude the time for which the process was stopped, because nothing was observed."""
        pause = now - self._looked
        self._looked = now
        if pause > _PAUSE:
            self._faults.leave_out(pause)
            for progress in self._seen.values():
                progress.at += pause
            if self._waits is not None:
                self._waits.leave_out(pause)

    def _progress(
        self, partitions: Iterable[tuple[PartitionTopicInfo, Reader]], now: float
    ) -> dict[PartitionTopicInfo, float]:
        seen: dict[PartitionTopicInfo, _Seen] = {}
        for info, _ in partitions:
            position, answers = info.position, info.answers
            before = self._seen.get(info)
            caught_up = before is not None and info.caught_up and answers != before.answers
            if before is None or caught_up or position != before.position:
                before = _Seen(position, answers, now)
            seen[info] = before
        self._seen = seen
        return {info: now - progress.at for info, progress in seen.items()}

    def _current(self, member: Membership, is_open: bool) -> Iterator[Fault]:
        """Return all current faults, even new ones; the worst kind first."""
        servers, group = self._from.servers, self._from.group
        if member.failure is not None:
            yield member.failure
            return
        for number, stream in enumerate(self._from.streams):
            if (error := stream.failure) is not None:
                from zkconsumer.runtime.observation.stalled import remedy

                text = f"a stream cannot be read any further: {error}; {remedy(error)}"
                yield Fault(Trouble.STREAM_FAILED, text, f"stream {number}", error=error)
        if not member.registered:
            yield Fault(
                Trouble.NOT_REGISTERED,
                f"not a member of group {group}: {member.doing}; check {servers}",
            )
        elif not is_open:
            text = f"delivery pauses: check {servers}, and pauses of this process"
            yield Fault(Trouble.PAUSED, text)
        if self._from.listening():
            yield Fault(
                Trouble.LISTENER,
                "the rebalance listener has not returned: check what it is waiting for",
            )
        elif member.registered and not member.settled:
            yield Fault(Trouble.REBALANCING, f"a rebalance is under way: {member.doing}")
        yield from member.faults
        if member.registered and member.assigned and not member.owned:
            yield Fault(
                Trouble.IDLE,
                f"owns none of the {member.assigned} partitions assigned to this member: "
                f"{member.doing}",
            )
        for text in self._from.refusals():
            yield Fault(Trouble.SECURITY, text, text)


def without_streams(closed: bool, forked: Exception | None) -> Health:
    """Return the health of a connector without streams. ``closed``: it was shut down. ``forked``:
    the error of a forked process, in which the connector has no threads."""
    if forked is not None:
        reason = Reason(Trouble.FAILED, str(forked), 0.0)
    elif closed:
        reason = Reason(Trouble.CLOSED, "the connector is shut down: create a new one", 0.0)
    else:
        text = "no streams were created: call create_message_streams"
        reason = Reason(Trouble.NOT_STARTED, text, 0.0)
    state = "FORKED" if forked else "CLOSED" if closed else "NEW"
    return Health(state, False, False, 0, False, {}, (reason,))
