"""Read a run with zkaudit, and fill in the judge's history. Main thread.

``read`` uses zkaudit's decoders, its merging of three servers' logs, and its fold over the events
of a group. It takes seconds. ``run`` is the whole ``zkaudit run``, with its findings. It takes
minutes.
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
from zkaudit.group import (
    ACTS,
    UNKNOWN,
    Commit,
    Event,
    Kind,
    Lifetime,
    Write,
    replay,
)
from zkaudit.history import committed
from zkaudit.sources.offsets import consumer

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
    done = replay(
        Event(op.zxid, op.idx, op.time_ms * 1000, op.session, ACTS[op.type], op.path, op.data,
              op.ephemeral, op.cxid)
        for op in operations
        if op.type in ACTS
        and (op.type == "closeSession" or (op.path or "").startswith(f"/consumers/{GROUP}/"))
    )  # fmt: skip
    members: dict[int, str] = {}

    def end(lifetime: Lifetime) -> float | None:
        return None if lifetime.end is None else times[lifetime.end.zxid]

    for one in sorted(done.lifetimes, key=_start):
        began, session, how = times[_start(one)[0]], one.session or 0, one.ended.value
        if one.znode.tree == "ids":
            name = members[session] = _name(one.znode.name)
            history.registrations.append(Registration(name, session, began, end(one), how))
        elif one.znode.topic == TOPIC and one.znode.partition is not None:
            name = _name(one.member)
            partition = one.znode.partition
            history.claims.append(Claim(partition, name, session, began, end(one), how))
    for write in done.commits:
        if write.znode.topic != TOPIC or write.znode.partition is None:
            continue
        history.commits += write.kind is Kind.COMMIT
        member = members.get(write.session, "")
        partition, at = write.znode.partition, times[write.zxid]
        offset = write.offset or 0
        before = write.previous.offset if isinstance(write.previous, Write) else None
        if before is not None and offset < before:
            history.lowered.append(Lowered(at, partition, member, before, offset))
        owner = write.owner if isinstance(write.owner, Lifetime) else None
        if owner is None or owner.session != write.session:
            name = _name(owner.member) if owner else ""
            deleter = members.get(_deleted_by(done.lifetimes, write) or 0, "")
            history.foreign.append(Foreign(at, partition, member, name, deleter))
    if KINDS[history.kind].member == "coordinator":
        _from_journals(history, folder / "journals")
        losses_in_logs(history, folder / "logs")
        _from_kafka(history, folder / "offsets.jsonl")


def _start(lifetime: Lifetime) -> tuple[int, int]:
    """Where it began: whole logs show every create."""
    assert lifetime.start is not UNKNOWN
    return lifetime.start.zxid, lifetime.start.idx


def _deleted_by(lifetimes: list[Lifetime], write: Commit) -> int | None:
    """The session that deleted the writer's last owner znode, if it was another session."""
    mine = [
        (one.end[:2], one.ended_by)
        for one in lifetimes
        if one.znode.tree == "owners"
        and one.znode.name == write.znode.name
        and one.session == write.session
        and one.end
        and one.end[:2] < (write.zxid, write.idx)
    ]
    last = max(mine, default=None)
    return last[1] if last and last[1] != write.session else None


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
        if row["kind"] != "offset" or row["group_id"] != GROUP or row.get("committed") is None:
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
