"""An operator in a simulation, who runs commands of ``zkmigrate`` on one group and may die at any
point.

The commands are those that are shipped; only who carries their requests out is replaced. Everything
runs inside kernel events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from zkmigrate.apply.live import (
    Afresh,
    Begin,
    EndMirror,
    FetchOffsets,
    FindHidden,
    ListMembers,
    LiveMove,
    LiveScript,
    Wait,
)
from zkmigrate.apply.outcome import Result
from zkmigrate.commands.live import STAGES as LIVE_STAGES
from zkmigrate.commands.steps import COMPLETE, LOCK, UNLOCK, Stage
from zkmigrate.commands.undo import LIVE_BACK

from zkconsumer.core.zookeeper.ops import Code, Failed, Multi
from zkconsumer.core.zookeeper.scripts.common import Refused, SessionGone
from zkconsumer.errors import ZkConsumerError
from zkconsumer.sim.members.group_member import Brokers
from zkconsumer.sim.runs.world import GROUP
from zkconsumer.sim.servers.zk import FakeZk, SessionState

COMMANDS: Final = {
    **LIVE_STAGES,
    "complete": COMPLETE,
    "lock": LOCK,
    "unlock": UNLOCK,
    "undo": LIVE_BACK,
}
"""All commands that move a running group, by name."""


class _Stored(NamedTuple):
    offset: int


class SimOperator:
    """One run of commands, one after the other, until one of them is refused.

    Args:
        zk: the ensemble.
        brokers: with the group's coordinator.
        commands: their names.
        wait: seconds at each gate.
        say: takes a line for the history.
        requests: it dies before the next one; ``None``: not by itself.
    """

    def __init__(
        self,
        zk: FakeZk,
        brokers: Brokers,
        commands: Sequence[str],
        wait: float,
        say: Callable[[str], object],
        requests: int | None = None,
    ) -> None:
        self.alive = True
        self.reached = False
        """Whether all commands have succeeded."""
        self.why = ""
        """The reasons when one has failed."""
        self.said: list[str] = []
        """Its lines for the history."""
        self._kernel = zk.kernel
        self._brokers = brokers
        self._note = say
        self._left = requests
        self._until = 0.0
        self._lost = False
        """Whether the session of the current requests has ended."""
        self._losses = self._known_losses = 0
        """Of the connection, and before the oldest read on which a write depends."""
        self._steps = self._run([COMMANDS[name] for name in commands], wait)
        self._client = zk.connect(10.0, lambda event: None, self._changed, synced=True)
        self._step(None)

    def crash(self) -> None:
        """The process is killed; requests in flight may still be carried out."""
        self.alive = False
        self._client.kill()
        self._say("killed")

    def stall(self, seconds: float) -> None:
        """The process is suspended for this long."""
        self._until = max(self._until, self._kernel.now + seconds)

    def cut(self, seconds: float) -> None:
        """Its connection to ZooKeeper breaks, with the requests in flight."""
        self._client.disconnect(seconds)

    def _say(self, text: str) -> None:
        self.said.append(text)
        self._note(text)

    def _run(self, stages: Sequence[Stage], wait: float) -> LiveScript[Result]:
        move = LiveMove(GROUP, wait, self._say, lambda: self._kernel.now)
        for stage in stages:
            result = yield from stage.on_group(move, True, True)
            if not result.outcome.good:
                break
        return result

    def _changed(self, state: SessionState, _session: int) -> None:
        self._lost |= state is SessionState.LOST
        self._losses += state is not SessionState.CONNECTED

    def _end(self, why: str) -> None:
        self.why, self.reached, self.alive = why, not why, False
        self._say(f"gives up: {why}" if why else "is done")
        self._client.kill()

    def _step(self, reply: Any) -> None:
        if not self.alive:
            return
        if self._until > self._kernel.now:
            self._kernel.schedule(self._until - self._kernel.now + 1e-6, lambda: self._step(reply))
            return
        try:
            request = self._steps.send(reply)
        except StopIteration as end:
            self._end("" if end.value.outcome.good else end.value.why)
            return
        except (SessionGone, Refused, ZkConsumerError) as error:
            self._end(str(error) or "the session has ended")
            return
        if self._left == 0:
            self.crash()
            return
        self._left = self._left and self._left - 1
        match request:
            case Begin():
                self._step(None)
            case Afresh():
                self._known_losses = self._losses
                self._step(None)
            case FetchOffsets():
                self._ask(lambda: {tp: _Stored(n) for tp, n in self._group.offsets.items()})
            case ListMembers():
                self._ask(lambda: tuple(f"a client ({name})" for name in self._group.seats))
            case FindHidden():
                self._ask(frozenset)
            case EndMirror():
                raise AssertionError("no group is mirrored here")
            case Wait(seconds):
                self._lost = False
                self._kernel.schedule(seconds, lambda: self._step(False))
            case _ if self._lost:
                self._kernel.schedule(0, lambda: self._step(Failed(Code.SESSION_EXPIRED)))
            case Multi() if self._known_losses != self._losses:
                self._known_losses = self._losses
                self._kernel.schedule(0, lambda: self._step(Failed(Code.CONNECTION_LOSS)))
            case _:
                self._client.submit(request, self._step, resumed=self._client.resumed)

    @property
    def _group(self) -> Any:
        return self._brokers.group

    def _ask(self, find: Callable[[], object]) -> None:
        """Make a round trip to the coordinator; wait while there is none."""
        self._lost = False  # the next request to ZooKeeper belongs to the session of its time
        trip = 0.001 + 0.004 * self._kernel.rng.random()

        def arrive() -> None:
            if self.alive and (self._brokers.down or self._group.loading):
                self._kernel.schedule(0.1, arrive)
                return
            found = find()
            self._kernel.schedule(trip, lambda: self._step(found))

        self._kernel.schedule(trip, arrive)


__all__ = ["COMMANDS", "SimOperator"]
