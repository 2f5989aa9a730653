"""Sets the offsets of a stopped group in its current store, with the same claims as a move.

The claims keep old consumers from starting in the meantime. The new offsets are read back. A
group that ZooKeeper does not have cannot be claimed; there the coordinator refuses the commit
while the group has members. Used from one thread.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from zkconsumer.admin import ids_lock, takeover
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Exists, Node, Ok
from zkconsumer.core.zookeeper.scripts.common import Script, read
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ZnodeFormatError
from zkmigrate.apply import ownership
from zkmigrate.apply.outcome import by_table
from zkmigrate.apply.permission import (
    MIRROR_PERMISSIONS_END_S,
    InKafka,
    Note,
    Permission,
    check_accepted,
)
from zkmigrate.errors import check_members, refused
from zkmigrate.model import GroupState, Record, Stage, Store
from zkmigrate.plan.reset import Reset
from zkmigrate.plan.table import Action
from zkmigrate.reasons import Reason
from zkmigrate.stores import record
from zkmigrate.stores.offset_znodes import offset_in
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import show, shown


def check_stopped(state: GroupState) -> None:
    """Check that a group has no members in ZooKeeper or at its coordinator.

    Raises GroupInUseError, GroupRefusedError.
    """
    check_members(state.group, state.members, owned=sorted(state.owners))
    refusal = by_table(state, Action.RESET)
    if refusal is not None:
        text = f"{refusal.why} ({shown(state.foreign)})" if state.foreign else refusal.why
        raise refused(state.group, refusal.reasons[0], text)
    check_members(state.group, joined=state.coordinator_members)


def carry_out(
    stores: Stores,
    state: GroupState,
    store: Store,
    rows: Sequence[Reset],
    serial: Record,
    note: Note,
    wrote: Callable[[], object] = lambda: None,
) -> Record:
    """Write the offsets in ``rows`` if the group's record is still ``serial``. Return the new
    record.

    ``note``: writes to the journal the partitions where a commit may have overwritten a newer
    offset. ``wrote``: called when all offsets are written, because an error may follow. In
    ZooKeeper, up to some hundreds of offsets are written in one multi. After an error, some offsets
    may have been written; the command can be repeated. Raises GroupRefusedError, ZkConsumerError.
    """
    lock = stores.zk.run(ids_lock.look(state.group))
    hold = ownership.hold_of(state.group, uuid.uuid4().hex[:8], lock)
    known = stores.zk.run(_exists(state.group))
    permission = Permission(stores.zk, hold)
    in_zookeeper = state.offsets(Store.ZOOKEEPER)

    def accept(tp: TopicPartition, node: Node | None) -> str | None:
        try:
            offset = offset_in(node)
        except ZnodeFormatError as fault:
            return f"{tp}: {fault.reason}: correct it with zkconsumer offsets import"
        if offset == in_zookeeper.get(tp):
            return None
        return f"{tp}: zookeeper holds {show(offset)} now, it was committed since: run it again"

    try:
        if known or store is Store.ZOOKEEPER:
            stores.zk.run(ownership.take(hold, [row.tp for row in rows], accept))
            written = record.written(serial, command="reset")
            serial = stores.zk.run(ownership.begin(hold, written, None))
        if store is Store.ZOOKEEPER:
            script = ownership.write_offsets(hold, {row.tp: row.after for row in rows})
            stores.zk.run(script)
        else:
            if serial.mirror:  # it would commit over the new offsets, and never notice
                time.sleep(MIRROR_PERMISSIONS_END_S)
            _commit(stores, state, rows, permission if known else None, note)
        wrote()
        if serial.in_doubt:
            ended = record.written(serial, **_ends(serial, state, store, rows))
            serial = stores.zk.run(ownership.write_record(hold, ended))
    except BaseException as error:
        if known or store is Store.ZOOKEEPER:
            ownership.release_after(stores.zk, hold, error)
        raise
    others = stores.zk.run(takeover.release(hold)) if known or store is Store.ZOOKEEPER else []
    if others and store is Store.ZOOKEEPER:
        raise refused(
            state.group,
            Reason.LIVE_MEMBER,
            f"the offsets are set, but {shown(others)} registered in the meantime and may have "
            "read the old ones: stop these members, then run the command again",
        )
    return serial


def _commit(
    stores: Stores,
    state: GroupState,
    rows: Sequence[Reset],
    permission: Permission | None,
    note: Note,
) -> None:
    check_members(state.group, joined=stores.kafka.members(state.in_kafka))
    wanted = {row.tp: row.after for row in rows}
    now = stores.fetch(state.in_kafka, list(wanted))
    for row in rows:
        stored = now.get(row.tp)
        offset = stored.offset if stored else None
        if offset != row.before:
            raise refused(
                state.group,
                Reason.CHANGED,
                f"{row.tp}: kafka now holds {show(offset)}, which was committed in the "
                "meantime: run the command again",
            )
    kafka = InKafka(stores, state.group, state.in_kafka, permission, wanted.keys, note)
    failed = kafka.change({tp: StoredOffset(offset) for tp, offset in wanted.items()})
    check_accepted(state.group, failed, len(wanted))
    found_now = stores.fetch(state.in_kafka, list(wanted))
    for tp, offset in wanted.items():
        if tp not in found_now or found_now[tp].offset != offset:
            raise refused(
                state.group,
                Reason.OTHER_WRITER,
                f"{tp} was written as {offset}, but another client is writing: stop it, then "
                "run the command again",
            )


def _ends(found: Record, state: GroupState, store: Store, rows: Sequence[Reset]) -> dict[str, Any]:
    """Return the record's values about offsets written late, after ``rows`` are set. The late
    offsets were written to Kafka. So a partition that is set in ZooKeeper remains listed if Kafka
    may hold an offset for it. When none remain, an interrupted change has ended, and an undo has
    not taken the group back. If the record does not name the partitions, the doubt remains until
    all offsets are set."""
    in_kafka = store is Store.KAFKA
    done = {row.tp for row in rows if in_kafka or not state.may_hold(Store.KAFKA, row.tp)}
    late = tuple(tp for tp in found.late if tp not in done)
    whole = done >= (state.kafka if in_kafka else {**state.zk, **state.kafka}).keys()
    more = 0 if whole else found.late_more
    stage = found.stage
    if not late and not more:
        stage = {Stage.BEGUN: Stage.NONE, Stage.UNDOING: Stage.DONE}.get(stage, stage)
    by_undo = found.by_undo and stage is found.stage
    return {"late": late, "late_more": more, "stage": stage, "by_undo": by_undo}


def _exists(group: str) -> Script[bool]:
    """Whether ZooKeeper has the group."""
    return isinstance((yield from read(Exists(GroupPaths(group).root))), Ok)
