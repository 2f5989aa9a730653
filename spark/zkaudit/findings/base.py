"""The tables from which findings are derived.

Runs in the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from zkaudit.group import LogGap


@dataclass(frozen=True)
class Tables:
    """The tables from which findings are derived, described in ``zkaudit.tables.catalog``."""

    registrations: DataFrame
    commits: DataFrame
    herds: DataFrame
    deliveries: DataFrame
    views: DataFrame
    end_us: int | None
    """Time of the last transaction of the history, in microseconds since 1970."""
    known: tuple[int | None, ...] = (0,)
    """For each segment between log gaps, the zxid from which all ephemeral znodes are known, as
    ``selection.known`` returns it."""
    has_journals: bool = False
    """Whether members' journals are available."""
    log_gaps: tuple[LogGap, ...] = ()
    """The gaps in which transactions are missing, from ``committed.log_gaps_of``."""
    moving: DataFrame | None = None
    """The groups that have a mode, with ``moves`` true (``timeline.with_mode``)."""
    group_ownership: DataFrame | None = None
    """Table ``group_ownership``; ``None`` if no group has a mode, and no data about groups on the
    coordinator was read."""
    generations: DataFrame | None = None
    """Table ``generations`` with the chroot of each group, empty where it is unknown; ``None`` if
    no records of a coordinator were read."""
