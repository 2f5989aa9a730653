"""Columns of everything zkaudit reads. Data only: Spark and Arrow are loaded only by functions.

Transaction logs, snapshots and journals have one table of columns each. ``spark_type`` and
``arrow_schema`` convert a table to the schemas of the two libraries. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from inspect import signature
from textwrap import dedent
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


class Kind(Enum):
    """The type of a column."""

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
    """A list of ``EVIDENCE_ROW``."""
    ACKNOWLEDGEMENTS = "list of acknowledgements"
    """A list of ``ACKNOWLEDGEMENT``."""


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
"""A row on which a finding is based, and the place of its transaction in the logs."""
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
    """A column of a table. A ``nullable`` column is null in rows to which ``meaning`` does not
    apply."""

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


def lines_of(text: str) -> list[str]:
    """Return the lines of a text. A line with a larger indent than the first continues the
    previous line."""
    return dedent(text).strip().replace("\n    ", " ").splitlines()


def columns_in(text: str) -> tuple[Column, ...]:
    """Parse a text that has a column's name, type and meaning in each line. ``!`` after the type
    means that the column is never null."""
    found = []
    for line in lines_of(text):
        about, _, meaning = line.partition(": ")
        name, kind = about.split(" ")
        found.append(Column(name, Kind[kind.rstrip("!").upper()], not kind.endswith("!"), meaning))
    return tuple(found)


_PLACE: Final = columns_in("""
    server string!: name of the server that wrote the file
    file string!: name of the file, without its directory
""")

TXNLOG: Final = _PLACE + columns_in("""
    position long!: byte where the transaction's record begins in the unpacked file
    zxid long!: the transaction; it defines the order
    idx int!: index in a multi; otherwise 0
    size int!: number of operations in the multi; 0 if the transaction is not a multi
    time timestamp: the leader's wall clock; null if it is not a valid date
    session long!: session that sent the request (0: the server itself)
    cxid int!: the client's number for the request
    type string!: one of the names in TYPES; `multi` only when it is empty
    tried string: error in a multi: the type of the operation, if the log shows it
    path string: znode; null for sessions, and for errors outside of multis
    data binary: data of create, setData and reconfig
    ephemeral boolean: creates: whether the znode is ephemeral, and deleted when `session` ends
    version int: setData, reconfig, setACL: the new version; check: the expected version
    parent_cversion int: creates: the parent's count of creates, including this one
    error int: error: the code, such as -110 (exists), -101 (missing), 0 (rolled back with the
        multi)
    timeout int: createSession: milliseconds
    ttl long: createTTL: milliseconds
    deleted strings: closeSession: znodes that it deleted, if the server logged them
    digest long: digest of the whole tree after the transaction (ZooKeeper 3.6+)
""")
"""One row for each operation: (server, zxid, idx) is unique in the logs of one server.

A multi of n operations gives n rows; an empty multi gives one row of type ``multi``. If one of the
operations failed, nothing was applied and all rows are of type ``error``. Operations that did not
fail themselves then have code 0, their type in ``tried``, and all their fields. (The log lists them
as if they had been applied.) So a row whose type is not ``error`` was applied.
"""

TXNLOG_FILES: Final = _PLACE + columns_in("""
    transactions long!: complete transactions in the file
    first_zxid long: zxid of the first one
    last_zxid long: zxid of the last one
    end_position long!: byte where reading stopped
    stop string!: why reading stopped: eof, padding, torn or corrupt
    reason string!: the reason in words
""")
"""One row for each log: how far it is readable, and why reading stopped."""

SAMPLE: Final = 256
"""Step of the sample: the time of one in this many transactions is part of the run."""
SAMPLE_AT_BEGIN: Final = 16
"""Step of the sample for an epoch's first ``BEGIN`` transactions, because short logs are compared,
too."""
BEGIN: Final = 1024

TXNLOG_RUNS: Final = _PLACE + columns_in(f"""
    first_zxid long: zxid of the run's first transaction; null: the file is damaged before its first
        one
    last_zxid long: zxid of the run's last transaction; no zxid in between is missing, and all are
        of one epoch
    first_time timestamp: the leader's wall clock at the run's first transaction
    last_time timestamp: the leader's wall clock at the run's last transaction
    times longs: the leader's wall clock, in milliseconds since 1970, at each transaction whose zxid
        is a multiple of {SAMPLE} (of {SAMPLE_AT_BEGIN} at an epoch's start): servers of one
        ensemble agree in it
    damage string: last run of a damaged file (`corruption` is `stop`): the byte and the reason
    cut string: last run of a file whose last record is incomplete: the byte and the reason
    large string: last run of a file with a record that is longer than servers read by default: the
        byte and the length
""")
"""One row for each unbroken run of zxids in each log."""

_IN_GROUPS: Final = (
    "server", "file", "position", "zxid", "idx", "time", "session", "cxid", "type", "path", "data",
    "ephemeral", "version", "error", "timeout", "deleted",
)  # fmt: skip
RUN: Final = "run"

TXNLOG_GROUPS: Final = (
    *columns_in(f"kind string: null: an operation; `{RUN}`: an unbroken run of zxids"),
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


SNAPSHOT: Final = _PLACE + columns_in("""
    zxid long!: last transaction when the server began to write the snapshot
    complete_zxid long: every transaction up to this one is in the snapshot, so a missing znode did
        not exist (3.6+)
    path string!: znode
    data binary: content
    czxid long!: transaction that created it
    mzxid long!: transaction that last set its content
    ctime timestamp: when it was created, by the leader's clock
    mtime timestamp: when its content was last set, by the leader's clock
    version int!: version of the content
    cversion int!: creates of children so far
    aversion int!: version of the access list
    ephemeral_owner long!: session that the znode belongs to; 0: none
    pzxid long!: last transaction that changed its children
""")
"""One row for each znode of each snapshot: (server, file, path) is unique.

Snapshots are fuzzy: a znode may be newer than ``zxid``. A row proves that the znode existed with
its ``czxid``. That a znode is missing proves only that it did not exist at ``complete_zxid``.
"""

SNAPSHOT_SESSIONS: Final = _PLACE + columns_in("""
    zxid long!: last transaction when the server began to write the snapshot
    session long!: a live session
    timeout int!: milliseconds
""")
"""One row for each live session of each snapshot."""

OFFSETS: Final = columns_in("""
    log_partition int!: partition of `__consumer_offsets`
    log_offset long!: offset of the record
    time timestamp: timestamp of the record
    kind string!: offset; group (classic); of KIP-848 groups: group epoch, member, target epoch,
        target (the partitions that a member is to have), current (those that it has); other;
        damaged
    fault string: other: the version of its key; damaged: how
    group_id string: group id
    topic string: topic
    partition int: partition
    deleted boolean: whether the record is a tombstone
    committed long: the offset
    leader_epoch int: epoch of the partition's leader when it was read (Kafka 2.1+)
    metadata string: metadata that the member stored with the offset
    commit_ms long: when the coordinator stored the offset or changed the group, ms since 1970
    expire_ms long: when it expires (Kafka 0.8.2 to 2.0), ms since 1970
    member string: member, target, current: id of the member
    generation int: group: generation; KIP-848: epoch of the group, target or member
    members strings: group: ids of its members
    protocol_type string: group: `consumer`, or another type that its members use
    protocol string: group: the assignor, which all members support; member: the assignor it asks
        for, if any
    leader string: group: the leader
    hosts texts: the host of each member, as the coordinator recorded it
    clients texts: the client id of each member
    assignment texts: the member id of each `topic-partition`, also of those that a member has yet
        to release; KIP-848 records have topic ids: a topic that the brokers no longer have keeps
        its id
""")
"""One row for each record of ``__consumer_offsets``: (log_partition, log_offset) is unique."""


JOURNAL_LINE = 4
"""Number of columns about a journal's line itself. The others are its fields."""


def journal_columns() -> tuple[Column, ...]:
    """Return the columns of a journal's lines: position and text of the line, then the fields of
    its schema.

    Complete events and commands (``fields``) are left out, because only replays need them.
    ``fault``: why a line could not be read. In that case ``text`` is the line (at most 4,096
    characters), and all fields are null.
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
        *columns_in("""
            file string!: path of the journal
            line long!: number of the line, from 1
            fault string: why the line could not be read
            text string: the line, if it could not be read
        """),
        *(Column(name, kinds[field.type], True, field.meaning) for name, field in fields.items()),
    )


def spark_type(columns: tuple[Column, ...]) -> StructType:
    """Return the columns as a Spark schema. Imports pyspark, but starts nothing."""
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
