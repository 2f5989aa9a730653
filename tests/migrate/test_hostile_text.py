"""Hostile text in member names, metadata and znodes. None of it reaches a terminal."""

from __future__ import annotations

import itertools

import pytest
from zkmigrate.formats import plan_file
from zkmigrate.model import (
    Direction,
    GroupState,
    KafkaOffset,
    LogRange,
    Store,
    TopicState,
    ZkOffset,
)
from zkmigrate.plan.findings import bad_name
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options
from zkmigrate.stores import migration_marker

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.errors import ZnodeFormatError

PIECES = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\x1b[2J", "\x1b]0;title\x07",
    "\r\n", "\u202eevil", "\u2066x", "=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\t=1",
    "../../etc/passwd", "..\\..\\x", "\x00", "a\x00b", "'; DROP TABLE x; --", "%00", "%2e%2e%2f",
    "\x7f", "\x9b31m", "\ud800", "é" * 40, "x" * 64_000, "",
)  # fmt: skip
PAYLOADS = [first + second for first, second in itertools.product(PIECES, ("", *PIECES[:8]))]
TP, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_foreign_text_is_escaped_everywhere() -> None:
    """225 payloads are used as member, owner, client, znode and error. Every problem is printable
    ASCII on one line of the plan file. The plan can be read back unchanged."""
    assert len(PAYLOADS) >= 200
    for payload in PAYLOADS:
        state = GroupState(
            "g",
            members=(payload,),
            coordinator_members=(payload,),
            zk={TP: ZkOffset(5, 3, 20, 0), OTHER: ZkOffset(None, 0, 0, 0, payload)},
            kafka={TP: KafkaOffset(5, 3, payload)},
            ranges={TP: LogRange(0, 10)},
            topics={"orders": TopicState(10, (0, 1))},
            foreign=(payload,),
            faults=(payload,),
        )  # fmt: skip
        owned = GroupState("h", owners={TP: payload}, zk=state.zk)
        plans = [
            plan_group(one, Direction.KAFKA_TO_ZK, Options(), 0, None) for one in (state, owned)
        ]
        for plan in plans:
            for problem in plan.problems:
                text = problem.what + problem.fix
                assert text.isascii()
                assert text.isprintable()
        shown = bad_name(payload).what
        assert shown.isascii()
        assert shown.isprintable()
        assert len(shown) < 600
        lines = list(plan_file.render(Direction.KAFKA_TO_ZK, 0, plans))
        assert all(line.count("\n") == 1 and line[:-1].isprintable() for line in lines)
        assert plan_file.parse("plan", "".join(lines).encode()).groups == tuple(plans)


def test_a_migration_marker_is_read_or_refused() -> None:
    """Offsets of any size survive. Foreign content is an error that names the znode."""

    def node(data: bytes) -> Node:
        return Node(data, Stat(1, 1, 4, 0, 17))

    values = {TP: 2**63 - 1, TopicPartition("t", 3): 0}
    data = migration_marker.encode(Store.KAFKA, 17, values)
    found = migration_marker.decode("path", node(data))
    assert (found.moved_to, found.at_ms, found.values) == (Store.KAFKA, 17, values)
    many = {TopicPartition("t" * 200, number): 2**62 for number in range(100_000)}
    assert len(migration_marker.encode(Store.KAFKA, 17, many)) < migration_marker.MAX_BYTES
    without = migration_marker.encode(Store.KAFKA, 17, values, kept=many)
    assert without == data  # those in the target are left out first
    kept = migration_marker.decode(
        "path", node(migration_marker.encode(Store.KAFKA, 17, {}, kept=values))
    )
    assert (kept.values, kept.kept, kept.in_target) == ({}, values, values)
    rolled_back = migration_marker.decode("path", node(b""))
    assert (rolled_back.moved_to, rolled_back.at_ms, rolled_back.values) == (None, 17, {})
    for bad in (b" ", b"x", b"{}", data[:-1], data.replace(b"17", b"-1"), b"[" * 100_000):
        with pytest.raises(ZnodeFormatError, match=r"^/consumers/g/migration (is|was) "):
            migration_marker.decode("/consumers/g/migration", node(bad))
