"""Members behind proxies that lose, delay, repeat, cut, swap and corrupt ZooKeeper's frames.

The test checks those rules of the simulator (``RULES`` in
``zkconsumer/sim/judges/invariants.py``) that can be checked on a real server. It
uses the faults of ``test_zk_attack``. ``ZKC_SEED=N`` sets the
seed, and ``ZKC_MEMBER_FAULTS=2000`` makes a run longer (about two faults per second):

    ZKC_MEMBER_FAULTS=2000 .venv/bin/pytest tests/faults/test_member_attack.py
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest
from kazoo.exceptions import NoNodeError

from tests.faults.frame_proxy import Fault, FrameProxy
from tests.support.groups import GroupWatch, Producer, Reader, delivered_since, places
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.sim.judges.invariants import RULES

SEED = int(os.environ.get("ZKC_SEED", "1"))
FAULTS = int(os.environ.get("ZKC_MEMBER_FAULTS", "30"))
MEMBERS = 3
PARTITIONS = 6
SESSION = 3.0
RATE = 0.08
HEAL = 2 * SESSION + 5
"""Seconds after the faults within which the group must be healthy again."""
CORRUPT_HEAL = 40.0
"""The same after corrupt responses. A member may have to read all registrations again, a tenth at a
time."""
HONEST = frozenset(Fault) - {Fault.CORRUPT}


class Member(NamedTuple):
    """A connector, its reader, and the proxy between it and ZooKeeper."""

    connector: ZookeeperConsumerConnector
    reader: Reader
    proxy: FrameProxy

    @property
    def id(self) -> str:
        return self.connector.consumer_id

    @property
    def ended(self) -> bool:
        """Whether it has failed with an error that the application sees."""
        return bool(self.reader.errors)

    def claims(self) -> set[int]:
        """The partitions that it reports as its own."""
        loop = self.connector._loop
        assert loop is not None
        return {tp.partition for tp in list(loop.machine.held)}


@pytest.fixture
def kinds(request: pytest.FixtureRequest) -> frozenset[Fault]:
    """The kinds of faults that happen."""
    found: frozenset[Fault] = request.param
    return found


@pytest.fixture
def members(
    cluster: LocalCluster, group: str, topic: str, kinds: frozenset[Fault]
) -> Iterator[list[Member]]:
    """Members that have joined without faults."""
    cluster.create_topic(topic, PARTITIONS)
    config: dict[str, object] = {
        "group.id": group,
        "zookeeper.session.timeout.ms": int(SESSION * 1000),
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 100,
        "rebalance.backoff.ms": 300,
        "refresh.leader.backoff.ms": 50,
        "zkconsumer.reread.interval.ms": 1000,
    }
    with ExitStack() as stack:
        made = []
        for number in range(MEMBERS):
            port = cluster.zookeeper_server.port
            proxy = stack.enter_context(FrameProxy(port, SEED * 1000 + number, 0.0, kinds))
            own = {"zookeeper.connect": proxy.address, "consumer.id": f"m{number}"}
            connector = ZookeeperConsumerConnector(config | own)
            stack.callback(leave, connector)
            reader = Reader(connector.create_message_streams({topic: 1})[topic])
            made.append(Member(connector, reader, proxy))
        yield made


def leave(connector: ZookeeperConsumerConnector) -> None:
    """Close a member that may have failed."""
    with suppress(ZkConsumerError):
        connector.shutdown(timeout=10)


@pytest.mark.timeout(180 + 2 * FAULTS)
@pytest.mark.parametrize(
    "kinds",
    [HONEST, frozenset(Fault)],
    ids=["nothing is corrupt", "with corrupt answers"],
    indirect=True,
)
def test_members_keep_the_rules(
    cluster: LocalCluster,
    group: str,
    topic: str,
    kinds: frozenset[Fault],
    members: list[Member],
) -> None:
    """No member fails without its application seeing it. After the faults each partition has an
    owner that knows it, owns it with its own session, and delivers. Unless responses were corrupt,
    no member has failed, nothing is lost, and no committed offset was lowered."""
    exact = Fault.CORRUPT not in kinds

    def seen() -> set[tuple[int, int]]:
        return set(places(member.reader for member in members))

    with (
        GroupWatch(cluster.zookeeper, group, [topic]) as watch,
        Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.005) as producer,
    ):
        for member in members:
            member.proxy.rate = RATE
        deadline = time.monotonic() + 60 + FAULTS * 2
        while sum(member.proxy.delivered.total() for member in members) < FAULTS:
            assert time.monotonic() < deadline, "the faults are not delivered in time"
            time.sleep(0.02)
        for member in members:
            member.proxy.rate = 0.0
        counts = sum((member.proxy.delivered for member in members), Counter[Fault]())
        names = ", ".join(f"{kind.name} {number}" for kind, number in counts.most_common())
        sys.stdout.write(f"ZKC_SEED={SEED}: {names}\n")

        ended = [member.id for member in members if member.ended]
        assert not (exact and ended), f"goes_on: {RULES['goes_on']}: {ended}"
        assert len(ended) < MEMBERS, "all members have ended"
        begun = time.monotonic()
        wait_whole(watch, topic, members, HEAL if exact else CORRUPT_HEAL)
        sent = producer.sent
        wait_until(
            lambda: delivered_since([m.reader for m in members], begun) == set(range(PARTITIONS)),
            HEAL,
            f"no_silent_partition: {RULES['no_silent_partition']}",
        )
        assert producer.sent > sent or sent
        acked = set(producer.stop())
        if exact:
            wait_until(lambda: acked <= seen(), 15, f"no_record_lost: {RULES['no_record_lost']}")
            assert not watch.lowered, f"{RULES['offsets_never_lowered']}: {watch.lowered[:5]}"
        repeats = sum(len(m.reader.deliveries) for m in members) - len(seen())
        sys.stdout.write(
            f"{len(seen())} messages, {repeats} repeats, ended: {ended}, "
            f"whole after {time.monotonic() - begun:.1f} s\n"
        )


def wait_whole(watch: GroupWatch, topic: str, members: list[Member], timeout: float) -> None:
    """Wait until the live members are registered and own everything with their sessions."""
    faults: list[str] = []

    def whole() -> bool:
        nonlocal faults
        faults = list(broken(watch, topic, members))
        return not faults

    try:
        wait_until(whole, timeout, "the group is healthy")
    except Exception as error:
        states = {m.id: (m.connector.metrics().state, m.connector._zk.connected) for m in members}
        error.add_note(f"ZKC_SEED={SEED}: {faults}; members: {states}")
        raise


def broken(watch: GroupWatch, topic: str, members: list[Member]) -> Iterator[str]:
    """The rules that are violated at the moment."""
    owners: dict[int, tuple[str, int]] = {}
    for partition in range(PARTITIONS):
        path = f"{watch.paths.owners_topic(topic)}/{partition}"
        with suppress(NoNodeError):
            data, stat = watch.client.get(path)
            owners[partition] = data.decode().rpartition("-")[0], stat.ephemeralOwner
    if missing := set(range(PARTITIONS)) - owners.keys():
        yield f"no_orphan_at_rest: {missing} have no owner"
    registered = watch.members()
    for member in members:
        if member.ended:
            continue
        if member.id not in registered:
            yield f"registered_at_rest: {member.id}"
        session, claims = member.connector._zk.session_id, member.claims()
        for partition in claims:
            if owners.get(partition) != (member.id, session):
                yield f"{member.id} says it owns {partition}: {owners.get(partition)}, {session:x}"
        if len(claims) < PARTITIONS // MEMBERS:
            yield f"no_member_without_share: {member.id} has {sorted(claims)}"
