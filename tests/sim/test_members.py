"""Whole members of every kind of group under random faults. No rule is broken in any run.

CI plays a sample: enough for each kind of fault to happen. ``make test-sim-all`` plays thousands of
seeds with more faults, and ``ZKC_SEEDS=500:2000`` runs seeds 500 to 2499 here.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from zkmigrate.model import Store

from tests.sim.runs.broker_scenario import BrokerGroup
from tests.sim.runs.group_judge import GroupJudge
from tests.sim.runs.judged import WholeGroupMember
from tests.sim.runs.result import Result
from tests.sim.runs.run import COORDINATIONS, run
from tests.sim.runs.world import World
from tests.support.specs import classic_spec, kip848_spec
from zkconsumer.core.common.commands import Outcome
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups import kip848_commands as commands
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import MemberState, RangeStrategy
from zkconsumer.core.groups.commands import CommitOffsets, LeaveGroup
from zkconsumer.core.groups.events import GroupMember
from zkconsumer.core.groups.formats.consumer_protocol import decode_assignment
from zkconsumer.core.groups.spec import Kip848Spec
from zkconsumer.core.groups.states import State
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.errors import ConnectorClosedError
from zkconsumer.runtime.membership import cluster_directory
from zkconsumer.sim.judges.invariants import Observer
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.host import Habits
from zkconsumer.sim.servers.kip848 import ConsumerGroupCoordinator

Runs = Sequence[Result[Any]]


def in_zookeeper(runs: Runs) -> None:
    """Members do much in ZooKeeper."""
    assert sum(result.scenario.zk.zxid for result in runs) > len(runs) * 40


def on_the_coordinator(runs: Runs) -> None:
    """Each strategy is drawn, generations follow each other, and members visit every state except
    the fatal one."""
    names = {result.scenario.offered[0].name for result in runs}
    assert names == {strategy.name for strategy in BrokerGroup.strategies}
    assert visited(runs) >= set(State) - {State.NEW, State.FAILED}
    assert sum(result.scenario.group.generation for result in runs) > len(runs) * 3


def by_kip_848(runs: Runs) -> None:
    """Members visit every state that is not of the classic protocol alone."""
    unused = {State.NEW, State.FAILED, State.LEADING, State.SYNCING}
    assert visited(runs) >= set(State) - unused


def visited(runs: Runs) -> set[State]:
    """All states of members."""
    return set().union(*(result.scenario.states for result in runs))


def by_both_protocols(runs: Runs) -> None:
    """Members are rolled, groups are converted in both directions, and end in either protocol."""
    conversions: Counter[str] = Counter()
    for result in runs:
        conversions.update(result.scenario.group.conversions)
    assert min(conversions["consumer"], conversions["classic"]) > len(runs)
    assert sum(result.scenario.rolled for result in runs) > 4 * len(runs)
    assert {result.scenario.group.classic for result in runs} == {False, True}


def in_every_mode(runs: Runs) -> None:
    """Records flow in each mode, also while members act on different ones. Tools die on the way,
    and plain and legacy members read."""
    groups = [result.scenario for result in runs]
    delivered = set().union(*(group.modes for group in groups))
    operators = [operator for group in groups for operator in group.operators]
    said = Counter(line for operator in operators for line in operator.said)
    assert {mode for mode, _ in delivered} == set(Mode)
    assert {mode for mode, several in delivered if several} >= {Mode.LOCKED, Mode.KAFKA}
    assert min(said[f"mode {mode.value} is written"] for mode in Mode) > len(runs) / 30
    assert said["the group is recorded as moved to Kafka"] > len(runs) / 30
    assert {group.mode for group in groups} == set(Mode)
    assert any(
        "is written" in "".join(each.said) and each.said[-1] == "killed" for each in operators
    )
    assert sum(group.group_observer.deliveries for group in groups) > len(runs) / 3
    assert sum(len(group.world.members) for group in groups) > 10


def in_modes_that_go_back(runs: Runs) -> None:
    """Records flow in each mode, members see a mode or an offset go back, and groups end up in each
    mode."""
    groups = [result.scenario for result in runs]
    assert {mode for group in groups for mode, _ in group.modes} == set(Mode)
    members = [member for group in groups for member in group.members]
    assert sum("went-back" in member.loop.reports for member in members) > len(runs) / 4
    assert {group.mode for group in groups} == set(Mode)


def in_every_way(runs: Runs) -> None:
    """Every command succeeds and is refused or killed, permitted commits arrive late, and groups
    end up in every way."""
    groups = [result.scenario for result in runs]
    outcomes: Counter[str] = Counter()
    for group in groups:
        outcomes.update(group.outcomes)
    assert {f"{name}: done" for name in ("mirror", "cut-over", "undo", "complete", "end")} <= set(
        outcomes
    )
    assert min(outcomes["cut-over: done"], outcomes["undo: done"]) > len(runs) / 2
    assert {"cut-over: refused", "mirror --lead: done"} <= set(outcomes)
    assert any(group.judge.late for group in groups)
    assert any(group.judge.causes for group in groups)
    assert {group.judge.leader for group in groups} == set(Store)


class Kind(NamedTuple):
    """How the runs of one kind of group are tested."""

    batch: int
    """Seeds of a test."""
    deliveries: int
    """Records that applications get in a run, on average at least."""
    check: Callable[[Runs], None]
    events: int = 60


KINDS: Mapping[str, Kind] = {
    "live": Kind(40, 150, in_every_mode, events=30),
    "mixed": Kind(30, 150, by_both_protocols),
    "zookeeper": Kind(24, 100, in_zookeeper),
    "coordinator": Kind(24, 200, on_the_coordinator),
    "consumer": Kind(20, 200, by_kip_848),
    "bootstrap": Kind(24, 50, in_zookeeper),
    "mirror": Kind(100, 20, in_every_way, events=30),
    "restored": Kind(24, 50, in_zookeeper),
    "live-restored": Kind(16, 100, in_modes_that_go_back, events=30),
}
GIVEN = os.environ.get("ZKC_SEEDS")


def batches() -> Iterator[tuple[str, range]]:
    """The seeds of each test."""
    for name, kind in KINDS.items():
        first, count = map(int, (GIVEN or f"0:{kind.batch}").split(":"))
        for start in range(first, first + count, kind.batch):
            yield name, range(start, min(start + kind.batch, first + count))


@pytest.mark.parametrize(("name", "seeds"), list(batches()))
def test_no_rule_is_broken_in_any_run(name: str, seeds: range) -> None:
    """Two members never deliver one partition. A group at rest owns every partition, no record is
    skipped, no offset is lowered, and another client's commit is never overwritten. Between the
    modes of a live move no member delivers without both locks. Members, applications, sessions,
    coordinators, brokers, logs, offset stores and operators fail at any moment, and requests and
    answers are lost or late. Each kind of fault also happens."""
    kind = KINDS[name]
    runs = []
    for seed in seeds:
        runs.append(run(seed, coordination=name, events=kind.events))
        assert not runs[-1].violations, runs[-1]
    if len(seeds) == kind.batch:
        possible = {fault for each in runs for weight, fault, _ in each.scenario.faults if weight}
        assert {fault for each in runs for fault in each.faults} == possible
        assert sum(result.deliveries for result in runs) > len(seeds) * kind.deliveries
        kind.check(runs)


@pytest.mark.parametrize(
    ("name", "seed", "events"),
    [
        ("zookeeper", 500111, 200),
        ("bootstrap", 500374, 200),
        ("bootstrap", 274, 60),
        ("bootstrap", 30053, 200),
    ],
)
def test_runs_that_once_broke_a_rule(name: str, seed: int, events: int) -> None:
    """Two registrations of another library changed places in the list, and the group was rebalanced
    (274). A member whose session had ended while it was suspended was blamed for what it then sent
    (30053). A position was reset twice before the first of two commits that were lower (500111,
    500374)."""
    result = run(seed, coordination=name, events=events)
    assert not result.violations, result


@pytest.mark.parametrize("seed", [1, 8])
@pytest.mark.parametrize("name", COORDINATIONS)
def test_same_seed_same_history(name: str, seed: int) -> None:
    """Every event, transaction and delivery of a run depends on its seed alone."""
    first, second = (run(seed, coordination=name, events=60, record=True).history for _ in range(2))
    assert first is not None
    assert len(first) > 100
    assert first == second


def decided() -> Iterator[str]:
    """Histories of runs, and assignments of groups in which several members claim a partition.

    Sets are printed in any order, so each line's characters are sorted.
    """
    for name in COORDINATIONS:
        for seed in range(2):
            result = run(seed, coordination=name, events=20, record=True)
            yield from ("".join(sorted(line)) for line in result.history or ())
    chance = random.Random(1)
    for number in range(50):
        strategy = StickyStrategy(cooperative=number % 2 == 1)
        topics = {f"t{n}": chance.randint(1, 9) for n in range(4)}
        every = [TopicPartition(name, n) for name, count in topics.items() for n in range(count)]
        group = []
        for n in range(5):
            before = frozenset(chance.sample(every, len(every) // 4)), chance.randint(5, 7)
            state = MemberState(f"m{n}", dict.fromkeys(topics, 1), *before, before)
            group.append(GroupMember(state.consumer_id, None, strategy.subscribe(state)))
        for member, raw in sorted(strategy.assign(group, topics).items()):
            yield f"{member}: {sorted(decode_assignment(raw).partitions)}"


def test_same_seed_same_history_in_every_process() -> None:
    """Neither the history nor an assignment depends on the seed of Python's hashes, which differs
    in each process."""
    code = "from tests.sim.test_members import decided\nprint(*decided(), sep='\\n')"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
            timeout=170,
        ).stdout
        for seed in (1, 2)
    ]
    assert len(outputs[0]) > 1_000_000
    assert outputs[0] == outputs[1]


# -- in ZooKeeper


def test_legacy_members_break_only_what_the_table_allows() -> None:
    """In mixed groups, the JVM-like member shows its anomalies. Default members never do."""
    allowed: Counter[str] = Counter()
    for seed in range(31_000, 31_060):
        result = run(seed, coordination="zookeeper", legacy=True, events=60)
        assert not result.violations, result
        allowed.update(violation.rule for violation in result.scenario.observer.allowed)
    assert allowed["single_delivery"]


def test_changes_that_nobody_notices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds a member that asks the brokers and ignores changes."""

    def nothing(*_views: object) -> Iterator[str]:
        return iter(())

    monkeypatch.setattr(cluster_directory, "changed_paths", nothing)
    assert any(
        violation.rule == "no_lost_trigger"
        for seed in range(40)
        for violation in run(seed, coordination="bootstrap", events=60).violations
    )


@pytest.mark.parametrize("leaves_after", [0.3, 5.0, 15.0])
@pytest.mark.parametrize("seed", range(5))
def test_two_live_members_with_one_id(seed: int, leaves_after: float) -> None:
    """A second live member with the same id leaves before or after it is refused. The first one
    keeps its registration and its partitions, and continues reading."""
    kernel = Kernel(seed)
    world = World.make(kernel)
    world.set_topic("t0", 2)
    spec = MemberSpec(world.paths, "g_m1", Subscription(Pattern.STATIC, {"t0": 1}))
    first = world.add_member(spec)
    kernel.run(until=5.0)
    path = world.paths.member("g_m1")
    before, attempts = world.zk.get(path), first.machine.attempts
    delivered = first.plane.positions()
    assert before is not None
    assert len(delivered) == 2
    second = world.add_member(spec)
    kernel.schedule(leaves_after, second.close)
    kernel.run(until=60.0)
    assert not second.alive
    if leaves_after > 10:
        assert second.loop.started.result(0).outcome is Outcome.DUPLICATE_ID
    else:
        assert isinstance(second.loop.started.exception(0), ConnectorClosedError)
    now = world.zk.get(path)
    assert now is not None
    assert now.stat.czxid == before.stat.czxid, f"registered again, seed {seed}"
    assert first.fetching == delivered.keys()
    assert all(first.plane.positions()[tp] > position for tp, position in delivered.items())
    assert first.machine.attempts <= attempts + 2, "no event but the periodic reading"
    assert not world.observer.violations


# -- on the brokers


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_moving_coordinator_costs_no_delivery(seed: int, dies: bool) -> None:
    """A third member joins, and a moment later the coordinator moves for some seconds. Whenever
    that happens, only each partition's unacknowledged message is delivered again. No commit before
    a release is dropped."""
    caught = 0
    for moment in range(30):
        world = BrokerGroup(seed, record=False, strategies=[RangeStrategy()])
        world.brokers.loss = world.brokers.delay = 0.0
        world.cluster.reset = "smallest"
        members: list[WholeGroupMember] = []

        def join(world: BrokerGroup = world, members: list[WholeGroupMember] = members) -> None:
            topic = Subscription(Pattern.STATIC, {"t0": 1})
            name = f"m{len(members)}"
            spec = classic_spec(consumer_id=name, subscription=topic, session_timeout=10.0)
            habits = Habits(stop=(0.5, 1.5))
            member = WholeGroupMember(world.brokers, spec, world.cluster, world.observer, habits)
            member.identify = world.judge.session
            members.append(member)
            member.start()

        world.set_topic("t0", 6)
        join()
        join()
        world.kernel.run(until=12.0)
        join()
        world.kernel.run(until=12.0 + moment * 0.1)
        world.brokers.fail_over(3.0, 1.5, dies=dies)
        states = {member.machine.state for member in members[:2]}
        caught += bool(states & {State.STOPPING, State.COMMITTING, State.NOTIFYING_RELEASE})
        world.kernel.run(until=40.0)
        world.cluster.calm_down()
        world.kernel.run(until=50.0)
        replay = f"seed {seed}, moment {moment}, {[member.loop.reports for member in members]}"
        assert {member.machine.state for member in members} == {State.STABLE}, replay
        assert not any("commit-failed" in member.loop.reports for member in members), replay
        assert not any("lost" in member.loop.reports for member in members), replay
        sent = sum(world.cluster.brokers.logs[tp].end for tp in world.observer.owners)
        assert len(world.observer.owners) == 6, replay
        assert sent <= world.observer.deliveries <= sent + 6, replay
        assert not world.observer.violations, replay
    assert caught, "the coordinator never moved in a release"


def test_a_static_member_that_returns_is_the_same_owner() -> None:
    """It returns in the epoch of the group, without a new one. A commit in that epoch is its own,
    also after the group has got another."""
    kernel, observer = Kernel(1), Observer()
    judge = GroupJudge(kernel, observer)
    group = ConsumerGroupCoordinator(kernel, lambda: {"t": 1}, watch=judge)
    spec = kip848_spec(instance_id="i", session_timeout=45.0)
    answers: list[Any] = []

    def send(command: Any, of: Kip848Spec = spec) -> Any:
        group.handle(command, of, answers.append)
        return answers[-1]

    epoch = send(commands.MemberHeartbeat(1, "m", 0, True, {})).epoch
    send(LeaveGroup(2, "m"))
    again = send(commands.MemberHeartbeat(3, "m", 0, True, {}))
    assert (again.epoch, again.assignment) == (epoch, {"t#1": (0,)})
    kernel.run(until=10)
    other = replace(spec, member_id="n", instance_id="j")
    send(commands.MemberHeartbeat(4, "n", 0, True, {}), other)
    assert send(commands.MemberHeartbeat(5, "m", epoch, False, None)).epoch > epoch
    tp = TopicPartition("t", 0)
    assert send(CommitOffsets(6, "m", epoch, {tp: 1})).codes == {tp: 0}
    assert observer.violations == []


def test_a_session_that_a_backup_revives_is_not_known_to_have_ended() -> None:
    """A member has claimed a partition, its session ends, and the servers are restored from a
    backup in which the session lives and owns nothing. The member has no connection meanwhile."""
    tp = TopicPartition("t", 0)
    for revived in (8, 9):
        observer = Observer()
        for session, member in ((8, "m"), (9, "n")):
            observer.session_begins(session, member)
        observer.owner_changed(1.0, tp, 8, 8)
        observer.session_ended(8)
        observer.owner_changed(2.0, tp, None, 8)
        observer.restored({8, 9}, {}, {})
        observer.started(3.0, tp, revived, 0)
        assert [one.rule for one in observer.violations] == ["owned_before_fetch"] * (revived == 9)
