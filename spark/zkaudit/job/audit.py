"""The audit as one Spark job: from log directories to Parquet tables and a summary.

Runs in the driver's thread. It collects the data that all groups share, and the transactions that
findings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession, functions as F

from zkaudit.errors import InputMissingError
from zkaudit.findings.base import Tables
from zkaudit.findings.kinds import LASTING
from zkaudit.findings.outside import from_records
from zkaudit.findings.places import located, not_covered
from zkaudit.findings.rules import findings
from zkaudit.group import LogGap, Moment
from zkaudit.history import committed, doubt
from zkaudit.history.facts import read_facts
from zkaudit.history.staging import Stage, shared_nodes, shared_rows, stage
from zkaudit.job import inputs
from zkaudit.job.coverage import (
    Coverage,
    check_any,
    check_times,
    coverage_of,
    decided,
    logged_twice,
    moment_of,
)
from zkaudit.job.output import Store, kept, rows_of, staged
from zkaudit.job.place import prepare, publish
from zkaudit.job.spark import check_group, errors_named, our_settings, settings_of
from zkaudit.limits import SEVERITIES, Limits
from zkaudit.sources import offsets, selection, server_logs
from zkaudit.sources.files import Piece
from zkaudit.tables import brokers, build, catalog, causes, journals, migrations, timeline
from zkaudit.text import no_group

_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
"""Number of writers. With fewer writers than tables, Spark would sort all rows by table first."""


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The data that an audit reads from snapshots."""

    rows: DataFrame | None = None
    """The rows of ``inputs.snapshots``; ``None`` if there is no snapshot."""
    files: Sequence[Piece] = ()
    """The files that were read in this call."""
    begin: int | None = None
    """The first zxid that was read, if earlier logs were left out on purpose."""
    whole: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Server, file and zxid of complete snapshots."""
    known: tuple[int | None, ...] = (0,)
    known_us: int | None = None
    """As in ``Tables`` and in ``Facts``."""


@dataclass(frozen=True)
class Options:
    """The input of an audit. ``start`` and ``end`` (ISO times, UTC) select findings by the
    leader's clock. The history is read from the last snapshot at least an hour before ``start``,
    which shows owners and offsets at that time. Without one, the whole history before ``start`` is
    read. All logs after ``end`` are read, because only they may show the effect of a wrong offset,
    or which transactions were committed."""

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
    """Whether the logs may still grow. Then a group that is missing in them is not an error."""
    allow_damage: bool = False
    """Whether to audit although no server has the transactions after a damaged record."""
    retention: float | None = None
    """Smallest number of seconds of history that a stream keeps; ``None``: all."""


def run(spark: SparkSession, options: Options) -> dict[str, Any]:
    """Run an audit and write all tables. Return the summary, which is also in
    ``OUT/summary.json``.

    An earlier audit in ``OUT`` is replaced when this one is finished, and kept if this one fails.

    Raises InputMissingError if inputs do not exist or nothing in them matches ``group`` or the
    time, and AuditError for damaged logs, and for an ``OUT`` that contains anything but an audit.
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
        rows, heads = inputs.once(spark, options.logs, wanted, keep, options.group, begin, voters)

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

        logged = heads.runs
        if logged_twice(logged):
            rows = keep("once_each", inputs.once_each(rows))
        voters = options.servers or committed.participants(heads.config, in_snapshot)
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
    """Build all tables of an audit. Return the summary. ``rows``: the result of
    ``inputs.transactions``.

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
    transactions = committed.apply(rows.where("kind is null"), plan)
    job = _Job(store, options, plan, shown, transactions, coverage)
    job.findings(job.tables())
    names = [(piece.server, piece.name) for piece in shown.files]
    modes = store.read(catalog.MIGRATIONS).to_pylist()
    journal = job.journals
    more = {
        "begin": shown.begin,
        "groups": job.groups,
        "migrations": list(migrations.summary(modes)),
        "directories": [str(log) for log in options.logs],
        "left_out": selection.left_out(options.logs),
        **coverage.summary(),
        "torn_snapshots": ["/".join(name) for name in names if name not in shown.whole],
        "journals": 0 if journal is None else journal.select("file").distinct().count(),
        "journal_lines": 0 if journal is None else journal.count(),
        "unreadable": store.count(catalog.UNREADABLE),
    }
    summary = _summary(options, store, coverage, plan, logs, snapshots, more)
    store.close()
    publish(Path(options.out), store.place, summary, keep=options.growing)
    return summary


class _Job:
    """An audit whose inputs are known: folds the groups, then ``tables`` and ``findings`` write all
    tables.

    Args:
        transactions: the committed ones.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        plan: committed.History,
        shown: Snapshots,
        transactions: DataFrame,
        coverage: Coverage,
    ) -> None:
        self.store, self.spark = store, store.spark
        self.options, self.shown, self.coverage = options, shown, coverage
        self.transactions = transactions
        self.log_gaps = tuple(committed.log_gaps_of(plan))
        self.staging = Path(options.out) / "staging"
        self.end = Moment(coverage.last_zxid or 0, 0, coverage.last_us)
        self.shared = shared_rows(transactions)
        nodes = None if shown.rows is None else shared_nodes(shown.rows)
        reader = read_facts(self.shared, nodes, self.log_gaps)
        self.facts = reader.facts(self.end, shown.known_us)
        self.events = self._folded()
        self.groups = store.groups(self.events)
        self.stored = None
        if options.bootstrap is not None:
            self.stored = offsets.read(
                self.spark, options.bootstrap, options.group, options.command_config
            )
        if options.group is not None and not options.growing and not self.groups:
            self._check_group(options.group)
        self.addresses = server_logs.addresses(options.server_logs)
        self.journals: DataFrame | None = None
        if options.journals:
            self.journals = self._keep("journals", journals.read(self.spark, options.journals))
            journals.refuse_virtual(self.journals)

    def _keep(self, name: str, frame: DataFrame, by: str | None = None) -> DataFrame:
        """Store a frame until the audit has ended. Return the stored frame."""
        return kept(self.staging, name, frame, by)

    def _folded(self) -> Stage:
        """Fold the events of each group. All results are written together, and the rows of each
        table are then read from its own files."""
        shown = self.shown.rows
        with settings_of(self.spark, {_WRITERS: "100"}):
            events = stage(
                self.transactions,
                self.log_gaps,
                None if shown is None else self.store.of_groups(shown),
                self.options.group,
                partial(self._keep, by="table"),
                self.shown.known,
                self.facts,
                self.options.limits,
            )
        return Stage(self.store.of_audited(events.folded), self.staging / "folded")

    def _check_group(self, group: str) -> None:
        """Raise InputMissingError if a group is missing in the logs, and also unknown to brokers
        and journals."""
        read = journals.read(self.spark, self.options.journals)
        lines = journals.lines(read, build.registrations(self.events), group)
        if (self.stored is None or self.stored.isEmpty()) and lines.isEmpty():
            raise InputMissingError(no_group(group, "the logs have"))

    def _table(
        self, spec: catalog.Table, name: str, rows: Callable[[], DataFrame] | None = None
    ) -> None:
        """Write a table from the rows ``name`` of the fold, or from these ``rows``."""
        if not self.events.has(name):
            self.store.table(spec, None)
        else:
            self.store.table(spec, self.events.rows(name) if rows is None else rows())

    def tables(self) -> Tables | None:
        """Write all tables except the findings. Return the data for rules outside the fold, or
        ``None`` if there is none."""
        events, store, table = self.events, self.store, self._table
        store.rows(catalog.PARTITIONS, build.partitions(self.facts))
        used, brokers_ = store.used(events), self.facts.brokers
        store.sessions(build.sessions(self.shared, used, brokers_, self.addresses))
        table(catalog.OWNERSHIP, "owners")
        table(catalog.REGISTRATIONS, "ids", lambda: build.registrations(events))
        table(catalog.MOVES, "changes", lambda: build.moves(events))
        modes = partial(migrations.migrations, events, self.addresses)
        table(catalog.MIGRATIONS, "migrations", modes)
        steps = events.rows("membership")
        table(catalog.MEMBERSHIP, "membership", lambda: steps.where("change is not null"))
        table(catalog.FAILED_CLAIMS, "failed_claims")
        table(catalog.REBALANCES, "rebalances")
        lines = chroots = None
        if self.stored is not None or self.journals is not None:
            chroots = self._keep("chroots", timeline.chroots(events))
        if self.journals is not None:
            registered = store.frame(catalog.REGISTRATIONS)
            read = journals.lines(self.journals, registered, self.options.group, chroots)
            lines = self._keep("lines", read)
        table(catalog.HERDS, "membership", lambda: causes.herds(steps, lines))
        self._of_journals(steps, lines)
        self._of_brokers()
        if chroots is None and not store.count(catalog.MIGRATIONS):
            store.rows(catalog.GROUP_OWNERSHIP, [])
            return None
        return self._timeline(timeline.chroots(events) if chroots is None else chroots)

    def _of_brokers(self) -> None:
        """Write the tables ``commits``, ``generations`` and ``broker_ownership``."""
        events, store, stored = self.events, self.store, self.stored
        if stored is None:
            self._table(catalog.COMMITS, "offsets", lambda: events.commits)
            for spec in (catalog.GENERATIONS, catalog.BROKER_OWNERSHIP):
                store.rows(spec, [])
            return
        commits = events.commits.unionByName(offsets.commits(stored), allowMissingColumns=True)
        store.table(catalog.COMMITS, commits)
        store.shared(catalog.GENERATIONS, brokers.generations(stored))
        assigned = brokers.ownership(store.frame(catalog.GENERATIONS))
        store.shared(catalog.BROKER_OWNERSHIP, assigned)

    def _of_journals(self, steps: DataFrame, lines: DataFrame | None) -> None:
        """Write the tables of journals."""
        store, read = self.store, self.journals
        if read is None or lines is None:
            for spec in (catalog.ATTEMPTS, catalog.UNREADABLE, catalog.DELIVERIES, catalog.VIEWS):
                store.rows(spec, [])
            return
        store.table(catalog.ATTEMPTS, causes.attempts(steps, lines))
        store.shared(catalog.UNREADABLE, journals.unreadable(read))
        store.shared(catalog.DELIVERIES, journals.deliveries(lines))
        store.shared(catalog.VIEWS, journals.views(lines))

    def _timeline(self, chroots: DataFrame) -> Tables:
        """Write the table ``group_ownership``. Return the data that rules need about groups in
        journals, on brokers or with a mode."""
        store, events, frame = self.store, self.events, self.store.frame
        assigned = timeline.placed(frame(catalog.BROKER_OWNERSHIP), chroots)
        delivered, registered = frame(catalog.DELIVERIES), frame(catalog.REGISTRATIONS)
        chosen = self._keep("timeline", timeline.groups(events, assigned, delivered))
        owned, generations = frame(catalog.OWNERSHIP), frame(catalog.GENERATIONS)
        rows = timeline.ownership(
            events, chosen, registered, owned, assigned, generations, delivered
        )
        store.table(catalog.GROUP_OWNERSHIP, rows)
        placed = timeline.placed(generations, chroots).fillna("", "chroot")
        return Tables(
            registrations=registered,
            commits=frame(catalog.COMMITS),
            herds=frame(catalog.HERDS),
            deliveries=delivered,
            views=frame(catalog.VIEWS),
            has_journals=self.journals is not None,
            end_us=self.end.time,
            known=self.shown.known,
            log_gaps=self.log_gaps,
            moving=timeline.with_mode(events),
            group_ownership=frame(catalog.GROUP_OWNERSHIP),
            generations=None if self.stored is None else placed,
        )

    def findings(self, tables: Tables | None) -> None:
        """Write the table ``findings``."""
        options, store = self.options, self.store
        if self.events.has("waiting"):
            store.waiting(self.events.rows("waiting"))
        parts = []
        records = [] if tables is None else from_records(tables, options.limits)
        if records or self.events.has("findings"):
            found = findings(self.events.rows("findings"), records, self.journals is not None)
            found = within(found, self.end.time, options.start, options.end)
            if records:
                found = self._keep("findings", found)
            parts.append(located(found, self.transactions, self.addresses))
        if missing := list(not_covered(self.coverage.sentences())):
            parts.append(rows_of(store.spark, catalog.FINDINGS.spark_type(), missing))
        store.table(catalog.FINDINGS, reduce(DataFrame.unionByName, parts) if parts else None)


def within(found: DataFrame, now: int | None, start: str | None, end: str | None) -> DataFrame:
    """Return the findings in a time range. A finding without an end lasts until the end of the logs
    (``now``, in microseconds since 1970). Findings whose time is unknown are always included."""
    unknown = F.col("time").isNull()
    if start is not None:
        last = F.timestamp_micros(F.lit(now))
        until = F.coalesce("end_time", F.when(F.col("kind").isin(*LASTING), last), "time")
        since = F.lit(start).cast("timestamp")
        found = found.where(unknown | (until >= since))
    if end is not None:
        found = found.where(unknown | (F.col("time") < F.lit(end).cast("timestamp")))
    return found


def _summary(
    options: Options,
    store: Store,
    coverage: Coverage,
    plan: committed.History,
    logs: Sequence[Piece],
    snapshots: Sequence[Piece],
    more: dict[str, Any],
) -> dict[str, Any]:
    found = store.read(catalog.FINDINGS, "severity", "kind").group_by(["severity", "kind"])
    counts = found.aggregate([([], "count_all")]).to_pylist()
    last_time = moment_of(coverage.last_ms)
    return {
        "schema_version": catalog.SCHEMA_VERSION,
        "logs": len(logs),
        "snapshots": len(snapshots),
        "servers": len({log.server for log in logs}),
        "group": options.group,
        "from": options.start,
        "to": options.end,
        "limits": asdict(options.limits),
        "last_zxid": coverage.last_zxid,
        "last_time": last_time and last_time.isoformat(),
        "log_gaps": committed.log_gaps_of(plan),
        "dropped": plan.dropped,
        "unconfirmed": plan.unconfirmed,
        "intervals": store.count(catalog.OWNERSHIP),
        "commits": store.count(catalog.COMMITS),
        **more,
        "findings": [
            {"severity": row["severity"], "kind": row["kind"], "count": row["count_all"]}
            for row in sorted(
                counts, key=lambda row: (SEVERITIES.index(row["severity"]), row["kind"])
            )
        ],
    }
