"""The current store of a group, its live members, and its problems. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from zkconsumer.admin.ids_lock import Guard
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import RULES, Follows, Mode
from zkmigrate.model import STOPPED, GroupState, Record, Retention, Store, exists
from zkmigrate.plan.cases import Case, case_of, changed_since
from zkmigrate.plan.mirror import behind, reading_of
from zkmigrate.plan.table import Action, add_reasons
from zkmigrate.reasons import Reason
from zkmigrate.text import DAY_MS, SOON_DAYS, day, moment, shown

_RUN: Final = re.compile(r"[0-9a-f]{1,8}|probe")

MOVING: Final = "moving"
BOTH: Final = "both"
NOTHING: Final = "nothing"
LOCK_UNKNOWN: Final = "unknown"
"""The value of ``locked`` if the lock cannot be read."""


class Status(NamedTuple):
    """The status of one group: a row of ``zkmigrate status``, see its schema in ``rows``. ``None``
    means unknown or none."""

    group: str
    case: str
    truth: str
    zookeeper_members: int | None = None
    kafka_members: int | None = None
    zookeeper_lag: int | None = None
    kafka_lag: int | None = None
    changed: int = 0
    locked: str = ""
    moved: str = ""
    days_left: int | None = None
    attention: str = ""
    reasons: tuple[Reason, ...] = ()
    mode: str = ""
    next_modes: str = ""
    operator: str = ""
    plan: str = ""
    serial: int | None = None
    kafka_group: str = ""
    mirror: str = ""
    mirror_lag: int | None = None
    mirror_seconds: int | None = None
    mirror_since: str = ""


def status_of(
    state: GroupState,
    locked: str,
    now_ms: int,
    retention: Retention | None,
    first: GroupState | None = None,
) -> tuple[Status, bool]:
    """Return the status of a group, and whether a part of it is unreadable. ``locked``: whether old
    consumers are locked out, as text. ``first``: the group's state at an earlier reading, see
    ``differing``."""
    members = [name for name in state.members if not is_migrator(state.group, name)]
    marker = state.marker
    zk, kafka = state.offsets(Store.ZOOKEEPER), state.offsets(Store.KAFKA)
    moved_to = state.moved_to
    truth = _truth(state, moved_to, bool(zk), bool(kafka))
    attention: list[tuple[Reason, str]] = []

    def needs(reason: Reason, text: str) -> None:
        attention.append((reason, text))

    changed: list[TopicPartition] = []
    if marker is not None and moved_to is not None and (marker.in_target or marker.misplaced):
        changed = sorted(changed_since(state))
        if changed:
            store = moved_to.other.value
            text = f"{store} has changed since the move: stop its consumers, then plan again"
            needs(Reason.SOURCE_MOVED_ON, f"{text} ({shown(map(str, changed))})")
    elif marker and moved_to and not marker.left and (kafka if moved_to is Store.ZOOKEEPER else zk):
        needs(
            Reason.UNKNOWN,
            "the migration marker had no room for the offsets, so late commits are not noticed "
            "here: run zkmigrate status with the plan",
        )
    old = [name for name in members if name not in state.migratable]
    live = state.mode is not Mode.ZOOKEEPER
    elsewhere = state.record.handed_over
    if ((moved_to is Store.KAFKA or elsewhere) and members) or (live and old):
        needs(Reason.LIVE_MEMBER, f"old consumers run: stop {shown(old if live else members)}")
    in_kafka = Store.KAFKA in (moved_to, state.record.mirror_leads)
    if locked == Guard.OPEN.value and (live or in_kafka or elsewhere):
        lock = "repeat the last step of zkmigrate live" if live else "run zkmigrate lock"
        needs(Reason.NOT_LOCKED, f"is not locked, so old consumers can start: {lock}")
    elif locked == LOCK_UNKNOWN and (live or in_kafka or elsewhere):
        text = f"/consumers/{state.group}/ids: zkmigrate may not read its access list"
        needs(Reason.UNKNOWN, f"{text}, so old consumers may be able to start: allow it")
    begun = state.record.interrupted
    settled = truth != MOVING and not (in_kafka or live or begun or state.faults)
    if state.record.cut_over_waits and settled:
        ways = "run zkmigrate cut-over again, or zkmigrate undo, which lets old consumers start"
        needs(Reason.LOCKED, f"a cut-over has begun and not ended: {ways}")
    elif (
        locked == Guard.LOCKED.value
        and settled
        and state.record.mirror != STOPPED
        and not state.record.to_cluster
    ):
        needs(Reason.LOCKED, _why_locked(state.record))
    if moved_to is Store.ZOOKEEPER and state.coordinator_members:
        names = shown(state.coordinator_members)
        needs(Reason.COORDINATOR_MEMBER, f"consumers run at the broker: stop {names}")
    mirror = _mirror(state, now_ms, needs)
    if differing(state, first):
        text = "the stores differ, and zkmigrate has not moved the group: plan shows how"
        needs(Reason.CONFLICT, text)
    if state.expired and moved_to is not None:
        text = (
            f"offsets that were moved are gone from {moved_to.value}: make a new plan, which "
            "shows what to decide"
        )
        needs(Reason.EXPIRED, f"{text} ({shown(map(str, sorted(state.expired)))})")
    elif (
        marker
        and moved_to is Store.KAFKA
        and not (kafka or state.hidden or marker.in_target or marker.left or marker.misplaced)
    ):
        # as with offsets.storage=kafka: a marker of an older version does not name what was there
        needs(Reason.EXPIRED, "kafka has no offset of the group, so auto.offset.reset decides")
    beyond = _beyond(state, truth, zk, kafka)
    if beyond:
        text = "offsets are above the end of the log, so auto.offset.reset decides: reset them"
        needs(Reason.OUT_OF_RANGE, f"{text} ({shown(map(str, beyond))})")
    left = _days_left(state, now_ms, retention) if kafka else None
    if state.expired and moved_to is Store.KAFKA:
        left = 0
    elif left is not None and left < SOON_DAYS and truth in (Store.KAFKA.value, BOTH):
        text = "the broker will soon delete the offsets: start the new consumers"
        needs(Reason.EXPIRES, text)
    faults = [*state.faults]
    if moved_to is not Store.KAFKA:  # ZooKeeper's offsets count
        faults += (one.fault for one in state.zk.values() if one.fault)
    add_reasons(attention, state, Action.STATUS, faults)
    return (
        Status(
            state.group,
            case_of(state).value,
            truth,
            len(members),
            len(state.coordinator_members),
            _lag(state, zk.items()),
            _lag(state, kafka.items()),
            len(changed),
            locked,
            _moved(state),
            left,
            "; ".join(text for _, text in attention),
            tuple(reason for reason, _ in attention),
            operator=state.record.by,
            plan=state.record.plan,
            serial=state.record.version if state.record.version >= 0 else None,
            kafka_group=state.kafka_group,
            **mirror,
        ),
        bool(faults),
    )


def _mirror(
    state: GroupState, now_ms: int, needs: Callable[[Reason, str], object]
) -> dict[str, Any]:
    """Return the status of a group's mirror. ``needs``: called if it needs attention."""
    mirror = state.mirror
    if mirror is None:
        return {}
    if mirror.stopped is not None:
        reason, text = mirror.stopped
        needs(Reason(reason), text)
    elif not state.mirrored_by:
        needs(Reason.NO_MIRROR, "no process mirrors it now: run zkmigrate mirror")
    old = [name for name in state.members if not is_migrator(state.group, name)]
    if mirror.leader is Store.KAFKA and old:
        needs(Reason.LIVE_MEMBER, f"old consumers run, although kafka leads: stop {shown(old)}")
    reading = reading_of(state)
    if (obstacle := reading.obstacle(mirror.leader)) is not None:
        needs(*obstacle)
    late = behind(reading, mirror.leader)
    nodes = (state.zk.get(tp) for tp in late) if mirror.leader is Store.ZOOKEEPER else ()
    since = min((node.mtime_ms for node in nodes if node is not None), default=None)
    return {
        "mirror": state.mirrored_by or "none",
        "mirror_lag": sum(late.values()),
        "mirror_seconds": None if since is None else max(0, (now_ms - since) // 1000),
        "mirror_since": moment(mirror.since_ms),
    }


def unknown(group: str, why: str, reason: Reason) -> Status:
    """Return the status of a group that cannot be read."""
    return Status(group, Case.UNREADABLE.value, "unknown", attention=why, reasons=(reason,))


def only_in_kafka(group: str) -> Status:
    """Return the status of a group whose name is not valid in ZooKeeper, so that it can only be in
    Kafka."""
    return Status(group, Case.IN_KAFKA.value, Store.KAFKA.value)


def _moved(state: GroupState) -> str:
    """Return where and when the group was moved, or the mode of a move in progress."""
    if state.mode is not Mode.ZOOKEEPER:
        return f"live: {state.mode.value}"
    marker = state.marker
    return f"{marker.moved_to.value} {day(marker.at_ms)}" if marker and marker.moved_to else ""


def _why_locked(known: Record) -> str:
    way = "undo" if known.mirror else "unlock"
    return f"is locked, so old consumers cannot start: run zkmigrate {way}"


def is_migrator(group: str, name: str) -> bool:
    """Whether a registered name is that of a zkmigrate run, not of a member.

    The group's name must be known, because a group may itself be called ``etl_zkmigrate-test``.
    """
    head, run = f"{group}_zkmigrate-", name.rpartition("-")[2]
    return name == head + run and _RUN.fullmatch(run) is not None


def _truth(state: GroupState, moved_to: Store | None, in_zk: bool, in_kafka: bool) -> str:
    if any(is_migrator(state.group, name) for name in state.members):
        return MOVING
    if moved_to is not None:
        return moved_to.value
    if state.record.mirror:
        leader = state.record.mirror_leads or (state.mirror and state.mirror.leader)
        return leader.value if leader else BOTH
    if state.in_live_move:
        follows = RULES[state.mode].follows
        if follows is Follows.COORDINATOR:
            return Store.KAFKA.value
        return Store.ZOOKEEPER.value
    if in_zk and in_kafka:
        return BOTH
    if in_zk:
        return Store.ZOOKEEPER.value
    return Store.KAFKA.value if in_kafka else NOTHING


def differing(state: GroupState, first: GroupState | None = None) -> list[TopicPartition]:
    """Return the partitions whose offsets in the two stores differ, if both stores are in use.

    A member with dual commit writes to one store after the other, so the stores differ briefly.
    ``first``: an earlier reading. A partition is then only returned if its lower offset has not yet
    reached the higher offset of that reading.
    """
    zk, kafka = state.offsets(Store.ZOOKEEPER), state.offsets(Store.KAFKA)
    found = [tp for tp in sorted(zk) if tp in kafka and zk[tp] != kafka[tp]]
    if not found or _truth(state, state.moved_to, bool(zk), bool(kafka)) != BOTH:
        return []
    if first is None:
        return found
    before = [first.offsets(store) for store in Store]
    return [
        tp
        for tp in found
        if min(zk[tp], kafka[tp]) < max((one[tp] for one in before if tp in one), default=0)
    ]


def _beyond(
    state: GroupState,
    truth: str,
    zk: Mapping[TopicPartition, int],
    kafka: Mapping[TopicPartition, int],
) -> list[TopicPartition]:
    """Return the partitions whose current offset is above the end of the log."""
    stores = {Store.ZOOKEEPER.value: (zk,), Store.KAFKA.value: (kafka,), BOTH: (zk, kafka)}
    return sorted(
        {
            tp
            for offsets in stores.get(truth, ())
            for tp, offset in offsets.items()
            if (log := state.ranges.get(tp)) is not None and offset > log.latest
        }
    )


def _lag(state: GroupState, offsets: Iterable[tuple[TopicPartition, int]]) -> int | None:
    """Return the number of messages that are not consumed; ``None`` if there is no offset, or a
    log is unknown. Partitions that do not exist are left out."""
    lags: list[int] = []
    for tp, offset in offsets:
        if exists(state.topics, tp):
            if (log := state.ranges.get(tp)) is None:
                return None
            lags.append(max(0, log.latest - offset))
    return sum(lags) if lags else None


def _days_left(state: GroupState, now_ms: int, retention: Retention | None) -> int | None:
    """Return a lower bound of the days until Kafka deletes the oldest offset; ``None`` if there is
    no limit.

    Commits after the move are ignored, because they require reading the coordinators' logs.
    """
    marker = state.marker
    if retention is None or state.coordinator_members:
        return None
    if marker is None or state.moved_to is not Store.KAFKA:
        return None
    return max(0, (marker.at_ms + retention.minutes * 60_000 - now_ms) // DAY_MS)
