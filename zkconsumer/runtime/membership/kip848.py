"""ConsumerGroupCoordination: carries out a KIP-848 member's commands at its coordinator.

It works like ``BrokerCoordination``, on the same threads. Only the lease differs: each answered
heartbeat proves that the coordinator treats this member as live.
"""

from __future__ import annotations

from typing import Any

from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.groups import kip848_commands as commands, kip848_events as events
from zkconsumer.core.groups.events import RequestFailed
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.reactions import UNREACHABLE
from zkconsumer.runtime.membership.classic import BrokerCoordination


class ConsumerGroupCoordination(BrokerCoordination):
    """Carries out a KIP-848 member's commands. Arguments: see ``BrokerCoordination``."""

    def carry_out(self, command: Any) -> None:
        """Send the request of a command."""
        if isinstance(command, commands.MemberHeartbeat):
            self._send(self._heartbeats, command)
        else:
            super().carry_out(command)

    def _answered(self, command: Any, event: Any, sent: float, sent_us: int) -> None:
        if isinstance(command, commands.MemberHeartbeat):
            if isinstance(event, RequestFailed):
                code = event.code or UNREACHABLE
                event = events.MemberHeartbeatAnswered(command.token, code, event.detail)
            self._host.post(lambda: self._beaten(command, event, sent, sent_us))
            return
        super()._answered(command, event, sent, sent_us)

    def _beaten(self, command: Any, event: Any, sent: float, sent_us: int) -> None:
        """Extend the lease after a heartbeat. Runs on the host's thread, because only the machine
        knows whether the coordinator waits.

        The coordinator waits for the rebalance timeout until this member has released the removed
        partitions, and then continues without it. The wait cannot have begun before the last
        heartbeat after which nothing had to be released.
        """
        machine = self._member.machine
        assert isinstance(machine, Kip848Machine)
        current = machine.awaits(event.token)
        self._take_answer(command, event, sent_us)
        if current and event.code == ErrorCode.NONE and machine.generation >= 0:
            settled = ErrorCode.REBALANCE_IN_PROGRESS if machine.releasing else ErrorCode.NONE
            self.confirm(sent, settled)
