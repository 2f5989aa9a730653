"""Feeds the invariants' observer from what a simulated coordinator decides."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.sim.invariants import Observer
from zkconsumer.sim.kernel import Kernel


class GroupJudge:
    """A ``GroupWatch``. A member id is a session; it owns what an assignment gave it until it joins
    again without, leaves, or is expelled."""

    def __init__(self, kernel: Kernel, observer: Observer) -> None:
        self._kernel = kernel
        self._observer = observer
        self._sessions: dict[str, list[tuple[int, int]]] = {}
        self._numbers = count(1)

    def session(self, name: str, generation: int | None = None) -> int:
        """The number that stands for a member id in a generation; by default now."""
        known = self._sessions.setdefault(name, [])
        if not known:
            known.append((0, next(self._numbers)))
        fitting = [n for first, n in known if generation is None or first <= generation]
        return fitting[-1] if fitting else known[0][1]

    def joins(self, name: str, owned: frozenset[TopicPartition]) -> None:
        """See ``GroupWatch``."""
        self._release(self.session(name), owned)

    def assigned(self, given: Mapping[str, frozenset[TopicPartition]]) -> None:
        """See ``GroupWatch``."""
        for name, partitions in given.items():
            session = self.session(name)
            for tp in sorted(partitions):
                if self._observer.owners.get(tp) != session:
                    self._observer.owner_changed(self._kernel.now, tp, session, session)

    def removed(self, name: str, left: bool) -> None:
        """See ``GroupWatch``."""
        session = self.session(name)
        if not left:
            self._observer.session_ended(session)
        self._release(session, frozenset())

    def passed_over(self, name: str, generation: int) -> None:
        """See ``GroupWatch``. What it does before it joins again, it does without a share."""
        self.removed(name, False)
        self._sessions[name].append((generation, next(self._numbers)))

    def committed(self, name: str, tp: TopicPartition, before: int | None, after: int) -> None:
        """See ``GroupWatch``."""
        self._observer.offset_changed(self._kernel.now, tp, before, after, self.session(name))

    def _release(self, session: int, but: frozenset[TopicPartition]) -> None:
        observer = self._observer
        for tp in sorted(tp for tp, owner in observer.owners.items() if owner == session):
            if tp not in but:
                observer.owner_changed(self._kernel.now, tp, None, session)
