"""A consumer that is still running writes to the source store while its group is being moved.

The JVM's consumer writes offsets without a version, so no claim blocks its commits. Each of them
must be noticed. ``JVM_MOMENTS=25`` lets real JVM members continue at that many moments of moves in
each direction (``make test-zombies``, 15 minutes). The default is one.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from zkmigrate.apply import ownership
from zkmigrate.apply.outcome import Outcome
from zkmigrate.cli import run
from zkmigrate.exits import ATTENTION
from zkmigrate.formats.plan_file import PlanFile, render
from zkmigrate.model import Direction, Record, Store

from tests.migrate.rows import rows_of
from tests.support.legacy_jvm import JvmMember, JvmMembers
from zkconsumer.admin import takeover
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Check, Create, Multi, Node, Ok, Stat
from zkconsumer.servers import wait_until
from zkconsumer.servers.waiting import stands_still

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

JVM_MOMENTS = int(os.environ.get("JVM_MOMENTS", "1"))
SESSION_MS = 6000
STEPS = 20
"""Number of step boundaries in a move of one group."""


def seeded() -> random.Random:
    """A random source whose seed is printed, and read from ``LATE_SEED``."""
    seed = int(os.environ.get("LATE_SEED", str(random.randrange(10**6))))
    print(f"LATE_SEED={seed}")  # noqa: T201
    return random.Random(seed)


class Steps:
    """Counts the step boundaries of each group of a plan, and acts at a chosen one in each."""

    def __init__(self, act: Callable[[int], object], at: Callable[[int], int | None]) -> None:
        self.names: list[list[str]] = []
        self._act = act
        self._at = at

    def __call__(self, what: str) -> None:
        if what == "before journal claim":
            self.names.append([])
        if not self.names:
            return  # the journal
        number = len(self.names) - 1
        self.names[number].append(what)
        if self._at(number) == len(self.names[number]) - 1:
            self._act(number)


def command(capsys: pytest.CaptureFixture[str], bench: Bench, *words: str) -> tuple[int, str]:
    """Run a zkmigrate command against the bench's servers. Return its status and output."""
    capsys.readouterr()
    status = run([*words, "--zookeeper", bench.cluster.zookeeper])
    return status, capsys.readouterr().out


def filed(folder: Path, plan: PlanFile) -> str:
    """Write a plan to a file and return its path."""
    file = folder / f"{plan.digest[:12]}.plan"
    file.write_text("".join(render(plan.direction, plan.made_ms, plan.groups)))
    return str(file)


@pytest.mark.parametrize("way", list(Direction))
@pytest.mark.parametrize("new", [False, True], ids=["newer offset", "first offset"])
def test_a_commit_to_the_source_at_any_step_is_noticed(
    bench: Bench,
    group: str,
    topic: str,
    way: Direction,
    new: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a consumer commits to the source store at any step of a move, the move is not reported as
    done. It names the partition, and so do a second apply and verify."""
    bench.topic(topic, 2)
    to_kafka = way is Direction.ZK_TO_KAFKA
    source = bench.set_zk if to_kafka else bench.set_kafka  # set_zk writes with version -1
    offsets = {0: 3} if new else {0: 3, 1: 4}

    source(f"{group}-count", topic, offsets)
    count = Steps(lambda _number: None, lambda _number: None)
    plan, journal = bench.plan([f"{group}-count"], way)
    assert bench.apply(plan, journal, count)[0].outcome is Outcome.DONE
    boundaries = count.names[0].index("before journal outcome")  # the last check is before that
    assert boundaries >= 20

    groups = [f"{group}-{number:02}" for number in range(boundaries)]
    for name in groups:
        source(name, topic, offsets)
    plan, journal = bench.plan(groups, way)
    late = Steps(lambda number: source(groups[number], topic, {1: 9}), lambda number: number)
    first = bench.apply(plan, journal, late)
    second = bench.apply(plan, journal)
    assert len(late.names) == boundaries
    for number, results in enumerate(zip(first, second, strict=True)):
        for result in results:
            assert not result.outcome.good, (count.names[0][number], result)
            assert f"{TopicPartition(topic, 1)}" in result.why, (count.names[0][number], result)
    status, out = command(capsys, bench, "status", filed(tmp_path, plan), "--json")
    assert status == ATTENTION
    found = {row["group"] for row in rows_of(out) if row["found"] == 9}
    assert found == set(groups)


@pytest.mark.parametrize(
    ("partitions", "marker", "earlier"),
    [(100, 1000, 0), (5000, 1000, 0), (5000, 900 * 1024, 0), (5000, 390 * 1024, 400 * 1024)],
)
def test_the_marker_is_written_with_as_many_checks_as_fit(
    partitions: int, marker: int, earlier: int
) -> None:
    """The multi that writes the migration marker and the group's record checks the registration and
    every claimed offset znode. If there are too many, other multis check the rest just before it.
    Each multi stays below ZooKeeper's limit of 1 MiB, however long the names are."""
    tps = [TopicPartition("t" * 249, number) for number in range(partitions)]
    hold = takeover.Hold("g" * 249, "name", 0)
    hold.nodes = {tp: Node(b"1", Stat(1, 1, 7, 0)) for tp in tps}
    before = b"y" * earlier if earlier else None
    script = ownership.write_marker(hold, {None}, b"x" * marker, Record(id="1"), earlier=before)
    op = next(script)
    checked: list[object] = []
    multis = 0
    while True:
        if isinstance(op, Multi):
            multis += 1
            assert (
                sum(len(one.path) + len(getattr(one, "data", b"")) + 30 for one in op.ops) < 2**20
            )
            assert op.ops[0] == hold.check
            checked += [one for one in op.ops[1:] if isinstance(one, Check)]
            if isinstance(op.ops[-1], Create):
                break
            op = script.send(Ok((None,) * len(op.ops)))
        else:
            op = script.send(Ok((None, None)))
    assert sorted(checked, key=str) == sorted(
        (Check(hold.paths.offset(tp), 7) for tp in tps), key=str
    )
    assert (multis > 1) == (partitions == 5000)


@pytest.fixture(scope="module")
def jvm() -> Iterator[JvmMembers]:
    """A JVM of this module only, which is suspended."""
    with JvmMembers("1.1") as running:
        yield running


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("way", list(Direction))
def test_an_original_consumer_that_wakes_up_is_noticed(
    bench: Bench,
    jvm: JvmMembers,
    group: str,
    topic: str,
    way: Direction,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The JVM's consumer, which stores its offsets in the source store, is stopped beyond its
    session timeout. It continues at a random step of a move, with uncommitted messages. If it
    commits before the end of the move, apply fails and names a partition. verify finds a later
    commit. No commit is missed, even if the group is locked."""
    chance = seeded()
    noticed = {"apply": 0, "verify": 0, "nothing to notice": 0}
    for number in range(JVM_MOMENTS):
        names = f"{group}-{number}", f"{topic}-{number}"
        lock = bool(number % 2)
        noticed[_woken(bench, jvm, *names, way, chance, lock, tmp_path, capsys)] += 1
    with capsys.disabled():
        print(f"{way.value}: noticed by {noticed}")  # noqa: T201
    assert noticed["apply"] or JVM_MOMENTS < 5


def _woken(
    bench: Bench,
    jvm: JvmMembers,
    name: str,
    topic: str,
    way: Direction,
    chance: random.Random,
    lock: bool,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """One move during which a JVM member continues. Return which command noticed it."""
    bench.topic(topic, 2, 0)
    config = {
        "zookeeper.connect": bench.cluster.zookeeper,
        "group.id": name,
        "consumer.id": "sleeper",
        "auto.commit.enable": "false",
        "auto.offset.reset": "smallest",
        "zookeeper.session.timeout.ms": SESSION_MS,
        "offsets.storage": way.source.value,
        "dual.commit.enabled": "false",
    }
    member = JvmMember(jvm, config, {topic: 1})
    member.wait_joined()

    def read(count: int) -> None:
        already = len(member.deliveries)
        for partition in range(2):
            bench.produce(topic, partition, count)
        wait_until(lambda: len(member.deliveries) >= already + 2 * count, 30, "the member has read")

    read(10)
    member.commit()
    read(5)
    process = jvm._process.pid
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: stands_still(process), 10, "the member is stopped")
    committed: list[float] = []
    ended: list[float] = []

    def stored(store: Store) -> list[int]:
        if store is Store.KAFKA:
            found = bench.committed(name, {topic: 2})
            return [found[tp].offset for tp in sorted(found)]  # type: ignore[attr-defined]
        znodes = bench.znodes(name)
        paths = [f"/consumers/{name}/offsets/{topic}/{number}" for number in range(2)]
        return [int(znodes[path]) for path in paths if path in znodes]

    before = stored(way.source)
    assert before == [10, 10]

    def commit() -> None:
        member.commit(120.0)
        committed.append(time.monotonic())

    thread = threading.Thread(target=commit)
    thread.start()  # it commits as soon as it continues, before it notices that its session ended

    def act(_number: int) -> None:
        os.kill(process, signal.SIGCONT)
        if chance.random() < 0.75:  # a slow step, as when a coordinator moves
            wait_until(lambda: committed, 60, "the member has committed")

    try:
        ids = f"/consumers/{name}/ids"
        wait_until(lambda: not bench.client.get_children(ids), 60, "its session has ended")
        owners = f"/consumers/{name}/owners/{topic}"
        wait_until(lambda: not bench.client.get_children(owners), 60, "the member owns nothing")
        plan, journal = bench.plan([name], way)
        assert not plan.groups[0].problems
        at = chance.randrange(STEPS)
        steps = Steps(act, lambda _number: at)

        def effect(what: str) -> None:
            steps(what)
            if what == "after journal done":
                ended.append(time.monotonic())

        (result,) = bench.apply(plan, journal, effect, lock)
    finally:
        os.kill(process, signal.SIGCONT)
        thread.join(130)
    assert committed
    status, out = command(capsys, bench, "status", filed(folder, plan), "--json")
    kafka, zookeeper = stored(Store.KAFKA), stored(Store.ZOOKEEPER)
    reached = steps.names[0][at : at + 1] if steps.names else []
    where = " ".join(reached[0].split()[:3]) if reached else "never reached"
    with capsys.disabled():
        told = f"step {at} ({where}): {result.outcome.value}, verify {status}"
        print(f"{told}, zookeeper {zookeeper}, kafka {kafka}; ...{result.why[-90:]}")  # noqa: T201
    member.shutdown()  # it may have failed: no member can register in a locked group
    if stored(way.source) == before:  # its session ended earlier
        assert bool(status) == (not result.outcome.good)
        return "nothing to notice"
    assert status == ATTENTION
    assert (0, 15) in {(row["partition"], row["found"]) for row in rows_of(out)}
    if not result.outcome.good:
        assert topic in result.why or "sleeper registered" in result.why
        return "apply"
    assert not ended or ended[0] < committed[0]
    return "verify"
