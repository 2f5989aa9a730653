"""The group of a study and the change in it, for real and simulated runs. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Final

from zkconsumer.core.common.types import Pattern, Subscription
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths

GROUP: Final = "g"
EVENTS: Final = ("join", "leave", "crash", "rolling-restart", "broker-bounce", "topic-create")
NEVER: Final = 1e7
"""Seconds between periodic reads, longer than any run lasts."""
RESTART_SECONDS: Final = 1.0
"""Seconds between the stop and the start of a member, and before the next member stops."""
BOUNCE_SECONDS: Final = 3.0
"""Seconds for which a broker is down."""


@dataclass(frozen=True, slots=True)
class HerdGroup:
    """The parameters of every run. Times are in seconds. Each of the ``topics`` topics has
    ``partitions`` partitions, without messages."""

    members: int
    partitions: int
    topics: int = 1
    event: str = "join"
    profile: str = "scala"
    brokers: int = 3
    session_timeout: float = 6.0
    backoff: float = 2.0
    max_attempts: int = 4
    coalesce: float = 0.05

    def common(self) -> dict[str, Any]:
        """The parameters by name, without those specific to one kind of run."""
        return {field.name: getattr(self, field.name) for field in fields(HerdGroup)}

    def topic_names(self) -> list[str]:
        """Names of the topics that exist before the event."""
        return [f"t{number}" for number in range(self.topics)]

    def subscription(self) -> Subscription:
        """The topics by name, or a filter if a topic will be created."""
        if self.event == "topic-create":
            return Subscription(Pattern.WHITE_LIST, {"t.*": 1})
        return Subscription(Pattern.STATIC, dict.fromkeys(self.topic_names(), 1))

    def member_spec(self, name: str, subscription: Subscription) -> MemberSpec:
        """Return the settings of a member of this group in ZooKeeper."""
        return MemberSpec(
            paths=GroupPaths(GROUP),
            consumer_id=name,
            subscription=subscription,
            scala=self.profile == "scala",
            coalesce=self.coalesce,
            backoff=self.backoff,
            reread=NEVER,
            session_timeout=self.session_timeout,
            max_attempts=self.max_attempts,
        )

    def topic_content(self) -> bytes:
        """Return the data of a topic's znode."""
        partitions = {str(number): [0] for number in range(self.partitions)}
        return json.dumps({"version": 1, "partitions": partitions}).encode()


def broker_content(broker: int) -> bytes:
    """Return the data of a broker's znode."""
    document = {"version": 1, "host": f"b{broker}", "port": 9092, "jmx_port": -1}
    return json.dumps(document).encode()


def member_name(number: int, restarts: int = 0) -> str:
    """Return a member's consumer id. A restarted member gets a new one, as JVM members do."""
    return f"{GROUP}_m{number:05d}-{restarts}"
