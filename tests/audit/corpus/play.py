"""Play all incidents of a corpus on a real server at the same time and store its log."""

from __future__ import annotations

import gzip
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zkaudit.decode.batches import LogReader

from tests.audit.corpus.incidents import SETTLED, Corpus, Incident, Scene, wait
from tests.audit.corpus.wire import Session
from zkconsumer.servers.local_cluster import LocalZooKeeper

RECORDED = Path(__file__).with_name("recorded")
"""Has a directory for each corpus."""
CUT = "/cut"
"""The znode that is created between the first and the second parts of all incidents."""


def play(corpus: Corpus, out: Path) -> None:
    """Record ``out/log.1.gz``. An exception of an incident is raised again."""
    with tempfile.TemporaryDirectory() as folder:
        with LocalZooKeeper("3.9", dir=folder) as server:
            run(corpus, server.zookeeper)
            server.kill()
        (log,) = Path(folder).rglob("log.*")
        store(corpus, log, out)


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


def run(corpus: Corpus, address: str) -> None:
    """Play both parts of every incident. All finish the first part before any continues."""
    every = list(corpus.incidents.values())
    middle = threading.Barrier(len(every) + 1, timeout=120)

    def both(incident: Incident) -> None:
        parts = incident.play(Scene(address, incident.name, incident.chroot, incident.partitions))
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
