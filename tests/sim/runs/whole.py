"""The real data plane of a simulated member, and the application that reads its streams.

Data plane, fetch table, workers, leader finder, queues and streams are those of production; they
are stepped by the member's ``SimHost``. Everything runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tests.sim.runs.broker_log import STAMP
from tests.sim.runs.fetch_judge import Claim, Judge
from tests.sim.runs.fetching import SimFetching
from zkconsumer.broker.fetching.records import MessageAndMetadata, PythonDecoder, Record
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.runtime.delivery.data_plane import DataPlane, Stopping
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.scala_reader import ScalaReader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.interface import FetchEvent, FetchEventKind
from zkconsumer.sim.judges.invariants import Violation
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.plane import Plane

if TYPE_CHECKING:
    from tests.sim.runs.cluster import SimCluster
    from tests.sim.runs.judged import Judged

BOUND_S = 4.0
"""Within this time an application that waits gets the next of the records there are."""
_COMMITTED_S = 4.0
"""Within this time a member that commits by itself has stored how far it got."""
_STOP_POLL = 0.05
"""Seconds between two checks whether a message is still unacknowledged."""
_INTERRUPTED = 0.02
"""Probability that other threads run while a chunk is being decoded."""


class WholePlane(Plane):
    """The ``DataPort`` of a whole member. Its application begins with ``begin``."""

    judged = True

    def __init__(
        self, member: Judged[Any], cluster: SimCluster, subscription: Subscription
    ) -> None:
        self.member = member
        self.failed = ""
        """Why the streams have failed."""
        self._host = member.host
        self._cluster = cluster
        observer = member.observer
        assert observer is not None
        self.observer = observer
        self.records = cluster.records
        scala = member.gate.always_open
        self.judge = Judge(cluster.brokers, self.broken, scala)
        config = cluster.config("scala" if scala else "default")
        by_topic: dict[str | None, list[Reader]] = {}
        for topic, count in subscription.topics.items():
            named = topic if subscription.pattern is Pattern.STATIC else None
            by_topic[named] = [
                (ScalaReader if scala else Reader)(
                    member.gate,
                    queue_capacity=cluster.capacity,
                    decoder=_Interrupted(self._host.kernel),
                )
                for _ in range(count)
            ]
        self._controls = [control for group in by_topic.values() for control in group]
        self.streams = [KafkaStream(control) for control in self._controls]
        self._numbers = {control: number for number, control in enumerate(self._controls)}
        self._by_topic = by_topic
        self.on_reset: Callable[[TopicPartition, int | None], object] = lambda tp, old: None
        """Called with each position that ``auto.offset.reset`` has chosen."""
        self.on_start: Callable[[TopicPartition, int | None], object] = lambda tp, start: None
        """Called with each partition whose delivery begins."""
        fetching = SimFetching(
            self._host, cluster.brokers, config, self._reported, self.broken, idle=5.0
        )
        self._plane = DataPlane(fetching, by_topic, member.habits.release_wait, self._when_stopped)
        self._stopping: dict[TopicPartition, Claim] = {}
        self._final: dict[TopicPartition, int] = {}
        """Where partitions stopped that are not released yet."""
        self.application = Application(self)

    def broken(self, rule: str, text: str) -> None:
        """Report that ``rule`` is broken. ``text`` describes how."""
        self.observer.note(rule, self._host.now(), self.member.session, f"{self.name}: {text}")

    @property
    def name(self) -> str:
        """The member's name."""
        return self._host.name

    @property
    def brokers(self) -> tuple[BrokerEndpoint, ...]:  # type: ignore[override]
        """The registered brokers, as far as the member knows."""
        return self._plane.brokers

    @property
    def progress(self) -> tuple[Reader, ...]:
        """Where the application's progress shows."""
        return tuple(self._controls)

    @property
    def fetching(self) -> frozenset[TopicPartition]:
        """Partitions that are being delivered and not about to be released."""
        return frozenset(self.judge.claims)

    def begin(self) -> None:
        """The application looks for messages from now on."""
        self.application.begin()

    # -- DataPort

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """See ``DataPort``."""
        self._plane.set_brokers(brokers)

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """See ``DataPort``."""
        session = self.member.session
        self._plane.start(partitions)
        for tp, (thread, start) in partitions.items():
            named = tp.topic if tp.topic in self._by_topic else None
            stream = self._numbers[self._by_topic[named][thread.stream]]
            log = self._cluster.brokers.logs[tp]
            claim = Claim(self._plane.held(tp), stream, start, log, self.judge.scala, session)
            self._stopping.pop(tp, None)
            self._final.pop(tp, None)
            self.judge.claims[tp] = claim
            self.observer.started(self._host.now(), tp, session, start or 0, self.name)
            self.on_start(tp, start)

    def stop(
        self,
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, int]], object],
    ) -> None:
        """See ``DataPort``."""
        wanted = list(partitions)
        claims = self.judge.claims
        stopping = {tp: claims.pop(tp) for tp in wanted if tp in claims}
        self._stopping |= stopping
        due = self._host.now() + self.member.habits.release_wait

        def stopped(positions: dict[TopicPartition, int]) -> None:
            for tp, claim in stopping.items():
                if not claim.open:
                    continue
                if claim.in_hand is not None and self._host.now() < due:
                    self.broken("release_waits", f"{tp}: {claim.in_hand} is in hand")
                self.judge.ended(claim, positions.get(tp))
                if tp in positions:
                    self.judge.committed(claim, positions[tp])
                    self._final[tp] = positions[tp]
                self._end(tp, claim)
            done(positions)

        self._plane.stop(wanted, stopped)

    def _when_stopped(
        self, stopping: Stopping, done: Callable[[dict[TopicPartition, int]], object]
    ) -> None:
        """What production does on a separate thread."""
        due = self._host.now() + self.member.habits.release_wait

        def poll() -> None:
            final = stopping.poll(force=self._host.now() >= due)
            if final is None:
                self._host.after(_STOP_POLL, poll)
            else:
                done(final)

        self._host.within(self.member.habits.stop, poll)

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See ``DataPort``."""
        dropped = frozenset(partitions)
        for tp in sorted(dropped):
            for claims in (self.judge.claims, self._stopping):
                if tp in claims:
                    self._end(tp, claims.pop(tp))
            self._final.pop(tp, None)
        return self._plane.drop(dropped)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """See ``DataPort``."""
        for tp in partitions:
            self._final.pop(tp, None)
        self._plane.forget(partitions)

    def positions(self) -> dict[TopicPartition, int]:
        """See ``DataPort``."""
        found = self._plane.positions()
        for tp, position in self._final.items():
            if found.get(tp) != position:
                self.broken("stopped_is_known", f"{tp}: {found.get(tp)} in place of {position}")
        return found

    def end(self) -> None:
        """See ``Plane``."""
        self.application.end()

    def check(self) -> None:
        """See ``Plane``."""
        self.judge.check()
        self._check_queues()

    def resets(self) -> int:
        """See ``Plane``."""
        return self.observer.resets.total() + self.observer.restores

    def check_stored(self, positions: Mapping[TopicPartition, int]) -> None:
        """See ``Plane``."""
        if self.observer.legacy_sessions or self.name in self.observer.unaware:
            return
        for tp, position in positions.items():
            stored = self.observer.stored(tp)
            if stored < position:
                self.broken("commit_stores", f"{tp}: {stored} in place of {position}")

    def _check_queues(self) -> None:
        capacity = self._cluster.capacity
        for number, control in enumerate(self._controls):
            chunks = len(control.queue)
            if chunks > capacity:
                # A partition is asked for while there is room for one chunk, and gets one.
                claims = sum(c.stream == number for c in self.judge.claims.values())
                if self.judge.scala or chunks > capacity - 1 + claims:
                    self.broken("queue_bound", f"{chunks} chunks in stream {number}")

    def fail(self, error: Exception) -> None:
        """See ``DataPort``."""
        self.failed = str(error) or repr(error)
        self._plane.fail(error)

    def close(self, timeout: float = 0.0) -> None:
        """See ``DataPort``; the end of the process does the same."""
        for claims in (self.judge.claims, self._stopping):
            for tp, claim in list(claims.items()):
                self._end(tp, claim)
            claims.clear()
        self._plane.close(timeout)

    def _end(self, tp: TopicPartition, claim: Claim) -> None:
        claim.open = False
        if self._stopping.get(tp) is claim:
            del self._stopping[tp]
        for session in {claim.session, self.member.session_now(claim.session)}:
            self.observer.stopped(tp, session)

    def _reported(self, event: FetchEvent) -> None:
        if self._host.recorded:
            self._host.say(f"{event.kind.value}: {event.broker} {event.detail}")
        if event.kind is FetchEventKind.PARTITION_FAILED:
            self.broken("stream_works", event.detail)
        if event.kind is FetchEventKind.OFFSET_RESET and event.partition is not None:
            tp = event.partition
            claim = self.judge.claims.get(tp)
            if claim is not None:
                if self._cluster.reset == "largest":
                    assert claim.info.fetched_offset is not None
                    self.records.excuse(tp, claim.info.fetched_offset)
                if event.replaced is not None:
                    self.observer.reset(tp, self.name)
            self.judge.reset(tp, event.replaced)
            self.on_reset(tp, event.replaced)

    # -- what the application does

    def given(self, number: int, message: MessageAndMetadata, gate_open: bool) -> Claim | None:
        """A stream has returned a message: note it; return the claim that it belongs to."""
        tp = TopicPartition(message.topic, message.partition)
        generation = STAMP.unpack_from(message.value)[1]
        claim = self.judge.claims.get(tp)
        member = self.member
        session = member.session if claim is None else member.session_now(claim.session)
        if self._host.recorded:
            self._host.say(f"delivers {tp} {message.offset} in {session}")
        self.records.delivered(tp, message.offset, generation)
        if self.judge.scala:
            self.records.processed(tp, message.offset, generation)
        self.observer.delivered(self._host.now(), tp, session, message.offset, message.offset)
        self.judge.delivered(number, message, gate_open=gate_open)
        return claim

    def processed(self, claim: Claim) -> None:
        """The application asks for the next message of a stream."""
        if claim.open and claim.in_hand is not None:
            self.records.processed(claim.info.topic_partition, claim.in_hand, claim.generation)
            self.judge.processed(claim)

    def undelivered(self) -> list[Violation]:
        """The records of the partitions being read that have not been delivered so far."""
        found: list[Violation] = []
        now = self._host.now()
        for tp, claim in self.judge.claims.items():
            if claim.behind:
                text = f"{self.name}: {claim.info} expects {claim.expected} of {claim.log.end}"
                found.append(Violation("no_silent_partition", now, text))
            elif lost := self.records.undelivered(tp):
                found.append(Violation("no_record_lost", now, f"{tp}: {lost} not delivered"))
        return found

    @property
    def may_deliver(self) -> bool:
        """Whether the application would get a message now."""
        return self.member.gate.is_open

    def stall(self, seconds: float) -> None:
        """The application works on one message for this long."""
        self.application.stall(seconds)

    def hold_late(self) -> None:
        """The process is stopped between the lease's check and the application."""
        self.application.hold_late()

    def deliver_late(self) -> None:
        """The process runs again, and the application gets the message that it was held from."""
        self.application.deliver_late()


class Application:
    """Takes messages from all streams of a member, with pauses, and commits at times."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane = plane
        self._member = plane.member
        self._host = plane.member.host
        self._claims: list[Claim | None] = [None for _ in plane.streams]
        """Of each stream's unacknowledged message."""
        self._busy_until = -1.0
        self._stall = 0.0
        """For how long to work on the next message."""
        self._asked: Future[tuple[str, ...]] | None = None
        """A commit whose answer the application waits for."""
        self._looking = False
        self._late: list[tuple[int, MessageAndMetadata]] = []
        """Messages that the process was stopped with, before they were handed over."""

    def begin(self) -> None:
        """Look from now on."""
        self._look_later()

    def stall(self, seconds: float) -> None:
        """See ``WholePlane``."""
        self._stall = max(self._stall, seconds)

    def hurry(self) -> float:
        """Be fast from now on; return until when it works on the current message."""
        self._stall = 0.0
        return self._busy_until

    def hold_late(self) -> None:
        """See ``WholePlane``."""
        if not self._looking and self._is_free and not self._plane.judge.scala:
            for number in range(len(self._claims)):
                if self._take(number) is not None:
                    return

    def deliver_late(self) -> None:
        """See ``WholePlane``."""
        late, self._late = self._late, []
        for number, message in late:
            self._claims[number] = self._plane.given(number, message, True)

    def end(self) -> None:
        """The member has ended: the application asks each stream once more."""
        for number, stream in enumerate(self._plane.streams):
            try:
                while (message := stream.try_next()) is not None and self._plane.judge.scala:
                    pass
            except Exception:  # noqa: BLE001 - the end, or why there is one
                continue
            text = "is silent" if message is None else f"gives {message.offset}"
            self._plane.broken("end_is_heard", f"stream {number} {text} after the end")

    @property
    def _is_free(self) -> bool:
        waits = self._asked is not None and not self._asked.done()
        return not waits and self._host.now() >= self._busy_until

    def _look_later(self) -> None:
        low, high = self._member.habits.poll
        delay = low + (high - low) * self._host.random.random()
        self._host.kernel.schedule(delay, self._look)

    def _look(self) -> None:
        host = self._host
        if not host.alive:
            return
        if not host.paused and self._is_free:
            self._looking = True
            for number in range(len(self._claims)):
                for _ in range(self._member.habits.burst):
                    if self._take(number) is None or host.paused or not host.alive:
                        break
                    if self._stall:
                        self._busy_until = host.now() + self._stall
                        self._member.stalls(self._stall)
                        self._stall = 0.0
                        break
                if not self._is_free:
                    break
            self._looking = False
            if host.alive and not host.paused:
                host.on_step()
                self._commit_at_times()
        self._look_later()

    def _take(self, number: int) -> MessageAndMetadata | None:
        """Ask a stream for its next message."""
        plane, host = self._plane, self._host
        claim, self._claims[number] = self._claims[number], None
        if claim is not None:
            plane.processed(claim)
        stream = plane.streams[number]
        try:
            message = stream.try_next()
        except StopIteration:
            if host.alive and not self._member.loop.ended and not self._member.closing:
                plane.broken("goes_on", f"stream {number} has ended")
            return None
        except Exception as error:  # noqa: BLE001
            if host.alive and not plane.failed:
                plane.broken("stream_works", f"stream {number}: {error!r}")
            return None
        if message is None or not host.alive:
            return None
        if (host.paused or self._late) and not plane.judge.scala:
            self._late.append((number, message))
        else:
            self._claims[number] = plane.given(number, message, self._member.gate.is_open)
        return message

    def _commit_at_times(self) -> None:
        rng = self._host.random
        if rng.random() < self._member.habits.commits:
            asked = self._member.commit()
            if rng.random() < 0.5:
                self._asked = asked


class _Interrupted:
    """The real decoder, with other threads' steps in between."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._decoder = PythonDecoder()

    def decode(self, data: bytes, topic: str, partition: int, start: int) -> Iterator[list[Record]]:
        """See ``Decoder.decode``."""
        for records in self._decoder.decode(data, topic, partition, start):
            self._interrupt()
            yield records
        self._interrupt()

    def _interrupt(self) -> None:
        rng = self._kernel.rng
        if rng.random() < _INTERRUPTED:
            for _ in range(rng.choice((1, 5, 20))):
                self._kernel.step()


def hurry(members: Iterable[Judged[Any]]) -> float:
    """Applications are fast from now on; return when the last of them has finished its message."""
    planes = [m.plane for m in members if isinstance(m.plane, WholePlane)]
    return max((plane.application.hurry() for plane in planes), default=0.0)


def deliver_all(kernel: Kernel, members: Callable[[], Iterable[Judged[Any]]]) -> list[Violation]:
    """Run until the members' applications have got all records that they read.

    It fails if nothing is delivered for ``BOUND_S`` although there are more records.
    """
    heard, before = kernel.now, -1
    while True:
        planes = [m.plane for m in members() if isinstance(m.plane, WholePlane)]
        found = [violation for plane in planes for violation in plane.undelivered()]
        deliveries = sum(plane.judge.deliveries for plane in planes)
        if deliveries != before:
            heard, before = kernel.now, deliveries
        if not found or kernel.now - heard >= BOUND_S:
            return found
        kernel.run(until=kernel.now + 0.5)


def uncommitted(kernel: Kernel, members: Callable[[], Iterable[Judged[Any]]]) -> list[Violation]:
    """Wait for the next automatic commits; return the positions that they have not stored."""
    kernel.run(until=kernel.now + _COMMITTED_S)
    found: list[Violation] = []
    for member in members():
        plane = member.plane
        if not member.commits_by_itself or not isinstance(plane, WholePlane):
            continue
        for tp, claim in plane.judge.claims.items():
            stored = plane.observer.committed.get(tp)
            if claim.info.position is not None and stored != claim.info.position:
                text = f"{member.name}: {claim.info}, stored is {stored}"
                found.append(Violation("committed_at_rest", kernel.now, text))
    return found


__all__ = ["Application", "WholePlane", "deliver_all", "hurry", "uncommitted"]
