"""Carries out a plan, or takes it back: one group after the other, journalled, restartable.

Used from one thread. Each group goes through the same steps, and the journal names each before it
begins: ``claim`` (take the group over), ``write`` (change the target), ``mark`` (tombstone and
giving back), ``done``; on the way back ``undo-claim`` and so on. After ``done`` the source store is
read once more, and again by each later run. A run that finds a group begun goes through all steps
again: each may find its work done already.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from zkconsumer.admin.text import printable
from zkconsumer.broker.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_offset
from zkconsumer.errors import ZkConsumerError, ZkUnavailableError, ZnodeFormatError
from zkmigrate import ownership, tombstone
from zkmigrate.errors import GroupRefusedError, JournalError
from zkmigrate.journal import Effect, Journal, no_effect
from zkmigrate.model import GroupPlan, KafkaOffset, Store, Verdict
from zkmigrate.outcome import Outcome, Result
from zkmigrate.plan import show, shown
from zkmigrate.plan_file import PlanFile
from zkmigrate.snapshot import Stores, offset_partitions
from zkmigrate.work import Held, Work, back, forward, number, record_of

_POLL: Final = 0.2


class Mover:
    """Applies plans and rolls them back.

    Args:
        stores: both, opened.
        effect: told before and after each thing done to the outside world.
        force: on the way back, also where somebody has moved on since.
    """

    def __init__(self, stores: Stores, effect: Effect = no_effect, force: bool = False) -> None:
        self._stores = stores
        self._effect = effect
        self._force = force
        self._run = uuid.uuid4().hex[:8]

    # -- plans ---------------------------------------------------------------------------------

    def apply(
        self,
        plan: PlanFile,
        journal: Journal | None,
        on_group: Callable[[Result], object],
        records: Iterable[dict[str, Any]] = (),
    ) -> list[Result]:
        """Move every group that is ready.

        Without a journal only look whether it could be done, after earlier runs left ``records``.
        """
        begun = _begun(records if journal is None else journal.records)

        def one(group: GroupPlan) -> Result:
            if group.verdict is Verdict.MOVED:
                return Result(group.group, Outcome.NOTHING, 0, "was moved before the plan was made")
            if group.verdict is not Verdict.READY:
                problem = group.problems[0]
                return Result(group.group, Outcome.SKIPPED, 0, f"{problem.what}: {problem.fix}")
            work = forward(plan, group)
            records = begun.get(group.group, [])
            last = records[-1]["step"] if records else ""
            if last == "done":
                self._see_unchanged_since(work)
                return Result(group.group, Outcome.WAS_DONE, 0)
            if last.startswith("undo"):
                raise GroupRefusedError(f"group {group.group} was rolled back: make a new plan")
            return self._move(work, records, "", journal)

        return self._each(plan.groups, one, on_group)

    def rollback(
        self, plan: PlanFile, journal: Journal, execute: bool, on_group: Callable[[Result], object]
    ) -> list[Result]:
        """Take every group back that was begun; the others were not changed."""
        begun = _begun(journal.records)

        def one(group: GroupPlan) -> Result:
            records = begun.get(group.group, [])
            if not records:
                return Result(group.group, Outcome.NOTHING, 0, "was not begun")
            steps = [record["step"] for record in records]
            if steps[-1] == "undo-done":
                return Result(group.group, Outcome.WAS_DONE, 0)
            if set(steps) <= {"claim", "undo-claim"}:
                if execute:
                    self._outlive(_names(records), group.group)
                    journal.write(group=group.group, step="undo-done")
                return Result(group.group, Outcome.NOTHING, 0, "nothing was written")
            (claim,) = [record for record in records if record["step"] == "claim"][:1]
            work = back(forward(plan, group), claim.get("held"))
            return self._move(work, records, "undo-", journal if execute else None)

        return self._each(plan.groups, one, on_group)

    def _each(
        self,
        groups: Iterable[GroupPlan],
        one: Callable[[GroupPlan], Result],
        on_group: Callable[[Result], object],
    ) -> list[Result]:
        """One bad group does not stop the rest; a damaged journal or no ZooKeeper does."""
        results: list[Result] = []
        for group in groups:
            try:
                result = one(group)
            except (JournalError, ZkUnavailableError):
                raise
            except ZkConsumerError as error:
                result = Result(group.group, Outcome.FAILED, 0, str(error))
            results.append(result)
            on_group(result)
        return results

    # -- one group -----------------------------------------------------------------------------

    def _move(
        self, work: Work, records: list[dict[str, Any]], prefix: str, journal: Journal | None
    ) -> Result:
        undo = bool(prefix)
        mine = [record for record in records if record["step"].startswith("undo") is undo]
        # What was begun and then taken back partly may be anywhere between the two ends.
        resumed = bool(mine) or (undo and records[-1]["step"] != "done")
        self._outlive(_names(records), work.group)
        self._look(work, resumed)
        if journal is None:
            self._look_at_offsets(work, resumed)
            return Result(work.group, Outcome.WOULD, len(work.to))
        name = f"{work.group}_zkmigrate-{self._run}"
        hold = ownership.Hold(work.group, name, int(time.time() * 1000))
        journal.write(group=work.group, step=f"{prefix}claim", name=name, held=record_of(work))
        zk = self._stores.zk
        partitions = {*work.zk, *work.kafka}
        accept = self._acceptor(work, resumed)
        try:
            zk.run(ownership.counted(ownership.take(hold, partitions, accept), self._effect))
            self._look(work, resumed, held=True)
            journal.write(group=work.group, step=f"{prefix}write")
            written = self._write(work, hold)
            self._read_back(work)
            journal.write(group=work.group, step=f"{prefix}mark")
            checked = not self._force
            found = work.between | {work.before}
            stone = ownership.write_tombstone(hold, found, work.after, checked)
            zk.run(ownership.counted(stone, self._effect))
        except ZkUnavailableError:
            raise  # the claims end with the session
        except ZkConsumerError as error:
            self._give_back_after(error, hold)
            raise
        others = zk.run(ownership.counted(ownership.give_back(hold), self._effect))
        if others and work.target is Store.KAFKA and not undo:
            raise GroupRefusedError(
                f"group {work.group} is moved, but {shown(others)} registered in ZooKeeper "
                "meanwhile and will go on from the old offsets: stop these members, then apply "
                "again"
            )
        journal.write(group=work.group, step=f"{prefix}done")
        if not undo:
            self._see_source(work)
        return Result(work.group, Outcome.DONE, written)

    def _see_unchanged_since(self, work: Work) -> None:
        """See that nobody has used the source store since a move that is the group's last one."""
        (stone,) = self._stores.zk.run(read_many([tombstone.path(work.group)]))
        if stone is not None and stone.data == work.after:
            self._see_source(work)

    def _see_source(self, work: Work) -> None:
        """See that the source store still holds what was moved. Raises GroupRefusedError.

        An offset that is gone is no newer offset: nothing stays behind.
        """
        if work.leaves is Store.KAFKA:
            before = work.kafka
            now = {tp: number(found) for tp, found in self._kafka(work).items()}
        else:
            before, now = work.zk, self._in_zookeeper(work)
        for tp, found in sorted(now.items()):
            moved = number(before.get(tp))
            if found is not None and found != moved and not work.leaves_out(tp):
                raise _refused(
                    work.group,
                    f"{tp}: {work.leaves.value} holds {show(found)}, not {show(moved)}, since the "
                    "group was moved: a consumer is or was alive; stop it, then plan again",
                )

    def _in_zookeeper(self, work: Work) -> dict[TopicPartition, int | None]:
        """Return a group's offsets in ZooKeeper that are not left out. Raises ZnodeFormatError."""
        found = self._stores.zk.run(offset_partitions(work.group))
        there = [tp for tp in found if not work.leaves_out(tp)]
        paths = list(map(GroupPaths(work.group).offset, there))
        nodes = self._stores.zk.run(read_many(paths))
        return {tp: _offset(node, path) for tp, path, node in zip(there, paths, nodes, strict=True)}

    def _give_back_after(self, error: ZkConsumerError, hold: ownership.Hold) -> None:
        """Give the group back after a failure, as far as ZooKeeper can be reached."""
        try:
            self._stores.zk.run(ownership.counted(ownership.give_back(hold), self._effect))
        except ZkConsumerError as second:
            error.add_note(str(second))  # the claims end with the session

    def _outlive(self, names: set[str], group: str) -> None:
        """Wait until the sessions of killed runs have ended."""
        deadline = time.monotonic() + self._stores.timeout * 2 + 5
        waiting = False
        while True:
            there = names.intersection(self._stores.zk.run(ownership.list_members(group)))
            if not there:
                return
            if not waiting:
                waiting = True
                self._stores.on_wait(f"the session of an earlier run to end, in group {group}")
            if time.monotonic() >= deadline:
                raise GroupRefusedError(
                    f"group {group}: the session of an earlier run ({shown(sorted(there))}) is "
                    "still alive: is it running?"
                )
            time.sleep(_POLL)

    def _look(self, work: Work, resumed: bool, held: bool = False) -> None:
        """See that nobody is there and that Kafka and the tombstone are as they should be.

        With ``held`` the group is claimed in ZooKeeper already. Looking for offsets that the plan
        does not know needs both: before, nothing is changed in vain; after it, none can come any
        more. Raises GroupRefusedError.
        """
        group = work.group
        joined = self._stores.kafka.members(group)
        if joined:
            raise _refused(
                group, f"{shown(joined)} joined at the broker's coordinator: stop these consumers"
            )
        self._see_kafka(work, resumed)
        self._see_zookeeper(work)
        if held:
            return
        self._see_logs(work)
        registered = self._stores.zk.run(ownership.list_members(group))
        if registered:
            raise _refused(group, f"{shown(registered)} registered in ZooKeeper: stop these first")
        (stone,) = self._stores.zk.run(read_many([tombstone.path(group)]))
        content = None if stone is None else stone.data
        if content != work.before and not (resumed and content in work.between):
            raise _refused(group, f"{tombstone.path(group)} changed since the plan: plan again")

    def _look_at_offsets(self, work: Work, resumed: bool) -> None:
        """See that ZooKeeper's offsets are as they should be; claiming looks for itself."""
        accept = self._acceptor(work, resumed)
        for tp, node in self._znodes(work).items():
            fault = accept(tp, node)
            if fault is not None:
                raise _refused(work.group, fault)

    def _znodes(self, work: Work) -> dict[TopicPartition, Node | None]:
        tps = sorted({*work.zk, *work.kafka})
        path = GroupPaths(work.group).offset
        nodes = self._stores.zk.run(read_many(list(map(path, tps))))
        return dict(zip(tps, nodes, strict=True))

    def _see_kafka(self, work: Work, resumed: bool) -> None:
        if self._force:
            return
        held = self._kafka(work)
        for tp in sorted(work.kafka):
            allowed = work.expected(Store.KAFKA, tp, resumed)
            if number(held.get(tp)) not in allowed:
                raise _refused(
                    work.group, _moved_on(Store.KAFKA, tp, number(held.get(tp)), allowed)
                )
        _see_known(work, Store.KAFKA, {tp: number(found) for tp, found in held.items()})

    def _see_zookeeper(self, work: Work) -> None:
        """See that ZooKeeper holds no offset that the plan does not know; claims see the others."""
        if self._force or work.leaves is not Store.ZOOKEEPER:
            return
        there = self._stores.zk.run(offset_partitions(work.group))
        unknown = [tp for tp in there if not work.knows(tp)]
        paths = list(map(GroupPaths(work.group).offset, unknown))
        nodes = self._stores.zk.run(read_many(paths))
        held = {
            tp: _offset(node, path) for tp, path, node in zip(unknown, paths, nodes, strict=True)
        }
        _see_known(work, Store.ZOOKEEPER, held)

    def _see_logs(self, work: Work) -> None:
        """See that the topics are still those of the plan and that their logs hold its offsets."""
        if not work.topics:
            return
        topics, ranges = self._stores.logs.covering(work.to, self._stores.patience)
        for topic, created in work.topics.items():
            if topic not in topics or topics[topic].czxid != created:
                raise _refused(
                    work.group, f"topic {topic} was deleted since the plan was made: plan again"
                )
        for tp, to in work.to.items():
            if tp.topic not in topics or to is None:
                continue
            log = ranges.get(tp)
            if log is None:
                raise _refused(
                    work.group,
                    f"{tp}: the brokers gave no log range: see that the partition has a leader, "
                    "then apply again",
                )
            if not log.earliest <= to.offset <= log.latest:
                raise _refused(
                    work.group,
                    f"{tp}: the log is {log.earliest}-{log.latest} now, which does not hold "
                    f"{to.offset}: plan again",
                )

    def _kafka(self, work: Work) -> Held:
        found = self._stores.fetch(work.group, work.kafka)
        return {tp: KafkaOffset(*stored) for tp, stored in found.items()}

    def _acceptor(self, work: Work, resumed: bool) -> ownership.Accept:
        def accept(tp: TopicPartition, node: Node | None) -> str | None:
            if self._force:
                return None
            try:
                found = _offset(node)
            except ZnodeFormatError as fault:
                return str(fault)
            allowed = work.expected(Store.ZOOKEEPER, tp, resumed)
            version = None if node is None else node.stat.version
            if found not in allowed:
                return _moved_on(Store.ZOOKEEPER, tp, found, allowed)
            if not resumed and work.versions is not None and work.versions.get(tp) != version:
                return f"{tp} was written in ZooKeeper since the plan was made: plan again"
            return None

        return accept

    def _write(self, work: Work, hold: ownership.Hold) -> int:
        """Bring the target to what it is to hold; return how many offsets were changed."""
        if work.target is Store.ZOOKEEPER:
            values = {tp: None if new is None else new.offset for tp, new in work.to.items()}
            script = ownership.write_offsets(hold, values)
            self._stores.zk.run(ownership.counted(script, self._effect))
            return len(values)
        held = self._kafka(work)
        new = {
            tp: StoredOffset(to.offset, to.leader_epoch, to.metadata)
            for tp, to in work.to.items()
            if to is not None and to != held.get(tp)
        }
        gone = [tp for tp, to in work.to.items() if to is None and held.get(tp) is not None]
        refused: Mapping[TopicPartition, ZkConsumerError] = {}
        if new:
            self._effect(f"before kafka commit of {len(new)} {work.group}")
            refused = self._stores.kafka.commit(work.group, new)
            self._effect(f"after kafka commit of {len(new)} {work.group}")
        if gone and not refused:
            self._effect(f"before kafka delete of {len(gone)} {work.group}")
            refused = self._stores.kafka.delete(work.group, gone)
            self._effect(f"after kafka delete of {len(gone)} {work.group}")
        if refused:
            tp, error = min(refused.items())
            raise _refused(
                work.group,
                f"the coordinator refused {len(refused)} of {len(work.to)} offsets, such as "
                f"{tp} ({error}); apply again when that is settled",
            )
        return len(new) + len(gone)

    def _read_back(self, work: Work) -> None:
        """Read every partition from the target and compare. Raises GroupRefusedError."""
        if work.target is Store.KAFKA:
            held = {tp: number(found) for tp, found in self._kafka(work).items()}
        else:
            held = {tp: _offset(node) for tp, node in self._znodes(work).items()}
        for tp, to in work.to.items():
            if held.get(tp) != number(to):
                raise _refused(
                    work.group,
                    f"{tp} was written as {show(number(to))} but {work.target.value} holds "
                    f"{show(held.get(tp))}: somebody else writes; nothing was marked as moved",
                )
        if work.target is Store.ZOOKEEPER:
            joined = self._stores.kafka.members(work.group)
            if joined:
                raise _refused(work.group, f"{shown(joined)} joined meanwhile: stop, apply again")
            self._see_kafka(work, False)


def _begun(records: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    begun: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if not isinstance(record.get("group"), str) or not isinstance(record.get("step"), str):
            raise JournalError("the journal holds a record of no known kind: nothing is done")
        begun.setdefault(record["group"], []).append(record)
    return begun


def _names(records: Iterable[dict[str, Any]]) -> set[str]:
    """The names under which earlier runs took a group over."""
    return {str(record.get("name")) for record in records}


def _see_known(work: Work, store: Store, held: Mapping[TopicPartition, int | None]) -> None:
    """See that a store, when it is the one that is left, holds nothing that would stay behind."""
    unknown = (tp for tp, offset in held.items() if offset is not None and not work.knows(tp))
    tp = min(unknown, default=None) if store is work.leaves else None
    if tp is not None:
        raise _refused(
            work.group,
            f"{tp}: {store.value} holds {show(held[tp])}, which is not in the plan: somebody has "
            "moved on since; plan again from what is there now",
        )


def _offset(node: Node | None, path: str = "its offset znode") -> int | None:
    """The offset in a znode; negative ones are none. Raises ZnodeFormatError."""
    if node is None:
        return None
    offset = decode_offset(path, node.data)
    return offset if offset >= 0 else None


def _refused(group: str, why: str) -> GroupRefusedError:
    return GroupRefusedError(printable(f"group {group}: {why}"))


def _moved_on(store: Store, tp: TopicPartition, found: int | None, allowed: set[int | None]) -> str:
    expected = " or ".join(sorted(map(show, allowed)))
    return (
        f"{tp}: {store.value} holds {show(found)}, not {expected}: somebody has moved on since; "
        "plan again from what is there now"
    )
