"""``zkconsumer simulate``: the herd effect and split brain in virtual time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
from zkconsumer.console.exclusive import no_effect
from zkconsumer.console.tables import count_option, print_rows
from zkconsumer.console.times import Duration
from zkconsumer.errors import ConfigError
from zkconsumer.herd.measures import Measures
from zkconsumer.journal.json_lines import JournalWriter
from zkconsumer.journal.recorder import run_entry
from zkconsumer.sim.runs.herd import PROFILES, Herd
from zkconsumer.sim.runs.herd_coordinator import simulate_any
from zkconsumer.sim.runs.split_brain import SCENARIOS, play, story

_MOST: Final = 10_000


@click.command()
@herd_options(
    PROFILES,
    "How the group works: with members like the JVM consumer (`scala`, or `jvm`), with this "
    "library's members (`default`), on Kafka's coordinator with the classic protocol "
    "(`coordinator`) or the KIP-848 protocol (`consumer`), or all four, one at a time.",
    "50",
    "Number of members before the event, up to 10000. There is one run for each number given.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="Seed for all random choices of a run.",
)
@count_option(
    "--seeds", default=1, help="Number of runs, with consecutive seeds starting at --seed."
)
@count_option(
    "--jobs", help="How many processes to divide the runs among.  [default: one per processor]"
)
@click.option(
    "--service-ms",
    "service",
    type=(Duration(bare="ms"), Duration(bare="ms")),
    default=(0.00002, 0.0001),
    metavar="READ WRITE",
    help="Time that a server needs for a read and for a write.  [default: 0.02 0.1]",
)
@click.option(
    "--latency-ms",
    "latency",
    type=(Duration(bare="ms"), Duration(bare="ms")),
    default=(0.0002, 0.001),
    metavar="LEAST MOST",
    help="Network delay between member and server, in one direction.  [default: 0.2 1]",
)
@click.option(
    "--scenario",
    type=click.Choice(list(SCENARIOS)),
    help="Show this split-brain case, step by step, instead of counting costs.",
)
def simulate(
    members: tuple[int, ...],
    partitions: int,
    topics: int,
    event: str,
    profile: str,
    seed: int,
    seeds: int,
    jobs: int | None,
    service: tuple[float, float],
    latency: tuple[float, float],
    session_timeout: float,
    backoff: float,
    scenario: str | None,
    as_json: bool,
    journal: Path | None,
    html: Path | None,
) -> None:
    """Count what a change costs in a simulated group.

    Simulated members run the same decision core and send the same operations and requests as real
    ones. A run depends only on its options: the same seed gives the same journal.
    """
    if scenario is not None:
        used = {"scenario", "profile", "seed", "as_json", "journal"}
        every = {parameter.name or "" for parameter in click.get_current_context().command.params}
        no_effect("--scenario", *(every - used))
        _scenario(scenario, None if profile == "all" else profile, seed, as_json, journal)
        return
    profiles: tuple[str, ...] = PROFILES if profile == "all" else (profile,)
    herds = [
        Herd(
            size,
            partitions,
            topics,
            event,
            name,
            seed=run_seed,
            latency=latency,
            service=service,
            session_timeout=session_timeout,
            backoff=backoff,
        )
        for name in profiles
        for size in members
        for run_seed in range(seed, seed + seeds)
    ]
    check_herds(herds, _MOST, journal, html)
    runs = _runs(herds, jobs, journal)
    if html is not None:
        write_html(html, middles(runs), _title(event))
    if seeds > 1 and not as_json:
        _summary(runs)
    else:
        show(runs, as_json)


def _title(event: str) -> str:
    return f"One {event.replace('-', ' ')} in a group, simulated"


@contextmanager
def progress_bar(total: int, what: str) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal. The yielded function takes the number of finished runs."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def _runs(herds: list[Herd], jobs: int | None, journal: Path | None) -> list[Measures]:
    runs: list[Measures] = []
    jobs = min(len(herds), jobs or os.cpu_count() or 1)
    with progress_bar(len(herds), "simulating") as done:
        if jobs > 1 and journal is None:
            with ProcessPoolExecutor(jobs) as pool:
                for run in pool.map(simulate_any, herds, chunksize=1 + len(herds) // 100):
                    runs.append(run)
                    done(len(runs))
            return runs
        for herd in herds:
            try:
                with nullcontext(None) if journal is None else JournalWriter(journal) as sink:
                    if sink is not None:
                        sink.write(run_entry(0, "virtual", {"herd": replace(herd)}))
                    runs.append(simulate_any(herd, sink))
            except OSError as error:
                raise ConfigError([f"--journal {journal}: {error.strerror}"]) from None
            done(len(runs))
    return runs


def _summary(runs: list[Measures]) -> None:
    """Print the spread of each figure over many seeds."""
    rows: list[list[object]] = []
    for (_, profile, members), some in by_group(runs).items():
        for name in ("reads", "requests", "attempts", "failed_attempts", "seconds_to_stable"):
            if numbers := values(some, name):
                middle = numbers[len(numbers) // 2]
                rows.append(
                    [profile, members, name, numbers[0], middle, numbers[-1], *spread(numbers)[:1]]
                )
        orphans = sum(run.unowned_at_end > 0 for run in some)
        rows.append([profile, members, "runs not all owned", "", "", "", orphans])
    print_rows(["profile", "members", "figure", "least", "middle", "most", "mean"], rows, "table")
    click.echo(f"{len(runs)} runs")


def _scenario(
    name: str, profile: str | None, seed: int, as_json: bool, journal: Path | None
) -> None:
    wanted = ("scala", "default") if profile is None else (profile,)
    results = [play(name, each, seed) for each in wanted if each in ("scala", "default")]
    if not results:
        raise ConfigError(["--scenario requires profile scala or default"])
    if journal is not None:
        try:
            with JournalWriter(journal) as sink:
                for entry in results[0].entries:
                    sink.write(entry)
        except OSError as error:
            raise ConfigError([f"--journal {journal}: {error.strerror}"]) from None
    if as_json:
        click.echo(json.dumps([result.as_json() for result in results], indent=1))
        return
    for result in results:
        click.echo(story(result))
