"""Members of the original consumer next to a herd: ``zkconsumer herd --jvm``.

They write no journal, so their cost is visible only in the server's counters. Used from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zkconsumer.servers.legacy_jvm import JvmMember, JvmMembers


@dataclass(slots=True)
class JvmHerd:
    """``count`` members of Kafka 1.1's consumer. Times are seconds."""

    count: int
    session_timeout: float
    backoff: float
    _jvm: JvmMembers | None = None
    _members: list[JvmMember] = field(default_factory=list)

    def start(self, zookeeper: str, group: str, topics: Sequence[str]) -> None:
        """Have all join and wait for their first rebalance. Raises ClusterError."""
        self._jvm = JvmMembers()
        for number in range(self.count):
            config = {
                "zookeeper.connect": zookeeper,
                "group.id": group,
                "consumer.id": f"jvm{number:05d}",
                "zookeeper.session.timeout.ms": int(self.session_timeout * 1000),
                "rebalance.backoff.ms": int(self.backoff * 1000),
                "rebalance.max.retries": 20,
            }
            self._members.append(JvmMember(self._jvm, config, dict.fromkeys(topics, 1)))
        for member in self._members:
            member.wait_joined(120.0)

    def attempts(self) -> int:
        """Rebalance attempts of all of them so far, according to their log."""
        assert self._jvm is not None
        return sum(self._jvm.attempts(member.consumer_id) for member in self._members)

    def close(self) -> None:
        """End the JVM at once."""
        if self._jvm is not None:
            self._jvm.kill()
