"""Findings about groups on the coordinator: two owners at once, storms, members that come and go.

They are read from the records in ``__consumer_offsets``. Compaction removes the older records of a
group, so these rules may find too little, and their counts are lower bounds. The records do not
show why a member left. So nothing here is proven. Without such records nothing is planned. Runs in
the driver's thread and only builds DataFrames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, Window, functions as F

from zkaudit.findings.base import GROUP, PARTITION, Tables, finding, row, text, tp
from zkaudit.findings.journals import overlaps
from zkaudit.findings.load import culprits, in_storms
from zkaudit.history.staging import known_at
from zkaudit.limits import Limits
from zkaudit.tables.timeline import OWN_PROTOCOL, with_mode

SLOT_MS: Final = 5_000
"""Epochs of a KIP-848 group within the same five seconds count as one rebalance, because the
coordinator raises the epoch for each member."""


def coordinator(
    tables: Tables, limits: Limits, keep: Callable[[str, DataFrame], DataFrame]
) -> list[DataFrame]:
    """All findings about groups on the coordinator. ``keep``: see ``rules.findings``."""
    parts = {}
    if tables.group_ownership is not None:
        parts["two_owners"] = two_owners(tables, tables.group_ownership, limits)
    if tables.generations is not None:
        changes = _changes(tables.generations)
        parts["storms"] = storms(changes, limits)
        parts["flapping"] = flapping(changes, limits)
    # Planned alone: they rarely have rows, and without rows they add nothing to the findings' plan.
    return [keep(name, part) for name, part in parts.items()]


def two_owners(tables: Tables, owned: DataFrame, limits: Limits) -> DataFrame:
    """Partitions that the coordinator had assigned to a consumer while a member still had the owner
    znode.

    The two times are from different clocks. It does not prove that both delivered: a member that
    the coordinator expels stops by itself, and a member whose session expired had stopped before.
    In a group that moves while it runs, members notice each other. Other members do not, so there
    it is more severe; but if the logs begin late, they may not show that the group moves.
    """
    now = tables.end.select(F.unix_micros("time").alias("now"))
    times = (
        owned.where("source in ('owner znode', 'generation') and member is not null")
        .where("ended != 'expired' and ended != 'unknown'")
        .crossJoin(F.broadcast(now))
        .withColumns(
            {
                "a": F.unix_micros("start_time"),
                "b": F.coalesce(F.unix_micros("end_time"), "now"),
            }
        )
        .where("a is not null and b is not null")
    )
    keep = ("source", "session", "start_zxid")
    both = overlaps(times, PARTITION, "member", keep).where(
        (F.col("source") != F.col("other.source"))
        & (F.col("high") - F.col("low") >= int(limits.skew_seconds * 1e6))
    )
    here = F.col("source") == "owner znode"

    def pick(name: str, znode: bool) -> Column:
        mine, theirs = F.col(name), F.col(f"other.{name}")
        return F.when(here, mine if znode else theirs).otherwise(theirs if znode else mine)

    both = both.select(
        *PARTITION,
        F.timestamp_micros("low").alias("time"),
        F.timestamp_micros("high").alias("end_time"),
        F.format_number((F.col("high") - F.col("low")) / 1e6, 1).alias("seconds"),
        pick("member", True).alias("member"),
        pick("session", True).alias("session"),
        pick("start_zxid", True).alias("zxid"),
        pick("member", False).alias("plain"),
    )
    moving = F.broadcast(with_mode(owned.sparkSession, tables.moving))
    known = known_at(F.col("zxid"), tables.log_gaps, tables.known)
    both = both.join(moving, list(GROUP), "left").withColumns(
        {
            "moves": F.coalesce("moves", F.lit(False)),
            "known": known,
            "evidence": F.array(
                row("group_ownership", "zxid", None, "session", "owner znode"),
                row("group_ownership", None, None, None, F.col("plain")),
            ),
        }
    )
    return finding(
        both,
        F.when(~F.col("moves") & F.col("known"), "high").otherwise("medium"),
        F.when(F.col("moves"), "two owners during a move").otherwise("two owners"),
        "inferred",
        tp(), " of group ", F.col("group"), " was assigned to ", F.col("plain"),
        " by the coordinator while member ", F.col("member"), " had its owner znode, for ",
        F.col("seconds"), " s (measured with two clocks). Both may have delivered, unless ",
        F.when(F.col("moves"), "the member had stopped.").otherwise("one of them had stopped."),
        " Journals would show which.",
        F.when(F.col("moves") | F.col("known"), "").otherwise(
            " The logs begin too late to show whether the group was moving while it ran."
        ),
    )  # fmt: skip


def _source(member: Column, clients: Column, hosts: Column) -> Column:
    """What identifies a member across restarts, since it then has another id."""
    host = F.regexp_replace(hosts[member], "^/", "")
    return F.concat(F.lit("client id "), clients[member], F.lit(" on host "), host)


def _changes(generations: DataFrame) -> DataFrame:
    """States of groups in which the generation changed, with the members that ``left`` and
    ``joined``, and the state ``before``. ``emptied``: how often the group had been empty before.

    Without the generations in which all members are migratable: these follow the stages of a move.
    """
    order = Window.partitionBy(*GROUP, "log_partition").orderBy("log_offset")
    earlier = order.rowsBetween(Window.unboundedPreceding, -1)
    no_members = F.array().cast("array<string>")
    state = F.struct("generation", "members", "clients", "hosts", "ms")
    empty = (F.size(F.coalesce("members", no_members)) == 0).cast("int")
    rows = generations.withColumn("ms", F.unix_millis("time")).withColumns(
        {
            "before": F.lag(state).over(order),
            "emptied": F.coalesce(F.sum(empty).over(earlier), F.lit(0)),
        }
    )
    own = F.coalesce(F.col("protocol").startswith(OWN_PROTOCOL), F.lit(False))
    rows = rows.where(~own & (F.col("generation") > 0) & F.col("ms").isNotNull())
    rows = rows.where(~F.col("generation").eqNullSafe(F.col("before.generation")))
    members = F.coalesce("before.members", no_members)
    # It is unknown who joined in the oldest state that is left.
    return rows.withColumns(
        {
            "left": F.array_except(members, "members"),
            "joined": F.when(F.col("before").isNotNull(), F.array_except("members", members)),
            "place": F.concat(
                F.lit("generation "), text("generation"), F.lit(", __consumer_offsets-"),
                text("log_partition"), F.lit(", offset "), text("log_offset"),
            ),
        }
    )  # fmt: skip


def _evidence(*names: str) -> Column:
    return F.array(*[row("generations", None, None, None, F.col(name)) for name in names])


def storms(changes: DataFrame, limits: Limits) -> DataFrame:
    """Many generations in a short time: one finding for each storm.

    The limits are those of storms in ZooKeeper. The coordinator counts generations that no member
    lived to see, too: of those since the last record, the share within ``storm_seconds`` counts.
    """
    span = int(limits.storm_seconds * 1000)
    classic = F.col("group_protocol") == "classic"
    since = F.greatest(F.col("ms") - F.col("before.ms"), F.lit(1))
    steps = F.greatest(F.col("generation") - F.col("before.generation"), F.lit(1))
    share = F.least(F.lit(1), span / since)
    generations = F.coalesce(F.greatest(F.floor(steps * share), F.lit(1)), F.lit(1))
    order = Window.partitionBy(*GROUP).orderBy("log_offset")
    slot = F.floor(F.col("ms") / SLOT_MS)
    last = F.last(F.when(~classic, slot), ignorenulls=True).over(
        order.rowsBetween(Window.unboundedPreceding, -1)
    )
    epochs = F.when(slot.eqNullSafe(last), 0).otherwise(1)
    timed = changes.withColumn("times", F.when(classic, generations).otherwise(epochs))
    each = (
        in_storms(timed.where("times > 0"), limits, "log_offset")
        .groupBy(*GROUP, "storm")
        .agg(
            F.min("log_offset").alias("begin"),
            F.max("log_offset").alias("end"),
            F.min("time").alias("time"),
            F.max("time").alias("end_time"),
            F.max("recent").alias("most"),
            F.sum("times").alias("times"),
            F.sum(F.size("left")).alias("leaves"),
            F.min_by("place", "log_offset").alias("first"),
            F.max_by("place", "log_offset").alias("last"),
            F.min_by(F.col("before").isNull(), "log_offset").alias("oldest"),
            (F.max("ms") - F.min("ms")).alias("lasted"),
        )
    )
    left = changes.select(
        *GROUP, F.col("log_offset").alias("at"), F.explode("left").alias("member"), "before"
    ).select(*GROUP, "at", _source(F.col("member"), F.col("before.clients"),
                                   F.col("before.hosts")).alias("source"))  # fmt: skip
    each = each.join(culprits(left, each), [*GROUP, "storm"], "left").withColumns(
        {
            "rate": F.col("times") / F.greatest(F.col("lasted") / 60_000, F.lit(1.0)),
            "evidence": _evidence("first", "last"),
        }
    )
    return finding(
        each,
        F.when(F.col("rate") >= limits.storm_per_minute, "high").otherwise("medium"),
        "rebalance storm", "inferred",
        "Group ", F.col("group"), " rebalanced ", text("most"),
        f" times within {limits.storm_seconds:g} s on the coordinator; members left it ",
        text("leaves"), " times.",
        F.coalesce(F.concat(F.lit(" Of these, "), text("by_source"), F.lit(" were members with "),
                   F.col("source"), F.lit(".")), F.lit("")),
        F.when(F.col("oldest"), " It may have begun earlier: compaction removes older "
               "records.").otherwise(""),
    )  # fmt: skip


def flapping(changes: DataFrame, limits: Limits) -> DataFrame:
    """Members that left and returned repeatedly while others stayed: one finding for each source.

    A source may have several members, and a rolling restart replaces each once. So their returns
    are divided by their number. If the group was empty in between, that is a stop, not a return.
    """

    def each_of(which: str, state: str, step: int) -> DataFrame:
        clients, hosts = (F.col(f"{state}{name}") for name in ("clients", "hosts"))
        rows = changes.select("*", F.explode(which).alias("member"))
        rows = rows.withColumn("source", _source(F.col("member"), clients, hosts))
        own = F.filter(
            F.map_keys(clients), lambda member: _source(member, clients, hosts) == F.col("source")
        )
        return rows.where("source is not null").select(
            *GROUP, "source", "emptied", "log_offset", "ms", "time", "place",
            F.size(own).alias("own"), F.lit(step).alias("step"),
        )  # fmt: skip

    both = each_of("left", "before.", -1).unionByName(each_of("joined", "", 1))
    order = Window.partitionBy(*GROUP, "source", "emptied").orderBy("log_offset", "step")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    joins = F.sum(F.when(F.col("step") > 0, 1).otherwise(0)).over(so_far)
    both = both.withColumns({"joins": joins, "surplus": F.sum("step").over(so_far)})
    # Joins that follow no leave are members that are new.
    new = F.greatest(F.max("surplus").over(so_far), F.lit(0))
    both = both.withColumn("returns", F.col("joins") - new)
    returned = F.col("returns") > F.coalesce(F.lag("returns").over(order), F.lit(0))
    span = int(limits.flapping_seconds * 1000)
    near = Window.partitionBy(*GROUP, "source").orderBy("ms").rangeBetween(-span, 0)
    each = (
        both.withColumn("returned", returned)
        .withColumn("own", F.max("own").over(Window.partitionBy(*GROUP, "source")))
        .where("returned")
        .withColumn("recent", F.count(F.lit(1)).over(near))
        .groupBy(*GROUP, "source")
        .agg(
            F.max("recent").alias("most"),
            F.max("own").alias("own"),
            F.min_by("time", "log_offset").alias("time"),
            F.max_by("time", "log_offset").alias("end_time"),
            F.min_by("place", "log_offset").alias("first"),
            F.max_by("place", "log_offset").alias("last"),
        )
        .where(F.col("most") / F.col("own") >= limits.flapping_expiries)
        .withColumn("evidence", _evidence("first", "last"))
    )
    several = F.concat(F.lit("Up to "), text("own"), F.lit(" members at a time with "))
    return finding(
        each, "medium", "flapping member", "inferred",
        F.when(F.col("own") > 1, several).otherwise("The member with "), F.col("source"),
        " left group ", F.col("group"), " and returned ", text("most"),
        f" times within {limits.flapping_seconds:g} s, while other members stayed. Each time "
        "rebalances the group. The coordinator's records do not show why it left.",
    )  # fmt: skip
