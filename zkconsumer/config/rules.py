"""Checks over several keys, and the well-known other names of keys. Data and pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from zkconsumer.config.parse import Parsed

RENAMED: Final[dict[str, str]] = {
    "autocommit.enable": "auto.commit.enable",
    "autooffset.reset": "auto.offset.reset",
    "backoff.increment.ms": "refresh.leader.backoff.ms",
    "enable.auto.commit": "auto.commit.enable",
    "fetch.size": "fetch.message.max.bytes",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "queuedchunks.max": "queued.max.message.chunks",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "session.timeout.ms": "zookeeper.session.timeout.ms",
    "zk.connect": "zookeeper.connect",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
    "zk.synctime.ms": "zookeeper.sync.time.ms",
}
"""Names of the same key in Kafka 0.7 and in the newer consumer, for hints on unknown keys."""


class Rule(NamedTuple):
    """A check over several keys: ``text`` for people, ``broken`` for a configuration.

    ``key`` is the key to change. ``broken`` returns one line that describes the fault, or None. It
    gets the values by attribute and the attributes that were set on purpose, and only runs when all
    of ``attrs`` are valid.
    """

    key: str
    text: str
    attrs: tuple[str, ...]
    fatal: bool
    broken: Callable[[Mapping[str, Any], frozenset[str]], str | None]


def check_rules(
    rules: Iterable[Rule], parsed: Parsed, place: Callable[[str], str]
) -> tuple[list[str], list[str]]:
    """Return the faults and the warnings of all ``rules``; ``place`` is as in ``parse``."""
    faults: list[str] = []
    warnings: list[str] = []
    for rule in rules:
        if parsed.values.keys() >= set(rule.attrs):
            broken = rule.broken(parsed.values, parsed.given)
            if broken is not None:
                (faults if rule.fatal else warnings).append(place(rule.key) + broken)
    return faults, warnings


def _fetch_wait(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    wait, limit = values["fetch_wait_max_ms"], values["socket_timeout_ms"]
    if wait <= limit:
        return None
    return (
        f"fetch.wait.max.ms={wait}: must not exceed socket.timeout.ms={limit}, or fetches of idle "
        "partitions time out: lower the one or raise the other"
    )


def _retries(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    retries, backoff = values["rebalance_max_retries"], values["rebalance_backoff_ms"]
    session = values["zookeeper_session_timeout_ms"]
    if values["profile"] != "scala" or retries * backoff > session:
        return None
    return (
        f"rebalance.max.retries={retries} times rebalance.backoff.ms={backoff} does not exceed "
        f"zookeeper.session.timeout.ms={session}: a rebalance can fail because a member that has "
        "crashed still owns partitions; raise rebalance.backoff.ms"
    )


def _hash_unused(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if "roundrobin_hash" not in given or values["partition_assignment_strategy"] == "roundrobin":
        return None
    return (
        "zkconsumer.roundrobin.hash has no effect with partition.assignment.strategy=range: "
        "set that to roundrobin or leave the key out"
    )


def _no_bootstrap(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["brokers"] != "bootstrap" or values["bootstrap_servers"]:
        return None
    return "zkconsumer.brokers=bootstrap needs brokers to ask: set bootstrap.servers to host:port"


def _scala_bootstrap(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["profile"] != "scala" or not values["bootstrap_servers"]:
        return None
    return (
        "bootstrap.servers is not for zkconsumer.profile=scala, which finds brokers in ZooKeeper "
        "as the JVM does: leave one of the keys out"
    )


FETCH_WAIT: Final = Rule(
    "fetch.wait.max.ms",
    "`fetch.wait.max.ms` must not exceed `socket.timeout.ms`",
    ("fetch_wait_max_ms", "socket_timeout_ms"),
    True,
    _fetch_wait,
)

RULES: Final[tuple[Rule, ...]] = (
    FETCH_WAIT,
    Rule(
        "bootstrap.servers",
        "`zkconsumer.brokers=bootstrap` needs `bootstrap.servers`",
        ("brokers", "bootstrap_servers"),
        True,
        _no_bootstrap,
    ),
    Rule(
        "bootstrap.servers",
        "`bootstrap.servers` is not for the `scala` profile",
        ("profile", "bootstrap_servers"),
        True,
        _scala_bootstrap,
    ),
    Rule(
        "rebalance.backoff.ms",
        "in the `scala` profile, `rebalance.max.retries` times `rebalance.backoff.ms` should "
        "exceed `zookeeper.session.timeout.ms`: the partitions of a member that crashed stay owned "
        "for as long as its session lasts",
        (
            "rebalance_max_retries",
            "rebalance_backoff_ms",
            "zookeeper_session_timeout_ms",
            "profile",
        ),
        False,
        _retries,
    ),
    Rule(
        "zkconsumer.roundrobin.hash",
        "`zkconsumer.roundrobin.hash` has an effect only with "
        "`partition.assignment.strategy=roundrobin`",
        ("roundrobin_hash", "partition_assignment_strategy"),
        False,
        _hash_unused,
    ),
)
"""Checks over several keys, for a member of a group in ZooKeeper."""
