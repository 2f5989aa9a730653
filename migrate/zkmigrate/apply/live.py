"""Moves one running group through its modes: gates, locks, barriers. Steps without IO.

A step yields its requests to both stores, and their replies are sent to it. The commands'
``perform`` carries it out; the simulator runs the same steps. Every step first checks whether its
work on the group is already done, so that another process can resume a stage. The mode is written
only if it has not changed since it was read. A step never moves a group against its direction:
``lock`` ignores a group that is in Kafka.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Set
from typing import Any, Final, NamedTuple, TypeVar

from zkconsumer.admin import ids_lock
from zkconsumer.admin.snapshot import GroupSnapshot, read_group
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode, has_reached, neighbours
from zkconsumer.core.migration.znodes import (
    LivePaths,
    decode_member,
    encode_mode,
    member_id_of,
    read_mode,
)
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Multi,
    MultiOp,
    Node,
    Ok,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.scripts.common import Script, attempt, ensure_path, read_many
from zkconsumer.core.zookeeper.znodes import is_ours
from zkmigrate.apply import guard
from zkmigrate.errors import GroupRefusedError
from zkmigrate.model import Record, Store
from zkmigrate.plan.gates import (
    Facts,
    Obstacle,
    may_pass,
    obstacles,
    start_obstacles,
)
from zkmigrate.plan.layout import is_foreign_layout
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, mirror_state, record
from zkmigrate.stores.group_states import foreign_znodes
from zkmigrate.stores.offset_znodes import misplaced_root, numbered, offset_partitions, offsets_at
from zkmigrate.text import shown

T = TypeVar("T")
_POLL: Final = 0.2
"""Seconds between two checks of a group while waiting for it."""
_MEMBER_ID: Final = re.compile(r"(.+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class FetchOffsets(NamedTuple):
    """Request to read a group's offsets in Kafka, as ``Stores.fetch`` does. The reply is the
    offsets."""

    group: str
    known: tuple[TopicPartition, ...]


class ListMembers(NamedTuple):
    """Request to list a group's members at its coordinator. The reply is the result of
    ``GroupCoordinators.members``."""

    group: str


class FindHidden(NamedTuple):
    """Request to find the topics that brokers hide. The reply is the result of
    ``GroupCoordinators.hidden``."""

    topics: frozenset[str]


class Afresh(NamedTuple):
    """Notification, without a reply, that the script will not use its earlier reads again."""


class EndMirror(NamedTuple):
    """Request to end the mirror of a group in which ZooKeeper leads. The reply is the ``Obstacle``
    to this, or ``None``."""

    group: str


class Begin(NamedTuple):
    """Notification, without a reply, that the work on the group begins. ``reached``: the group is
    known to have the wanted mode already."""

    reached: bool


class Wait(NamedTuple):
    """Request to wait. The reply is whether the command must stop waiting and end."""

    seconds: float


Request = FetchOffsets | ListMembers | FindHidden | Wait | EndMirror | Begin | Afresh
LiveScript = Generator[ZkOp | Request, Any, T]
"""Yields requests and receives their replies. A script that uses ZooKeeper alone is a live script,
too."""


def look(group: str) -> LiveScript[Facts]:
    """Read the group's state, as far as the gates need it. Raises the errors of both stores."""
    # In this order: what is stored in one only while it is read must look behind, not ahead.
    known = yield from offset_partitions(group)
    before = yield from _in_kafka(group, known)
    live = LivePaths.of(group)
    mode, version = yield from read_mode(live)
    found = (yield from read_group(group)) or GroupSnapshot(group)
    acknowledged = {
        name: decode_member(f"{live.members}/{name}", node.data)
        for name, node in found.migratable.items()
    }
    lock = yield from ids_lock.look(group)
    offsets = offsets_at(found.paths.offsets, numbered(found.offsets))
    after = yield from _in_kafka(group, offsets)
    joined = yield ListMembers(group)
    member_ids = {member_id_of(node.data) for node in found.migratable.values()}
    others = {name for name in joined if _id_of(name) not in member_ids}
    clients = {_client_of(one) for one in member_ids} - {""}
    former = {name for name in others if _client_of(_id_of(name)) in clients}
    return Facts(
        mode,
        version,
        frozenset(
            name if name in acknowledged else f"{name} ({_whose(group, name, node)})"
            for name, node in found.members.items()
        ),
        acknowledged,
        lock.guard is not ids_lock.Guard.OPEN,
        frozenset(others - former),
        offsets,
        before if mode in (Mode.LOCKED, Mode.ZOOKEEPER) else after,
        frozenset(former),
        offsets_at(misplaced_root(group), numbered(found.misplaced)),
        _foreign(found) if mode is Mode.ZOOKEEPER else frozenset(),
        (yield FindHidden(frozenset(tp.topic for tp in offsets))),
        migration_marker.decoded(group, found.moved, None, None).moved_to is Store.KAFKA,
        lock.guard is ids_lock.Guard.LOCKED and not lock.lets_live_in,
    )


def _in_kafka(group: str, known: Iterable[TopicPartition]) -> LiveScript[dict[TopicPartition, int]]:
    stored = yield FetchOffsets(group, tuple(known))
    return {tp: one.offset for tp, one in stored.items()}


def before_stage(facts: Facts, target: Mode) -> tuple[Obstacle, ...]:
    """Return what prevents a change to ``target``. A missing lock does not count, because the
    command sets it."""
    why = obstacles(facts, target)
    return tuple(one for one in why if one.reason is not Reason.IDS_OPEN)


class Step(NamedTuple):
    """The result of one step of a live move. ``why``: what prevents it; empty if it is done."""

    mode: Mode
    changed: bool
    why: tuple[Obstacle, ...] = ()


class LiveMove:
    """The steps of a live move of one group, which ``commands.steps.perform`` runs. ``wait``:
    seconds to wait for members and offsets at each gate. ``say``: called with the name of each gate
    that is passed."""

    def __init__(
        self,
        group: str,
        wait: float,
        say: Callable[[str], object],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self._paths = LivePaths.of(group)
        self._wait = wait
        self._say = say
        self._now = now

    def check(self, target: Mode, back: bool = False) -> LiveScript[Step]:
        """Check whether the group may change to ``target``. Write nothing. ``back``: the move is
        towards ZooKeeper."""
        facts = yield from look(self.group)
        if facts.mode is target:
            return Step(facts.mode, False, self._late(facts))
        if has_reached(facts.mode, target, back):
            return Step(facts.mode, False)
        over = target is Mode.LOCKED and facts.mode is Mode.OPEN
        why = before_stage(facts, Mode.KAFKA if over else target)  # ``back`` goes over it
        return Step(facts.mode, False, why)

    def prepare(self) -> LiveScript[Step]:
        """Give the group a mode, and end its mirror. The result names members that are not
        migratable."""
        mode, version = yield from read_mode(self._paths)
        facts = yield from look(self.group)
        why = start_obstacles(facts)
        if why and mode is Mode.ZOOKEEPER:
            return Step(mode, False, tuple(why))
        found = yield from record.read(self.group)
        if found.mirror or found.command == mirror_state.END:  # which was killed, perhaps
            obstacle = yield EndMirror(self.group)
            if obstacle is not None:
                return Step(mode, False, (obstacle,))
            if found.mirror:
                self._say("is no longer mirrored")
            found = yield from record.read(self.group)
        changed = False
        if version < 0:
            fault = yield from self._write_mode(Mode.ZOOKEEPER, -1, found)
            changed = not fault
            if fault and (yield from read_mode(self._paths))[1] < 0:
                return Step(mode, False, (_other_operator(fault),))
        deadline = self._now() + self._wait
        while True:
            facts = yield from look(self.group)
            late = self._late(facts)
            legacy = facts.registered - facts.members.keys()
            if legacy:
                return Step(mode, changed, (_not_migratable(legacy), *late))
            if facts.plain and not late:
                text = (
                    f"plain members on the coordinator: {shown(sorted(facts.plain))}: stop these "
                    "first, as they keep migratable members out"
                )
                late = (Obstacle(Reason.PLAIN_MEMBER, text),)
            if not late or self._now() >= deadline or (yield Wait(_POLL)):
                return Step(mode, changed, late)

    def lock(self) -> LiveScript[Step]:
        """Keep legacy consumers out, then change to ``locked``. If that is refused, unlock
        again."""
        facts = yield from look(self.group)
        if facts.mode not in (Mode.ZOOKEEPER, Mode.LOCKED):
            return (yield from self.go(Mode.LOCKED))
        first = yield from self.check(Mode.LOCKED)
        if not may_pass(first.why):
            return first
        was = facts.ids_locked
        fault = yield from self._keep_out()
        if fault is not None:
            return Step(facts.mode, False, (fault,))
        if not was:
            self._say("legacy consumers can no longer register")
        step = yield from self.go(Mode.LOCKED)
        if step.mode is Mode.ZOOKEEPER and step.why and not was and (yield from self._let_in()):
            self._say("legacy consumers can register again")
        return step

    def unlock(self) -> LiveScript[Step]:
        """Change to ``zookeeper``, then let legacy consumers in.

        If the group was moved to Kafka while it was stopped, it stays locked.
        """
        step = yield from self.go(Mode.ZOOKEEPER, back=True)
        if step.why:
            return step
        try:
            was = yield from self._let_in()
            yield from guard.check_unlocked(self.group)
        except GroupRefusedError as error:
            mode, _ = yield from read_mode(self._paths)
            return Step(mode, step.changed, (_other_operator(str(error)),))
        if was:
            self._say("legacy consumers can register again")
        return step._replace(changed=step.changed or was)

    def back(self) -> LiveScript[Step]:
        """Change back to ``locked``, through ``kafka`` if the group is ``open``."""
        mode, _ = yield from read_mode(self._paths)
        if mode is Mode.OPEN:
            step = yield from self.go(Mode.KAFKA, back=True)
            if step.why:
                return step
        return (yield from self.go(Mode.LOCKED, back=True))

    def undo(self) -> LiveScript[Step]:
        """Change back to ``zookeeper``, through all modes in between, and let legacy
        consumers in."""
        step = yield from self.back()
        if step.why or step.mode not in (Mode.LOCKED, Mode.ZOOKEEPER):
            return step
        last = yield from self.unlock()
        return last._replace(changed=last.changed or step.changed)

    def check_back(self) -> LiveScript[Step]:
        """Check whether the group may change to the next mode towards ``zookeeper``. Write
        nothing."""
        facts = yield from look(self.group)
        before = tuple(Mode)[max(0, tuple(Mode).index(facts.mode) - 1)]
        return (yield from self.check(before, back=True))

    def _write_mode(self, target: Mode, version: int, found: Record) -> Script[str]:
        """Write a mode and the record, if no other command has written either in the meantime.
        Return why it is not written, or an empty text."""
        path = self._paths.mode
        if version < 0:
            yield from ensure_path(set(), path.rpartition("/")[0])
        first = record.put(path, encode_mode(target), version)
        locked = found.locked if version < 0 else target is not Mode.ZOOKEEPER
        fields = {"command": "live", "mode": target.value, "locked": locked}
        written = record.written(found, **fields)
        try:
            yield from record.write(self.group, written, (first,))
        except GroupRefusedError as error:
            return str(error)
        return ""

    def complete(self, execute: bool = True) -> LiveScript[Step]:
        """Record that the live move is finished. Without ``execute``, only check.

        The group then counts as moved, as after ``zkmigrate apply``. Its mode is ``zookeeper``
        again, and migratable members can no longer register.
        """
        known = yield from migration_marker.state_of(self.group)
        found, marker = known.record, known.marker
        facts = yield from look(self.group)
        if facts.mode is Mode.ZOOKEEPER and facts.moved:
            return Step(facts.mode, False)
        why = _unfinished(facts)
        if why or not execute:
            return Step(facts.mode, False, why)
        lock = yield from guard.lock_found(self.group, exactly=True)
        if isinstance(lock, str):
            return Step(facts.mode, False, (_cannot_lock(lock),))
        facts = yield from look(self.group)  # as no member can register any more
        why = _unfinished(facts)
        if not why:
            where, now_ms = migration_marker.path(self.group), int(time.time() * 1000)
            kept = {tp: n for tp, n in facts.in_kafka.items() if tp not in facts.in_zookeeper}
            after = migration_marker.encode(
                Store.KAFKA, now_ms, facts.in_zookeeper, misplaced=facts.misplaced, kept=kept
            )
            done = record.moved(found, "complete", mode=Mode.ZOOKEEPER.value)
            ops = (
                # The lock is still this one, which lets no migratable member in.
                Check(self._paths.group.ids, lock.version),
                SetData(self._paths.mode, encode_mode(Mode.ZOOKEEPER), facts.version),
                SetData(where, after) if marker else Create(where, after),
                record.op(self.group, done),
            )
            fault = record.MEANWHILE
            if not lock.lets_live_in:
                fault = yield from _complete(self._paths, ops, after)
            if not fault:
                self._say("the group is recorded as moved to Kafka")
                return Step(Mode.ZOOKEEPER, True)
            why = (_other_operator(fault),)
        yield from self._keep_out()
        if (yield from read_mode(self._paths))[0] is Mode.ZOOKEEPER:
            yield from self._let_in()  # another operator has taken it back before our lock
        return Step(facts.mode, False, why)

    def go(self, target: Mode, back: bool = False) -> LiveScript[Step]:
        """Change the group to a mode when its gate allows it, and wait until all members have
        acknowledged it. ``back``: the move is towards ZooKeeper. Does nothing if the group has
        already passed the mode in this direction."""
        deadline = self._now() + self._wait
        changed = False
        sealed: int | None = None
        while True:
            yield Afresh()
            found = yield from record.read(self.group)
            facts = yield from look(self.group)
            if sealed is not None and facts.mode is Mode.ZOOKEEPER:
                yield from self._let_in()  # another operator has taken it back before our lock
            # Another operator may still be about to unlock the ids, from before this mode.
            seal = target is Mode.KAFKA and facts.mode is Mode.LOCKED
            lost = not facts.ids_locked and Mode.ZOOKEEPER not in (target, facts.mode)
            # One who was about to complete the move may have died.
            shut = facts.all_locked and facts.mode is not Mode.ZOOKEEPER
            if (seal or lost or shut) and sealed != facts.version:
                fault = yield from self._keep_out()
                if fault is not None:
                    return Step(facts.mode, changed, (fault,))
                if lost:
                    changed = True
                    self._say("legacy consumers could register: the lock is set again")
                elif shut:
                    changed = True
                    self._say("migratable members could not register: they can again")
                sealed = facts.version
                continue
            if facts.mode is target:
                why = self._late(facts)
                if not why:
                    acted = len(facts.members)
                    self._say(f"mode {target.value}: acknowledged by all {acted} members")
                    return Step(target, changed)
            elif has_reached(facts.mode, target, back):
                return Step(facts.mode, changed)
            else:
                why = obstacles(facts, target)
                if not why:
                    self._say(f"gate before {target.value}: open")
                    if not (yield from self._write_mode(target, facts.version, found)):
                        changed = True
                        self._say(f"mode {target.value} is written")
                        deadline = self._now() + self._wait
                    continue
                if not may_pass(why):
                    return Step(facts.mode, changed, why)
            if self._now() >= deadline or (yield Wait(_POLL)):
                return Step(facts.mode, changed, why)

    def _keep_out(self) -> Script[Obstacle | None]:
        """Lock the group's ids, even if they are locked already. Return why that is not possible,
        if so.

        Migratable members may register, unless another operator has completed the move.
        """
        fault = yield from guard.lock(self.group, (ids_lock.LIVE,))
        return None if fault is None else _cannot_lock(fault)

    def _let_in(self) -> Script[bool]:
        """Unlock the ids while the mode is ``zookeeper``. Return whether they were locked."""
        return (yield from guard.unlock_recorded(self.group, live=True))

    def _late(self, facts: Facts) -> tuple[Obstacle, ...]:
        found = obstacles(facts, neighbours(facts.mode)[0])
        return tuple(one for one in found if one.reason is Reason.NOT_ACKNOWLEDGED)


def _unfinished(facts: Facts) -> tuple[Obstacle, ...]:
    """Return why a move is not finished, or nothing."""
    if facts.mode is not Mode.OPEN:
        text = f"the group is in mode {facts.mode.value}: run zkmigrate live finalize first"
        return (Obstacle(Reason.WRONG_MODE, text),)
    if facts.members:
        text = f"migratable members run: {shown(sorted(facts.members))}: replace these first"
        return (Obstacle(Reason.MIGRATABLE, text),)
    if facts.registered:
        return (_not_migratable(facts.registered),)
    return ()


def _not_migratable(names: Set[str]) -> Obstacle:
    text = f"members that are not migratable: {shown(sorted(names))}"
    return Obstacle(Reason.NOT_MIGRATABLE, text)


def _cannot_lock(fault: str) -> Obstacle:
    text = f"legacy consumers cannot be kept out: {fault}"
    return Obstacle(Reason.CANNOT_LOCK, text)


def _other_operator(text: str) -> Obstacle:
    return Obstacle(Reason.OTHER_OPERATOR, text)


def _complete(paths: LivePaths, writes: tuple[MultiOp, ...], after: bytes) -> Script[str]:
    """Write marker, mode and record in one request, which fails if a migratable member is running.
    Return why they are not written, or an empty text. The mode's znode is kept, so that its
    versions continue."""
    marker = migration_marker.path(paths.group.group)
    ops: tuple[MultiOp, ...] = (Create(paths.members),)
    if (yield from read_many([paths.members])) != [None]:
        ops = (Delete(paths.members), *ops)
    reply = yield from attempt(Multi((*ops, *writes)))
    if isinstance(reply, Ok):
        return ""
    (node,) = yield from read_many([marker])
    if node is not None and node.data == after:
        return ""
    return record.LOST if reply.code is Code.CONNECTION_LOSS else record.MEANWHILE


def _foreign(found: GroupSnapshot) -> frozenset[str]:
    """Return the znodes in another client's layout, except those of running members."""
    of_members = (f"{found.paths.ids}/", f"{found.paths.owners}/")
    kept = [path for path in foreign_znodes(found) if not path.startswith(of_members)]
    foreign = is_foreign_layout(found.group, kept, any(numbered(found.offsets)))
    return frozenset(kept if foreign else ())


def _whose(group: str, consumer_id: str, node: Node) -> str:
    """Return the kind of a member, and the host in its generated consumer id
    ``GROUP_HOST-TIME-RANDOM``, or the id without the group."""
    rest = consumer_id.removeprefix(f"{group}_")
    parts = rest.rsplit("-", 2)
    host = f"host {parts[0]}" if len(parts) == 3 and parts[1].isdigit() else f"id {rest}"
    return f"{host}, {'zkconsumer' if is_ours(node.data) else 'JVM consumer'}"


def _id_of(member: str) -> str:
    """Return the member id in a line of ``GroupCoordinators.members``."""
    return member.rpartition(" (")[2].removesuffix(")")


def _client_of(member_id: str) -> str:
    """Return the client id in a member id ``CLIENT-UUID`` from a coordinator, otherwise an empty
    text."""
    parts = _MEMBER_ID.fullmatch(member_id)
    return "" if parts is None else parts[1]
