"""Generated groups are moved to Kafka and back. Nothing changes, or the move is refused with a
reason.

``ROUND_TRIP_GROUPS`` sets the number of groups. The seed is printed and read from
``ROUND_TRIP_SEED``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply.outcome import Outcome
from zkmigrate.model import Direction
from zkmigrate.plan.options import Options
from zkmigrate.plan.values import Verdict
from zkmigrate.reasons import Reason

from zkconsumer.broker.groups.coordinator_calls import StoredOffset

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

COUNT = int(os.environ.get("ROUND_TRIP_GROUPS", "60"))
PARTITIONS = 3
MAX = 2**63 - 1
MESSAGES = 20
Offsets = dict[tuple[str, int], bytes]
EXPECTED = {
    "above": Reason.OUT_OF_RANGE,
    "max": Reason.OUT_OF_RANGE,
    "garbage": Reason.UNREADABLE,
    "gone": Reason.TOPIC_MISSING,
    "old": Reason.RECREATED,
}
"""The refusal that each generated oddity causes."""


def generate(rng: random.Random, topics: Mapping[str, str]) -> tuple[Offsets, set[str]]:
    """Offsets of one group, and the oddities among them."""
    offsets: Offsets = {}
    odd: set[str] = set()
    for kind in ("one", "two"):
        for partition in range(PARTITIONS):
            word = rng.choice(["absent", "zero", "end", "some", "some", "some", "none"])
            if rng.random() < 0.02:
                word = rng.choice(["above", "max", "garbage"])
                odd.add(word)
            value = {
                "zero": b"0",
                "end": b"%d" % MESSAGES,
                "some": b"%d" % rng.randint(1, MESSAGES - 1),
                "none": b"-1",
                "above": b"%d" % (MESSAGES + 1),
                "max": b"%d" % MAX,
                "garbage": rng.choice([b" 8 ", b"", b"1e3", b"\xd9\xa3"]),
            }.get(word)
            if value is not None:
                offsets[(topics[kind], partition)] = value
    for kind in ("gone", "old"):
        if rng.random() < 0.04:
            odd.add(kind)
            offsets[(topics[kind], 0)] = b"1"
    if not odd and not any(value.isdigit() for value in offsets.values()):
        offsets[(topics["one"], 0)] = b"3"
    return offsets, odd


@pytest.mark.timeout(900)
def test_round_trips(bench: Bench, unique: str) -> None:
    """After both moves ZooKeeper has its old offsets, and Kafka has those of ZooKeeper. After
    two rollbacks both stores have all their old offsets and metadata. A refused group is not
    changed."""
    seed = int(os.environ.get("ROUND_TRIP_SEED", str(random.randrange(10**6))))
    print(f"ROUND_TRIP_SEED={seed} ROUND_TRIP_GROUPS={COUNT}")  # noqa: T201
    rng = random.Random(seed)
    tail = unique[-8:]
    topics = {kind: f"{kind}-{tail}" for kind in ("one", "two", "gone", "old")}
    groups = {f"g{number:05}-{tail}": generate(rng, topics) for number in range(COUNT)}
    for kind in ("one", "two"):
        bench.topic(topics[kind], PARTITIONS, MESSAGES)
    for group, (offsets, _) in groups.items():
        for (topic, partition), value in offsets.items():
            bench.set_zk(group, topic, {partition: value})
    bench.topic(topics["old"], PARTITIONS, MESSAGES)  # after its offsets were stored
    for group in groups:
        if rng.random() < 0.2:
            offset = StoredOffset(
                rng.randint(0, MESSAGES), rng.choice([-1, 0]), "m" * rng.randint(0, 9)
            )
            bench.set_kafka(group, topics["two"], {rng.randrange(PARTITIONS): offset})

    def kafka(group: str) -> object:
        return bench.committed(group, {topics["one"]: PARTITIONS, topics["two"]: PARTITIONS})

    before = {group: (bench.znodes(group), kafka(group)) for group in groups}
    options = Options("zookeeper", max_idle_days=10**6)
    plan, journal = bench.plan(list(groups), options=options)
    for made in plan.groups:
        odd = groups[made.group][1]
        found = {problem.kind for problem in made.problems}
        assert found == {EXPECTED[word] for word in odd}, (made.group, made.problems)
        assert all(problem.fix for problem in made.problems)
    ready = [made.group for made in plan.groups if made.verdict is Verdict.READY]
    assert COUNT / 2 < len(ready) < COUNT
    results = {result.group: result for result in bench.apply(plan, journal)}
    for group in groups:
        assert results[group].outcome is (Outcome.DONE if group in ready else Outcome.SKIPPED)

    back, second = bench.plan(ready, Direction.KAFKA_TO_ZK)
    written = [entry for made in back.groups for entry in made.entries if entry.write]
    # Offsets that only Kafka had stay there and are now written to ZooKeeper. Nothing else is.
    assert all(entry.zk is None for entry in written)
    assert all(result.outcome is Outcome.DONE for result in bench.apply(back, second))
    for group in ready:
        now = {
            path: data
            for path, data in bench.znodes(group).items()
            if not path.endswith("migration")
        }
        assert before[group][0].items() <= {**now, **_none(before[group][0], now)}.items(), group
    for made, undone in ((back, second), (plan, journal)):
        assert all(result.outcome.good for result in bench.rollback(made, undone))
    for group in groups:
        assert (bench.znodes(group), kafka(group)) == before[group], group


def _none(before: dict[str, bytes], now: dict[str, bytes]) -> dict[str, bytes]:
    """Offsets of -1 in ZooKeeper, where only Kafka had a real offset."""
    return {path: data for path, data in before.items() if data == b"-1" and path in now}
