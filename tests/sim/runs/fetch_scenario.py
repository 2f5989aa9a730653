"""One member's data plane under random faults on virtual time, judged after every event.

The real data plane, fetch table, workers, leader finder, queues and streams run in one thread. A
run alternates between troubled times, in which anything may fail and partitions are added and
removed, and calm ones, in which all messages must arrive within ``BOUND_S``. A run is a function of
its seed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from tests.sim.runs.broker_log import PartitionLog, SimBrokers
from tests.sim.runs.fetch_judge import Claim, Judge
from tests.sim.runs.fetching import SimConfig, SimFetching
from tests.sim.runs.scenario import Scenario
from tests.sim.runs.transactional_log import TransactionalLog
from zkconsumer.broker.fetching.records import MessageAndMetadata, PythonDecoder, Record
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.errors import MessageSizeTooLargeError
from zkconsumer.runtime.delivery.data_plane import DataPlane, Stopping
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.sim.judges.invariants import Violation
from zkconsumer.sim.kernel import Kernel

BOUND_S = 3.0
"""Without faults, a partition with a leader delivers all its records within this time."""
_TROUBLED_S = 0.7
_ROUNDS = 2
_RELEASE_WAIT_S = 0.2
_IDLE_S = 0.1


_COLUMNS: Final = ("topic", "partition", "offset", "key", "value")


class PlaneAlone(Scenario[Any]):
    """One data plane, whose partitions are added and removed. ``events`` do not count.

    Args:
        seed: determines all random choices.
        record: keep the history.
        old: with brokers before 0.10.1; by default in one of five runs.
        batch: the application takes lists of up to this many messages; 1 for single messages, 0 for
            Arrow columns.
        committed: the logs have transactions, and are read with ``read_committed``.
    """

    def __init__(
        self,
        seed: int,
        record: bool = False,
        old: bool | None = None,
        batch: int = 1,
        committed: bool = False,
    ) -> None:
        super().__init__(seed, record)
        self.batch = batch
        rng = self.rng = self.kernel.rng
        old = False if committed else old
        self.old = rng.random() < 0.2 if old is None else old
        partitions = [
            TopicPartition(topic, number)
            for topic in ("a", "b")[: rng.choice((1, 2))]
            for number in range(rng.choice((1, 2, 4)))
        ]
        self.brokers = SimBrokers(
            self.kernel,
            range(rng.choice((1, 2, 3))),
            partitions,
            self.old,
            log=(lambda: TransactionalLog(rng.randrange(1 << 32))) if committed else PartitionLog,
        )
        self.config = SimConfig(
            fetch_message_max_bytes=1500 if self.old else rng.choice((150, 400, 20_000)),
            fetch_max_bytes=rng.choice((300, 50_000_000)),
            num_consumer_fetchers=rng.choice((1, 1, 2)),
            refresh_leader_backoff_ms=rng.choice((20, 100)),
            auto_offset_reset=rng.choice(("smallest", "largest")),
            profile="scala" if rng.random() < 0.2 else "default",
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        self.scala = self.config.profile == "scala"
        self.capacity = rng.choice((1, 2, 4))
        self.streams = rng.choice((1, 2))
        self.violations: list[Violation] = []
        self.judge = Judge(self.brokers, self._broken, self.scala)
        self.committed: dict[TopicPartition, int] = {}
        self.stopping: dict[TopicPartition, tuple[Stopping, Claim, float]] = {}
        self.kinds: Counter[FetchEventKind] = Counter()
        """How often the member reported each kind of event."""
        self.calm = False
        self.depth = 0
        """How many threads are suspended in ``interrupt``."""
        self.target: TopicPartition | None = None
        """The partition that is troubled next, if not any."""
        self.member: _Member
        self.faults = [
            (1, "leader moves", self._move_leader),
            (1, "broker stops", self._stop_broker),
            (1, "truncation", self._truncate),
            (1, "retention", self._delete),
            (1, "compaction", self._compact),
            (1, "large message", self._append_large),
            (1, "brokers unknown", lambda: self.member.fetching.set_brokers(())),
            (1, "gate shut", self._shut_gate),
            (1, "slow application", self._pause),
            (1, "partition lost", self._drop),
            (1, "restart", self._restart),
        ]

    @property
    def deliveries(self) -> int:
        """See ``Scenario``."""
        return self.judge.deliveries

    def play(self, events: int) -> list[Violation]:
        """See ``Scenario``: troubled and calm times follow each other."""
        self.member = _Member(self)
        for log in self.brokers.logs.values():
            for _ in range(self.rng.randrange(4)):
                log.append(self.rng.randrange(1, 8), self.rng.choice((12, 40)))
        self._every(0.012, self._produce)
        self._every(0.01, self._control)
        self._every(0.03, self._commit)
        self._every(0.025, self.strike)
        for _ in range(_ROUNDS):
            self.calm = False
            self.brokers.troubled = self.rng.random() < 0.8
            self._until(self.kernel.now + _TROUBLED_S, lambda: False)
            self._calm_down()
            deadline = self.kernel.now + BOUND_S
            if not self._until(deadline, self._all_delivered) and not self.violations:
                for claim in filter(lambda claim: claim.behind, self.judge.claims.values()):
                    detail = f"{claim.info} expects {claim.expected} of {claim.log.end}"
                    self.judge.broken("no_silent_partition", detail)
        return self.violations

    def _broken(self, rule: str, text: str) -> None:
        self.violations.append(Violation(rule, self.kernel.now, text))

    def interrupt(self, tp: TopicPartition | None) -> None:
        """Here a real thread may be suspended while others run: let some events happen.

        Often it is a trouble of ``tp``, with which the thread is busy.
        """
        if self.depth < 2 and self.rng.random() < 0.1:
            self.depth += 1
            self.target = tp
            if self.rng.random() < 0.3:
                self.strike()
            self.target = None
            for _ in range(self.rng.choice((1, 5) if self.calm else (1, 5, 40, 200))):
                self.kernel.step()
                self._check()
            self.depth -= 1

    def _until(self, deadline: float, done: Callable[[], bool]) -> bool:
        """Run events until ``done`` or ``deadline``; judge after each; return ``done``'s word."""
        while self.kernel.now < deadline and not self.violations:
            for _ in range(10):
                self.kernel.step()
                self._check()
            if done():
                return True
        return False

    def _check(self) -> None:
        self.judge.check()
        for number, control in enumerate(self.member.controls):
            chunks = len(control.queue)
            if chunks > self.capacity:
                # A partition is asked for while there is room for one chunk, and gets one.
                claims = sum(c.stream == number for c in self.judge.claims.values())
                if self.scala or chunks > self.capacity - 1 + claims:
                    self.judge.broken("queue_bound", f"{chunks} chunks in stream {number}")

    def _every(self, period: float, action: Callable[[], object]) -> None:
        def again() -> None:
            self.kernel.schedule(period * 2 * self.rng.random(), again)
            action()

        again()

    # The world.

    def _produce(self) -> None:
        if self.calm and self.rng.random() < 0.9:
            return
        log = self.rng.choice(list(self.brokers.logs.values()))
        log.append(self.rng.choice((1, 1, 3, 8)), self.rng.choice((12, 12, 60)))

    def strike(self) -> None:
        """See ``Scenario``."""
        if not self.calm:
            _, name, action = self.rng.choice(self.faults)
            if action() is not False:
                self.counts[name] = self.counts.get(name, 0) + 1
                self.say(name)

    def _some_log(self) -> TopicPartition:
        return self.target or self.rng.choice(list(self.brokers.logs))

    def _move_leader(self) -> None:
        tp = self._some_log()
        self.brokers.lead(tp, self.rng.choice([None, *self.brokers.up]))

    def _stop_broker(self) -> bool:
        number = self.rng.choice(list(self.brokers.endpoints))
        if number not in self.brokers.up:
            return False
        self.brokers.stop(number)
        self.kernel.schedule(self.rng.random() * 0.3, lambda: self._start_broker(number))
        self.kernel.schedule(self.rng.random() * 0.1, self._tell_brokers)
        return True

    def _start_broker(self, number: int) -> None:
        if number not in self.brokers.up:
            self.brokers.start(number, elsewhere=self.rng.random() < 0.5)
            self.kernel.schedule(self.rng.random() * 0.1, self._tell_brokers)
            for tp, leader in self.brokers.leaders.items():
                if leader is None and self.rng.random() < 0.7:
                    self.brokers.lead(tp, number)

    def _tell_brokers(self) -> None:
        up = sorted(self.brokers.up)
        self.member.plane.set_brokers(tuple(self.brokers.endpoints[number] for number in up))

    def _truncate(self) -> None:
        log = self.brokers.logs[self._some_log()]
        log.truncate(max(log.start, log.end - self.rng.randrange(1, 30)))

    def _delete(self) -> None:
        log = self.brokers.logs[self._some_log()]
        log.delete_before(self.rng.randint(log.start, log.end))

    def _compact(self) -> None:
        self.brokers.logs[self._some_log()].compact(self.rng)

    def _append_large(self) -> bool:
        if self.old and self.rng.random() < 0.8:  # each one ends a stream there
            return False
        self.brokers.logs[self._some_log()].append(1, self.config.fetch_message_max_bytes * 2)
        return True

    def _shut_gate(self) -> None:
        gate = self.member.gate
        gate.close()  # stays open in the scala profile
        self.kernel.schedule(self.rng.random() * 0.1, lambda: gate.extend(math.inf))

    def _pause(self) -> None:
        self.rng.choice(self.member.applications).pause = self.rng.random() * 0.4

    def _restart(self) -> bool:
        if self.rng.random() < 0.7:
            return False
        self.restart()
        return True

    def restart(self) -> None:
        """Close the data plane, as at the end of a program, and begin with a new one."""
        self.member.close()
        self.judge.claims.clear()
        self.stopping.clear()
        self.member = _Member(self)

    def _calm_down(self) -> None:
        self.calm = True
        self.say("calm")
        self.brokers.troubled = False
        for number in list(self.brokers.endpoints):
            self._start_broker(number)
        for tp, leader in list(self.brokers.leaders.items()):
            if leader is None:
                self.brokers.lead(tp, self.rng.choice(sorted(self.brokers.up)))
        self.kernel.schedule(0.1, self._tell_brokers)

    def _all_delivered(self) -> bool:
        claims = self.judge.claims
        return len(claims) == len(self.brokers.logs) and not any(
            claim.behind for claim in claims.values()
        )

    # The group: who owns what, and what is committed.

    def _control(self) -> None:
        for tp, (stopping, claim, deadline) in list(self.stopping.items()):
            final = stopping.poll(force=self.kernel.now >= deadline)
            if final is not None:
                del self.stopping[tp]
                self._end(tp, claim, final)
        tp = self._some_log()
        if self.calm:
            free = [t for t in self.brokers.logs if t not in self.judge.claims]
            if not free:
                return
            tp = free[0]
        if tp in self.stopping:
            return
        if tp not in self.judge.claims:
            self._claim(tp)
        elif self.rng.random() < 0.2:
            self.say(f"stop {tp}")
            claim = self.judge.claims.pop(tp)
            stopping = self.member.plane.stopping([tp])
            self.stopping[tp] = stopping, claim, self.kernel.now + _RELEASE_WAIT_S

    def _claim(self, tp: TopicPartition) -> None:
        stream = self.rng.randrange(self.streams)
        start = self.committed.get(tp)
        self.say(f"start {tp} at {start} in stream {stream}")
        plane = self.member.plane
        plane.start({tp: (ConsumerThreadId("m", stream), start)})
        info = plane.held(tp)
        self.judge.claims[tp] = Claim(info, stream, start, self.brokers.logs[tp], self.scala)

    def _end(self, tp: TopicPartition, claim: Claim, final: dict[TopicPartition, int]) -> None:
        self.judge.ended(claim, final.get(tp))
        if tp in final:
            self.judge.committed(claim, final[tp])
            self.committed[tp] = final[tp]
            self.say(f"final {tp} {final[tp]}")
        self.member.plane.forget([tp])

    def _drop(self) -> bool:
        held = list(self.judge.claims)
        if not held:
            return False
        tp = self.rng.choice(held)
        del self.judge.claims[tp]
        self.member.plane.drop([tp])
        return True

    def _commit(self) -> None:
        for tp, position in self.member.plane.positions().items():
            claim = self.judge.claims.get(tp)
            if claim is None:
                claim = self.stopping[tp][1]
            self.judge.committed(claim, position)
            self.committed[tp] = position


class _Threads:
    """Runs each step when it is due, also during another one, as parallel threads do."""

    def __init__(self, kernel: Kernel) -> None:
        self.random = kernel.rng
        self._kernel = kernel

    def post(self, action: Callable[[], object]) -> None:
        """See ``Host``."""
        action()

    def after(self, seconds: float, action: Callable[[], object]) -> Callable[[], object]:
        """See ``Host``."""
        return partial(self._kernel.cancel, self._kernel.schedule(seconds, action))

    def now(self) -> float:
        """See ``Host``."""
        return self._kernel.now


class _Member:
    """One life of a member: a data plane, its fetching, and applications that iterate streams."""

    def __init__(self, run: PlaneAlone) -> None:
        self.run = run
        self.gate = DeliveryGate(always_open=run.scala)
        self.gate.extend(math.inf)
        self.controls = [
            (ScalaReader if run.scala else Reader)(
                self.gate,
                queue_capacity=run.capacity,
                decoder=_Interrupted(run.interrupt),
            )
            for _ in range(run.streams)
        ]
        self.streams = [KafkaStream(control) for control in self.controls]
        self.fetching = SimFetching(
            _Threads(run.kernel),
            run.brokers,
            run.config,
            self._reported,
            run.judge.broken,
            idle=_IDLE_S,
        )
        self.plane = DataPlane(
            self.fetching, {None: self.controls}, _RELEASE_WAIT_S, lambda stopping, done: None
        )
        self.applications = [_Application(run, self, i) for i in range(run.streams)]
        run.kernel.schedule(0.01, run._tell_brokers)

    def close(self) -> None:
        """End the run."""
        self.plane.close()

    def _reported(self, event: FetchEvent) -> None:
        run = self.run
        if run.member is not self:
            return
        run.kinds[event.kind] += 1
        run.say(f"{event.kind.value}: {event.partition} {event.broker} {event.detail}")
        if event.kind is FetchEventKind.OFFSET_RESET and event.partition is not None:
            run.judge.reset(event.partition, event.replaced)
        run.interrupt(event.partition)


class _Application:
    """Takes message after message from one stream, and is busy with each for a while."""

    def __init__(self, run: PlaneAlone, member: _Member, number: int) -> None:
        self.run = run
        self.member = member
        self.number = number
        self.pause = 0.0
        """How long to be busy once; set from outside."""
        self.claim: Claim | None = None
        """Of the unacknowledged message."""
        run.kernel.schedule(0.001, self._ask)

    def _ask(self) -> None:
        run = self.run
        if run.member is not self.member:
            return
        stream = self.member.streams[self.number]
        claim, self.claim = self.claim, None
        if claim is not None and not self._taken_away(claim):
            run.judge.processed(claim)
            if run.rng.random() < 0.1:
                stream.mark_consumed()
        try:
            messages = self._next(stream)
        except StopIteration:
            if run.member is self.member:
                run.judge.broken("goes_on", f"stream {self.number} has ended")
            return
        except MessageSizeTooLargeError as error:
            limit = run.config.fetch_message_max_bytes
            if not run.old or all(log.largest_batch <= limit for log in run.brokers.logs.values()):
                run.judge.broken("stream_works", str(error))
            run.say(f"stream {self.number}: {error}")
            run.config.fetch_message_max_bytes = 2 * limit + 200
            run.restart()
            return
        except Exception as error:  # noqa: BLE001
            run.judge.broken("stream_works", repr(error))
            return
        if run.member is self.member:  # there was no restart in between
            run.kernel.schedule(self._seconds(messages), self._ask)

    def _next(self, stream: KafkaStream) -> list[MessageAndMetadata]:
        """Take the next message, or several at once; none if there are none now."""
        if self.run.batch > 1:
            return next(stream.batches(self.run.batch, timeout=0))
        if self.run.batch == 0:
            rows = next(stream.arrow_batches(timeout=0)).to_pylist()
            return [MessageAndMetadata(*(row[name] for name in _COLUMNS)) for row in rows]
        message = stream.try_next()
        return [] if message is None else [message]

    def _seconds(self, messages: list[MessageAndMetadata]) -> float:
        """Record the delivered messages; return how long the application takes to handle them."""
        run = self.run
        busy, self.pause = self.pause, 0.0
        if not messages:
            return busy or 0.002 + 0.016 * run.rng.random()
        for message in messages:
            run.say(
                f"stream {self.number} gives {message.topic}-{message.partition} {message.offset}"
            )
            run.judge.delivered(self.number, message, gate_open=self.member.gate.is_open)
        self.claim = run.judge.claims.get(TopicPartition(message.topic, message.partition))
        return busy or 0.001 * run.rng.random()

    def _taken_away(self, claim: Claim) -> bool:
        """Whether the unacknowledged message was declared not consumed."""
        info = claim.info
        return info.revoked and not any(claim is one[1] for one in self.run.stopping.values())


class _Interrupted:
    """The real decoder, with other threads' steps in between."""

    def __init__(self, interrupt: Callable[[TopicPartition], None]) -> None:
        self._interrupt = interrupt
        self._decoder = PythonDecoder()

    def decode(self, data: bytes, topic: str, partition: int, start: int) -> Iterator[list[Record]]:
        """See ``Decoder.decode``."""
        for records in self._decoder.decode(data, topic, partition, start):
            self._interrupt(TopicPartition(topic, partition))
            yield records
        self._interrupt(TopicPartition(topic, partition))


__all__ = ["PlaneAlone"]
