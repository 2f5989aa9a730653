"""Columns of everything zkaudit reads. Data only: Spark and Arrow are loaded only by functions.

There is one table of columns each for transaction logs, snapshots and journals. ``spark_type`` and
``arrow_schema`` convert a table to the schemas of the two libraries. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from inspect import signature
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Kind(Enum):
    """Type of a column."""

    INT = "int"
    LONG = "long"
    BOOLEAN = "boolean"
    STRING = "string"
    BINARY = "binary"
    TIMESTAMP = "timestamp"
    """UTC; ZooKeeper writes milliseconds."""
    STRINGS = "list of strings"
    LONGS = "list of longs"
    NUMBERS = "map of string to long"
    TEXTS = "map of string to string"
    EVIDENCE = "list of rows"
    """As ``EVIDENCE_ROW``."""
    ACKNOWLEDGEMENTS = "list of acknowledgements"
    """As ``ACKNOWLEDGEMENT``."""


EVIDENCE_ROW: Final = {
    "table": Kind.STRING,
    "zxid": Kind.LONG,
    "idx": Kind.INT,
    "session": Kind.LONG,
    "what": Kind.STRING,
    "server": Kind.STRING,
    "file": Kind.STRING,
    "position": Kind.LONG,
}
"""A row on which a finding is based, and where its transaction is in the logs."""
ACKNOWLEDGEMENT: Final = {
    "member": Kind.STRING,
    "session": Kind.LONG,
    "zxid": Kind.LONG,
    "time": Kind.TIMESTAMP,
}
"""A transaction in which a member acknowledged a mode."""
_LISTS: Final = {Kind.EVIDENCE: EVIDENCE_ROW, Kind.ACKNOWLEDGEMENTS: ACKNOWLEDGEMENT}


@dataclass(frozen=True, slots=True)
class Column:
    """One column. A ``nullable`` column is null in rows to which ``meaning`` does not apply."""

    name: str
    kind: Kind
    nullable: bool
    meaning: str


TYPES: Final = {
    -11: "closeSession",
    -10: "createSession",
    -1: "error",
    1: "create",
    2: "delete",
    5: "setData",
    7: "setACL",
    13: "check",
    14: "multi",
    15: "create2",
    16: "reconfig",
    19: "createContainer",
    20: "deleteContainer",
    21: "createTTL",
}
"""Transaction types as the logs number them (ZooKeeper 3.9 ZooDefs.OpCode) and their names."""

CREATES: Final = ("create", "create2", "createContainer", "createTTL")
"""Types after which a znode exists."""

DELETES: Final = ("delete", "deleteContainer")
"""Types after which a znode no longer exists. The end of a session also deletes its ephemeral
znodes."""


def _c(name: str, kind: Kind, meaning: str, nullable: bool = True) -> Column:
    return Column(name, kind, nullable, meaning)


_PLACE: Final = (
    _c("server", Kind.STRING, "name of the server that wrote the file", False),
    _c("file", Kind.STRING, "name of the file, without its directory", False),
)

TXNLOG: Final = (
    *_PLACE,
    _c(
        "position",
        Kind.LONG,
        "byte where the transaction's record begins in the unpacked file",
        False,
    ),
    _c("zxid", Kind.LONG, "the transaction; it defines the order", False),
    _c("idx", Kind.INT, "index in a multi; otherwise 0", False),
    _c(
        "size",
        Kind.INT,
        "number of operations in the multi; 0 if the transaction is not a multi",
        False,
    ),
    _c("time", Kind.TIMESTAMP, "the leader's wall clock; null if it is not a valid date"),
    _c("session", Kind.LONG, "session that sent the request (0: the server itself)", False),
    _c("cxid", Kind.INT, "the client's number for the request", False),
    _c("type", Kind.STRING, "one of the names in TYPES; `multi` only when it is empty", False),
    _c("tried", Kind.STRING, "error in a multi: the type of the operation, if the log shows it"),
    _c("path", Kind.STRING, "znode; null for sessions, and for errors outside of multis"),
    _c("data", Kind.BINARY, "data of create, setData and reconfig"),
    _c(
        "ephemeral",
        Kind.BOOLEAN,
        "creates: whether the znode is ephemeral, and deleted when `session` ends",
    ),
    _c(
        "version",
        Kind.INT,
        "setData, reconfig, setACL: the new version; check: the expected version",
    ),
    _c("parent_cversion", Kind.INT, "creates: the parent's count of creates, including this one"),
    _c(
        "error",
        Kind.INT,
        "error: the code, such as -110 (exists), -101 (missing), 0 (rolled back with the multi)",
    ),
    _c("timeout", Kind.INT, "createSession: milliseconds"),
    _c("ttl", Kind.LONG, "createTTL: milliseconds"),
    _c("deleted", Kind.STRINGS, "closeSession: znodes that it deleted, if the server logged them"),
    _c("digest", Kind.LONG, "digest of the whole tree after the transaction (ZooKeeper 3.6+)"),
)
"""One row for each operation: (server, zxid, idx) is unique in the logs of one server.

A multi of n operations gives n rows; an empty multi gives one row of type ``multi``. If one of the
operations failed, nothing was applied and all rows are of type ``error``. Operations that did not
fail themselves then have code 0, their type in ``tried``, and all their fields. (The log lists them
as if they had been applied.) So a row whose type is not ``error`` was applied.
"""

TXNLOG_FILES: Final = (
    *_PLACE,
    _c("transactions", Kind.LONG, "complete transactions in the file", False),
    _c("first_zxid", Kind.LONG, "zxid of the first one"),
    _c("last_zxid", Kind.LONG, "zxid of the last one"),
    _c("end_position", Kind.LONG, "byte where reading stopped", False),
    _c("stop", Kind.STRING, "why reading stopped: eof, padding, torn or corrupt", False),
    _c("reason", Kind.STRING, "the reason in words", False),
)
"""One row for each log: how far it can be read, and why reading stopped."""

SAMPLE: Final = 256
"""Of each so many transactions, the time is part of the run."""
SAMPLE_AT_BEGIN: Final = 16
"""The same of the first ``BEGIN`` transactions of an epoch, because short logs are compared too."""
BEGIN: Final = 1024

TXNLOG_RUNS: Final = (
    *_PLACE,
    _c(
        "first_zxid",
        Kind.LONG,
        "zxid of the run's first transaction; null: the file is damaged before its first one",
    ),
    _c(
        "last_zxid",
        Kind.LONG,
        "zxid of the run's last transaction; no zxid in between is "
        "missing, and all are of one epoch",
    ),
    _c("first_time", Kind.TIMESTAMP, "the leader's wall clock at the run's first transaction"),
    _c("last_time", Kind.TIMESTAMP, "the leader's wall clock at the run's last transaction"),
    _c(
        "times",
        Kind.LONGS,
        "the leader's wall clock, in milliseconds since 1970, at each transaction whose zxid is a "
        f"multiple of {SAMPLE} (of {SAMPLE_AT_BEGIN} at an epoch's begin): servers of one ensemble "
        "agree in it",
    ),
    _c(
        "damage",
        Kind.STRING,
        "last run of a damaged file (`corruption` is `stop`): the byte and the reason",
    ),
    _c(
        "cut",
        Kind.STRING,
        "last run of a file whose last record is incomplete: the byte and the reason",
    ),
    _c(
        "large",
        Kind.STRING,
        "last run of a file with a record that is longer than servers read by default: the byte "
        "and the length",
    ),
)
"""One row for each unbroken run of zxids in each log."""

_IN_GROUPS: Final = (
    "server",
    "file",
    "position",
    "zxid",
    "idx",
    "time",
    "session",
    "cxid",
    "type",
    "path",
    "data",
    "ephemeral",
    "version",
    "error",
    "timeout",
    "deleted",
)
RUN: Final = "run"

TXNLOG_GROUPS: Final = (
    _c("kind", Kind.STRING, f"null: an operation; `{RUN}`: an unbroken run of zxids"),
    *(
        replace(column, nullable=column.nullable or column.name not in ("server", "file"))
        for column in TXNLOG
        if column.name in _IN_GROUPS
    ),
    *(
        replace(column, nullable=True, meaning=f"{RUN}: {column.meaning}")
        for column in TXNLOG_RUNS
        if column.name not in ("server", "file")
    ),
)  # fmt: skip
"""The rows that an audit of groups needs: operations on znodes below ``/consumers``,
``/brokers/topics`` and ``/brokers/ids``, changes of the ensemble, sessions and errors. Runs, which
have only the columns of a run, are added so that the logs need to be read only once."""

CONFIG: Final = "/zookeeper/config"
"""The znode with the servers of the ensemble, since ZooKeeper 3.5."""

NODE_EXISTS: Final = -110
"""The error of a write that was refused because the znode already exists."""


SNAPSHOT: Final = (
    *_PLACE,
    _c("zxid", Kind.LONG, "last transaction when the server began to write the snapshot", False),
    _c(
        "complete_zxid",
        Kind.LONG,
        "every transaction up to this one is in the snapshot, so a "
        "missing znode did not exist (3.6+)",
    ),
    _c("path", Kind.STRING, "znode", False),
    _c("data", Kind.BINARY, "content"),
    _c("czxid", Kind.LONG, "transaction that created it", False),
    _c("mzxid", Kind.LONG, "transaction that last set its content", False),
    _c("ctime", Kind.TIMESTAMP, "when it was created, by the leader's clock"),
    _c("mtime", Kind.TIMESTAMP, "when its content was last set, by the leader's clock"),
    _c("version", Kind.INT, "version of the content", False),
    _c("cversion", Kind.INT, "creates of children so far", False),
    _c("aversion", Kind.INT, "version of the access list", False),
    _c("ephemeral_owner", Kind.LONG, "session that the znode belongs to; 0: none", False),
    _c("pzxid", Kind.LONG, "last transaction that changed its children", False),
)
"""One row for each znode of each snapshot: (server, file, path) is unique.

Snapshots are fuzzy: a znode may be newer than ``zxid``. A row proves that the znode existed with
its ``czxid``. That a znode is missing proves only that it did not exist at ``complete_zxid``.
"""

SNAPSHOT_SESSIONS: Final = (
    *_PLACE,
    _c("zxid", Kind.LONG, "last transaction when the server began to write the snapshot", False),
    _c("session", Kind.LONG, "a live session", False),
    _c("timeout", Kind.INT, "milliseconds", False),
)
"""One row for each live session of each snapshot."""

OFFSETS: Final = (
    _c("log_partition", Kind.INT, "partition of `__consumer_offsets`", False),
    _c("log_offset", Kind.LONG, "offset of the record", False),
    _c("time", Kind.TIMESTAMP, "timestamp of the record"),
    _c(
        "kind",
        Kind.STRING,
        "offset; group (classic); of KIP-848 groups: group epoch, member, target epoch, target "
        "(the partitions that a member is to have), current (those that it has); other; damaged",
        False,
    ),
    _c("fault", Kind.STRING, "other: the version of its key; damaged: how"),
    _c("group", Kind.STRING, "group id"),
    _c("topic", Kind.STRING, "topic"),
    _c("partition", Kind.INT, "partition"),
    _c("deleted", Kind.BOOLEAN, "whether the record is a tombstone"),
    _c("committed", Kind.LONG, "the offset"),
    _c("leader_epoch", Kind.INT, "epoch of the partition's leader when it was read (Kafka 2.1+)"),
    _c("metadata", Kind.STRING, "metadata that the member stored with the offset"),
    _c(
        "commit_ms",
        Kind.LONG,
        "when the coordinator stored the offset or changed the group, ms since 1970",
    ),
    _c("expire_ms", Kind.LONG, "when it expires (Kafka 0.8.2 to 2.0), ms since 1970"),
    _c("member", Kind.STRING, "member, target, current: id of the member"),
    _c("generation", Kind.INT, "group: generation; KIP-848: epoch of the group, target or member"),
    _c("members", Kind.STRINGS, "group: ids of its members"),
    _c("protocol_type", Kind.STRING, "group: `consumer`, or another type that its members use"),
    _c(
        "protocol",
        Kind.STRING,
        "group: the assignor, which all members support; member: the assignor it asks for, if any",
    ),
    _c("leader", Kind.STRING, "group: the leader"),
    _c("hosts", Kind.TEXTS, "the host of each member, as the coordinator recorded it"),
    _c("clients", Kind.TEXTS, "the client id of each member"),
    _c(
        "assignment",
        Kind.TEXTS,
        "the member id of each `topic-partition`, also of those that a member has yet to release; "
        "KIP-848 records have topic ids: a topic that the brokers no longer have keeps its id",
    ),
)
"""One row for each record of ``__consumer_offsets``: (log_partition, log_offset) is unique."""


JOURNAL_LINE = 4
"""How many columns of a journal's lines are about the line; the others are its fields."""


def journal_columns() -> tuple[Column, ...]:
    """Columns of a journal's lines: position and text of the line, then its schema's fields.

    Whole events and commands (``fields``) are needed only for replays and are left out.

    ``fault`` gives the reason if a line could not be read. ``text`` is then the line itself (at
    most 4,096 characters) and all fields are null.
    """
    from zkconsumer.journal import schema as journal  # which loads half of the library

    kinds = {
        journal.Type.INTEGER: Kind.LONG,
        journal.Type.TEXT: Kind.STRING,
        journal.Type.NAMES: Kind.STRINGS,
        journal.Type.NUMBERS: Kind.NUMBERS,
        journal.Type.TEXTS: Kind.TEXTS,
    }
    fields = {f.name: f for f in journal.FIELDS if f.type is not journal.Type.OBJECT}
    return (
        _c("file", Kind.STRING, "path of the journal", False),
        _c("line", Kind.LONG, "number of the line, from 1", False),
        _c("fault", Kind.STRING, "why the line could not be read"),
        _c("text", Kind.STRING, "the line, if it could not be read"),
        *(_c(name, kinds[field.type], field.meaning) for name, field in fields.items()),
    )


def spark_type(columns: tuple[Column, ...]) -> StructType:
    """Return the columns as a Spark schema; imports pyspark, starts nothing."""
    from pyspark.sql import types as t

    kinds: dict[Kind, DataType] = {
        Kind.INT: t.IntegerType(),
        Kind.LONG: t.LongType(),
        Kind.BOOLEAN: t.BooleanType(),
        Kind.STRING: t.StringType(),
        Kind.BINARY: t.BinaryType(),
        Kind.TIMESTAMP: t.TimestampType(),
        Kind.STRINGS: t.ArrayType(t.StringType(), containsNull=True),
        Kind.LONGS: t.ArrayType(t.LongType(), containsNull=True),
        Kind.NUMBERS: t.MapType(t.StringType(), t.LongType(), valueContainsNull=True),
        Kind.TEXTS: t.MapType(t.StringType(), t.StringType(), valueContainsNull=True),
    }
    for kind, row in _LISTS.items():
        fields = t.StructType([t.StructField(name, kinds[k]) for name, k in row.items()])
        kinds[kind] = t.ArrayType(fields, containsNull=True)
    return t.StructType([t.StructField(c.name, kinds[c.kind], c.nullable) for c in columns])


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the columns as an Arrow schema, equal to the one Spark derives from ``spark_type``."""
    import pyarrow as pa

    kinds = {
        Kind.INT: pa.int32(),
        Kind.LONG: pa.int64(),
        Kind.BOOLEAN: pa.bool_(),
        Kind.STRING: pa.string(),
        Kind.BINARY: pa.binary(),
        Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
        Kind.STRINGS: pa.list_(pa.field("element", pa.string(), nullable=True)),
        Kind.LONGS: pa.list_(pa.field("element", pa.int64(), nullable=True)),
        Kind.NUMBERS: pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=True)),
        Kind.TEXTS: pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True)),
    }
    for kind, row in _LISTS.items():
        fields = pa.struct([pa.field(name, kinds[k]) for name, k in row.items()])
        kinds[kind] = pa.list_(pa.field("element", fields, nullable=True))
    return pa.schema([pa.field(c.name, kinds[c.kind], c.nullable) for c in columns])


def arrow_of(columns: StructType) -> pa.Schema:
    """Return a Spark schema as an Arrow schema, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.0 and 4.1 have no such argument. They always use UTC.
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(columns, **zone)
