"""A member whose servers move: the names of ZooKeeper and of two brokers have addresses that
swallow packets, old addresses, or none at all, before they have the new one.

``ZKC_SEED=N`` repeats the run of a seed, and ``ZKC_DNS_RUNS=30`` makes more runs (``make
test-names``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.groups import Producer, Reader, all_delivered
from tests.support.lying_dns import LyingDns, black_hole
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.servers import HOST, Server, broker_spec
from zkconsumer.servers.supervisor import Supervisor
from zkconsumer.servers.waiting import free_port

RUNS = int(os.environ.get("ZKC_DNS_RUNS", "2"))
SEEDS = [int(os.environ["ZKC_SEED"])] if "ZKC_SEED" in os.environ else range(1, RUNS + 1)
SESSION = 6.0
RECOVERY = SESSION + 1.0
"""Every partition is delivered within this time after all names have a live address."""
SLOW = 8.0
"""Seconds more that a test waits, so that a failure shows how late it was."""
MOVES = 3
ADDRESSES = [f"127.0.0.{number}" for number in range(21, 29)]
TOPIC = "names"


class TwoListeners(LocalCluster):
    """Brokers that clients reach as ``broker-N.test``, on another listener than each other."""

    def __init__(self) -> None:
        super().__init__("3.9", brokers=2, properties={"zookeeper.session.timeout.ms": "6000"})
        self.outside = [free_port(), free_port()]
        """Ports of the listener for clients."""
        self.advertised = [free_port(), free_port()]

    def _broker(self, supervisor: Supervisor, root: object, broker_id: int) -> Server:
        inside, outside = free_port(), self.outside[broker_id]
        name, port = f"broker-{broker_id}.test", self.advertised[broker_id]
        listeners = {
            "listeners": f"INTERNAL://{HOST}:{inside},EXTERNAL://{HOST}:{outside}",
            "advertised.listeners": f"INTERNAL://{HOST}:{inside},EXTERNAL://{name}:{port}",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
        }
        ports = [server.port for server in self.zookeeper_servers]
        spec = broker_spec(
            self.kafka, root, broker_id, 2, ports, {**self._properties, **listeners}, inside
        )
        return Server(supervisor, spec)


class Home:
    """A name, and the one of its addresses at which the server is at present."""

    def __init__(self, name: str, target: int, port: int, dns: LyingDns) -> None:
        self.name, self.port = name, port
        self._target, self._dns = target, dns
        self._holes: contextlib.ExitStack = contextlib.ExitStack()
        self._proxy: TcpProxy | None = None
        self.address = ""

    def leave(self, rng: random.Random) -> None:
        """Be reachable nowhere; DNS may still have the old address, or none."""
        self.close()
        old, self.address = self.address, ""
        others = rng.sample(ADDRESSES, 4)
        for hole in {*others[:2], *([old] if old and rng.random() < 0.5 else [])}:
            self._holes.enter_context(black_hole(hole, self.port))
        self._dns.answers[self.name] = rng.choice([[], [old] if old else [], others[:2]])

    def arrive(self, rng: random.Random) -> None:
        """Be at another address. DNS has it, perhaps next to two that swallow packets."""
        holes = rng.sample(ADDRESSES[:4], 2)
        self._holes.close()
        for hole in holes:
            self._holes.enter_context(black_hole(hole, self.port))
        self.address = rng.choice(ADDRESSES[4:])
        self._proxy = TcpProxy(self._target, self.address, self.port)
        answers = [self.address, *rng.choice([[], holes])]
        rng.shuffle(answers)
        self._dns.answers[self.name] = answers

    def close(self) -> None:
        """Close all sockets."""
        self._holes.close()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoListeners]:
    """Two brokers, and a topic with partitions of both."""
    with TwoListeners() as made:
        made.create_topic(TOPIC, 4)
        yield made


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_finds_servers_that_move(
    seed: int,
    cluster: TwoListeners,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is lost, and no message is delivered after the session may have ended. All partitions
    are delivered within the session timeout and a second, once all names have a live address. The
    log has an address that did not answer."""
    caplog.set_level(logging.INFO, "zkconsumer")
    rng = random.Random(seed)
    dns = LyingDns(monkeypatch)
    zookeeper = Home("zk.test", cluster.zookeeper_server.port, free_port(), dns)
    brokers = [
        Home(f"broker-{n}.test", cluster.outside[n], cluster.advertised[n], dns) for n in range(2)
    ]
    homes = [zookeeper, *brokers]
    inside = ",".join(server.address for server in cluster.broker_servers)
    with contextlib.ExitStack() as stack:
        for home in homes:
            stack.callback(home.close)
            home.arrive(rng)
        config = {
            "zookeeper.connect": f"zk.test:{zookeeper.port}",
            "zookeeper.session.timeout.ms": int(SESSION * 1000),
            "group.id": f"names-{seed}",
            "auto.offset.reset": "smallest",
            "zkconsumer.listener.name": "external",
        }
        producer = stack.enter_context(Producer(inside, TOPIC, range(4), 0.01))
        member = stack.enter_context(ZookeeperConsumerConnector(config))
        reader = Reader(member.create_message_streams({TOPIC: 1})[TOPIC])
        try:
            wait_until(lambda: reader.deliveries, 30, "the first message")
            late = [_moved(rng, homes, reader) for _ in range(MOVES)]
            all_delivered(producer, [reader], 60)
        except BaseException as error:
            error.add_note(f"ZKC_SEED={seed}; DNS: {dns.answers}; health: {member.health()}")
            raise
    sys.stdout.write(f"ZKC_SEED={seed}: recovered after {late} s\n")
    assert max(late) <= RECOVERY, f"ZKC_SEED={seed}"
    assert any(address in caplog.text for address in ADDRESSES), f"ZKC_SEED={seed}"


def _moved(rng: random.Random, homes: list[Home], reader: Reader) -> float:
    """Let some servers move. Return the seconds until all partitions are delivered again."""
    leaving = rng.sample(homes, rng.choice([1, 1, 2, 3]))
    begun = time.monotonic()
    for home in leaving:
        home.leave(rng)
    away = rng.choice([0.2, 1.5, 3.0, SESSION + 3.0])
    while time.monotonic() < begun + away:  # this is how long they are away, not a condition
        time.sleep(0.05)
    if homes[0] in leaving and away > SESSION:
        last = max(one.at for one in list(reader.deliveries))
        assert last < begun + SESSION, "a message was delivered after the session may have ended"
    for home in leaving:
        home.arrive(rng)
    live = time.monotonic()

    def delivered() -> bool:
        found: set[int] = set()
        for one in reversed(list(reader.deliveries)):
            if one.at < live or len(found) == 4:
                break
            found.add(one.partition)
        return len(found) == 4

    wait_until(delivered, RECOVERY + SLOW, "all partitions are delivered")
    return round(time.monotonic() - live, 1)
