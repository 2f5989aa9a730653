"""LiveMachine: the decisions of a migratable member in its group's mode. Events in, commands out.

It knows the mode, the member's state on the coordinator, the coordinator's assignment, and the
owner znodes that the member holds. It decides which assignment is followed, which partitions may be
delivered, which must be released, and when the mode is acknowledged. Rules:

1. Total: any event is legal at any time; nothing raises.
2. Without a session, or before the mode was read in it, nothing is delivered or claimed.
3. A mode that is older than the one known is dropped and counted (``stale_modes``).
4. A command is emitted once for each change. The owner thread is the only caller.
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
    """The ZooKeeper session has ended, and the owner znodes with it."""


@dataclass(frozen=True, slots=True)
class ModeRead:
    """The mode, read in the current session. ``version``: of its znode; -1: there is none."""

    mode: Mode
    version: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The member is in the coordinator's group with this offer and assignment."""

    offer: Offer
    assigned: Partitions


@dataclass(frozen=True, slots=True)
class Left:
    """The member has left the coordinator's group; ``expelled``: the coordinator removed it."""

    expelled: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """The member now has these owner znodes."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """ZooKeeper has stored the acknowledgement of this mode."""

    version: int


Event = SessionLost | ModeRead | Joined | Left | Held | Acknowledged


# -- commands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Follow:
    """Claim by this assignment. ``assigned``: the coordinator's assignment, if followed."""

    follows: Follows
    assigned: Partitions


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver these partitions and no others."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop these and release their owner znodes.

    ``commit``: first store their positions in Kafka and then in ZooKeeper. Otherwise other members
    may have delivered them already.
    """

    partitions: Partitions
    commit: bool


@dataclass(frozen=True, slots=True)
class Join:
    """Join the coordinator's group with this offer."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Record in ZooKeeper that the member acts on this mode."""

    version: int


Command = Follow | Deliver | GiveUp | Join | Acknowledge


class LiveMachine:
    """One migratable member. ``on(event)`` returns the commands to carry out, in order.

    Readable by the owner thread at any time: ``mode`` (``None``: not read in this session),
    ``version``, ``joined`` (the offer; ``None``: not in the coordinator's group), ``assigned``,
    ``held``, ``delivered``, ``giving_up``, ``acknowledged``, ``departures`` (how often the member
    has left the coordinator's group).
    """

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.version = -1
        self.joined: Offer | None = None
        self.assigned = NONE
        self.held = NONE
        self.delivered = NONE
        self.acknowledged: int | None = None
        self.stale_modes = 0
        self.departures = 0
        self._followed: Follow | None = None
        self._asked: Offer | None = None
        self._acknowledging: int | None = None
        self.giving_up = NONE
        self._commands: list[Command] = []

    def on(self, event: Event) -> list[Command]:
        """Handle one event; return the resulting commands."""
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
        self.acknowledged = self._acknowledging = self._followed = None

    def _mode_read(self, event: ModeRead) -> None:
        if event.version < self.version:
            self.stale_modes += 1
            return
        if event.version != self.version or self.mode is None:
            self._acknowledging = None
        self.mode, self.version = event.mode, event.version

    def _joined(self, event: Joined) -> None:
        self.joined, self.assigned, self._asked = event.offer, event.assigned, None

    def _left(self, event: Left) -> None:
        self.departures += 1
        self.joined, self.assigned, self._asked = None, NONE, None
        if event.expelled and self.mode is not Mode.ZOOKEEPER:
            self._give_up(self.held, commit=False)

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
            self._deliver(NONE)
            return
        rule = RULES[mode]
        follows = rule.follows is Follows.COORDINATOR
        deliverable = frozenset(
            tp
            for tp in self.held - self.giving_up
            if may_deliver(mode, self.joined, tp in self.assigned, owner=True)
        )
        self._deliver(deliverable)
        if follows:
            self._give_up(self.held - self.assigned, commit=True)
        following = Follow(rule.follows, self.assigned if follows else NONE)
        if following != self._followed:
            self._followed = following
            self._commands.append(following)
        if self.joined is not rule.offer and self._asked is not rule.offer:
            self._asked = rule.offer
            self._commands.append(Join(rule.offer))
        settled = self.joined is rule.offer and not self.giving_up
        if settled and self.version not in (self.acknowledged, self._acknowledging):
            self._acknowledging = self.version
            self._commands.append(Acknowledge(self.version))

    def _deliver(self, partitions: Partitions) -> None:
        if partitions != self.delivered:
            self.delivered = partitions
            self._commands.append(Deliver(partitions))

    def _give_up(self, partitions: Partitions, commit: bool) -> None:
        partitions -= self.giving_up
        if partitions:
            self.giving_up |= partitions
            self._deliver(self.delivered - partitions)
            self._commands.append(GiveUp(partitions, commit))

    ANYWHERE: ClassVar[Mapping[type[Any], Handler]] = {
        SessionLost: _session_lost,
        ModeRead: _mode_read,
        Joined: _joined,
        Left: _left,
        Held: _held,
        Acknowledged: _acknowledged,
    }
