"""Groups with more partitions than one request holds, with the sizes of requests made small."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_scripts import MINE, PATHS, registered
from tests.unit.tool_zk import ToolZk
from zkconsumer.admin import change, log_ends
from zkconsumer.broker import connection as connections
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups import group_coordinators, offset_times
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.ops import Create, Multi, ZkOp
from zkconsumer.core.zookeeper.scripts import common
from zkconsumer.errors import BrokerError, BrokerUnavailableError, LeaderUnavailableError

HERE = BrokerEndpoint(0, "127.0.0.1", 1)
TPS = [TopicPartition("t", number) for number in range(7)]


@pytest.mark.parametrize("partitions", [2, 3, 7])
def test_a_member_s_whole_life_in_many_packets(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """Each partition is claimed, committed and released exactly once, whatever fits into a
    request."""
    monkeypatch.setattr(common, "PACKET_PARTITIONS", partitions)
    monkeypatch.setattr(common, "READ_BATCH", 3)
    bench = registered()
    sizes: list[int] = []

    def note(_: int, op: ZkOp) -> None:
        if isinstance(op, Multi):
            sizes.append(len(op.ops))

    for position in (3, 8):
        claimed = bench.run(commands.ClaimPartitions(1, 0, dict.fromkeys(TPS, MINE)))
        assert isinstance(claimed, events.Claimed)
        assert set(claimed.claims) == set(TPS)
        assert {bench.owner(tp) for tp in TPS} == {bench.client.session_id}
        before = None if position == 3 else 3
        assert {claim.committed for claim in claimed.claims.values()} == {before}
        positions = dict.fromkeys(TPS, position)
        sizes.clear()
        committed = bench.run(commands.Commit(2, 0, positions, claimed.claims), before=note)
        assert isinstance(committed, events.Committed)
        assert not committed.broken
        assert sum(sizes) - len(sizes) == len(TPS)
        assert max(sizes) - 1 <= partitions
        assert {bench.offset(tp) for tp in TPS} == {b"%d" % position}
        bench.run(commands.Release(3, 0, committed.claims))
        assert {bench.owner(tp) for tp in TPS} == {0}


def test_a_group_is_deleted_in_many_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it remains."""
    monkeypatch.setattr(change, "_PACKET_OPS", 2)
    tool = ToolZk()
    tool.run(common.ensure_path(set(), PATHS.offsets_topic("t")))
    for tp in TPS:
        tool.zk.do(Create(PATHS.offset(tp), b"5"))
    sizes: list[int] = []

    def note(op: ZkOp) -> None:
        if isinstance(op, Multi):
            sizes.append(len(op.ops))

    tool.before = note
    deleted = tool.run(change.delete("g", None, lambda *_: None))
    assert tool.zk.get(PATHS.root) is None
    assert len(deleted.paths) >= len(TPS)
    assert len(sizes) > len(TPS) / 2


class Broker:
    """Stores offsets of batches of partitions, and fails at one batch."""

    endpoint = HERE

    def __init__(self, fails_at: int | None = None) -> None:
        self.stored: dict[TopicPartition, int] = {}
        self.batches: list[int] = []
        self._fails_at = fails_at

    def version(self, _key: int, *wanted: int) -> int:
        return wanted[0]

    def ready(self) -> None:
        """Nothing is waited for."""

    def call(self, request: Any, _response: type[Any], _version: int) -> Any:
        if len(self.batches) == self._fails_at:
            raise BrokerUnavailableError("the broker is gone")
        topics = []
        self.batches.append(sum(len(topic.partitions) for topic in request.topics))
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                self.stored[tp] = part.committed_offset
                parts.append(SimpleNamespace(partition_index=tp.partition, error_code=0))
            topics.append(SimpleNamespace(name=topic.name, partitions=parts))
        return SimpleNamespace(topics=topics)

    def close(self) -> None:
        """The next request uses the same broker."""


def coordinators(monkeypatch: pytest.MonkeyPatch, broker: Any) -> GroupCoordinators:
    """A tool's access to the coordinator, with three partitions in a request."""
    monkeypatch.setattr(group_coordinators, "BATCH", 3)
    made = GroupCoordinators("tests", lambda: [HERE], patience=0.05, backoff=0.01)
    monkeypatch.setattr(made, "_find", lambda group: HERE)
    monkeypatch.setattr(made, "_connection", lambda endpoint: broker)
    monkeypatch.setattr(made, "_any_broker", lambda: HERE)
    return made


@pytest.mark.parametrize("count", range(8))
def test_every_offset_of_a_large_group_is_committed(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """No partition is left out between two requests."""
    broker = Broker()
    offsets = {tp: StoredOffset(tp.partition + 5) for tp in TPS[:count]}
    assert coordinators(monkeypatch, broker).commit("g", offsets) == {}
    assert broker.stored == {tp: tp.partition + 5 for tp in TPS[:count]}
    assert broker.batches == [3] * (count // 3) + [count % 3] * bool(count % 3)


@pytest.mark.parametrize("fails_at", range(3))
def test_a_commit_that_ends_half_way_is_an_error(
    monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """It is never reported as done."""
    broker = Broker(fails_at)
    offsets = {tp: StoredOffset(5) for tp in TPS}
    with pytest.raises(BrokerError):
        coordinators(monkeypatch, broker).commit("g", offsets)
    assert len(broker.stored) == 3 * fails_at


def test_every_topic_of_a_large_cluster_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that this client may not see are found in each request."""
    asked: list[str] = []

    def metadata(_connection: object, topics: Sequence[str]) -> Any:
        asked.extend(topics)
        return SimpleNamespace(hidden=frozenset(topic for topic in topics if topic in "adg"))

    monkeypatch.setattr(group_coordinators, "fetch_metadata", metadata)
    found = coordinators(monkeypatch, Broker()).hidden("abcdefg")
    assert found == {"a", "d", "g"}
    assert asked == list("abcdefg")


def test_each_kind_of_missing_log_end_has_its_own_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may refuse some partitions and not lead others."""
    answers = {
        TPS[0]: LeaderUnavailableError("t-0: moved"),
        TPS[1]: BrokerError("t-1: refused"),
        TPS[2]: LeaderUnavailableError("t-2: moved"),
    }
    monkeypatch.setattr(log_ends, "list_offsets", lambda *_: answers)
    asker = log_ends.LogEnds(1.0)
    assert asker.of({0: HERE}, dict.fromkeys(answers, 0)) == {}
    assert asker.notes() == [
        "broker 0 gave no log end of 2 partitions, such as: t-0: moved",
        "broker 0 gave no log end of 1 partition, such as: t-1: refused",
    ]


@pytest.mark.parametrize("answered", range(4))
def test_log_ends_that_were_not_read_are_counted(
    monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """The broker answers some requests and is gone. The ends that were read count."""
    monkeypatch.setattr(log_ends, "_BATCH", 3)
    requests: list[int] = []

    def ask(_: object, batch: Sequence[TopicPartition], _time: int) -> dict[TopicPartition, int]:
        if len(requests) == answered:
            raise BrokerUnavailableError("broker 0 is gone")
        requests.append(len(batch))
        return dict.fromkeys(batch, 9)

    monkeypatch.setattr(log_ends, "list_offsets", ask)
    asker = log_ends.LogEnds(1.0)
    ends = asker.of({0: HERE}, dict.fromkeys(TPS, 0))
    read = min(3 * answered, len(TPS))
    assert set(ends) == set(TPS[:read])
    left = len(TPS) - read
    note = [f"broker 0 is gone: no log end of {log_ends._count(left)}"] * bool(left)
    assert asker.notes() == note
    if left:  # it is not asked again, and what is not known adds up
        assert asker.of({0: HERE}, {TPS[0]: 0}) == {}
        assert len(requests) == answered
        assert asker.notes() == [f"broker 0 is gone: no log end of {left + 1} partitions"]


@pytest.mark.parametrize("readable", [True, False])
def test_times_of_a_log_that_ends_early_are_unknown(
    monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """What was read of it is not the last word: a later commit may follow."""

    def commits(*_: object) -> Any:
        yield SimpleNamespace(group="g", tp=TPS[0], at_ms=1000)
        if not readable:
            raise BrokerUnavailableError("gone")

    partition = TopicPartition(offset_times.OFFSETS_TOPIC, 0)
    monkeypatch.setattr(offset_times, "_leaders", lambda _: {partition: 0})
    monkeypatch.setattr(offset_times, "OneLog", lambda *_: SimpleNamespace(start=0, end=1))
    monkeypatch.setattr(offset_times, "_commits", commits)
    times = offset_times.commit_times({"g"}, 1, {0: HERE}, "tests", 1.0)
    assert times == ({("g", TPS[0]): 1000} if readable else {})


@pytest.mark.parametrize("size", [4, 15, 16, 17, 32, 33])
def test_an_answer_is_received_whole_whatever_its_size(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Large answers are received in pieces."""
    monkeypatch.setattr(connections, "_FIRST_PIECE", 16)
    body = bytes(range(size - 4))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = BrokerConnection(BrokerEndpoint(0, *listener.getsockname()), "c", 10.0, 0)
        connection._connect()
        server, _ = listener.accept()
        with server:
            answer = struct.pack(">ii", size, 1) + body
            sender = threading.Thread(target=server.sendall, args=(answer,))
            sender.start()
            assert bytes(connection.exchange(3, 0, b"")) == body
            sender.join()
        connection.close()
