"""Reads and checks the options of the data sources over logs and snapshots.

``OPTIONS`` describes them; ``reference`` prints them. Runs during planning, in a Python worker of
the driver. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zkaudit import schema
from zkaudit.decode.columns import Filters
from zkaudit.decode.snapshot import snapshot_zxid
from zkaudit.sources.files import BYTES_PER_TASK, log_zxid, parse_servers, parse_zxid
from zkaudit.storage import Place, shown
from zkconsumer.errors import ConfigError

TABLES: Final = {
    "zookeeper_txnlog": {
        "transactions": schema.TXNLOG,
        "files": schema.TXNLOG_FILES,
        "runs": schema.TXNLOG_RUNS,
        "groups": schema.TXNLOG_GROUPS,
    },
    "zookeeper_snapshot": {
        "nodes": schema.SNAPSHOT,
        "sessions": schema.SNAPSHOT_SESSIONS,
        "group_nodes": schema.SNAPSHOT,
    },
}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a data source.

    Attributes:
        logs_only: whether only ``zookeeper_txnlog`` has it.
        internal: whether only Spark or zkaudit sets it, so that it is not on the reference page.
    """

    name: str
    default: str
    meaning: str
    logs_only: bool = False
    internal: bool = False


OPTIONS: Final = (
    Option(
        "path",
        "",
        "The argument of `load`: the directory of each server, separated by commas, as `DIR` "
        "or `NAME=DIR`. A name may have several directories, such as `dataLogDir` and `dataDir`. A "
        "single file and a glob work too. `DIR` can be a [URL of an object "
        "store](../how-to/audit-on-a-cluster.md).",
    ),
    Option("paths", "", "Set by Spark for `load([DIR, ...])`: a JSON list.", internal=True),
    Option("table", "the first one below", "Which table to read."),
    Option(
        "columns",
        "all",
        "Names of columns, separated by commas. Only these are decoded. Set it, because a "
        "Python source does not know which columns a query needs.",
    ),
    Option(
        "pathPrefix",
        "",
        "Skip operations on paths (in snapshots: znodes) that do not begin with this text. "
        "Sessions and errors have no path and are kept.",
    ),
    Option(
        "corruption",
        "fail",
        "`fail`, or `stop`: return the rows before the damage, and no rows of a damaged snapshot.",
    ),
    Option(
        "bytesPerTask", str(BYTES_PER_TASK), "Bytes that one task reads. Longer logs are split."
    ),
    Option("files", "all", "Only files with these names or absolute paths, separated by commas."),
    Option("startZxid", "", "Lowest zxid, decimal or `0x` hexadecimal; inclusive.", True),
    Option("endZxid", "", "Highest zxid; inclusive.", True),
    Option(
        "groupBegins",
        "",
        "Tables `groups` and `group_nodes`: keep only paths of groups whose names begin with one "
        "of these texts, separated by commas.",
        internal=True,
    ),
    Option(
        "pushFilters",
        "false",
        "`true`: conditions on `zxid` and `path` in a query narrow what is decoded. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`; otherwise Spark refuses it. Spark 4.0 "
        "ignores it.",
        True,
    ),
)
_OPTIONS: Final = tuple(option.name for option in OPTIONS)


@dataclass(frozen=True)
class Settings:
    """The checked options of a data source. Spark pickles them for its workers."""

    servers: dict[str, list[Place]]
    table: str
    columns: tuple[schema.Column, ...]
    filters: Filters
    tolerant: bool
    bytes_per_task: int
    push_filters: bool
    group_begins: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    """Names or absolute paths of the files to read; empty: all files."""

    @property
    def names(self) -> list[str]:
        """The names of the wanted columns."""
        return [column.name for column in self.columns]


def parse_options(source: str, options: dict[str, str]) -> Settings:
    """Check the options of a data source. Their names are case-insensitive. Raises
    ``ConfigError``."""
    given = {name.lower(): value for name, value in options.items()}
    faults = [
        f"{name}: no such option; the options are {', '.join(_OPTIONS)}"
        for name in given.keys() - {option.lower() for option in _OPTIONS}
    ]
    tables = TABLES[source]
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
        if number(file.name) is None:
            raise ConfigError(
                [f"path: {shown(str(file))}: {source} reads files named {kind}.<zxid>"]
            )
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
        frozenset(filter(None, (name.strip() for name in given.get("files", "").split(",")))),
    )
