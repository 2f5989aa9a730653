"""Troubles that simulated groups of every kind have, and how one is drawn at random.

A scenario adds its own. Everything runs inside kernel events.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tests.sim.runs.cluster import SimCluster
from zkconsumer.sim.kernel import Kernel
from zkconsumer.sim.members.group_member import Brokers
from zkconsumer.sim.members.process import SimProcess
from zkconsumer.sim.members.zookeeper import ZkProcess
from zkconsumer.sim.servers.zk import FakeZk, SessionState

MemberT = TypeVar("MemberT", bound=SimProcess[Any])
ZkMemberT = TypeVar("ZkMemberT", bound=ZkProcess[Any])


class Troubles(ABC, Generic[MemberT]):
    """The random troubles of one run.

    ``kinds`` has the weight, the name and the action of each; a scenario sets it, ``session`` (the
    timeout of members, seconds) and ``history``. ``counts``: how often each has happened.
    ``quiet_from``: when the last one is over.
    """

    kinds: list[tuple[int, str, Callable[[], object]]]
    session: float

    def __init__(self, kernel: Kernel, rng: random.Random) -> None:
        self.kernel = kernel
        self.rng = rng
        self.history: list[str] | None = None
        self.counts: dict[str, int] = {}
        self.quiet_from = 0.0

    @property
    @abstractmethod
    def live(self) -> list[MemberT]:
        """Members that run, and that troubles happen to."""

    @property
    def everyone(self) -> list[Any]:
        """All running members, whatever their kind."""
        return self.live

    def say(self, text: str) -> None:
        """Note a line for the history."""
        if self.history is not None:
            self.history.append(f"{self.kernel.now_us} {text}")

    def strike(self) -> None:
        """One trouble, drawn at random."""
        weights = [weight for weight, _, _ in self.kinds]
        _, name, action = self.rng.choices(self.kinds, weights)[0]
        self.counts[name] = self.counts.get(name, 0) + 1
        self.lasts(0)
        self.say(f"trouble: {name}")
        action()

    def lasts(self, seconds: float) -> None:
        """The current fault ends after ``seconds``."""
        self.quiet_from = max(self.quiet_from, self.kernel.now + seconds)

    def _any(self) -> MemberT | None:
        live = self.live
        return self.rng.choice(live) if live else None

    def _anyone(self) -> SimProcess[Any] | None:
        everyone = self.everyone
        return self.rng.choice(everyone) if everyone else None

    def leave(self) -> None:
        """A member leaves in order."""
        member = self._any()
        if member is not None and len(self.live) > 1:
            member.close()

    def crash(self) -> None:
        """A member's process dies."""
        member = self._any()
        if member is not None and len(self.live) > 1:
            member.crash()

    def fault(self) -> None:
        """A fault in a member's own code: it leaves, and its program ends."""
        member = self._any()
        if member is not None and len(self.live) > 1:
            member.fail()

    def pause(self) -> None:
        """A process is suspended for a while."""
        member = self._anyone()
        if member is not None:
            seconds = self.session * self.rng.choice([0.2, 0.9, 1.5, 2.5])
            member.pause(seconds)
            self.lasts(seconds)

    def commit(self) -> None:
        """An application commits its consumed messages."""
        member = self._anyone()
        if member is not None and not member.paused:
            member.commit()


class ZooKeeperTroubles(Troubles[ZkMemberT]):
    """Faults of members with a session in ``zk``."""

    zk: FakeZk

    def expire(self) -> None:
        """A session ends at the server, which cuts the connection.

        Never of a member that is cut off already: the server does that only after the timeout,
        and the lease relies on it.
        """
        member = self._any()
        if member is not None and member.client.state is SessionState.CONNECTED:
            member.client.expire()

    def disconnect(self) -> None:
        """A connection to ZooKeeper breaks, with requests and answers in flight.

        Not while a client has not learnt yet that its session was ended early (``expire``).
        """
        member = self._any()
        if member is not None and self.zk.session_alive(member.client.session_id):
            seconds = self.rng.choice([0.01, 0.3, self.session * 0.8, self.session * 1.5])
            member.client.disconnect(seconds)
            self.lasts(seconds)


class CoordinatorTroubles(Troubles[MemberT]):
    """Those of a group whose coordinator is one of ``brokers``, in ``cluster``."""

    cluster: SimCluster
    brokers: Brokers

    def kill_coordinator(self) -> None:
        """The coordinator's broker dies; the other one takes over."""
        seconds = self.rng.choice([0.5, 4.0])
        self.cluster.stop_broker(self.brokers.home, seconds)
        self.brokers.fail_over(seconds, self.rng.choice([0.05, 2.0]))
        self.lasts(seconds + 2.0)

    def move_coordinator(self) -> None:
        """Another broker becomes coordinator; the previous one keeps running."""
        self.brokers.fail_over(0.1, self.rng.choice([0.05, 2.0]), dies=False)
        self.lasts(2.1)


__all__ = ["CoordinatorTroubles", "Troubles", "ZooKeeperTroubles"]
