"""All tables of an audit: their grain, their columns and their meaning.

The pipeline builds its DataFrames to these schemas, and the job checks them before it writes. Data
only: no Spark until ``spark_type`` is called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from zkaudit.schema import Column, arrow_schema, columns_in, lines_of, spark_type

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SCHEMA_VERSION: Final = 2
"""Version of the tables, stored in the summary. It increases when a column changes its meaning or
its name, is removed, or becomes nullable, not for new columns."""
GROUP: Final = ("chroot", "group_id")
"""The columns that name a group."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of an audit, stored as Parquet in ``OUT/tables``. ``key``: the columns that identify
    a row. In these columns, null counts as a value."""

    name: str
    key: str
    grain: str
    columns: tuple[Column, ...]

    def spark_type(self) -> StructType:
        """Return the table's schema for Spark. All columns are nullable, as in any file that Spark
        writes."""
        return spark_type(tuple(replace(column, nullable=True) for column in self.columns))

    def arrow_schema(self) -> pa.Schema:
        """Return the table's schema for Arrow."""
        return arrow_schema(tuple(replace(column, nullable=True) for column in self.columns))

    def shape(self, frame: DataFrame, missing: Collection[str] = ()) -> DataFrame:
        """Return a frame with exactly this table's columns, in order, each cast to its type.
        Columns in ``missing`` are null."""
        # As SQL: a Column object for each takes seven calls to the JVM.
        columns = ((f"`{c.name}`", c.dataType.simpleString()) for c in self.spark_type())
        return frame.selectExpr(
            *(
                f"cast({'null' if name.strip('`') in missing else name} as {kind}) as {name}"
                for name, kind in columns
            )
        )


_SHARED: Final[dict[str, tuple[Column, ...]]] = {}
"""Columns that several tables have."""


def _columns(text: str) -> tuple[Column, ...]:
    """Return the columns in a text (``schema.columns_in``). ``*NAME`` stands for the columns of
    ``_SHARED``, ``*NAME?`` for the same as nullable columns."""
    found: list[Column] = []
    for line in lines_of(text):
        if line.startswith("*"):
            shared = _SHARED[line[1:].rstrip("?")]
            found += (replace(c, nullable=c.nullable or line.endswith("?")) for c in shared)
        else:
            found += columns_in(line)
    return tuple(found)


def _table(name: str, key: str, grain: str, columns: str) -> Table:
    return Table(name, key, grain, _columns(columns))


_SHARED["GROUP"] = _columns("""
    chroot string!: path before `/consumers`, empty without a chroot
    group_id string!: group id
""")
_SHARED["PARTITION"] = _columns("""
    *GROUP
    topic string!: topic
    partition long!: partition
""")
_SHARED["AT"] = _columns("""
    zxid long!: the transaction
    idx int!: index in its multi; 0 otherwise
    time timestamp: time of the transaction; never used to order rows
""")
_SHARED["LIFE"] = _columns("""
    start_zxid long: transaction that created the znode
    start_idx int: index in that multi; 2147483647 if only a snapshot shows the znode
    start_time timestamp: time of that transaction
    end_zxid long: first transaction at which the znode is known to be gone
    end_idx int: index in that multi
    end_time timestamp: time of that transaction
    end_after_zxid long: if `ended` is `unknown`: last transaction at which the znode is known to
        have existed
    ended string!: `released` (its session deleted it), `closed` (the client closed the session),
        `expired` (the server ended the session), `foreign delete` (another session deleted it),
        `still held`, `unknown` (the logs begin later or have a gap)
    ended_by long: session of the delete or close that ended it
""")

SESSIONS: Final = _table(
    "sessions",
    "session",
    "one row for each session that was created, closed or used in a group; with `--group`, "
    "sessions that did not use the group may be missing",
    """
    session long!: session id
    created_zxid long: transaction that created the session
    created_time timestamp: time of that transaction
    timeout_ms int: session timeout that the server granted
    closed_zxid long: transaction that closed the session; null if it is open, or was closed in a
        log gap
    closed_time timestamp: time of that transaction
    closed_by string: `client`, or `server` (the session expired)
    address string: address of its client, from `--server-logs`; several if it was resumed elsewhere
    broker string: if the session is a broker's (`/brokers/ids/N`): the broker's id. Brokers write
        offsets for clients that commit with OffsetCommit v0
    """,
)

REGISTRATIONS: Final = _table(
    "registrations",
    "chroot group_id member start_zxid start_idx",
    "one row for each lifetime of a registration znode (`/consumers/G/ids/C`)",
    """
    *GROUP
    member string!: consumer id
    session long: session that the znode belongs to
    *LIFE
    pattern string: `static`, `white_list` or `black_list`; null if unreadable
    subscription numbers: topic or regex to number of streams
    """,
)

OWNERSHIP: Final = _table(
    "ownership",
    "chroot group_id topic partition start_zxid start_idx",
    "one row for each lifetime of an owner znode (`/consumers/G/owners/T/P`): an interval of "
    "ownership",
    """
    *PARTITION
    member string: consumer id stored in the znode
    stream string: stream number stored in the znode
    session long: session that the znode belongs to
    *LIFE
    """,
)

COMMITS: Final = _table(
    "commits",
    "chroot group_id topic partition store zxid idx log_partition log_offset",
    "one row for each write of an offset znode (`/consumers/G/offsets/T/P`), and for each offset "
    "record that compaction has kept in `__consumer_offsets`",
    """
    *PARTITION
    store string!: `zookeeper` or `kafka`; an offset in Kafka has no transaction, session or owner
    *AT?
    session long: session that wrote it
    committed_offset long: the offset; null if the data is not a number, or a negative one
    content string: the data, if it is not an offset
    previous long: offset before this write
    previous_zxid long: transaction that wrote the previous offset
    previous_time timestamp: time of that transaction
    kind string!: `commit`; `same`: a write that did not change the offset; `claim`: such a write in
        the multi that created the owner znode, which fences the previous owner; `deleted`: kafka:
        the offset expired or was deleted
    created boolean: whether this write created the offset znode
    owner_state string!: `owner`, `none` or `unknown`, at this transaction
    owner_session long: session of the owner znode at this transaction
    owner_member string: consumer id in the owner znode at this transaction; if only the end of its
        session shows the znode, the session's only registration in the group
    owner_start_zxid long: transaction that created that owner znode
    free_since_zxid long: if `owner_state` is `none`: transaction by which the last owner znode
        was gone; null if there was none
    log_partition int: kafka: partition of `__consumer_offsets`
    log_offset long: kafka: offset of the record; it orders a group's commits
    metadata string: kafka: metadata that the member stored with the offset
    """,
)

PARTITIONS: Final = _table(
    "partitions",
    "chroot topic partition zxid",
    "one row for each partition of each topic in `/brokers/topics/T`; no rows if neither logs nor "
    "snapshots reach back to the topic's creation",
    """
    chroot string!: path before `/brokers`, empty without a chroot
    topic string!: topic
    partition long!: partition
    zxid long!: transaction that added the partition, or that of the oldest known data
    time timestamp: time of that transaction
    created boolean!: whether that transaction created the partition; if not, it may be older
    gone_zxid long: transaction that deleted the topic; null while the topic exists
    deleted_zxid long: last transaction that deleted a topic of this name, even if it exists again
    """,
)

MOVES: Final = _table(
    "moves",
    "chroot group_id zxid idx",
    "one row for each change of a group's migration marker (`/consumers/G/migration`), which "
    "records that its offsets were moved to another store",
    """
    *GROUP
    *AT
    session long: session that wrote or deleted it
    moved_to string: `kafka` or `zookeeper`; null if deleted or unreadable
    """,
)

MEMBERSHIP: Final = _table(
    "membership",
    "chroot group_id zxid idx member",
    "one row for each start or end of a registration",
    """
    *GROUP
    *AT
    member string!: consumer id
    session long: session of the registration
    change string!: `join` or `leave`
    cause string: leave: how the registration ended
    members long: registrations that existed after this change
    """,
)

FAILED_CLAIMS: Final = _table(
    "failed_claims",
    "chroot group_id zxid idx member",
    "one row for each write that ZooKeeper refused because the znode existed (error -110), if the "
    "session had registered a member. The log does not name the znode, which may also be a parent "
    "of the owner znode",
    """
    *GROUP
    *AT
    member string!: consumer id
    session long!: session that sent the request
    """,
)

REBALANCES: Final = _table(
    "rebalances",
    "chroot group_id first_zxid",
    "one row for each burst of changes in a group that includes a claim or release; a burst ends "
    "when nothing has happened in the group for 5 seconds",
    """
    *GROUP
    first_zxid long!: first change of an owner or of the membership
    last_zxid long!: last such change
    start_time timestamp: when it began
    end_time timestamp: when it ended
    claims long!: owner znodes created
    ends long!: owner znodes deleted
    partitions long!: number of partitions that were claimed or released
    members long!: members that claimed
    rounds long!: number of claims of the partition that was claimed most often
    refused long!: refused writes of members
    joins long!: registrations that began
    leaves long!: registrations that ended
    """,
)

ATTEMPTS: Final = _table(
    "attempts",
    "file line",
    "one row for each rebalance attempt of a member, from its journal, with the transaction that "
    "triggered the rebalance",
    """
    *GROUP
    member string!: consumer id
    attempt long: number of the attempt, from 1 in each run of the member
    time timestamp: when it began, by the member's clock
    trigger_zxid long: the transaction that triggered the rebalance; null when the member starts
    trigger_path string: if `basis` is `proven`: path whose watch fired, without the chroot
    basis string: `proven`: ZooKeeper (3.9 and later) sent the transaction with the watch event;
        `inferred`: this was the last change of membership in the 30 seconds before
    file string!: journal
    line long!: its line
    """,
)

HERDS: Final = _table(
    "herds",
    "chroot group_id zxid idx member",
    "one row for each change of membership (as in `membership`), with the members that it "
    "notified and their operations in the first 30 seconds",
    """
    *GROUP
    *AT
    member string!: member that joined or left
    change string!: `join` or `leave`
    members long: number of members after the change, including one that joined
    basis string!: `measured`: all members wrote journals; `measured in part`: some did, so the
        figures are lower bounds; `modelled`: none did, so the figures are upper bounds
    cause string: how the figures are known to be effects of this change. `proven`: ZooKeeper (3.9
        and later) sent the transaction with each watch event; `inferred`: no other change of
        membership came between. Null if modelled
    notified long: members that a watch notified; modelled: all other members
    rebalances long: rebalance attempts begun; modelled: one for each member
    reads long: znodes read; modelled: each member reads one for each member
    writes long: write operations without commits; null if modelled
    """,
)

GENERATIONS: Final = _table(
    "generations",
    "log_partition log_offset",
    "one row for each state of a group in Kafka, from its records in `__consumer_offsets`: a "
    "generation of a classic group; a change of a KIP-848 group's epoch, members or assignment; or "
    "the end of the group. Compaction keeps only the last records",
    """
    group_id string!: group id
    log_partition int!: partition of `__consumer_offsets`
    log_offset long!: offset of the last record of this state; it orders a group's states
    time timestamp: when the coordinator wrote it, by its clock
    group_protocol string: `classic` or `consumer` (KIP-848)
    generation int: generation, or epoch of a KIP-848 group; null if the group was deleted
    protocol string: the assignor; null for a KIP-848 group with the broker's default
    leader string: the member that computed the assignment; KIP-848 has none
    members strings: ids of the members
    hosts texts: member id to host
    clients texts: member id to client id
    assignment texts: `topic-partition` to the id of its member, until that member has
        released it. KIP-848: a topic that was deleted since appears with its id
    """,
)

BROKER_OWNERSHIP: Final = _table(
    "broker_ownership",
    "group_id topic partition start_time first_generation",
    "one row for each period in which a partition was assigned to a member of a group on the "
    "brokers, for one or more generations or epochs; the times are those of `generations`",
    """
    group_id string!: group id
    topic string!: topic
    partition long!: partition
    member string!: id of the member
    host string: the member's host, as the coordinator recorded it
    first_generation int: first generation with this assignment
    last_generation int: last generation with this assignment
    start_time timestamp: when the first generation was written
    end_time timestamp: when the next generation with another assignment was written; null while
        assigned
    """,
)

MIGRATIONS: Final = _table(
    "migrations",
    "chroot group_id start_zxid version",
    "one row for each mode that was written for a group that moves while it runs "
    "(`/consumers/G/live/mode`), which lasts until the next one",
    """
    *GROUP
    mode string: `zookeeper`, `locked`, `kafka` or `open`; null if the content is not a mode
    coordination string: whose assignment applies: `zookeeper` or `coordinator`
    version long: number of the mode: the znode's version
    start_zxid long: transaction that wrote it
    start_time timestamp: time of that transaction
    end_zxid long: first transaction known to be after the end of the mode
    end_time timestamp: time of that transaction
    ended string!: `next mode`, `deleted`, `still` (in force when the logs end), `unknown` (log gap)
    session long: session that wrote it; null if only a snapshot shows it
    address string: address of its client, from `--server-logs`
    members long: migratable members that were registered when it was written
    acknowledged acknowledgements: members
        that acknowledged it, each with the transaction
    settled_zxid long: first transaction at which all registered members had acknowledged it
    settled_time timestamp: time of that transaction
    late strings: members that had not acknowledged it when it ended
    """,
)

GROUP_OWNERSHIP: Final = _table(
    "group_ownership",
    "chroot group_id topic partition source member start_zxid start_time",
    "one row for each period in which a partition belonged to a member under one coordination, in "
    "groups that have a mode or had an owner on the coordinator. The coordinator's records contain "
    "no chroot, so the table has the chroot of the group with the same name in ZooKeeper. If "
    "several chroots have this group name, the coordinator's owners are left out",
    """
    *PARTITION
    member string: consumer id; for source `generation`, the member id on the coordinator
    session long: session of the owner znode
    host string: source `generation`: the member's host
    coordination string!: `zookeeper` or `coordinator`: whose assignment the member followed
    source string!: `owner znode`; `generation` (a consumer that is not migratable, from
        `broker_ownership`); `journal` (such a consumer, from its journal)
    first_generation int: source `generation`: first generation with this assignment
    last_generation int: source `generation`: last generation with this assignment
    start_zxid long: source `owner znode`: transaction that began the period
    start_time timestamp: when the period began, by the leader's, broker's or member's clock
    end_zxid long: source `owner znode`: transaction that ended the period; null while owned
    end_time timestamp: when the period ended
    ended string: as in `ownership`, or `next coordination` (the member kept the partition); source
        `generation`: `still held` or `reassigned`; source `journal`: as in `deliveries`
    """,
)

DELIVERIES: Final = _table(
    "deliveries",
    "file line topic partition",
    "one row for each period in which a member delivered messages of a partition, from its journal",
    """
    *PARTITION
    member string!: consumer id
    session long: the member's session when the period began
    coordination string: `zookeeper` or `coordinator`: whose assignment the member then followed
    start_time timestamp: when the period began, by the member's clock
    end_time timestamp: when the period ended; for `open`, the end of the journal
    ended string!: `stopped` (the partition was released), `dropped` (it was lost), `reset` (the
        position was reset, which begins the next row), `open` (the journal ends)
    start_offset long: first offset known to be delivered
    end_offset long: offset after the last one known to be consumed
    reset boolean: whether `auto.offset.reset` chose the first position; if `reset_to` is null, the
        first offset may be lower
    reset_from long: the offset that was not in the log; null also if none was stored
    reset_to long: the offset that `auto.offset.reset` chose
    file string!: journal
    line long!: line at which delivery began
    """,
)

VIEWS: Final = _table(
    "views",
    "file line",
    "one row for each time that a member read the group, from its journal",
    """
    *GROUP
    member string!: consumer id
    start_time timestamp: when the member had read the group, by its clock
    end_time timestamp: when the member read the group again or left, or when its journal ends
    members strings: consumer ids of the members that it read, sorted
    file string!: journal
    line long!: its line
    """,
)

UNREADABLE: Final = _table(
    "unreadable",
    "file line",
    "one row for each line of a journal that could not be read",
    """
    file string!: journal
    line long!: its number
    fault string!: why
    text string: the line, at most 4,096 characters
    """,
)

FINDINGS: Final = _table(
    "findings",
    "id",
    "one row for each finding",
    """
    id string!: the same in every audit that has this finding
    severity string!: `critical`, `high`, `medium`, `low` or `info`
    kind string!: name of the rule
    *PARTITION?
    member string: consumer id the finding is about
    session long: session the finding is about
    zxid long: transaction at which it begins
    end_zxid long: transaction at which it ends; null if it is a single transaction, or lasts
    time timestamp: when it begins
    end_time timestamp: when it ends
    basis string!: `proven` by the log (a herd: also by journals), `inferred`, `measured`
        (journals), `modelled` (an upper bound)
    effect string: effect of a wrong offset: `repeated`, `lost`, `repaired` (before a member started
        from it), `none` (no member has started from it) or `unknown`
    messages long: number of offsets that were delivered again or not delivered; the log may have
        fewer messages
    server string: server whose log holds transaction `zxid`
    file string: that log
    position long: byte where the transaction's record begins in it
    address string: address of the session's client, from `--server-logs`
    sentence string!: what happened
    evidence evidence!: the rows that it is based on, each with its place in the logs
    """,
)

TABLES: Final = (
    SESSIONS,
    REGISTRATIONS,
    OWNERSHIP,
    COMMITS,
    MEMBERSHIP,
    FAILED_CLAIMS,
    REBALANCES,
    PARTITIONS,
    MOVES,
    ATTEMPTS,
    HERDS,
    GENERATIONS,
    BROKER_OWNERSHIP,
    MIGRATIONS,
    GROUP_OWNERSHIP,
    DELIVERIES,
    VIEWS,
    UNREADABLE,
    FINDINGS,
)
