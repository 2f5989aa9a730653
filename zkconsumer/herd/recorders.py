"""Journals with the sizes of requests and answers, for the study of the herd effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from zkconsumer.core.zookeeper.ops import OffsetOp, Reply, ZkOp
from zkconsumer.herd.group_wire import Wire
from zkconsumer.herd.wire import Cost, cost
from zkconsumer.journal.group import GroupRecorder
from zkconsumer.journal.recorder import MemberRecorder, Sink
from zkconsumer.journal.schema import Kind


class SizedRecorder(MemberRecorder):
    """A ``MemberRecorder`` that also writes sizes. ``chroot``: characters of the chroot."""

    def __init__(self, sink: Sink, member: str, now_us: Callable[[], int], chroot: int = 0) -> None:
        super().__init__(sink, member, now_us)
        self._chroot = chroot

    def _spent(self, op: ZkOp | OffsetOp, reply: Reply) -> dict[str, int]:
        return dataclasses.asdict(cost(op, reply, self._chroot))

    def reads(self, path: str, spent: Cost, sent_us: int, session: int, attempt: int) -> None:
        """Write many reads, the first of ``path``, in one line (simulator)."""
        entry = self._entry(Kind.OP, None, session, attempt)
        entry |= {"name": "GetMany", "sent": sent_us, "path": path, "result": "ok"}
        self._sink.write(entry | dataclasses.asdict(spent))


class SizedGroupRecorder(GroupRecorder):
    """A ``GroupRecorder`` that also writes sizes, which depend on the member's names."""

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


__all__ = ["SizedGroupRecorder", "SizedRecorder"]
