"""The servers of a mirrored group in a simulation, as ``zkmigrate`` reaches them.

ZooKeeper is that of ``zkconsumer.sim``. The coordinator has what matters to a mirror: offsets with
metadata, members, and that it refuses commits of others while it has members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from zkmigrate.model import TopicState
from zkmigrate.stores.sessions import Stores

from tests.sim.runs.sim_thread import Go, SimThread
from zkconsumer.broker.groups.coordinator_calls import Answered, StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Code, Failed, Multi, Reply
from zkconsumer.core.zookeeper.scripts.common import (
    Refused,
    Script,
    SessionGone,
    read_many,
)
from zkconsumer.core.zookeeper.znodes import decode_topic, topic_path
from zkconsumer.errors import (
    BrokerError,
    GroupActiveError,
    LeaderUnavailableError,
    SessionExpiredError,
    ZkUnavailableError,
)
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.servers.zk import FakeZk, SessionState, WatchEvent
from zkconsumer.zk.blocking import refusal

T = TypeVar("T")
Offsets = Mapping[TopicPartition, StoredOffset]
SESSION: Final = 6.0
"""Seconds: the session timeout of everyone, in ZooKeeper and at the coordinator."""
_PATIENCE: Final = 4.0
"""Seconds that a coordinator has for an answer."""
_ANSWER_S: Final = 1.0
"""Seconds after which a lost answer is noticed."""


class Coordinator:
    """The group's coordinator. ``on_change`` is called with each change of an offset: who made it,
    the partition, and the offset before and after. ``who`` is ``None`` for members, and for
    retention."""

    def __init__(self, kernel: Kernel) -> None:
        self.offsets: dict[TopicPartition, StoredOffset] = {}
        self.joined: set[str] = set()
        self.away_until = 0.0
        self.loses = 0.0
        """The probability that an answer is lost."""
        self.had_members_at = -1.0
        self.on_change: Callable[[SimThread | None, TopicPartition, Any, Any], object]
        self._kernel = kernel

    @property
    def away(self) -> bool:
        """Whether no broker is the coordinator now, or it still reads the group."""
        return self._kernel.now < self.away_until

    def join(self, name: str) -> None:
        """A member joins."""
        self.joined.add(name)

    def leave(self, name: str) -> None:
        """A member leaves, or its session ends."""
        self.joined.discard(name)
        self.had_members_at = self._kernel.now

    def store(
        self, who: SimThread | None, new: Mapping[TopicPartition, StoredOffset | None]
    ) -> None:
        """Store offsets, or delete them."""
        for tp, one in sorted(new.items()):
            self.on_change(who, tp, self.offsets.get(tp), one)
            if one is None:
                self.offsets.pop(tp, None)
            else:
                self.offsets[tp] = one


class SimZk:
    """One process's session with ZooKeeper; carries out scripts as ``BlockingZk`` does."""

    live = True

    def __init__(self, zk: FakeZk, opened: Callable[[int], object]) -> None:
        self._opened = opened
        self._fired: set[str | None] = set()
        self.losses = 0
        self.client = zk.connect(SESSION, self._watched, self._changed, synced=True)

    def fired(self) -> set[str] | None:
        """See ``BlockingZk``."""
        fired, self._fired = self._fired, set()
        return None if None in fired else {path for path in fired if path is not None}

    def run(self, script: Script[T]) -> T:
        """See ``BlockingZk``."""
        thread = SimThread.current
        reply: Reply | None = None
        for _ in range(40):
            if self.client.session_id and self.client.state is not SessionState.LOST:
                break
            thread.sleep(0.1)
        else:
            raise ZkUnavailableError("ZooKeeper does not answer")
        session, resumed = self.client.session_id, self.client.resumed
        try:
            while True:
                try:
                    op = next(script) if reply is None else script.send(reply)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                if self.client.session_id != session:
                    reply = Failed(Code.SESSION_EXPIRED)
                else:
                    thread.slept = False
                    reply = thread.wait(partial(self.client.submit, op, resumed=resumed))
                    if isinstance(op, Multi) and reply == Failed(Code.CONNECTION_LOSS):
                        resumed = self.client.resumed
        except SessionGone:
            raise SessionExpiredError("the session with ZooKeeper ended: run it again") from None
        except Refused as refused:
            raise refusal(refused) from None

    def run_all(self, scripts: Iterable[Script[T]]) -> Iterator[T]:
        """See ``BlockingZk``. One at a time."""
        return map(self.run, scripts)

    def _watched(self, event: WatchEvent) -> None:
        self._fired.add(event.path)

    def _changed(self, state: SessionState, session: int) -> None:
        if state is SessionState.CONNECTED:
            self._opened(session)
        else:
            self._fired.add(None)
            self.losses += 1


class SimKafka:
    """One process's connections to the coordinator."""

    def __init__(self, kernel: Kernel, coordinator: Coordinator) -> None:
        self._kernel = kernel
        self._at = coordinator

    def members(self, _group: str) -> tuple[str, ...]:
        """See ``GroupCoordinators``."""
        return self._ask(lambda: tuple(sorted(self._at.joined)))  # type: ignore[no-any-return]

    def members_of(self, groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """See ``GroupCoordinators``."""
        return {group: self.members(group) for group in groups}

    def fetch(self, _group: str, _partitions: object) -> dict[TopicPartition, StoredOffset]:
        """See ``GroupCoordinators``."""
        return self._ask(lambda: dict(self._at.offsets))  # type: ignore[no-any-return]

    def fetch_several(
        self, groups: Iterable[str], _before: object = None, only: object = None
    ) -> dict[tuple[str, ...], Answered]:
        """See ``GroupCoordinators``."""
        some = tuple(groups)
        with suppress(BrokerError):
            return {some: Answered(b"", {group: self.fetch(group, ()) for group in some})}
        return {}

    def tells_all(self, _group: str) -> bool:
        """See ``GroupCoordinators``."""
        return True

    def commit(
        self, group: str, new: Offsets, permit: Callable[[], object] = lambda: None
    ) -> dict[TopicPartition, BrokerError]:
        """See ``GroupCoordinators``."""
        self._ask(partial(self._store, SimThread.current, group, new), permit)
        return {}

    def commit_several(
        self, offsets: Mapping[str, Offsets], permit: Callable[[], bool]
    ) -> set[str]:
        """See ``GroupCoordinators``. One at a time, each sent once."""
        stored: set[str] = set()
        for group, new in offsets.items():
            store = partial(self._store, SimThread.current, group, new)
            with suppress(BrokerError, GroupActiveError):
                if permit():
                    self._ask(store, patience=0.0)
                    stored.add(group)
        return stored

    def delete(
        self,
        group: str,
        gone: Iterable[TopicPartition],
        permit: Callable[[], object] = lambda: None,
    ) -> dict[TopicPartition, BrokerError]:
        """See ``GroupCoordinators``."""
        self._ask(partial(self._store, SimThread.current, group, dict.fromkeys(gone)), permit)
        return {}

    def _store(
        self,
        who: SimThread,
        group: str,
        new: Mapping[TopicPartition, StoredOffset | None],
    ) -> None:
        if new and self._at.joined:
            raise GroupActiveError(f"consumers have joined group {group}")
        self._at.store(who, new)

    def _ask(
        self,
        act: Callable[[], Any],
        permit: Callable[[], object] = lambda: None,
        patience: float = _PATIENCE,
    ) -> Any:
        """Ask until there is an answer. What was asked may have happened before."""
        rng, thread, kernel = self._kernel.rng, SimThread.current, self._kernel
        lost = LeaderUnavailableError("the coordinator does not answer")

        def send(go: Go) -> None:
            kernel.schedule(0.001 + 0.004 * rng.random(), lambda: arrive(go))

        def arrive(go: Go) -> None:
            if self._at.away:
                kernel.schedule(0.2, lambda: go(lost))
                return
            try:
                answer = act()
            except GroupActiveError as error:
                answer = error
            if rng.random() < self._at.loses:
                kernel.schedule(_ANSWER_S, lambda: go(lost))
            else:
                kernel.schedule(0.001 + 0.004 * rng.random(), lambda: go(answer))

        deadline = kernel.now + patience
        while True:
            permit()
            answer = thread.wait(send)
            if answer is not lost:
                break
            if kernel.now >= deadline:
                raise lost
        if isinstance(answer, GroupActiveError):
            raise answer
        return answer


class SimLogs:
    """The topics, as ``zkmigrate`` reads them."""

    unreadable: Final[dict[str, str]] = {}

    def __init__(self, zk: SimZk) -> None:
        self._zk = zk

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        """See ``Logs``."""
        paths = {name: topic_path(name) for name in sorted(names)}
        nodes = self._zk.run(read_many(paths.values()))
        return {
            name: TopicState(node.stat.czxid, decode_topic(path, node.data))
            for (name, path), node in zip(paths.items(), nodes, strict=True)
            if node is not None
        }

    def of(self, names: Collection[str]) -> tuple[dict[str, TopicState], dict[Any, Any]]:
        """See ``Logs``. No log has a range."""
        return self.topics(names), {}

    def past_ends(self, _offsets: object) -> None:
        """See ``Logs``."""


class SimStores:
    """Both stores, as ``Mirroring`` uses them."""

    def __init__(self, zk: SimZk, kafka: SimKafka) -> None:
        self.zk, self.kafka, self.logs = zk, kafka, SimLogs(zk)

    def beside(self) -> SimStores:
        """See ``Stores``. The same connections, which are never closed."""
        return self

    def fetch(self, group: str, known: object) -> dict[TopicPartition, StoredOffset]:
        """See ``Stores``."""
        return self.kafka.fetch(group, known)

    fetch_each = Stores.fetch_each

    def retention(self) -> SimpleNamespace:
        """See ``Stores``. Half a minute, so that offsets are committed again within a run."""
        return SimpleNamespace(minutes=0.5)

    def hidden_topics(self, _also: object = ()) -> frozenset[str]:
        """See ``Stores``."""
        return frozenset()

    def on_wait(self, _what: str) -> None:
        """See ``Stores``."""


__all__ = ["SESSION", "Coordinator", "SimKafka", "SimStores", "SimZk"]
