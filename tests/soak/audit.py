"""What zkaudit makes of a run: it reads all ZooKeeper servers' logs, Kafka's stored offsets and the
members' journals; its tables become the judge's history. Main thread.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from tests.soak.arena import GROUP, ROOT, TOPIC, Arena
from tests.soak.history import Claim, Finding, History, Lowered, Registration
from tests.soak.kinds import KINDS
from zkconsumer.errors import ClusterError

AUDIT_SECONDS = 600.0


def copy_logs(arena: Arena) -> None:
    """Keep ZooKeeper's logs as they are before the members leave: all three servers'."""
    for server in arena.cluster.zookeeper_servers:
        source = arena.folder / "servers" / "data" / server.name / "version-2"
        shutil.copytree(source, arena.folder / "zookeeper-logs" / server.name)


def run(arena: Arena, history: History) -> None:
    """Run the audit and fill in the history. Raises ClusterError when there is no audit."""
    folder = arena.folder
    argv = [str(Path(sys.executable).with_name("zkaudit")), "run", "--group", GROUP]
    for place in sorted((folder / "zookeeper-logs").iterdir()):
        argv += ["--zookeeper-logs", str(place)]
    argv += ["--journals", str(folder / "journals"), "--out", str(folder / "audit")]
    coordinated = KINDS[history.kind].member == "coordinator"
    if coordinated:
        argv += ["--bootstrap-server", arena.cluster.bootstrap]
    with (folder / "logs" / "audit.log").open("wb") as log:
        done = subprocess.run(
            argv, stdout=log, stderr=log, cwd=ROOT, timeout=AUDIT_SECONDS, check=False
        )
    if done.returncode:
        words = (folder / "logs" / "audit.log").read_text(errors="replace").splitlines()
        raise ClusterError(f"zkaudit ended with {done.returncode}: {(words or ['?'])[-1]}")
    take(history, folder / "audit" / "tables")


def take(history: History, tables: Path) -> None:
    """Fill in the history from an audit's tables."""
    members: dict[int, str] = {}
    for row in _rows(tables / "registrations"):
        members[row["session"]] = _name(row["member"])
        history.registrations.append(
            Registration(
                _name(row["member"]),
                row["session"] or 0,
                _seconds(row["start_time"]),
                None if row["end_time"] is None else _seconds(row["end_time"]),
                row["ended"],
            )
        )
    if KINDS[history.kind].member == "coordinator":
        _from_journals(history, tables)
    else:
        for row in _rows(tables / "ownership"):
            if row["topic"] == TOPIC and row["start_time"] is not None:
                history.claims.append(
                    Claim(
                        row["partition"],
                        _name(row["member"]),
                        row["session"] or 0,
                        _seconds(row["start_time"]),
                        None if row["end_time"] is None else _seconds(row["end_time"]),
                        row["ended"],
                    )
                )
    _lowered(history, tables, members)
    for row in _rows(tables / "findings"):
        history.findings.append(
            Finding(row["severity"], row["kind"], _name(row["member"]), row["sentence"])
        )


def _from_journals(history: History, tables: Path) -> None:
    for row in _rows(tables / "deliveries"):
        if row["topic"] == TOPIC and row["start_time"] is not None:
            history.claims.append(
                Claim(
                    row["partition"],
                    _name(row["member"]),
                    0,
                    _seconds(row["start_time"]),
                    None if row["ended"] == "open" else _seconds(row["end_time"]),
                    row["ended"],
                )
            )


def _lowered(history: History, tables: Path, members: dict[int, str]) -> None:
    highest: dict[int, int] = {}
    rows = [row for row in _rows(tables / "commits") if row["topic"] == TOPIC]
    rows.sort(key=lambda row: (row["log_partition"] or 0, row["log_offset"] or row["zxid"] or 0))
    for row in rows:
        partition, offset = row["partition"], row["offset"]
        if offset is None:
            continue
        if offset < highest.get(partition, 0):
            history.lowered.append(
                Lowered(
                    _seconds(row["time"]) if row["time"] else 0.0,
                    partition,
                    members.get(row["session"], ""),
                    highest[partition],
                    offset,
                )
            )
        highest[partition] = offset
    history.commits = len(rows)


def _rows(place: Path) -> Iterator[dict[str, Any]]:
    return iter(parquet.read_table(place).to_pylist())


def _name(member: str | None) -> str:
    return (member or "").removeprefix(f"{GROUP}_")


def _seconds(time: datetime) -> float:
    return time.timestamp()
