"""Observers of members for the study of the herd effect: they write journals, or feed a tally.

Journals contain the sizes of requests and answers. A tally counts during a simulated run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from zkconsumer.core.common.commands import Drop, Forget, StartFetching
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.zookeeper.commands import Command
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.ops import OffsetOp, Reply, ZkOp
from zkconsumer.herd.group_wire import Wire
from zkconsumer.herd.tally import Tally
from zkconsumer.herd.wire import Cost, cost
from zkconsumer.journal.counts import GROUP_KINDS, kind_of
from zkconsumer.journal.group import GroupRecorder, result_of
from zkconsumer.journal.recorder import MemberRecorder, Sink
from zkconsumer.journal.schema import Kind


class SizedRecorder(MemberRecorder):
    """A ``MemberRecorder`` that also records the size of each request and answer. ``chroot``:
    number of characters of the chroot."""

    def __init__(self, sink: Sink, member: str, now_us: Callable[[], int], chroot: int = 0) -> None:
        super().__init__(sink, member, now_us)
        self._chroot = chroot

    def _spent(self, op: ZkOp | OffsetOp, reply: Reply) -> dict[str, int]:
        return dataclasses.asdict(cost(op, reply, self._chroot))

    def reads(self, path: str, spent: Cost, sent_us: int, session: int, attempt: int) -> None:
        """Write many reads as one line with the path of the first (simulator only)."""
        entry = self._entry(Kind.OP, None, session, attempt)
        entry |= {"name": "GetMany", "sent": sent_us, "path": path, "result": "ok"}
        self._sink.write(entry | dataclasses.asdict(spent))


class SizedGroupRecorder(GroupRecorder):
    """A ``GroupRecorder`` that also records the size of each request and answer.

    It needs the group, the client id and the instance id, because requests contain them.
    """

    def __init__(
        self,
        sink: Sink,
        member: str,
        now_us: Callable[[], int],
        group: str,
        client_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        super().__init__(sink, member, now_us)
        self._wire = Wire(group, client_id, instance_id)

    def _spent(self, command: Any, answer: Any) -> dict[str, int]:
        return dataclasses.asdict(self._wire.cost(command, answer))


class MemberCounter:
    """Feeds a tally with the actions of one simulated member of a group in ZooKeeper."""

    def __init__(self, tally: Tally, member: str, now_us: Callable[[], int]) -> None:
        self._tally = tally
        self._member = member
        self._now_us = now_us

    def event(self, event: Event, session: int, attempt: int) -> None:
        """Count an event."""
        self._tally.event(self._member, event)

    def command(self, command: Command, session: int, attempt: int) -> None:
        """Count a command."""
        self._tally.command(self._member, command)

    def op(
        self, op: ZkOp | OffsetOp, reply: Reply, sent_us: int, session: int, attempt: int
    ) -> None:
        """Count an operation."""
        self._tally.did(self._now_us(), sent_us, self._member, op, reply)

    def shut(self, since_us: int) -> None:
        """Do nothing."""

    def reads(self, path: str, spent: Cost, sent_us: int, session: int, attempt: int) -> None:
        """Count many reads together."""
        kind = kind_of("GetMany", path)
        self._tally.spend(self._now_us(), self._member, kind, spent, sent_us)


class GroupCounter:
    """Feeds a tally with the actions of one simulated member of a group in Kafka."""

    def __init__(self, tally: Tally, member: str, now_us: Callable[[], int], group: str) -> None:
        self._tally = tally
        self._member = member
        self._now_us = now_us
        self._wire = Wire(group, "", None)

    def event(self, event: group_events.Event, generation: int, attempt: int) -> None:
        """Do nothing."""

    def command(self, command: group_commands.Command, generation: int, attempt: int) -> None:
        """Record changes of ownership."""
        if isinstance(command, StartFetching | Forget | Drop):
            name = type(command).__name__
            self._tally.fetches(self._now_us(), self._member, name, command.partitions)

    def request(
        self, command: Any, answer: Any, sent_us: int, generation: int, attempt: int
    ) -> None:
        """Count an operation."""
        name, spent = type(command).__name__, self._wire.cost(command, answer)
        self._tally.spend(self._now_us(), self._member, GROUP_KINDS[name], spent, sent_us)
        self._tally.asked(self._member, name, result_of(answer))
