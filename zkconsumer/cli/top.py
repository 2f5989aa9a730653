"""``zkconsumer top``: groups as a table that is redrawn repeatedly. Main thread only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from zkconsumer.admin.describe import GroupRow
from zkconsumer.admin.printable import printable
from zkconsumer.admin.tools import GroupTools
from zkconsumer.cli.groups import choose, either_tools
from zkconsumer.config.tool_security import SecurityConfig
from zkconsumer.console.repeating import repeat
from zkconsumer.console.tables import (
    command_config,
    count_option,
    either_option,
    print_new_notes,
    print_rows,
    timeout_option,
)
from zkconsumer.console.times import duration_option
from zkconsumer.errors import ZkConsumerError

if TYPE_CHECKING:
    from rich.table import Table

    from zkconsumer.admin.coordinator_groups import CoordinatorGroups

Owners = Mapping[tuple[str, int], str]


class TopRow(NamedTuple):
    """One group. ``rate`` is in messages per second; ``moves`` is how many times partitions
    changed owners."""

    group: str
    state: str
    members: int
    partitions: int
    unowned: int
    lag: int | None
    rate: float | None
    rebalances: int
    moves: int


class Seen(NamedTuple):
    """The result of reading a group once."""

    state: str
    members: int
    rows: Sequence[GroupRow]


@dataclass(slots=True)
class History:
    """Compares the groups with those of the previous table.

    A rebalance is counted if owners differ from the previous table, so several rebalances between
    two tables count as one.
    """

    _owners: dict[str, Owners] = field(default_factory=dict)
    _committed: dict[str, tuple[float, dict[tuple[str, int], int]]] = field(default_factory=dict)
    _rebalances: dict[str, int] = field(default_factory=dict)
    _moves: dict[str, int] = field(default_factory=dict)

    def row(self, group: str, seen: Seen, now: float) -> TopRow:
        """Return a group's row from a new reading. ``now`` is in seconds, on any steady clock."""
        parts = [
            (row.topic, row.partition, row)
            for row in seen.rows
            if row.topic is not None and row.partition is not None
        ]
        owners = {(t, p): row.consumer_id for t, p, row in parts if row.consumer_id is not None}
        before = self._owners.get(group)
        if before is not None:
            moved = sum(1 for key, owner in owners.items() if before.get(key, owner) != owner)
            moved += sum(1 for key in owners if key not in before)
            if moved:
                self._rebalances[group] = self._rebalances.get(group, 0) + 1
                self._moves[group] = self._moves.get(group, 0) + moved
        self._owners[group] = owners
        offsets = {(t, p): row.current_offset for t, p, row in parts}
        known = {key: offset for key, offset in offsets.items() if offset is not None}
        rate = None
        if group in self._committed:
            at, earlier = self._committed[group]
            progress = sum(offset - earlier.get(key, offset) for key, offset in known.items())
            rate = round(progress / max(now - at, 1e-3), 1)
        self._committed[group] = now, known
        lags = [row.lag for _, _, row in parts if row.lag is not None]
        return TopRow(
            group,
            seen.state,
            seen.members,
            len(parts),
            len(parts) - len(owners),
            sum(lags) if lags else None,
            rate,
            self._rebalances.get(group, 0),
            self._moves.get(group, 0),
        )


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@duration_option("--every", default=2.0, least=0.2, help="How often to read the groups.")
@count_option("--count", help="Exit after this many tables.  [default: run until Ctrl-C]")
@either_option
@timeout_option
@command_config
def top(
    names: tuple[str, ...],
    every: float,
    count: int | None,
    zookeeper: str | None,
    bootstrap: str | None,
    timeout: float,
    security: SecurityConfig,
) -> int:
    """Show groups live: members, lag, rate and rebalances.

    Without GROUP, all groups are shown, those with the most lag first. Without --zookeeper, the
    command shows groups on the brokers of --bootstrap-server. LAG is the sum over all partitions.
    RATE is how many messages a second the group has committed since the last table. REBALANCES
    counts the tables in which partitions had changed owners, and MOVES counts those partitions. If
    standard output is not a terminal, the tables are printed one after another.
    """
    with either_tools(zookeeper, bootstrap, timeout, security) as tools, ExitStack() as stack:
        history = History()
        noted: list[str] = []
        live = _live(stack)
        drawn = 0

        def show(state: Mapping[str, Seen], now: float) -> bool:
            nonlocal drawn
            rows = [history.row(group, seen, now) for group, seen in state.items()]
            rows.sort(key=lambda row: (-(row.lag or 0), row.group))
            live(rows)
            print_new_notes(tools.notes, noted)
            drawn += 1
            return drawn == count

        def failed(error: ZkConsumerError) -> None:
            click.echo(f"error: {printable(str(error))}; reading again", err=True)

        return repeat(lambda: _look(tools, names), show, failed, every)


def _look(tools: GroupTools | CoordinatorGroups, names: tuple[str, ...]) -> dict[str, Seen]:
    groups = choose(tools, names)
    rows: dict[str, list[GroupRow]] = {group: [] for group in groups}
    for row in tools.describe(groups):
        rows[row.group].append(row)
    return {
        state.group: Seen(state.state, state.members, rows[state.group])
        for state in tools.states(groups)
    }


def _live(stack: ExitStack) -> Callable[[Sequence[TopRow]], None]:
    """Return a function that draws a table: in place on a terminal, otherwise below the previous
    one."""
    if not sys.stdout.isatty():

        def follow(rows: Sequence[TopRow]) -> None:
            print_rows(TopRow._fields, rows, "table")
            sys.stdout.write("\n")
            sys.stdout.flush()

        return follow
    from rich.live import Live

    live = stack.enter_context(Live(screen=False, auto_refresh=False))

    def draw(rows: Sequence[TopRow]) -> None:
        live.update(_table(rows, live.console.width), refresh=True)

    return draw


_DROPPED = ("partitions", "moves", "unowned", "rate", "members", "rebalances")
"""Columns that a narrow terminal hides, in this order."""
_GROUP_WIDTH = 12
"""Longer group names are shortened before a column is hidden."""


def _table(rows: Sequence[TopRow], width: int) -> Table:
    """Return the table, at most ``width`` characters wide if the lags fit."""
    from rich.table import Table
    from rich.text import Text

    cells = {name: [_cell(row[place]) for row in rows] for place, name in enumerate(TopRow._fields)}
    widths = {name: max(map(len, (name, *column))) for name, column in cells.items()}
    least = widths | {"group": min(widths["group"], _GROUP_WIDTH)}
    for name in _DROPPED:
        if sum(least.values()) + 3 * (len(least) - 1) > width:
            del least[name]
    table = Table(show_edge=False, pad_edge=False)
    room = width - sum(least.values()) - 3 * (len(least) - 1)
    least["group"] = min(widths["group"], least["group"] + max(room, 0))
    for name, size in least.items():
        justify: Literal["left", "right"] = "left" if name in ("group", "state") else "right"
        table.add_column(name.upper(), justify=justify, no_wrap=True, width=size)
    for row, *cells_of_row in zip(rows, *(cells[name] for name in least), strict=True):
        style = "" if row.state == "Stable" and not row.unowned else "yellow"
        table.add_row(*map(Text, cells_of_row), style=style)
    return table


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return printable(value) if isinstance(value, str) else f"{value:,}"
