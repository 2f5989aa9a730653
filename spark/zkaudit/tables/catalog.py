"""Every table of an audit, described once: its grain, its columns and their meaning.

The pipeline builds its DataFrames to these schemas, and the job checks them before it writes. Data
only: no Spark until ``spark_type`` is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

SCHEMA_VERSION: Final = 1
"""Incremented when a column changes its meaning or is removed, not for new columns. It is in the
summary."""
EVIDENCE: Final = (
    "array<struct<table:string,zxid:bigint,idx:int,session:bigint,what:string,server:string,"
    "file:string,position:bigint>>"
)
"""As ``zkaudit.schema.EVIDENCE_ROW``."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``type`` is a Spark SQL type."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table, stored as Parquet below ``OUT/tables``. ``key``: the columns that identify a row,
    where null counts as a value."""

    name: str
    key: str
    grain: str
    columns: tuple[Column, ...]

    @property
    def ddl(self) -> str:
        """The schema as Spark SQL text."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns)

    def spark_type(self) -> StructType:
        """Return the Spark schema. Spark parses it, so a session must be running."""
        from pyspark.sql.types import StructType

        return StructType.fromDDL(self.ddl)

    def shape(self, frame: DataFrame, missing: Collection[str] = ()) -> DataFrame:
        """Return exactly this table's columns, in order, each cast to its type. Those in
        ``missing`` are null."""
        # As SQL: a Column object for each takes seven calls to the JVM.
        return frame.selectExpr(
            *(
                f"cast({'null' if c.name in missing else f'`{c.name}`'} as {c.type}) as `{c.name}`"
                for c in self.columns
            )
        )


def _c(name: str, type: str, meaning: str) -> Column:
    return Column(name, type, meaning)


_GROUP: Final = (
    _c("chroot", "string", "path before `/consumers`, empty without a chroot"),
    _c("group", "string", "group id"),
)
_PARTITION: Final = (
    *_GROUP,
    _c("topic", "string", "topic"),
    _c("partition", "bigint", "partition"),
)
_AT: Final = (
    _c("zxid", "bigint", "the transaction"),
    _c("idx", "int", "index in its multi; 0 otherwise"),
    _c(
        "time",
        "timestamp",
        "time of the transaction; never used to order rows",
    ),
)
_LIFE: Final = (
    _c("start_zxid", "bigint", "transaction that created the znode; null: before the logs begin"),
    _c(
        "start_idx",
        "int",
        "index in that multi; 2147483647: known only from a snapshot; null: before the logs begin",
    ),
    _c("start_time", "timestamp", "time of that transaction"),
    _c("end_zxid", "bigint", "first transaction known to be after its end"),
    _c("end_idx", "int", "index in that multi"),
    _c("end_time", "timestamp", "time of that transaction"),
    _c(
        "end_after_zxid",
        "bigint",
        "if `ended` is `unknown`: last transaction at which it is known to have existed; it "
        "ended some time later",
    ),
    _c(
        "ended",
        "string",
        "`released` (its session deleted it), `closed` (the client closed the session), `expired` "
        "(the server ended the session), `foreign delete` (another session deleted it), "
        "`still held`, `unknown` (there is a log gap in between, or the logs begin later)",
    ),
    _c("ended_by", "bigint", "session of the delete or close that ended it"),
)

SESSIONS: Final = Table(
    "sessions",
    "session",
    "one row for each session that was created, closed or used in a group; with `--group`, "
    "sessions that did not use the group may be missing",
    (
        _c("session", "bigint", "session id"),
        _c("created_zxid", "bigint", "transaction that created it; null: before the logs begin"),
        _c("created_time", "timestamp", "time of that transaction"),
        _c("timeout_ms", "int", "session timeout that the server granted"),
        _c(
            "closed_zxid",
            "bigint",
            "transaction that closed it; null: it is still open, or was closed in a log gap",
        ),
        _c("closed_time", "timestamp", "time of that transaction"),
        _c(
            "closed_by",
            "string",
            "`client` or `server` (the session expired: the request has no number)",
        ),
        _c(
            "address",
            "string",
            "address of its client, from `--server-logs`; several if it was resumed elsewhere",
        ),
        _c(
            "broker",
            "string",
            "id of the broker whose session it is (`/brokers/ids/N`): it writes offsets for "
            "clients that commit with OffsetCommit v0; null: not known to be a broker's",
        ),
    ),
)

REGISTRATIONS: Final = Table(
    "registrations",
    "chroot group member start_zxid start_idx",
    "one row for each lifetime of a registration znode (`/consumers/G/ids/C`)",
    (
        *_GROUP,
        _c("member", "string", "consumer id"),
        _c("session", "bigint", "session that the znode belongs to"),
        *_LIFE,
        _c("pattern", "string", "`static`, `white_list` or `black_list`; null: unreadable"),
        _c("subscription", "map<string,int>", "topic or regex to number of streams"),
    ),
)

OWNERSHIP: Final = Table(
    "ownership",
    "chroot group topic partition start_zxid start_idx",
    "one row for each lifetime of an owner znode (`/consumers/G/owners/T/P`): an interval of "
    "ownership",
    (
        *_PARTITION,
        _c("member", "string", "consumer id stored in the znode"),
        _c("stream", "string", "stream number stored in the znode"),
        _c("session", "bigint", "session that the znode belongs to"),
        *_LIFE,
    ),
)

COMMITS: Final = Table(
    "commits",
    "chroot group topic partition store zxid idx log_partition log_offset",
    "one row for each write of an offset znode (`/consumers/G/offsets/T/P`), and for each "
    "offset record in `__consumer_offsets`, of which compaction keeps only the last ones",
    (
        *_PARTITION,
        _c(
            "store",
            "string",
            "`zookeeper` or `kafka`; an offset in Kafka has no transaction, session or owner",
        ),
        *_AT,
        _c("session", "bigint", "session that wrote it"),
        _c("offset", "bigint", "the offset; null: the data is not a number, or a negative one"),
        _c("content", "string", "the data, if it is not an offset"),
        _c("previous", "bigint", "offset before this write"),
        _c("previous_zxid", "bigint", "transaction that wrote the previous offset"),
        _c("previous_time", "timestamp", "time of that transaction"),
        _c(
            "kind",
            "string",
            "`commit`; `claim`: an unchanged write in the same multi as the owner znode, which "
            "fences the previous owner and is not a commit; `same`: an unchanged write",
        ),
        _c("created", "boolean", "whether it created the offset znode; there was no offset before"),
        _c("owner_state", "string", "`owner`, `none` or `unknown`, at this transaction"),
        _c("owner_session", "bigint", "session of the owner znode at this transaction"),
        _c(
            "owner_member",
            "string",
            "consumer id in the owner znode at this transaction; if only the end of its session "
            "shows the znode, the session's only registration in the group",
        ),
        _c("owner_start_zxid", "bigint", "transaction that created that owner znode"),
        _c(
            "free_since_zxid",
            "bigint",
            "if `owner_state` is `none`: transaction by which the last owner znode was gone; "
            "null: there was no earlier one",
        ),
        _c("log_partition", "int", "kafka: partition of `__consumer_offsets`"),
        _c("log_offset", "bigint", "kafka: offset of the record, the order of a group's commits"),
        _c("metadata", "string", "kafka: metadata that the member stored with the offset"),
    ),
)

PARTITIONS: Final = Table(
    "partitions",
    "chroot topic partition zxid",
    "one row for each partition of each topic in `/brokers/topics/T`; no rows if neither logs "
    "nor snapshots reach back to the topic's creation",
    (
        _c("chroot", "string", "path before `/brokers`, empty without a chroot"),
        _c("topic", "string", "topic"),
        _c("partition", "bigint", "partition"),
        _c("zxid", "bigint", "transaction that added it, or that of the oldest known data"),
        _c("time", "timestamp", "time of that transaction"),
        _c(
            "created",
            "boolean",
            "whether the partition was created by that transaction; false: it may be older",
        ),
        _c("gone_zxid", "bigint", "transaction that deleted the topic; null: the topic exists"),
        _c(
            "deleted_zxid",
            "bigint",
            "last transaction that deleted a topic of this name, even if it exists again",
        ),
    ),
)

MOVES: Final = Table(
    "moves",
    "chroot group zxid idx",
    "one row for each change of a group's migration marker (`/consumers/G/migration`), "
    "which records that its offsets were moved to another store",
    (
        *_GROUP,
        *_AT,
        _c("session", "bigint", "session that wrote or deleted it"),
        _c("moved_to", "string", "`kafka` or `zookeeper`; null: deleted, or unreadable"),
    ),
)

MEMBERSHIP: Final = Table(
    "membership",
    "chroot group zxid idx member",
    "one row for each start or end of a registration",
    (
        *_GROUP,
        *_AT,
        _c("member", "string", "consumer id"),
        _c("session", "bigint", "session of the registration"),
        _c("change", "string", "`join` or `leave`"),
        _c("cause", "string", "leave: how the registration ended"),
        _c(
            "members",
            "bigint",
            "registrations that existed after this change; null: the logs begin later or have "
            "gaps, and no later snapshot shows the members",
        ),
    ),
)

FAILED_CLAIMS: Final = Table(
    "failed_claims",
    "chroot group zxid idx member",
    "one row for each write that ZooKeeper refused because the znode existed (error -110), if "
    "its session was registered in a group; the log has no path, so a refused create of a "
    "parent znode looks the same",
    (
        *_GROUP,
        *_AT,
        _c("member", "string", "consumer id"),
        _c("session", "bigint", "session that sent the request"),
    ),
)

REBALANCES: Final = Table(
    "rebalances",
    "chroot group first_zxid",
    "one row for each burst of changes in a group that includes a claim or release; a burst ends "
    "when nothing has happened in the group for 5 seconds",
    (
        *_GROUP,
        _c("first_zxid", "bigint", "first change of an owner or of the membership"),
        _c("last_zxid", "bigint", "last such change"),
        _c("start_time", "timestamp", "when it began"),
        _c("end_time", "timestamp", "when it ended"),
        _c("claims", "bigint", "owner znodes created"),
        _c("ends", "bigint", "owner znodes gone"),
        _c("partitions", "bigint", "number of partitions that were claimed or released"),
        _c("members", "bigint", "members that claimed"),
        _c("rounds", "bigint", "number of claims of the partition that was claimed most often"),
        _c("refused", "bigint", "refused writes of members"),
        _c("joins", "bigint", "registrations that began"),
        _c("leaves", "bigint", "registrations that ended"),
    ),
)

ATTEMPTS: Final = Table(
    "attempts",
    "file line",
    "one row for each rebalance attempt of a member, from its journal, with the transaction that "
    "triggered the rebalance",
    (
        *_GROUP,
        _c("member", "string", "consumer id"),
        _c("attempt", "bigint", "number of the attempt, from 1 in each run of the member"),
        _c("time", "timestamp", "when it began, by the member's clock"),
        _c(
            "trigger_zxid",
            "bigint",
            "the transaction that triggered the rebalance; null when the member starts",
        ),
        _c("trigger_path", "string", "proven: path whose watch fired, without the chroot"),
        _c(
            "basis",
            "string",
            "`proven`: ZooKeeper (3.9 and later) sent the transaction with the watch event; "
            "`inferred`: it is the last change of membership in the 30 seconds before",
        ),
        _c("file", "string", "journal"),
        _c("line", "bigint", "its line"),
    ),
)

HERDS: Final = Table(
    "herds",
    "chroot group zxid idx member",
    "one row for each change of membership (as in `membership`), with the members that it "
    "notified and their operations in the first 30 seconds",
    (
        *_GROUP,
        *_AT,
        _c("member", "string", "member that joined or left"),
        _c("change", "string", "`join` or `leave`"),
        _c(
            "members",
            "bigint",
            "number of members after the change, including one that joined",
        ),
        _c(
            "basis",
            "string",
            "`measured`: all members wrote journals; `measured in part`: some did, so the "
            "figures are lower bounds; `modelled`: none did, so the figures are upper bounds",
        ),
        _c(
            "cause",
            "string",
            "how the figures are known to be effects of this change. `proven`: ZooKeeper (3.9 and "
            "later) sent the transaction with each watch event; `inferred`: there was no later "
            "change of membership before them. Null: modelled",
        ),
        _c(
            "notified",
            "bigint",
            "members that a watch notified; modelled: all other members",
        ),
        _c("rebalances", "bigint", "rebalance attempts begun; modelled: one for each member"),
        _c("reads", "bigint", "znodes read; modelled: one for each member by each member"),
        _c("writes", "bigint", "write operations without commits; null: modelled"),
    ),
)

GENERATIONS: Final = Table(
    "generations",
    "log_partition log_offset",
    "one row for each state of a group on the brokers, from its records in `__consumer_offsets`: "
    "a generation of a classic group; a change of a KIP-848 group's epoch, members or assignment; "
    "or the end of the group. Compaction keeps only the last ones",
    (
        _c("group", "string", "group id"),
        _c("log_partition", "int", "partition of `__consumer_offsets`"),
        _c("log_offset", "bigint", "offset of the (last) record, the order of a group's states"),
        _c("time", "timestamp", "when the coordinator wrote it, by its clock"),
        _c("group_protocol", "string", "`classic` or `consumer` (KIP-848)"),
        _c(
            "generation",
            "int",
            "generation, or epoch of a KIP-848 group; null: the group was deleted",
        ),
        _c("protocol", "string", "the assignor; KIP-848: null for the broker's default"),
        _c("leader", "string", "the leader, which computed the assignment; KIP-848 has none"),
        _c("members", "array<string>", "ids of the members"),
        _c("hosts", "map<string,string>", "id of each member to its host"),
        _c("clients", "map<string,string>", "id of each member to its client id"),
        _c(
            "assignment",
            "map<string,string>",
            "`topic-partition` to the id of its member, until the member has released it. KIP-848 "
            "records have topic ids: a topic that the brokers no longer have keeps its id",
        ),
    ),
)

BROKER_OWNERSHIP: Final = Table(
    "broker_ownership",
    "group topic partition start_time first_generation",
    "one row for each period in which a partition was assigned to a member of a group on the "
    "brokers, for one or more generations or epochs; the times are those of `generations`",
    (
        _c("group", "string", "group id"),
        _c("topic", "string", "topic"),
        _c("partition", "bigint", "partition"),
        _c("member", "string", "id of the member"),
        _c("host", "string", "the member's host, as the coordinator recorded it"),
        _c("first_generation", "int", "first generation with this assignment"),
        _c("last_generation", "int", "last generation with this assignment"),
        _c("start_time", "timestamp", "when the first of them was written"),
        _c(
            "end_time",
            "timestamp",
            "when the next generation with another assignment was written; null: still assigned",
        ),
    ),
)

MIGRATIONS: Final = Table(
    "migrations",
    "chroot group start_zxid version",
    "one row for each mode that was written for a group that moves while it runs "
    "(`/consumers/G/live/mode`), which lasts until the next one",
    (
        *_GROUP,
        _c(
            "mode",
            "string",
            "`zookeeper`, `locked`, `kafka` or `open`; null: the content is not a mode",
        ),
        _c("coordination", "string", "whose assignment applies: `zookeeper` or `coordinator`"),
        _c("version", "bigint", "number of the mode: the znode's version"),
        _c("start_zxid", "bigint", "transaction that wrote it"),
        _c("start_time", "timestamp", "time of that transaction"),
        _c("end_zxid", "bigint", "first transaction known to be after its end"),
        _c("end_time", "timestamp", "time of that transaction"),
        _c(
            "ended",
            "string",
            "`next mode`, `deleted`, `still`, `unknown` (the logs have a log gap in between)",
        ),
        _c("session", "bigint", "session that wrote it; null: known only from a snapshot"),
        _c("address", "string", "address of its client, from `--server-logs`"),
        _c("members", "bigint", "migratable members that were registered when it was written"),
        _c(
            "acknowledged",
            "array<struct<member:string,session:bigint,zxid:bigint,time:timestamp>>",
            "members that acknowledged it, each with the transaction",
        ),
        _c(
            "settled_zxid",
            "bigint",
            "first transaction at which all registered members had acknowledged it",
        ),
        _c("settled_time", "timestamp", "time of that transaction"),
        _c("late", "array<string>", "members that had not acknowledged it when it ended"),
    ),
)

GROUP_OWNERSHIP: Final = Table(
    "group_ownership",
    "chroot group topic partition source member start_zxid start_time",
    "one row for each period in which a partition belonged to a member under one coordination; all "
    "groups that had an owner on the coordinator, or have a mode. The coordinator's records end "
    "where compaction has removed the older ones, and have no chroot: it is that of the group of "
    "this name in ZooKeeper. If several chroots have one, the coordinator's owners are left out",
    (
        *_PARTITION,
        _c(
            "member",
            "string",
            "consumer id; with `source` = generation, the id on the coordinator",
        ),
        _c("session", "bigint", "session of the owner znode"),
        _c("host", "string", "generation: the member's host"),
        _c(
            "coordination",
            "string",
            "`zookeeper` or `coordinator`: whose assignment the member followed, since it "
            "registered or acknowledged a mode",
        ),
        _c(
            "source",
            "string",
            "`owner znode`; `generation` (a consumer that is not migratable, from "
            "`broker_ownership`); `journal` (the same, from its journal)",
        ),
        _c("first_generation", "int", "generation: first generation with this assignment"),
        _c("last_generation", "int", "generation: last generation with this assignment"),
        _c("start_zxid", "bigint", "owner znode: transaction at which it begins"),
        _c(
            "start_time", "timestamp", "when it begins, by the leader's, broker's or member's clock"
        ),
        _c("end_zxid", "bigint", "owner znode: transaction at which it ends; null: still owned"),
        _c("end_time", "timestamp", "when it ends"),
        _c(
            "ended",
            "string",
            "as in `ownership`, or `next coordination` (the member kept the partition); "
            "generation: `still held` or `reassigned`; journal: as in `deliveries`",
        ),
    ),
)

DELIVERIES: Final = Table(
    "deliveries",
    "file line topic partition",
    "one row for each period in which a member delivered messages of a partition, from its journal",
    (
        *_PARTITION,
        _c("member", "string", "consumer id"),
        _c("session", "bigint", "its session when it began"),
        _c(
            "coordination",
            "string",
            "`zookeeper` or `coordinator`: whose assignment the member followed when it began",
        ),
        _c("start_time", "timestamp", "when it began, by the member's clock"),
        _c("end_time", "timestamp", "when it ended; for `open`, the end of the journal"),
        _c(
            "ended",
            "string",
            "`stopped` (released), `dropped` (stopped at once because it was lost), `reset` (the "
            "position was reset, which begins the next row), `open` (the journal ends)",
        ),
        _c("start_offset", "bigint", "first offset known to be delivered"),
        _c("end_offset", "bigint", "offset after the last one known to be consumed"),
        _c(
            "reset",
            "boolean",
            "whether `auto.offset.reset` chose the position at which the period begins; if "
            "`reset_to` is null, the first offset may be lower",
        ),
        _c(
            "reset_from",
            "bigint",
            "reset: the offset that was not in the log; null also if none was stored",
        ),
        _c("reset_to", "bigint", "reset: the offset that it chose"),
        _c("file", "string", "journal"),
        _c("line", "bigint", "line at which delivery began"),
    ),
)

VIEWS: Final = Table(
    "views",
    "file line",
    "one row for each time that a member read the group, from its journal",
    (
        *_GROUP,
        _c("member", "string", "consumer id"),
        _c("start_time", "timestamp", "when the member had read the group, by its clock"),
        _c(
            "end_time",
            "timestamp",
            "when the member read the group again or left, or when its journal ends",
        ),
        _c("members", "array<string>", "consumer ids of the members that it read, sorted"),
        _c("file", "string", "journal"),
        _c("line", "bigint", "its line"),
    ),
)

UNREADABLE: Final = Table(
    "unreadable",
    "file line",
    "one row for each line of a journal that could not be read",
    (
        _c("file", "string", "journal"),
        _c("line", "bigint", "its number"),
        _c("fault", "string", "why"),
        _c("text", "string", "the line, at most 4,096 characters"),
    ),
)

FINDINGS: Final = Table(
    "findings",
    "id",
    "one row for each finding",
    (
        _c("id", "string", "the same in every audit that has this finding, also of longer logs"),
        _c("severity", "string", "`critical`, `high`, `medium`, `low` or `info`"),
        _c("kind", "string", "name of the rule"),
        *_PARTITION,
        _c("member", "string", "consumer id the finding is about"),
        _c("session", "bigint", "session the finding is about"),
        _c("zxid", "bigint", "transaction at which it begins"),
        _c(
            "end_zxid",
            "bigint",
            "transaction at which it ends; null: a single transaction, or not ended",
        ),
        _c("time", "timestamp", "when it begins"),
        _c("end_time", "timestamp", "when it ends"),
        _c(
            "basis",
            "string",
            "`proven` by the log (a herd: also by journals), `inferred`, `measured` (journals), "
            "`modelled` (an upper bound)",
        ),
        _c(
            "effect",
            "string",
            "effect of a wrong offset: `repeated`, `lost`, `repaired` "
            "(before a member started from it), `none` (no member has started from it) or "
            "`unknown`; null: the finding is not about an offset",
        ),
        _c(
            "messages",
            "bigint",
            "offsets that were delivered again or not delivered; the log may have fewer messages",
        ),
        _c("server", "string", "server whose log holds transaction `zxid`"),
        _c("file", "string", "that log"),
        _c("position", "bigint", "byte where the transaction's record begins in it"),
        _c("address", "string", "address of the session's client, from `--server-logs`"),
        _c("sentence", "string", "what happened"),
        _c("evidence", EVIDENCE, "the rows that it is based on, each with its place in the logs"),
    ),
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
