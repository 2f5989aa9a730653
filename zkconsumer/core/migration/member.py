"""LiveMember: one migratable member, with two machines and one that decides between them.

Events in, commands out, like every machine; one ``MemberLoop`` runs it. The ZooKeeper side holds
and delivers partitions, in every mode. The coordinator's side is a member that fetches nothing.
Its partitions are those that the mode allows the ZooKeeper side to claim, and it releases each
only after the owner znode. The member's thread is the only caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from zkconsumer.core.groups.assignors.strategies import JoinOffer, OfferChanged, Strategy
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.spec import ClassicSpec
from zkconsumer.core.groups.states import ENDED
from zkconsumer.core.migration.commands import (
    AckStored,
    FromGroup,
    LiveRegistered,
    ModeLoaded,
    NeedGroup,
    ReadMode,
    StoreAck,
    ToGroup,
)
from zkconsumer.core.migration.machine import (
    NONE,
    Acknowledge,
    Acknowledged,
    ChangeClaims,
    Held,
    Join,
    Joined,
    Left,
    LiveMachine,
    ModeRead,
    Partitions,
    Registered,
    SessionLost,
    TakeBack,
)
from zkconsumer.core.migration.modes import RULES, Follows, Mode, Offer, may_give_back
from zkconsumer.core.zookeeper import events as zk_events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import State
from zkconsumer.core.zookeeper.view import Decision, GroupView, MemberSpec, decide


@dataclass(frozen=True, slots=True)
class LiveClaims:
    """A ``ClaimRule`` that uses the mode, from ``live``, and the coordinator's assignment, from
    ``group``."""

    spec: MemberSpec
    live: LiveMachine
    group: ClassicMachine

    def decide(self, view: GroupView, held: Mapping[TopicPartition, Claim]) -> Decision:
        """Implement ``ClaimRule.decide``."""
        mode = self.live.mode
        if mode is None:
            return Decision({}, {})
        if RULES[mode].follows is Follows.ZOOKEEPER:
            decision = decide(view, self.spec.consumer_id, self.spec.assignor)
            allowed = {tp: of for tp, of in decision.mine.items() if self.may_claim(tp)}
            return Decision(allowed, decision.assignment)
        assigned = {
            tp: held[tp].thread if tp in held else thread
            for tp, thread in self.group.held.items()
            if self.may_claim(tp)
        }
        return Decision(assigned, assigned)

    def may_claim(self, partition: TopicPartition) -> bool:
        """Implement ``ClaimRule.may_claim``."""
        return self.live.may_claim(partition)

    @property
    def stores_in_kafka(self) -> bool:
        """Implement ``ClaimRule.stores_in_kafka``. Without an offset in Kafka, an idle partition
        would prevent mode ``open``."""
        return self.spec.kafka_storage or self.live.mode not in (None, Mode.ZOOKEEPER)


KEPT_OUT: Final = (
    "the coordinator does not let this member join: a plain Kafka consumer is in the group (stop "
    "it), or another member has not seen the group's mode yet (this ends by itself)"
)
_GROUP: Final = "group:"
"""Prefix of the timer names of the coordinator's side."""
_MODE, _ACK = "live:mode", "live:acknowledge"
_AGAIN: Final = 1.0
"""Seconds until an operation that ZooKeeper refused is tried again."""


class LiveMember:
    """One migratable member: both sides and the machine that combines them.

    ``rebalance`` is the ZooKeeper side, ``group`` the coordinator's side; ``live`` decides between
    them.

    Args:
        spec: the member in ZooKeeper.
        group_spec: the member on the coordinator. Its strategies are those that only migratable
            members know.
        mode_path: the znode of the mode, which is watched.
        usual: the configured strategies, which are offered when plain consumers may join.
    """

    def __init__(
        self,
        spec: MemberSpec,
        group_spec: ClassicSpec,
        mode_path: str,
        usual: tuple[Strategy, ...],
    ) -> None:
        own = group_spec.strategies
        self._offers: Mapping[Offer, JoinOffer] = {
            # The own one first: as long as all members know it, the group keeps its split.
            Offer.OWN: JoinOffer(own, KEPT_OUT),
            Offer.USUAL: JoinOffer(own + usual, KEPT_OUT),
        }
        self.live = LiveMachine()
        self.group = ClassicMachine(group_spec, self._offers[Offer.OWN])
        self.rebalance = RebalanceMachine(spec, LiveClaims(spec, self.live, self.group))
        self._mode_path = mode_path
        self._todo: deque[Callable[[], object]] = deque()
        self._out: list[Any] = []
        self._place: tuple[Offer | None, Partitions] = (None, NONE)
        """The offer and assignment with which it is a member on the coordinator."""
        self._giving_back: tuple[int, Partitions] | None = None
        self._owned = NONE
        self._needs_group = False
        self._ack: int | None = None
        """Version of the mode that must be acknowledged in ZooKeeper."""
        self._noted = ""
        """The coordinator's member id in the acknowledgement."""
        self._reconnected = False
        """Whether the mode was not read since the connection was re-established."""
        self._timers: dict[str, int] = {}
        self._timer_token = 0
        self._faults: tuple[str, ...] | None = None
        """Offsets that were not stored when the ZooKeeper side ended, and why; ``None`` if it has
        not ended."""
        self.closing = False

    @property
    def state(self) -> State:
        """The state of the ZooKeeper side, which holds the partitions."""
        return self.rebalance.state

    # -- events ----------------------------------------------------------------------------------

    def on(self, event: Any) -> list[Any]:
        """Handle one event. Return the resulting commands."""
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
                self._to_live(Registered(mode, version))
                self._read_mode()  # its watch may have fired before this answer
                self._to_rebalance(zk_events.Registered(token))
            case zk_events.SessionLost():
                self._ack = None
                self._to_live(SessionLost())
                self._to_rebalance(event)
            case zk_events.SessionResumed():
                self._to_rebalance(event)
                self._reconnected = True
                self._read_mode()
            case zk_events.Changed(path) if path == self._mode_path:
                self._read_mode()
            case events.CloseRequested():
                self.closing = True
                self._to_rebalance(event)
            case _:
                self._to_rebalance(event)

    def _settle(self) -> None:
        """Pass each machine's results to the others until there are no more."""
        following = True
        while following:
            while self._todo:
                self._todo.popleft()()
            following = (
                self._note_owned() or self._note_place() or self._give_back() or self._acknowledge()
            )

    # -- each of these returns whether there was something to do ---------------------------------

    def _note_owned(self) -> bool:
        """Tell the other machines which owner znodes the member has."""
        owned = self.rebalance.owned
        if owned == self._owned:
            return False
        self._owned = owned
        self._to_live(Held(owned))
        return True

    def _note_place(self) -> bool:
        """Tell the other machines the member's state and partitions in the coordinator's group."""
        joined = self.group.joined_offer
        offer = next((kind for kind, offer in self._offers.items() if offer == joined), None)
        place = (offer, NONE if offer is None else self.group.kept)
        if place == self._place:
            return False
        self._place = place
        self._to_live(Left() if offer is None else Joined(offer, place[1]))
        return True

    def _give_back(self) -> bool:
        """Give partitions back to the coordinator whose owner znodes are released."""
        if self._giving_back is None:
            return False
        token, partitions = self._giving_back
        mode, offer = self.live.mode, self._place[0]
        owner = bool(partitions & self._owned)
        if owner and (mode is None or not may_give_back(mode, offer, owner=True)):
            return False
        self._giving_back = None
        self._todo.append(partial(self._to_group, FetchingStopped(token, {})))
        return True

    def _acknowledge(self) -> bool:
        """Store that the member acts on the mode."""
        live, group = self.live, self.group
        noted = group.generation < 0 or group.member_id == self._noted
        if self._ack is None and live.acknowledged is not None and not noted:
            self._ack = live.acknowledged  # tools look for the id on the coordinator
        if self._ack is None or not self.rebalance.registered or live.mode is None:
            return False
        version, self._ack = self._ack, None
        self._noted = group.member_id
        self._out.append(StoreAck(version, self.rebalance.registered_epoch, group.member_id))
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
            self._to_live(ModeRead(event.mode, event.version, self._reconnected))
            self._reconnected = False

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
        before, known = self.live.mode, self.live.version
        following = self.live.on(event)
        mode = self.live.mode
        if self.live.version < known:
            text = (
                f"{self._mode_path}: version {known} went back to {self.live.version}: the znode "
                "was deleted, or ZooKeeper was restored from a backup: see zkmigrate status"
            )
            self._out.append(commands.Report("went-back", text))
        if mode is not None and mode is not before:
            needs = mode is not Mode.ZOOKEEPER
            if needs != self._needs_group:
                self._needs_group = needs
                self._out.append(NeedGroup(needs))
            text = f"mode {mode.value}, version {self.live.version}"
            self._out.append(commands.Report("mode", text))
        for command in following:
            match command:
                case TakeBack(partitions):
                    if partitions & self.rebalance.held.keys():
                        self._later(self._to_rebalance, zk_events.TakenBack(partitions))
                case ChangeClaims():
                    self._later(self._to_rebalance, zk_events.RulesChanged())
                case Join(offer):
                    self._later(self._to_group, OfferChanged(self._offers[offer]))
                case Acknowledge(version):
                    self._ack = version

    def _later(self, machine: Callable[[Any], None], event: Any) -> None:
        self._todo.append(partial(machine, event))

    def _to_rebalance(self, event: Any) -> None:
        for command in self.rebalance.on(event):
            if isinstance(command, commands.Close):
                self._faults = command.faults
                if self.group.state in ENDED:
                    self._out.append(command)
                else:
                    self._later(self._to_group, CloseRequested())
            else:
                self._out.append(command)

    def _to_group(self, event: Any) -> None:
        for command in self.group.on(event):
            self._of_group(command)

    def _of_group(self, command: Any) -> None:
        """Return the commands of the coordinator's side, which fetches nothing and calls no
        listener."""
        match command:
            case group_commands.FetchOffsets(token, partitions):
                offsets: Mapping[TopicPartition, int | None] = dict.fromkeys(partitions)
                self._later(self._to_group, group_events.OffsetsFetched(token, offsets))
            case commands.StopFetching(token, partitions):
                self._giving_back = (token, partitions)
            case commands.StartFetching(token, _):
                self._later(self._to_group, FetchingStarted(token))
            case (
                commands.NotifyStarting(token, _)
                | commands.NotifyLost(token, _)
                | commands.NotifyReleasing(token, _, _)
            ):
                self._later(self._to_group, ListenerDone(token))
            case commands.SetTimer(token, name, seconds, jitter):
                self._out.append(commands.SetTimer(token, _GROUP + name, seconds, jitter))
            case commands.Fail(_, text) if self.live.mode in (None, Mode.ZOOKEEPER):
                text = f"{text}; the group cannot be moved while this member runs"
                self._out.append(commands.Report("refused", text))
            case commands.Close():
                if self._faults is not None:
                    self._out.append(commands.Close(self._faults))
            case commands.Report() | commands.Fail():
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
