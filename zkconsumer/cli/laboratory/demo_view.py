"""The output of the demo: a live table on a terminal, plain lines elsewhere, and a summary.

The messages are lines of text files on this machine. Used by the demo's main thread only; rich
redraws the live table on its own thread.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import islice
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from zkconsumer.cli.laboratory.demo_verdict import Kill, Verdict
from zkconsumer.core.zookeeper.ops import Node

_COLOURS = ("cyan", "magenta", "yellow")
_SVG_WIDTH = 104


def ranges(numbers: Iterable[int]) -> str:
    """Return ascending numbers as text, with runs as ranges: ``0-2 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


@dataclass(slots=True)
class MemberRow:
    """A member's row of the table: ``streams`` has each stream's partitions."""

    name: str
    state: str = "starting"
    streams: tuple[tuple[int, ...], ...] = ()
    delivered: int = 0

    def owned(self) -> str:
        """The member's partitions, separately for each stream."""
        if not any(self.streams):
            return "-" if self.state == "running" else self.state
        return " | ".join(map(ranges, self.streams))


@dataclass(frozen=True, slots=True)
class Moment:
    """The group after an event. ``took``: seconds until every partition had an owner."""

    at: float
    event: str
    took: float
    delivered: int
    owned: Mapping[str, str]


@dataclass(slots=True)
class Story:
    """The events of a run until now."""

    sent: int
    members: dict[str, MemberRow] = field(default_factory=dict)
    unowned: tuple[int, ...] = ()
    moments: list[Moment] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        """Number of messages that all members have recorded."""
        return sum(row.delivered for row in self.members.values())


class View:
    """Shows the events of a run as they happen. ``console``: the output. A terminal shows a live
    table; other output has one line for each event."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(Text(text), soft_wrap=True)

    def start(self, story: Story) -> None:
        """Begin the live table."""
        if self.console.is_terminal:
            self._live = Live(live_table(story), console=self.console, refresh_per_second=8)
            self._live.start()

    def update(self, story: Story) -> None:
        """Show the current state of the group."""
        if self._live is not None:
            self._live.update(live_table(story))

    def add(self, story: Story, moment: Moment) -> None:
        """Add an event."""
        story.moments.append(moment)
        if self._live is None:
            owned = "; ".join(f"{name}: {text}" for name, text in moment.owned.items())
            self.say(
                f"{moment.at:5.1f} s  {moment.event} (settled after {moment.took:.1f} s, "
                f"{moment.delivered:,} delivered)  {owned}"
            )
        self.update(story)

    def stop(self) -> None:
        """End the live table; its last state stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def live_table(story: Story) -> RenderableType:
    """Return a table of the current owners and the events so far."""
    now = Table(title="who owns what", title_justify="left", expand=False)
    for heading in ("member", "state", "stream 0", "stream 1"):
        now.add_column(heading, min_width=12)
    now.add_column("delivered", justify="right", min_width=10)
    for row, colour in zip(story.members.values(), _COLOURS, strict=False):
        streams = [*map(ranges, row.streams)] or ["", ""]
        style = colour if row.state == "running" else "dim"
        now.add_row(row.name, row.state, *streams, f"{row.delivered:,}", style=style)
    if story.unowned:
        now.add_row("no owner", "", ranges(story.unowned), "", "", style="bold red")
    share = min(1.0, story.delivered / story.sent) if story.sent else 0.0
    filled = round(40 * share)
    bar = Text("━" * filled, "green") + Text("━" * (40 - filled), "dim")
    bar.append(f" {story.delivered:,} delivered of {story.sent:,}")
    parts: list[RenderableType] = [now, bar]
    if story.moments:
        parts.append(timeline(story))
    return Group(*parts)


def timeline(story: Story) -> Table:
    """Return a table with a row for each event. It shows each member's partitions, with ``|``
    between its two streams."""
    table = Table(title="what happened", title_justify="left", expand=False, box=box.SIMPLE_HEAD)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("settled in", justify="right", no_wrap=True)
    for name, colour in zip(story.members, _COLOURS, strict=False):
        table.add_column(name, style=colour)
    for moment in story.moments:
        owned = [moment.owned.get(name, "") for name in story.members]
        table.add_row(f"{moment.at:.1f} s", moment.event, f"{moment.took:.1f} s", *owned)
    return table


def verdict_lines(verdict: Verdict, kill: Kill | None) -> list[str]:
    """Return the verdict as lines of text."""
    lines = [
        f"sent             {verdict.sent:>9,}",
        f"delivered        {verdict.delivered:>9,}",
        f"lost             {len(verdict.lost):>9,}",
    ]
    why = ""
    if kill is not None:
        why = f"  {kill.member} was killed after it delivered them and before it committed"
    lines.append(f"delivered twice  {verdict.repeated:>9,}{why if verdict.repeated else ''}")
    lines.append(f"unexplained      {len(verdict.unexplained):>9,}")
    for name, places in (("lost", verdict.lost), ("unexplained", verdict.unexplained)):
        shown = ", ".join(f"partition {p} offset {offset}" for p, offset in places[:5])
        if shown:
            lines.append(f"{name}: {shown}{' ...' if len(places) > 5 else ''}")
    return lines


def verdict_panel(verdict: Verdict, kill: Kill | None) -> Panel:
    """Return the verdict in a frame."""
    good = verdict.good
    title = "nothing lost" if good else "FAILED: messages lost or repeated without a reason"
    text = Text("\n".join(verdict_lines(verdict, kill)))
    return Panel(text, title=title, border_style="green" if good else "red", expand=False)


def show_znodes(view: View, znodes: Sequence[tuple[str, Node]]) -> None:
    """Print the group's znodes, one per line."""
    view.say("znodes of the group (E: ephemeral):")
    for path, node in znodes:
        data = node.data.decode("utf-8", "backslashreplace")
        mark = "E" if node.stat.ephemeral_owner else " "
        view.say(f"  {mark} {path}{f' = {data}' if data else ''}")


_DIM, _BRIGHT = "#98729f", "#c79bd1"
"""Rich's magenta, and a color that is readable on its background."""


def save_svg(path: Path, story: Story, verdict: Verdict, kill: Kill | None) -> None:
    """Write the summary of a run to an SVG file. Raises OSError."""
    console = Console(
        record=True, file=StringIO(), force_terminal=True, width=_SVG_WIDTH, legacy_windows=False
    )
    console.print(Text("$ make demo", "bold"))
    console.print(
        Text(
            f"{story.sent:,} lines of real text in 12 partitions. A member's two streams and "
            "their partitions: 0-2 | 3-5\n"
        )
    )
    console.print(timeline(story))
    console.print(verdict_panel(verdict, kill))
    svg = console.export_svg(title="zkconsumer demo")
    without_web_fonts = re.sub(r"\s*@font-face {.*?}", "", svg, flags=re.DOTALL)
    path.write_text(without_web_fonts.replace(_DIM, _BRIGHT), encoding="utf-8")


Message = tuple[bytes, bytes]
"""Key (``file:line``) and value (the line)."""


def real_lines(logs: Path, wanted: int) -> list[Message]:
    """Return up to ``wanted`` lines that are not blank, first from the servers' logs, then from
    Python's sources."""
    return list(islice(_lines(logs), wanted))


def _lines(logs: Path) -> Iterator[Message]:
    for file in sorted(logs.glob("*.log")):
        yield from _lines_of(file, file.name)
    for name in ("stdlib", "purelib"):
        root = Path(sysconfig.get_path(name))
        for file in sorted(root.rglob("*.py")):
            relative = file.relative_to(root)
            if name == "purelib" or "site-packages" not in relative.parts:
                yield from _lines_of(file, str(relative))


def _lines_of(file: Path, name: str) -> Iterator[Message]:
    try:
        content = file.read_bytes()
    except OSError:
        return  # unreadable files are no input
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield f"{name}:{number}".encode(), line
