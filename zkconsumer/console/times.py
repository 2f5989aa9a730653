"""Durations on the command line: ``500ms``, ``30s``, ``5m``, ``2h``, ``1d``. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)?")


def shown(seconds: float) -> str:
    """Return a duration in the largest unit that gives a whole number: ``30s``, ``500ms``."""
    for unit in ("d", "h", "m", "s"):
        size = _UNITS[unit]
        if seconds >= size and math.isclose(seconds / size, round(seconds / size)):
            if unit != "s" and round(seconds / size) == 1:
                continue  # 60s rather than 1m
            return f"{round(seconds / size)}{unit}"
    return f"{seconds * 1000:g}ms" if 0 < seconds < 1 else f"{seconds:g}s"


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration with its unit, which the command receives in seconds.

    Args:
        least: smallest accepted number of seconds.
        bare: unit of a number without one; ``"s"`` or, where Kafka's tool uses milliseconds,
            ``"ms"``.
    """

    name = "time"

    def __init__(self, least: float = 0.0, bare: str = "s") -> None:
        self.least = least
        self.bare = bare

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the placeholder of the value in the help."""
        return "TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number of seconds in a text such as ``30s``."""
        if isinstance(value, int | float):
            return float(value)
        parts = _FORM.fullmatch(str(value).strip())
        if parts is None:
            self.fail(f"{value!r} is not a time: write 500ms, 30s, 5m, 2h or 1d", param, ctx)
        seconds = float(parts[1]) * _UNITS[parts[2] or self.bare]
        if seconds < self.least:
            self.fail(f"{value} is too short: at least {shown(self.least)}", param, ctx)
        return seconds


def duration_option(
    *names: str, help: str, default: float | None = None, least: float = 0.0, bare: str = "s"
) -> Callable[[F], F]:
    """Return a click option that takes a duration and shows its default with a unit.

    Args:
        names: as for ``click.option``.
        help: one sentence; the format of the value is added.
        default: seconds.
        least: smallest accepted number of seconds.
        bare: unit of a number without one.
    """
    default_text = "" if default is None else f"  [default: {shown(default)}]"
    return click.option(
        *names,
        type=Duration(least, bare),
        default=default,
        metavar="TIME",
        help=help + default_text,
    )
