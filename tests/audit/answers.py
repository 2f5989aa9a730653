"""Compares the answers of ``zkaudit log`` and ``zkaudit who`` with the tables of an audit, and the
tables of two audits.

``python -m tests.audit.answers LOGS AUDIT [SEED]`` does so for the logs of one server.
"""

from __future__ import annotations

import os
import random
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from zkaudit.decode.batches import LogReader
from zkaudit.group import UNKNOWN, Lifetime
from zkaudit.local.history import Question, read
from zkaudit.local.log import entries
from zkaudit.local.who import who
from zkaudit.tables.catalog import TABLES

SEED = int(os.environ.get("AUDIT_SEED", "20261126"))
DRAWS = 60


def table(audit: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    rows = ds.dataset(audit / "tables" / name, format="parquet").to_table()
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            utc = rows[field.name].cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
            rows = rows.set_column(at, field.name, utc)
    values: list[dict[str, Any]] = rows.to_pylist()
    return values


def same(first: Path, second: Path) -> None:
    """Check that all tables of two audits have the same rows."""
    for spec in TABLES:
        names = [column.name for column in spec.columns]
        rows = [
            sorted(repr([row[name] for name in names]) for row in table(audit, spec.name))
            for audit in (first, second)
        ]
        assert rows[0] == rows[1], spec.name


def compare(logs: Path, audit: Path, seed: int = SEED) -> int:
    """Compare all writes of offsets, and the owners of random partitions at random times. Return
    the number of comparisons."""
    commits = [row for row in table(audit, "commits") if row["store"] == "zookeeper"]
    groups = sorted({row["group_id"] for row in commits})
    names = (
        "chroot",
        "topic",
        "partition",
        "zxid",
        "idx",
        "session",
        "committed_offset",
        "previous",
    )
    for group in groups:
        said = {
            tuple(getattr(entry, name) for name in names)
            for entry in entries(read(Question([str(logs)], group)), group)
            if entry.kind == "offset"
        }
        stored = {tuple(row[name] for name in names) for row in commits if row["group_id"] == group}
        assert said == stored, group
    return len(commits) + compare_owners(logs, audit, random.Random(seed), seed)


def compare_owners(logs: Path, audit: Path, rng: random.Random, seed: int) -> int:
    """Compare the owners of random partitions at random times."""
    owned = table(audit, "ownership")
    times = sorted(
        (row["time"], row["zxid"])
        for log in logs.glob("log.*")
        for batch in LogReader(log, columns=("zxid", "time")).batches()
        for row in batch.to_pylist()
    )
    span = times[-1][0] - times[0][0]
    for draw in range(DRAWS):
        row = rng.choice(owned)
        edges = [time for time in (row["start_time"], row["end_time"]) if time is not None]
        at = times[0][0] + span * rng.random()
        if rng.random() < 0.5 and edges:
            at = rng.choice(edges) + timedelta(milliseconds=rng.choice((-1, 0, 1)))
        at = min(max(at, times[0][0]), times[-1][0])
        zxid = max(zxid for time, zxid in times if time <= rounded(at))
        where = {name: row[name] for name in ("chroot", "group_id", "topic", "partition")}
        here = [r for r in owned if all(r[name] == value for name, value in where.items())]
        question = Question([str(logs)], row["group_id"])
        (answer,) = (
            answer
            for answer in who(question, row["topic"], row["partition"], at.isoformat(" "))
            if answer.chroot == row["chroot"]
        )
        about = (
            f"{where} at {at}: python -m tests.audit.answers {logs} {audit} {seed} (draw {draw})"
        )
        check(answer.owner, here, zxid, times[0][1] > 1, about)
    return DRAWS


def rounded(at: datetime) -> datetime:
    """Logs have milliseconds."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def check(owner: object, rows: list[dict[str, Any]], zxid: int, late: bool, about: str) -> None:
    """Compare an answer with the lifetimes of a partition's owner znodes. ``late``: the logs do not
    begin with the first transaction."""
    covering = [
        row
        for row in rows
        if (row["start_zxid"] or 0) <= zxid and (row["end_zxid"] is None or row["end_zxid"] > zxid)
    ]
    if isinstance(owner, Lifetime):
        end = owner.end and owner.end.zxid
        mine = (owner.session, owner.member, owner.start_zxid, end, owner.ended.value)
        names = ("session", "member", "start_zxid", "end_zxid", "ended")
        same = [row for row in covering if tuple(row[name] for name in names) == mine]
        if owner.start is UNKNOWN:  # the member is known from its registration
            same = [row for row in covering if (row["session"], row["end_zxid"]) == (mine[0], end)]
        assert len(same) == 1, about
    elif owner is UNKNOWN:
        unsure = [row for row in rows if row["start_zxid"] is None or row["ended"] == "unknown"]
        first = all((row["start_zxid"] or 0) > zxid for row in rows)
        assert unsure or (late and first), about
        assert all(row in unsure for row in covering), about
    else:
        assert covering == [], about


if __name__ == "__main__":
    place, audited, *more = sys.argv[1:]
    number = int(more[0]) if more else SEED
    sys.stdout.write(f"{compare(Path(place), Path(audited), number)} comparisons\n")
