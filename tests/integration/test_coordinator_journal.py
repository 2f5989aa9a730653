"""The journal of a real member on the coordinator follows the common schema and has real sizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.groups import Producer, Reader
from tests.support.sized import SizedConnector
from zkconsumer.broker.connection import BrokerConnection
from zkconsumer.broker.groups.classic_client import OnExchange
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.herd.tally import Tally
from zkconsumer.journal import JournalWriter, read_journal
from zkconsumer.journal.recorder import Entry, run_entry
from zkconsumer.servers import LocalCluster, wait_until


def _config(cluster: LocalCluster, group: str) -> dict[str, object]:
    return {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "auto.offset.reset": "smallest",
        "heartbeat.interval.ms": 200,
        "client.id": "journalled",
    }


def _sizes(told: list[tuple[str, int, int]], patch: pytest.MonkeyPatch) -> OnExchange:
    """Records the name of each request, and its size and its response's size on the wire."""
    last = threading.local()
    right = BrokerConnection.exchange_all

    def exchange(
        self: BrokerConnection, api_key: int, version: int, bodies: Sequence[bytes]
    ) -> list[memoryview]:
        answers = right(self, api_key, version, bodies)
        header = 4 + 8 + 2 + len("journalled")
        last.sizes = (header + len(bodies[-1]), 8 + len(answers[-1]))
        return answers

    def note(broker: BrokerEndpoint, request: Any, answer: Any) -> None:
        told.append((type(request).__name__.removesuffix("Request"), *last.sizes))

    patch.setattr(BrokerConnection, "exchange_all", exchange)
    return note


def test_a_member_writes_what_it_does(
    cluster: LocalCluster,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two members' journals, in one file, follow the schema, and ownership can be computed from
    them. The bytes of each answered request equal the bytes that were sent and received."""
    cluster.create_topic(topic, 4)
    told: list[tuple[str, int, int]] = []
    path = tmp_path / "j"
    with JournalWriter(path) as sink, Producer(cluster.bootstrap, topic, range(4)) as producer:
        sink.write(run_entry(time.time_ns() // 1000, "epoch", {}))
        config = _config(cluster, group)
        first = SizedConnector(config, sink, on_exchange=_sizes(told, monkeypatch))
        with first, SizedConnector(config, sink) as second:
            readers = [Reader(first.create_message_streams({topic: 1})[topic])]
            producer.send(20)
            readers[0].wait(20)
            second.create_message_streams({topic: 1})
            wait_until(
                lambda: [m.metrics().owned_partitions for m in (first, second)] == [2, 2],
                30,
                "equal shares",
            )
            midway = time.time_ns() // 1000
    entries = list(read_journal(path))
    tally = Tally()
    for entry in entries:
        tally.entry(entry)
    partitions = [TopicPartition(topic, n) for n in range(4)]
    owners = {_owner_at(tally, tp, midway) for tp in partitions}
    assert owners == {first.consumer_id, second.consumer_id}
    assert all(tally.ownership.owner(tp) is None for tp in partitions), "both have left"
    assert tally.member(first.consumer_id).attempts >= 2
    mine: Callable[[Entry], bool] = lambda e: e.get("member") == first.consumer_id  # noqa: E731
    written = [
        (entry["name"], entry["bytes_out"], entry["bytes_in"])
        for entry in entries
        if entry["kind"] == "op" and mine(entry) and entry["bytes_in"]
    ]
    names = {
        "Metadata": "LoadTopics",
        "OffsetFetch": "FetchOffsets",
        "OffsetCommit": "CommitOffsets",
    }
    known = [(names.get(name, name), out, back) for name, out, back in told]
    assert {name for name, _, _ in known} == {
        *("FindCoordinator", "LoadTopics", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
        *("FetchOffsets", "CommitOffsets"),
    }
    # Hosts count as ten characters. Refusals count without the content of their fields.
    exact = {"JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "FetchOffsets", "CommitOffsets"}
    assert sorted(one for one in written if one[0] in exact) == sorted(
        one for one in known if one[0] in exact
    )
    for name in ("FindCoordinator", "LoadTopics"):
        ours = [one[1:] for one in written if one[0] == name]
        true = [one[1:] for one in known if one[0] == name]
        assert [out for out, _ in ours] == [out for out, _ in true]
        for (_, counted), (_, real) in zip(ours, true, strict=True):
            assert abs(counted - real) <= 6


def _owner_at(tally: Tally, tp: TopicPartition, at: int) -> str | None:
    for span in tally.ownership.spans[tp]:
        if span.start <= at and (span.end is None or at < span.end):
            return span.member
    return None
