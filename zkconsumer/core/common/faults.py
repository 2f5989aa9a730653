"""Current faults of a member, a partition, a registration or a server.

A ``Fault`` is a value. ``Faults`` has the current faults of one member, and when each began.
Streams raise a fault's error, ``health`` quotes it, ``metrics`` counts it, and the log reports
when faults of a kind begin and end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Trouble(Enum):
    """The kinds of problems that a member can have."""

    FAILED = ("failed", "The member has left its group, and its streams raise an error.")
    STREAM_FAILED = (
        "stream-failed",
        "A stream has reached a message that it cannot read, so it cannot continue.",
    )
    CLOSED = ("closed", "``shutdown`` was called.")
    NOT_STARTED = ("not-started", "No streams were created.")
    NOT_REGISTERED = ("not-registered", "The member is not in its group.")
    PAUSED = ("paused", "Delivery is paused, since other members may own the partitions by now.")
    REBALANCING = ("rebalancing", "A rebalance does not finish.")
    LISTENER = ("listener", "The rebalance listener does not return.")
    BLOCKED = ("blocked", "Partitions of this member are owned by other members.")
    UNASSIGNABLE = (
        "unassignable",
        "Nothing can be assigned to the member: its registration cannot be used, no broker is "
        "known, its topics do not exist, or it is not authorized to read them.",
    )
    MISREAD = (
        "misread",
        "The group has a znode that this member leaves out, or that not all members read alike. "
        "Its owner may read the same partitions.",
    )
    IDLE = ("idle-member", "The member owns nothing although partitions are assigned to it.")
    APPLICATION = (
        "application",
        "Messages are waiting, and the application does not ask for them.",
    )
    FETCHING = ("fetching", "No broker answers for a partition of this member.")
    OPEN_TRANSACTION = (
        "open-transaction",
        "With ``isolation.level=read_committed``: a transaction has not ended, and delivery of a "
        "partition waits for it.",
    )
    CLUSTER = (
        "cluster",
        "The brokers do not answer which brokers and topics there are. The member continues with "
        "their last answer.",
    )
    SECURITY = (
        "security",
        "A broker refuses this member's certificate or login, or has a certificate that the member "
        "does not accept. Another broker had accepted the member.",
    )

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        """Value of the label ``reason`` in Prometheus."""
        self.meaning = meaning


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem that exists now. ``str`` returns ``text``."""

    trouble: Trouble
    text: str
    """The fault as text."""
    about: str = ""
    """The partition, registration or broker that has the fault; empty: the member itself."""
    by: str = ""
    """Another member that causes the fault."""
    error: BaseException | None = None
    """The error that streams raise because of the fault."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a member is not healthy. ``str`` returns ``text``."""

    trouble: Trouble
    text: str
    """The problem and its fix, in one line."""
    seconds: float
    """Seconds for which it has been observed."""
    count: int = 1
    """Number of partitions, registrations, streams or brokers that have it."""

    def __str__(self) -> str:
        return self.text


_Key = tuple[Trouble, str, str]


class Faults:
    """The current faults of one member. Guarded by its owner's lock."""

    def __init__(self) -> None:
        self._current: dict[_Key, tuple[Fault, float]] = {}
        """Each fault with the time at which it began; the oldest first."""
        self._since: dict[Trouble, float] = {}

    def replace(self, faults: Iterable[Fault], now: float) -> None:
        """Replace the current faults."""
        before, current = self._current, dict[_Key, tuple[Fault, float]]()
        kinds: dict[Trouble, float] = {}
        for fault in faults:
            kinds.setdefault(fault.trouble, self._since.get(fault.trouble, now))
            key = fault.trouble, fault.about, fault.by
            since = before[key][1] if key in before else now
            current[key] = fault, since
        self._current = dict(sorted(current.items(), key=lambda item: item[1][1]))
        self._since = kinds

    def leave_out(self, seconds: float) -> None:
        """Do not count ``seconds``, in which nothing was observed, as part of the faults'
        duration."""
        self._current = {
            key: (fault, since + seconds) for key, (fault, since) in self._current.items()
        }
        self._since = {kind: since + seconds for kind, since in self._since.items()}

    @property
    def since(self) -> dict[Trouble, float]:
        """Return when the faults of each kind began, in the order of ``replace``."""
        return dict(self._since)

    def of(self, trouble: Trouble) -> list[tuple[Fault, float]]:
        """Return the faults of a kind, each with the time at which it began; the oldest first."""
        return [pair for pair in self._current.values() if pair[0].trouble is trouble]
