"""LiveMachine: the decisions of a migratable member in its group's mode. Events in, commands out.

It knows the mode, the member's state on the coordinator, the coordinator's assignment, and the
member's owner znodes. It decides which partitions may be claimed and delivered, which must be
released, and when the mode is acknowledged. Rules:

1. Total: any event is legal at any time; nothing raises.
2. Without a session, or before the mode was read in it, nothing is delivered or claimed.
3. The mode that was read last counts. It may be older than the known one, because ZooKeeper may
   have been restored from a backup.
4. ``TakeBack`` is emitted until it is done, every other command once for each change.

The owner thread is the only caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from zkconsumer.core.common.machine import Handler
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import RULES, Follows, Mode, Offer, may_claim, may_deliver

Partitions = frozenset[TopicPartition]
NONE: Final[Partitions] = frozenset()


# -- events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The ZooKeeper session has ended, and with it the owner znodes."""


@dataclass(frozen=True, slots=True)
class ModeRead:
    """The mode, read in the current session. ``version``: of its znode (-1: no znode).

    ``reconnected``: the connection was re-established since the last read. So ZooKeeper may have
    been restored from a backup that does not have the acknowledgement.
    """

    mode: Mode
    version: int
    reconnected: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """The member has registered and read the mode in the same transaction. The acknowledgement in
    the registration is not stored yet."""

    mode: Mode
    version: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The member has joined the coordinator's group with this offer, and has this assignment."""

    offer: Offer
    assigned: Partitions


@dataclass(frozen=True, slots=True)
class Left:
    """The member is no longer in the coordinator's group, because it left or was removed."""


@dataclass(frozen=True, slots=True)
class Held:
    """The partitions whose owner znodes the member has now."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """ZooKeeper has stored the acknowledgement of this mode."""

    version: int


Event = SessionLost | ModeRead | Registered | Joined | Left | Held | Acknowledged


# -- commands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Stop these partitions at once and release them without a commit, because other members may
    have delivered them."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class ChangeClaims:
    """Claim again, because other partitions may be claimed now, or another assignment applies."""


@dataclass(frozen=True, slots=True)
class Join:
    """Join the coordinator's group with this offer."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Record in ZooKeeper that the member acts on this mode."""

    version: int


Command = TakeBack | ChangeClaims | Join | Acknowledge


class LiveMachine:
    """The state machine of one migratable member. ``on(event)`` returns the commands, in order.

    The owner thread may read at any time: ``mode`` (``None``: not read in this session),
        ``version``, ``joined`` (the offer; ``None``: not in the coordinator's group),
        ``assigned``, ``held``, ``delivered`` (the partitions that may be delivered),
        ``giving_up`` (held partitions that must be released), ``acknowledged``, ``departures``
        (how often the member has left the coordinator's group).
    """

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.version = -1
        self.joined: Offer | None = None
        self.assigned = NONE
        self.held = NONE
        self.delivered = NONE
        self.acknowledged: int | None = None
        self.departures = 0
        self._claimable: tuple[object, ...] | None = None
        self._asked: Offer | None = None
        self._acknowledging: int | None = None
        self.giving_up = NONE
        self._commands: list[Command] = []

    def on(self, event: Event) -> list[Command]:
        """Handle one event. Return the resulting commands."""
        self._commands = []
        handler = self.ANYWHERE.get(type(event))
        if handler is not None:
            handler(self, event)
            self._decide()
        return self._commands

    def may_claim(self, partition: TopicPartition) -> bool:
        """Whether the owner znode of a partition may be claimed now."""
        if self.mode is None or partition in self.giving_up:
            return False
        return may_claim(self.mode, self.joined, partition in self.assigned)

    # -- what happens ----------------------------------------------------------------------------

    def _session_lost(self, _event: SessionLost) -> None:
        self.mode, self.held, self.giving_up = None, NONE, NONE
        self.acknowledged = self._acknowledging = self._claimable = None

    def _mode_read(self, event: ModeRead) -> None:
        if event.version != self.version or self.mode is None:
            self._acknowledging = None
        if event.reconnected:
            self.acknowledged = self._acknowledging = None
        self.mode, self.version = event.mode, event.version

    def _registered(self, event: Registered) -> None:
        self.acknowledged = None
        if self.mode is None or event.version >= self.version:  # otherwise a later read was faster
            self._mode_read(ModeRead(event.mode, event.version))

    def _joined(self, event: Joined) -> None:
        self.joined, self.assigned, self._asked = event.offer, event.assigned, None

    def _left(self, _event: Left) -> None:
        self.departures += 1
        self.joined, self.assigned, self._asked = None, NONE, None
        if self.mode is not Mode.ZOOKEEPER and self.held:
            self._give_up(self.held)  # others may have these by now
            self._commands.append(TakeBack(self.held))

    def _held(self, event: Held) -> None:
        self.held = event.partitions
        self.giving_up &= self.held

    def _acknowledged(self, event: Acknowledged) -> None:
        if event.version == self._acknowledging:
            self.acknowledged, self._acknowledging = event.version, None

    # -- what follows ----------------------------------------------------------------------------

    def _decide(self) -> None:
        mode = self.mode
        if mode is None:
            self.delivered = NONE
            return
        rule = RULES[mode]
        if rule.follows is Follows.COORDINATOR:
            self._give_up(self.held - self.assigned)
        self.delivered = frozenset(
            tp
            for tp in self.held - self.giving_up
            if may_deliver(mode, self.joined, tp in self.assigned, owner=True)
        )
        forbidden = self.held - self.delivered - self.giving_up
        if forbidden:
            self._commands.append(TakeBack(forbidden))
        claimable = self._claims_depend_on(mode)
        if claimable != self._claimable:
            self._claimable = claimable
            self._commands.append(ChangeClaims())
        if self.joined is not rule.offer and self._asked is not rule.offer:
            self._asked = rule.offer
            self._commands.append(Join(rule.offer))
        settled = self.joined is rule.offer and not self.giving_up
        if settled and self.version not in (self.acknowledged, self._acknowledging):
            self._acknowledging = self.version
            self._commands.append(Acknowledge(self.version))

    def _give_up(self, partitions: Partitions) -> None:
        self.giving_up |= partitions

    def _claims_depend_on(self, mode: Mode) -> tuple[object, ...]:
        """Return the state on which claims depend, in addition to the group in ZooKeeper."""
        rule = RULES[mode]
        if rule.follows is Follows.COORDINATOR:
            return mode, self.joined is None, self.assigned, self.giving_up
        return mode, rule.refusing and self.joined, self.giving_up

    ANYWHERE: ClassVar[Mapping[type[Any], Handler]] = {
        SessionLost: _session_lost,
        ModeRead: _mode_read,
        Registered: _registered,
        Joined: _joined,
        Left: _left,
        Held: _held,
        Acknowledged: _acknowledged,
    }
