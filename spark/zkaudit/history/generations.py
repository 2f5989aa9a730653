"""The successive states of a group in Kafka, from its records. Pure; any thread.

A classic group has one record for each generation. A KIP-848 group has a record for each member
and its partitions, and one for the group's epoch. The coordinator writes all records of a change
in one batch with one timestamp, so records with the same timestamp are one change. When a group
changes its protocol, such a batch deletes the records of the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any


def states(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table ``generations`` for one group.

    ``records``: the group's rows of ``schema.OFFSETS``, except those of kind offset, in the order
    of the log.
    """
    group = _Group()
    for _, batch in groupby(records, _change):
        yield from group.change(list(batch))


def _change(record: dict[str, Any]) -> object:
    """Return the key of a record's change. Before Kafka 0.10 records have no timestamp."""
    return record["log_offset"] if record["time"] is None else record["time"]


class _Group:
    def __init__(self) -> None:
        self._epoch: int | None = None
        self._members: dict[str, dict[str, Any]] = {}
        self._current: dict[str, dict[str, Any]] = {}
        self._last: dict[str, Any] | None = None

    def change(self, batch: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Apply the records of one change. Yield the resulting states."""
        classic: list[dict[str, Any]] = []
        deleted = False
        for record in batch:
            gone = record["deleted"]
            match record["kind"]:
                case "group":
                    deleted = gone
                    if not gone:
                        classic.append(record)
                case "group epoch":
                    self._epoch = record["generation"]  # a tombstone has none
                    deleted = deleted or (gone and not classic)
                case "member":
                    _put(self._members, record)
                case "current":
                    _put(self._current, record)
        for record in classic:
            self._last = record | {"group_protocol": "classic"}
            yield self._last
        if self._epoch is not None or self._members or self._current:
            state = self._state()
            if self._last is None or any(self._last.get(name) != state[name] for name in state):
                self._last = _at(batch[-1]) | state
                yield self._last
        elif deleted:
            self._last = _at(batch[-1])
            yield self._last

    def _state(self) -> dict[str, Any]:
        epochs = [record["generation"] for record in self._current.values()]
        asked = {record["protocol"] for record in self._members.values()} - {None}
        return {
            "group_protocol": "consumer",
            # compaction keeps a member's record longer than the epoch of its time
            "generation": max(epochs, default=None) if self._epoch is None else self._epoch,
            "protocol": asked.pop() if len(asked) == 1 else None,
            "leader": None,
            "members": sorted(self._members.keys() | self._current.keys()),
            **{
                name: {k: v for r in self._members.values() for k, v in r[name].items()}
                for name in ("hosts", "clients")
            },
            "assignment": {
                k: v for r in self._current.values() for k, v in r["assignment"].items()
            },
        }


def _put(parts: dict[str, dict[str, Any]], record: dict[str, Any]) -> None:
    """Replace a member's record and put it last. A deletion only removes the member."""
    parts.pop(record["member"], None)
    if not record["deleted"]:
        parts[record["member"]] = record


def _at(record: dict[str, Any]) -> dict[str, Any]:
    """Return place and time of a state that ends with this record."""
    return {name: record[name] for name in ("group_id", "log_partition", "log_offset", "time")}
