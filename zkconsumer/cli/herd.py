"""``zkconsumer herd``: one change in a group of many real members on a real ZooKeeper."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from zkconsumer.cli.herd_output import numbers, show, write_html
from zkconsumer.errors import ConfigError
from zkconsumer.journal.measures import Measures
from zkconsumer.sim.herd import EVENTS, Herd
from zkconsumer.sim.herd_coordinator import simulate_any
from zkconsumer.testing import LocalZooKeeper
from zkconsumer.testing.herd import RealHerd, run_herd
from zkconsumer.testing.herd_jvm import JvmHerd

_PROFILES: Final = ("scala", "default")
#: Compared with the simulator: figures, and how they must agree.
_CHECKED: Final = ("reads", "writes", "requests", "watches_fired", "attempts")


@click.command()
@click.option(
    "--members",
    callback=numbers,
    default="20",
    show_default=True,
    metavar="N[,N..]",
    help="Members before the event; several sizes with commas. 5 threads each.",
)
@click.option("--partitions", type=click.IntRange(1), default=100, show_default=True)
@click.option("--topics", type=click.IntRange(1), default=1, show_default=True)
@click.option("--event", type=click.Choice(EVENTS), default="join", show_default=True)
@click.option("--profile", type=click.Choice([*_PROFILES, "all"]), default="all", show_default=True)
@click.option(
    "--jvm", type=click.IntRange(0, 20), default=0, help="Members of the original consumer beside."
)
@click.option("--processes", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option("--session-timeout", type=float, default=6.0, show_default=True, metavar="SECONDS")
@click.option("--backoff", type=float, default=2.0, show_default=True, metavar="SECONDS")
@click.option(
    "--simulate",
    "with_simulator",
    is_flag=True,
    help="Simulate the same, and a coordinator's group; say how far the counts agree.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
@click.option("--journal", type=click.Path(dir_okay=False, path_type=Path), help="JSON Lines.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="A report.")
def herd(
    members: tuple[int, ...],
    partitions: int,
    topics: int,
    event: str,
    profile: str,
    jvm: int,
    processes: int,
    session_timeout: float,
    backoff: float,
    with_simulator: bool,
    as_json: bool,
    journal: Path | None,
    html: Path | None,
) -> None:
    """Start a ZooKeeper and a group of many members, change the group, and count what it costs.

    The members are real but fetch nothing. Counts come from their journals and are compared with
    the server's own.
    """
    wanted = _PROFILES if profile == "all" else (profile,)
    if journal is not None and len(wanted) * len(members) > 1:
        raise ConfigError(["--journal: one run at a time: give one size and profile"])
    if min(members) < 2 or max(members) > 1000:
        raise ConfigError(["--members: must be 2 to 1000"])
    if jvm and event != "join":
        raise ConfigError(["--jvm: only with --event join"])
    runs: list[Measures] = []
    pairs: list[tuple[Measures, Measures]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-")))
        say = stack.enter_context(_status())
        say("starting ZooKeeper")
        port = stack.enter_context(LocalZooKeeper()).zookeeper_server.port
        for name in wanted:
            for size in members:
                run = RealHerd(
                    port,
                    size,
                    partitions,
                    topics,
                    event,
                    name,
                    session_timeout=session_timeout,
                    backoff=backoff,
                    processes=processes,
                )
                folder = directory / f"{name}-{size}"
                beside = JvmHerd(jvm, session_timeout, backoff) if jvm else None
                runs.append(run_herd(run, folder, _prefix(say, f"{name}, {size}: "), beside))
                if with_simulator and not jvm:
                    pairs.append((runs[-1], _simulated(run, name)))
        if pairs:
            runs += [simulated for _, simulated in pairs]
            runs += [_simulated(replace(run, members=size), "coordinator") for size in members]
        if journal is not None:
            shutil.copyfile(folder / "journal.jsonl", journal)
    if html is not None:
        write_html(html, runs, f"One {event.replace('-', ' ')} in a group, on a real ZooKeeper")
    show(runs, as_json)
    if not as_json:
        _server(runs)
        _agreement(pairs)


def _prefix(say: Callable[[str], object], text: str) -> Callable[[str], object]:
    return lambda what: say(text + what)


@contextmanager
def _status() -> Iterator[Callable[[str], object]]:
    """A line on a terminal that says what is going on; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def _simulated(run: RealHerd, profile: str) -> Measures:
    return simulate_any(
        Herd(
            run.members,
            run.partitions,
            run.topics,
            run.event,
            profile,
            session_timeout=run.session_timeout,
            backoff=run.backoff,
        )
    )


def _server(runs: list[Measures]) -> None:
    for run in runs:
        if run.mode != "real":
            continue
        counted, expected = run.server["packets_received"], run.server["packets_expected"]
        bytes_in = run.server.get("bytes_received", 0)
        for note in run.notes:
            click.echo(f"{run.profile}, {run.members} members: {note}")
        click.echo(
            f"{run.profile}, {run.members} members: the server counted {counted:,} requests "
            f"({bytes_in:,} bytes); the journals and pings at rest say {expected:,}"
        )


def _agreement(pairs: list[tuple[Measures, Measures]]) -> None:
    for real, simulated in pairs:
        parts = []
        for name in _CHECKED:
            one, other = getattr(real, name), getattr(simulated, name)
            parts.append(f"{name} {_percent(one, other)}")
        click.echo(f"{real.profile}, {real.members} members, simulated: {', '.join(parts)}")


def _percent(real: int, simulated: int) -> str:
    return f"{100 * (simulated - real) / real:+.1f} %" if real else str(simulated)
