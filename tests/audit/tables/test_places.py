"""Findings and the places of their transactions. A transaction that may be uncommitted proves
nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

from pyspark.sql import SparkSession
from zkaudit.findings.ids import id_of
from zkaudit.findings.places import UNCONFIRMED, located
from zkaudit.sources.server_logs import addresses
from zkaudit.tables.catalog import FINDINGS

SESSION = -0x7FFFFFFFFFFFFFF0
"""ZooKeeper ids from 128 on are negative numbers."""
SERVER_LOG = """\
2026-11-22 10:00:00 [INFO] Established session 0x8000000000000010 with negotiated timeout 6000 for \
client /10.0.0.7:51442
2026-11-22 10:00:01 INFO audit.Log4jAuditLogger: session=0x2a user=a ip=10.0.0.8 operation=create
2026-11-22 10:00:02 nothing about a session
"""


def test_places_addresses_and_certainty(spark: SparkSession, tmp_path: Path) -> None:
    """Each finding gets an id, a file and a byte, and its session's address. A finding with a
    transaction that may never have been committed is inferred, less severe, and says so."""
    (tmp_path / "zk.log").write_text(SERVER_LOG)
    older = gzip.compress(SERVER_LOG.replace("10.0.0.8", "10.0.0.9").encode())
    (tmp_path / "zk.log.1.gz").write_bytes(older)
    known = addresses([str(tmp_path)])
    assert known == {SESSION: "10.0.0.7:51442", 42: "10.0.0.8, 10.0.0.9"}
    assert addresses([str(tmp_path)], {7, 42}) == {42: known[42]}
    transactions = spark.createDataFrame(
        [("zk1", "log.1", 100, 5, 0, True), ("zk1", "log.1", 100, 5, 1, True),
         ("zk2", "log.6", 16, 6, 0, False)],
        "server string, file string, position bigint, zxid bigint, idx int, confirmed boolean",
    )  # fmt: skip
    rows = []
    for zxid, also in ((5, 5), (5, 6), (6, 6), (7, 5)):  # with and without the columns of an id
        row = dict.fromkeys(c.name for c in FINDINGS.columns)
        evidence = [("commits", also, 0, SESSION, "wrote", None, None, None),
                    ("deliveries", None, None, None, "j:1", None, None, None)]  # fmt: skip
        if zxid == 7:
            row |= {"chroot": "/é", "group_id": "g", "topic": "t", "partition": 0, "member": "m"}
        row |= {"severity": "critical", "kind": "k", "basis": "proven", "sentence": "It was so.",
                "zxid": zxid, "session": SESSION if zxid == 5 else None,
                "evidence": evidence}  # fmt: skip
        rows.append(tuple(row.values()))
    frame = spark.createDataFrame(rows, FINDINGS.spark_type())
    found = located(frame, transactions, known).orderBy("zxid", "basis")
    assert {row["id"] for row in found.collect()} == {id_of(row) for row in frame.collect()}
    unsure, sure, phantom, snapshot = found.orderBy("zxid", "basis").collect()
    assert (sure["server"], sure["file"], sure["position"]) == ("zk1", "log.1", 100)
    assert sure["address"] == "10.0.0.7:51442"
    assert sure["sentence"] == "It was so. Session 0x8000000000000010 came from 10.0.0.7:51442."
    assert (sure["severity"], sure["basis"]) == ("critical", "proven")
    for row in (unsure, phantom):
        assert (row["severity"], row["basis"]) == ("high", "inferred")
        assert row["sentence"].endswith(UNCONFIRMED)
    assert [part["what"] for part in unsure["evidence"]] == ["wrote", "j:1"]
    assert (unsure["evidence"][0]["file"], unsure["evidence"][0]["position"]) == ("log.6", 16)
    assert (phantom["address"], phantom["file"]) == (None, "log.6")
    assert (snapshot["file"], snapshot["basis"]) == (None, "proven")
