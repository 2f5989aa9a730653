"""LiveMember: one migratable member: two machines, and one that decides between them.

Events in, commands out, like every machine; one ``MemberLoop`` runs it. The ZooKeeper side holds
and delivers partitions, in every mode. The coordinator's side is a member that fetches nothing: its
partitions are those that the mode lets the ZooKeeper side claim, and it releases one only after the
owner znode. The member's thread is the only caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from zkconsumer.core.common import commands, events
from zkconsumer.core.common.events import (
    CloseRequested,
    FetchingStarted,
    FetchingStopped,
    ListenerDone,
)
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.groups.states import ENDED
from zkconsumer.core.groups.strategies import Strategy
from zkconsumer.core.migration.commands import (
    AckStored,
    FromGroup,
    LiveRegistered,
    ModeLoaded,
    NeedGroup,
    OfferChanged,
    ReadMode,
    RulesChanged,
    StoreAck,
    TakenBack,
    ToGroup,
)
from zkconsumer.core.migration.group import LiveMembership
from zkconsumer.core.migration.machine import (
    Acknowledge,
    Acknowledged,
    GiveUp,
    Held,
    Join,
    Joined,
    Left,
    LiveMachine,
    ModeRead,
    SessionLost,
)
from zkconsumer.core.migration.modes import RULES, Follows, Mode, Offer, may_give_back
from zkconsumer.core.migration.rebalance import LiveRebalance
from zkconsumer.core.zookeeper import events as zk_events
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.view import Decision, MemberSpec

_GROUP: Final = "group:"
"""How the names of the coordinator's side's timers begin."""
_MODE, _ACK = "live:mode", "live:acknowledge"
_AGAIN: Final = 1.0
"""Seconds until what ZooKeeper has refused is tried again."""


class LiveMember:
    """One migratable member.

    Args:
        rebalance: the ZooKeeper side; it follows ``live``.
        group: the coordinator's side.
        live: decides between them.
        mode_path: the znode whose changes are followed.
        usual: strategies of the configuration, offered where plain consumers may join.
    """

    def __init__(
        self,
        rebalance: LiveRebalance,
        group: LiveMembership,
        live: LiveMachine,
        mode_path: str,
        usual: tuple[Strategy, ...],
    ) -> None:
        self.rebalance = rebalance
        self.group = group
        self.live = live
        self._mode_path = mode_path
        own = group.spec.strategies
        self._strategies: Mapping[Offer, tuple[Strategy, ...]] = {
            # The own one first: as long as all members know it, the group keeps its split.
            Offer.OWN: own,
            Offer.USUAL: own + usual,
        }
        self._todo: deque[Callable[[], object]] = deque()
        self._out: list[Any] = []
        self._place: tuple[Offer | None, frozenset[TopicPartition]] = (None, frozenset())
        self._giving_back: tuple[int, frozenset[TopicPartition]] | None = None
        self._rules: tuple[Any, ...] = ()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._needs_group = False
        self._ack: int | None = None
        self._noted = ""
        self._timers: dict[str, int] = {}
        self._timer_token = 0
        self._faults: tuple[str, ...] | None = None
        self._in_listener = False
        self.closing = False

    # -- what others read of it ------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the ZooKeeper side, which holds the partitions."""
        return self.rebalance.state

    @property
    def spec(self) -> MemberSpec:
        """The member in ZooKeeper."""
        return self.rebalance.spec

    @property
    def attempts(self) -> int:
        """See ``RebalanceMachine``."""
        return self.rebalance.attempts

    @property
    def held(self) -> Mapping[TopicPartition, Any]:
        """The partitions that this member owns."""
        return self.rebalance.held

    @property
    def blocked(self) -> Mapping[TopicPartition, str]:
        """See ``RebalanceMachine``."""
        return self.rebalance.blocked

    @property
    def blockers(self) -> Mapping[TopicPartition, int]:
        """See ``RebalanceMachine``."""
        return self.rebalance.blockers

    @property
    def failed_attempts(self) -> int:
        """See ``RebalanceMachine``."""
        return self.rebalance.failed_attempts

    @property
    def quarantined(self) -> Mapping[str, str]:
        """See ``RebalanceMachine``."""
        return self.rebalance.quarantined

    @property
    def doubtful(self) -> Mapping[str, str]:
        """See ``RebalanceMachine``."""
        return self.rebalance.doubtful

    @property
    def obstacle(self) -> str:
        """See ``RebalanceMachine``."""
        return self.rebalance.obstacle

    @property
    def registered(self) -> bool:
        """See ``RebalanceMachine``."""
        return self.rebalance.registered

    @property
    def decision(self) -> Decision:
        """See ``RebalanceMachine``."""
        return self.rebalance.decision

    # -- events ----------------------------------------------------------------------------------

    def on(self, event: Any) -> list[Any]:
        """Handle one event; return the resulting commands."""
        self._out = []
        self._take(event)
        self._settle()
        return self._out

    def _take(self, event: Any) -> None:
        match event:
            case FromGroup(inner):
                self._to_group(inner)
            case events.TimerFired(token, name) if name.startswith(_GROUP):
                self._to_group(events.TimerFired(token, name.removeprefix(_GROUP)))
            case events.TimerFired(token, name) if name in (_MODE, _ACK):
                if self._timers.get(name) == token:
                    self._again(name)
            case ModeLoaded():
                self._mode_loaded(event)
            case AckStored():
                self._ack_stored(event)
            case LiveRegistered(token, mode, version):
                self.live.acknowledged = None  # the znode is a new one
                self._to_live(ModeRead(mode, version))
                self._read_mode()  # its watch may have fired before this answer
                self._to_rebalance(zk_events.Registered(token))
            case zk_events.SessionLost():
                self._ack = None
                self._to_live(SessionLost())
                self._to_rebalance(event)
            case zk_events.SessionResumed():
                self._to_rebalance(event)
                self._read_mode()
            case zk_events.Changed(path) if path == self._mode_path:
                self._read_mode()
            case events.CloseRequested(in_listener):
                self.closing, self._in_listener = True, in_listener
                self._to_rebalance(event)
            case _:
                self._to_rebalance(event)

    def _settle(self) -> None:
        """Pass each machine's results to the others until no more follow."""
        while True:
            while self._todo:
                self._todo.popleft()()
            owned = self.rebalance.owned
            place = (self.group.offer, self.group.given)
            if place[0] is None:
                place = (None, frozenset())
            if owned != self._owned:
                self._owned = owned
                self._to_live(Held(owned))
            elif place != self._place:
                self._place = place
                offer, given = place
                # Whoever has left without releasing may have lost what it holds to others.
                self._to_live(Left(expelled=True) if offer is None else Joined(offer, given))
            elif (rules := self._rules_now()) != self._rules:
                self._rules = rules
                self._to_rebalance(RulesChanged())
            elif not self._give_back() and not self._acknowledge():
                return

    def _rules_now(self) -> tuple[Any, ...]:
        """What the ZooKeeper side's decision depends on, in addition to ZooKeeper."""
        live = self.live
        if live.mode is None:
            return ()
        if RULES[live.mode].follows is Follows.COORDINATOR:
            return live.mode, live.joined is None, live.assigned, live.giving_up
        return live.mode, RULES[live.mode].refusing and live.joined, live.giving_up

    def _give_back(self) -> bool:
        """Let the coordinator have partitions whose owner znodes are released."""
        if self._giving_back is None:
            return False
        token, partitions = self._giving_back
        mode = self.live.mode
        if partitions & self._owned and (
            mode is None or not may_give_back(mode, self.group.offer, owner=True)
        ):
            return False
        self._giving_back = None
        self._todo.append(lambda: self._to_group(FetchingStopped(token, {})))
        return True

    def _acknowledge(self) -> bool:
        live, group = self.live, self.group
        noted = group.generation < 0 or group.member_id == self._noted
        if self._ack is None and live.acknowledged is not None and not noted:
            self._ack = live.acknowledged  # tools look for the id on the coordinator
        if self._ack is None or not self.rebalance.registered or self.live.mode is None:
            return False
        version, self._ack = self._ack, None
        epoch = self.rebalance.registered_epoch
        self._noted = group.member_id
        self._out.append(StoreAck(version, epoch, group.member_id))
        return True

    # -- the mode --------------------------------------------------------------------------------

    def _read_mode(self) -> None:
        if self.live.mode is not None:  # otherwise the registration reads it
            self._out.append(ReadMode())

    def _mode_loaded(self, event: ModeLoaded) -> None:
        if self.live.mode is None:
            return
        if event.fault:
            self._out.append(commands.Report("refused", event.fault))
            self._timer(_MODE)
        else:
            self._to_live(ModeRead(event.mode, event.version))

    def _ack_stored(self, event: AckStored) -> None:
        if event.fault:
            self._out.append(commands.Report("refused", event.fault))
            self._timer(_ACK)
        else:
            self._to_live(Acknowledged(event.version))

    def _again(self, name: str) -> None:
        if name == _MODE:
            self._read_mode()
        elif self.live.mode is not None and self.live.acknowledged != self.live.version:
            self._ack = self.live.version

    def _timer(self, name: str) -> None:
        self._timer_token += 1
        self._timers[name] = self._timer_token
        self._out.append(commands.SetTimer(self._timer_token, name, _AGAIN))

    # -- the three machines ----------------------------------------------------------------------

    def _to_live(self, event: Any) -> None:
        before = self.live.mode
        following = self.live.on(event)
        needs = self.live.mode not in (None, Mode.ZOOKEEPER)
        if self.live.mode is not None and needs != self._needs_group:
            self._needs_group = needs
            self._out.append(NeedGroup(needs))
        if self.live.mode is not None and self.live.mode is not before:
            text = f"mode {self.live.mode.value}, version {self.live.version}"
            self._out.append(commands.Report("mode", text))
        taken = frozenset[TopicPartition]()
        for command in following:
            match command:
                case GiveUp(partitions, commit=False):
                    taken |= partitions
                case Join(offer):
                    changed = OfferChanged(offer, self._strategies[offer])
                    self._todo.append(partial(self._to_group, changed))
                case Acknowledge(version):
                    self._ack = version
        if self.live.mode is not None:
            # What may not be delivered and is not being given up orderly.
            taken |= self.live.held - self.live.delivered - self.live.giving_up
            if isinstance(event, Left) and self.live.mode is not Mode.ZOOKEEPER:
                taken |= self.live.held  # also what is being given up: others may have that by now
        if taken & self.rebalance.held.keys():
            self._todo.append(lambda: self._to_rebalance(TakenBack(taken)))

    def _to_rebalance(self, event: Any) -> None:
        for command in list(self.rebalance.on(event)):
            if isinstance(command, commands.Close):
                self._faults = command.faults
                if self.group.state in ENDED:
                    self._out.append(command)
                else:
                    closing = CloseRequested()
                    self._todo.append(partial(self._to_group, closing))
            else:
                self._out.append(command)

    def _to_group(self, event: Any) -> None:
        for command in list(self.group.on(event)):
            self._of_group(command)

    def _of_group(self, command: Any) -> None:
        """The commands of the coordinator's side: it fetches nothing and calls no listener."""
        answer: Any = None
        match command:
            case group_commands.FetchOffsets(token, partitions):
                answer = group_events.OffsetsFetched(token, dict.fromkeys(partitions))
            case commands.StopFetching(token, partitions):
                self._giving_back = (token, partitions)
            case commands.StartFetching(token, _):
                answer = FetchingStarted(token)
            case (
                commands.NotifyStarting(token, _)
                | commands.NotifyLost(token, _)
                | commands.NotifyReleasing(token, _, _)
            ):
                answer = ListenerDone(token)
            case commands.SetTimer(token, name, seconds, jitter):
                self._out.append(commands.SetTimer(token, _GROUP + name, seconds, jitter))
            case commands.Fail(code, text):
                if self.live.mode in (None, Mode.ZOOKEEPER):
                    text = f"{text}; the group cannot be moved while this member runs"
                    self._out.append(commands.Report("refused", text))
                else:
                    self._out.append(commands.Fail(code, text))
            case commands.Close():
                if self._faults is not None:
                    self._out.append(commands.Close(self._faults))
            case commands.Report():
                self._out.append(command)
            case (
                commands.Drop()
                | commands.Forget()
                | commands.SetBrokers()
                | commands.AnswerStart()
                | commands.AnswerCommit()
            ):
                pass
            case _:
                self._out.append(ToGroup(command))
        if answer is not None:
            self._todo.append(lambda: self._to_group(answer))
