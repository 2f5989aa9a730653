"""A connector whose journal has the sizes of its requests, as the study of the herd needs them."""

from __future__ import annotations

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.core.groups.base import GroupMachine
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.herd.recorders import SizedGroupRecorder
from zkconsumer.journal.group import GroupRecorder


class SizedConnector(CoordinatorConsumerConnector):
    """A member on the coordinator. It needs a journal."""

    def _observer(self, machine: GroupMachine) -> GroupRecorder | None:
        assert self._journal is not None
        config = self.config
        recorder = SizedGroupRecorder(
            self._journal,
            self.consumer_id,
            self._host.wall_us,
            config.group_id,
            config.client_id,
            config.group_instance_id,
        )
        consumer = isinstance(machine, Kip848Machine)
        recorder.made(machine, "consumer" if consumer else "coordinator")
        return recorder


__all__ = ["SizedConnector"]
