"""FetchLog: the log lines of fetching. An error is logged when it is new, not each time it recurs.

If a broker has died or reading is not authorized, hundreds of partitions may fail several times a
second. So an error of a partition is logged once, as a warning when it recurs, and then every
``REMINDER_S`` while it lasts. Partitions for which one step of a thread reports the same share a
line.

Any thread may call it. A thread's events are logged by its ``flush``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.runtime.membership.loop import partitions_text

REMINDER_S: Final = 30.0
"""Seconds until an error that lasts is logged again."""
_KEPT: Final = 20
"""Number of different errors of one partition that are remembered."""
_ERRORS: Final = frozenset({FetchEventKind.LEADER_LOST, FetchEventKind.METADATA_FAILED})


@dataclass(slots=True)
class _Error:
    """An error of a partition: how often it occurred in a row, and when it was last logged and
    last seen."""

    count: int = 0
    logged: float = 0.0
    seen: float = 0.0


@dataclass(slots=True)
class _State:
    """The errors logged for a partition."""

    broker: int | None = None
    failed: bool = False
    """Whether the last line that was logged is an error."""
    errors: dict[str, _Error] = field(default_factory=dict)


class FetchLog:
    """Log lines about the fetching of one member.

    Args:
        log: takes a level and a line.
        clock: seconds on a clock that never goes back.
    """

    def __init__(
        self, log: Callable[[int, str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        """Held only briefly, and not while a line is logged."""
        self._states: dict[TopicPartition | None, _State] = {}
        self._waiting: dict[int, list[FetchEvent]] = {}
        """Events that are not logged yet, by thread."""

    def add(self, event: FetchEvent) -> None:
        """Record an event from this thread's step."""
        with self._lock:
            self._waiting.setdefault(threading.get_ident(), []).append(event)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are no longer fetched."""
        with self._lock:
            for tp in partitions:
                self._states.pop(tp, None)

    def flush(self) -> None:
        """Log the events from this thread's step."""
        lines: dict[tuple[int, str], list[TopicPartition]] = {}
        with self._lock:
            for event in self._waiting.pop(threading.get_ident(), ()):
                level = self._level(event)
                if level is not None:
                    names = lines.setdefault((level, _shared(event)), [])
                    names += () if event.partition is None else (event.partition,)
        for (level, text), partitions in lines.items():
            if "{}" not in text:
                self._log(level, text)
            elif len(partitions) == 1:
                self._log(level, text.replace("{}", str(partitions[0])))
            else:
                several = text.replace("{} is ", "{} are ")
                self._log(level, several.replace("{}", partitions_text(partitions)))

    def _level(self, event: FetchEvent) -> int | None:
        """Return the log level of an event's line; ``None`` if there is nothing new to log."""
        match event.kind:
            case FetchEventKind.PARTITION_FAILED | FetchEventKind.LOG_CHANGED:
                return logging.WARNING
            case FetchEventKind.OFFSET_RESET:
                return logging.INFO
            case FetchEventKind.BROKER_FAILED:
                return None  # the partitions' events have the same text
        state = self._states.setdefault(event.partition, _State())
        if event.kind in _ERRORS:
            return self._level_of_error(state, event.detail)
        if event.kind is FetchEventKind.RECOVERED:
            failed, state.failed = state.failed, False
            return logging.INFO if failed else None
        before, state.broker = state.broker, event.broker
        self._states.pop(None, None)  # brokers answer
        return None if before == event.broker else logging.INFO

    def _level_of_error(self, state: _State, detail: str) -> int | None:
        now = self._clock()
        over = [text for text, error in state.errors.items() if now - error.seen >= REMINDER_S]
        for text in over:
            del state.errors[text]
        if detail not in state.errors and len(state.errors) == _KEPT:
            return None
        error = state.errors.setdefault(detail, _Error())
        error.count, error.seen = error.count + 1, now
        if error.count > 2 and now - error.logged < REMINDER_S:
            return None
        error.logged, state.failed = now, True
        return logging.INFO if error.count == 1 else logging.WARNING


def _shared(event: FetchEvent) -> str:
    """Return the log line with ``{}`` in place of the partition."""
    if event.partition is None:
        return event.detail
    name = str(event.partition)
    if name in event.detail:
        return event.detail.replace(name, "{}")
    return f"{{}}: {event.detail}"
