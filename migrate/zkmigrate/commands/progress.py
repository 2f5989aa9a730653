"""Shows how far a run is, on standard error: a bar on a terminal, a line now and then elsewhere.

Standard output is left to the command's rows. Used from one thread.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import click

from zkconsumer.admin.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

INTERVAL: Final = 5.0
"""Seconds between two lines where there is no terminal."""
_NAME: Final = 60


class Progress:
    """Counts groups. Use as a context manager.

    Args:
        verb: what is done to the groups, such as ``moving``.
        total: how many groups there are; may be set later.
        bad: the word for groups that are not as they should be, such as ``failed``.
    """

    def __init__(self, verb: str, total: int | None = None, bad: str = "failed") -> None:
        self.total = total
        self._verb = verb
        self._bad_word = bad
        self._done = self._bad = self._offsets = 0
        self._started = self._printed = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.add_task(self._verb, total=self.total, counts="", now="")
            self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def group(self, name: str, good: bool = True, offsets: int = 0) -> None:
        """Count one more group. ``offsets``: how many were written."""
        self._done += 1
        self._bad += not good
        self._offsets += offsets
        now = time.monotonic()
        if self._bar is not None:
            self._show(f"after {_cut(name)}")
        elif now - self._printed >= INTERVAL:
            self._printed = now
            parts = [f"{self._verb}: {self._of_total()} groups", *self._counts()]
            parts += [f"{now - self._started:.0f} s", f"after {_cut(name)}"]
            click.echo(", ".join(parts), err=True)

    def waiting(self, what: str) -> None:
        """Show what the run waits for."""
        if self._bar is not None:
            self._show(f"waiting for {printable(what)}")
        else:
            click.echo(f"{self._verb}: waiting for {printable(what)}", err=True)

    def _show(self, now: str) -> None:
        assert self._bar is not None
        (task,) = self._bar.task_ids
        self._bar.update(
            task, completed=self._done, total=self.total, counts=", ".join(self._counts()), now=now
        )

    def _of_total(self) -> str:
        return str(self._done) if self.total is None else f"{self._done} of {self.total}"

    def _counts(self) -> list[str]:
        rate = round(self._offsets / max(time.monotonic() - self._started, 0.001))
        found = [f"{rate} offsets/s"] if self._offsets else []
        return [*found, f"{self._bad} {self._bad_word}"] if self._bad else found


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
