"""The migrator is killed before and after each of its side effects, then continues.

Every such point has a number. By default the test tries a sample of the points. ``CRASH_POINTS``
sets how many of each direction, and ``all`` tries each. The sample's seed is printed and read from
``CRASH_SEED``.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.errors import JournalError
from zkmigrate.formats.plan_file import PlanFile, render
from zkmigrate.model import Direction
from zkmigrate.plan.options import OnConflict, Options

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

TOPICS = 5
PARTITIONS = 2
SAMPLE = os.environ.get("CRASH_POINTS", "6")
GROUPS = {"forth": 10, "back": 10, "forth and back": 10, "rollback": 10, "rollback instead": 10}
"""Points per direction. This is enough for 200 points in all."""


class KilledError(BaseException):
    """Simulates a kill: our code does not catch it, and the session ends as after a kill."""


class Killer:
    """Counts effects, and kills all threads at one of them."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.seen: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, what: str) -> None:
        with self._lock:
            if self.at is not None and len(self.seen) > self.at:
                raise KilledError(what)
            self.seen.append(what)
            if len(self.seen) - 1 == self.at:
                raise KilledError(what)


class Case:
    """Groups in the state before one step of a direction, and that step."""

    def __init__(self, bench: Bench, way: str, name: str, topics: list[str], parallel: int) -> None:
        self.bench = bench
        self.parallel = parallel
        self.way = way
        self.topics = topics
        self.groups = [f"{name}-{number}" for number in range(GROUPS[way])]
        self.before: Any = None
        chosen = Options(OnConflict.KAFKA, max_idle_days=10**6)
        for number, group in enumerate(self.groups):
            self._fill(number, group)
        if way == "forth and back":
            plan, journal = bench.plan(self.groups)
            assert all(result.outcome is Outcome.DONE for result in bench.apply(plan, journal))
            for number, group in enumerate(self.groups):
                for topic in topics:
                    bench.set_kafka(group, topic, {0: 7 + number, 1: 1})
        direction = Direction.ZK_TO_KAFKA
        if way in ("back", "forth and back"):
            direction = Direction.KAFKA_TO_ZK
        options = chosen if way == "back" else None
        self.plan: PlanFile
        self.plan, self.journal = bench.plan(self.groups, direction, options)
        assert not any(group.problems for group in self.plan.groups)
        self.before = self.state()
        if way == "rollback":
            self.good(bench.apply(self.plan, self.journal))

    def _fill(self, number: int, group: str) -> None:
        """Offsets with a gap, a zero and a missing one. In the reverse direction Kafka also has
        some."""
        transaction = self.bench.client.transaction()
        for kind in ("", "/offsets"):
            self.bench.client.ensure_path(f"/consumers/{group}{kind}")
        for index, topic in enumerate(self.topics):
            transaction.create(f"/consumers/{group}/offsets/{topic}")
            if index % 4 != 3 or self.way == "forth and back":
                transaction.create(
                    f"/consumers/{group}/offsets/{topic}/0", b"%d" % (index + number)
                )
            if index % 3 == 0:
                transaction.create(f"/consumers/{group}/offsets/{topic}/1", b"0")
        for done in transaction.commit():
            assert not isinstance(done, Exception)
        if self.way == "back":
            for topic in self.topics[: TOPICS // 2]:
                self.bench.set_kafka(group, topic, {0: StoredOffset(3, -1, "kept"), 1: 8})

    def step(self, effect: Callable[[str], None]) -> list[Result]:
        """The step that is killed."""
        if self.way == "rollback":
            return self.bench.rollback(self.plan, self.journal, effect, parallel=self.parallel)
        return self.bench.apply(self.plan, self.journal, effect, parallel=self.parallel)

    def resume(self) -> list[Result]:
        """The command that runs after the kill."""
        if self.way.startswith("rollback"):
            if not self.journal.exists():
                return []
            return self.bench.rollback(self.plan, self.journal, parallel=self.parallel)
        return self.bench.apply(self.plan, self.journal, parallel=self.parallel)

    @staticmethod
    def good(results: list[Result]) -> None:
        """Check that every group has a good outcome."""
        bad = [result for result in results if not result.outcome.good]
        assert not bad, bad

    def state(self) -> list[tuple[dict[str, bytes], dict[tuple[str, int], object]]]:
        """Both stores, without the groups' names."""
        found = []
        for group in self.groups:
            znodes = {
                path.removeprefix(f"/consumers/{group}"): data
                for path, data in self.bench.znodes(group).items()
            }
            kafka = self.bench.committed(group, dict.fromkeys(self.topics, PARTITIONS))
            found.append((znodes, {tuple(tp): stored for tp, stored in kafka.items()}))
        return found

    def check_between(self) -> None:
        """After a kill each offset has either its old or its new value."""
        for number, (plan, (znodes, kafka)) in enumerate(
            zip(self.plan.groups, self.state(), strict=True)
        ):
            for entry in plan.entries:
                topic, partition = entry.tp
                data = znodes.get(f"/offsets/{topic}/{partition}")
                zk = None if data is None else int(data)
                stored = kafka.get((topic, partition))
                held = stored.offset if isinstance(stored, StoredOffset) else None
                before = entry.kafka.offset if entry.kafka else None
                to_zk = self.plan.direction is Direction.KAFKA_TO_ZK
                assert zk in ({entry.zk, entry.to} if to_zk else {entry.zk}), (number, entry.tp)
                assert held in ({before} if to_zk else {before, entry.to}), (number, entry.tp)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("way", list(GROUPS))
def test_a_kill_at_any_point_changes_nothing_in_the_end(
    bench: Bench, unique: str, way: str, parallel: int
) -> None:
    """Resuming reaches the state of an uninterrupted run, and no offset is lost or lowered. Rolling
    back instead restores the state before. The same holds for several groups at a time."""
    seed = int(os.environ.get("CRASH_SEED", str(random.randrange(10**6))))
    name = unique[-8:]
    topics = [f"{name}-t{number:02}" for number in range(TOPICS)]
    for topic in topics:
        bench.topic(topic, PARTITIONS)
    whole = Case(bench, way, f"{name}-whole", topics, parallel)
    count = Killer()
    whole.good(whole.step(count))
    expected = whole.before if way.startswith("rollback") else whole.state()
    if way == "rollback":
        assert whole.state() == expected
    points: list[int] = list(range(len(count.seen)))
    if SAMPLE != "all":
        points = sorted(random.Random(seed).sample(points, int(SAMPLE)))
    print(f"CRASH_SEED={seed} {way}: {len(points)} of {len(count.seen)} points")  # noqa: T201
    assert len(count.seen) >= 200
    for point in points:
        case = Case(bench, way, f"{name}-{point}", topics, parallel)
        killer = Killer(point)
        with pytest.raises(KilledError):
            case.step(killer)
        where = f"point {point}: {killer.seen[-1]}"
        case.check_between()
        case.good(case.resume())
        found = case.state()
        assert found == expected, where


SCRIPT = """
import os, sys
from pathlib import Path
from zkmigrate.apply.journal import Journal
from zkmigrate.apply.migrator import Migrator
from zkmigrate.formats.plan_file import parse
from zkmigrate.stores.sessions import Stores

zookeeper, plan, journal, word = sys.argv[1:]

def effect(what):
    if word in what:
        os._exit(9)

loaded = parse(plan, Path(plan).read_bytes())
with Stores(zookeeper, 4.0) as stores, Journal(Path(journal), loaded.digest, effect) as opened:
    Migrator(stores, effect).apply(loaded, opened, lambda result: None)
"""


@pytest.mark.parametrize(
    "word",
    ["after zookeeper create /consumers", "after zookeeper multi", "after kafka", "journal mark"],
)
def test_a_killed_process_is_outlived(
    bench: Bench, tmp_path: Path, group: str, topic: str, word: str
) -> None:
    """A killed process leaves its session behind, and the next run waits for it."""
    bench.topic(topic, 2)
    bench.set_zk(group, topic, {0: 3, 1: 4})
    plan, journal = bench.plan([group])
    file = tmp_path / "plan"
    file.write_text("".join(render(plan.direction, plan.made_ms, plan.groups)))
    arguments = [sys.executable, "-c", SCRIPT, bench.cluster.zookeeper, str(file), str(journal)]
    done = subprocess.run([*arguments, word], check=False, timeout=60, capture_output=True)
    assert done.returncode == 9, done.stderr.decode()
    (result,) = bench.apply(plan, journal)
    assert result.outcome is Outcome.DONE, result.why
    assert bench.committed(group, {topic: 2}) == {
        TopicPartition(topic, 0): StoredOffset(3),
        TopicPartition(topic, 1): StoredOffset(4),
    }
    assert not bench.client.get_children(f"/consumers/{group}/ids")


def test_a_cut_journal_never_makes_it_guess(bench: Bench, group: str, topic: str) -> None:
    """The journal of a finished or killed run is cut at any place. The move ends as planned, or is
    refused and changes nothing."""
    bench.topic(topic, 2)
    outcomes = set()
    for kill in (None, "after kafka", "before journal mark", "after zookeeper multi"):
        name = f"{group}-{kill}".replace(" ", "-")
        bench.set_zk(name, topic, {0: 3, 1: 4})
        plan, journal = bench.plan([name])

        def effect(what: str, kill: str | None = kill) -> None:
            if kill is not None and kill in what:
                raise KilledError(what)

        try:
            bench.apply(plan, journal, effect)
        except KilledError:
            assert kill is not None
        data = journal.read_bytes()
        ends = {index + 1 for index, byte in enumerate(data) if byte == 10}
        ends |= {end + more for end in ends for more in (-1, 1, 9) if end + more < len(data)}
        if SAMPLE == "all":
            ends = set(range(len(data) + 1))
        for end in sorted(ends):  # shortest first: the stores only advance
            journal.write_bytes(data[:end])
            before = (bench.znodes(name), bench.committed(name, {topic: 2}))
            try:
                (result,) = bench.apply(plan, journal)
            except JournalError:
                outcomes.add("refused journal")
                assert (bench.znodes(name), bench.committed(name, {topic: 2})) == before
                continue
            outcomes.add(result.outcome)
            if result.outcome.good:
                assert bench.committed(name, {topic: 2}) == {
                    TopicPartition(topic, 0): StoredOffset(3),
                    TopicPartition(topic, 1): StoredOffset(4),
                }, end
            else:
                assert "plan again" in result.why or "plan:" in result.why, result.why
                assert (bench.znodes(name), bench.committed(name, {topic: 2})) == before, end
    assert outcomes >= {"refused journal", Outcome.REFUSED, Outcome.DONE, Outcome.WAS_DONE}
