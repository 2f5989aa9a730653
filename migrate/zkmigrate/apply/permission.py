"""Changes of a group in Kafka, and the permission for them: the session that claimed the group in
ZooKeeper must be alive.

Kafka does not know about the claim, so it does not refuse late changes, such as those of a tool
that was suspended. Therefore the permission is checked right before each request that changes
something, when the coordinator is connected. Each thread of a run has its own permission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

from zkconsumer.admin.takeover import Hold
from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Failed, Multi, Ok, Reply
from zkconsumer.core.zookeeper.scripts.common import Script, read
from zkconsumer.errors import ZkConsumerError
from zkconsumer.runtime.gate import CLOCK
from zkconsumer.zk.blocking import BlockingZk
from zkmigrate.apply.journal import Effect, no_effect
from zkmigrate.errors import GroupRefusedError, refused
from zkmigrate.reasons import Reason
from zkmigrate.stores import record
from zkmigrate.stores.sessions import Stores
from zkmigrate.text import late_text

Note = Callable[[Collection[TopicPartition]], object]
MIRROR_PERMITTED_S: Final = 0.5
"""Seconds for which a mirror can use the permission for one group, from the request to ZooKeeper
on. If the answer takes longer, the process may have been suspended."""
MIRROR_PERMISSIONS_END_S: Final = MIRROR_PERMITTED_S + 0.05
"""Seconds after a change of a group's record until all earlier permissions have expired and their
commits have arrived."""


def boottime() -> float:
    """Return the seconds since the machine was started, including time in which it was
    suspended."""
    return time.clock_gettime(CLOCK)


class Permission:
    """The permission to change a group that this process has claimed. ``clock``: returns seconds,
    and continues while the machine is suspended."""

    def __init__(self, zk: BlockingZk, hold: Hold, clock: Callable[[], float] = boottime) -> None:
        self._zk: Final = zk
        self._hold: Final = hold
        self._clock: Final = clock
        self._until = float("-inf")

    def ask(self) -> None:
        """Check that the claim is still valid, and that no other command has written the group's
        record.

        Raises GroupRefusedError if not. The result is valid for one session timeout from the start
        of the request, because ZooKeeper keeps the session at least that long.
        """
        asked = self._clock()
        reply = self._zk.run(self._checked())
        ended = isinstance(reply, Failed) and reply.index == 0
        if ended or self._clock() >= asked + self._zk.session_timeout:
            raise refused(
                self._hold.group,
                Reason.SESSION_ENDED,
                "the ZooKeeper session that claimed the group has ended, perhaps because zkmigrate "
                "was suspended; nothing more was written: run the command again",
            )
        if isinstance(reply, Failed):
            raise refused(self._hold.group, Reason.OTHER_OPERATOR, record.MEANWHILE)
        self._until = asked + self._zk.session_timeout

    @property
    def in_doubt(self) -> bool:
        """Whether the result of ``ask`` has expired, so that a later request may have come too
        late."""
        return float("-inf") < self._until <= self._clock()

    def still(self) -> Script[bool]:
        """Return whether the permission is still valid. The same check as ``ask``, for scripts."""
        return isinstance((yield from self._checked()), Ok)

    def _checked(self) -> Script[Reply]:
        """Ask ZooKeeper's leader, because another server may return old data."""
        serial = self._hold.serial
        return (yield from read(Multi((self._hold.check, *([serial] if serial else ())))))


def check_accepted(
    group: str, failed: Mapping[TopicPartition, ZkConsumerError], count: int
) -> None:
    """Check that the coordinator refused no offset. Raises GroupRefusedError.

    ``failed``: the refused ones. ``count``: the number of all offsets, for the message.
    """
    if failed:
        tp, error = min(failed.items())
        text = (
            f"the coordinator refused {len(failed)} of {count} offsets, such as {tp} "
            f"({error}); remove the cause, then run it again"
        )
        raise refused(group, Reason.COORDINATOR_REFUSED, text)


class InKafka:
    """Changes the offsets of one group in Kafka.

    Args:
        permission: checked before each request. ``None``: no check, as the coordinator refuses
            commits to a group with members.
        lost: called if the permission has expired when a request ends. Returns the partitions where
            newer offsets may have been overwritten.
        note: writes these partitions to the journal.
    """

    def __init__(
        self,
        stores: Stores,
        group: str,
        in_kafka: str,
        permission: Permission | None,
        lost: Callable[[], Collection[TopicPartition]],
        note: Note,
        effect: Effect = no_effect,
    ) -> None:
        self._stores = stores
        self._group = group
        self._in_kafka = in_kafka
        self._permission = permission
        self._lost = lost
        self._note = note
        self._effect = effect

    def change(
        self, new: Mapping[TopicPartition, StoredOffset], gone: Collection[TopicPartition] = ()
    ) -> Mapping[TopicPartition, ZkConsumerError]:
        """Commit and delete offsets. Return those that the coordinator refused.

        If the permission expired before the coordinator answered, other clients may have used the
        group before the change. Then nothing is restored, as they may still be active. The
        partitions are written to the group's record if ZooKeeper is reachable. Raises
        GroupRefusedError.
        """
        ask = self._permission.ask if self._permission else lambda: None
        kafka, failed = self._stores.kafka, {}
        try:
            if new:
                self._effect(f"before kafka commit of {len(new)} {self._group}")
                failed = kafka.commit(self._in_kafka, new, ask)
                self._effect(f"after kafka commit of {len(new)} {self._group}")
            if gone and not failed:
                self._effect(f"before kafka delete of {len(gone)} {self._group}")
                failed = kafka.delete(self._in_kafka, gone, ask)
                self._effect(f"after kafka delete of {len(gone)} {self._group}")
        except ZkConsumerError:
            self._ask_again()
            raise
        self._ask_again()
        return failed

    def _ask_again(self) -> None:
        """Check the permission after a request that took longer than a session may last."""
        if self._permission is None or not self._permission.in_doubt:
            return
        try:
            self._permission.ask()
        except ZkConsumerError:
            raise self.in_doubt(self._lost()) from None

    def in_doubt(self, lost: Iterable[TopicPartition]) -> GroupRefusedError:
        """Record that newer offsets may have been overwritten, and return the error that says so.

        The partitions are written to the journal, then to the group's record. If the record was
        written, they are removed from the journal. Raises JournalError.
        """
        rows = sorted(lost)
        try:
            self._note(rows)
        finally:  # the disk may be full
            with suppress(ZkConsumerError):
                self._stores.zk.run(record.note_late(self._group, rows))
                self._note(())
        return refused(self._group, Reason.WRITTEN_LATE, late_text(rows))
