"""The judge of a simulated group on the brokers: passes the coordinator's decisions on.

Runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel


class GroupJudge:
    """A ``GroupWatch``. A member id is a session; it owns its assignment until it joins again
    without a partition, leaves, or is expelled."""

    def __init__(self, kernel: Kernel, observer: Observer) -> None:
        self._kernel = kernel
        self._observer = observer
        self._sessions: dict[str, list[tuple[int, int]]] = {}
        self._numbers = count(1)

    def session(self, name: str, generation: int | None = None) -> int:
        """The number of a member id in a generation; by default the current one."""
        known = self._sessions.setdefault(name, [])
        if not known:
            known.append((0, next(self._numbers)))
        fitting = [n for first, n in known if generation is None or first <= generation]
        return fitting[-1] if fitting else known[0][1]

    def joins(self, name: str, owned: frozenset[TopicPartition]) -> None:
        """See ``GroupWatch``."""
        self._release(name, owned)

    def assigned(self, generation: int, given: Mapping[str, frozenset[TopicPartition]]) -> None:
        """See ``GroupWatch``. A coordinator that takes over may know an earlier generation only."""
        for name, partitions in given.items():
            session = self.session(name, generation)
            for tp in sorted(partitions):
                if self._observer.owners.get(tp) != session:
                    self._observer.owner_changed(self._kernel.now, tp, session, session)

    def removed(self, name: str, left: bool) -> None:
        """See ``GroupWatch``."""
        session = self.session(name)
        if not left:
            self._observer.session_ended(session)
        self._release(name, frozenset())

    def passed_over(self, name: str, generation: int) -> None:
        """See ``GroupWatch``. Until it joins again, it has no share."""
        self.removed(name, False)
        self._sessions[name].append((generation, next(self._numbers)))

    def committed(
        self, name: str, generation: int, tp: TopicPartition, before: int | None, after: int
    ) -> None:
        """See ``GroupWatch``."""
        session = self.session(name, generation)
        self._observer.offset_changed(self._kernel.now, tp, before, after, session)

    def _release(self, name: str, but: frozenset[TopicPartition]) -> None:
        """The member releases all but ``but``, of any generation."""
        sessions = {number for _, number in self._sessions.get(name, [])}
        for tp, session in sorted(self._observer.owners.items()):
            if session in sessions and tp not in but:
                self._observer.owner_changed(self._kernel.now, tp, None, session)
