"""Bugs to plant in members and tools that move a running group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from zkmigrate.apply import guard, live
from zkmigrate.apply.live import LiveMove
from zkmigrate.model import Record
from zkmigrate.plan.gates import Facts, Obstacle, obstacles
from zkmigrate.stores import record

from tests.support.handlers import replace_handler
from zkconsumer.admin import ids_lock
from zkconsumer.core.migration import machine, member, member_scripts
from zkconsumer.core.migration.commands import LiveRegistered
from zkconsumer.core.migration.machine import LiveMachine
from zkconsumer.core.migration.member import LiveClaims, LiveMember
from zkconsumer.core.migration.modes import Mode, Offer
from zkconsumer.core.migration.znodes import LivePaths, read_mode
from zkconsumer.core.zookeeper.ops import Multi, Ok
from zkconsumer.core.zookeeper.scripts import ownership
from zkconsumer.core.zookeeper.scripts.common import attempt
from zkconsumer.runtime.membership.live_move import DualGate


def waits_for_no_member(patch: pytest.MonkeyPatch) -> None:
    """The tool writes the next mode before the members have acknowledged this one."""

    def gate(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
        return obstacles(
            replace(facts, members=dict.fromkeys(facts.members, facts.version)), target
        )

    patch.setattr(live, "obstacles", gate)


def leaves_the_ids_open(patch: pytest.MonkeyPatch) -> None:
    """The tool looks for legacy members, but does not keep new ones out."""

    def gate(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
        return obstacles(replace(facts, ids_locked=True), target)

    patch.setattr(live, "obstacles", gate)
    patch.setattr(LiveMove, "_keep_out", lambda self: nothing())


def nothing() -> Iterator[Any]:
    """A step that does nothing."""
    yield from ()


def locks_the_ids_once(patch: pytest.MonkeyPatch) -> None:
    """The tool does not lock the ids again before mode ``kafka``."""
    right = LiveMove._keep_out

    def keep_out(self: LiveMove) -> Iterator[Any]:
        mode, _ = yield from read_mode(self._paths)
        found = yield from ids_lock.look(self.group)
        if mode is Mode.LOCKED and found.guard is ids_lock.Guard.LOCKED:
            return None
        return (yield from right(self))

    patch.setattr(LiveMove, "_keep_out", keep_out)


def unlocks_what_another_has_locked(patch: pytest.MonkeyPatch) -> None:
    """Locking ids that are already locked leaves no trace in the version of their access list."""
    right = guard.lock

    def lock(group: str, *more: Any, **named: Any) -> Iterator[Any]:
        if (yield from ids_lock.look(group)).guard is ids_lock.Guard.LOCKED:
            return None
        return (yield from right(group, *more, **named))

    patch.setattr(guard, "lock", lock)


def unlocks_without_asking(patch: pytest.MonkeyPatch) -> None:
    """The tool does not ask for the mode right before it unlocks the ids."""
    right = guard.unlock
    patch.setattr(guard, "unlock", lambda group, still=None: right(group))


def writes_the_mode_whatever_has_happened(patch: pytest.MonkeyPatch) -> None:
    """The tool writes the mode although another operator has written one since the check."""
    right = LiveMove._write_mode

    def write(self: LiveMove, target: Mode, version: int, found: Record) -> Iterator[Any]:
        if version >= 0:
            _, version = yield from read_mode(self._paths)
            found = yield from record.read(self.group)
        return (yield from right(self, target, version, found))

    patch.setattr(LiveMove, "_write_mode", write)


def completes_beside_migratable_members(patch: pytest.MonkeyPatch) -> None:
    """The tool records the move as finished whatever members run."""

    def complete(_paths: LivePaths, writes: Any, _after: bytes) -> Iterator[Any]:
        return isinstance((yield from attempt(Multi(writes))), Ok)

    patch.setattr(live, "_unfinished", lambda facts: ())
    patch.setattr(live, "_complete", complete)


def unlocks_a_finished_move(patch: pytest.MonkeyPatch) -> None:
    """The steps of a live move let legacy consumers in after a move is recorded as finished."""
    right = guard.unlock_recorded
    patch.setattr(guard, "unlock_recorded", lambda group, now_ms, live=False: right(group, now_ms))


def opens_below_zookeepers_offsets(patch: pytest.MonkeyPatch) -> None:
    """The tool admits plain consumers before Kafka has the offsets."""

    def gate(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
        found = obstacles(facts, target)
        return tuple(text for text in found if "lower in Kafka" not in text)

    patch.setattr(live, "obstacles", gate)


def goes_back_beside_plain_consumers(patch: pytest.MonkeyPatch) -> None:
    """The tool does not look for plain consumers on the way back."""

    def gate(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
        return obstacles(replace(facts, plain=frozenset()), target)

    patch.setattr(live, "obstacles", gate)


def delivers_with_one_lock(patch: pytest.MonkeyPatch) -> None:
    """The owner znode is enough, whatever the coordinator assigns."""
    patch.setattr(machine, "may_claim", lambda mode, joined, assigned: True)
    patch.setattr(machine, "may_deliver", lambda mode, joined, assigned, owner: owner)
    patch.setattr(LiveMachine, "_give_up", lambda self, partitions: None)


def begins_at_zookeepers_offset(patch: pytest.MonkeyPatch) -> None:
    """A claim between the modes ignores the offset in Kafka."""
    patch.setattr(member_scripts, "_claim", ownership.claim)


def commits_in_zookeeper_alone(patch: pytest.MonkeyPatch) -> None:
    """Positions are not stored in Kafka."""

    def commit(command: Any, ctx: Any, _live: LiveMachine) -> Any:
        return ownership.commit(command, ctx)

    patch.setattr(member_scripts, "_commit", commit)


def commits_changes_alone(patch: pytest.MonkeyPatch) -> None:
    """Offsets that ZooKeeper already has are not stored in Kafka."""
    patch.setattr(LiveClaims, "stores_in_kafka", False)


def gives_back_at_once(patch: pytest.MonkeyPatch) -> None:
    """The coordinator may assign a partition to another member before its znode is released."""
    patch.setattr(member, "may_give_back", lambda mode, joined, owner: True)


def needs_no_membership(patch: pytest.MonkeyPatch) -> None:
    """The session's lease is sufficient in every mode."""
    patch.setattr(DualGate, "need_group", lambda self, needed: None)


def keeps_what_an_expelled_member_has(patch: pytest.MonkeyPatch) -> None:
    """A member that the coordinator has expelled delivers until its lease ends."""

    def left(self: LiveMachine, event: machine.Left) -> None:
        self._asked = None

    replace_handler(patch, LiveMachine, "_left", left)


def lets_plain_consumers_in_early(patch: pytest.MonkeyPatch) -> None:
    """In every mode, members offer the strategies that plain consumers support."""
    right = LiveMember.__init__

    def init(self: LiveMember, *args: Any) -> None:
        right(self, *args)
        self._offers = dict.fromkeys(Offer, self._offers[Offer.USUAL])
        self.group.offer = self._offers[Offer.USUAL]

    patch.setattr(LiveMember, "__init__", init)


def misses_a_mode_at_its_registration(patch: pytest.MonkeyPatch) -> None:
    """A change of the mode between the registration and its answer is missed."""
    right = LiveMember._take

    def take(self: LiveMember, event: Any) -> None:
        if isinstance(event, LiveRegistered):
            self._read_mode = lambda: None  # type: ignore[method-assign]
        right(self, event)
        self.__dict__.pop("_read_mode", None)

    patch.setattr(LiveMember, "_take", take)


def commits_after_an_expulsion(patch: pytest.MonkeyPatch) -> None:
    """A commit in Kafka that began in one membership is carried out in the next one."""
    right = LiveMachine._left

    def left(self: LiveMachine, event: machine.Left) -> None:
        right(self, event)
        self.departures = 0

    replace_handler(patch, LiveMachine, "_left", left)


def hears_of_no_mode(patch: pytest.MonkeyPatch) -> None:
    """A member keeps the mode that it read when it registered."""
    patch.setattr(LiveMember, "_read_mode", lambda self: None)


def acknowledges_before_it_acts(patch: pytest.MonkeyPatch) -> None:
    """A mode is acknowledged as soon as it is read."""
    right = LiveMachine._mode_read

    def mode_read(self: LiveMachine, event: machine.ModeRead) -> None:
        right(self, event)
        if self.version not in (self.acknowledged, self._acknowledging):
            self._acknowledging = self.version
            self._commands.append(machine.Acknowledge(self.version))

    replace_handler(patch, LiveMachine, "_mode_read", mode_read)
