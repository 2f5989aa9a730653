"""Offset commits in Kafka: the Spark data source ``zkaudit_offsets`` over ``__consumer_offsets``.

Planning asks the brokers for the first and last offset of each partition. Each task reads one
partition up to that end, with kafka-python, in Spark's Python workers. Records of aborted
transactions are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession, Window, functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from zkaudit import schema
from zkaudit.decode.offsets_topic import decode
from zkaudit.errors import AuditError
from zkaudit.sources import direct
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.core.common.types import BrokerEndpoint
from zkconsumer.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka import KafkaConsumer
    from pyspark.sql.types import StructType

    from zkconsumer.broker.connection import BrokerConnection
    from zkconsumer.broker.security import KafkaSecurity

_T = TypeVar("_T")
TOPIC: Final = "__consumer_offsets"
LAST_MS: Final = 32_503_680_000_000
"""The start of the year 3000. Any client can write any time, so later times are left out."""
_NEEDS: Final = f"reading {TOPIC} needs Kafka 0.10.1 or later"
_CONNECT_SECONDS: Final = 10.0
_STALL_SECONDS: Final = 60.0
"""Seconds without data after which a partition counts as unreadable."""


def register(spark: SparkSession) -> None:
    """Register the format ``zkaudit_offsets`` with a session."""
    spark.dataSource.register(ZkauditOffsets)


def read(
    spark: SparkSession,
    bootstrap: str,
    group: str | None = None,
    command_config: str | None = None,
) -> DataFrame:
    """Return the records of ``__consumer_offsets`` as rows of ``schema.OFFSETS``. ``group``: a Java
    regex.

    ``command_config`` is the path of a file of client properties. Spark gets only the path, so that
    no secret appears in a plan, a log or Spark's web UI.
    """
    config = None if command_config is None else os.path.abspath(command_config)
    rows = direct.rows(spark, _OffsetsReader(bootstrap, config), schema.OFFSETS)
    return rows if group is None else rows.where(F.col("group_id").rlike(rf"\A(?:{group})\z"))


def commits(rows: DataFrame) -> DataFrame:
    """Return the rows of the table ``commits`` with ``store`` = ``kafka``. Columns that do not
    apply are null. ``kind`` is ``commit``, ``same``, or ``deleted`` (a tombstone: the offset
    expired or was deleted).
    """
    place = ("log_partition", "group_id", "topic", "partition")
    before = F.lag("committed").over(Window.partitionBy(*place).orderBy("log_offset"))
    return rows.where("kind = 'offset'").select(
        F.lit("").alias("chroot"),
        "group_id",
        "topic",
        F.col("partition").cast("bigint").alias("partition"),
        F.lit("kafka").alias("store"),
        *[F.lit(None).alias(name) for name in ("zxid", "idx")],
        F.coalesce(
            F.when(
                F.col("commit_ms").between(0, LAST_MS),
                F.timestamp_millis(F.least("commit_ms", F.lit(LAST_MS))),
            ),
            "time",
        ).alias("time"),
        F.lit(None).alias("session"),
        F.col("committed").alias("committed_offset"),
        *[F.lit(None).alias(name) for name in ("content", "previous_zxid", "previous_time")],
        before.alias("previous"),
        F.when(F.col("deleted"), "deleted")
        .when(F.col("committed") == before, "same")
        .otherwise("commit")
        .alias("kind"),
        F.lit(None).alias("created"),
        F.lit("unknown").alias("owner_state"),
        *[
            F.lit(None).alias(name)
            for name in ("owner_session", "owner_member", "owner_start_zxid", "free_since_zxid")
        ],
        "log_partition",
        "log_offset",
        "metadata",
    )


def connect(bootstrap: str, config: str | None) -> dict[str, Any]:
    """Return the security arguments for kafka-python, after checking that a broker accepts them.

    Without this check, kafka-python would retry indefinitely with a wrong secret, and wait for a
    broker that is too old for it. Raises ConfigError, AuthenticationError, and BrokerError if no
    usable broker of ``bootstrap`` answers.
    """
    from zkconsumer.broker.api_versions import LIST_OFFSETS
    from zkconsumer.broker.metadata import fetch_metadata

    def check(connection: BrokerConnection) -> None:
        connection.version(LIST_OFFSETS, 1, needs=_NEEDS)
        fetch_metadata(connection, [TOPIC])

    _ask(bootstrap, config, check)
    if config is None:
        return {}
    from zkconsumer.broker.sasl import hide_sasl

    hide_sasl()  # at DEBUG, kafka-python's log would show the password
    security = _security(config)
    arguments: dict[str, Any] = {"security_protocol": security.protocol}
    if security.context is not None:
        arguments["ssl_context"] = security.context
    return arguments | ({} if security.login is None else security.login.for_kafka_python())


def _security(config: str | None) -> KafkaSecurity:
    from zkconsumer.broker.security import KafkaSecurity

    if config is None:
        return KafkaSecurity()
    return KafkaSecurity(SecurityConfig.parse(config))


def _ask(bootstrap: str, config: str | None, request: Callable[[BrokerConnection], _T]) -> _T:
    """Return the first answer of a broker of ``bootstrap``. Raises the errors of ``connect``."""
    from zkconsumer.broker.connection import BrokerConnection
    from zkconsumer.config.values import split_servers

    security = _security(config)
    failed: BrokerError | None = None
    try:
        servers = split_servers(bootstrap)
    except ValueError as error:
        raise AuditError(f"--bootstrap-server {bootstrap}: {error}") from None
    for host, port in servers:
        connection = BrokerConnection(
            BrokerEndpoint(-1, host, port), "zkaudit", _CONNECT_SECONDS, 0, security
        )
        try:
            return request(connection)
        except BrokerError as error:
            failed = error
        finally:
            connection.close()
    assert failed is not None  # a server answered
    raise failed


def consumer(bootstrap: str, config: str | None = None) -> KafkaConsumer:
    """Return a consumer that does not join a group and does not commit.

    Raises AuditError, and the errors of ``connect``.
    """
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    security = connect(bootstrap, config)
    try:
        return KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            client_id="zkaudit",
            group_id=None,
            enable_auto_commit=False,
            isolation_level="read_committed",
            exclude_internal_topics=False,
            **security,
        )
    except (KafkaError, ValueError) as error:
        raise AuditError(f"--bootstrap-server {bootstrap}: {error}") from None


@dataclass
class _Range(InputPartition):
    """Offsets of one partition, ``end`` excluded."""

    partition: int
    begin: int
    end: int


class ZkauditOffsets(DataSource):
    """The source ``zkaudit_offsets``, for the present content of ``__consumer_offsets``.

    Option ``bootstrap``: HOST:PORT,... Option ``config``: path of a file of client properties.
    """

    @classmethod
    def name(cls) -> str:
        """Name of the source for ``spark.read.format``."""
        return "zkaudit_offsets"

    def schema(self) -> StructType:
        """The columns of ``schema.OFFSETS``."""
        return schema.spark_type(schema.OFFSETS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records that exist when Spark plans the query."""
        bootstrap = self.options.get("bootstrap")
        if not bootstrap:
            raise ConfigError(["bootstrap: name the brokers: HOST:PORT,..."])
        return _OffsetsReader(bootstrap, self.options.get("config"))


class _OffsetsReader(DataSourceReader):
    def __init__(self, bootstrap: str, config: str | None) -> None:
        self.bootstrap = bootstrap
        self.config = config

    def partitions(self) -> list[InputPartition]:
        """Return one task for each partition that is not empty."""
        from kafka import TopicPartition

        with closing(consumer(self.bootstrap, self.config)) as found:
            numbers = sorted(found.partitions_for_topic(TOPIC) or ())
            places = [TopicPartition(TOPIC, number) for number in numbers]
            if not places:
                return []
            begins, ends = found.beginning_offsets(places), found.end_offsets(places)
        return [_Range(p.partition, begins[p], ends[p]) for p in places if begins[p] < ends[p]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Decode one partition."""
        import pyarrow as pa

        if not isinstance(partition, _Range):  # Spark's own: there is nothing to read
            return
        wanted = schema.arrow_schema(schema.OFFSETS)
        for rows in _records(self.bootstrap, self.config, partition):
            for row in rows:
                for name in ("hosts", "clients", "assignment"):  # Arrow takes maps as pairs
                    row[name] = list(row[name].items()) if name in row else None
            yield pa.RecordBatch.from_pylist(rows, schema=wanted)


class _TopicNames:
    """Returns the name of a topic's id. Asks the brokers once, if necessary.

    A topic that they do not have, or hide, keeps its id.
    """

    def __init__(self, bootstrap: str, config: str | None) -> None:
        self._where = bootstrap, config
        self._names: dict[str, str] | None = None

    def __call__(self, topic_id: str) -> str:
        if self._names is None:
            from zkconsumer.broker.cluster_reader import read_cluster

            topics = _ask(*self._where, read_cluster).topics
            self._names = {topic.topic_id: name for name, topic in topics.items()}
        return self._names.get(topic_id, topic_id)


def _records(bootstrap: str, config: str | None, part: _Range) -> Iterator[list[dict[str, Any]]]:
    from kafka import TopicPartition

    place = TopicPartition(TOPIC, part.partition)
    topic_name = _TopicNames(bootstrap, config)
    with closing(consumer(bootstrap, config)) as found:
        found.assign([place])
        found.seek(place, part.begin)
        at, deadline = part.begin, time.monotonic() + _STALL_SECONDS
        while at < part.end:
            got = found.poll(timeout_ms=1000).get(place, [])
            rows = [
                {
                    "log_partition": part.partition,
                    "log_offset": record.offset,
                    "time": record.timestamp * 1000 if 0 <= record.timestamp <= LAST_MS else None,
                    **decode(record.key, record.value, topic_name),
                }
                for record in got
                if record.offset < part.end
            ]
            if rows:
                yield rows
            moved = max(at, found.position(place))
            if moved > at:
                at, deadline = moved, time.monotonic() + _STALL_SECONDS
            elif time.monotonic() > deadline:
                raise AuditError(
                    f"{TOPIC}-{part.partition}: the broker returns no records after offset {at}, "
                    f"although the log ends at {part.end}: check that the partition has a leader"
                )
