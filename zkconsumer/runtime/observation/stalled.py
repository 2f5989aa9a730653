"""Texts about a member's problems, and reasons why partitions make no progress.

Loaded when there is a problem, or with ``isolation.level=read_committed``. It has no threads; the
``HealthMonitor`` guards ``OpenTransactions`` with its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from zkconsumer.core.common.faults import Fault, Reason, Trouble
from zkconsumer.errors import InvalidMessageError
from zkconsumer.runtime.delivery.chunks import PartitionTopicInfo
from zkconsumer.runtime.delivery.reader import Reader

_ADVICE: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "allow this member's principal to read and describe the topic",
    "UNKNOWN_TOPIC_OR_PARTITION": "the topic was deleted, or describing it is not authorized",
    "KAFKA_STORAGE_ERROR": "check the disks of that broker",
    "CORRUPT_MESSAGE": "check the log of that broker",
    "isolation.level=read_committed needs": "upgrade that broker, or set read_uncommitted",
    "UNSUPPORTED_VERSION": "this broker is too old or too new",
}


def in_words(trouble: Trouble, faults: list[tuple[Fault, float]], now: float) -> str:
    """Describe the faults of one kind in one line; ``faults`` begins with the oldest."""
    fault, since = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    match trouble:
        case Trouble.BLOCKED:
            return (
                f"{fault.about} is assigned to this member{more}: {fault.by} has owned it for "
                f"{now - since:.0f} s; stop that process if it is not a member, otherwise give all "
                "members the same partition.assignment.strategy"
            )
        case Trouble.MISREAD:
            return f"{fault}{more}"
        case Trouble.SECURITY:
            return "; ".join(str(fault) for fault, _ in faults[:3])
        case _:
            return str(fault)


def remedy(failure: Exception) -> str:
    """Return what to do about a stream that has failed. Only a message that no member can read
    should be skipped."""
    if isinstance(failure, InvalidMessageError):
        return (
            "fetch it again with a new connector; if that fails as well, commit the offset after "
            "the message"
        )
    return "then create a new connector"


def stalled(
    slow: list[tuple[PartitionTopicInfo, Reader]], idle: Mapping[PartitionTopicInfo, float]
) -> list[Reason]:
    """Return why these partitions make no progress."""
    waiting = [info for info, stream in slow if _waits(info, stream)]
    silent = [info for info, stream in slow if not _waits(info, stream)]
    reasons = []
    if waiting:
        text = (
            f"the application consumes nothing of {_names(waiting)}: check what it does with the "
            "last message"
        )
        seconds = max(idle[info] for info in waiting)
        reasons.append(Reason(Trouble.APPLICATION, text, seconds, len(waiting)))
    if silent:
        faults = sorted({str(info.fault) for info in silent if info.fault})
        text = f"no broker answers for {_names(silent)}: check the brokers and their leaders"
        if faults:
            more = f" (and {len(faults) - 1} other errors)" if len(faults) > 1 else ""
            text = f"{_names(silent)}: {faults[0]}{more}{_advice(faults[0])}"
        seconds = max(idle[info] for info in silent)
        reasons.append(Reason(Trouble.FETCHING, text, seconds, len(silent)))
    return reasons


def _waits(info: PartitionTopicInfo, stream: Reader) -> bool:
    """Whether a partition waits for the application: its messages are fetched, or the stream's
    queue is full. A stream may have partitions from several brokers."""
    consumed = info.fetched_offset in (info.position, info.finished_offset)
    if not consumed or stream.queue.has(info):
        return True
    return stream.queue.full and info.fault is None


def _advice(fault: str) -> str:
    """Return what to do about an error that does not resolve itself."""
    for error, advice in _ADVICE.items():
        if error in fault:
            return f": {advice}"
    return ": check the brokers and their leaders"


def _names(infos: list[PartitionTopicInfo]) -> str:
    first = ", ".join(str(info.topic_partition) for info in infos[:3])
    return first if len(infos) <= 3 else f"{first} and {len(infos) - 3} more"


class _Wait(NamedTuple):
    """A partition that waits for the transaction that begins at offset ``at``."""

    at: int
    since: float
    until: float
    """When a broker last confirmed it; it is not asked while the queue is full."""
    answers: int


class OpenTransactions:
    """Open transactions that prevent a member from fetching messages."""

    def __init__(self) -> None:
        self._waits: dict[PartitionTopicInfo, _Wait] = {}

    def look(self, infos: Iterable[PartitionTopicInfo], now: float) -> None:
        """Take a sample of all partitions."""
        waits: dict[PartitionTopicInfo, _Wait] = {}
        for info in infos:
            at, before = _offset(info), self._waits.get(info)
            if at is None:
                continue
            if before is None or before.at != at:
                waits[info] = _Wait(at, now, now, info.answers)
            elif before.answers != info.answers:
                waits[info] = before._replace(until=now, answers=info.answers)
            else:
                waits[info] = before
        self._waits = waits

    def leave_out(self, seconds: float) -> None:
        """Do not count ``seconds``, in which nothing was observed, as part of the waiting times."""
        self._waits = {
            info: wait._replace(since=wait.since + seconds, until=wait.until + seconds)
            for info, wait in self._waits.items()
        }

    def reasons(self, min_seconds: float) -> list[Reason]:
        """Return the partitions that have waited long enough for an open transaction, as one
        reason."""
        waits = self._waits
        infos = [info for info, wait in waits.items() if wait.until - wait.since >= min_seconds]
        if not infos:
            return []
        infos.sort(key=lambda info: waits[info].since)
        at, since, until, _ = waits[infos[0]]
        text = (
            f"{_names(infos)} cannot be read further: {infos[0].topic_partition} waits at offset "
            f"{at} for an open transaction to end (isolation.level=read_committed): look at its "
            "producer; if it is gone, abort the transaction with kafka-transactions.sh (Kafka 3.0 "
            "and later)"
        )
        return [Reason(Trouble.OPEN_TRANSACTION, text, until - since, len(infos))]


def _offset(info: PartitionTopicInfo) -> int | None:
    """Return the last stable offset, if all before it is fetched and more data follows."""
    fetched, stable, end = info.fetched_offset, info.last_stable_offset, info.high_watermark
    if fetched is None or stable is None or end is None:
        return None
    return stable if stable <= fetched < end else None
