"""``zkconsumer herd``: one change in a group of many real members on a real ZooKeeper."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Final

import click
from rich.console import Console

from zkconsumer.cli.laboratory.herd_common import (
    by_group,
    check_herds,
    herd_options,
    middles,
    show,
    spread,
    values,
    write_html,
)
from zkconsumer.console.exclusive import only_with
from zkconsumer.console.tables import count_option, print_rows
from zkconsumer.console.times import Duration
from zkconsumer.errors import ConfigError
from zkconsumer.herd.measures import Measures
from zkconsumer.servers import LocalZooKeeper
from zkconsumer.servers.herd.membership_change import RealHerd, run_herd
from zkconsumer.servers.legacy_jvm import JvmHerd
from zkconsumer.sim.runs.herd import Herd
from zkconsumer.sim.runs.herd_coordinator import simulate_any

_PROFILES: Final = ("scala", "default")
#: Compared with the simulator.
_CHECKED: Final = ("reads", "writes", "requests", "watches_fired", "attempts")
_IDEAL: Final = (0.00002, 0.0001)  # seconds for one read and one write
_MOST: Final = 1000


@click.command()
@herd_options(
    _PROFILES,
    "How members behave: like the JVM consumer (`scala`, or `jvm`), like this library's members "
    "(`default`), or one group of each.",
    "20",
    "Number of members before the event, up to 1000. There is one run for each number given. "
    "Each member has 5 threads.",
)
@count_option(
    "--jvm",
    default=0,
    least=0,
    most=20,
    help="Also start this many JVM consumers as members.",
)
@count_option(
    "--processes", default=2, most=16, help="How many processes to divide the members among."
)
@count_option("--repeat", default=1, most=50, help="How many times to repeat each measurement.")
@click.option(
    "--simulate",
    "with_simulator",
    is_flag=True,
    help="Also simulate the same groups, and groups on a coordinator with each of its protocols, "
    "and compare the figures.",
)
@count_option(
    "--seeds",
    default=10,
    most=1000,
    help="With --simulate: number of simulated runs of each group.",
)
@click.option(
    "--service-ms",
    "service",
    type=(Duration(bare="ms"), Duration(bare="ms")),
    metavar="READ WRITE",
    help="With --simulate: time that a simulated server needs for a read and for a write. Times "
    "are compared only if this is given.  [default: 0.02 0.1]",
)
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
    repeat: int,
    with_simulator: bool,
    seeds: int,
    service: tuple[float, float] | None,
    as_json: bool,
    journal: Path | None,
    html: Path | None,
) -> None:
    """Count what a change costs in a real group of many members.

    The members are real but fetch nothing. The counts are taken from their journals, and compared
    with the server's own counts.
    """
    wanted = _PROFILES if profile == "all" else (profile,)
    asked = [
        Herd(size, partitions, topics, event, name)
        for name in wanted
        for size in members
        for _ in range(repeat)
    ]
    if jvm and event != "join":
        raise ConfigError(["--jvm requires --event join"])
    if jvm and with_simulator:
        raise ConfigError(["--jvm: members of the JVM cannot be simulated: remove --simulate"])
    if not with_simulator:
        only_with("--simulate", "seeds", "service")
    check_herds(asked, _MOST, journal, html)
    runs: list[Measures] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zkconsumer-")))
        say = stack.enter_context(_status())
        say("starting ZooKeeper")
        port = stack.enter_context(LocalZooKeeper()).zookeeper_server.port
        for name in wanted:
            for size in members:
                run = RealHerd(
                    size,
                    partitions,
                    topics,
                    event,
                    name,
                    session_timeout=session_timeout,
                    backoff=backoff,
                    port=port,
                    processes=processes,
                )
                for number in range(repeat):
                    folder = directory / f"{name}-{size}-{number}"
                    beside = JvmHerd(jvm, session_timeout, backoff) if jvm else None
                    said = _prefix(say, f"{name}, {size}: ")
                    runs.append(run_herd(run, folder, said, beside))
        if journal is not None:
            try:
                shutil.copyfile(folder / "journal.jsonl", journal)
            except OSError as error:
                raise ConfigError([f"--journal {journal}: {error.strerror}"]) from None
        if with_simulator:
            names = (*wanted, "coordinator", "consumer")
            to_do = [(name, size) for name in names for size in members]
            for number, (name, size) in enumerate(to_do, 1):
                say(f"simulating {number} of {len(to_do)}")
                group = run.common() | {"members": size, "profile": name}
                simulated = Herd(**group, service=service or _IDEAL)
                runs += [simulate_any(replace(simulated, seed=seed)) for seed in range(seeds)]
    if html is not None:
        title = f"One {event.replace('-', ' ')} in a group, on a real ZooKeeper"
        write_html(html, middles(runs), title)
    show(runs, as_json)
    if not as_json:
        _server(runs)
        timed = ("seconds_to_stable",) if service else ()
        _agreement(runs, (*_CHECKED, *timed))


def _prefix(say: Callable[[str], object], text: str) -> Callable[[str], object]:
    return lambda what: say(text + what)


@contextmanager
def _status() -> Iterator[Callable[[str], object]]:
    """Return a line on a terminal that shows the progress; elsewhere, nothing is shown."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def _server(runs: list[Measures]) -> None:
    click.echo()
    for run in runs:
        if run.mode != "real":
            continue
        counted, bytes_in = run.server["packets_received"], run.server.get("bytes_received", 0)
        text = f"{run.profile}, {run.members} members: the server counted {counted:,} requests "
        text += f"({bytes_in:,} bytes)"
        if "packets_expected" in run.server:
            text += f"; the journals and pings at rest say {run.server['packets_expected']:,}"
        for note in run.notes:
            text += f". {note}"
        click.echo(text)


def _agreement(runs: list[Measures], figures: Sequence[str]) -> None:
    """Return the mean, minimum and maximum of real and of simulated runs."""
    rows: list[list[object]] = []
    groups = by_group(runs)
    for (mode, profile, members), some in groups.items():
        simulated = groups.get(("simulated", profile, members))
        if mode != "real" or simulated is None:
            continue
        for name in figures:
            real, model = values(some, name), values(simulated, name)
            if real and model:
                rows.append([profile, members, name, *spread(real), *spread(model)])
                rows[-1].append(_difference(fmean(real), fmean(model), name))
    if rows:
        click.echo("\nMeans and ranges of real and of simulated runs:")
        head = ["profile", "members", "figure", "real", "range", "simulated", "range", "differs"]
        print_rows(head, rows, "table")


def _difference(real: float, simulated: float, name: str) -> str:
    if name == "seconds_to_stable":
        return f"x {simulated / real:.2f}" if real else "-"
    if real:
        return f"{100 * (simulated - real) / real:+.1f} %"
    return "0 %" if not simulated else "-"
