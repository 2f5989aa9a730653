"""Observers of simulated members that feed a tally while the run goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zkconsumer.core.common.commands import Drop, Forget, StartFetching
from zkconsumer.core.groups import commands as group_commands, events as group_events
from zkconsumer.core.zookeeper.commands import Command
from zkconsumer.core.zookeeper.events import Event
from zkconsumer.core.zookeeper.ops import OffsetOp, Reply, ZkOp
from zkconsumer.herd.group_wire import Wire
from zkconsumer.herd.tally import Tally
from zkconsumer.herd.wire import Cost
from zkconsumer.journal.counts import GROUP_KINDS, kind_of
from zkconsumer.journal.group import result_of


class MemberCounter:
    """Feeds a tally with one member of a simulation."""

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
        """No cost."""

    def reads(self, path: str, spent: Cost, sent_us: int, session: int, attempt: int) -> None:
        """Count reads in bulk."""
        kind = kind_of("GetMany", path)
        self._tally.spend(self._now_us(), self._member, kind, spent, sent_us)


class GroupCounter:
    """Feeds a tally with one simulated member of a group on the brokers."""

    def __init__(self, tally: Tally, member: str, now_us: Callable[[], int], group: str) -> None:
        self._tally = tally
        self._member = member
        self._now_us = now_us
        self._wire = Wire(group, "", None)

    def event(self, event: group_events.Event, generation: int, attempt: int) -> None:
        """No cost."""

    def command(self, command: group_commands.Command, generation: int, attempt: int) -> None:
        """Follow ownership."""
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


__all__ = ["GroupCounter", "MemberCounter"]
