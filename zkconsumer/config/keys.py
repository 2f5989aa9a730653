"""All keys of the consumer's configuration; the dataclass is the table.

Parsing (`zkconsumer.config.consumer`), ``zkconsumer config`` and the reference page use it. Names
and defaults of the legacy keys are those of Scala 1.1.1 ``kafka.consumer.ConsumerConfig``; keys
that start with ``zkconsumer.`` are this library's. Immutable; any thread may read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zkconsumer.config.key_table import (
    OWN,
    REQUIRED,
    Check,
    Derivation,
    Row,
    at_least,
    key,
    one_of,
    path_name,
    rows_of,
    word,
)
from zkconsumer.config.security_keys import SecurityKeys
from zkconsumer.config.values import split_connect, split_servers


def _connect_fault(value: str) -> str | None:
    try:
        split_connect(value)
    except ValueError as error:
        return str(error)
    return None


def servers_fault(value: str) -> str | None:
    """Return the fault in a value of ``bootstrap.servers``; ``None`` if it is valid."""
    try:
        split_servers(value)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, kw_only=True)
class ConsumerKeys(SecurityKeys):
    """All keys of a member in ZooKeeper, security keys included. Times are in milliseconds, sizes
    in bytes. `ConsumerConfig` extends it."""

    zookeeper_connect: str = key(
        "ZooKeeper servers as host:port, separated by commas, then the chroot if there is one, "
        "such as `zk1:2181,zk2:2181/kafka`. A missing port is 2181",
        default=REQUIRED,
        check=Check("host:port,host:port/chroot", _connect_fault),
        importance="high",
    )
    group_id: str = key(
        "The group's name. Members with the same name share the partitions",
        default=REQUIRED,
        check=path_name("1 to 255 of letters, digits, . _ -"),
        importance="high",
    )
    consumer_id: str | None = key(
        "Last part of the member's id, which is then `<group.id>_<consumer.id>`. Must be "
        "unique in the group. Without this key, the last part consists of host name, time and "
        "a random number",
        check=path_name("1 to 255 of letters, digits, . _ -"),
        importance="low",
    )
    client_id: str = key(
        "Name sent to brokers with each request, for their logs and quotas",
        default_from="group.id",
        check=word("letters, digits, . _ -"),
        importance="low",
    )
    zookeeper_session_timeout_ms: int = key(
        "If ZooKeeper does not hear from a member for this long, it ends the member's session, "
        "and other members get its partitions. The server limits the value, by default "
        "to between 2 and 20 times its `tickTime`",
        default=6000,
        check=at_least(1),
        importance="high",
    )
    zookeeper_connection_timeout_ms: int = key(
        "How long the start waits for a connection to ZooKeeper",
        default_from="zookeeper.session.timeout.ms",
        check=at_least(1),
    )
    zookeeper_sync_time_ms: int = key(
        "Used only as the default of rebalance.backoff.ms",
        default=2000,
        check=at_least(0),
        importance="low",
    )
    socket_timeout_ms: int = key(
        "How long a connection attempt to a broker, or a read from it, may take",
        default=30_000,
        check=at_least(1),
    )
    socket_receive_buffer_bytes: int = key(
        "Receive buffer of connections that fetch; 0 or -1 leaves it to the operating system",
        default=64 * 1024,
        check=at_least(-1),
        importance="low",
    )
    fetch_message_max_bytes: int = key(
        "How many bytes to ask for in one fetch of one partition",
        default=1024 * 1024,
        check=at_least(1),
        importance="high",
    )
    fetch_min_bytes: int = key(
        "A broker answers a fetch when it has this many bytes, or after fetch.wait.max.ms",
        default=1,
        check=at_least(0),
    )
    fetch_wait_max_ms: int = key(
        "How long a broker may wait for fetch.min.bytes. Must not exceed socket.timeout.ms",
        default=100,
        check=at_least(0),
    )
    fetch_max_bytes: int = key(
        "Maximum size of the response to one fetch, for all partitions together. A broker always "
        "sends at least one batch. Brokers before 0.10.1 ignore this key. The JVM's old consumer "
        "does not use it; neither does zkconsumer.profile=scala",
        default=50 * 1024 * 1024,
        check=at_least(0),
        importance="low",
        since="0.10.1",
    )
    num_consumer_fetchers: int = key(
        "Number of threads that fetch from one broker. Each reads a fixed part of the partitions",
        default=1,
        check=at_least(1),
    )
    queued_max_message_chunks: int = key(
        "How many fetched chunks wait in a stream's queue before fetching pauses. A chunk has up "
        "to fetch.message.max.bytes",
        default=2,
        check=at_least(1),
    )
    auto_commit_enable: bool = key(
        "Commit consumed offsets every auto.commit.interval.ms, before a rebalance and at shutdown",
        default=True,
        importance="high",
    )
    auto_commit_interval_ms: int = key(
        "Time between two automatic commits, and before the first one",
        default=60_000,
        check=at_least(1),
        importance="high",
    )
    auto_offset_reset: str = key(
        "Where to start when there is no committed offset or it is out of range: `smallest` is the "
        "start of the log, `largest` its end",
        default="largest",
        check=one_of(
            "smallest",
            "largest",
            fixes={
                "earliest": "smallest (earliest is the newer consumer's word)",
                "latest": "largest (latest is the newer consumer's word)",
            },
        ),
        importance="high",
    )
    rebalance_max_retries: int = key(
        "Maximum number of attempts at a rebalance, including the first one. Used only in the "
        "`scala` profile, where a member then gives up. Otherwise it keeps trying",
        default=4,
        check=at_least(1),
        importance="high",
    )
    rebalance_backoff_ms: int = key(
        "Pause after a rebalance attempt that failed; at least 100 ms, except in the `scala` "
        "profile",
        default_from="zookeeper.sync.time.ms",
        check=at_least(0),
        importance="high",
    )
    refresh_leader_backoff_ms: int = key(
        "Pause before looking again for the leader of a partition that has none, and after an "
        "error of a fetcher",
        default=200,
        check=at_least(0),
    )
    consumer_timeout_ms: int = key(
        "How long a stream's iterator waits for a message before it raises ConsumerTimeoutError; "
        "it can be used again afterwards. A negative value waits indefinitely",
        default=-1,
    )
    offsets_storage: str = key(
        "Where offsets are stored: in ZooKeeper, or in Kafka's `__consumer_offsets`",
        default="zookeeper",
        check=one_of("zookeeper", "kafka"),
        importance="high",
        since="0.8.2",
        lower=True,
    )
    dual_commit_enabled: bool = key(
        "With `offsets.storage=kafka`, commit to ZooKeeper as well, and start from the larger "
        "of both offsets. Use it while a group moves its offsets, or while it has members with "
        "the other storage. Has no effect with `offsets.storage=zookeeper`",
        default_from="offsets.storage",
        derive=Derivation("offsets.storage is kafka", lambda storage: storage == "kafka"),
        since="0.8.2",
    )
    offsets_channel_backoff_ms: int = key(
        "Pause before another attempt to reach the offset coordinator",
        default=1000,
        check=at_least(0),
        importance="low",
        since="0.8.2",
    )
    offsets_channel_socket_timeout_ms: int = key(
        "How long to wait for a response from the offset coordinator",
        default=10_000,
        check=at_least(1),
        importance="low",
        since="0.8.2",
    )
    offsets_commit_max_retries: int = key(
        "How often a failed commit to Kafka is repeated. Here it also sets a deadline for "
        "every request to the offset coordinator: one `offsets.channel.socket.timeout.ms`, "
        "plus one `offsets.channel.backoff.ms` for each retry",
        default=5,
        check=at_least(0),
        importance="low",
        since="0.8.2",
    )
    exclude_internal_topics: bool = key(
        "Topic filters leave out `__consumer_offsets` and `__transaction_state`. Must be the same "
        "in all members: each applies its own value to every member's filter",
        default=True,
        since="0.8.2",
    )
    partition_assignment_strategy: str = key(
        "How partitions are assigned to streams. Must be the same in all members",
        default="range",
        check=one_of("range", "roundrobin"),
        importance="high",
        since="0.8.2",
    )
    bootstrap_servers: str = key(
        "Brokers as host:port, separated by commas. They are asked for the list of all "
        "brokers, instead of ZooKeeper. Needed if ZooKeeper lists no usable broker, and with "
        "`zkconsumer.brokers=bootstrap`",
        name="bootstrap.servers",
        default="",
        check=Check("host:port,host:port", servers_fault),
        importance="high",
        since=OWN,
    )
    isolation_level: str = key(
        "Whether messages of uncommitted transactions are delivered. `read_uncommitted`: all, as "
        "soon as they are in the log, including those of aborted transactions. `read_committed`: "
        "those of committed transactions, and those outside of transactions. Delivery then waits "
        "at the first message of an open transaction, until it ends. Brokers before "
        "0.11 are refused. JVM members of a group in ZooKeeper always read as `read_uncommitted`",
        name="isolation.level",
        default="read_uncommitted",
        check=one_of("read_uncommitted", "read_committed"),
        since=OWN,
        lower=True,
    )
    profile: str = key(
        "`default` avoids the JVM consumer's known faults where JVM members cannot notice the "
        "difference; `scala` behaves exactly like the JVM consumer, including its faults",
        default="default",
        check=one_of("default", "scala"),
        importance="high",
        since=OWN,
    )
    brokers: str = key(
        "Where members get the list of brokers, topics and partitions from. `zookeeper`: from the "
        "znodes below `/brokers`, as in the JVM consumer. `bootstrap`: from the brokers of "
        "`bootstrap.servers`, so that the group can stay in ZooKeeper when its cluster changes to "
        "KRaft. All members must then use this library",
        default="zookeeper",
        check=one_of("zookeeper", "bootstrap"),
        importance="high",
        since=OWN,
    )
    roundrobin_hash: str = key(
        "The text that the roundrobin strategy sorts partitions by: `topic-partition` as Kafka "
        "1.0 and later, `[topic,partition]` as Kafka 0.10.2 and 0.11, "
        "`[topic,partition]-0.8.2` as Kafka 0.8.2 to 0.10.1. The last two differ only for "
        "topics whose names have the same hash, such as `Aa` and `BB`. Must be the same in all "
        "members",
        default="topic-partition",
        check=one_of("topic-partition", "[topic,partition]", "[topic,partition]-0.8.2"),
        since=OWN,
    )
    reread_interval_ms: int = key(
        "How often members, topics and brokers are read again, in case a watch event was missed. "
        "Each pass reads one tenth of the registrations again",
        default=30_000,
        check=at_least(1),
        importance="low",
        since=OWN,
    )
    coalesce_ms: int = key(
        "How long (up to twice this time) further changes are collected after a rebalance begins, "
        "to cause only one more. After a quiet period, a change is acted on at once",
        default=50,
        check=at_least(0),
        importance="low",
        since=OWN,
    )
    release_wait_ms: int = key(
        "How long a release waits for the application to finish its current message, so that "
        "the message is committed and the next owner does not get it again",
        default=500,
        check=at_least(0),
        importance="low",
        since=OWN,
    )
    journal_dir: str | None = key(
        "Directory in which each member writes a journal, in a new file for each start, for "
        "`zkconsumer replay` and `zkaudit run --journals`. It is created if it is missing. Files "
        "grow until an operator deletes them. Without this key, no journal is written",
        importance="low",
        since=OWN,
    )


SECURITY: Final = frozenset(row.name for row in rows_of(SecurityKeys))
"""The names of the security keys."""

KEYS: Final[tuple[Row, ...]] = tuple(
    sorted(rows_of(ConsumerKeys), key=lambda row: row.name in SECURITY)
)
"""All rows, in the order of the reference page. The security keys are last."""
