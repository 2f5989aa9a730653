"""The members of a simulated group as its coordinator has them, and the protocols they offer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from zkconsumer.core.groups.spec import ClassicSpec

Reply = Callable[[Any], object]
"""Takes the event that answers a request; each kind of member has its own events."""
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Seat:
    """One member. ``joining`` and ``syncing`` are answered when all others are so far.

    ``new``: its first generation has not begun.
    """

    spec: ClassicSpec
    protocols: Protocols
    heard_us: int
    joining: Reply | None = None
    syncing: Reply | None = None
    gone: bool = False
    new: bool = False


class Roster:
    """Seats by member id, in the order of joining. ``instances``: static members' ids.

    ``pending`` are ids that were given out and have not been used yet.
    """

    def __init__(self) -> None:
        self.seats: dict[str, Seat] = {}
        self.instances: dict[str, str] = {}
        self.pending: set[str] = set()
        self._offers: Counter[frozenset[str]] = Counter()

    def add(self, name: str, seat: Seat) -> None:
        """Take a member in."""
        self.seats[name] = seat
        self._offers[_names(seat.protocols)] += 1
        if seat.spec.instance_id is not None:
            self.instances[seat.spec.instance_id] = name

    def remove(self, name: str) -> Seat | None:
        """Take a member out."""
        seat = self.seats.pop(name, None)
        if seat is not None:
            seat.gone = True
            self._offers[_names(seat.protocols)] -= 1
            if seat.spec.instance_id is not None:
                self.instances.pop(seat.spec.instance_id, None)
        return seat

    def clear(self) -> None:
        """Remove all members."""
        for name in list(self.seats):
            self.remove(name)
        self.pending.clear()

    def offer(self, seat: Seat, protocols: Protocols) -> None:
        """A member has joined with these strategies."""
        self._offers[_names(seat.protocols)] -= 1
        self._offers[_names(protocols)] += 1
        seat.protocols = protocols

    def supports(self, protocols: Protocols) -> bool:
        """Whether all members, including the one that asks, offer one of ``protocols``."""
        sets = [names for names, count in self._offers.items() if count > 0]
        return bool(_names(protocols).intersection(*sets))

    def vote(self) -> str:
        """Each member votes for the first of its strategies that all others offer too."""
        offered = [[name for name, _ in seat.protocols] for seat in self.seats.values()]
        common = set.intersection(*map(set, offered))
        votes = Counter(next(name for name in names if name in common) for names in offered)
        return max(votes, key=lambda name: votes[name])


def _names(protocols: Iterable[tuple[str, bytes]]) -> frozenset[str]:
    return frozenset(name for name, _ in protocols)
