"""The permission to change a group in Kafka: the session that claimed it in ZooKeeper lives.

Kafka does not know of the claim, so nothing there refuses a change that comes late, such as that of
a tool that was suspended. Therefore the permission is asked for right before each request that
changes something, when the coordinator is found and connected. Each thread of a run has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.runtime.gate import CLOCK
from zkconsumer.zk.blocking import BlockingZk
from zkmigrate.apply.ownership import Hold
from zkmigrate.errors import refused
from zkmigrate.reasons import Reason
from zkmigrate.stores import record


def boottime() -> float:
    """Seconds of a clock that continues while the machine is suspended."""
    return time.clock_gettime(CLOCK)


class Permission:
    """The permission to change a group that is claimed.

    Args:
        zk: the session that claimed the group.
        hold: the claim.
        clock: seconds, also of the time that the machine is suspended.
    """

    def __init__(self, zk: BlockingZk, hold: Hold, clock: Callable[[], float] = boottime) -> None:
        self._zk: Final = zk
        self._hold: Final = hold
        self._clock: Final = clock
        self._until = float("-inf")
        self.serial: int | None = None
        """The version that the group's record must have, once this run has written it."""

    def ask(self) -> None:
        """Ask ZooKeeper whether the claim still stands. Raises GroupRefusedError if not.

        An answer is good for a session timeout from the moment of the question, as ZooKeeper keeps
        a session at least that long.
        """
        asked = self._clock()
        node, written = self._zk.run(
            read_many([self._hold.check.path, record.path(self._hold.group)])
        )
        if (
            node is None
            or node.stat.ephemeral_owner != self._hold.session_id
            or self._clock() >= asked + self._zk.session_timeout
        ):
            raise refused(
                self._hold.group,
                Reason.SESSION_ENDED,
                "the session with ZooKeeper that claimed the group has ended, perhaps because "
                "zkmigrate was suspended; nothing more is written: run it again",
            )
        serial = -1 if written is None else written.stat.version
        if self.serial not in (None, serial):
            raise refused(self._hold.group, Reason.OTHER_OPERATOR, record.MEANWHILE)
        self._until = asked + self._zk.session_timeout

    @property
    def in_doubt(self) -> bool:
        """Whether the last answer is no longer good, so that a request may have been late."""
        return float("-inf") < self._until <= self._clock()

    def still(self) -> Script[bool]:
        """Whether the claim still stands, for a script."""
        (node,) = yield from read_many([self._hold.check.path])
        return node is not None and node.stat.ephemeral_owner == self._hold.session_id
