"""Record a corpus on a real server: play its incidents, or replay an earlier recording.

``play`` plays all incidents at the same time. ``replay`` is for a corpus that is only a recording:
the same sessions make the same requests again, in the same order and at the same times.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.security import OPEN_ACL_UNSAFE
from zkaudit.decode.batches import LogReader
from zkaudit.decode.txnlog import Operation, read_transactions
from zkaudit.schema import NODE_EXISTS

from tests.audit.corpus.incidents import RECORDED, SETTLED, Corpus, Incident, Scene, wait
from tests.audit.corpus.wire import Session
from zkconsumer.servers.local_cluster import LocalZooKeeper

CUT = "/cut"
"""The znode that is created between the first and the second parts of all incidents."""


def record(corpus: Corpus, out: Path) -> None:
    """Record ``out/log.1.gz``. An exception of an incident is raised again."""
    played = all(incident.play is not None for incident in corpus.incidents.values())
    with tempfile.TemporaryDirectory() as folder:
        with LocalZooKeeper("3.9", dir=folder) as server:
            if played:
                play(corpus, server.zookeeper)
            else:
                replay(unpacked(corpus, Path(folder)), server.zookeeper)
            server.kill()
        (log,) = (Path(folder) / "data").rglob("log.*")
        store(corpus, log, out)


def unpacked(corpus: Corpus, folder: Path) -> Path:
    """Write the recorded log of a corpus to a directory."""
    (packed,) = (RECORDED / corpus.name).glob("log.*.gz")
    log = folder / packed.stem
    log.write_bytes(gzip.decompress(packed.read_bytes()))
    return log


def store(corpus: Corpus, log: Path, out: Path) -> None:
    """Compress a recorded log, without the space that the server has reserved."""
    reader = LogReader(log)
    for _ in reader.heads():
        pass
    assert reader.end is not None
    out.mkdir(parents=True, exist_ok=True)
    whole = log.read_bytes()[: reader.end.position]
    (out / f"{log.name}.gz").write_bytes(gzip.compress(whole, mtime=0))
    sys.stdout.write(f"{len(corpus.incidents)} incidents, {reader.transactions:,} transactions\n")


def play(corpus: Corpus, address: str) -> None:
    """Play both parts of every incident. All finish the first part before any continues."""
    every = list(corpus.incidents.values())
    middle = threading.Barrier(len(every) + 1, timeout=120)

    def both(incident: Incident) -> None:
        assert incident.play is not None
        parts = incident.play(Scene(address, incident.name))
        try:
            next(parts)
        except BaseException:
            middle.abort()
            raise
        middle.wait()
        middle.wait()
        for _ in parts:
            raise AssertionError(f"{incident.name} has more than two parts")

    with ThreadPoolExecutor(len(every)) as pool:
        playing = [pool.submit(both, incident) for incident in every]
        middle.wait()
        marks = Session(address)
        marks.create(CUT)
        middle.wait()
        for done in playing:
            done.result()
    wait(SETTLED)
    marks.create("/end")


def replay(log: Path, address: str) -> None:
    """Make the requests of a recorded log again, and wait for each session that expired in it.

    Sessions and znodes' access lists differ. A refused write is refused again, of another znode.
    """
    operations = list(read_transactions(log))
    ends = {op.session: op.time_ms for op in operations if _is_expiry(op)}
    client, begin, late = _Sessions(address, ends), operations[0].time_ms, time.monotonic()
    for _, parts in groupby(operations, lambda op: op.zxid):
        made = list(parts)
        at = made[0].time_ms
        while (left := (at - begin) / 1000 - (time.monotonic() - late)) > 0:
            client.keep_open(at - left * 1000)
            wait(min(left, 0.05))
        client.keep_open(at)
        late += client.repeat(made)


def _is_expiry(op: Operation) -> bool:
    return op.type == "closeSession" and op.cxid == 0


class _Sessions:
    """The sessions of a recording. ``ends``: when those ended that expired, in milliseconds."""

    def __init__(self, address: str, ends: dict[int, int]) -> None:
        self._address, self._ends = address, ends
        self._open: dict[int, tuple[Session, int]] = {}
        """Each with its timeout in milliseconds."""
        self._watcher = Session(address)
        self._open[0] = self._watcher, 40_000
        self._used = {0: 0.0}
        self._ephemeral: defaultdict[int, set[str]] = defaultdict(set)

    def keep_open(self, now: float) -> None:
        """Send heartbeats, to sessions that expire until it is time that they do not."""
        for number, (session, timeout) in list(self._open.items()):
            end = self._ends.get(number)
            if end is not None and now >= end - timeout:
                session.exists("/")
                session.abandon()
                del self._open[number]
            elif now - self._used[number] > timeout / 4:
                session.exists("/")
                self._used[number] = now

    def repeat(self, made: list[Operation]) -> float:
        """Make one transaction again. Return how many seconds that took because a session had to
        expire first."""
        op, number = made[0], made[0].session
        self._used[number] = op.time_ms
        if op.type == "createSession":
            self._open[number] = Session(self._address, op.timeout or 0), op.timeout or 0
        elif _is_expiry(op):
            begin = time.monotonic()
            for path in self._ephemeral.pop(number, ()):
                self._wait_gone(path)
            return time.monotonic() - begin
        elif op.type == "closeSession":
            self._open.pop(number)[0].close()
        elif op.type == "setACL":
            self._open[number][0].set_acl(op.path or "", OPEN_ACL_UNSAFE)
        else:
            self._write(number, made)
        return 0.0

    def _write(self, number: int, made: list[Operation]) -> None:
        session, refused = self._open[number][0], any(op.type == "error" for op in made)
        try:
            if made[0].size:
                session.multi(*map(_request, made))
            else:
                session.send(_request(made[0]))
        except KazooException:
            if not refused:
                raise
        for op in made:
            if op.ephemeral:
                self._ephemeral[number].add(op.path or "")
            elif op.type == "delete":
                for paths in self._ephemeral.values():
                    paths.discard(op.path or "")

    def _wait_gone(self, path: str) -> None:
        deadline = time.monotonic() + 60
        with suppress(KazooException):
            while time.monotonic() < deadline:
                self._watcher.exists(path)
                wait(0.02)
            raise TimeoutError(f"{path} is still there")


def _request(op: Operation) -> Create | SetData | Delete | CheckVersion:
    """The request that the server logs as this operation. The logged version is the next one."""
    path, data = op.path or "/zookeeper", op.data or b""
    if op.type == "create" or op.error == NODE_EXISTS:
        return Create(path, data, OPEN_ACL_UNSAFE, 1 if op.ephemeral else 0)
    if op.type == "setData":
        return SetData(path, data, -1)
    if op.type == "delete":
        return Delete(path, -1)
    return CheckVersion(path, -1) if op.error in (None, 0) else Delete("/no/such/znode", -1)
