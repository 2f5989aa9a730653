"""The reference page of the data sources. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from zkaudit import schema
from zkaudit.sources.options import OPTIONS, TABLES, Option

_MEANINGS: Final = {
    "transactions": "One row for each operation. A multi of n operations gives n rows; if one of "
    "them failed, none was applied, and all rows are of type `error`. (`server`, "
    "`zxid`, `idx`) is unique in one server's logs.",
    "files": "One row for each log: how far it can be read, and why reading stopped.",
    "nodes": "One row for each znode of each snapshot. Snapshots are fuzzy: a znode may be newer "
    "than `zxid`.",
    "sessions": "One row for each live session of each snapshot.",
    "records": "One row for each record.",
    "lines": "One row for each line. Each [field of a line](journal.md#lines) is a column of the "
    "same name, except `fields` and `unchanged`. An integer is a `long`, a text a "
    "`string`. Other columns:",
}
"""Meanings of the tables on the page, without those that only zkaudit reads."""


_TYPES_TEXT: Final = "one of " + ", ".join(f"`{name}`" for name in schema.TYPES.values())


@dataclass(frozen=True, slots=True)
class Source:
    """The reference of one data source: what it reads, its options and tables, and an example in
    each language."""

    name: str
    what: str
    options: tuple[Option, ...]
    tables: dict[str, tuple[schema.Column, ...]]
    sql: str
    python: str
    stream: str = ""
    """How the source works as a stream; empty if it cannot be one."""


SOURCES: Final = (
    Source(
        "zookeeper_txnlog",
        "ZooKeeper's transaction logs, as a batch or as a stream. A directory is `dataDir` or "
        "`dataLogDir` of one server, or the `version-2` in it.",
        OPTIONS,
        TABLES["zookeeper_txnlog"],
        """CREATE TEMPORARY VIEW transactions USING zookeeper_txnlog
OPTIONS (path '/var/lib/zookeeper', pathPrefix '/consumers/');

SELECT time, hex(session), path FROM transactions
WHERE type = 'delete' ORDER BY zxid, idx;""",
        """logs = spark.read.format("zookeeper_txnlog").option("pathPrefix", "/consumers/")
logs.load(["logs/zk1", "logs/zk2", "logs/zk3"]).where("type = 'delete'").show()

grows = spark.readStream.format("zookeeper_txnlog").load("/var/lib/zookeeper")
grows.writeStream.format("console").trigger(availableNow=True).start()""",
        "A batch of a stream reads every complete record that exists when the batch begins, and "
        "the first batch reads all logs. No option makes a batch smaller.",
    ),
    Source(
        "zookeeper_snapshot",
        "ZooKeeper's snapshots: plain, gzip, snappy or zstd.",
        tuple(option for option in OPTIONS if not option.logs_only),
        TABLES["zookeeper_snapshot"],
        """CREATE TEMPORARY VIEW znodes USING zookeeper_snapshot
OPTIONS (path '/var/lib/zookeeper', pathPrefix '/consumers/');

SELECT file, count(*) FROM znodes WHERE ephemeral_owner != 0 GROUP BY file;""",
        """nodes = spark.read.format("zookeeper_snapshot").load("/var/lib/zookeeper")
offsets = nodes.where("path like '/consumers/%/offsets/%'")
offsets.selectExpr("path", "string(data)").show()""",
    ),
    Source(
        "zkaudit_journal",
        "Members' [journals](journal.md) (`zkconsumer.journal.dir`).",
        (
            Option(
                "path",
                "",
                "The argument of `load`: files, or directories (all `*.jsonl` below them), "
                "separated by commas. Each can be a URL, as for "
                "[`zookeeper_txnlog`](#zookeeper_txnlog).",
            ),
        ),
        {"lines": schema.journal_columns()[: schema.JOURNAL_LINE]},
        """CREATE TEMPORARY VIEW lines USING zkaudit_journal OPTIONS (path 'journals');

SELECT member, name, count(*) FROM lines WHERE fault IS NULL GROUP BY member, name;""",
        """lines = spark.read.format("zkaudit_journal").load("journals")
lines.where("fault is not null").select("file", "line", "fault").show()""",
    ),
    Source(
        "zkaudit_offsets",
        "The current content of `__consumer_offsets`, read from the brokers. The source writes "
        "nothing and joins no group. It skips records of aborted transactions, and ends before the "
        "first open transaction.",
        (
            Option("bootstrap", "", "Brokers: `HOST:PORT,...`. Required."),
            Option(
                "config",
                "",
                "Path of a Java .properties file with `security.protocol`, `sasl.*` and `ssl.*`, "
                "the same on every machine.",
            ),
        ),
        {"records": schema.OFFSETS},
        """CREATE TEMPORARY VIEW records USING zkaudit_offsets OPTIONS (bootstrap 'kafka1:9092');

SELECT group_id, topic, partition, committed FROM records
WHERE kind = 'offset' AND NOT deleted;""",
        """records = spark.read.format("zkaudit_offsets").option("bootstrap", "kafka1:9092").load()
records.where("kind = 'group'").select("group_id", "generation", "members").show()""",
    ),
)

_NOTE: Final = "<!-- Generated by docs/generate.py: change the code, then run it again. -->"


def page() -> str:
    """Return the reference page about the data sources."""
    parts = [
        "# Spark data sources",
        "",
        _NOTE,
        "",
        "They need Spark 4.0 or later, and zkaudit installed where the driver and the executors",
        "run. Register them once for each session:",
        "",
        "```python",
        "import zkaudit",
        "from pyspark.sql import SparkSession",
        "",
        "spark = SparkSession.builder.getOrCreate()",
        "zkaudit.register(spark)",
        "```",
        "",
        "Names of options are not case-sensitive. A value that is not known is null.",
    ]
    shared = [
        option
        for option in SOURCES[0].options
        if any(option in source.options for source in SOURCES[1:]) and not option.internal
    ]
    both = " and ".join(f"`{source.name}`" for source in SOURCES if shared[0] in source.options)
    parts += ["", "## Common options", "", f"{both} have these options.", "", *_options(shared)]
    for source in SOURCES:
        parts += ["", *_section(source, shared)]
    return "\n".join(parts) + "\n"


def _options(options: Iterable[Option]) -> list[str]:
    rows = [f"| `{o.name}` | {o.default} | {o.meaning} |" for o in options]
    return ["| Option | Default | Meaning |", "|---|---|---|", *rows]


def _section(source: Source, shared: Sequence[Option]) -> list[str]:
    parts = [f"## `{source.name}`", "", source.what, "", "```sql", source.sql, "```", ""]
    parts += ["```python", source.python, "```"]
    own = [o for o in source.options if o not in shared and not o.internal]
    if len(own) < len(source.options):
        parts += ["", "It has the [common options](#common-options)" + (", and:" if own else ".")]
    if own:
        parts += ["", *_options(own)]
    if source.stream:
        parts += ["", source.stream]
    described: list[schema.Column] = []
    for name, columns in source.tables.items():
        if name not in _MEANINGS:
            continue
        parts += ["", f"### Table `{name}`", "", _MEANINGS[name], ""]
        if same := ", ".join(f"`{column.name}`" for column in columns if column in described):
            parts += [f"As in the table above: {same}.", ""]
        parts += ["| Column | Meaning |", "|---|---|"]
        for column in columns:
            if column not in described:
                text = column.meaning.replace("one of the names in TYPES", _TYPES_TEXT)
                parts.append(f"| `{column.name}` {column.kind.value} | {text} |")
        described += columns
    return parts
