"""A process with many members of one group that fetch nothing, for studies of the herd effect.

It is its own process (``python -m zkconsumer.servers.herd.members``). It reads commands as JSON
lines from stdin and answers each with a line on stdout: ``{"start": [name, ..]}``, ``{"stop":
[name, ..]}``, ``{"status": true}``. The end of stdin ends the process. Each member is the real
connector loop on the real ZooKeeper driver; only fetching is left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zkconsumer.core.common import events
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    TopicPartition,
)
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.states import State
from zkconsumer.errors import ZkConsumerError
from zkconsumer.herd.parameters import HerdGroup
from zkconsumer.herd.recorders import SizedRecorder
from zkconsumer.journal.json_lines import JournalWriter
from zkconsumer.journal.recorder import run_entry
from zkconsumer.runtime.gate import DeliveryGate
from zkconsumer.runtime.membership.loop import MemberLoop
from zkconsumer.runtime.membership.threads import MemberThread
from zkconsumer.runtime.membership.zookeeper import (
    SessionSignals,
    ZooKeeperCoordination,
    rebalance_counts,
)
from zkconsumer.zk.driver import ZkDriver

_CONNECT_SECONDS = 60.0
_LEAVE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HerdSettings:
    """The settings of all members."""

    zookeeper: str
    chroot: str
    herd: HerdGroup

    def as_json(self) -> str:
        """The settings as one command-line argument."""
        return json.dumps([self.zookeeper, self.chroot, self.herd.common()])

    @classmethod
    def from_json(cls, text: str) -> HerdSettings:
        """Parse a result of ``as_json``."""
        zookeeper, chroot, herd = json.loads(text)
        return cls(zookeeper, chroot, HerdGroup(**herd))


class IdlePlane:
    """Holds partitions and fetches nothing, like a member that has read every message. Called by
    its member's loop only."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, int] = {}

    def set_brokers(self, brokers: tuple[BrokerEndpoint, ...]) -> None:
        """Do nothing: no brokers are needed."""

    def start(
        self, partitions: Mapping[TopicPartition, tuple[ConsumerThreadId, int | None]]
    ) -> None:
        """Hold partitions at these offsets."""
        for tp, (_, offset) in partitions.items():
            self._positions[tp] = offset or 0

    def stop(
        self,
        partitions: Iterable[TopicPartition],
        done: Callable[[dict[TopicPartition, int]], object],
    ) -> None:
        """Drop the partitions; there are no unacknowledged messages."""
        done(self.drop(partitions))

    def drop(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Drop the partitions, and return their positions."""
        return {tp: self._positions.pop(tp) for tp in partitions if tp in self._positions}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: the positions of stopped partitions are already gone."""

    def positions(self) -> dict[TopicPartition, int]:
        """The position of each partition."""
        return dict(self._positions)

    def fail(self, error: Exception) -> None:
        """Do nothing: there are no streams."""

    def close(self, timeout: float = 0.0) -> None:
        """Drop all partitions."""
        self._positions.clear()


class HerdMember:
    """One member. It joins at construction, which blocks until there is a session.

    Raises ZkUnavailableError, ChrootMissingError.
    """

    def __init__(self, settings: HerdSettings, name: str, journal: JournalWriter) -> None:
        herd = settings.herd
        host, gate = MemberThread(name), DeliveryGate(always_open=True)
        recorder = SizedRecorder(
            journal, name, lambda: time.time_ns() // 1000, len(settings.chroot)
        )
        signals = SessionSignals(host, gate)
        self.driver = ZkDriver(
            settings.zookeeper,
            settings.chroot,
            herd.session_timeout,
            signals.on_session,
            signals.on_watch,
        )
        self.driver.start(_CONNECT_SECONDS)
        self.loop = MemberLoop(
            name,
            RebalanceMachine(herd.member_spec(name, herd.subscription())),
            ZooKeeperCoordination(host, gate, self.driver, signals, herd.session_timeout),
            IdlePlane(),
            gate,
            host,
            None,
            auto_commit_interval=None,
            rebalances=rebalance_counts(),
            observer=recorder,
        )
        host.start(self.loop)

    def status(self) -> tuple[str, int]:
        """Return the member's state and its number of partitions. Called by another thread."""
        machine = self.loop.machine
        return machine.state.name, len(machine.held)

    def stop(self) -> None:
        """Leave the group."""
        self.loop.post(events.CloseRequested())
        self.loop.closed.result(_LEAVE_SECONDS)


class Process:
    """All members of this process."""

    def __init__(self, settings: HerdSettings, journal: JournalWriter) -> None:
        self._settings = settings
        self._journal = journal
        self._members: dict[str, HerdMember] = {}
        self._pool = ThreadPoolExecutor(16)

    def obey(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one request. Return the answer."""
        if names := order.get("start"):
            made = self._pool.map(
                lambda name: HerdMember(self._settings, name, self._journal), names
            )
            self._members.update(zip(names, made, strict=True))
        if names := order.get("stop"):
            leaving = [self._members.pop(name) for name in names]
            list(self._pool.map(HerdMember.stop, leaving))
        if order.get("flush"):
            self._journal.flush()
        states: dict[str, int] = {}
        held = 0
        for member in self._members.values():
            state, partitions = member.status()
            states[state] = states.get(state, 0) + 1
            held += partitions
        resting = sum(states.get(state.name, 0) for state in (State.RESTING, State.FAILED))
        return {
            "members": len(self._members),
            "resting": resting,
            "failed": states.get(State.FAILED.name, 0),
            "held": held,
        }


def main(arguments: Sequence[str]) -> int:
    """Carry out requests until stdin ends."""
    parser = argparse.ArgumentParser(prog="herd_members")
    parser.add_argument("settings", help="HerdSettings as JSON")
    parser.add_argument("journal", type=Path)
    options = parser.parse_args(arguments)
    settings = HerdSettings.from_json(options.settings)
    # What members report stands in the journal.
    logging.getLogger("zkconsumer").addHandler(logging.NullHandler())
    with JournalWriter(options.journal) as journal:
        journal.write(run_entry(time.time_ns() // 1000, "epoch", {}))
        process = Process(settings, journal)
        for line in sys.stdin:
            try:
                answer = process.obey(json.loads(line))
            except ZkConsumerError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)  # noqa: T201
    # Sessions of members that are still there are left to their timeout: leaving takes long.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
