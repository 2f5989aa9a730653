"""Moves on a simulated ZooKeeper: what stops a move, and which claims and offsets then remain.

Kafka is a dict. Other tests cover the responses of real servers. Here other clients act at exactly
the critical moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from zkmigrate.apply import migrator as migrator_module, steps
from zkmigrate.apply.migrator import Migrator
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.apply.parallel import Run
from zkmigrate.apply.records import begun_by, late_partitions
from zkmigrate.formats.plan_file import PlanFile
from zkmigrate.model import (
    Direction,
    GroupState,
    KafkaOffset,
    LogRange,
    MigrationMarker,
    Store,
    TopicState,
    ZkOffset,
)
from zkmigrate.plan.values import Entry, GroupPlan
from zkmigrate.stores import migration_marker, record
from zkmigrate.verify import AHEAD, BEHIND, NOT_MOVED, SOURCE, compare

from tests.unit.tool_zk import ToolZk
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Delete,
    Failed,
    Multi,
    MultiOp,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import BrokerError

PATHS = GroupPaths("g")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MARKER = migration_marker.path("g")
SENT = "the request is on its way"


class Journal:
    """A journal that also adds its records to the list of all steps."""

    def __init__(self, done: list[str]) -> None:
        self.records: list[dict[str, Any]] = []
        self._done = done

    def write(self, **record: Any) -> None:
        self.records.append(record)
        if "step" in record:
            self._done.append(record["step"])


class Stores:
    """A group that has committed 7 and 9 in ZooKeeper, and nothing in Kafka.

    ``step`` is called at each step of a run, and once a request to Kafka is on its way. ``log``:
    the commits. ``another`` returns the tool of another operator of the same group.
    """

    timeout = coordinator_timeout = 0.1

    def __init__(self) -> None:
        self.step: Callable[[str], object] = lambda what: None
        self.log: list[tuple[TopicPartition, int | None]] = []
        self.zk = ToolZk()
        for path in ("/consumers", PATHS.root, PATHS.offsets, PATHS.offsets_topic("t")):
            self.zk.zk.do(Create(path))
        for tp, offset in ((T0, b"7"), (T1, b"9")):
            self.zk.zk.do(Create(PATHS.offset(tp), offset))
        self.done: list[str] = []
        self.journal: Any = Journal(self.done)
        self.committed: dict[TopicPartition, StoredOffset] = {}
        self.members: tuple[str, ...] = ()
        self.refuses: dict[TopicPartition, BrokerError] = {}
        self.topics = {"t": TopicState(5, (0, 1))}
        self.ranges = dict.fromkeys((T0, T1), LogRange(0, 100))
        self.kafka = SimpleNamespace(
            members=lambda group: self.members,
            commit=self.commit,
            delete=self.delete,
            stop_waiting=lambda: None,
        )
        self.logs = SimpleNamespace(
            covering=lambda tps, timeout, again=False: (self.topics, self.ranges),
            of=lambda topics: (self.topics, self.ranges),
        )

    def another(self) -> Self:
        """Another operator's tool, with a copy of the journal."""
        other = type(self)()
        other.zk.zk = self.zk.zk
        other.zk.connect()
        other.committed, other.log = self.committed, self.log
        other.journal.records = [dict(one) for one in self.journal.records]
        return other

    def each_thread(self, count: int) -> list[Stores]:
        assert count == 1
        return [self]

    def on_wait(self, what: str) -> None:
        self.done.append(f"wait for {what}")

    def fetch(self, _group: str, _tps: object) -> Mapping[TopicPartition, StoredOffset]:
        return self.committed

    def commit(
        self,
        _group: str,
        new: Mapping[TopicPartition, StoredOffset],
        permit: Callable[[], object],
    ) -> Mapping[Any, Any]:
        permit()
        self.step(SENT)
        self.done.append("commit")
        self.consume({tp: to for tp, to in new.items() if tp not in self.refuses})
        return self.refuses

    def commits_end(self, _group: str) -> int:
        return len(self.log)

    def commits_since(self, _group: str, position: int) -> list[tuple[TopicPartition, int | None]]:
        return self.log[position:]

    def delete(
        self, _group: str, gone: list[TopicPartition], permit: Callable[[], object]
    ) -> Mapping[Any, Any]:
        permit()
        self.step(SENT)
        for tp in gone:
            self.committed.pop(tp, None)
            self.log.append((tp, None))
        return {}

    def consume(self, new: Mapping[TopicPartition, StoredOffset]) -> None:
        """Commit, as consumers do too."""
        self.committed |= new
        self.log += [(tp, one.offset) for tp, one in new.items()]

    # The actions of the test.

    def plan(self, direction: Direction = Direction.ZK_TO_KAFKA) -> PlanFile:
        """The plan for the present state."""
        entries = []
        for tp in (T0, T1):
            node = self.zk.zk.get(PATHS.offset(tp))
            zk = None if node is None else int(node.data)
            stored = self.committed.get(tp)
            kafka = None if stored is None else KafkaOffset(*stored)
            to = zk if direction is Direction.ZK_TO_KAFKA else kafka and kafka.offset
            version = None if node is None else node.stat.version
            entries.append(Entry(tp, zk, version, kafka, to, True, "only one has it"))
        group = GroupPlan("g", entries=tuple(entries), topics={"t": 5})
        return PlanFile(direction, 1, (group,), "digest")

    def apply(self, plan: PlanFile) -> Result:
        """Apply the plan."""
        (result,) = self.migrator().apply(plan, Run(self.journal, idle=True), lambda result: None)
        return result

    def rollback(self, plan: PlanFile, force: bool = False) -> Result:
        """Roll it back."""
        migrator = self.migrator(force)
        (result,) = migrator.rollback(plan, Run(self.journal), lambda result: None)
        return result

    def migrator(self, force: bool = False) -> Migrator:
        stores: Any = self
        return Migrator(stores, lambda what: self.step(what), force=force)

    def write(self, offset: bytes) -> None:
        """A client that is not a member writes T0's offset to ZooKeeper."""
        self.zk.zk.do(SetData(PATHS.offset(T0), offset))

    @property
    def claimed(self) -> bool:
        """Return whether anything of the migrator's claim remains."""
        owners = [self.zk.text(PATHS.owner(tp)) for tp in (T0, T1)]
        return any(owners) or bool(self.zk.zk.children(PATHS.ids))


@pytest.fixture
def stores() -> Stores:
    """Both stores."""
    return Stores()


def at(stores: Stores, wanted: Callable[[ZkOp], bool], action: Callable[[], object]) -> None:
    """Do something just before the first such operation."""
    done: list[ZkOp] = []

    def before(op: ZkOp) -> None:
        if not done and wanted(op):
            done.append(op)
            action()

    stores.zk.before = before


def claims(op: ZkOp) -> bool:
    """The multi that creates owner znodes."""
    return isinstance(op, Multi) and any(
        isinstance(part, Create) and part.ephemeral for part in op.ops
    )


def registers(op: ZkOp) -> bool:
    """The migrator registers."""
    return isinstance(op, Create) and op.ephemeral


def writes(op: ZkOp) -> bool:
    """The multi that writes offsets."""
    return isinstance(op, Multi) and any(
        isinstance(part, SetData | Create) and part.path.startswith(PATHS.offsets)
        for part in op.ops
    )


def marks(op: ZkOp) -> bool:
    """The multi that writes the marker."""
    return isinstance(op, Multi) and op.ops[-1].path == MARKER


def test_a_move_is_named_in_the_journal_before_each_step(stores: Stores) -> None:
    """After the move nothing of the claim remains."""
    assert stores.apply(stores.plan()).outcome is Outcome.DONE
    assert stores.done == ["claim", "write", "commit", "mark", "done"]
    assert stores.committed == {T0: StoredOffset(7), T1: StoredOffset(9)}
    assert not stores.claimed


def test_a_consumer_at_the_coordinator_stops_a_move(stores: Stores) -> None:
    """The consumer commits to Kafka itself."""
    plan = stores.plan()
    stores.members = ("consumer-1",)
    assert "joined at the broker's coordinator" in stores.apply(plan).why
    assert stores.done == []


def test_an_offset_that_was_written_since_the_plan_stops_a_move(stores: Stores) -> None:
    """The move also stops if the new offset equals the old one, because a consumer is at work."""
    plan = stores.plan()
    stores.write(b"8")
    stores.write(b"7")
    assert "was written in ZooKeeper since the plan was made" in stores.apply(plan).why
    assert not stores.committed
    assert not stores.claimed


def test_what_was_written_is_read_back(stores: Stores) -> None:
    """If it differs, nothing is marked as moved, and the claim is released."""
    stores.kafka.commit = lambda group, new, permit: {}
    assert "but kafka now holds none" in stores.apply(stores.plan()).why
    assert stores.zk.text(MARKER) is None
    assert not stores.claimed


def test_a_refused_commit_is_a_failure(stores: Stores) -> None:
    """The error names a partition and the reason."""
    stores.refuses = {T1: BrokerError("not allowed")}
    assert "the coordinator refused 1 of 2 offsets" in stores.apply(stores.plan()).why
    assert stores.zk.text(MARKER) is None


def test_a_commit_after_the_move_is_noticed(stores: Stores) -> None:
    """The migrator notices it while it releases the claims, and in each later run. The source store
    is compared with what was moved, not with the first late commit."""
    plan = stores.plan()
    path = GroupPaths("g").ids

    def deregisters(op: ZkOp) -> bool:
        return isinstance(op, Delete) and op.path.startswith(path)

    at(stores, deregisters, lambda: stores.write(b"8"))
    for offset in (8, 9):
        assert f"zookeeper holds {offset}, not 7" in stores.apply(plan).why
        stores.write(b"9")
    assert stores.done[-1] == "done"
    stores.write(b"7")
    assert stores.apply(plan).outcome is Outcome.WAS_DONE


@pytest.mark.parametrize("how", ["recreated", "truncated"])
def test_a_topic_that_changed_after_the_plan_stops_a_move(stores: Stores, how: str) -> None:
    """The offsets of a recreated topic belong to other messages, or to none."""
    plan = stores.plan()
    if how == "recreated":
        stores.topics = {"t": TopicState(6, (0, 1))}
    else:
        stores.ranges = dict.fromkeys((T0, T1), LogRange(8, 100))
    expected = {"recreated": "was deleted since", "truncated": "does not include 7"}[how]
    assert expected in stores.apply(plan).why
    assert not stores.committed


def test_an_offset_committed_after_the_move_is_rolled_back_with_force_only(
    stores: Stores,
) -> None:
    """A consumer has continued from this offset, so a rollback undoes it only by force."""
    plan = stores.plan()
    stores.apply(plan)
    stores.committed[T0] = StoredOffset(50)
    assert "it has changed since" in stores.rollback(plan).why
    assert stores.committed[T0].offset == 50
    assert stores.rollback(plan, force=True).outcome is Outcome.DONE
    assert not stores.committed


def test_a_plan_that_was_rolled_back_is_not_applied_again(stores: Stores) -> None:
    """The stores may have changed since, so another plan is needed."""
    plan = stores.plan()
    stores.apply(plan)
    assert stores.rollback(plan).outcome is Outcome.DONE
    assert "was rolled back: make a new plan" in stores.apply(plan).why
    assert not stores.committed


def test_a_commit_between_the_look_and_the_claim_stops_a_move(stores: Stores) -> None:
    """The claim checks the version that was read."""
    plan = stores.plan()
    at(stores, claims, lambda: stores.write(b"8"))
    assert "changed while it was being claimed" in stores.apply(plan).why
    assert not stores.committed
    assert not stores.claimed


def test_a_member_that_registers_before_the_claim_stops_a_move(stores: Stores) -> None:
    """The migrator notices the member after it has registered itself."""

    def register() -> None:
        stores.zk.zk.do(Create(PATHS.member("g_m")))

    at(stores, registers, register)
    assert (
        "g_m registered in ZooKeeper: stop these members first" in stores.apply(stores.plan()).why
    )
    assert "commit" not in stores.done


def test_a_move_ends_with_the_migrator_s_session(stores: Stores) -> None:
    """Without the session, the migrator's registration and its protection against members are
    gone."""

    def end() -> None:
        for name in stores.zk.zk.children(PATHS.ids):
            stores.zk.zk.do(Delete(PATHS.member(name)))

    at(stores, claims, end)
    assert "session with ZooKeeper ended" in stores.apply(stores.plan()).why
    assert "commit" not in stores.done


@pytest.mark.parametrize(
    "restored",
    [
        (Delete(PATHS.offset(T0)), Create(PATHS.offset(T0), b"5")),
        (Delete(PATHS.owner(T0)),),
    ],
)
def test_a_restored_zookeeper_ends_a_move(stores: Stores, restored: tuple[MultiOp, ...]) -> None:
    """ZooKeeper is restored from a backup that was made during the move. The offset's version is
    the same again, with another offset, or the claim is not complete yet."""

    def step(what: str) -> None:
        if what.startswith("after kafka commit"):
            for op in restored:
                stores.zk.zk.do(op)
            stores.zk.interrupt()

    plan, stores.step = stores.plan(), step
    assert "the connection to ZooKeeper was lost" in stores.apply(plan).why
    assert stores.zk.text(MARKER) is None
    assert not stores.claimed


def test_a_lost_connection_does_not_end_a_move(stores: Stores) -> None:
    """The claims are as they were."""
    plan, stores.step = stores.plan(), lambda what: stores.zk.interrupt()
    assert stores.apply(plan).outcome is Outcome.DONE


@pytest.mark.parametrize("offsets", [(b"8",), (b"8", b"7")])
def test_a_commit_before_the_marker_keeps_it_from_being_written(
    stores: Stores, offsets: tuple[bytes, ...]
) -> None:
    """The group is not moved, because a consumer is still alive, even if the offset is the old one
    again."""
    plan = stores.plan()
    at(stores, marks, lambda: [stores.write(offset) for offset in offsets])
    assert "while the group was being moved" in stores.apply(plan).why
    assert stores.zk.text(MARKER) is None


def test_an_offset_that_another_client_writes_is_not_overwritten(stores: Stores) -> None:
    """This test moves a group back to ZooKeeper."""
    stores.committed = {T0: StoredOffset(70), T1: StoredOffset(90)}
    plan = stores.plan(Direction.KAFKA_TO_ZK)
    at(stores, writes, lambda: stores.write(b"8"))
    assert "changed by a client that is not a member" in stores.apply(plan).why
    assert stores.zk.text(PATHS.offset(T0)) == b"8"


def test_a_consumer_that_joins_while_a_group_moves_back_is_noticed(stores: Stores) -> None:
    """It joins at the coordinator after the claim. Both kinds of consumers would run at once."""
    stores.committed = {T0: StoredOffset(70), T1: StoredOffset(90)}
    plan = stores.plan(Direction.KAFKA_TO_ZK)
    at(stores, writes, lambda: setattr(stores, "members", ("consumer-1",)))
    assert "consumer-1 joined at the broker's coordinator" in stores.apply(plan).why
    assert stores.zk.text(MARKER) is None
    assert not stores.claimed


@pytest.mark.parametrize("held", [None, 5])
@pytest.mark.parametrize(
    ("before", "after"),
    [((8,), ()), ((8, 9), ()), ((), (9,)), ((8,), (9,)), ((8, 9), (10, 11)), ((9,), (8,)),
     ((8,), (7,)), ((7,), (9,))],
)  # fmt: skip
def test_the_last_offset_of_another_client_stays(
    stores: Stores, before: tuple[int, ...], after: tuple[int, ...], held: int | None
) -> None:
    """It is not a member. Whether it commits before our commit of 7, after it, or both: its last
    offset is what Kafka holds in the end, and the group is not called moved. Nothing is in doubt
    then."""
    if held is not None:
        stores.consume({T0: StoredOffset(held), T1: StoredOffset(held)})
    around = {"before kafka commit": before, "after kafka commit": after}

    def commits(what: str) -> None:
        for offset in around.pop(" ".join(what.split()[:3]), ()):
            stores.consume({T0: StoredOffset(offset)})

    plan = stores.plan()
    stores.step = commits
    result = stores.apply(plan)
    last = (*before, *after)[-1]
    assert stores.committed[T0].offset == last
    assert stores.committed[T1].offset == 9, "that the client left alone"
    assert not stores.zk.run(record.read("g")).in_doubt
    assert not late_partitions(begun_by(stores.journal.records)["g"])
    if last == 7:
        return  # what it committed last is what was planned
    assert result.outcome is Outcome.REFUSED, result
    assert stores.zk.text(MARKER) is None
    assert not stores.claimed


def test_a_claim_that_was_not_noticed_is_released(stores: Stores) -> None:
    """The response to the claim was lost, and a change stops the move before the claim is checked
    again."""

    def lose(op: ZkOp, reply: Reply) -> Reply:
        if not claims(op):
            return reply
        stores.write(b"8")
        return Failed(Code.CONNECTION_LOSS)

    stores.zk.after = lose
    assert "changed while it was being claimed" in stores.apply(stores.plan()).why
    assert not stores.claimed


def test_a_run_waits_for_the_session_of_a_killed_one(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims of the killed run still exist, under the name in the journal."""
    stores.zk.zk.do(Create(PATHS.ids))
    stores.zk.zk.do(Create(PATHS.member("g_zkmigrate-1")))
    stores.journal.records = [{"group": "g", "step": "claim", "name": "g_zkmigrate-1"}]

    def end(_seconds: float) -> None:
        stores.zk.zk.do(Delete(PATHS.member("g_zkmigrate-1")))

    monkeypatch.setattr(steps.time, "sleep", end)
    assert stores.apply(stores.plan()).outcome is Outcome.DONE
    assert stores.done[0].startswith("wait for the session of an earlier run")


def test_a_group_that_fails_does_not_stop_the_others(stores: Stores) -> None:
    """Only a damaged journal does, or an unreachable ZooKeeper."""
    plan = stores.plan()
    (group,) = plan.groups
    other = GroupPlan("nobody", entries=group.entries, topics=group.topics)
    both = replace(plan, groups=(other, group))
    results = stores.migrator().apply(both, Run(stores.journal, idle=True), lambda result: None)
    assert [result.outcome for result in results] == [Outcome.REFUSED, Outcome.DONE]


def test_a_record_that_cannot_be_read_is_not_believed(stores: Stores) -> None:
    """Nothing is restored by guessing."""
    plan = stores.plan()
    stores.apply(plan)
    stores.zk.zk.do(SetData(record.before_path("g"), b'{"version":1}'))
    assert stores.rollback(plan).outcome is Outcome.FAILED
    assert {tp: one.offset for tp, one in stores.committed.items()} == {T0: 7, T1: 9}


@pytest.mark.parametrize(
    ("zk", "kafka", "kinds"),
    [
        ((7, 9), (7, 9), []),
        ((7, 9), (8, 9), [AHEAD]),
        ((7, 9), (6, 9), [BEHIND]),
        ((7, 9), (None, 9), [BEHIND]),
        ((8, 9), (7, 9), [SOURCE]),
        ((None, 9), (7, 9), []),
    ],
)
def test_what_verify_calls_a_difference(
    stores: Stores,
    zk: tuple[int | None, ...],
    kafka: tuple[int | None, ...],
    kinds: list[str],
) -> None:
    """The target may be ahead, and the source may be empty. Everything else is a difference. A
    group without a migration marker is not moved."""
    plan = stores.plan()
    (group,) = plan.groups
    marker = MigrationMarker(Store.KAFKA, 1, {T0: 7, T1: 9}, b"")
    state = GroupState(
        "g",
        zk={tp: ZkOffset(at, 0, 1, 1) for tp, at in zip((T0, T1), zk, strict=True)},
        kafka={tp: KafkaOffset(at) for tp, at in zip((T0, T1), kafka, strict=True) if at},
        topics={"t": TopicState(1, (0, 1))},
    )
    moved = replace(state, marker=marker)
    assert [one.kind for one in compare(group, plan.direction, moved)] == kinds
    assert next(compare(group, plan.direction, state)).kind == NOT_MOVED


def test_waiting_begins_when_all_other_groups_are_done(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group with members gets its full time to stop, even if the groups before it took longer."""
    plan = stores.plan()
    (group,) = plan.groups
    slow = GroupPlan("nobody", entries=group.entries, topics=group.topics)
    stores.zk.zk.do(Create(PATHS.ids))
    stores.zk.zk.do(Create(PATHS.member("g_m")))
    now = [0.0]

    def take_long(result: Result) -> None:
        now[0] += 1000.0

    def pause(seconds: float) -> None:
        now[0] += seconds
        stores.zk.zk.do(Delete(PATHS.member("g_m")))

    monkeypatch.setattr(migrator_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(migrator_module.time, "sleep", pause)
    both = replace(plan, groups=(group, slow))
    results = stores.migrator().apply(both, Run(stores.journal, idle=True), take_long, wait=5.0)
    assert [result.outcome for result in results] == [Outcome.DONE, Outcome.REFUSED]
