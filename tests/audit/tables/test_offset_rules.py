"""Rules about offsets: what was lost or read again, however it came about."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.audit.histories import History, found
from zkconsumer.admin.takeover import tool_name

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


def imports(h: History) -> None:
    """`zkconsumer offsets import` owns a partition while it writes the offset."""
    group = Group(h, "imported", 150, partitions=1)
    group.stop()
    tool = tool_name("imported")
    h.add("createSession", 180, timeout=6000, seconds=0)
    h.join("imported", tool, 180, seconds=0)
    h.claim("imported", 0, tool, 180, seconds=0)
    h.commit("imported", 0, 1000, 180, seconds=0)
    h.release("imported", 0, 180, seconds=0)
    h.add("closeSession", 180, seconds=0)
    group.start(1010, 0)


def broken_offsets(h: History) -> None:
    """Tools write what is not an offset."""
    group = Group(h, "minus", 300, partitions=1)
    group.stop()
    group.tool(350, -1, 0)
    group.start(9000, 0)
    group = Group(h, "text", 400, partitions=1)
    group.stop()
    group.tool(450, b"abc", 0)
    group.start(20, 0)
    Group(h, "running", 500, partitions=1).tool(550, -1, 0)
    h.commit("running", 0, 110, 500, seconds=0)


def brokers(h: History) -> None:
    """A member whose offsets broker 1 writes shares a group with one that writes its own."""
    h.add("create", 9000, "/brokers/ids/1", data=b"{}", ephemeral=True, seconds=0)
    ours = Group(h, "mixed", 600, partitions=1)
    h.add("createSession", 650, timeout=6000, seconds=0)
    h.join("mixed", "mixed_kn", 650, seconds=0)
    owner = "/consumers/mixed/owners/t/1"
    h.add("create", 650, owner, data=b"mixed_kn", ephemeral=True, seconds=0)
    for offset in (0, 50, 200):
        h.commit("mixed", 1, offset, 9000, seconds=0)
    h.add("closeSession", 650, seconds=0)
    h.claim("mixed", 1, "mixed_a", ours.session, seconds=0)
    h.commit("mixed", 1, 250, ours.session, seconds=0)
    Group(h, "through", 700, partitions=1)
    h.commit("through", 0, 5000, 9000, seconds=0)
    h.commit("through", 0, 110, 700, seconds=0)


def layouts(h: History) -> None:
    """pykafka claims the partitions that a member of the JVM owns."""
    Group(h, "both", 800, partitions=4)
    h.add("createSession", 850, timeout=6000, seconds=0)
    for partition in (2, 3):
        path = f"/consumers/both/owners/b't'/0-{partition}"
        h.add("create", 850, path, data=b"host:1", ephemeral=True, seconds=0)
    h.add("createSession", 860, timeout=6000, seconds=0)
    path = "/consumers/alone/owners/b't'/0-1"
    h.add("create", 860, path, data=b"host:1", ephemeral=True, seconds=0)


def regressions(h: History) -> None:
    """Owners write lower offsets. Only one continues there."""
    for name, session, offsets in (("lower", 1100, (40, 120)), ("reread", 1200, (40, 60, 120))):
        Group(h, name, session, partitions=1)
        for offset in offsets:
            h.commit(name, 0, offset, session, seconds=0)


def resets(h: History) -> None:
    """Members skip much with one commit, as `auto.offset.reset` does."""
    h.topic("grown", 2)
    for name, session, step in (("skips", 1300, 150_000), ("steady", 1400, 900)):
        Group(h, name, session, partitions=1)
        for number in range(1, 120):
            h.commit(name, 0, 100 + 10 * number, session, seconds=0)
        h.commit(name, 0, 2000 + step, session, seconds=0)
    h.add("createSession", 1500, timeout=6000, seconds=0)
    h.join("new", "new_a", 1500, seconds=0)
    for partition in (0, 1):
        h.claim("new", partition, "new_a", 1500, topic="grown", seconds=0)
    path = "/consumers/new/offsets/grown/{}"
    h.add("create", 1500, path.format(0), data=b"10", ephemeral=False, seconds=0)
    for number in range(2, 120):
        h.add("setData", 1500, path.format(0), data=b"%d" % (10 * number), seconds=0)
    h.add("create", 1500, path.format(1), data=b"160000", ephemeral=False, seconds=0)


def two_clocks(h: History) -> None:
    """Partitions change hands within the epoch of one leader, and across a change of leaders."""
    for name, session in (("clocks", 1600), ("clock", 1700)):
        Group(h, name, session)
        h.join(name, f"{name}_b", session + 1, seconds=0)
    h.release("clock", 0, 1700, seconds=0)
    h.claim("clock", 0, "clock_b", 1701, seconds=41)
    h.release("clocks", 0, 1600, seconds=0)
    h.zxid = 1 << 32
    h.claim("clocks", 0, "clocks_b", 1601, seconds=41)


@pytest.fixture(scope="module")
def findings(spark: SparkSession) -> Found:
    """One history with a group for each case."""
    h = History()
    for name, session, offset, first in (("skipped", 100, 1000, 1010), ("rewound", 200, 10, 20)):
        group = Group(h, name, session)
        group.stop()
        group.tool(session + 50, offset, 0, 1)
        group.start(first, 0, 1)
    imports(h)
    broken_offsets(h)
    brokers(h)
    layouts(h)
    regressions(h)
    resets(h)
    two_clocks(h)
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


def test_an_import_is_the_write_of_a_tool(findings: Found) -> None:
    """Although the tool owns the partitions that it writes, as a member would."""
    assert told(findings, "imported") == [("lost messages", "critical", "inferred", "lost", 900)]


def test_what_is_not_an_offset_is_none(findings: Found) -> None:
    """-1 and text are not offsets, so the first commit of the next owner shows where it began. The
    sentence shows what was written."""
    assert told(findings, "minus") == [("lost messages", "critical", "inferred", "lost", 8900)]
    assert told(findings, "text") == [("offset regression", "high", "inferred", "repeated", 80)]
    assert told(findings, "running") == [("tool write", "info", "proven", "repaired", None)]
    assert "wrote '-1', not an offset, for" in findings["minus", "lost messages"][0]["sentence"]
    assert "wrote 'abc', not an offset, for" in findings["text", "offset regression"][0]["sentence"]


def test_a_broker_writes_offsets_for_its_clients(findings: Found) -> None:
    """That is normal for an owner whose client lets brokers write. For another owner, the log does
    not name who asked."""
    assert told(findings, "mixed") == []
    kind = "offset written through a broker"
    assert told(findings, "through") == [(kind, "medium", "inferred", "repaired", None)]
    (row,) = findings["through", kind]
    assert row["sentence"].startswith(
        "Broker 1 (OffsetCommit v0, for a client that the log does not name) wrote 5000 for t-0"
    )


def test_owners_in_another_layout_are_found(findings: Found) -> None:
    """Members ignore them, so both may read the same partitions."""
    kind = "owner in another layout"
    assert told(findings, "both") == [(kind, "high", "proven", None, None)]
    assert told(findings, "alone") == [(kind, "medium", "proven", None, None)]
    sentence = findings["both", kind][0]["sentence"]
    assert "claimed 2 partitions of topic t of group both" in sentence
    assert "/consumers/both/owners/b't'/0-2" in sentence


def test_a_lower_offset_does_not_prove_that_messages_were_read_again(findings: Found) -> None:
    """Two threads of a member may commit in any order. Writes that climb through the range prove
    it."""
    lower = ("offset regression", "medium", "proven", "unknown", None)
    assert told(findings, "lower") == [lower]
    assert told(findings, "reread") == [("offset regression", "high", "proven", "repeated", 60)]


def test_a_step_is_compared_with_its_topic(findings: Found) -> None:
    """A reset may skip fewer messages than a consumer can read. The first commit on a new partition
    counts from 0."""
    jump = ("offset jump", "low", "inferred", "unknown")
    assert told(findings, "skips") == [(*jump, 150_000 + 2000 - 1290)]
    assert told(findings, "steady") == []
    assert told(findings, "new") == [(*jump, 160_000)]
    (row,) = findings["skips", "offset jump"]
    assert "99 % of the commits of this topic rise by less than 10 a second" in row["sentence"]


def test_two_leaders_have_two_clocks(findings: Found) -> None:
    """A time is proven if one leader wrote both ends."""
    gap = ("unowned interval", "medium")
    assert told(findings, "clock") == [(*gap, "proven", None, None)]
    assert told(findings, "clocks") == [(*gap, "inferred", None, None)]
    assert "The leader changed (epoch 0 to 1)" in findings["clocks", gap[0]][0]["sentence"]
