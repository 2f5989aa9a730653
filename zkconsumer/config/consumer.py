"""The configuration object of a ZooKeeper member: the table's values, checked.

Also checks that involve several keys, and well-known other names of keys. Immutable; any thread
may read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from zkconsumer.config.key_table import Examined, Source, examine, given_in, rule
from zkconsumer.config.keys import KEYS, ConsumerKeys
from zkconsumer.config.security_keys import RENAMED as SECURITY_NAMES, RULES as SECURITY_RULES
from zkconsumer.config.values import split_connect

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
"""Names of the same keys in Kafka 0.7 and in the newer consumer, for hints on unknown keys."""


@rule("fetch.wait.max.ms", "`fetch.wait.max.ms` must not exceed `socket.timeout.ms`")
def fetch_wait(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    """Return the fault if ``fetch.wait.max.ms`` exceeds ``socket.timeout.ms``, otherwise
    ``None``."""
    wait, limit = values["fetch_wait_max_ms"], values["socket_timeout_ms"]
    if wait <= limit:
        return None
    return (
        f"fetch.wait.max.ms={wait}: must not exceed socket.timeout.ms={limit}, or fetches of idle "
        "partitions time out: lower it, or raise socket.timeout.ms"
    )


@rule(
    "rebalance.backoff.ms",
    "in the `scala` profile, `rebalance.max.retries` times `rebalance.backoff.ms` should "
    "exceed `zookeeper.session.timeout.ms`: the partitions of a member that crashed stay owned "
    "for as long as its session lasts",
    fatal=False,
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


@rule(
    "zkconsumer.roundrobin.hash",
    "`zkconsumer.roundrobin.hash` has an effect only with "
    "`partition.assignment.strategy=roundrobin`",
    fatal=False,
)
def _hash_unused(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if "roundrobin_hash" not in given or values["partition_assignment_strategy"] == "roundrobin":
        return None
    return (
        "zkconsumer.roundrobin.hash has no effect with partition.assignment.strategy=range: "
        "set that to roundrobin or leave the key out"
    )


@rule("bootstrap.servers", "`zkconsumer.brokers=bootstrap` needs `bootstrap.servers`")
def _no_bootstrap(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["brokers"] != "bootstrap" or values["bootstrap_servers"]:
        return None
    return "zkconsumer.brokers=bootstrap needs brokers to ask: set bootstrap.servers to host:port"


@rule("bootstrap.servers", "`bootstrap.servers` is not allowed in the `scala` profile")
def _scala_bootstrap(values: Mapping[str, Any], given: frozenset[str]) -> str | None:
    if values["profile"] != "scala" or not values["bootstrap_servers"]:
        return None
    return (
        "bootstrap.servers is not for zkconsumer.profile=scala, which finds brokers in ZooKeeper "
        "as the JVM does: leave one of the keys out"
    )


RULES: Final = (fetch_wait, _no_bootstrap, _scala_bootstrap, _retries, _hash_unused)
"""Checks that involve several keys, for a member of a group in ZooKeeper."""


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ConsumerKeys):
    """The configuration of one consumer. Times are in milliseconds, sizes in bytes.

    Create one with `parse`, which checks values and fills in defaults. The name of an attribute is
    its key with ``_`` for ``.`` and without the prefix ``zkconsumer.``. ``warnings`` lists values
    that are accepted but probably wrong, one line each.
    """

    warnings: tuple[str, ...]

    @property
    def zookeeper_hosts(self) -> str:
        """The servers of ``zookeeper.connect`` as ``host:port,host:port``."""
        return split_connect(self.zookeeper_connect)[0]

    @property
    def zookeeper_chroot(self) -> str:
        """The chroot of ``zookeeper.connect`` with its leading ``/``; empty without a chroot."""
        return split_connect(self.zookeeper_connect)[1]

    @classmethod
    def parse(cls, config: ConsumerConfig | Source, strict: bool = False) -> ConsumerConfig:
        """Return the given configuration, or create one from a mapping or the path of a file.

        A file is a Java ``.properties`` file. If a key occurs twice there, the last value counts,
        as in Java, and a warning is added. Values of a mapping may be strings or already have
        their type; None counts as not given. Raises ConfigError if the file cannot be read, or if
        there are faults; it lists all of them, each with file and line. With ``strict``, unknown
        keys are faults, too.
        """
        if isinstance(config, ConsumerConfig):
            return config
        return cls(**examine_consumer(config, strict).arguments())


def examine_consumer(source: Source, strict: bool = False) -> Examined:
    """Check keys and values. With ``strict``, unknown keys are faults.

    Raises ConfigError only if a file cannot be read.
    """
    rules, renamed = RULES + SECURITY_RULES, RENAMED | SECURITY_NAMES
    return examine(KEYS, rules, renamed, given_in(source), strict)
