"""Scripts that depend on a group's mode."""

from __future__ import annotations

import pytest

from tests.support.scripts import one_by_one
from tests.unit.test_scripts import MINE, PATHS as GROUP, T0, T1, drive, registered
from tests.unit.tool_zk import ToolZk
from zkconsumer.core.migration.machine import LiveMachine, ModeRead
from zkconsumer.core.migration.member_scripts import scripts_of
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, encode_mode, read_mode
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import (
    Create,
    FetchOffsets,
    GetData,
    Node,
    OffsetOp,
    Ok,
    Reply,
    StoreOffsets,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import Script, attempt, ensure_path
from zkconsumer.errors import ZnodeFormatError

PATHS = LivePaths.of("g")


def put(path: str, data: bytes) -> Script[None]:
    """Create a znode."""
    yield from ensure_path(set(), path.rpartition("/")[0])
    yield from attempt(Create(path, data))


def test_a_group_without_a_mode_is_in_zookeeper() -> None:
    """Its version is -1."""
    zk = ToolZk()
    assert zk.run(read_mode(PATHS)) == (Mode.ZOOKEEPER, -1)
    zk.run(put(PATHS.mode, encode_mode(Mode.LOCKED)))
    assert zk.run(read_mode(PATHS)) == (Mode.LOCKED, 0)


def test_a_mode_that_cannot_be_read_is_an_error() -> None:
    """The error names the znode."""
    zk = ToolZk()
    zk.run(put(PATHS.mode, b"moved"))
    with pytest.raises(ZnodeFormatError, match="/consumers/g/live/mode"):
        zk.run(read_mode(PATHS))


@pytest.mark.parametrize("version", [0, 3])
@pytest.mark.parametrize("in_kafka", [None, 7, 9])
def test_a_member_does_not_rewind_a_group_that_stores_offsets_in_kafka(
    version: int, in_kafka: int | None
) -> None:
    """With ``offsets.storage=kafka`` the offset in ZooKeeper is an old one. The member claims, and
    begins nowhere. Once the mode was changed, higher offsets are those of migratable members."""
    bench = registered()
    bench.zk.do(Create(GROUP.offset(T0), b"7"))
    live = LiveMachine()
    live.on(ModeRead(Mode.ZOOKEEPER, version))
    command = commands.ClaimPartitions(2, 0, {T0: MINE, T1: MINE})
    script = one_by_one(scripts_of(PATHS, live)(command, bench.context))
    asked: list[ZkOp | OffsetOp] = []

    def answer(op: ZkOp | OffsetOp) -> Reply:
        if not isinstance(op, FetchOffsets):
            return bench.send(op)  # type: ignore[arg-type]
        asked.append(op)
        return Ok(tuple(in_kafka if tp == T0 else None for tp in op.partitions))

    event = drive(script, answer)
    assert bool(asked) == (version == 0)
    if version == 0 and in_kafka == 9:
        assert isinstance(event, events.ScriptFailed)
        assert "higher in Kafka than in ZooKeeper: t-0: if members store them there" in event.text
    else:
        assert isinstance(event, events.Claimed)
        assert event.claims[T0].committed == 7


def test_a_member_that_begins_at_the_offset_in_kafka_does_not_lower_it() -> None:
    """ZooKeeper's offset is lower, because a plain consumer had the partition. The next commit
    raises it, also an unchanged one. A lower one, which the application asks for, is refused."""
    bench = registered()
    bench.zk.do(Create(GROUP.offset(T0), b"7"))
    live = LiveMachine()
    live.on(ModeRead(Mode.OPEN, 3))
    in_kafka = {T0: 9}

    def answer(op: ZkOp | OffsetOp) -> Reply:
        if isinstance(op, FetchOffsets):
            return Ok(tuple(map(in_kafka.get, op.partitions)))
        if isinstance(op, StoreOffsets):
            in_kafka.update(op.positions)
            return Ok((None,) * len(op.positions))
        return bench.send(op)  # type: ignore[arg-type]

    scripts = scripts_of(PATHS, live)
    wanted = commands.ClaimPartitions(2, 0, {T0: MINE})
    claimed = drive(one_by_one(scripts(wanted, bench.context)), answer)
    assert isinstance(claimed, events.Claimed)
    claim = claimed.claims[T0]
    assert claim.committed == 9
    assert claim.would_regress(8)
    assert claim.is_behind(9)
    commit = commands.Commit(3, 0, {T0: 9}, {T0: claim})
    committed = drive(one_by_one(scripts(commit, bench.context)), answer)
    assert isinstance(committed, events.Committed)
    assert not committed.claims[T0].is_behind(9)
    stored = bench.send(GetData(GROUP.offset(T0)))
    assert isinstance(stored, Ok)
    assert isinstance(stored.value, Node)
    assert (stored.value.data, in_kafka) == (b"9", {T0: 9})
