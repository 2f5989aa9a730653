"""A run's figures: medians, targets, and the comparison with the previous recorded run.

Only ratios within one run are compared with another run. Absolute times depend more on the machine
than on the library.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "results" / "speed.json"
TOLERANCE = 0.75
"""The check fails if a ratio falls below this part of the recorded one."""

LEGACY, CLIENT = "JVM legacy 1.1.1", "Java KafkaConsumer 3.9"
Key = tuple[str, str, str]
"""Case, reader, figure."""


@dataclass(frozen=True)
class Target:
    """A target. If ``against`` is given, it applies to the ratio, otherwise to the figure
    itself."""

    name: str
    key: Key
    against: Key | None
    limit: float
    at_least: bool


def _rate(reader: str, case: str = "100 B") -> Key:
    return case, reader, "msg/s"


_TWO = "join, 1,000 partitions, 2 members"
_IDLE = "1,000 partitions"
TARGETS = (
    Target("iterator / JVM legacy", _rate("ours"), _rate(LEGACY), 1.0, True),
    Target("iterator, pure / JVM legacy", _rate("ours, pure"), _rate(LEGACY), 0.6, True),
    Target("batches / JVM legacy", _rate("ours, batches"), _rate(LEGACY), 2.0, True),
    Target("batches / Java KafkaConsumer", _rate("ours, batches"), _rate(CLIENT), 1.0, True),
    Target("arrow / JVM legacy", _rate("ours, arrow"), _rate(LEGACY), 3.0, True),
    Target(
        "CPU seconds, batches / JVM legacy",
        ("100 B", "ours, batches", "CPU s/M"),
        ("100 B", LEGACY, "CPU s/M"),
        1.0,
        False,
    ),
    Target("join of 1,000 / JVM legacy", (_TWO, "ours", "s"), (_TWO, LEGACY, "s"), 1 / 30, False),
    Target(
        "leave, 5,000 partitions, 50 members, s",
        ("leave, 5,000 partitions, 50 members", "ours", "s"),
        None,
        2.0,
        False,
    ),
    *(
        Target(f"{case}, 20 ms, s", (f"{case}, 20 ms", "ours", "s"), None, 0.25, False)
        for case in (
            _TWO,
            "join, 5,000 partitions, 2 members",
            "join, 1,000 partitions, 50 members",
        )
    ),
    Target(
        "commit of 1,000, s", ("later commit, 1,000 partitions", "ours", "s"), None, 0.05, False
    ),
    Target(
        "commit of 1,000, requests",
        ("later commit, 1,000 partitions", "ours", "requests"),
        None,
        10,
        False,
    ),
    Target(
        "p99 latency / JVM legacy",
        ("1,000 msg/s", "ours", "p99 ms"),
        ("1,000 msg/s", LEGACY, "p99 ms"),
        1.0,
        False,
    ),
    Target("idle member, MiB", (_IDLE, "ours", "MiB"), None, 50.0, False),
    Target("idle member, % of a core", (_IDLE, "ours", "% of a core"), None, 1.0, False),
)


def summary(rounds: Mapping[Key, list[float]]) -> list[dict[str, Any]]:
    """The text to write: each figure with its rounds, lowest value, median and highest value."""
    return [
        {"case": case, "reader": reader, "figure": figure, "rounds": values}
        | {"min": min(values), "median": statistics.median(values), "max": max(values)}
        for (case, reader, figure), values in rounds.items()
    ]


def medians(figures: Iterable[Mapping[str, Any]]) -> dict[Key, float]:
    """The median of each figure."""
    return {(f["case"], f["reader"], f["figure"]): f["median"] for f in figures}


def judged(figures: Iterable[Mapping[str, Any]]) -> list[tuple[Target, float, bool]]:
    """Each target that the run measured, the measured value, and whether it reaches the target."""
    found = medians(figures)
    out = []
    for target in TARGETS:
        value = found.get(target.key)
        if target.against is not None and value is not None:
            other = found.get(target.against)
            value = value / other if other else None
        if value is not None:
            good = value >= target.limit if target.at_least else value <= target.limit
            out.append((target, value, good))
    return out


def worse(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """A line for each ratio that is much worse in ``new`` than in the recorded run ``old``.

    Ratios to other readers and numbers of requests are compared, because neither depends on the
    machine.
    """
    before = {target.name: value for target, value, _ in judged(old["figures"])}
    lines = []
    for target, value, _ in judged(new["figures"]):
        if target.name not in before or (target.against is None and "requests" not in target.name):
            continue
        was = before[target.name]
        kept = value / was if target.at_least else was / value if value else 1.0
        if kept < TOLERANCE:
            lines.append(f"{target.name}: {value:.3g}, recorded {was:.3g}")
    return lines
