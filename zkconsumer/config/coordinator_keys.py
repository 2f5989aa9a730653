"""The configuration of a member on the broker's coordinator: a table like that of ZooKeeper
members.

It has the keys of the legacy consumer and those of the newer one. Where two keys mean the same, one
is an alias of the other. Immutable; any thread may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from zkconsumer.config.consumer import fetch_wait
from zkconsumer.config.key_table import (
    OWN,
    REQUIRED,
    Check,
    Given,
    Row,
    Source,
    at_least,
    examine,
    given_in,
    key,
    rows_of,
    rule,
)
from zkconsumer.config.keys import SECURITY, ConsumerKeys, servers_fault
from zkconsumer.config.security_keys import RENAMED as SECURITY_NAMES, RULES as SECURITY_RULES
from zkconsumer.config.values import split_servers

STRATEGIES: Final = (
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "legacy-range",
    "legacy-roundrobin",
)

_NO_ZOOKEEPER: Final = "the group is in Kafka, not in ZooKeeper"

ALIASES: Final[Mapping[str, str]] = {
    "enable.auto.commit": "auto.commit.enable",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "metadata.max.age.ms": "zkconsumer.reread.interval.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "retry.backoff.ms": "rebalance.backoff.ms",
    "zookeeper.session.timeout.ms": "session.timeout.ms",
}
"""Other names of keys: the newer consumer's, and the legacy one's for ``session.timeout.ms``."""

_MAX_TEXT: Final = 32_767
"""Bytes of a text in Kafka's protocol."""
_CONSUMER_SESSION_MS: Final = 45_000
"""Default of ``group.consumer.session.timeout.ms`` in Kafka 4."""

VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "auto.offset.reset": {"earliest": "smallest", "latest": "largest"}
}
"""Values of the newer consumer by key, and the values that they mean in this table."""


def _strategies_fault(value: str) -> str | None:
    names = [name.strip() for name in value.split(",")]
    wrong = [name for name in names if name not in STRATEGIES]
    if wrong:
        return f"{wrong[0]!r} is not one of {', '.join(STRATEGIES)}"
    return None if len(set(names)) == len(names) else "names a strategy twice"


def _group_fault(value: str) -> str | None:
    if not value:
        return "must not be empty: it names the group"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return None if size <= _MAX_TEXT else f"takes {size} bytes, more than {_MAX_TEXT}"


def _protocol_fault(value: str) -> str | None:
    return None if value in ("classic", "consumer") else "is neither classic nor consumer"


def _only(word: str, why: str) -> Check:
    """Accept only the one value that is supported. ``why``: the reason for refusing all others."""
    return Check(word, lambda value: None if value == word else why)


@dataclass(frozen=True, kw_only=True)
class CoordinatorKeys(ConsumerKeys):
    """All keys of a member on the coordinator: the legacy consumer's keys, and the keys below.
    Times are in milliseconds."""

    rebalance_backoff_ms: int = key(
        "Pause before a request is sent again, and between two searches for the coordinator",
        default=100,
        check=at_least(1),
    )
    group_id: str = key(
        "The group's name, with any characters. Members with the same name share the partitions",
        default=REQUIRED,
        check=Check("any text that is not empty", _group_fault),
        importance="high",
    )
    zookeeper_connect: str = key(
        "Servers of ZooKeeper",
        default="",
        ignored=_NO_ZOOKEEPER,
    )
    offsets_storage: str = key(
        "Where offsets are stored: always in Kafka's `__consumer_offsets`",
        default="kafka",
        check=_only(
            "kafka",
            "the coordinator stores offsets in Kafka: move the group's offsets there first and "
            "leave the key out",
        ),
        since="0.8.2",
        lower=True,
    )
    dual_commit_enabled: bool = key(
        "Commit to ZooKeeper too",
        default=False,
        ignored=_NO_ZOOKEEPER,
    )
    brokers: str = key(
        "Where to get the list of brokers and topics from",
        default="bootstrap",
        since=OWN,
        ignored=_NO_ZOOKEEPER,
    )
    profile: str = key(
        "The `scala` profile copies the JVM's behaviour in ZooKeeper and is refused here",
        default="default",
        check=_only(
            "default", "the scala profile is for groups in ZooKeeper only: leave the key out"
        ),
        since=OWN,
    )
    bootstrap_servers: str = key(
        "Brokers as host:port, separated by commas. The member finds all other brokers of the "
        "cluster through them",
        default=REQUIRED,
        check=Check("host:port,host:port", servers_fault),
        importance="high",
        since="0.9",
    )
    session_timeout_ms: int = key(
        "The coordinator removes a member that has sent no heartbeat for this long. Brokers accept "
        "6,000 to 1,800,000 by default. With `group.protocol=consumer` it must equal the "
        "broker's `group.consumer.session.timeout.ms`; the default is then 45,000",
        default=10_000,
        check=at_least(1),
        importance="high",
        since="0.9",
    )
    heartbeat_interval_ms: int = key(
        "Time between heartbeats. Must be smaller than session.timeout.ms; a third of it is "
        "usual. Not for `group.protocol=consumer`: the broker decides",
        default=3000,
        check=at_least(1),
        importance="high",
        since="0.9",
    )
    max_poll_interval_ms: int = key(
        "If the application works on one message, or the listener runs, for longer than this, "
        "the member leaves the group. Other members also wait this long for it in a rebalance",
        default=300_000,
        check=at_least(1),
        since="0.10.1",
    )
    group_protocol: str = key(
        "`classic`: members assign partitions, and all of them join again at each change. "
        "`consumer`: the coordinator assigns, and only partitions that move are interrupted "
        "(KIP-848). Brokers since 4.0",
        default="classic",
        check=Check("classic or consumer", _protocol_fault),
        importance="high",
        since="3.7",
        lower=True,
    )
    group_remote_assignor: str | None = key(
        "With `group.protocol=consumer`: the name of the broker's assignor, usually `uniform` or "
        "`range`. If the key is not set, the broker chooses",
        since="3.7",
    )
    client_rack: str | None = key(
        "With `group.protocol=consumer`: the rack of this member, for the coordinator's assignor",
        since="2.4",
    )
    group_instance_id: str | None = key(
        "Makes the member static: it may be away for session.timeout.ms without causing a "
        "rebalance. Must be unique in the group. Brokers since 2.3",
        since="2.3",
    )
    partition_assignment_strategy: str = key(
        f"One or more of {', '.join(STRATEGIES)}, in order of preference; all members need one "
        "in common. The legacy ones assign by stream, as in ZooKeeper. Not for "
        "`group.protocol=consumer`",
        default="range",
        check=Check("names, separated by commas", _strategies_fault),
        since="0.9",
    )


KEYS: Final[tuple[Row, ...]] = rows_of(CoordinatorKeys)
"""All rows."""
ZOOKEEPER_ONLY: Final[frozenset[str]] = frozenset(
    {
        "zookeeper.connection.timeout.ms",
        "zookeeper.sync.time.ms",
        "rebalance.max.retries",
        "offsets.channel.backoff.ms",
        "offsets.channel.socket.timeout.ms",
        "zkconsumer.coalesce.ms",
        "zkconsumer.listener.name",
        *(name for name in SECURITY if name.startswith(("zookeeper.", "zkconsumer.zookeeper."))),
    }
)
"""Keys of the legacy consumer that a member on the coordinator accepts and does not use."""


@rule("heartbeat.interval.ms", "`heartbeat.interval.ms` must be smaller than `session.timeout.ms`")
def _heartbeat(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    session, beat = values["session_timeout_ms"], values["heartbeat_interval_ms"]
    if beat < session or values["group_protocol"] == "consumer":
        return None
    return (
        f"heartbeat.interval.ms={beat}: must be smaller than session.timeout.ms={session}; a third "
        "of it is usual"
    )


@rule(
    "zkconsumer.roundrobin.hash",
    "`zkconsumer.roundrobin.hash` has an effect only with `legacy-roundrobin`",
    fatal=False,
)
def _hash_unused(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    strategies = values["partition_assignment_strategy"]
    if "roundrobin_hash" not in given or "legacy-roundrobin" in strategies:
        return None
    return (
        "zkconsumer.roundrobin.hash has no effect with partition.assignment.strategy="
        f"{strategies}: add legacy-roundrobin there or leave the key out"
    )


@rule(
    "group.protocol",
    "`heartbeat.interval.ms`, `partition.assignment.strategy` and `zkconsumer.roundrobin.hash` "
    "have no effect with `group.protocol=consumer`",
    fatal=False,
)
def _classic_only(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["group_protocol"] != "consumer":
        return None
    names = {
        "heartbeat_interval_ms": "heartbeat.interval.ms",
        "partition_assignment_strategy": "partition.assignment.strategy",
        "roundrobin_hash": "zkconsumer.roundrobin.hash",
    }
    refused = [name for field, name in names.items() if field in given]
    if not refused:
        return None
    return f"{', '.join(refused)}: no effect with group.protocol=consumer, where the broker decides"


@rule(
    "group.protocol",
    "`group.remote.assignor` and `client.rack` need `group.protocol=consumer`",
    fatal=False,
)
def _consumer_only(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["group_protocol"] == "consumer":
        return None
    names = {"group_remote_assignor": "group.remote.assignor", "client_rack": "client.rack"}
    refused = [name for field, name in names.items() if field in given]
    return f"{', '.join(refused)}: needs group.protocol=consumer" if refused else None


RULES: Final = (fetch_wait, _classic_only, _consumer_only, _heartbeat, _hash_unused)
"""Checks that involve several keys."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorConfig(CoordinatorKeys):
    """The configuration of one member on the coordinator. Create one with ``parse``."""

    warnings: tuple[str, ...]

    @property
    def servers(self) -> list[tuple[str, int]]:
        """Host and port of each server in ``bootstrap.servers``."""
        return split_servers(self.bootstrap_servers)

    @property
    def strategies(self) -> list[str]:
        """The names in ``partition.assignment.strategy``, in order."""
        return [name.strip() for name in self.partition_assignment_strategy.split(",")]

    @classmethod
    def parse(cls, config: CoordinatorConfig | Source) -> CoordinatorConfig:
        """Create a configuration from another one, a mapping, or the path of a ``.properties``
        file.

        Raises ConfigError with all faults.
        """
        if isinstance(config, CoordinatorConfig):
            return config
        given = translated(given_in(config))
        values = dict(given.values)
        if str(values.get("group.protocol", "")).strip().lower() == "consumer":
            # The broker's time has nothing to do with that of a session in ZooKeeper.
            values.setdefault("session.timeout.ms", _CONSUMER_SESSION_MS)
        if (session := values.get("zookeeper.session.timeout.ms")) is not None:
            values.setdefault("session.timeout.ms", session)
        rules = RULES + SECURITY_RULES
        arguments = examine(KEYS, rules, SECURITY_NAMES, given._replace(values=values)).arguments()
        quiet = "zookeeper.connect has no effect"
        arguments["warnings"] = tuple(text for text in arguments["warnings"] if quiet not in text)
        return cls(**arguments)


def translated(given: Given) -> Given:
    """Return the keys with this table's names and values instead of the newer consumer's."""
    values, former = dict(given.values), dict[str, str]()
    for alias, name in ALIASES.items():
        if alias in values and not alias.startswith("zookeeper."):
            value = values.pop(alias)
            if name not in values:
                values[name], former[name] = value, alias
    for name, words in VALUES.items():
        if (old := values.get(name)) in words:
            values[name] = words[str(old)]
    return given._replace(values=values, place=lambda name: given.place(former.get(name, name)))
