"""Read a run with zkaudit, and fill in the judge's history. Main thread.

``read`` uses zkaudit's decoders, its merging of three servers' logs, and the sequential replay that
specifies its Spark tables. It takes seconds. ``run`` is the whole ``zkaudit run``, with its
findings. It takes minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
from zkaudit.decode.offsets_topic import decode
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.history import committed
from zkaudit.sources.offsets import consumer

from tests.audit.tables.test_intervals import Commit, Lifetime, Row, member_of, replay
from tests.soak.arena import GROUP, ROOT, SERVERS, TOPIC, Arena
from tests.soak.history import Claim, Expelled, Finding, Foreign, History, Lowered, Registration
from tests.soak.kinds import KINDS
from zkconsumer.errors import ClusterError

AUDIT_SECONDS = 3600.0
OFFSETS_TOPIC = "__consumer_offsets"


def copy_logs(arena: Arena) -> None:
    """Copy the ZooKeeper logs of all three servers before the members leave."""
    for server in arena.cluster.zookeeper_servers:
        source = arena.folder / "servers" / "data" / server.name / "version-2"
        shutil.copytree(source, arena.folder / "zookeeper-logs" / server.name)


def copy_offsets(arena: Arena) -> None:
    """Copy the records of Kafka's offsets topic, as JSON Lines."""
    from kafka import TopicPartition

    with (
        closing(consumer(arena.cluster.bootstrap)) as found,
        (arena.folder / "offsets.jsonl").open("w") as file,
    ):
        places = [
            TopicPartition(OFFSETS_TOPIC, n) for n in found.partitions_for_topic(OFFSETS_TOPIC)
        ]
        ends = found.end_offsets(places)
        for place in places:
            found.assign([place])
            found.seek_to_beginning(place)
            while found.position(place) < ends[place]:
                for record in found.poll(timeout_ms=1000).get(place, []):
                    row = decode(record.key, record.value)
                    row |= {"log_partition": place.partition, "log_offset": record.offset}
                    file.write(json.dumps(row | {"ms": record.timestamp}) + "\n")


def read(folder: Path, history: History) -> None:
    """Fill in the history from the logs, the offsets and the journals below ``folder``."""
    there = KINDS[history.kind].zookeeper
    operations = _operations(folder / "zookeeper-logs") if there else []
    times = {op.zxid: op.time_ms / 1000 for op in operations}
    rows = [
        Row(op.zxid, op.idx, op.session, op.type, op.path, op.data, op.ephemeral, op.cxid)
        for op in operations
        if op.type == "closeSession" or (op.path or "").startswith(f"/consumers/{GROUP}/")
    ]
    done = replay(rows, [])
    members: dict[int, str] = {}

    def end(lifetime: Lifetime) -> float | None:
        return None if lifetime.end is None else times[lifetime.end[0]]

    for one in done.lifetimes:
        kind, _, rest = one.path.removeprefix(f"/consumers/{GROUP}/").partition("/")
        assert one.start is not None
        began, session = times[one.start[0]], one.session or 0
        if kind == "ids":
            members[session] = _name(rest)
            registration = Registration(_name(rest), session, began, end(one), one.ended)
            history.registrations.append(registration)
        elif rest.startswith(f"{TOPIC}/"):
            owner = member_of(one.data)
            name = _name(owner[0] if owner else "")
            partition = int(rest.rpartition("/")[2])
            history.claims.append(Claim(partition, name, session, began, end(one), one.ended))
    for write in done.commits:
        if f"/offsets/{TOPIC}/" not in write.path:
            continue
        history.commits += write.kind == "commit"
        member = members.get(write.session, "")
        partition, at = int(write.path.rpartition("/")[2]), times[write.at[0]]
        if write.previous is not None and (write.offset or 0) < write.previous:
            history.lowered.append(
                Lowered(at, partition, member, write.previous, write.offset or 0)
            )
        if write.owner is None or write.owner.session != write.session:
            owner = member_of(write.owner.data) if write.owner else None
            name = _name(owner[0]) if owner else ""
            deleter = members.get(_deleted_by(done.lifetimes, write) or 0, "")
            history.foreign.append(Foreign(at, partition, member, name, deleter))
    if KINDS[history.kind].member == "coordinator":
        _from_journals(history, folder / "journals")
        losses_in_logs(history, folder / "logs")
        _from_kafka(history, folder / "offsets.jsonl")


def _deleted_by(lifetimes: list[Lifetime], write: Commit) -> int | None:
    """The session that deleted the writer's last owner znode, if it was another session."""
    path = write.path.replace("/offsets/", "/owners/")
    mine = [
        one
        for one in lifetimes
        if one.path == path and one.session == write.session and one.end and one.end < write.at
    ]
    last = max(mine, key=lambda one: one.end or (0, 0), default=None)
    return last.ended_by if last and last.ended_by != write.session else None


def _operations(place: Path) -> list[Operation]:
    """Every committed operation once, in order, from the logs of all servers."""
    logs: dict[str, dict[int, list[Operation]]] = {}
    runs = []
    for server in sorted(place.iterdir()):
        mine = logs.setdefault(server.name, {})
        for file in sorted(server.glob("log.*"), key=lambda path: int(path.name[4:], 16)):
            for zxid, group in groupby(read_transactions(file), key=lambda op: op.zxid):
                mine[zxid] = list(group)
        for zxid in sorted(mine):
            last = runs[-1] if runs else None
            if last is not None and last.server == server.name and last.last + 1 == zxid:
                runs[-1] = committed.Run(server.name, last.first, zxid)
            else:
                runs.append(committed.Run(server.name, zxid, zxid))
    found: list[Operation] = []
    for name, ranges in committed.plan(runs, SERVERS).take.items():
        for first, last in ranges:
            found += [op for zxid in logs[name] if first <= zxid <= last for op in logs[name][zxid]]
    return sorted(found, key=lambda op: (op.zxid, op.idx))


def _from_journals(history: History, place: Path) -> None:
    """Which member fetched which partition, with start and end."""
    for file in sorted(place.glob("*.jsonl")):
        mine: dict[str, Claim] = {}
        for line in file.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            at, name = entry["at"] / 1e6, entry.get("name")
            if name == "StartFetching":
                for partition in entry.get("partitions", ()):
                    number = int(partition.rpartition("-")[2])
                    mine[partition] = Claim(number, _name(entry["member"]), 0, at, None)
                    history.claims.append(mine[partition])
            elif name in ("FetchingStopped", "Dropped"):
                if name == "Dropped":
                    history.expelled.append(Expelled(_name(entry["member"]), at))
                for partition in entry.get("offsets", ()):
                    if partition in mine:
                        mine.pop(partition).ended = at


def losses_in_logs(history: History, place: Path) -> None:
    """Losses of members whose journals had ended. Each is also a line of the member's log."""
    for member in {m for f in history.faults if f.kind == "full disk" for m in f.members}:
        known = [one.at for one in history.expelled if one.member == member]
        for line in (place / f"{member}.err").read_text().splitlines():
            if "zkconsumer.member lost: " in line:
                whole, thousandths = line[:23].split(",")
                at = time.mktime(time.strptime(whole, "%Y-%m-%d %H:%M:%S"))  # logging's own format
                at += int(thousandths) / 1000
                if all(abs(at - other) > 1 for other in known):
                    history.expelled.append(Expelled(member, at))


def _from_kafka(history: History, file: Path) -> None:
    """Offsets that went down in Kafka."""
    highest: dict[int, int] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] != "offset" or row["group"] != GROUP or row.get("committed") is None:
            continue
        partition, offset = row["partition"], row["committed"]
        history.commits += 1
        before = highest.get(partition, 0)
        if offset < before:
            history.lowered.append(Lowered(row["ms"] / 1000, partition, "", before, offset))
        highest[partition] = offset


def run(arena: Arena, history: History) -> None:
    """Run ``zkaudit`` and return its findings. Raises ClusterError if it fails."""
    folder = arena.folder
    argv = [str(Path(sys.executable).with_name("zkaudit")), "run", "--group", GROUP]
    argv += ["--servers", str(SERVERS)]  # drops what only a paused leader logged
    for place in sorted((folder / "zookeeper-logs").iterdir()):
        argv += ["--zookeeper-logs", str(place)]
    argv += ["--journals", str(folder / "journals"), "--out", str(folder / "audit")]
    if KINDS[history.kind].member == "coordinator":
        argv += ["--bootstrap-server", arena.cluster.bootstrap]
    file = folder / "logs" / "audit.log"
    with file.open("wb") as log:
        done = subprocess.run(
            argv, stdout=log, stderr=log, cwd=ROOT, timeout=AUDIT_SECONDS, check=False
        )
    if done.returncode:
        words = file.read_text(errors="replace").splitlines()
        raise ClusterError(f"zkaudit ended with {done.returncode}: {(words or ['?'])[-1]}")
    for row in _rows(folder / "audit" / "tables" / "findings"):
        history.findings.append(
            Finding(row["severity"], row["kind"], _name(row["member"]), row["sentence"])
        )


def _rows(place: Path) -> Iterator[dict[str, Any]]:
    return iter(parquet.read_table(place).to_pylist())


def _name(member: str | None) -> str:
    return (member or "").removeprefix(f"{GROUP}_")
