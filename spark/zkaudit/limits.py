"""The thresholds of all rules.

Each is an option of the command line. Data only: loads no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SEVERITIES = ("critical", "high", "medium", "low", "info")
"""The severities, the worst first."""
NOT_COVERED = "not covered"
"""The kind of findings about a time that no log covers."""


def _limit(default: float, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class Limits:
    """The thresholds of the rules. Each field's ``help`` explains it. Times are by the clock of
    ZooKeeper's leader."""

    unowned_seconds: float = _limit(30.0, "Report a partition that has had no owner for this long.")
    storm_rebalances: int = _limit(
        10,
        "Report a rebalance storm if there are at least this many rebalances within "
        "--storm-seconds, in ZooKeeper or on the coordinator.",
    )
    storm_seconds: float = _limit(600.0, "Length of the window in which rebalances are counted.")
    storm_per_minute: float = _limit(
        6.0,
        "A rebalance storm with at least this many rebalances a minute is `high`, not `medium`.",
    )
    contention: int = _limit(20, "Report a rebalance with at least this many refused claims.")
    flapping_expiries: int = _limit(
        3,
        "Report a member whose sessions expired, or that left and rejoined its group on the "
        "coordinator, at least this often within --flapping-seconds.",
    )
    flapping_seconds: float = _limit(3600.0, "Length of the window for --flapping-expiries.")
    stalled_seconds: float = _limit(
        300.0,
        "Report an owner that committed regularly and then committed nothing for this long while "
        "other members continued, or nothing for one of its partitions.",
    )
    jump_rate: float = _limit(
        200_000.0,
        "Report an owner whose committed offset rises faster than this many messages a second.",
    )
    view_seconds: float = _limit(
        30.0, "Report two members that act on different views of the group for longer than this."
    )
    skew_seconds: float = _limit(
        1.0,
        "How far the clocks of members' machines may differ; shorter overlaps are not reported.",
    )
    standstill_seconds: float = _limit(
        600.0,
        "Report a live migration that makes no progress for this long: a mode that a "
        "member has not acknowledged, or a group left in mode `locked` or `kafka`.",
    )
    herd_members: int = _limit(50, "Report a change that notified at least this many members.")
