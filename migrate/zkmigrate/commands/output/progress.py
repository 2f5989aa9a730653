"""Shows the progress of a run on standard error: a bar on a terminal, JSON lines elsewhere.

Standard output is reserved for the command's rows. Used from one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import click

from zkconsumer.admin.printable import printable
from zkmigrate.apply.outcome import Result
from zkmigrate.commands.output.metrics import metrics_file

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

INTERVAL: Final = 5.0
"""Seconds between two lines if there is no terminal."""
_REDRAW: Final = 0.2
"""Seconds between two changes of the bar within a group."""
_NAME: Final = 60


class Progress:
    """Shows how many groups are done. Use it as a context manager.

    Args:
        verb: the action on the groups, such as ``moving``. ``total`` may be set later.
        bad: the word for groups with a problem, such as ``failed``.
        changes: whether groups are changed. If so, written offsets are counted, and an interrupt
            prints the number of changed groups.
    """

    def __init__(
        self, verb: str, total: int | None = None, bad: str = "failed", changes: bool = False
    ) -> None:
        self._metrics = metrics_file()
        self.total = total
        self._verb = verb
        self._bad_word = bad
        self._changes = changes
        self._done = self._bad = self._offsets = 0
        self._started = self._printed = time.monotonic()
        self._bar: Bar | None = None

    @property
    def total(self) -> int | None:
        """Number of groups, if known."""
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = total
        if self._metrics is not None:
            self._metrics.total = total

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.add_task(self._verb, total=self.total, counts="", now="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        if self._metrics is not None:
            self._metrics.close()
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()
        if self._changes and kind is not None and issubclass(kind, KeyboardInterrupt):
            bad = f", {self._bad} {self._bad_word}" if self._bad else ""
            _print(f"{self._verb}: {self._done} of {self.total} groups are done{bad}")

    def result(self, result: Result) -> None:
        """Count a group as done, with its outcome."""
        offsets = result.offsets if self._changes else 0  # a dry run writes none
        if self._metrics is not None:
            self._metrics.count(result.outcome.value, offsets)
        self.group(result.group, result.outcome.good, offsets)

    def group(self, name: str, good: bool = True, offsets: int = 0) -> None:
        """Count a group as done. ``good``: it has no problem. ``offsets``: number of written
        offsets."""
        self._done += 1
        self._bad += not good
        self._offsets += offsets
        now = time.monotonic()
        if self._bar is not None:
            self._show(f"after {_cut(name)}")
        elif now - self._printed >= INTERVAL:
            self._printed = now
            self._line(now, after=_cut(name))

    def within(self, group: str, done: int, of: int) -> None:
        """Show how many of a group's offsets are done, if the last output is not too recent."""
        now = time.monotonic()
        if now - self._printed < (_REDRAW if self._bar is not None else INTERVAL):
            return
        self._printed = now
        if self._bar is not None:
            self._show(f"{_cut(group)}: {done} of {of} offsets")
        else:
            self._line(now, group=_cut(group), offsets=done, of_offsets=of)

    def mirrored(self, groups: Counter[tuple[str, str]], copied: int, late: int) -> None:
        """Pass the results of ``mirror`` to the metrics file; see ``MetricsFile``."""
        if self._metrics is not None:
            self._metrics.mirrored(groups, copied, late)

    def pass_failed(self) -> None:
        """Let the metrics file show that a pass of ``mirror`` failed."""
        if self._metrics is not None:
            self._metrics.pass_failed()

    def waiting(self, what: str) -> None:
        """Show why the command is waiting. Any thread may call it."""
        if self._bar is not None:
            self._show(f"waiting for {printable(what)}")
        else:
            self._line(time.monotonic(), waiting_for=printable(what))

    def _line(self, now: float, **more: str | int) -> None:
        seconds = now - self._started
        groups_s = self._done / max(seconds, 0.001)
        left = None if self.total is None else self.total - self._done
        line: dict[str, object] = {
            "progress": self._verb,
            "groups": self._done,
            "of": self.total,
            self._bad_word.replace(" ", "_"): self._bad,
            "seconds": round(seconds, 1),
            "groups_per_second": round(groups_s, 1),
            "seconds_left": round(left / groups_s) if left is not None and self._done else None,
        }
        if self._offsets:
            line["offsets_per_second"] = round(self._offsets / max(seconds, 0.001))
        _print(json.dumps({**line, **more}))

    def _show(self, now: str) -> None:
        assert self._bar is not None
        (task,) = self._bar.task_ids
        with suppress(OSError):
            self._bar.update(
                task, completed=self._done, total=self.total, counts=self._counts(), now=now
            )

    def _counts(self) -> str:
        seconds = max(time.monotonic() - self._started, 0.001)
        parts = [f"{self._done / seconds:.1f} groups/s"]
        if self._offsets:
            parts.append(f"{self._offsets / seconds:.0f} offsets/s")
        return ", ".join([*parts, f"{self._bad} {self._bad_word}"] if self._bad else parts)


def _print(line: str) -> None:
    """Print a line on standard error if it can be read.

    A closed terminal must not interrupt the work on a group.
    """
    with suppress(OSError):
        click.echo(line, file=sys.stderr)


def _cut(name: str) -> str:
    return printable(name[:_NAME]) + ("..." if len(name) > _NAME else "")


def _bar() -> Bar:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("groups"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[counts]} {task.fields[now]}", markup=False),
        console=Console(stderr=True),
        transient=True,
    )
