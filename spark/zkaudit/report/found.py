"""The findings of an audit as plain values: read, filtered, and compared with expected findings.

Needs no Spark. Any thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zkaudit.errors import InputMissingError
from zkaudit.findings.expected import Expected, expected_of, gone
from zkaudit.findings.kinds import LASTING
from zkaudit.findings.places import not_covered
from zkaudit.job.coverage import Coverage
from zkaudit.job.place import finished
from zkaudit.limits import NOT_COVERED, SEVERITIES
from zkaudit.show import command
from zkaudit.sources.selection import milliseconds
from zkaudit.text import hex_of, no_group, regex_of

Row = dict[str, Any]


def read(out: Path, start: str | None = None, end: str | None = None) -> list[Row]:
    """Return the findings of an audit in a fixed order: the worst first, then by transaction.

    Times are ISO in UTC; sessions and zxids are hexadecimal. If the audit does not include all of
    the time from ``start`` to ``end`` (ISO), that is also a finding. Raises InputMissingError if
    ``out`` does not contain a finished audit.
    """
    import pyarrow.parquet as pq

    summary, tables = finished(out)
    try:
        rows = pq.read_table(tables / "findings").to_pylist()
    except (OSError, ValueError) as error:
        raise InputMissingError(f"{out}: there is no audit in this directory: {error}") from None
    missing = not_covered(_beyond(summary, start, end).sentences())
    return plain([*rows, *missing], summary.get("directories", ()))


def _beyond(summary: Mapping[str, Any], start: str | None, end: str | None) -> Coverage:
    """Return which part of a time is before or after the time of an audit. Logs that begin with the
    first transaction have no time before."""
    late = any(after == 0 for after, _ in summary.get("log_gaps", ()))
    first = summary.get("from") or (summary.get("first_time") if late else None)
    last = summary.get("to") or summary.get("last_time")
    begin, until, start_ms, end_ms = (
        None if time is None else milliseconds(time) for time in (first, last, start, end)
    )
    missing: list[tuple[int | None, int | None, str]] = []
    if start_ms is not None and begin is not None and start_ms < begin:
        missing.append((start_ms, min(begin, end_ms or begin), "the audit begins later"))
    latest = start_ms if end_ms is None else end_ms
    if latest is not None and until is not None and latest > until:
        missing.append((max(until, start_ms or until), end_ms, "the audit ends earlier"))
    return Coverage(begin, until, {}, (), tuple(missing))


def plain(rows: Iterable[Row], directories: Sequence[str]) -> list[Row]:
    """Return rows of table ``findings`` in the form of ``read``. ``directories``: the directories
    of the logs."""
    ordered = sorted(rows, key=_order)
    return [_plain(row) | {"command": command(row["zxid"], directories)} for row in ordered]


def _order(row: Row) -> tuple[Any, ...]:
    names = (row[name] or "" for name in ("kind", "chroot", "group_id", "topic"))
    partition = -1 if row["partition"] is None else row["partition"]
    return (
        SEVERITIES.index(row["severity"]), row["zxid"] or 0, *names, partition, row["sentence"]
    )  # fmt: skip


def _plain(row: Row) -> Row:
    plain: Row = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=UTC)
            value = moment.astimezone(UTC).isoformat(timespec="milliseconds")
        elif name in ("zxid", "end_zxid", "session") and value is not None:
            value = hex_of(value)
        elif name == "evidence":
            value = [_plain(part) for part in value or ()]
        plain[name] = value
    return plain


@dataclass(frozen=True, slots=True)
class Choice:
    """A filter for findings. Empty and ``None`` match all.

    Time that no log covers may hide findings of any severity about any topic and member. So only
    ``kinds``, ``start`` and ``end`` apply to findings about such time.

    Args:
        group: findings about this group, and those about no group, which concern all groups.
        severity: findings of this severity or worse.
        start: ISO time; leave out findings that ended before this time.
        end: ISO time; leave out findings that begin at this time or later.
        members: findings about members whose id contains one of these texts. Ids end with random
            digits.
    """

    group: str | None = None
    severity: str | None = None
    kinds: Collection[str] = ()
    topics: Collection[str] = ()
    members: Collection[str] = ()
    start: str | None = None
    end: str | None = None

    def of(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the findings that match."""
        bad = SEVERITIES[: SEVERITIES.index(self.severity or SEVERITIES[-1]) + 1]
        for row in rows:
            if (
                (self.group is None or row["group_id"] in (self.group, None))
                and (not self.kinds or row["kind"] in self.kinds)
                and (row["kind"] == NOT_COVERED or (row["severity"] in bad and self._about(row)))
                and self._at_the_time(row)
            ):
                yield row

    def _about(self, row: Row) -> bool:
        """Whether a finding is about one of the topics and one of the members."""
        member = row["member"] or ""
        return (not self.topics or row["topic"] in self.topics) and (
            not self.members or any(text in member for text in self.members)
        )

    def _at_the_time(self, row: Row) -> bool:
        if row["time"] is None:
            return True
        begin = datetime.fromisoformat(row["time"])
        if self.end is not None and begin >= datetime.fromisoformat(self.end):
            return False
        if self.start is None or (row["end_time"] is None and row["kind"] in LASTING):
            return True
        until = begin if row["end_time"] is None else datetime.fromisoformat(row["end_time"])
        return until >= datetime.fromisoformat(self.start)


def check_group(out: Path, group: str) -> None:
    """Raise InputMissingError if no table of the audit has a row of the group.

    Reads one column of each table, up to the first row of the group.
    """
    import pyarrow.dataset as ds

    from zkaudit.tables.catalog import TABLES

    _, tables = finished(out)
    for table in TABLES:
        place = tables / table.name
        if not place.is_dir() or all(column.name != "group_id" for column in table.columns):
            continue
        try:
            found = ds.dataset(place, format="parquet").scanner(
                columns=["group_id"], filter=ds.field("group_id") == group
            )
            if any(batch.num_rows for batch in found.to_batches()):
                return
        except (OSError, ValueError) as error:
            raise InputMissingError(f"{out}: the audit is incomplete: {error}") from None
    raise InputMissingError(no_group(regex_of([group]), f"the audit in {out} has"))


def acknowledged(
    out: Path, expected: Mapping[str, Expected]
) -> tuple[Counter[tuple[str, str]], list[Expected]]:
    """Return the number of expected findings of each severity and kind, and the expected findings
    that did not occur."""
    import pyarrow.dataset as ds

    _, tables = finished(out)
    there = ds.dataset(tables / "findings", format="parquet").to_table(
        columns=["id", "severity", "kind"], filter=ds.field("id").isin(list(expected))
    )
    rows = there.to_pylist()
    known = (row for row in rows if expected_of(row, expected))
    counts = Counter((row["severity"], row["kind"]) for row in known)
    return counts, gone(expected.values(), (row["id"] for row in rows))
