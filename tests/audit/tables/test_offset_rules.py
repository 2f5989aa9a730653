"""Rules about offsets: what was lost or read again, however it came about."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.audit.tables.test_findings import History, found

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine

Found = dict[tuple[str, str], list[Any]]


class Group:
    """A group of one member with topic t, whose partitions it owns, at offset 100."""

    def __init__(self, h: History, name: str, session: int, partitions: int = 2) -> None:
        self.h, self.name, self.session = h, name, session
        h.add("createSession", session, timeout=6000, seconds=0)
        h.join(name, f"{name}_a", session, seconds=0)
        for partition in range(partitions):
            h.claim(name, partition, f"{name}_a", session, seconds=0)
            h.commit(name, partition, 100, session, seconds=0)

    def stop(self) -> None:
        self.h.add("closeSession", self.session, seconds=0)

    def tool(self, session: int, offset: object, *partitions: int) -> None:
        """An operator's tool writes an offset in a session of its own."""
        self.h.add("createSession", session, timeout=6000, seconds=0)
        for partition in partitions:
            path = f"/consumers/{self.name}/offsets/t/{partition}"
            data = offset if isinstance(offset, bytes) else str(offset).encode()
            self.h.add("setData", session, path, data=data, seconds=0)

    def start(self, offset: int | None, *partitions: int) -> None:
        """The member returns in a new session and commits."""
        self.session += 1
        self.h.add("createSession", self.session, timeout=6000, seconds=0)
        self.h.join(self.name, f"{self.name}_a", self.session, seconds=0)
        for partition in partitions:
            self.h.claim(self.name, partition, f"{self.name}_a", self.session, seconds=0)
        for partition in partitions if offset is not None else ():
            assert offset is not None
            self.h.commit(self.name, partition, offset, self.session)


def told(findings: Found, group: str) -> list[tuple[Any, ...]]:
    """Kind, severity, basis, effect and number of the findings of a group, by zxid."""
    rows = [row for (name, _), rows in findings.items() if name == group for row in rows]
    rows.sort(key=lambda row: (row["zxid"], row["partition"] or 0))
    names = ("kind", "severity", "basis", "effect", "messages")
    return [tuple(row[name] for name in names) for row in rows]


@pytest.fixture(scope="module")
def findings(spark: SparkSession) -> Found:
    """One history with a group for each case."""
    h = History()
    for name, session, offset, first in (("skipped", 100, 1000, 1010), ("rewound", 200, 10, 20)):
        group = Group(h, name, session)
        group.stop()
        group.tool(session + 50, offset, 0, 1)
        group.start(first, 0, 1)
    return found(spark, h)


def test_a_whole_topic_is_no_milder_than_one_partition(findings: Found) -> None:
    """A session that writes all partitions of a stopped group may have meant it or not. The finding
    is that of one partition, and its sentence gives the extent."""
    lost = ("lost messages", "critical", "inferred", "lost", 900)
    assert told(findings, "skipped") == [lost, lost]
    again = ("offset regression", "high", "proven", "repeated", 90)
    assert told(findings, "rewound") == [again, again]
    for group, kind in (("skipped", "lost messages"), ("rewound", "offset regression")):
        for row in findings[group, kind]:
            assert row["sentence"].endswith(
                " The session wrote all 2 partitions of the topic while the group was stopped."
            )
    assert "900 offsets (100 to 999) were not" in findings["skipped", "lost messages"][0].sentence
