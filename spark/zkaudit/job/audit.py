"""The audit as one Spark job: from log directories to Parquet tables and a summary.

Runs in the driver's thread. It collects only log gaps, counts, and the last mode of each group that
migrated while it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit.errors import InputMissingError
from zkaudit.findings.base import Tables
from zkaudit.findings.kinds import LASTING
from zkaudit.findings.places import located, not_covered
from zkaudit.findings.rules import findings
from zkaudit.group import Facts, LogGap
from zkaudit.history import committed, doubt
from zkaudit.history.staging import Stage, facts_of, stage
from zkaudit.job import inputs
from zkaudit.job.coverage import (
    Coverage,
    check_any,
    check_times,
    coverage_of,
    decided,
    logged_twice,
)
from zkaudit.job.output import Store, kept, rows_of, staged
from zkaudit.job.place import prepare, publish
from zkaudit.job.spark import check_group, errors_named, our_settings
from zkaudit.limits import SEVERITIES, Limits
from zkaudit.sources import offsets, selection, server_logs
from zkaudit.sources.files import Piece
from zkaudit.tables import brokers, build, catalog, causes, journals, migrations, timeline
from zkaudit.text import no_group


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Data read from snapshots."""

    rows: DataFrame | None = None
    """The rows of ``inputs.snapshots``; ``None``: there is no snapshot."""
    files: Sequence[Piece] = ()
    """The files that were read in this call."""
    begin: int | None = None
    """The first zxid that was read, if earlier logs were left out on purpose."""
    whole: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Server, file and zxid of the snapshots that were whole."""
    known: tuple[int | None, ...] = (0,)
    known_us: int | None = None
    """As in ``Tables`` and in ``Facts``."""


@dataclass(frozen=True)
class Options:
    """What to audit. ``start`` and ``end`` (ISO times, UTC) choose findings by the leader's clock.
    The history is read from the last snapshot at least an hour before ``start``, which shows owners
    and offsets of that time; without one, the whole history before ``start`` is read. All logs
    after ``end`` are read: what a wrong offset did, and which transactions were committed, may show
    only there."""

    logs: Sequence[str]
    out: str
    group: str | None = None
    start: str | None = None
    end: str | None = None
    limits: Limits = field(default_factory=Limits)
    journals: Sequence[str] = ()
    bootstrap: str | None = None
    command_config: str | None = None
    server_logs: Sequence[str] = ()
    """ZooKeeper's own text logs: files, directories or globs."""
    servers: int | None = None
    """Number of voting servers; by default the number of servers whose logs are given."""
    growing: bool = False
    """Whether the logs may still grow. Then a group that is not in them yet is not an error."""
    allow_damage: bool = False
    """Whether to audit although no server has what follows a damaged record."""
    retention: float | None = None
    """How many seconds of history a stream keeps, at least; ``None``: all."""


def run(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Run an audit and write all tables; return the summary, which is also in ``OUT/summary.json``.

    An earlier audit in ``OUT`` is replaced when this one is finished, and kept if this one fails.

    Raises InputMissingError if inputs do not exist or nothing in them matches ``group`` or the
    time; AuditError for damaged logs, and for an ``OUT`` that contains anything but an audit.
    """
    out = prepare(options.out)
    logs, snapshots = selection.find(options.logs)
    journals.check(options.journals)
    server_logs.check(options.server_logs)
    check_group(spark, options.group)
    with our_settings(spark), errors_named(), staged(out):
        before = selection.begin_snapshot(logs, snapshots, options.start)
        begin = None if before is None else before.zxid + 1
        wanted = selection.within(logs, begin, None)
        usable = [piece for piece in snapshots if piece.zxid >= (begin or 1) - 1]
        in_snapshot = None if options.servers else selection.config_in(usable)

        def keep(name: str, frame: DataFrame) -> DataFrame:
            return kept(out, f"staging/{name}", frame)

        voters = options.servers or committed.participants(in_snapshot)
        rows = inputs.once(spark, options.logs, wanted, keep, options.group, begin, voters)

        def read_snapshots(log_gaps: Sequence[LogGap]) -> Snapshots:
            parts: list[DataFrame] = []

            def read(chosen: Sequence[Piece]) -> Iterable[int]:
                part = inputs.snapshots(spark, options.logs, chosen, options.group)
                parts.append(keep(f"snapshots-{len(parts)}", part))
                return inputs.whole(parts[-1]).values()

            real = [piece for piece in usable if not committed.within(piece.zxid, plan.dropped)]
            files = selection.read_behind(real, log_gaps, read)
            every = reduce(DataFrame.unionByName, parts) if parts else None
            return Snapshots(every, files, begin=begin)

        logged = inputs.logged_runs(rows)
        if logged_twice(logged):
            rows = keep("once_each", inputs.once_each(rows))
        voters = options.servers or committed.participants(inputs.config(rows), in_snapshot)
        plan, damaged = decided(logged, voters, begin, options.allow_damage)
        plan = doubt.decided(lambda: rows.where("kind is null"), plan)
        check_any(plan, options.logs)
        servers = {log.server for log in logs}
        time = (options.start, options.end)
        coverage = coverage_of(logged, servers, plan, *time, damaged)
        check_times(coverage, *time)
        store = Store(spark, out)
        return audit(store, options, rows, plan, coverage, logs, snapshots, read_snapshots)


def audit(
    store: Store,
    options: Options,
    rows: DataFrame,
    plan: committed.History,
    coverage: Coverage,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    read_snapshots: Callable[[Sequence[LogGap]], Snapshots],
) -> dict[str, Any]:
    """Build all tables from the rows of ``inputs.transactions``; return the summary.

    ``read_snapshots`` is called if there are log gaps. Until this audit is finished, readers of
    ``OUT`` see the earlier one.
    """
    log_gaps = committed.log_gaps_of(plan)
    shown = read_snapshots(log_gaps) if log_gaps else Snapshots()
    if shown.rows is not None:
        shown = replace(shown, whole=inputs.whole(shown.rows))
    known = selection.known(log_gaps, shown.whole.values())
    shown = replace(shown, known=known, known_us=store.known_us(rows, known[-1]))
    if options.group is not None and not options.growing:
        # Most of what was read may be sessions of other groups.
        used = inputs.of_group(rows, shown.rows, options.group)
        rows = kept(Path(options.out), "staging/used", used)
    last = rows.where(inputs.is_run()).agg(
        F.max("last_zxid").alias("zxid"), F.max_by("last_time", "last_zxid").alias("time")
    )
    transactions = committed.apply(rows.where("kind is null"), plan)
    job = _Job(store, options, plan, shown, transactions, last)
    events, facts = job.folded()
    groups = store.groups(events)
    stored = offsets.read(store.spark, options.bootstrap, options.group, options.command_config)
    if options.group is not None and not options.growing and not groups:
        job.check_group(events, stored)
    members = job.members(events, facts)
    outside = job.outside(events, members, stored)
    tables = job.tables(events, members, outside)
    found = job.findings(events, tables, members.sessions, coverage)
    names = [(piece.server, piece.name) for piece in shown.files]
    more = {
        "begin": shown.begin,
        "groups": groups,
        "migrations": migrations.summary(store.every(catalog.MIGRATIONS, members.modes)),
        "directories": [str(log) for log in options.logs],
        "left_out": selection.left_out(options.logs),
        **coverage.summary(),
        "torn_snapshots": ["/".join(name) for name in names if name not in shown.whole],
        "journals": outside.journals.select("file").distinct().count(),
        "journal_lines": outside.journals.count(),
        "unreadable": store.count(catalog.UNREADABLE),
    }
    summary = _summary(options, store, tables, found, plan, logs, snapshots, more)
    store.close()
    publish(Path(options.out), store.place, summary, keep=options.growing)
    return summary


@dataclass(frozen=True, slots=True)
class _Members:
    """What the rows of the fold show of members."""

    ownership: DataFrame
    registered: DataFrame
    sessions: DataFrame
    modes: DataFrame


@dataclass(frozen=True, slots=True)
class _Outside:
    """What brokers and journals show. ``assigned``: table ``broker_ownership``. ``lines``: the
    journals' lines, each with its group."""

    commits: DataFrame
    generations: DataFrame
    assigned: DataFrame
    journals: DataFrame
    lines: DataFrame
    chroots: DataFrame


@dataclass(frozen=True)
class _Job:
    """An audit whose inputs are known. Its methods write the tables, in this order.

    Args:
        transactions: the committed ones.
        last: one row with zxid and time of the last transaction.
    """

    store: Store
    options: Options
    plan: committed.History
    shown: Snapshots
    transactions: DataFrame
    last: DataFrame

    def keep(self, name: str, frame: DataFrame) -> DataFrame:
        """Store a frame until the audit has ended; return the stored frame."""
        return kept(Path(self.options.out), f"staging/{name}", frame)

    def folded(self) -> tuple[Stage, Facts]:
        """Fold the events of each group."""
        log_gaps = committed.log_gaps_of(self.plan)
        rows, shown = self.transactions, self.shown.rows
        facts = facts_of(rows, shown, log_gaps, self.last, self.shown.known_us)
        events = stage(
            rows,
            log_gaps,
            None if shown is None else self.store.of_groups(shown),
            self.options.group,
            self.keep,
            self.shown.known,
            facts,
            self.options.limits,
        )
        return replace(events, folded=self.store.of_audited(events.folded)), facts

    def check_group(self, events: Stage, stored: DataFrame) -> None:
        """Raise InputMissingError if neither brokers nor journals have a group that the logs
        lack."""
        read = journals.read(self.store.spark, self.options.journals)
        lines = journals.lines(read, build.registrations(events), self.options.group)
        if stored.isEmpty() and lines.isEmpty():
            raise InputMissingError(no_group(self.options.group or "", "the logs have"))

    def members(self, events: Stage, facts: Facts) -> _Members:
        """Write the tables of partitions, registrations, owners, sessions and moves."""
        table, store = self.store.table, self.store
        addresses = server_logs.addresses(store.spark, self.options.server_logs)
        store.rows(catalog.PARTITIONS, build.partitions(facts))
        ownership = table(catalog.OWNERSHIP, events.lifetimes("owners"))
        sessions = store.sessions(build.sessions(events, addresses, store.used(events)))
        registered = table(catalog.REGISTRATIONS, build.registrations(events))
        table(catalog.MOVES, build.moves(events))
        modes = table(catalog.MIGRATIONS, migrations.migrations(events, sessions))
        return _Members(ownership, registered, sessions, modes)

    def outside(self, events: Stage, members: _Members, stored: DataFrame) -> _Outside:
        """Read the journals, and write the tables of the coordinator."""
        store, options = self.store, self.options
        if options.bootstrap is None:  # starts no Python worker
            generations = store.rows(catalog.GENERATIONS, [])
        else:
            generations = store.shared(catalog.GENERATIONS, brokers.generations(stored))
        assigned = store.shared(catalog.BROKER_OWNERSHIP, brokers.ownership(generations))
        read = self.keep("journals", journals.read(store.spark, options.journals))
        journals.refuse_virtual(read)
        chroots = timeline.chroots(events)
        if options.bootstrap is not None or options.journals:
            chroots = self.keep("chroots", chroots)
        lines = journals.lines(read, members.registered, options.group, chroots)
        commits = offsets.commits(stored)
        return _Outside(commits, generations, assigned, read, lines, chroots)

    def tables(self, events: Stage, members: _Members, outside: _Outside) -> Tables:
        """Write the other tables but that of the findings; return what the rules read."""
        table, shared = self.store.table, self.store.shared
        steps, lines = events.rows("membership"), outside.lines
        commits = events.commits.unionByName(outside.commits, allowMissingColumns=True)
        commits = table(catalog.COMMITS, commits)
        table(catalog.MEMBERSHIP, steps.where("change is not null"))
        table(catalog.FAILED_CLAIMS, events.rows("failed_claims"))
        table(catalog.REBALANCES, events.rows("rebalances"))
        table(catalog.ATTEMPTS, causes.attempts(steps, lines))
        herds = table(catalog.HERDS, causes.herds(steps, lines))
        shared(catalog.UNREADABLE, journals.unreadable(outside.journals))
        delivered = shared(catalog.DELIVERIES, journals.deliveries(lines))
        generations = None
        if self.options.bootstrap is not None:
            generations = timeline.placed(outside.generations, outside.chroots)
            generations = generations.fillna("", "chroot")
        return Tables(
            registrations=members.registered,
            commits=commits,
            herds=herds,
            deliveries=delivered,
            views=shared(catalog.VIEWS, journals.views(lines)),
            has_journals=bool(self.options.journals),
            end=self.last,
            known=self.shown.known,
            log_gaps=tuple(committed.log_gaps_of(self.plan)),
            moving=timeline.with_mode(events),
            group_ownership=self._group_ownership(events, members, outside, delivered),
            generations=generations,
            of_groups=events.findings,
        )

    def _group_ownership(
        self, events: Stage, members: _Members, outside: _Outside, delivered: DataFrame
    ) -> DataFrame | None:
        moving = self.store.count(catalog.MIGRATIONS) > 0
        if not moving and self.options.bootstrap is None and not self.options.journals:
            self.store.rows(catalog.GROUP_OWNERSHIP, [])
            return None
        assigned = timeline.placed(outside.assigned, outside.chroots)
        chosen = self.keep("timeline", timeline.groups(events, assigned, delivered))
        rows = timeline.ownership(
            events,
            chosen,
            members.registered,
            members.ownership,
            assigned,
            outside.generations,
            delivered,
        )
        return self.store.table(catalog.GROUP_OWNERSHIP, rows)

    def findings(
        self, events: Stage, tables: Tables, sessions: DataFrame, coverage: Coverage
    ) -> DataFrame:
        """Write table ``findings``; return it."""
        options, store = self.options, self.store
        found = findings(tables, options.limits)
        found = within(found, self.last, options.start, options.end)
        found = self.keep("findings", found.withColumn("number", F.monotonically_increasing_id()))
        store.waiting(events.waiting)
        found = located(found, self.transactions, sessions)
        if missing := list(not_covered(coverage.sentences())):
            columns = catalog.FINDINGS.spark_type()
            found = found.unionByName(rows_of(store.spark, columns, missing))
        return store.table(catalog.FINDINGS, found)


def within(found: DataFrame, last: DataFrame, start: str | None, end: str | None) -> DataFrame:
    """Return the findings in a time range. Findings without an end last to the end of the logs
    (``last``: one row); findings of unknown time are always in it."""
    unknown = F.col("time").isNull()
    if start is not None:
        now = last.select(F.col("time").alias("now"))
        until = F.coalesce("end_time", F.when(F.col("kind").isin(*LASTING), F.col("now")), "time")
        since = F.lit(start).cast("timestamp")
        found = found.crossJoin(F.broadcast(now)).where(unknown | (until >= since)).drop("now")
    if end is not None:
        found = found.where(unknown | (F.col("time") < F.lit(end).cast("timestamp")))
    return found


def _summary(
    options: Options,
    store: Store,
    tables: Tables,
    found: DataFrame,
    plan: committed.History,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    more: dict[str, Any],
) -> dict[str, Any]:
    counts = {
        (row["severity"], row["kind"]): row["count"]
        for row in store.every(catalog.FINDINGS, found)
        .groupBy("severity", "kind")
        .count()
        .collect()  # there are only a dozen kinds
    }
    last = tables.end.select("zxid", F.unix_millis("time").alias("ms")).first()
    assert last is not None
    # Read as milliseconds, because Spark would return a time in this machine's time zone.
    last_time = None if last["ms"] is None else datetime.fromtimestamp(last["ms"] / 1000, UTC)
    return {
        "schema_version": catalog.SCHEMA_VERSION,
        "logs": len(logs),
        "snapshots": len(snapshots),
        "servers": len({log.server for log in logs}),
        "group": options.group,
        "from": options.start,
        "to": options.end,
        "limits": asdict(options.limits),
        "last_zxid": last["zxid"],
        "last_time": last_time and last_time.isoformat(),
        "log_gaps": committed.log_gaps_of(plan),
        "dropped": plan.dropped,
        "unconfirmed": plan.unconfirmed,
        "intervals": store.count(catalog.OWNERSHIP),
        "commits": store.count(catalog.COMMITS),
        **more,
        "findings": [
            {"severity": severity, "kind": kind, "count": count}
            for (severity, kind), count in sorted(
                counts.items(), key=lambda item: (SEVERITIES.index(item[0][0]), item[0][1])
            )
        ],
    }
