"""Findings about owners: partitions without an owner, foreign releases, sessions, shares.

Topic filters are matched by Python in Spark's workers, once for each distinct filter. Everything
else builds DataFrames in the driver's thread.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import (
    GROUP,
    PARTITION,
    Tables,
    clocks,
    finding,
    row,
    session,
    text,
    timed,
    tp,
    who,
    writers,
)
from zkaudit.findings.limits import Limits
from zkaudit.history.quiet import topics_of_filter
from zkaudit.history.staging import known_from, log_gap_between, segment_of

if TYPE_CHECKING:
    import pyarrow as pa

SHARES: Final = 32
"""Number of Spark tasks that match filters with topics."""


def foreign_releases(tables: Tables) -> DataFrame:
    """Owner znodes that were deleted by a session other than their own.

    Less than critical if both sessions belong to one member, because then no other member consumes
    the partition. A znode older than the logs cannot belong to a session that began in them.
    """
    owned = tables.ownership.where(
        "ended = 'foreign delete' or "
        "start_zxid is null and session is null and ended_by is not null"
    ).withColumnsRenamed({"member": "owner", "session": "owner_session"})
    names = writers(tables).withColumnRenamed("session", "ended_by")
    began = tables.sessions.where("created_zxid is not null").select(
        F.col("session").alias("ended_by"), "created_zxid"
    )
    foreign = owned.join(names, [*GROUP, "ended_by"], "left").join(began, "ended_by", "left")
    known = F.col("start_zxid").isNotNull()
    later = segment_of(F.col("created_zxid"), tables.log_gaps) == segment_of(
        F.col("end_zxid"), tables.log_gaps
    )
    foreign = foreign.where(known | later).withColumns(
        {
            "same": F.coalesce(F.col("member") == F.col("owner"), F.lit(False)),
            "zxid": F.col("end_zxid"),
            "time": F.col("end_time"),
            "evidence": F.array(
                row("ownership", "end_zxid", "end_idx", "ended_by", "deleted"),
            ),
        }
    )
    claimed = row("ownership", "start_zxid", "start_idx", "owner_session", "claimed")
    foreign = foreign.withColumn(
        "evidence",
        F.when(known, F.array_insert("evidence", 1, claimed)).otherwise(F.col("evidence")),
    )
    foreign = finding(
        foreign,
        F.when(F.col("same"), "medium").otherwise("critical"),
        "foreign release",
        F.when(known | F.col("member").isNull(), "proven").otherwise("inferred"),
        F.coalesce(who("ended_by"), F.concat(F.lit("Session "), session("ended_by"))),
        " deleted the owner znode of ", tp(), " of group ", F.col("group"), " that belonged to ",
        F.when(F.col("same"), F.concat(F.lit("its other session "), session("owner_session"),
                                       F.lit(".")))
        .otherwise(F.concat(
            F.coalesce(who("owner_session", "owner"),
                       F.concat(F.lit("session "), session("owner_session")),
                       F.lit("a session that had claimed it before the logs begin")),
            F.lit(". From then on another member could claim the partition while that member "
                  "still consumed it."),
        )),
    )  # fmt: skip
    return foreign.withColumns(
        {
            "member": F.col("owner"),
            "session": F.col("owner_session"),
            "end_zxid": F.lit(None).cast("bigint"),
            "end_time": F.lit(None).cast("timestamp"),
        }
    )


def two_sessions(tables: Tables) -> DataFrame:
    """Owner znodes that name a member in one session while it is registered in another.

    A member's registrations follow one another on one path. They are numbered, and an ownership is
    joined only with the numbers within its time. So a member that joins and leaves a thousand times
    does not make a million pairs.
    """
    last = F.lit(2**63 - 1)
    mine = [*GROUP, "member"]
    numbered = Window.partitionBy(*mine).orderBy(F.coalesce("start_zxid", F.lit(0)), "end_zxid")
    registered = tables.registrations.where("session is not null").withColumn(
        "number", F.row_number().over(numbered)
    )
    owned = tables.ownership.where("member is not null and session is not null")
    until = F.coalesce("end_zxid", "end_after_zxid", last)
    owned = _begun(owned, registered, F.coalesce("start_zxid", F.lit(0)), "first")
    owned = _begun(owned, registered, until - 1, "last").withColumn(
        "number",
        F.explode(F.sequence(F.greatest("first", F.lit(1)), F.greatest("last", "first", F.lit(1)))),
    )
    owned, registered = owned.alias("o"), registered.alias("r")
    begin = F.greatest("o.start_zxid", "r.start_zxid")
    together = begin < F.least(
        F.coalesce("o.end_zxid", "o.end_after_zxid", last),
        F.coalesce("r.end_zxid", "r.end_after_zxid", last),
    )
    sure = ~(
        (F.col("o.ended") == "unknown") & F.col("o.end_after_zxid").isNull()
        | (F.col("r.ended") == "unknown") & F.col("r.end_after_zxid").isNull()
    )
    same = [F.col(f"o.{name}") == F.col(f"r.{name}") for name in (*mine, "number")]
    ends = [
        F.when(F.col(f"{one}.end_zxid").isNotNull(), F.struct(f"{one}.end_zxid", f"{one}.end_time"))
        for one in "or"
    ]
    both = (
        owned.join(
            registered,
            reduce(lambda a, b: a & b, same)
            & (F.col("o.session") != F.col("r.session"))
            & together
            & sure,
        )
        .select(
            *[F.col(f"o.{name}").alias(name) for name in (*PARTITION, "member", "session")],
            begin.alias("zxid"),
            F.when(F.col("o.start_zxid") > F.col("r.start_zxid"), F.col("o.start_time"))
            .otherwise(F.col("r.start_time"))
            .alias("time"),
            F.col("o.start_zxid").alias("owner_zxid"),
            F.col("r.start_zxid").alias("registered_zxid"),
            F.col("r.session").alias("other"),
            F.least(*ends).alias("end"),
        )
        .select("*", "end.*")
    )
    both = both.withColumn(
        "evidence",
        F.array(
            row("ownership", "owner_zxid", None, "session", "owner znode"),
            row("registrations", "registered_zxid", None, "other", "registration"),
        ),
    )
    return finding(
        both,
        "high",
        "one consumer id on two sessions",
        "proven",
        "Member ", F.col("member"), " of group ", F.col("group"), " was registered in session ",
        session("other"), " while ", tp(), " was owned under its name by session ",
        session("session"), ". The owner znode disappears when that session ends.",
    )  # fmt: skip


def _begun(rows: DataFrame, registered: DataFrame, zxid: Column, name: str) -> DataFrame:
    """Add ``name``: how many registrations of the row's member had begun at a zxid."""
    begins = registered.select(
        *GROUP, "member", F.coalesce("start_zxid", F.lit(0)).alias("at"), F.lit(1).alias("step")
    )
    points = rows.withColumns({"at": zxid, "step": F.lit(0)})
    order = Window.partitionBy(*GROUP, "member").orderBy("at")
    both = points.unionByName(begins, allowMissingColumns=True)
    counted = both.withColumn(name, F.sum("step").over(order).cast("int"))  # ties are all counted
    return counted.where("step = 0").drop("at", "step")


def _matched(filters: DataFrame, topics: DataFrame) -> DataFrame:
    """Columns chroot, pattern, name and topic: each filter with the topics that it matches.

    Each task gets a share of the filters and a copy of all topics.
    """
    share = F.pmod(F.xxhash64("pattern", "name"), F.lit(SHARES)).alias("share")
    filters = filters.select("*", share)
    shares = filters.select("chroot", "share").distinct()
    # Renamed, because Spark treats two columns of one origin as the same column.
    topics = topics.distinct().join(shares, "chroot").select("chroot", "share", "topic")
    topics = topics.toDF("in_chroot", "in_share", "topic")
    found = filters.groupBy("chroot", "share").cogroup(topics.groupBy("in_chroot", "in_share"))
    return found.applyInArrow(_match, "chroot string, pattern string, name string, topic string")


def _match(filters: pa.Table, topics: pa.Table) -> pa.Table:
    """One share of the filters, in a Python worker."""
    import pyarrow as pa

    every = topics["topic"].to_pylist()
    rows = [
        {"chroot": row["chroot"], "pattern": row["pattern"], "name": row["name"], "topic": topic}
        for row in filters.to_pylist()
        for topic in topics_of_filter(row["pattern"], row["name"], every)
    ]
    names = ("chroot", "pattern", "name", "topic")
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, pa.string()) for name in names]))


def wanted(tables: Tables) -> DataFrame:
    """Lifetimes of registrations, one row for each subscribed topic, with ``streams``."""
    if tables.wanted is not None:
        return tables.wanted
    lifetimes = tables.registrations.where("subscription is not null and start_zxid is not null")
    named = lifetimes.select(
        *GROUP,
        "member",
        "pattern",
        F.col("start_zxid").alias("from_zxid"),
        F.col("start_time").alias("from_time"),
        F.col("ended").alias("left"),
        F.when(F.col("ended") == "unknown", F.col("end_after_zxid"))
        .otherwise(F.col("end_zxid"))
        .alias("to_zxid"),
        F.col("end_time").alias("to_time"),
        F.explode("subscription").alias("name", "streams"),
    )
    static = named.where("pattern = 'static'").withColumn("topic", F.col("name"))
    owned = tables.ownership if tables.owned_topics is None else tables.owned_topics
    known = tables.partitions.select("chroot", "topic").unionByName(owned.select("chroot", "topic"))
    filters = named.where("pattern in ('white_list', 'black_list')")
    matched = _matched(filters.select("chroot", "pattern", "name").distinct(), known)
    by_filter = filters.join(matched, ["chroot", "pattern", "name"])
    return static.unionByName(by_filter).drop("name", "pattern")


def unowned(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Partitions that had no owner while a member that subscribes to the topic stayed registered.

    The proof is one member that was registered all that time. If it registered after the partition
    had lost its owner, the time begins then. A deleted topic has no partitions, and a recreated one
    may have fewer. Those of a recreated topic have no owner from its creation on.
    """
    order = Window.partitionBy(*PARTITION).orderBy(F.coalesce("start_zxid", "end_zxid"))
    now = tables.end.select(F.col("zxid").alias("last_zxid"), F.col("time").alias("last_time"))
    owned = tables.ownership.withColumns(
        {"next_zxid": F.lead("start_zxid").over(order),
         "next_time": F.lead("start_time").over(order),
         "later": F.lead(F.lit(1)).over(order),
         "earlier": F.lag(F.lit(1)).over(order)}
    )  # fmt: skip
    free = (
        owned.where("end_zxid is not null and ended != 'unknown'")
        .where("later is null or next_zxid is not null")
        .crossJoin(F.broadcast(now))
    )
    topics = tables.partitions.select(
        "chroot", "topic", "partition", "gone_zxid", F.col("zxid").alias("made_zxid"),
        F.col("time").alias("made_time"), "created", F.lit(True).alias("exists"),
    )  # fmt: skip
    free = free.join(topics, ["chroot", "topic", "partition"], "left").where("gone_zxid is null")
    recreated = F.col("made_zxid") > F.col("end_zxid")
    since = F.when(recreated, F.col("made_time")).otherwise(F.col("end_time"))
    free = free.withColumns(
        {
            "since": since,
            "until": F.coalesce("next_zxid", "last_zxid"),
            "until_time": F.coalesce("next_time", "last_time"),
            "first": F.lit(False),
        }
    )
    # If the topic is known, it has no partition that it does not list.
    known = topics.select("chroot", "topic", F.lit(True).alias("known")).distinct()
    free = free.join(known, ["chroot", "topic"], "left").where("exists or known is null")
    if tables.log_gaps:  # claims and releases within a log gap are unknown
        free = free.where(~log_gap_between(F.col("end_zxid"), F.col("until"), tables.log_gaps))
    free = free.unionByName(_before_first_claim(tables, owned, topics), allowMissingColumns=True)
    free = free.where(_seconds("since", "until_time") >= limits.unowned_seconds)
    witnessed = _witnessed(free, wanted(tables))
    later = F.col("from_zxid") > F.col("end_zxid")
    begin = F.greatest("end_zxid", "from_zxid")
    here = segment_of(F.col("until"), tables.log_gaps)
    new = F.col("created") & (segment_of(F.col("end_zxid"), tables.log_gaps) == here)
    sure = new | F.coalesce(begin >= known_from(here, tables.known), F.lit(False))
    witnessed = witnessed.where(~F.col("first") | sure).withColumn(
        "since", F.when(later, F.greatest("since", "from_time")).otherwise(F.col("since"))
    )
    witnessed = witnessed.withColumn("seconds", _seconds("since", "until_time"))
    witnessed = witnessed.where(F.col("seconds") >= limits.unowned_seconds)
    witnessed = witnessed.withColumns(
        {
            "open": F.col("later").isNull(),
            "zxid": begin,
            "time": F.when(later, F.col("from_time")).otherwise(F.col("end_time")),
            "evidence": F.array_compact(
                F.array(
                    F.when(F.col("first"), row("partitions", "made_zxid", None, None, "partition"))
                    .otherwise(row("ownership", "end_zxid", "end_idx", "ended_by",
                                   F.concat(F.lit("owner gone: "), F.col("ended")))),
                    F.when(later, row("registrations", "from_zxid", None, None,
                                      "a subscribed member")),
                    F.when(F.col("next_zxid").isNotNull(),
                           row("ownership", "next_zxid", None, None, "next claim")),
                )
            ),
        }
    )  # fmt: skip
    witnessed = witnessed.withColumns(
        {"end_zxid": F.col("next_zxid"), "end_time": F.col("next_time")}
    ).drop("member", "session")
    seconds = F.format_number("seconds", 1)
    return [
        finding(
            witnessed.where("not open"), "medium", "unowned interval", timed("zxid", "until"),
            tp(), " of group ", F.col("group"), " had no owner for ", seconds, " s",
            F.when(F.col("known_later"), " before its first claim in the logs")
            .when(F.col("first"), " before its first claim").otherwise(""),
            " although members were registered.", clocks("zxid", "until"),
        ),
        finding(
            witnessed.where("open"), "high", "orphan partition", timed("zxid", "until"),
            tp(), " of group ", F.col("group"), " has had no owner for the last ", seconds,
            " s of the logs although members are registered.", clocks("zxid", "until"),
        ),
    ]  # fmt: skip


def _before_first_claim(tables: Tables, owned: DataFrame, topics: DataFrame) -> DataFrame:
    """The time of each partition from its creation, or the oldest data that shows it, to its first
    claim. ``first`` marks these rows. A claim that only a snapshot shows may not be the first.

    The snapshot with which the logs begin shows that there was no owner at that time.
    """
    claims = owned.where("earlier is null and coalesce(start_idx, 0) < 2147483647").select(
        *PARTITION, F.col("start_zxid").alias("next_zxid"), F.col("start_time").alias("next_time"),
        F.lit(1).alias("later"),
    )  # fmt: skip
    claims = claims.join(topics, ["chroot", "topic", "partition"])
    rows = claims.where("gone_zxid is null and made_zxid < next_zxid").withColumns(
        {
            "end_zxid": F.col("made_zxid"),
            "end_time": F.col("made_time"),
            "until": F.col("next_zxid"),
            "until_time": F.col("next_time"),
            "first": F.lit(True),
        }
    )
    return _from_known(tables, rows, "end_zxid", "end_time", "next_zxid").withColumn(
        "since", F.col("end_time")
    )


def _from_known(tables: Tables, rows: DataFrame, zxid: str, time: str, until: str) -> DataFrame:
    """Let rows begin where all owners of the last segment are known, if they begin earlier and end
    later; ``known_later`` marks these. ``zxid``, ``time`` and ``until`` are the columns with begin
    and end."""
    known = tables.known[-1]
    if not known or tables.known_us is None:
        return rows.withColumn("known_later", F.lit(False))
    late = (F.col(zxid) < known) & ~_new(tables)
    late &= F.coalesce(until, F.lit(2**63 - 1)) > known
    return rows.withColumn("known_later", F.coalesce(late, F.lit(False))).withColumns(
        {
            zxid: F.when(F.col("known_later"), known).otherwise(F.col(zxid)),
            time: F.when(
                F.col("known_later"), F.greatest(F.timestamp_micros(F.lit(tables.known_us)), time)
            ).otherwise(F.col(time)),
        }
    )


def _new(tables: Tables) -> Column:
    """Whether a partition was created in the last segment."""
    here = segment_of(F.col("made_zxid"), tables.log_gaps) == len(tables.log_gaps)
    return F.col("created") & here


def _witnessed(free: DataFrame, wants: DataFrame) -> DataFrame:
    """Add from_zxid and from_time of the longest registration that lasted at least to ``until``.
    Rows without one are left out.

    One window finds it: from the last end to the first, the earliest start so far. A join would
    pair every row with every registration of its group.
    """
    registered = F.when(F.col("from_zxid").isNotNull(), F.struct("from_zxid", "from_time"))
    wants = wants.select(
        *GROUP, "topic", registered.alias("registered"),
        F.coalesce("to_zxid", F.lit(2**63 - 1)).alias("at"),
    )  # fmt: skip
    rows = free.withColumn("at", F.col("until")).unionByName(wants, allowMissingColumns=True)
    order = Window.partitionBy(*GROUP, "topic").orderBy(
        F.col("at").desc(), F.col("registered").isNull()
    )
    order = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("longest", F.min("registered").over(order))
    rows = rows.where("until is not null and longest.from_zxid < until")
    return rows.select("*", "longest.*").drop("at", "registered", "longest")


def _seconds(begin: str, end: str) -> Column:
    return (F.unix_millis(end) - F.unix_millis(begin)) / 1000


def unclaimed(tables: Tables, limits: Limits) -> DataFrame:
    """Partitions that have no owner in the last segment although a subscribed member was
    registered.

    Partitions of a topic that were created together are one row until the end, so that members that
    join and leave often make few rows. If member and partition are older than the logs, the time
    begins with the snapshot that shows that there was no owner.
    """
    now = tables.end.select(F.col("time").alias("last_time"), F.col("zxid").alias("last_zxid"))
    sure = 2**63 - 1 if tables.known[-1] is None else tables.known[-1]
    listed = tables.partitions.where("gone_zxid is null").select(
        "chroot", "topic", "partition", F.col("zxid").alias("made_zxid"),
        F.col("time").alias("made_time"), "created",
    )  # fmt: skip
    never = (
        wanted(tables)
        .where("left != 'unknown'")
        .join(listed.drop("partition").distinct(), ["chroot", "topic"])
        .crossJoin(F.broadcast(now))
        .withColumns(
            {
                "since_zxid": F.greatest("from_zxid", "made_zxid"),
                "since": F.greatest("from_time", "made_time"),
                "live": F.col("left") == "still held",
            }
        )
    )
    never = (
        _from_known(tables, never, "since_zxid", "since", "to_zxid")
        .where(_new(tables) | (F.col("since_zxid") >= sure))
        .withColumn(
            "seconds",
            (F.unix_millis(F.coalesce("to_time", "last_time")) - F.unix_millis("since")) / 1000,
        )
        .where(F.col("seconds") >= limits.unowned_seconds)
        .groupBy(*GROUP, "topic", "made_zxid")
        .agg(
            F.min("since_zxid").alias("zxid"),
            F.min("since").alias("time"),
            F.min("from_zxid").alias("registered"),
            F.max_by(F.coalesce("to_zxid", "last_zxid"), "seconds").alias("until"),
            F.max_by("since_zxid", "seconds").alias("timed_from"),
            F.max("seconds").alias("seconds"),
            F.max("live").alias("live"),
            F.max("to_time").alias("left_time"),
            F.max("known_later").alias("known_later"),
        )
        .withColumn("end_time", F.when(~F.col("live"), F.col("left_time")))
    )
    never = never.join(listed.drop("made_time"), ["chroot", "topic", "made_zxid"])
    never = _without_owner(tables, never)
    never = never.withColumn(
        "evidence",
        F.array(
            row("registrations", "registered", None, None, "a subscribed member"),
            F.when(
                F.col("known_later"), row("partitions", "made_zxid", None, None, "partition")
            ).otherwise(row("partitions", "zxid", None, None, "member and partition exist")),
        ),
    )
    return finding(
        never,
        F.when(F.col("live"), "high").otherwise("medium"),
        F.when(F.col("live"), "orphan partition").otherwise("unowned interval"),
        timed("timed_from", "until"),
        tp(), " of group ", F.col("group"),
        F.when(F.col("known_later"), " had no owner when the logs begin, and none later")
        .otherwise(" never had an owner"),
        ", although members that subscribe to the topic were registered for ",
        F.format_number("seconds", 1), " s.", clocks("timed_from", "until"),
    )  # fmt: skip


def _without_owner(tables: Tables, never: DataFrame) -> DataFrame:
    """Leave out partitions that had an owner: from where all owners are known, if the row begins
    there (``known_later``), and otherwise ever."""
    known, key = tables.known[-1], list(PARTITION)
    if not known:
        return never.join(tables.ownership.select(*key), key, "left_anti")
    here = (F.col("ended") == "still held") | (F.greatest("start_zxid", "end_zxid") >= known)
    owned = tables.ownership.groupBy(*key).agg(F.max(F.coalesce(here, F.lit(False))).alias("here"))
    never = never.join(owned, key, "left")
    return never.where(F.col("here").isNull() | (F.col("known_later") & ~F.col("here")))


def shares(tables: Tables, limits: Limits) -> list[DataFrame]:
    """Members at the end of the history that own fewer partitions than any assignment gives them.

    With n partitions and t streams, both of the old strategies give each stream at least n / t
    partitions, rounded down. (roundrobin counts all topics together, and then all members subscribe
    to the same topics.) A partition without an owner is a finding of its own, so it counts as the
    member's. Groups that rebalanced within ``unowned_seconds`` of the end are skipped, as they may
    not have finished.
    """
    now = tables.end.select(F.col("time").alias("last_time"), F.col("zxid").alias("last_zxid"))
    owned = tables.ownership.where("ended = 'still held'")
    wants = wanted(tables).where("left = 'still held'")
    count = tables.partitions.where("gone_zxid is null").groupBy("chroot", "topic")
    count = count.agg(F.count(F.lit(1)).alias("n"), F.max("time").alias("grown"))
    changes = tables.membership.select(*GROUP, "time", "zxid")
    changes = changes.unionByName(
        tables.rebalances.select(
            *GROUP, F.col("end_time").alias("time"), F.col("last_zxid").alias("zxid")
        )
    )
    settled = changes.groupBy(*GROUP).agg(
        F.max("time").alias("changed"), F.max("zxid").alias("changed_zxid")
    )
    streams = wants.groupBy(*GROUP, "topic").agg(F.sum("streams").alias("t"))
    mine = owned.groupBy(*GROUP, "topic", "member").agg(F.count(F.lit(1)).alias("own"))
    each = (
        wants.join(streams, [*GROUP, "topic"])
        .join(count, ["chroot", "topic"], "left")
        .join(mine, [*GROUP, "topic", "member"], "left")
        .join(settled, list(GROUP))
        .crossJoin(F.broadcast(now))
        .withColumn("since", F.greatest("changed", "grown"))
    )
    whole = owned.groupBy(*GROUP, "topic").agg(F.count_distinct("partition").alias("owned"))
    each = each.join(whole, [*GROUP, "topic"], "left")
    fair = each.where("n is not null").groupBy(*GROUP, "member").agg(
        F.min("from_zxid").alias("zxid"),
        F.min("from_time").alias("time"),
        F.sum(F.col("streams") * F.floor(F.col("n") / F.col("t"))).alias("share"),
        F.sum(F.coalesce("own", F.lit(0))).alias("own"),
        F.sum(F.col("n") - F.coalesce("owned", F.lit(0))).alias("free"),
        F.min((F.unix_millis("last_time") - F.unix_millis("since")) / 1000).alias("seconds"),
        F.max("changed_zxid").alias("changed_zxid"),
        F.max("last_zxid").alias("last_zxid"),
    )  # fmt: skip
    short = fair.where("own + free < share").where(F.col("seconds") >= limits.unowned_seconds)
    # Without the topic's znode, only the partitions of other members show that there are any.
    crowded = owned.groupBy(*GROUP, "topic", "member", "stream").count().where("count >= 2")
    idle = (
        each.where("n is null and own is null")
        .withColumn(
            "seconds",
            (F.unix_millis("last_time") - F.unix_millis(F.greatest("from_time", "changed"))) / 1000,
        )
        .where(F.col("seconds") >= limits.unowned_seconds)
        .join(crowded.select(*GROUP, "topic").distinct(), [*GROUP, "topic"], "left_semi")
        .join(owned.select(*GROUP, "member").distinct(), [*GROUP, "member"], "left_anti")
        .groupBy(*GROUP, "member")
        .agg(
            F.min("from_zxid").alias("zxid"),
            F.min("from_time").alias("time"),
            F.min("topic").alias("topic"),
            F.max("seconds").alias("seconds"),
        )
    )
    since = F.array(row("registrations", "zxid", None, None, "registered since"))
    kind = "member without its share"
    return [
        finding(
            short.withColumn("evidence", since), "medium", kind,
            timed("changed_zxid", "last_zxid"),
            "Member ", F.col("member"), " of group ", F.col("group"), " owns ", text("own"),
            " partitions ", F.format_number("seconds", 1), " s after the last change; every "
            "assignment gives it ", text("share"), " or more.", clocks("changed_zxid", "last_zxid"),
        ),
        finding(
            idle.withColumn("evidence", since), "medium", kind, "inferred",
            "Member ", F.col("member"), " of group ", F.col("group"), " owns nothing ",
            F.format_number("seconds", 1), " s after the last change, while another stream holds "
            "two or more partitions of ", F.col("topic"), ".",
        ),
    ]  # fmt: skip
