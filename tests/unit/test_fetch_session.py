"""Fetch sessions (KIP-227): which partitions a request names, and what both sides then know."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse

from zkconsumer.broker.fetching.fetch import BrokerFetcher, FetchSession
from zkconsumer.broker.types import Want
from zkconsumer.core.common.types import BrokerEndpoint

VERSION = 10


class Broker:
    """A broker with sessions, as a connection. It remembers partitions and its answers."""

    def __init__(self) -> None:
        self.endpoint = BrokerEndpoint(0, "127.0.0.1", 1)
        self.ends: dict[tuple[str, int], int] = {}
        self.session: dict[tuple[str, int], list[int]] = {}
        self.epoch = 0
        self.id = 0
        self.named: list[list[tuple[str, int]]] = []
        self.full = 0
        self.rooms = True

    def version(self, *_: int, **_needs: str) -> int:
        return VERSION

    def close(self) -> None:
        pass

    def exchange(self, _api: int, version: int, body: bytes) -> memoryview:
        """Answer a request."""
        request = FetchRequest.decode(body, version=version)
        named = {
            (topic.topic, part.partition): part.fetch_offset
            for topic in request.topics
            for part in topic.partitions
        }
        self.named.append(list(named))
        if request.session_epoch == 0:
            self.full += 1
            self.id += self.rooms
            self.epoch = 1
            self.session = {key: [offset, -1] for key, offset in named.items()}
            return self.answer(self.session, self.id if self.rooms else 0)
        if request.session_id != self.id:
            return self.refuse(70)
        if request.session_epoch != self.epoch:
            return self.refuse(71)
        self.epoch += 1
        for key, offset in named.items():
            self.session.setdefault(key, [offset, -1])[0] = offset
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                del self.session[topic.topic, partition]
        return self.answer(self.session, self.id)

    def refuse(self, code: int) -> memoryview:
        return memoryview(struct.pack(">ihii", 0, code, 0, 0))

    def answer(self, session: dict[tuple[str, int], list[int]], number: int) -> memoryview:
        """Return all partitions with news."""
        topic = FetchResponse.FetchableTopicResponse
        found = []
        for (name, partition), known in session.items():
            end = self.ends[name, partition]
            if known[0] < end or known[1] != end:
                known[1] = end
                part = topic.PartitionData(
                    partition_index=partition,
                    error_code=0,
                    high_watermark=end,
                    last_stable_offset=end,
                    log_start_offset=0,
                    aborted_transactions=None,
                    records=b"x" * (end - known[0]),
                    version=VERSION,
                )
                found.append(topic(topic=name, partitions=[part], version=VERSION))
        response = FetchResponse(
            throttle_time_ms=0, error_code=0, session_id=number, responses=found, version=VERSION
        )
        return memoryview(bytes(response.encode(version=VERSION)))


def fetch(fetcher: BrokerFetcher, offsets: dict[tuple[str, int], int], fresh: Any = ()) -> Any:
    """Fetch these partitions."""
    return fetcher.fetch([Want(*key, at, 1 << 20) for key, at in offsets.items()], 1, 1, 1, fresh)


def test_whatever_changes_every_record_is_fetched_once() -> None:
    """Partitions are added and removed, logs grow, sessions end on either side. Positions follow
    the logs, and a request names no unchanged partition."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    broker = Broker()
    connection: Any = broker
    session = FetchSession()
    fetcher = BrokerFetcher(connection, session)
    offsets: dict[tuple[str, int], int] = {}
    told: dict[tuple[str, int], int] = {}
    disturbed = 0
    for _ in range(500):
        for _ in range(rng.randrange(4)):
            key = (rng.choice("abc"), rng.randrange(6))
            broker.ends[key] = broker.ends.get(key, 0) + rng.randrange(3)
            if rng.random() < 0.3:
                offsets.pop(key, None)
            else:
                offsets.setdefault(key, rng.randrange(broker.ends[key] + 1))
        if rng.random() < 0.03:
            broker.id += 7  # it has forgotten the session
            disturbed += 1
        if rng.random() < 0.03:
            broker.epoch += 1  # an answer was lost
            disturbed += 1
        broker.rooms = rng.random() < 0.9 or broker.id == 0
        before, full = dict(told), broker.full
        got = fetch(fetcher, offsets)
        if broker.full == full:
            unchanged = {key for key, at in offsets.items() if before.get(key) == at}
            assert not unchanged & set(broker.named[-1])
        told = dict(offsets)
        for each in got:
            assert each.high_watermark == broker.ends[each.topic, each.partition]
            offsets[each.topic, each.partition] += len(each.data)
        assert offsets == {key: broker.ends[key] for key in offsets}
    assert disturbed
    assert broker.full < 200


def test_the_same_request_names_nothing() -> None:
    """Even if it is the same object, which is not searched."""
    broker = Broker()
    connection: Any = broker
    fetcher = BrokerFetcher(connection, FetchSession())
    broker.ends = {("t", number): 5 for number in range(3)}
    wanted = [Want("t", number, 5, 100) for number in range(3)]
    assert len(fetcher.fetch(wanted, 1, 1, 1)) == 3
    assert fetcher.fetch(wanted, 1, 1, 1) == []
    assert fetcher.fetch(list(wanted), 1, 1, 1) == []
    assert broker.named[1:] == [[], []]
    broker.ends["t", 1] = 6
    (got,) = fetcher.fetch(wanted, 1, 1, 1)
    assert (got.partition, got.data) == (1, b"x")


def test_a_new_claim_learns_the_end_of_the_log() -> None:
    """A partition that was released and claimed again between two requests is known to the broker,
    which does not repeat its high watermark."""
    broker = Broker()
    connection: Any = broker
    fetcher = BrokerFetcher(connection, FetchSession(), committed=True)
    broker.ends = {("t", 0): 5, ("t", 1): 9}
    offsets = {("t", 0): 5, ("t", 1): 9}
    fetch(fetcher, offsets)
    (got,) = fetch(fetcher, offsets, fresh=[("t", 1)])
    assert (got.partition, got.high_watermark, got.data) == (1, 9, b"")
    assert got.last_stable_offset == 9


def test_brokers_without_sessions_are_asked_for_everything() -> None:
    """Version 4 has none."""
    sent: list[bytes] = []

    def exchange(_api: int, _version: int, body: bytes) -> memoryview:
        sent.append(body)
        return memoryview(struct.pack(">ii", 0, 0))

    connection: Any = SimpleNamespace(
        endpoint=BrokerEndpoint(0, "127.0.0.1", 1), version=lambda *_: 4, exchange=exchange
    )
    fetcher = BrokerFetcher(connection, FetchSession())
    for _ in range(2):
        assert fetcher.fetch([Want("t", 0, 5, 100)], 1, 1, 1) == []
    assert sent[0] == sent[1]
