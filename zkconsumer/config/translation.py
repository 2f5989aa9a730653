"""Translates the old consumer's configuration for coordinator-based consumers. It only reads the
file.

Property names differ between the Java consumer, librdkafka and kafka-python; so do values, if a
client uses other units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.config.properties import Entry, read_properties
from zkconsumer.config.tool_security import is_security
from zkconsumer.errors import ConfigError

CLIENTS: Final = ("java", "librdkafka", "kafka-python")
JAVA, RDKAFKA, PYTHON = CLIENTS


@dataclass(frozen=True, slots=True)
class _Rule:
    """How to translate one legacy key: each client's name, the value, and the reason."""

    names: Mapping[str, str]
    reason: str
    value: Callable[[str], str] = str


def _same(name: str, rdkafka: str | None = None, python: str | None = None) -> dict[str, str]:
    """Return the names: the Java name, and those of other clients that differ. An empty name means
    that there is no such property."""
    names = {
        JAVA: name,
        RDKAFKA: name if rdkafka is None else rdkafka,
        PYTHON: name.replace(".", "_") if python is None else python,
    }
    return {client: spelled for client, spelled in names.items() if spelled}


def _reset(value: str) -> str:
    return {"smallest": "earliest", "largest": "latest"}.get(value, value)


_RULES: Final[Mapping[str, _Rule]] = {
    "group.id": _Rule(_same("group.id"), "the same name finds the offsets that were moved"),
    "client.id": _Rule(_same("client.id"), "for the brokers' logs and quotas"),
    "consumer.id": _Rule(
        _same("group.instance.id"),
        "a fixed member: it may restart within the session timeout without a rebalance; must be "
        "unique in the group; brokers since 2.3",
    ),
    "auto.offset.reset": _Rule(
        _same("auto.offset.reset"),
        "smallest is now earliest, largest latest; consider none until the move is verified, so "
        "that a lost offset is an error and not a silent jump",
        _reset,
    ),
    "auto.commit.enable": _Rule(_same("enable.auto.commit"), "renamed"),
    "auto.commit.interval.ms": _Rule(
        _same("auto.commit.interval.ms"),
        "the old default is 60000, the new one 5000: set explicitly to keep the old behaviour",
    ),
    "zookeeper.session.timeout.ms": _Rule(
        _same("session.timeout.ms"),
        "how long a dead member keeps its partitions; must lie between the broker's "
        "group.min.session.timeout.ms (6000) and group.max.session.timeout.ms",
    ),
    "fetch.message.max.bytes": _Rule(
        _same("max.partition.fetch.bytes"), "renamed; larger messages are no longer an error"
    ),
    "fetch.max.bytes": _Rule(_same("fetch.max.bytes"), "unchanged"),
    "fetch.min.bytes": _Rule(_same("fetch.min.bytes"), "unchanged"),
    "fetch.wait.max.ms": _Rule(
        _same("fetch.max.wait.ms", rdkafka="fetch.wait.max.ms"), "renamed in Java and kafka-python"
    ),
    "socket.receive.buffer.bytes": _Rule(
        _same("receive.buffer.bytes", rdkafka="socket.receive.buffer.bytes"), "renamed"
    ),
    "socket.timeout.ms": _Rule(
        _same("request.timeout.ms", rdkafka="socket.timeout.ms"),
        "how long to wait for a broker's answer; in Java it must exceed fetch.max.wait.ms",
    ),
    "refresh.leader.backoff.ms": _Rule(
        _same("retry.backoff.ms"), "how long to wait before asking for the leader again"
    ),
    "exclude.internal.topics": _Rule(
        _same("exclude.internal.topics", rdkafka=""),
        "matters for pattern subscriptions only; librdkafka never hides internal topics",
    ),
    "isolation.level": _Rule(
        _same("isolation.level"),
        "whether messages of aborted transactions are delivered; librdkafka's own default is "
        "read_committed",
        str.lower,
    ),
    "partition.assignment.strategy": _Rule(_same("partition.assignment.strategy"), "see value"),
}

_NO_EQUIVALENT: Final[Mapping[str, str]] = {
    "zookeeper.connect": "the new consumer knows brokers only: set bootstrap.servers",
    "zookeeper.connection.timeout.ms": "there is no ZooKeeper connection any more",
    "zookeeper.sync.time.ms": "there is no ZooKeeper connection any more",
    "consumer.timeout.ms": "poll() takes a timeout; an empty result replaces the error",
    "queued.max.message.chunks": "the new consumer holds one fetch ahead for each partition",
    "num.consumer.fetchers": "one consumer has one connection to each broker",
    "offsets.storage": "offsets are always in Kafka",
    "dual.commit.enabled": "offsets are in Kafka only; zkmigrate moves them back if needed",
    "offsets.channel.backoff.ms": "covered by retry.backoff.ms",
    "offsets.channel.socket.timeout.ms": "covered by the request timeout",
    "offsets.commit.max.retries": "commits are repeated until default.api.timeout.ms",
}

_DEFAULTS: Final[Mapping[str, str]] = {
    "auto.offset.reset": "largest",
    "auto.commit.interval.ms": "60000",
    "isolation.level": "read_uncommitted",
    "partition.assignment.strategy": "range",
}
"""Defaults of the old consumer that a new client does not have, so they are written out."""

_STRATEGIES: Final[Mapping[str, Mapping[str, str]]] = {
    JAVA: {
        "range": "org.apache.kafka.clients.consumer.RangeAssignor",
        "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    },
    RDKAFKA: {"range": "range", "roundrobin": "roundrobin"},
    PYTHON: {"range": "RangePartitionAssignor", "roundrobin": "RoundRobinPartitionAssignor"},
}
_SERVERS: Final = "bootstrap.servers"
_RETRIES: Final = ("rebalance.max.retries", "rebalance.backoff.ms")
_OWN_PREFIX: Final = "zkconsumer."


def translate_file(path: str, client: str) -> Iterator[str]:
    """Yield the lines of the new configuration. A comment with the reason precedes each property.

    Raises ConfigError if the file is unreadable or a line is malformed.
    """
    entries, faults = read_properties(path)
    if faults:
        raise ConfigError(faults)
    return translate(entries, client)


def translate(entries: list[Entry], client: str) -> Iterator[str]:
    """Yield the new configuration for these properties; see ``translate_file``."""
    given = {entry.key: entry.value.strip() for entry in entries}  # the last one counts, as in Java
    values = {**_DEFAULTS, **given}
    yield f"# For {client}, from the old consumer's configuration."
    if _SERVERS in given:
        yield f"# {_SERVERS}: unchanged"
    else:
        yield "# The old file does not name the brokers:"
    yield f"{_same(_SERVERS)[client]}={given.get(_SERVERS, 'HOST:9092')}"
    for key, rule in _RULES.items():
        if key not in values or client not in rule.names:
            continue
        origin = key if key in given else f"{key} (the old default)"
        reason = rule.reason
        value = rule.value(values[key])
        if key == "partition.assignment.strategy":
            value, reason = _strategy(values[key], client)
        yield f"# {origin}: {reason}"
        yield f"{rule.names[client]}={value}"
    yield from _poll_interval(given, client)
    known = {*_RULES, *_RETRIES, _SERVERS}
    missing = [key for key in given if key not in known]
    missing += [key for key in given if key in _RULES and client not in _RULES[key].names]
    if missing:
        yield "# Not translated:"
    for key in missing:
        line = key if is_security(key) else f"{key}={given[key]}"  # it may be a password
        yield f"#   {line}: {_why_not(key, client)}"


def _strategy(name: str, client: str) -> tuple[str, str]:
    known = _STRATEGIES[client]
    if name in known:
        return known[name], "every member of the group must name the same"
    return known["range"], f"{name} is not a strategy of the old consumer: range is its default"


def _poll_interval(given: Mapping[str, str], client: str) -> Iterator[str]:
    """Translate a rebalance timeout to a poll interval, which limits the processing time."""
    if not any(key in given for key in _RETRIES):
        return
    name = "max_poll_interval_ms" if client == PYTHON else "max.poll.interval.ms"
    retries = given.get(_RETRIES[0], "4")
    backoff = given.get(_RETRIES[1], given.get("zookeeper.sync.time.ms", "2000"))
    if retries.isdigit() and backoff.isdigit():
        product = int(retries) * int(backoff)
        yield (
            f"# {_RETRIES[0]} x {_RETRIES[1]} = {product} ms was the time for a rebalance; now it "
            "must cover the handling of one poll's messages too, so it is not below the default"
        )
        yield f"{name}={max(product, 300_000)}"


def _why_not(key: str, client: str) -> str:
    if key in _NO_EQUIVALENT:
        return _NO_EQUIVALENT[key]
    if is_security(key) and key.startswith(("zookeeper.", f"{_OWN_PREFIX}zookeeper.")):
        return _NO_EQUIVALENT["zookeeper.connection.timeout.ms"]
    if key.startswith(_OWN_PREFIX):
        return "a setting of zkconsumer"
    if is_security(key):
        if client == JAVA:
            return "has the same name and meaning: copy it"
        return f"set the property of {client} with this meaning"
    if key in _RULES:
        return f"{client} has no such property; {_RULES[key].reason}"
    return "not a key of the old consumer"
