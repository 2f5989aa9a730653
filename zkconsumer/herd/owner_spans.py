"""The owners of each partition over time, from the changes of owner znodes. Pure.

Times are microseconds on the run's clock. Events must be added in chronological order.
"""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.core.common.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Span:
    """A time span in which ``member`` owned the partition. ``end`` is ``None`` if it still owns
    it."""

    start: int
    end: int | None
    member: str


class Ownership:
    """Spans of ownership by partition.

    A member that has ended owns nothing, although its znodes may remain until its session expires:
    only members that can consume count as owners.
    """

    def __init__(self) -> None:
        self.spans: dict[TopicPartition, list[Span]] = {}
        self.changed_at = 0
        """Time of the last change."""
        self._owner: dict[TopicPartition, str] = {}
        self._of: dict[str, dict[TopicPartition, None]] = {}
        self._gone: set[str] = set()

    def took(self, at: int, tp: TopicPartition, member: str) -> None:
        """Record that ``member`` created the owner znode."""
        if member in self._gone:
            return
        before = self._owner.get(tp)
        if before == member:
            return
        if before is not None:
            self.lost(at, tp, before)
        self._owner[tp] = member
        self._of.setdefault(member, {})[tp] = None
        self.spans.setdefault(tp, []).append(Span(at, None, member))
        self.changed_at = at

    def lost(self, at: int, tp: TopicPartition, member: str) -> None:
        """Record that ``member``'s owner znode was deleted, unless another member owns the
        partition."""
        if self._owner.get(tp) != member:
            return
        del self._owner[tp]
        del self._of[member][tp]
        open_span = self.spans[tp].pop()
        self.spans[tp].append(Span(open_span.start, at, member))
        self.changed_at = at

    def gone(self, at: int, member: str) -> None:
        """Record that the member has left, or its process has ended."""
        for tp in list(self._of.get(member, ())):
            self.lost(at, tp, member)
        self._gone.add(member)

    def back(self, member: str) -> None:
        """Record that a member with this id has restarted."""
        self._gone.discard(member)

    def owner(self, tp: TopicPartition) -> str | None:
        """Return the current owner of a partition; ``None`` if it has none."""
        return self._owner.get(tp)

    def unowned(self, start: int, end: int) -> dict[TopicPartition, int]:
        """Return the microseconds without an owner between two moments, for each partition that was
        ever owned."""
        seconds = {}
        for tp, spans in self.spans.items():
            owned = 0
            for span in spans:
                until = end if span.end is None else min(span.end, end)
                owned += max(0, until - max(span.start, start))
            seconds[tp] = max(0, end - start - owned)
        return seconds
