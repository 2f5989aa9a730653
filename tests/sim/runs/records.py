"""The fate of each record of a simulated group: whether it was delivered and processed."""

from __future__ import annotations

from collections.abc import Mapping

from tests.sim.runs.broker_log import PartitionLog
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.sim.judges import invariants


class Records(invariants.Records):
    """The fate of each record in the brokers' logs, whichever member read it.

    A record that was truncated and written again at the same offset is another record, of a later
    generation.
    """

    def __init__(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        self._logs = logs
        self._fate: dict[TopicPartition, dict[int, tuple[int, bool]]] = {}
        """By offset: generation of the record that was delivered; whether it was processed."""
        self._checked: dict[TopicPartition, int] = {}
        self._excused: dict[TopicPartition, int] = {}

    def delivered(self, tp: TopicPartition, offset: int, generation: int) -> None:
        """A record was handed to an application."""
        fate = self._fate.setdefault(tp, {})
        before = fate.get(offset)
        if before is None or before[0] < generation:
            fate[offset] = generation, False

    def processed(self, tp: TopicPartition, offset: int, generation: int) -> None:
        """The application that got a record is done with it."""
        self._fate.setdefault(tp, {})[offset] = generation, True

    def excuse(self, tp: TopicPartition, offset: int) -> None:
        """Records below ``offset`` may be skipped: the log was truncated there, or
        ``auto.offset.reset=largest`` chose to begin there."""
        self._excused[tp] = max(self._excused.get(tp, 0), offset)

    def committed(self, tp: TopicPartition, offset: int) -> tuple[str, str] | None:
        """``offset`` was stored: return the rule that this breaks, and a line about it."""
        first = max(self._checked.get(tp, 0), self._excused.get(tp, 0))
        fate = self._fate.get(tp, {})
        for at, generation in self._logs[tp].records(first, offset):
            known, done = fate.get(at, (-1, False))
            if known < generation:
                return "no_record_lost", f"{tp}: {offset} is committed, {at} was not delivered"
            if not done:
                return "committed_is_processed", f"{tp}: {offset} is committed, {at} is in hand"
        self._checked[tp] = max(first, offset)
        return None

    def undelivered(self, tp: TopicPartition) -> list[int]:
        """The records in the log that no application was given."""
        fate, log = self._fate.get(tp, {}), self._logs[tp]
        records = log.records(self._excused.get(tp, 0), log.end)
        return [at for at, generation in records if fate.get(at, (-1, False))[0] < generation]


__all__ = ["Records"]
