"""The judge of a coordinator whose group has migratable members and plain Kafka consumers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.sim.runs.group_judge import GroupJudge
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel

PLAIN: Final = "plain"
"""How the names of plain Kafka consumers begin."""


class LiveJudge(GroupJudge):
    """Follows the coordinator. Migratable members may commit partitions that it assigns to another
    one: their lock is the owner znode.

    Args:
        kernel: the time.
        observer: of the coordinator's assignment, and of offsets in Kafka.
        began_lower: whether a member may commit a lower offset of a partition.
        say: takes a line for the history.
    """

    def __init__(
        self,
        kernel: Kernel,
        observer: Observer,
        began_lower: Callable[[TopicPartition, str], bool],
        say: Callable[[str], object],
    ) -> None:
        super().__init__(kernel, observer)
        self._began_lower = began_lower
        self._say = say

    def assigned(self, generation: int, given: Mapping[str, frozenset[TopicPartition]]) -> None:
        """See ``GroupWatch``. Migratable members need not release anything before."""
        owners = self._observer.owners
        plain = {self.session(name) for name in self._sessions if name.startswith(PLAIN)}
        for name, partitions in given.items():
            session = self.session(name, generation)
            for tp in sorted(partitions):
                before = owners.get(tp, session)
                if before != session and before not in plain:
                    self._observer.owner_changed(self._kernel.now, tp, None, before)
        super().assigned(generation, given)

    def committed(
        self, name: str, generation: int, tp: TopicPartition, before: int | None, after: int
    ) -> None:
        """See ``GroupWatch``."""
        if name.startswith(PLAIN):
            super().committed(name, generation, tp, before, after)
            return
        self._say(f"kafka {tp} {before} {after} by {name}")
        lower = before is not None and after < before
        if lower and self._began_lower(tp, name):
            before = None
        observer = self._observer
        by = observer.owners.get(tp, self.session(name, generation))
        observer.offset_changed(self._kernel.now, tp, before, after, by)


__all__ = ["PLAIN", "LiveJudge"]
