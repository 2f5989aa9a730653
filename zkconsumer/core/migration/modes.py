"""The modes of a group in a live move, and what each allows: data and predicates.

A group goes through the modes one at a time, in either direction. The mode znode contains the
current one. ``tests/model/test_live_move_model.py`` checks the protocol, and that its rules are
these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Mode(Enum):
    """The mode of a group. The value is the content of the mode znode."""

    ZOOKEEPER = "zookeeper"
    """Members follow ZooKeeper's assignment. Legacy consumers may be members."""
    LOCKED = "locked"
    """Members follow ZooKeeper's assignment. Neither legacy nor plain Kafka consumers can join."""
    KAFKA = "kafka"
    """Members follow the coordinator's assignment. Neither legacy nor plain Kafka consumers can
    join."""
    OPEN = "open"
    """Members follow the coordinator's assignment. Plain Kafka consumers may be members."""


class Follows(Enum):
    """Whose assignment a migratable member follows: ZooKeeper's or the coordinator's."""

    ZOOKEEPER = "zookeeper"
    COORDINATOR = "coordinator"


class Offer(Enum):
    """The assignment strategies that a migratable member offers to the coordinator."""

    OWN = "own"
    """One strategy that other clients do not support, so that the coordinator refuses them."""
    USUAL = "usual"
    """The strategies of its configuration."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rules of a mode. ``legacy``: whether legacy consumers can register.

    ``refusing``: whether only members whose offer keeps plain consumers out may claim and deliver.
    """

    follows: Follows
    offer: Offer
    legacy: bool
    refusing: bool


RULES: Final[Mapping[Mode, Rule]] = {
    Mode.ZOOKEEPER: Rule(Follows.ZOOKEEPER, Offer.OWN, legacy=True, refusing=False),
    Mode.LOCKED: Rule(Follows.ZOOKEEPER, Offer.OWN, legacy=False, refusing=True),
    Mode.KAFKA: Rule(Follows.COORDINATOR, Offer.OWN, legacy=False, refusing=False),
    Mode.OPEN: Rule(Follows.COORDINATOR, Offer.USUAL, legacy=False, refusing=False),
}
_ORDER: Final = tuple(Mode)


def neighbours(mode: Mode) -> tuple[Mode, ...]:
    """Return the modes that may be written next."""
    at = _ORDER.index(mode)
    return _ORDER[max(at - 1, 0) : at] + _ORDER[at + 1 : at + 2]


def has_reached(mode: Mode, target: Mode, back: bool) -> bool:
    """Whether a group in ``mode`` is at ``target`` or has already passed it.

    Args:
        back: the group moves towards ZooKeeper; otherwise it moves towards Kafka.
    """
    at, wanted = _ORDER.index(mode), _ORDER.index(target)
    return at <= wanted if back else at >= wanted


def may_claim(mode: Mode, joined: Offer | None, assigned: bool) -> bool:
    """Whether a member may claim the owner znode of a partition.

    Args:
        mode: the mode that the member has read.
        joined: its offer as a member of the coordinator's group; ``None``: it is not a member.
        assigned: whether the coordinator assigns the partition to it.
    """
    rule = RULES[mode]
    if rule.follows is Follows.COORDINATOR:
        return joined is not None and assigned
    return joined is Offer.OWN or not rule.refusing


def may_deliver(mode: Mode, joined: Offer | None, assigned: bool, owner: bool) -> bool:
    """Whether a member with a live session may deliver a partition. ``owner``: whether it owns the
    partition's owner znode."""
    return owner and may_claim(mode, joined, assigned)


def may_give_back(mode: Mode, joined: Offer | None, owner: bool) -> bool:
    """Whether a member may let the coordinator assign the partition to another member.

    A plain consumer would deliver it immediately, so the owner znode must be released first
    (``owner`` is false). While the member follows ZooKeeper and keeps plain consumers out, no
    member uses the coordinator's assignment.
    """
    rule = RULES[mode]
    return not owner or (rule.follows is Follows.ZOOKEEPER and joined is Offer.OWN)
