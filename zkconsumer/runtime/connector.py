"""StreamConnector: streams, commits and the end of a member, in ZooKeeper and in Kafka.

The base class of the connectors. Subclasses add the protocol that decides about ownership
(``_member``) and the timeouts. Called from the application's threads. The work is done by the
loop, fetcher threads and the application's own threads in the streams.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeoutError
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self
from urllib.parse import quote

from zkconsumer.broker.fetching.records import Decode
from zkconsumer.broker.security import KafkaSecurity
from zkconsumer.config.keys import ConsumerKeys
from zkconsumer.core.common import events
from zkconsumer.core.common.commands import AnswerStart
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.zookeeper.znodes import make_consumer_id
from zkconsumer.errors import (
    CommitFailedError,
    ConfigError,
    ConnectorClosedError,
    ConnectorFailedError,
    RebalanceFailedError,
    StreamsAlreadyCreatedError,
    UsageError,
    ZkConsumerError,
)
from zkconsumer.runtime.calls import check_topic_counts, checked_offsets, commit_error, start_error
from zkconsumer.runtime.counters import RebalanceCounts
from zkconsumer.runtime.delivery.data_plane import DataPlane
from zkconsumer.runtime.delivery.messages import bytes_decoder
from zkconsumer.runtime.delivery.reader import Reader
from zkconsumer.runtime.delivery.streams import KafkaStream
from zkconsumer.runtime.fetch.interface import FetchEvent
from zkconsumer.runtime.fetch.threads import ConsumerFetcherManager
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import Coordination, MachineT, MemberLoop
from zkconsumer.runtime.membership.threads import (
    PERIOD as WATCHDOG_PERIOD,
    Check,
    MemberThread,
    Watchdog,
)
from zkconsumer.runtime.observation.health import (
    MIN_SECONDS,
    Health,
    HealthMonitor,
    Membership,
    Sources,
    without_streams,
)
from zkconsumer.runtime.undisturbed import Undisturbed, lend

if TYPE_CHECKING:
    from zkconsumer.core.common.topic_filter import TopicFilter
    from zkconsumer.journal.json_lines import MemberJournal
    from zkconsumer.journal.recorder import Sink
    from zkconsumer.runtime.membership.line import Client, ServerLine
    from zkconsumer.runtime.membership.listener import GroupListener, ListenerCalls
    from zkconsumer.runtime.observation.metrics import Metrics

logger = logging.getLogger("zkconsumer.member")

_SAMPLE_INTERVAL: Final = 5.0
"""Seconds between samples of the rates, as in the JVM's meters."""
START_PATIENCE: Final = 60.0
"""Seconds that a first rebalance may take beyond the configured timeouts."""
ANSWER_PATIENCE: Final = 10.0
"""Seconds that a commit may take beyond twice the session timeout."""
_FAILED_START_LEAVE: Final = 5.0
"""Seconds for leaving after a failed start; included in the time for a start."""
_ANSWER_MARGIN: Final = 1.0
"""Seconds by which the member's thread may be late with an answer."""
START_WARNING: Final = 5.0
"""Seconds between warnings that the first rebalance has not ended."""


_CONNECTORS: Final[weakref.WeakSet[StreamConnector[Any]]] = weakref.WeakSet()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=lambda: [*map(StreamConnector._after_fork, [*_CONNECTORS])])


class StreamConnector(ABC, Generic[MachineT]):
    """One member of a consumer group, in ZooKeeper or on the coordinator."""

    config: ConsumerKeys
    states: ClassVar[type[Enum]]
    """The states of its machine."""
    in_zookeeper: ClassVar[bool]
    """Whether the group is in ZooKeeper, not in Kafka."""

    def __init__(
        self,
        config: ConsumerKeys,
        gate: DeliveryGate,
        journal: Sink | None,
        reader: type[Reader] = Reader,
        leaves_if_refused: bool = True,
    ) -> None:
        if not hasattr(os, "register_at_fork"):
            raise UsageError("members run on Linux and macOS: on Windows use WSL")
        self.config = config
        self._security = KafkaSecurity(config)
        self.consumer_id = make_consumer_id(
            quote(config.group_id, safe="")[:255],  # in Kafka it may be any text
            config.consumer_id,
            socket.gethostname(),
            int(time.time() * 1000),
            uuid.uuid4().int,
        )
        self._reader = reader
        self._leaves_if_refused = leaves_if_refused  # shut down after a failed start
        self._own_journal: MemberJournal | None = None
        self._journal = journal
        self._gate = gate
        self._listener: GroupListener | None = None
        self._calls: ListenerCalls | None = None
        self._lock = threading.RLock()
        self._host = MemberThread(self.consumer_id)
        self._loop: MemberLoop[MachineT] | None = None
        self._plane: DataPlane | None = None
        self._closed = False
        self._checks: list[Check] = [self._security.check]
        """Checks of the threads on which a member depends, in addition to its own."""
        self._watchdog: Watchdog | None = None
        self._monitor: HealthMonitor | None = None
        self._forked: ConnectorClosedError | None = None
        """The error for calls in a forked child process; ``None`` in other processes."""
        _CONNECTORS.add(self)

    # -- who decides about ownership -------------------------------------------------------------

    _servers: str
    """The servers' name in messages."""
    _start_patience: float
    """Seconds within which streams must be created or creation must fail."""
    _answer_patience: float
    """Seconds until a commit must be answered."""
    _leave_patience: float
    """Seconds within which a member must have left."""

    @abstractmethod
    def _member(
        self,
        subscription: Subscription,
        streams: Sequence[Reader],
        plane: DataPlane,
        fetchers: ConsumerFetcherManager,
    ) -> MemberLoop[MachineT]:
        """Return a member with this subscription. None of its parts is started."""

    def _abandon(self, timeout: float) -> None:
        """End, within ``timeout`` seconds, before there is a member."""

    def metrics(self) -> Metrics:
        """Return the current metrics.

        The call is cheap, and any thread may make it at any time. Before streams are created,
        almost all values are 0. After ``shutdown``, counters keep their last value. For a group on
        the brokers, the ZooKeeper metrics are 0. Raises ConnectorClosedError after a fork.
        """
        self._check_here()
        return self._metrics()

    @abstractmethod
    def _metrics(self) -> Metrics:
        """See ``metrics``."""

    @abstractmethod
    def _membership(self, loop: MemberLoop[MachineT]) -> Membership:
        """Return what the machine knows about its membership. Any thread."""

    def health(self, min_seconds: float = MIN_SECONDS) -> Health:
        """Return whether the member works, and if not, why.

        The call never waits, and any thread may make it at any time.

        Args:
            min_seconds: a problem is reported only after it has lasted this long, a failure
                immediately.
        """
        monitor = self._monitor
        if self._forked is not None or self._closed or monitor is None:
            return without_streams(self._closed, self._forked)
        return monitor.read(min_seconds)

    @property
    def _lasting_faults(self) -> int:
        return 0 if self._monitor is None else self._monitor.lasting

    def _line(self, client: Client, what: str) -> ServerLine:
        """A connection to a server on which the member depends."""
        from zkconsumer.runtime.membership.line import ServerLine

        line = ServerLine(client, f"{self.consumer_id}_{what}", self._host.crash)
        self._checks.append(line.check)
        return line

    def _make_monitor(
        self, loop: MemberLoop[MachineT], plane: DataPlane, streams: Sequence[Reader]
    ) -> HealthMonitor:
        calls, gate = self._calls, self._gate
        return HealthMonitor(
            Sources(
                membership=lambda: self._membership(loop),
                partitions=plane.partitions,
                streams=tuple(streams),
                is_open=lambda: gate.is_open,
                listening=lambda: calls is not None and calls.since is not None,
                group=self.config.group_id,
                servers=self._servers,
                log=self._host.log,
                refusals=lambda: self._security.faults,
            )
        )

    def _log_later(self, text: str) -> None:
        """Log a line on the member's thread. May be called by any thread, even with locks held."""
        if self._plane is not None:
            self._host.post(lambda: self._host.log(logging.INFO, text))

    def _journal_settings(self) -> dict[str, object]:
        """Return the settings for the first line of a journal."""
        return {"group.id": self.config.group_id}

    def _on_fetch_event(self, event: FetchEvent) -> None:
        """Handle an event of fetching, on the thread on which it occurs."""

    def _open_journal(self) -> None:
        """Open the journal of a member before the member runs, if one is configured."""
        directory = self.config.journal_dir
        if self._journal is not None or directory is None:
            return
        from zkconsumer.journal.json_lines import MemberJournal

        settings = self._journal_settings()
        self._journal = self._own_journal = MemberJournal(directory, self.consumer_id, settings)

    # -- streams -------------------------------------------------------------------------------

    def create_message_streams(
        self,
        topic_count_map: Mapping[str, int],
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
    ) -> dict[str, list[KafkaStream]]:
        """Join the group with named topics.

        Args:
            topic_count_map: number of streams for each topic, at least 1. If it is empty, the
                member gets no partitions.
            key_decoder, value_decoder: convert bytes to objects when a message's key or value is
                read.

        Returns a list of streams for each topic, after the first rebalance. Partitions that other
        members still own follow as soon as they are released.

        Raises StreamsAlreadyCreatedError, ConnectorClosedError, ConfigError (bad topic or count, a
        registration that members cannot use), RebalanceFailedError (it took too long); in ZooKeeper
        DuplicateConsumerIdError, ForeignMemberError, ZooKeeperError; in Kafka
        UnsupportedBrokerError, BrokerError (the group refuses, or a topic is not authorized). If
        there is another reason why nothing can be assigned, ``health`` names it. The call returns
        within 60 s plus twice the session timeout, even if no server answers. In Kafka it returns
        within 60 s plus ``max.poll.interval.ms``. After an error the connector is shut down (not in
        the ``scala`` profile). If that fails as well, a note is added to the error.
        """
        check_topic_counts(topic_count_map)
        streams = {
            topic: [self._make_stream(key_decoder, value_decoder) for _ in range(count)]
            for topic, count in topic_count_map.items()
        }
        by_topic: dict[str | None, Sequence[Reader]] = {}
        by_topic.update(streams.items())
        self._join(Subscription(Pattern.STATIC, dict(topic_count_map)), by_topic)
        return {topic: [KafkaStream(each) for each in group] for topic, group in streams.items()}

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        num_streams: int = 1,
        key_decoder: Decode = bytes_decoder,
        value_decoder: Decode = bytes_decoder,
    ) -> list[KafkaStream]:
        """Join the group with all topics that ``Whitelist(..)`` or ``Blacklist(..)`` allows.

        Each of the ``num_streams`` streams gets its share of every topic, including topics that are
        created later. In ZooKeeper a watch reports new topics. In a group on the brokers, the
        member looks for new topics every ``metadata.max.age.ms`` (30 s), another name for
        ``zkconsumer.reread.interval.ms``. Raises the same errors as ``create_message_streams``.
        """
        if not isinstance(num_streams, int) or not 1 <= num_streams <= 1000:
            raise ConfigError([f"the number of streams must be 1 to 1000, not {num_streams!r}"])
        streams = [self._make_stream(key_decoder, value_decoder) for _ in range(num_streams)]
        self._join(
            Subscription(topic_filter.pattern, {topic_filter.regex: num_streams}), {None: streams}
        )
        return [KafkaStream(each) for each in streams]

    def set_consumer_rebalance_listener(self, listener: GroupListener) -> None:
        """Call ``listener`` in rebalances. Must be called before streams are created.

        The listener has the methods of ``ConsumerRebalanceListener``. For a group on the brokers it
        may have ``on_partitions_revoked``, ``on_partitions_assigned`` and ``on_partitions_lost``,
        in addition or instead.

        Raises StreamsAlreadyCreatedError, ConnectorClosedError.
        """
        self._check_here()
        with self._lock:
            self._check_unused()
            self._listener = listener

    def _listener_calls(self, newer: bool) -> ListenerCalls | None:
        if self._listener is None:
            return None
        from zkconsumer.runtime.membership.listener import ListenerCalls

        self._calls = ListenerCalls(self._listener, self.consumer_id, newer, self._host)
        return self._calls

    def _after_fork(self) -> None:
        """Refuse every call in a forked child process. The member's threads continue in the
        parent only, and its locks may stay locked in the child."""
        self._forked = ConnectorClosedError(
            "the connector was created before this process was forked, and works only in the "
            "parent process: create a connector in the process that uses it"
        )
        if self._plane is not None:
            self._plane.after_fork(self._forked)

    def _check_here(self) -> None:
        if self._forked is not None:
            raise self._forked.with_traceback(None)

    def _check_unused(self) -> None:
        if self._closed:
            raise ConnectorClosedError("the connector is shut down: create a new one")
        if self._loop is not None:
            raise StreamsAlreadyCreatedError(
                "this connector already has its streams: create another connector"
            )

    def _make_stream(self, key_decoder: Decode, value_decoder: Decode) -> Reader:
        return self._reader(
            self._gate,
            queue_capacity=self.config.queued_max_message_chunks,
            timeout_ms=self.config.consumer_timeout_ms,
            key_decoder=key_decoder,
            value_decoder=value_decoder,
        )

    def _join(
        self, subscription: Subscription, streams: Mapping[str | None, Sequence[Reader]]
    ) -> None:
        self._check_here()
        with self._lock:
            self._check_unused()
            try:
                self._open_journal()
                loop = self._begin(subscription, streams)
            except BaseException as error:
                # A member that is made in part would keep threads and files.
                if self._plane is not None or not isinstance(error, ConfigError):
                    self._closed = True
                    self._undo()
                raise
        self._await_start(loop)

    def _undo(self) -> None:
        """Stop everything that was created for a member that does not start."""
        if self._watchdog is not None:
            self._watchdog.end()
        loop, plane, seconds = self._loop, self._plane, _FAILED_START_LEAVE / 2
        steps: list[Callable[[], object]] = []
        if loop is not None:
            steps.append(lambda: loop.give_up("the member could not begin", seconds))
        else:
            if plane is not None:
                steps.append(lambda: plane.close(seconds))
            steps.append(lambda: self._abandon(seconds))
        if self._own_journal is not None:
            steps.append(self._own_journal.close)
        for step in steps:
            try:
                step()
            except Exception:
                logger.warning("while ending a member that could not begin", exc_info=True)
        self._loop = self._plane = self._monitor = None

    def _begin(
        self, subscription: Subscription, streams: Mapping[str | None, Sequence[Reader]]
    ) -> MemberLoop[MachineT]:
        keys = self.config
        manager = ConsumerFetcherManager(keys, keys.client_id, self._on_fetch_event, self._security)
        aside = self._host.aside
        self._plane = DataPlane(
            manager,
            streams,
            keys.release_wait_ms / 1000,
            when_stopped=lambda stopping, done: aside(lambda: done(stopping())),
        )
        self._host.every(_SAMPLE_INTERVAL, self._plane.measure)
        every = [stream for group in streams.values() for stream in group]
        self._loop = self._member(subscription, every, self._plane, manager)
        self._monitor = self._make_monitor(self._loop, self._plane, every)
        self._checks += [manager.check, self._gate.look, self._monitor.look]
        if self._own_journal is not None:
            self._checks.append(self._own_journal.check)
        self._watchdog = Watchdog(
            f"{self.consumer_id}_watchdog", self._host, self._loop, self._checks
        )
        self._host.every(WATCHDOG_PERIOD, self._watchdog.start)
        if self._closed:  # by a signal handler
            raise ConnectorClosedError("the connector was shut down")
        self._host.start(self._loop)
        self._watchdog.start()
        return self._loop

    def _make_loop(
        self,
        plane: DataPlane,
        machine: MachineT,
        coordination: Coordination[MachineT],
        rebalances: RebalanceCounts,
        observer: Any,
    ) -> MemberLoop[MachineT]:
        """Return the loop of ``machine``. ``observer``: for a journal; ``None`` without one."""
        keys = self.config
        return MemberLoop(
            self.consumer_id,
            machine,
            coordination,
            plane,
            self._gate,
            self._host,
            self._calls,
            auto_commit_interval=(
                keys.auto_commit_interval_ms / 1000 if keys.auto_commit_enable else None
            ),
            rebalances=rebalances,
            observer=observer,
        )

    def _await_start(self, loop: MemberLoop[MachineT]) -> None:
        to_leave = min(_FAILED_START_LEAVE, self._start_patience / 4)
        patience = self._start_patience - to_leave
        error: ZkConsumerError | None
        leave = self._leaves_if_refused
        try:
            starting = Undisturbed(
                lambda: self._started(loop, patience), f"{self.consumer_id}_start"
            )
            starting.start()
            starting.wait()
            error = start_error(starting.result())
        except FutureTimeoutError:
            leave = True
            error = RebalanceFailedError(
                f"the first rebalance did not end within {patience:g} s: check {self._servers}"
            )
        except ZkConsumerError as failed:
            error = failed
        if error is None:
            return
        if leave:
            try:
                self.shutdown(timeout=to_leave)
            except CommitFailedError as failed:
                error.add_note(f"and leaving the group failed: {failed}")
        raise error

    def _started(self, loop: MemberLoop[MachineT], patience: float) -> AnswerStart:
        """Wait for the first rebalance, and log warnings about what the member waits for."""
        begun = time.monotonic()
        while True:
            left = begun + patience - time.monotonic()
            try:
                return loop.started.result(max(0.0, min(left, START_WARNING)))
            except FutureTimeoutError:
                if loop.started.done() or left <= START_WARNING:
                    raise
            fault = self._last_fault()
            logger.warning(
                "no partitions assigned to this member of group %s after %.0f s: it waits for %s%s",
                self.config.group_id,
                time.monotonic() - begun,
                self._servers,
                f"; the last request failed: {fault}" if fault else "",
            )

    def _last_fault(self) -> str:
        """Return why the latest request to the servers failed; empty if it did not, or unknown."""
        return ""

    # -- offsets -------------------------------------------------------------------------------

    def commit_offsets(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the consumed offsets, or the given ones.

        Args:
            offsets: for each partition, the next offset to read. The member must own the
                partitions. In ZooKeeper an offset must not be lower than the stored one.

        Raises CommitFailedError naming each partition that is not stored and why, ConfigError,
        UsageError, ConnectorClosedError.

        The call returns within 10 s plus twice the session timeout, even if no server answers. With
        offsets in Kafka, the deadline of a request to the offset coordinator is added. If no answer
        has arrived by then, the offsets may or may not be stored.
        """
        self._check_here()
        committing = Undisturbed(lambda: self._commit(offsets))
        committing.start()
        self._wait_for(committing)
        committing.result()

    def _commit(self, offsets: Mapping[TopicPartition, int] | None) -> None:
        future = self._ask_commit(offsets)
        try:
            faults = future.result(self._answer_patience + _ANSWER_MARGIN)
        except FutureTimeoutError:
            raise CommitFailedError(self._no_answer) from None
        # DEVIATION-18: the JVM's commitOffsets never raises.
        _check(faults)

    def _wait_for(self, work: Undisturbed[Any], seconds: float | None = None) -> None:
        """Wait for other threads. They may need locks of a thread that runs a signal handler."""
        lent = lend(self._lock) + (self._plane.lend() if self._plane is not None else [])
        try:
            work.wait(seconds)
        finally:
            for restore in lent:
                restore()

    def commit_offsets_async(
        self,
        offsets: Mapping[TopicPartition, int] | None = None,
        callback: Callable[[CommitFailedError | None], object] | None = None,
    ) -> None:
        """Commit like ``commit_offsets``, without waiting. ``callback`` gets the error, or
        ``None``.

        The callback runs on the member's own thread and must not wait for this connector. It is
        called exactly once, within the time that ``commit_offsets`` may take.
        """
        future = self._ask_commit(offsets)
        if callback is not None:
            future.add_done_callback(lambda done: callback(commit_error(done.result())))

    def _ask_commit(self, offsets: Mapping[TopicPartition, int] | None) -> Future[tuple[str, ...]]:
        loop, plane = self._loop, self._plane
        self._check_here()
        if self._closed:
            raise ConnectorClosedError("the connector is shut down")
        if loop is None or plane is None:
            raise UsageError("there is nothing to commit before streams are created")
        limit = self._answer_patience, self._no_answer
        if offsets is None:
            return loop.commit(plane.positions(), False, limit)
        return loop.commit(checked_offsets(offsets), True, limit)

    @property
    def _no_answer(self) -> str:
        return f"no answer from {self._servers} in {self._answer_patience:g} s"

    # -- the end -------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._closed

    def shutdown(self, timeout: float | None = None) -> None:
        """Leave the group: stop, commit (with auto-commit), release, deregister. Idempotent.

        The rebalance listener may call this method. The listener is then not called again.

        A static member in Kafka does not leave the group, so that it can return within
        ``session.timeout.ms``.

        Args:
            timeout: seconds that the call may take, even if no server answers. Steps that are not
                finished by then are abandoned. The default is the session timeout plus 5 s. With
                offsets in Kafka, the deadline of the offset coordinator is added.

        A signal handler may call this method. If an exception of a signal handler ends a call, the
        member leaves in the background, and another call waits until it has left.

        Raises CommitFailedError if the last commit failed; the member has left anyway. Raises
        ConnectorFailedError if a fault inside the connector ended its membership earlier. Raises
        ConnectorClosedError in a forked process; the member of the parent process remains.
        """
        self._shutdown(timeout, threading.get_ident())

    def _shutdown(self, timeout: float | None, thread: int) -> None:
        self._check_here()
        seconds = self._leave_patience if timeout is None else timeout
        in_listener = self._calls is not None and self._calls.thread == thread
        leaving: Undisturbed[None] = Undisturbed(
            lambda: self._end(seconds, thread, in_listener), f"{self.consumer_id}_shutdown"
        )
        first = self.__dict__.setdefault("_leaving", leaving)  # one step
        self._closed = True
        first.start()
        if first is leaving:
            self._wait_for(first)
        elif not (in_listener or self._host.is_this_thread):  # they are waited for
            self._wait_for(first, seconds)
        if first.over:
            first.result()

    def _end(self, timeout: float, thread: int, in_listener: bool) -> None:
        with self._lock:  # streams that are being created are complete before they are closed
            pass
        try:
            self._leave(timeout, thread, in_listener)
        finally:
            if self._watchdog is not None:
                self._watchdog.end()
            if self._own_journal is not None:
                self._own_journal.close()

    def _leave(self, timeout: float, thread: int, in_listener: bool) -> None:
        deadline = time.monotonic() + timeout
        loop, plane = self._loop, self._plane
        if loop is None or plane is None:
            self._abandon(timeout)
            return
        plane.let_go(thread)
        loop.post(events.CloseRequested(in_listener))
        try:
            # The rest is for ending without an answer.
            faults = loop.closed.result(timeout - min(1.0, timeout / 4))
        except FutureTimeoutError:
            loop.give_up(f"no answer from {self._servers}", deadline - time.monotonic())
            raise CommitFailedError(
                f"shutdown did not end within {timeout:g} s: no answer from {self._servers}; "
                "offsets since the last commit are not stored"
            ) from None
        self._host.join(max(0.0, deadline - time.monotonic()))
        _check(faults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        self._exit(exc, threading.get_ident())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: Any, exc: BaseException | None, _traceback: Any) -> None:
        from asyncio import to_thread

        await to_thread(self._exit, exc, threading.get_ident())

    def _exit(self, exc: BaseException | None, thread: int) -> None:
        try:
            self._shutdown(None, thread)
        except (CommitFailedError, ConnectorFailedError) as error:
            if exc is None:
                raise
            exc.add_note(f"and the last commit failed: {error}")
        except ConnectorClosedError:
            if exc is None:
                raise  # in a forked process, which otherwise ends with its own error


def _check(faults: tuple[str, ...]) -> None:
    error = commit_error(faults)
    if error is not None:
        raise error
