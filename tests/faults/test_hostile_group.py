"""A group consumes while a hostile client keeps writing registrations.

``ZKC_SEED=N`` sets the seed, and ``ZKC_HOSTILE=2000`` makes a run longer.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import ExitStack

import pytest

from tests.fuzz.catastrophic import CATASTROPHIC
from tests.fuzz.mutate import mutate
from tests.support.groups import GroupWatch, Producer, Reader, all_delivered, delivered_since
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.common.topic_filter import Whitelist
from zkconsumer.servers import LocalCluster, wait_until

SEED = int(os.environ.get("ZKC_SEED", "1"))
WRITES = int(os.environ.get("ZKC_HOSTILE", "80"))
MEMBERS = 3
PARTITIONS = 6
SILENCE_S = 15.0
"""The longest that a partition may go without a delivery, on a busy machine."""


def registration(regex: str) -> bytes:
    """A registration with this filter."""
    document = {"version": 1, "subscription": {regex: 1}, "pattern": "white_list"}
    return json.dumps(document).encode()


@pytest.mark.timeout(120 + WRITES)
def test_members_consume_while_a_client_writes_hostile_registrations(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    """Each partition is delivered all the time, and nothing is lost. All members ignore the same
    registrations, and none once the hostile ones are gone."""
    cluster.create_topic(topic, PARTITIONS)
    rng = random.Random(SEED)
    config: dict[str, object] = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": group,
        "zookeeper.session.timeout.ms": 6000,
        "auto.offset.reset": "smallest",
        "auto.commit.interval.ms": 200,
        "rebalance.backoff.ms": 300,
        "refresh.leader.backoff.ms": 50,
        "zkconsumer.reread.interval.ms": 1000,
    }
    hostile = [registration(regex) for regex in CATASTROPHIC]
    with ExitStack() as stack:
        watch = stack.enter_context(GroupWatch(cluster.zookeeper, group, [topic]))
        connectors = []
        readers = []
        for number in range(MEMBERS):
            own = config | {"consumer.id": f"m{number}"}
            connector = stack.enter_context(ZookeeperConsumerConnector(own))
            if number:
                streams = connector.create_message_streams_by_filter(Whitelist(topic))
            else:
                streams = connector.create_message_streams({topic: 1})[topic]
            connectors.append(connector)
            readers.append(Reader(streams))
        producer = stack.enter_context(
            Producer(cluster.bootstrap, topic, range(PARTITIONS), interval=0.01)
        )
        names: list[str] = []
        slowest = 0.0
        for number in range(WRITES):
            path = f"{watch.paths.ids}/{group}_evil-{number % 40}"
            # A mutated registration may be valid, and then it gets its share. A regex cannot be
            # valid.
            data = hostile[number % len(hostile)]
            if rng.random() < 0.3:
                data = mutate(rng, [b'{"version":1,"subscription":[],"pattern":"static"}'])
            if path in names:
                watch.client.set(path, data)
            else:
                watch.client.create(path, data)
                names.append(path)
            if number % 10 == 9:
                begun = time.monotonic()
                wait_until(
                    lambda since=begun: delivered_since(readers, since) == set(range(PARTITIONS)),
                    SILENCE_S,
                    f"each partition is delivered; ZKC_SEED={SEED}",
                )
                slowest = max(slowest, time.monotonic() - begun)
        wait_until(
            lambda: len(agreed(connectors)) == 1, 30, "all members ignore the same registrations"
        )
        (left_out,) = agreed(connectors)
        sys.stdout.write(
            f"ZKC_SEED={SEED}: {WRITES} hostile registrations, {len(left_out)} of {len(names)} "
            f"left out, longest wait for all partitions {slowest:.2f} s\n"
        )
        assert len(left_out) >= len(names) / 4
        for path in names:
            watch.client.delete(path)
        wait_until(lambda: agreed(connectors) == {frozenset()}, 30, "no registration is ignored")
        all_delivered(producer, readers)
        assert not watch.lowered
        assert not any(reader.errors for reader in readers)


def agreed(connectors: list[ZookeeperConsumerConnector]) -> set[frozenset[str]]:
    """The sets of registrations that the members ignore. There is one set if they agree."""
    found = set()
    for connector in connectors:
        assert connector._loop is not None
        found.add(frozenset(connector._loop.machine.quarantined))
    return found
