"""The problems of single partitions, as one problem of the group for each kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from zkconsumer.admin.printable import printable
from zkconsumer.core.common.types import TopicPartition
from zkmigrate.plan.values import Problem
from zkmigrate.reasons import Reason

_BY_PARTITION: Final = (Reason.UNREADABLE, Reason.PARTITION_MISSING)
_SKIPPABLE: Final = (
    Reason.HIDDEN,
    Reason.RECREATED,
    Reason.UNPROVEN,
    Reason.TOPIC_MISSING,
    *_BY_PARTITION,
)
_TEXTS: Final = {
    Reason.HIDDEN: "the broker's access lists hide offsets in Kafka: ",
    Reason.TOPIC_MISSING: "the topic does not exist: ",
    Reason.PARTITION_MISSING: "the topic has no such partition: ",
    Reason.UNPROVEN: "ZooKeeper has no id for the topic, so it may be another topic of that name: ",
    Reason.UNKNOWN: "the brokers returned no log range: ",
    Reason.NO_OFFSET: "neither store has an offset: ",
    Reason.EXPIRED: "moved before, and missing now: ",
}
_ADVICE: Final = {
    Reason.HIDDEN: "allow the migrator to describe the topic, or leave it out with",
    Reason.UNREADABLE: "correct the znode with zkconsumer offsets import, or leave it out with",
    Reason.CONFLICT: "choose --on-conflict zookeeper, kafka, newest, min or max",
    Reason.WOULD_LOWER: "the group was moved to the target before, so --on-conflict does not lower "
    "what the target holds: choose max, or give the offsets that are meant with --from-file",
    Reason.OUT_OF_RANGE: "choose --out-of-range clamp, or correct the offset",
    Reason.TOPIC_MISSING: "leave all such offsets out with --missing-topics skip, or some with",
    Reason.PARTITION_MISSING: "add partitions, or leave all such offsets out with --missing-topics "
    "skip, or some with",
    Reason.RECREATED: "the offset means another log: choose --recreated-topics skip or earliest, "
    "or leave it out with",
    Reason.UNPROVEN: "if it is the same topic choose --unproven-topics trust; else skip or "
    "earliest, or leave it out with",
    Reason.NO_OFFSET: "choose --without-offset leave, earliest or latest",
    Reason.EXPIRED: "consumers may have been beyond the offset that was moved: choose "
    "--expired-offsets moved, earliest or latest",
    Reason.MISPLACED: "choose --misplaced use or --misplaced ignore",
    Reason.UNKNOWN: "make sure that the partition has a leader, then plan again",
}


class Findings:
    """Collects the problems of a group's partitions. The object is true if there are problems."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._found: dict[Reason, dict[TopicPartition, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, kind: Reason, tp: TopicPartition, text: str = "") -> None:
        """Add a partition to the problems of one kind. ``text``: the text after the partition's
        name."""
        self._found.setdefault(kind, {})[tp] = f"{tp}{text}"

    def problems(self) -> Iterator[Problem]:
        """Yield one problem for each kind, with its partitions and the values for ``--skip``."""
        for kind, findings in self._found.items():
            skips: dict[str, None] = {}
            for tp in findings if kind in _SKIPPABLE else ():
                place = f"{tp.topic}:{tp.partition}" if kind in _BY_PARTITION else tp.topic
                skips[f"{self._group}:{place}"] = None
            yield problem(kind, _TEXTS.get(kind, ""), _ADVICE[kind], findings.values(), skips)


def problem(
    kind: Reason, text: str, advice: str, names: Iterable[str] = (), skips: Iterable[str] = ()
) -> Problem:
    """Return a problem, with unprintable characters in its texts replaced."""
    return Problem(
        kind,
        printable(text),
        printable(advice),
        tuple(map(printable, names)),
        tuple(map(printable, skips)),
    )


def bad_name(name: str) -> Problem:
    """Return the problem of a group whose name cannot be part of a ZooKeeper path."""
    shown = ascii(name[:60]) + ("..." if len(name) > 60 else "")
    return Problem(
        Reason.BAD_NAME,
        f"{shown} cannot be part of a ZooKeeper path",
        "leave the group where it is: zkmigrate takes names of 1 to 255 characters without '/' "
        "and control characters; if it is not needed, ignore it in a file for --decisions",
    )
