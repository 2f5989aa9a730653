"""Options of the data sources: read and checked, and their reference page.

``OPTIONS`` describes them; ``page`` is docs/reference/data-sources.md. Runs where Spark plans, in a
Python worker of the driver. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zkaudit import schema
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.sources.files import BYTES_PER_TASK, log_zxid, parse_servers, parse_zxid
from zkconsumer.errors import ConfigError

_TABLES: Final = {
    "zookeeper_txnlog": {
        "transactions": schema.TXNLOG,
        "files": schema.TXNLOG_FILES,
        "runs": schema.TXNLOG_RUNS,
        "groups": schema.TXNLOG_GROUPS,
    },
    "zookeeper_snapshot": {"nodes": schema.SNAPSHOT, "sessions": schema.SNAPSHOT_SESSIONS},
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the sources. ``logs_only``: ``zookeeper_snapshot`` has no use for it."""

    name: str
    default: str
    meaning: str
    logs_only: bool = False


OPTIONS: Final = (
    Option(
        "path",
        "",
        "What `load` is given: each server's directory, separated by commas, each as `DIR` or "
        "`NAME=DIR`. A single file, a glob and a `file:` URI work too. Other file systems do not.",
    ),
    Option("paths", "", "What Spark makes of `load([DIR, ...])`: a list in JSON."),
    Option("table", "the first one below", "Which table to read."),
    Option(
        "columns",
        "all",
        "Names of columns, separated by commas. Only these are decoded: Spark does not tell a "
        "Python source which columns a query needs.",
    ),
    Option(
        "pathPrefix",
        "",
        "Leave out operations on paths (in snapshots: znodes) that do not begin with this text. "
        "Sessions and errors, which have no path, stay.",
    ),
    Option(
        "corruption",
        "fail",
        "`fail`, or `stop`: return the rows before the damage; of a damaged snapshot none.",
    ),
    Option("bytesPerTask", str(BYTES_PER_TASK), "Bytes that one task reads. Longer logs are cut."),
    Option("startZxid", "", "Lowest zxid, decimal or `0x` hexadecimal; inclusive.", True),
    Option("endZxid", "", "Highest zxid; inclusive.", True),
    Option(
        "groupBegins",
        "",
        "Table `groups`: leave out the paths of other groups than those whose names begin with one "
        "of these texts, separated by commas.",
        True,
    ),
    Option(
        "pushFilters",
        "false",
        "`true`: conditions on `zxid` and `path` in a query narrow what is decoded. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`; Spark refuses it elsewhere.",
        True,
    ),
)
_OPTIONS: Final = tuple(option.name for option in OPTIONS)


@dataclass(frozen=True)
class Settings:
    """A source's options, read and checked; pickled to the workers."""

    servers: dict[str, list[Path]]
    table: str
    columns: tuple[schema.Column, ...]
    filters: Filters
    tolerant: bool
    bytes_per_task: int
    push_filters: bool
    group_begins: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]


def parse_options(source: str, options: dict[str, str]) -> Settings:
    """Read the options of a source; names count without case. Raises ``ConfigError``."""
    given = {name.lower(): value for name, value in options.items()}
    faults = [
        f"{name}: no such option; there are {', '.join(_OPTIONS)}"
        for name in given.keys() - {option.lower() for option in _OPTIONS}
    ]
    tables = _TABLES[source]
    table = given.get("table", next(iter(tables)))
    if table not in tables:
        raise ConfigError([f"table: {table!r} is not one of {', '.join(tables)}"])
    columns = {column.name: column for column in tables[table]}
    wanted = [name.strip() for name in given.get("columns", ",".join(columns)).split(",")]
    faults += [f"columns: {name!r} is not one of {', '.join(columns)}" for name in wanted
               if name not in columns]  # fmt: skip
    corruption = given.get("corruption", "fail")
    if corruption not in ("fail", "stop"):
        faults.append(f"corruption: {corruption!r} is neither fail nor stop")
    size = given.get("bytespertask", str(BYTES_PER_TASK))
    if not size.isdecimal() or not int(size):
        faults.append(f"bytesPerTask: {size!r} is not a number of bytes")
    if faults:
        raise ConfigError(faults)
    servers = parse_servers(given.get("path", ""), given.get("paths"))
    kind, number = (
        ("log", log_zxid) if source == "zookeeper_txnlog" else ("snapshot", snapshot_zxid)
    )
    for file in (place for places in servers.values() for place in places if place.is_file()):
        if number(file) is None:
            raise ConfigError([f"path: {file}: {source} reads files named {kind}.<zxid>"])
    return Settings(
        servers,
        table,
        tuple(columns[name] for name in wanted),
        Filters(
            given.get("pathprefix", ""),
            parse_zxid("startZxid", given.get("startzxid")),
            parse_zxid("endZxid", given.get("endzxid")),
        ),
        corruption == "stop",
        int(size),
        given.get("pushfilters", "false").lower() == "true",
        tuple(filter(None, given.get("groupbegins", "").split(","))),
    )


_MEANINGS: Final = {
    "transactions": "One row for each operation. A multi of n operations gives n rows; if one of "
    "them failed, none was applied, and all rows are of type `error`. (`server`, `zxid`, `idx`) is "
    "unique in one server's logs; two servers' logs hold the same transactions.",
    "files": "One row for each log: how far it can be read, and why no further.",
    "runs": "One row for each unbroken run of zxids in each log.",
    "groups": "What an audit of groups reads: operations on znodes below `/consumers` and "
    f"`/brokers/topics`, sessions and errors. Rows of type `{schema.RUN}` (one for each unbroken "
    f"run of zxids) and `{schema.PATH}` (one for each path below `/consumers`) are no operations.",
    "nodes": "One row for each znode of each snapshot. Snapshots are fuzzy: a znode may be newer "
    "than `zxid`.",
    "sessions": "One row for each live session of each snapshot.",
}


def page() -> str:
    """Return docs/reference/data-sources.md."""
    parts = [
        "# Spark data sources",
        "",
        "<!-- Generated by docs/generate.py: change the code, then run it again. -->",
        "",
        "`zookeeper_txnlog` reads ZooKeeper's transaction logs, as a batch or as a stream;",
        "`zookeeper_snapshot` reads its snapshots. Both need Spark 4.2 or later, and zkaudit",
        "installed where the driver and the executors run. Register them once for each session:",
        "",
        "```python",
        "import zkaudit",
        "from pyspark.sql import SparkSession",
        "",
        "spark = SparkSession.builder.getOrCreate()",
        "zkaudit.register(spark)",
        'logs = spark.read.format("zookeeper_txnlog").option("pathPrefix", "/consumers/")',
        'logs.load("/var/lib/zookeeper").where("type = \'delete\'").show()',
        "```",
        "",
        "A directory is `dataDir` or `dataLogDir` of one server, or the `version-2` in it.",
        "",
        "## Options",
        "",
        "| Option | Source | Default | Meaning |",
        "|---|---|---|---|",
    ]
    for option in OPTIONS:
        source = "logs" if option.logs_only else "both"
        parts.append(f"| `{option.name}` | {source} | {option.default} | {option.meaning} |")
    parts += ["", "Names of options count without case. An unknown option is an error."]
    for source, tables in _TABLES.items():
        for name, columns in tables.items():
            parts += ["", f"## `{source}`, table `{name}`", "", _MEANINGS[name], ""]
            parts += ["| Column | Type | Null | Meaning |", "|---|---|---|---|"]
            for column in columns:
                null = "yes" if column.nullable else "no"
                meaning = column.meaning.replace("one of the names in TYPES", _TYPES_TEXT)
                parts.append(f"| `{column.name}` | {column.kind.value} | {null} | {meaning} |")
    return "\n".join(parts) + "\n"


_TYPES_TEXT: Final = "one of " + ", ".join(f"`{name}`" for name in schema.TYPES.values())
