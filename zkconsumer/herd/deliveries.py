"""Messages that a group got more than once, according to its members' journals. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zkconsumer.journal.recorder import Entry

Range = tuple[int, int]


def consumed_twice(entries: Iterable[Entry], end: int, position: Callable[[int], int]) -> int:
    """How many messages were delivered again; each time counts.

    A member gets all messages from the offset at which it starts to its position when it stops. No
    journal has the position of a crashed member, or the positions of members at the end.

    Args:
        entries: lines in the order of time.
        end: microseconds on the run's clock, until which reading members are followed.
        position: a reading member's position at a time; never lower later.
    """
    reading: dict[tuple[str, str], int] = {}
    given: dict[str, list[Range]] = {}

    def stop(member: str, partition: str, at: int) -> None:
        start = reading.pop((member, partition), None)
        if start is not None:
            given.setdefault(partition, []).append((start, max(start, at)))

    for entry in entries:
        name, member = entry.get("name", ""), entry.get("member", "")
        if entry["kind"] == "command" and name == "StartFetching":
            offsets = entry.get("offsets", {})
            for partition in entry.get("partitions", ()):
                reading[member, partition] = offsets.get(partition, 0)
        elif entry["kind"] == "event" and name in ("FetchingStopped", "Dropped"):
            for partition, at in entry.get("offsets", {}).items():
                stop(member, partition, at)
        elif entry["kind"] == "action" and name == "crash":
            for who, partition in list(reading):
                if who == member:
                    stop(who, partition, position(entry["at"]))
    for member, partition in list(reading):
        stop(member, partition, position(end))
    return sum(_again(ranges) for ranges in given.values())


def _again(ranges: list[Range]) -> int:
    """By how much the lengths of ranges exceed that of their union."""
    again, until = 0, 0
    for first, last in sorted(ranges):
        again += max(0, min(last, until) - first)
        until = max(until, last)
    return again


__all__ = ["consumed_twice"]
