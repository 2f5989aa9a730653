"""Two operators run ``zkmigrate live`` on one group. ZooKeeper is simulated, and Kafka is empty.

While one operator waits at any of its requests, the other one runs whole stages.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from zkmigrate.apply import guard, live
from zkmigrate.apply.live import LiveMove, Step
from zkmigrate.apply.outcome import Outcome, Result, result_of
from zkmigrate.commands.steps import perform
from zkmigrate.model import Record, Store
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record

from tests.support.scripts import write_mode
from tests.unit.tool_zk import ToolZk
from zkconsumer.admin import ids_lock
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import LivePaths, encode_member, encode_mode, read_mode
from zkconsumer.core.zookeeper.ops import (
    AclEntry,
    Code,
    Create,
    Delete,
    Failed,
    Multi,
    Ok,
    Reply,
    SetAcl,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import Script, attempt, ensure_path

PATHS = LivePaths.of("g")
IDS = PATHS.group.ids
LEGACY = PATHS.group.member("g_old")
T = TypeVar("T")
ANYONE = AclEntry(31, "world", "anyone")


class Move:
    """The steps of ``LiveMove``, carried out by one operator."""

    def __init__(self, stores: Any) -> None:
        self._stores = stores
        self._steps = LiveMove("g", 0, lambda _text: None)

    def __getattr__(self, name: str) -> Callable[..., Step]:
        step = getattr(self._steps, name)
        return lambda *args, **named: perform(self._stores, step(*args, **named))


class Operators:
    """A group whose ``ids`` have foreign data, and the operators that work on it.

    ``meanwhile`` is called once, before the first request for which ``at`` is true.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "_POLL", 0)
        self.restart()

    def restart(self) -> None:
        """Begin with a new group."""
        self.zk = ToolZk()
        self.stores: Any = SimpleNamespace(
            zk=self.zk,
            fetch=lambda group, known: {},
            kafka=SimpleNamespace(members=lambda group: [], hidden=lambda topics: frozenset()),
        )
        self.zk.run(ensure_path(set(), IDS))
        self.zk.run(attempt(SetData(IDS, b"theirs", 0)))

    def move(self) -> Move:
        """The tools of another operator."""
        return Move(self.stores)

    def during(
        self, act: Callable[[], T], at: Callable[[ZkOp], bool], meanwhile: Callable[[], object]
    ) -> tuple[T, bool]:
        """Run a stage. Return also whether ``meanwhile`` was called."""
        came: list[ZkOp] = []

        def before(op: ZkOp) -> None:
            if not came and at(op):
                came.append(op)
                meanwhile()

        self.zk.before = before
        step = act()
        self.zk.before = lambda op: None
        return step, bool(came)

    @property
    def mode(self) -> Mode:
        return self.zk.run(read_mode(PATHS))[0]  # type: ignore[no-any-return]

    @property
    def guard(self) -> ids_lock.Found:
        return self.zk.run(ids_lock.look("g"))  # type: ignore[no-any-return]

    def check(self) -> None:
        """Legacy consumers are kept out in every mode that needs it. The ids can be unlocked, and
        are then as they were."""
        found = self.guard
        if self.mode in (Mode.KAFKA, Mode.OPEN):
            assert found.guard is ids_lock.Guard.LOCKED
            assert found.acl is not None
            assert ids_lock.LIVE in found.acl.entries
        while self.mode is Mode.OPEN or self.mode is Mode.KAFKA:
            assert not self.move().back().why
        assert not self.move().unlock().why
        found = self.guard
        assert (found.guard, found.data) == (ids_lock.Guard.OPEN, b"theirs")
        assert found.acl is not None
        assert found.acl.entries == (ANYONE,)


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    """A group on which no operator has worked yet."""
    return Operators(monkeypatch)


def all_but(number: int) -> Callable[[ZkOp], bool]:
    """Return what is true for all operations but the first ``number``."""
    left = number

    def due(op: ZkOp) -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return due


def lifts(op: ZkOp) -> bool:
    """Return whether a request unlocks the ids."""
    return isinstance(op, SetAcl) and op.entries == (ANYONE,)


def test_a_late_unlock_does_not_undo_the_lock_of_another_operator(operators: Operators) -> None:
    """The tool pauses just before it unlocks the ids. Meanwhile another operator locks the group.
    The late request fails, and its operator gets an error."""
    assert not operators.move().lock().why
    step, came = operators.during(
        operators.move().unlock, lifts, lambda: operators.move().lock().why
    )
    assert came
    assert step.why == ("group g: another operator has locked the group meanwhile",)
    assert step.mode is operators.mode is Mode.LOCKED
    assert operators.guard.guard is ids_lock.Guard.LOCKED
    assert not operators.move().go(Mode.KAFKA).why
    operators.check()


def test_a_mode_is_not_written_after_another_operator_s_unlock(operators: Operators) -> None:
    """The tool has checked the gate and pauses before it writes ``locked``. Meanwhile another
    operator unlocks the ids, and a legacy consumer registers. The record has another serial, so the
    mode is not written, and the consumer is named."""
    operators.move().prepare()

    def let_in() -> None:
        operators.move().unlock()
        operators.zk.run(attempt(Create(LEGACY, b"{}", ephemeral=True)))

    step, came = operators.during(operators.move().lock, writes_mode, let_in)
    assert came
    assert step.mode is operators.mode is Mode.ZOOKEEPER
    assert "members that are not migratable: g_old" in "; ".join(step.why)
    operators.zk.run(attempt(Delete(LEGACY)))
    assert not operators.move().lock().why
    operators.check()


def writes_mode(op: ZkOp) -> bool:
    """Return whether a request writes the mode."""
    ops = op.ops if isinstance(op, Multi) else (op,)
    return any(isinstance(one, Create | SetData) and one.path == PATHS.mode for one in ops)


def test_a_stage_never_moves_a_group_against_its_direction(operators: Operators) -> None:
    """A stage that a group has passed leaves it alone, so that ``--all-ready`` does not take back
    what was reached."""
    assert operators.move().back() == Step(Mode.ZOOKEEPER, False)
    for act in (methodcaller("lock"), lambda move: move.go(Mode.KAFKA)):
        assert act(operators.move()).changed
    assert operators.move().lock() == Step(Mode.KAFKA, False)
    assert operators.move().go(Mode.OPEN).changed
    for act in (methodcaller("lock"), lambda move: move.go(Mode.KAFKA)):
        assert act(operators.move()) == Step(Mode.OPEN, False)
    for target in (Mode.LOCKED, Mode.KAFKA, Mode.OPEN):
        assert operators.move().check(target) == Step(Mode.OPEN, False)
    assert operators.mode is Mode.OPEN
    assert operators.move().back() == Step(Mode.LOCKED, True)
    assert operators.move().back() == Step(Mode.LOCKED, False)
    assert operators.move().unlock().changed
    assert operators.move().check(Mode.LOCKED, back=True) == Step(Mode.ZOOKEEPER, False)
    operators.check()


def release(operators: Operators) -> Result:
    """What ``zkmigrate unlock --execute`` does with the group."""
    return result_of("g", lambda: operators.zk.run(guard.release("g", True)))


@pytest.mark.parametrize("mode", list(Mode)[1:])
def test_release_leaves_the_lock_of_a_live_move(operators: Operators, mode: Mode) -> None:
    """The command of the stopped move is refused, in each mode."""
    operators.move().lock()
    while operators.mode is not mode:
        operators.move().go(list(Mode)[list(Mode).index(operators.mode) + 1])
    result = release(operators)
    assert result.outcome is Outcome.REFUSED
    wanted = Reason.OTHER_OPERATOR if mode is Mode.LOCKED else Reason.LIVE_MOVE
    assert result.reasons == (wanted,)
    operators.check()


def test_a_live_step_leaves_the_lock_of_a_stopped_move(operators: Operators) -> None:
    """Another operator has moved the group since ``unlock`` has chosen how to unlock it."""
    assert operators.zk.run(guard.lock("g")) is None
    data = migration_marker.encode(Store.KAFKA, 1, {})
    operators.zk.run(attempt(Create(migration_marker.path("g"), data)))
    (why,) = operators.move().unlock().why
    assert why.reason is Reason.OTHER_OPERATOR
    assert operators.zk.run(ids_lock.look("g")).guard is ids_lock.Guard.LOCKED


def test_release_asks_for_the_mode_right_before_it_unlocks(operators: Operators) -> None:
    """An operator moves the group on while ``release`` waits at any of its requests."""
    number, came = 0, True
    while came:
        assert not operators.move().lock().why
        operators.move().back()
        operators.zk.run(write_mode(PATHS, Mode.ZOOKEEPER, operators.zk.run(read_mode(PATHS))[1]))
        due = all_but(number)

        def moves_on() -> None:
            operators.move().lock()
            operators.move().go(Mode.KAFKA)

        _, came = operators.during(lambda: release(operators), due, moves_on)
        operators.check()
        number += 1
    assert number > 5


@pytest.mark.parametrize("mode", [Mode.LOCKED, Mode.KAFKA, Mode.OPEN])
def test_a_lost_lock_is_set_again_before_the_next_mode(operators: Operators, mode: Mode) -> None:
    """Something else has unlocked the ids. A legacy consumer that has registered since is named."""
    operators.move().lock()
    while operators.mode is not mode:
        operators.move().go(list(Mode)[list(Mode).index(operators.mode) + 1])
    operators.zk.run(guard.unlock("g"))
    operators.zk.run(attempt(Create(LEGACY, b"{}", ephemeral=True)))
    onward = Mode.OPEN if mode is Mode.KAFKA else Mode.KAFKA
    step = operators.move().go(onward, back=mode is Mode.OPEN)
    assert "members that are not migratable: g_old" in step.why[0]
    assert operators.mode is mode
    operators.zk.run(attempt(Delete(LEGACY)))
    assert not operators.move().go(onward, back=mode is Mode.OPEN).why
    assert operators.guard.guard is ids_lock.Guard.LOCKED
    operators.check()


@pytest.mark.parametrize(("stage", "mode", "read"), [("go", "kafka", 2), ("complete", "open", 4)])
def test_a_mode_that_was_read_before_a_restore_is_not_overwritten(
    operators: Operators, stage: str, mode: str, read: int
) -> None:
    """After the group was read, ZooKeeper is restored from a backup with another mode, whose
    version is the same. The tool reads the group again."""
    operators.move().lock()
    while operators.mode is not Mode(mode):
        operators.move().go(list(Mode)[list(Mode).index(operators.mode) + 1])
    reads = 0

    def fetch(_group: str, _known: object) -> dict[TopicPartition, StoredOffset]:
        nonlocal reads
        reads += 1
        if reads == read:
            _, version = operators.zk.run(read_mode(PATHS))
            operators.zk.do(Delete(PATHS.mode))
            operators.zk.do(Create(PATHS.mode, encode_mode(Mode.ZOOKEEPER)))
            for number in range(version):
                operators.zk.do(SetData(PATHS.mode, encode_mode(Mode.ZOOKEEPER), number))
            operators.zk.interrupt()
        return {}

    operators.stores.fetch = fetch
    move = operators.move()
    step = move.complete() if stage == "complete" else move.go(Mode.OPEN)
    assert reads > read or "connection to ZooKeeper was lost" in step.why[0]
    assert operators.mode is Mode.ZOOKEEPER
    assert operators.zk.text(migration_marker.path("g")) is None


def test_the_tool_waits_for_a_member_s_last_incarnation(operators: Operators) -> None:
    """A member was killed and started again. The coordinator has both until the session of the
    first ends; a plain consumer is another one."""
    assert not operators.move().lock().why
    uuids = [f"{n}17ba4c0-3b44-49d8-b0de-7c5d2f1a9e0{n}" for n in (1, 2, 3)]
    operators.zk.run(ensure_path(set(), PATHS.members))
    mine = encode_member(1, f"lg-1-{uuids[0]}")
    operators.zk.run(attempt(Create(f"{PATHS.members}/g_m", mine, ephemeral=True)))
    last, plain = f"lg-1 at h (lg-1-{uuids[1]})", f"rdkafka at h (rdkafka-{uuids[2]})"
    operators.stores.kafka.members = lambda group: [last, plain, f"lg-1 at h (lg-1-{uuids[0]})"]
    facts = perform(operators.stores, live.look("g"))
    assert (facts.former, facts.plain) == ({last}, {plain})


def test_prepare_says_that_another_command_has_kept_it_from_writing(operators: Operators) -> None:
    """Then the group has no mode yet."""

    def lock() -> None:
        operators.zk.run(record.write("g", record.written(Record(), command="lock")))

    step, came = operators.during(operators.move().prepare, writes_mode, lock)
    assert came
    assert [why.reason for why in step.why] == [Reason.OTHER_OPERATOR]
    assert operators.zk.text(PATHS.mode) is None
    assert operators.move().prepare().changed


def test_prepare_names_plain_consumers(operators: Operators) -> None:
    """They were there before, and keep migratable members out of the coordinator's group."""
    operators.stores.kafka.members = lambda group: ["rdkafka at h (rdkafka-1)"]
    step = operators.move().prepare()
    assert "plain members on the coordinator: rdkafka at h (rdkafka-1): stop these" in step.why[0]
    operators.stores.kafka.members = lambda group: []
    assert not operators.move().prepare().why


def test_a_group_that_commits_all_the_time_can_go_back(operators: Operators) -> None:
    """Its member commits at each request of the tool, first to Kafka and then to ZooKeeper. So the
    tool must look at Kafka first, or ZooKeeper seems to be behind at each look."""
    operators.move().lock()
    tp, path, offset = TopicPartition("t", 0), PATHS.group.offset(TopicPartition("t", 0)), [0]
    operators.zk.run(ensure_path(set(), path))

    def commits(*_: object) -> dict[TopicPartition, StoredOffset]:
        offset[0] += 1
        operators.zk.zk.do(SetData(path, b"%d" % offset[0]))
        return {tp: StoredOffset(offset[0])}

    operators.stores.fetch = commits
    operators.zk.before = commits
    assert not operators.move().unlock().why
    operators.zk.before = lambda op: None
    assert offset[0] > 5


def test_a_super_user_is_told_that_its_lock_cannot_be_proved(operators: Operators) -> None:
    """Access lists do not hold for it, so its own registration always succeeds."""
    operators.zk.identities = None  # type: ignore[assignment]
    fault = operators.zk.run(guard.lock("g"))
    assert "logged in as its super user: then log in as another user" in str(fault)
    assert operators.guard.guard is ids_lock.Guard.OPEN


STAGES: dict[str, Callable[[Move], Step]] = {
    "lock": methodcaller("lock"),
    "to-kafka": lambda move: move.go(Mode.KAFKA),
    "back": methodcaller("back"),
    "unlock": methodcaller("unlock"),
}


def forth(move: Move) -> Step:
    """Lock the group and move it to ``kafka``."""
    move.lock()
    return move.go(Mode.KAFKA)


def finish(move: Move) -> None:
    """Take the group through all modes, and complete the move."""
    for step in (forth(move), move.go(Mode.OPEN), move.complete()):
        assert not step.why


@pytest.mark.parametrize(
    ("stage", "meanwhile"),
    [
        *((stage, finish) for stage in (*STAGES, "undo", "prepare", "complete")),
        ("complete", methodcaller("_keep_out")),
    ],
)
def test_a_finished_move_stays_finished(
    operators: Operators, stage: str, meanwhile: Callable[[Move], object]
) -> None:
    """Another operator completes the move just before any request of a stage, or locks the group as
    in a live move. A group whose move is completed stays in mode ``zookeeper`` and locked, and its
    lock lets no migratable member in."""
    number, came, completed = 0, True, 0
    acts = {name: methodcaller(name) for name in ("undo", "prepare", "complete")} | STAGES
    while came:
        operators.move().prepare()
        if stage == "complete":
            forth(operators.move())
            operators.move().go(Mode.OPEN)
        due = all_but(number)
        move = operators.move()
        _, came = operators.during(
            lambda move=move: acts[stage](move), due, lambda: meanwhile(operators.move())
        )
        found = operators.guard
        if operators.zk.text(migration_marker.path("g")) is not None:
            completed += 1
            assert operators.mode is Mode.ZOOKEEPER, number
            assert found.guard is ids_lock.Guard.LOCKED, number
            assert found.acl is not None
            assert ids_lock.LIVE not in found.acl.entries, number
        number += 1
        operators.restart()
    assert completed > 5


def test_a_late_lock_does_not_let_members_into_a_finished_group(operators: Operators) -> None:
    """Another operator has looked at the lock of ``complete``, at any request after it, and changes
    the access list last."""
    number, came = 0, True
    while came:
        forth(operators.move())
        operators.move().go(Mode.OPEN)
        late = guard.lock("g", (ids_lock.LIVE,))
        held: list[ZkOp] = []
        due = all_but(number)

        def looks(late: Script[str | None] = late, held: list[ZkOp] = held) -> None:
            op = next(late)
            while not isinstance(op, SetAcl):
                op = late.send(operators.zk.do(op))
            held.append(op)

        step, came = operators.during(operators.move().complete, due, looks)
        if came:
            op = held[0]
            with suppress(StopIteration):
                while True:
                    op = late.send(operators.zk.do(op))
            found = operators.guard
            assert found.acl is not None
            assert found.guard is ids_lock.Guard.LOCKED
            live_move = operators.mode is Mode.OPEN
            assert (ids_lock.LIVE in found.acl.entries) is live_move is bool(step.why), number
        number += 1
        operators.restart()
    assert number > 20


def test_a_lock_that_cannot_be_made_exact_does_not_finish_a_move(operators: Operators) -> None:
    """Another client has overwritten the data, so the list cannot be told from one of theirs."""
    forth(operators.move())
    operators.move().go(Mode.OPEN)
    operators.zk.run(attempt(SetData(IDS, b"", operators.guard.version)))
    (why,) = operators.move().complete().why
    assert why.reason is Reason.OTHER_OPERATOR
    assert operators.mode is Mode.OPEN
    assert operators.zk.text(migration_marker.path("g")) is None


@pytest.mark.parametrize("after", ["finalize", "back"])
def test_a_killed_complete_does_not_keep_members_out(operators: Operators, after: str) -> None:
    """The tool is killed before any of its requests. The next stage lets migratable members
    register again."""

    class KilledError(Exception):
        pass

    def die() -> None:
        raise KilledError

    number, killed, acts = 0, True, {"finalize": methodcaller("go", Mode.OPEN), **STAGES}
    while killed:
        assert not forth(operators.move()).why
        assert not operators.move().go(Mode.OPEN).why
        due = all_but(number)
        try:
            operators.during(operators.move().complete, due, die)
            killed = False
        except KilledError:
            operators.zk.before = lambda op: None
            assert not acts[after](operators.move()).why
            found = operators.guard
            assert found.acl is not None
            assert ids_lock.LIVE in found.acl.entries, number
        number += 1
        operators.restart()
    assert number > 20


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("act", ["lock", "unlock"])
def test_a_lost_answer_changes_nothing(operators: Operators, act: str, applied: bool) -> None:
    """Each response of ZooKeeper may be lost once, whether the request was carried out or not."""
    number, lost = 0, True
    real = operators.zk._send

    def all_of_it() -> Script[Any]:
        if act == "lock":
            return (yield from guard.lock("g", (ids_lock.LIVE,)))
        return (yield from guard.unlock("g"))

    while lost:
        if act == "unlock":
            assert operators.zk.run(guard.lock("g", (ids_lock.LIVE,))) is None
        lost, left = False, number

        def send(op: ZkOp) -> Reply:
            nonlocal lost, left
            left -= 1
            if left != -1:
                return real(op)
            lost = True
            if applied:
                real(op)
            return Failed(Code.CONNECTION_LOSS)

        operators.zk._send = send  # type: ignore[method-assign]
        result = operators.zk.run(all_of_it())
        operators.zk._send = real  # type: ignore[method-assign]
        assert result is (None if act == "lock" else True)
        wanted = ids_lock.Guard.LOCKED if act == "lock" else ids_lock.Guard.OPEN
        assert operators.guard.guard is wanted
        operators.check()
        number += 1
    assert number > 3
    assert isinstance(real(Create("/x", b"")), Ok)
