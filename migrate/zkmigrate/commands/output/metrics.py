"""``--metrics-file``: the progress of a command as Prometheus text, for node_exporter's textfile
collector.

The whole file is replaced when the command begins, every few seconds, and when it ends. The
command counts groups in its own thread, and a second thread writes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from zkconsumer.admin.printable import printable
from zkconsumer.errors import ConfigError
from zkmigrate.apply.outcome import Outcome

F = TypeVar("F", bound=Callable[..., Any])
INTERVAL: Final = 5.0
"""Seconds between writes."""
_PATH: Final = f"{__name__}.path"
"""Key in the command's context: the path, if given."""
METRICS: Final = {
    "groups": "Groups that the command works on.",
    "groups_ended": "Groups whose work has ended, by outcome.",
    "offsets_written": "Offsets that were written.",
    "begin_time_seconds": "When the command began, in seconds since 1970.",
    "update_time_seconds": "When this file was written, in seconds since 1970.",
    "running": "1 while the command runs, 0 once it has ended.",
    "mirrored_groups": "mirror only: groups, by the store that leads and their state.",
    "mirrored_offsets": "mirror only: offsets that were copied since it began.",
    "mirror_late_groups": "mirror only: groups that are not in step; all of them after a failed "
    "pass.",
    "mirror_pass_time_seconds": "mirror only: when the last successful pass ended.",
}
"""Name (without ``zkmigrate_``) and meaning of each metric. All are gauges with the label
``command``."""


def metrics_option(command: F) -> F:
    """Add ``--metrics-file``; ``Progress`` finds it in the command's context."""

    def keep(context: click.Context, _option: object, path: str | None) -> None:
        context.meta[_PATH] = path

    return click.option(
        "--metrics-file",
        metavar="FILE",
        expose_value=False,
        callback=keep,
        help="Write the command's progress into this file every five seconds, for the textfile "
        "collector of Prometheus's node_exporter.",
    )(command)


class MetricsFile:
    """The metrics file of a running command.

    Raises ConfigError if the first write fails. A later failure is printed once, and the file is
    written again as soon as possible.
    """

    def __init__(self, path: str, command: str) -> None:
        self.total: int | None = None
        self._path = Path(path)
        self._command = command
        self._began = time.time()
        self._ended: Counter[str] = Counter()
        self._offsets = 0
        self._mirrored: Counter[tuple[str, str]] | None = None
        self._copied = self._late = 0
        self._passed = 0.0
        self._fault = ""
        """Why the last write failed."""
        self._lock = threading.Lock()
        self._over = threading.Event()
        try:
            self._write(True)
        except OSError as error:
            raise ConfigError([f"--metrics-file: {path}: {error.strerror}"]) from None
        self._writer = threading.Thread(target=self._write_often, name="metrics", daemon=True)
        self._writer.start()

    def count(self, outcome: str, offsets: int) -> None:
        """Count a group whose work has ended."""
        with self._lock:
            self._ended[outcome] += 1
            self._offsets += offsets

    def mirrored(self, groups: Counter[tuple[str, str]], copied: int, late: int) -> None:
        """Set the results of one pass of ``mirror``. ``groups``: the number of groups by leader and
        state. ``copied``: the number of copied offsets. ``late``: the number of groups not in
        step."""
        with self._lock:
            self._mirrored, self._late, self._passed = groups, late, time.time()
            self._copied += copied

    def pass_failed(self) -> None:
        """Show that a pass of ``mirror`` failed: all groups count as failed and not in step."""
        with self._lock:
            failed: Counter[tuple[str, str]] = Counter()
            for (leader, _), count in (self._mirrored or {("", ""): self.total or 0}).items():
                failed[leader, Outcome.FAILED.value] += count
            self._mirrored, self._late = failed, failed.total()

    def close(self) -> None:
        """Stop updating the file, and write it for the last time."""
        self._over.set()
        self._writer.join()
        self._try(False)

    def _write_often(self) -> None:
        while not self._over.wait(INTERVAL):
            self._try(True)

    def _try(self, running: bool) -> None:
        fault = ""
        try:
            self._write(running)
        except OSError as error:  # the work on groups is more important
            fault = str(error.strerror)
        if fault and fault != self._fault:
            click.echo(printable(f"--metrics-file: {self._path}: {fault}"), err=True)
        self._fault = fault

    def _write(self, running: bool) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text("".join(self._lines(running)), encoding="utf-8")
            temporary.chmod(0o644)  # another user reads it
            temporary.replace(self._path)
        finally:
            temporary.unlink(missing_ok=True)

    def _lines(self, running: bool) -> Iterator[str]:
        label = f'command="{self._command}"'
        with self._lock:
            values: dict[str, dict[str, float]] = {
                "groups": {} if self.total is None else {label: self.total},
                "groups_ended": {
                    f'{label},outcome="{outcome}"': count
                    for outcome, count in sorted(self._ended.items())
                },
                "offsets_written": {label: self._offsets},
                "begin_time_seconds": {label: self._began},
                "update_time_seconds": {label: time.time()},
                "running": {label: int(running)},
            }
            if self._mirrored is not None:
                values["mirrored_groups"] = {
                    f'{label},leader="{leader}",state="{state}"': count
                    for (leader, state), count in sorted(self._mirrored.items())
                }
                values["mirrored_offsets"] = {label: self._copied}
                values["mirror_late_groups"] = {label: self._late}
                values["mirror_pass_time_seconds"] = {label: self._passed}
        for name, meaning in METRICS.items():
            if name not in values:
                continue
            yield f"# HELP zkmigrate_{name} {meaning}\n# TYPE zkmigrate_{name} gauge\n"
            for labels, value in values[name].items():
                yield f"zkmigrate_{name}{{{labels}}} {value}\n"


def metrics_file() -> MetricsFile | None:
    """Return the metrics file of the running command, or ``None`` if it has none."""
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(_PATH)
    if context is None or path is None:
        return None
    return MetricsFile(path, context.command.name or "")
