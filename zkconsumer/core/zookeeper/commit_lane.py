"""Commits that somebody asks for, beside the rebalance: one at a time, never lowering an offset.

Owned by ``RebalanceMachine``; runs on whatever thread runs the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.events import Claim


class CommitLane:
    """The queue of commit requests and the one that is under way."""

    def __init__(self) -> None:
        self._waiting: deque[CommitRequested] = deque()
        self.token: int | None = None
        self.current: CommitRequested | None = None
        self._faults: tuple[str, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether a ``Commit`` of this lane waits for its answer."""
        return self.token is not None

    def add(self, request: CommitRequested) -> None:
        """Queue a request. Of automatic ones only the newest is kept."""
        if request.request is None:
            self._waiting = deque(item for item in self._waiting if item.request is not None)
        self._waiting.append(request)

    def reset(self, partition: TopicPartition) -> None:
        """Forget how far ``partition`` got before ``auto.offset.reset`` chose another position.

        An offset that somebody names in a request of his own stays.
        """
        self._waiting = deque(
            item if item.strict else replace(item, positions=_without(partition, item.positions))
            for item in self._waiting
        )

    def next(
        self, claims: Mapping[TopicPartition, Claim], may_lower: bool, resend: bool
    ) -> tuple[CommitRequested, dict[TopicPartition, int], tuple[str, ...]] | None:
        """The next request, what of it has to be written, and what is wrong with the rest.

        ``may_lower``: offsets below the committed one are written too, as in the JVM. ``resend``:
        unchanged ones are, too.
        """
        if self.busy or not self._waiting:
            return None
        request = self._waiting.popleft()
        positions: dict[TopicPartition, int] = {}
        faults: list[str] = []
        for tp, position in request.positions.items():
            claim = claims.get(tp)
            if claim is None:
                if request.strict:
                    faults.append(f"{tp}: not owned by this member")
            elif claim.forbids(position) and not may_lower:
                if request.strict:
                    faults.append(
                        f"{tp}: {position} is below the committed offset {claim.committed}; "
                        "commits never go backwards"
                    )
            elif position != claim.committed or resend:
                positions[tp] = position
        return request, positions, tuple(faults)

    def begin(self, token: int, request: CommitRequested, faults: tuple[str, ...]) -> None:
        """``request`` is under way as ``token``."""
        self.token, self.current, self._faults = token, request, faults

    def end(self, faults: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
        """The commit under way is over; returns whom to tell, and all that was wrong."""
        assert self.current is not None
        answer = self.current.request, self._faults + faults
        self.token, self.current, self._faults = None, None, ()
        return answer

    def abandon(self) -> list[int]:
        """Give up everything; returns the requests that must be told so."""
        requests = ([self.current] if self.current else []) + list(self._waiting)
        self._waiting.clear()
        self.token, self.current, self._faults = None, None, ()
        return [item.request for item in requests if item.request is not None]


def _without(
    partition: TopicPartition, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {tp: position for tp, position in positions.items() if tp != partition}
