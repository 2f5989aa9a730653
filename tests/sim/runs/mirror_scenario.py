"""A mirrored group: mirrors, commands, the old and the new program, and what can happen to them.

``Mirroring`` is the one that is shipped; only its servers and its clock are replaced. The programs
take turns as the how-to says: each starts only after a command has reported that it may, at exactly
the offset that the other one has committed. In a *careless* run they also start when it is not
their turn.

After a late commit, of a process that was suspended between its permission and the commit, a
program may start at an older offset for some seconds. That is a limit which the how-to states.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final
from unittest import mock

from zkmigrate.apply import guard, permission
from zkmigrate.apply.outcome import Outcome, Result, result_of
from zkmigrate.mirror import mirroring, readings, writes
from zkmigrate.mirror.mirroring import Mirroring
from zkmigrate.mirror.step import Step
from zkmigrate.model import Store
from zkmigrate.stores import migration_marker, record

from tests.sim.runs.mirror_judge import MirrorJudge
from tests.sim.runs.mirror_programs import FreeProgram, NewProgram, OldProgram, Program
from tests.sim.runs.mirror_servers import SESSION, Coordinator, SimKafka, SimStores, SimZk
from tests.sim.runs.scenario import Scenario
from tests.sim.runs.sim_thread import SimClock, SimThread
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Create, Delete
from zkconsumer.core.zookeeper.znodes import GroupPaths, encode_offset, topic_path
from zkconsumer.errors import ZkConsumerError, ZkUnavailableError
from zkconsumer.sim.judges.invariants import Violation
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.zk import Backup, FakeZk

_TOPIC: Final = "t"
_POLL: Final = 1.0
_IN_STEP_S: Final = 2 * SESSION + mirroring.READ_AGAIN_S + 5.0
"""Seconds within which a group is in step again: sessions of processes that are gone have ended,
and a change that no watch shows was noticed."""
_BACKUPS: Final = 300
"""How many transactions ZooKeeper may lose."""
_MIRRORS: Final = 4
"""How many mirrors there are at most."""


class Process:
    """A process of ``zkmigrate`` with a session of its own."""

    def __init__(
        self,
        group: MirroredGroup,
        work: Callable[[SimStores], object],
        ended: Callable[[object], object],
    ) -> None:
        self.zk = SimZk(group.zk, self._opened)
        self._judge = group.judge
        stores = SimStores(self.zk, SimKafka(group.kernel, group.coordinator))

        def over(result: object) -> None:
            self.zk.client.close()
            ended(result)

        self.thread = SimThread(group.kernel, lambda: work(stores), over)

    def _opened(self, session: int) -> None:
        self._judge.processes[session] = self.thread

    def kill(self) -> None:
        """It ends without a last word."""
        self.zk.client.kill()
        self.thread.kill()


class MirroredGroup(Scenario[Any]):
    """See the module."""

    troubled = 12.0
    interval = 0.7

    def __init__(self, seed: int, record: bool) -> None:
        super().__init__(seed, record)
        rng = self.rng
        followers = rng.choice([0, 0, 2])
        lag = rng.choice([0.05, 0.5]) if followers else 0.0
        self.zk = FakeZk(self.kernel, followers=followers, max_lag=lag, rearm_watches=False)
        self.coordinator = Coordinator(self.kernel)
        self.judge = MirrorJudge(self.kernel, self.zk, self.coordinator)
        self.judge.say = self.say
        self.partitions = rng.choice([1, 2, 4])
        self.exists = True
        self.free = rng.random() < 0.3
        self.careless = rng.random() < 0.2
        self.when_empty = not self.free and rng.random() < 0.25
        programs = (self.kernel, self.tps, self._started)
        self.old: Program = (
            FreeProgram(*programs, self.zk)
            if self.free
            else OldProgram(*programs, self.zk, rng.choice([1, 2]))
        )
        self.new = NewProgram(*programs, self.coordinator)
        self.turn = "old"
        """The program that may start; none while a command decides it."""
        self.tickets = 0
        self.mirrors: list[Process] = []
        self.commands: list[Process] = []
        self.outcomes: dict[str, int] = {}
        self.shown: Step | None = None
        """The last row of a mirror."""
        self.calm = False
        """There are no more faults."""
        self.backups: deque[tuple[int, Backup]] = deque(maxlen=_BACKUPS)
        """What ZooKeeper had after each of the last transactions since the topic was created, and
        how often another store had begun to lead until then."""
        self.zk.on_commit(lambda *_: self.backups.append((self.judge.changes, self.zk.backup())))
        self.faults = [
            (8, "a program starts", self.start),
            (4, "a program stops", self.stop),
            (2, "a program crashes", self.crash),
            (2 * (not self.free), "an old session ends", self.expire_old),
            (4, "a mirror starts", self.start_mirror),
            (3, "a mirror is killed", self.kill_mirror),
            (8, "a mirror is suspended", self.suspend),
            (3, "a mirror is cut off", self.cut_off),
            (2, "a mirror's session ends", self.expire),
            (6, "cut-over", self.cut_over),
            (6, "undo", self.undo),
            (1, "complete", self.complete),
            (1, "end", self.end),
            (3, "begin again", self.begin_again),
            (3, "the coordinator moves", self.fail_over),
            (3, "answers are lost", self.lose),
            (1, "an offset expires", self.forget),
            (1, "the topic is created again", self.recreate),
            (1, "ZooKeeper is restored", self.restore),
            (2 * self.careless, "a program starts early", self.start_early),
        ]

    # -- a run ---------------------------------------------------------------------------------

    def play(self, events: int) -> list[Violation]:
        """See ``Scenario``. All processes are ended afterwards."""
        clock = SimClock(self.kernel)
        with ExitStack() as stack:
            for module in (mirroring, readings, writes, guard, permission, record):
                stack.enter_context(mock.patch.object(module, "time", clock))
            for module in (mirroring, readings):
                stack.enter_context(mock.patch.object(module, "random", self.kernel.rng))
            stack.callback(self._kill_all)
            self.begin()
            troubled = max(self.troubled, events * self.interval)
            for _ in range(events):
                self.kernel.schedule(2.0 + (troubled - 2.0) * self.rng.random(), self.strike)
            self.kernel.run(until=troubled)
            self.kernel.run(until=max(troubled, self.quiet_from))
            self.calm_down()
            self.kernel.run(until=self.kernel.now + _IN_STEP_S)
            for _ in range(3):
                if self.stopped:  # it is named
                    self.begin_again()
                    self.kernel.run(until=self.kernel.now + _IN_STEP_S)
            return self.judge.violations + self.at_rest()

    def _kill_all(self) -> None:
        for process in (*self.mirrors, *self.commands):
            process.kill()

    def begin(self) -> None:
        """The old program has been at work, and a mirror begins."""
        for path in ("/brokers", "/brokers/topics", "/consumers", f"/consumers/{GROUP}"):
            self.zk.do(Create(path))
        paths = GroupPaths(GROUP)
        for path in (paths.ids, paths.offsets, paths.offsets_topic(_TOPIC)):
            self.zk.do(Create(path))
        self._create_topic()
        for tp in self.tps()[: max(1, self.partitions - 1)]:
            self.zk.do(Create(paths.offset(tp), encode_offset(self.rng.randint(0, 99))))
        self.old.start()
        self.start_mirror()

    def calm_down(self) -> float:
        """All faults end: programs commit nothing more, and a mirror runs."""
        self.calm = True
        self.coordinator.away_until = self.coordinator.loses = 0.0
        self.old.quiet = self.new.quiet = True
        for process in (*self.mirrors, *self.commands):
            process.thread.wake()
        self.start_mirror()
        return self.kernel.now

    @property
    def stopped(self) -> bool:
        """Whether the group is stopped, and named."""
        return self.judge.mirror is not None and self.judge.mirror.stopped is not None

    @property
    def deliveries(self) -> int:
        """How many offsets programs have committed."""
        return self.judge.commits

    def at_rest(self) -> list[Violation]:
        """Both stores are in step, or the group is over, and the record says so."""
        judge, found = self.judge, []
        zk, kafka = judge.in_zookeeper(), judge.in_kafka()
        tps = set(self.tps())
        truth = {tp: one for tp, one in judge.truth.items() if tp in tps}
        text = f"zookeeper {zk}, kafka {kafka}, last commits {truth}, {self.shown}"
        if self.stopped:
            found.append(text)
        elif judge.mirror is not None:
            # What only the other store had when an operator chose is left there, and an offset that
            # has expired is not restored, while members run.
            chosen, running = judge.mirror.values.items(), bool(self.coordinator.joined)
            led, other = (kafka, zk) if judge.leader is Store.KAFKA else (zk, kafka)
            differ = {tp for tp, _ in led.items() ^ other.items() if tp in tps}
            if running or judge.leader is Store.ZOOKEEPER:
                differ -= {tp for tp, _ in other.items() & chosen} - led.keys()
            if running:
                differ -= judge.expired
            if judge.leader is Store.ZOOKEEPER:
                differ -= judge.lost - zk.keys()
            if differ or (not self.careless and not truth.items() <= zk.items()):
                found.append(text)
            if self.shown is None or not self.shown.good:
                found.append(text)
        elif not self.careless:
            counts = kafka if judge.leader is Store.KAFKA else zk
            left = {tp: one for tp, one in truth.items() if tp not in judge.expired}
            if not left.items() <= counts.items():  # nothing restores what expires later
                found.append(text)
        return [Violation("in_step_at_rest", self.kernel.now, one) for one in found[:1]]

    def _started(self, name: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """A program has read where to start."""
        judge = self.judge
        self.say(f"{name} starts at {dict(offsets)}")
        if judge.old_members() and self.coordinator.joined:
            judge.causes.append("both programs run")
        if self.careless:
            return True
        wanted = {tp: one for tp, one in judge.truth.items() if tp in self.tps()}
        wrong = {tp: offsets.get(tp) for tp, one in wanted.items() if offsets.get(tp) != one}
        if not wrong or self.turn != ("new" if name == self.new.name else "old"):
            return True
        higher = any(one is not None and one > wanted[tp] for tp, one in wrong.items())
        if higher or not (judge.was_late or wrong.keys() <= judge.expired):
            judge.broken("program_continues", f"{name} finds {wrong}, not {wanted}")
        return not any(one is None for one in wrong.values())  # without an offset it fails

    def tps(self) -> list[TopicPartition]:
        """The partitions that exist."""
        return [TopicPartition(_TOPIC, number) for number in range(self.partitions * self.exists)]

    # -- programs ------------------------------------------------------------------------------

    def start(self) -> None:
        """The program whose turn it is, unless the mirror has stopped."""
        if self.stopped:
            return
        if self.turn == "old" and not self.new.running and not self.coordinator.joined:
            self.old.start()
        if self.turn == "new" and not self.old.running:
            self.new.start()

    def start_early(self) -> None:
        """Either one."""
        self.judge.causes.append("a program started early")
        self.rng.choice([self.old, self.new]).start()

    def stop(self) -> None:
        """Whichever runs."""
        self._may_be_cut_over()
        self.old.stop()
        self.new.stop()

    def crash(self) -> None:
        """Whichever runs."""
        self._may_be_cut_over()
        self.old.crash()
        self.new.crash()

    def _may_be_cut_over(self) -> None:
        """With ``--when-empty`` a mirror cuts over when the old members are gone."""
        if self.when_empty and self.old.running:
            self.turn = ""
            self.tickets += 1

    def expire_old(self) -> None:
        """The session of an old member ends. It registers again."""
        if isinstance(self.old, OldProgram) and self.old.running:
            self._may_be_cut_over()
            self.rng.choice(self.old.clients).expire(self.rng.choice([0.0, 0.5]))

    # -- mirrors -------------------------------------------------------------------------------

    def _running(self) -> list[Process]:
        self.mirrors = [one for one in self.mirrors if one.thread.alive]
        return self.mirrors

    def start_mirror(self) -> None:
        """A mirror starts on another machine."""
        if len(self._running()) < _MIRRORS:
            process = Process(self, self._mirrors, self._failed)
            self.mirrors.append(process)
            if not self.when_empty:  # it may be a cut-over, which needs no lease
                self.judge.mirrors.add(process.thread)

    def _mirrors(self, stores: Any) -> None:
        """What ``zkmigrate mirror`` does."""
        work = Mirroring(stores, self._said)
        try:
            for result in work.begin([GROUP], None, True):
                self._count("mirror", result)
        except ZkConsumerError as error:
            self.say(f"mirror: {error}")
            return
        while True:
            try:
                for step in work.steps([GROUP], self.when_empty):
                    if step.state != "standby":
                        self.shown = step
                    self.say(f"row: {step.leader} {step.state} {step.why}")
            except ZkConsumerError as error:
                self.say(f"row: {error}")
            SimThread.current.sleep(_POLL)

    def _said(self, text: str) -> None:
        self.say(text)
        if text.endswith(mirroring.START) and not self.turn:
            self.turn = "new"

    def _failed(self, result: object) -> None:
        if isinstance(result, BaseException):
            self.judge.broken("no_error_of_its_own", repr(result))

    def _one(self) -> Process | None:
        running = [*self._running(), *(one for one in self.commands if one.thread.alive)]
        return self.rng.choice(running) if running else None

    def kill_mirror(self) -> None:
        """Or a command. It is not started again at once."""
        if (one := self._one()) is not None:
            one.kill()

    def suspend(self) -> None:
        """Or a command."""
        if (one := self._one()) is not None:
            seconds = self.rng.choice([0.01, 0.1, 1.0, 8.0])
            one.thread.stall(seconds)
            if seconds > SESSION:
                one.zk.client.expire()
            self.lasts(seconds)

    def cut_off(self) -> None:
        """Or a command: it has no connection to ZooKeeper."""
        if (one := self._one()) is not None:
            seconds = self.rng.choice([0.0, 0.2, 2.0, 7.0])
            one.zk.client.disconnect(seconds)
            self.lasts(seconds)

    def expire(self) -> None:
        """Or that of a command."""
        if (one := self._one()) is not None:
            one.zk.client.expire(self.rng.choice([0.0, 0.1, 1.0]))

    # -- commands ------------------------------------------------------------------------------

    def _command(
        self, name: str, act: Callable[[Mirroring], Result], done: Callable[[], object]
    ) -> None:
        def work(stores: Any) -> Result:
            return result_of(GROUP, lambda: act(Mirroring(stores, self.say)))

        def ended(result: object) -> None:
            if isinstance(result, ZkUnavailableError):
                return
            self._failed(result)
            if isinstance(result, Result):
                self._count(name, result)
                if result.outcome in (Outcome.DONE, Outcome.WAS_DONE):
                    done()

        process = Process(self, work, ended)
        self.commands.append(process)
        if not self.calm and self.rng.random() < 0.25:
            self.kernel.schedule(0.4 * self.rng.random(), process.kill)

    def _count(self, name: str, result: Result) -> None:
        outcome = f"{name}: {result.outcome.value}"
        self.say(f"{outcome} {result.why}")
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def _turn(self, to: str) -> Callable[[], object]:
        """An operator has begun to change which program may start."""
        self.tickets += 1
        mine, self.turn = self.tickets, ""

        def done() -> None:
            if self.tickets == mine:
                self.turn = to

        return done

    def cut_over(self) -> None:
        """The operator stops the old program, at some time before it or meanwhile."""
        if self.turn == "new" or not self._is_mirrored():
            return
        done = self._turn("new")
        if self.free:
            self.old.stop()
        else:
            self.kernel.schedule(self.rng.choice([0.0, 0.3, 2.0]), self.old.stop)
        wait = self.rng.choice([0.0, 3.0])
        self._command("cut-over", lambda work: work.cut_over(GROUP, True, wait), done)

    def undo(self) -> None:
        """The operator stops the new program."""
        if not self._is_mirrored():
            return
        done = self._turn("old")
        self.kernel.schedule(self.rng.choice([0.0, 0.3]), self.new.stop)
        wait = self.rng.choice([0.0, 3.0])
        self._command("undo", lambda work: work.back(GROUP, True, wait), done)

    def complete(self) -> None:
        """The operator is content with the new program."""
        if self.turn == "new":
            self._command("complete", lambda work: work.complete(GROUP, True, 3.0), lambda: None)

    def end(self) -> None:
        """The operator has decided against it."""
        if self.turn == "old" and self._is_mirrored():
            self._command("end", lambda work: work.end(GROUP, True), lambda: None)

    def begin_again(self) -> None:
        """If the group is not mirrored, or stopped."""
        if self._is_mirrored() or self.zk.get(migration_marker.path(GROUP)) is not None:
            return
        judge, lead = self.judge, Store.KAFKA if self.turn == "new" else Store.ZOOKEEPER
        done = self._turn("new" if lead is Store.KAFKA else "old")
        judge.causes.clear()
        judge.is_choosing = True
        (self.old if lead is Store.KAFKA else self.new).stop()
        if lead is Store.ZOOKEEPER and not self.coordinator.joined:  # as the refusal says
            lost = self.coordinator.offsets.keys() & judge.lost - judge.in_zookeeper().keys()
            self.coordinator.store(None, dict.fromkeys(lost))

        def chosen() -> None:
            done()
            judge.is_choosing = False
            judge.chosen(judge.in_kafka() if lead is Store.KAFKA else judge.in_zookeeper())

        self._command(
            "mirror --lead", lambda work: next(iter(work.begin([GROUP], lead, True))), chosen
        )

    def _is_mirrored(self) -> bool:
        return self.judge.mirror is not None and not self.stopped

    # -- servers -------------------------------------------------------------------------------

    def fail_over(self) -> None:
        """Another broker becomes the coordinator."""
        seconds = self.rng.choice([0.3, 2.0, 6.0])
        self.coordinator.away_until = self.kernel.now + seconds
        self.lasts(seconds)

    def lose(self) -> None:
        """Answers of the coordinator are lost for a while."""
        self.coordinator.loses = 0.3
        self.kernel.schedule(3.0, lambda: setattr(self.coordinator, "loses", 0.0))
        self.lasts(3.0)

    def forget(self) -> None:
        """An offset in Kafka expires. That happens only without members."""
        offsets = self.coordinator.offsets
        if offsets and not self.coordinator.joined and self._is_mirrored():
            tp = self.rng.choice(sorted(offsets))
            assert self.judge.mirror is not None
            self.judge.expired.add(tp)
            if self.judge.mirror.values.get(tp) != offsets[tp].offset:
                self.judge.truth.pop(tp, None)  # no store has it any more
            self.coordinator.store(None, {tp: None})

    def restore(self) -> None:
        """ZooKeeper starts with older data. If another store led, the operator stops both
        programs, and starts the one that the restored data names."""
        if not (self.exists and self.backups):
            return
        for _ in range(self.rng.randrange(min(len(self.backups), self.rng.choice([5, _BACKUPS])))):
            self.backups.pop()  # what comes after it is lost
        changes, backup = self.backups[-1]
        seconds = SESSION * self.rng.choice([0.75, 1.5])
        self.zk.restore(backup, seconds, elected=self.rng.random() < 0.5)
        self.lasts(seconds + 4 * SESSION)
        same = changes == self.judge.changes
        if not same:
            self.old.stop()
            self.new.stop()
        self.judge.restored(same)
        if not same:
            self.tickets += 1
            self.turn = "new" if self.judge.leader is Store.KAFKA else "old"

    def recreate(self) -> None:
        """The topic is deleted, and created again later. Its offsets in Kafka are deleted."""
        if not self.exists:
            return
        self.zk.do(Delete(topic_path(_TOPIC)))
        self.exists = False
        self.judge.topic_recreated()
        self.backups.clear()
        self.coordinator.store(None, dict.fromkeys(self.coordinator.offsets))
        seconds = self.rng.choice([0.0, 0.5, 3.0])
        self.kernel.schedule(seconds, self._create_topic)
        self.lasts(seconds)

    def _create_topic(self) -> None:
        self.exists = True
        self.judge.topic_recreated()
        document = {"version": 1, "partitions": {str(n): [0] for n in range(self.partitions)}}
        self.zk.do(Create(topic_path(_TOPIC), json.dumps(document).encode()))
        self.backups.clear()
        for program in (self.old, self.new):
            program.topic_recreated()


__all__ = ["MirroredGroup"]
