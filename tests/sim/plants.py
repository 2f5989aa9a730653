"""The bugs that the simulator finds, and a search for the seeds at which it does.

``python -m tests.sim.plants`` plants each bug, plays runs until a rule is broken, and prints a row
of ``FOUND`` for it; ``python -m tests.sim.plants 0:1000 stays_open`` searches these seeds for
these bugs alone.
"""

from __future__ import annotations

import inspect
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import Pool
from typing import NamedTuple

import pytest

from tests.sim import plants_coordinator, plants_fetch, plants_loop, plants_zookeeper
from zkconsumer.sim.runs import COORDINATIONS, run

Plant = Callable[[pytest.MonkeyPatch], None]

EVENTS = 60
"""Troubles of each run."""
_HANGS_S = 30


class Found(NamedTuple):
    """Where a planted bug is found: the first such seed, and the rule that it breaks first."""

    coordination: str
    seed: int
    rule: str


def plants() -> dict[str, tuple[Plant, tuple[str, ...]]]:
    """All bugs by name, and the coordinations that they can show in."""
    found: dict[str, tuple[Plant, tuple[str, ...]]] = {}
    modules = {
        plants_fetch: COORDINATIONS,
        plants_loop: COORDINATIONS,
        plants_zookeeper: COORDINATIONS[:1],
        plants_coordinator: COORDINATIONS[1:],
    }
    for module, coordinations in modules.items():
        for name, function in inspect.getmembers(module, inspect.isfunction):
            takes = list(inspect.signature(function).parameters)
            if function.__module__ == module.__name__ and takes == ["patch"]:
                found[name] = function, coordinations
    return found


def search(name: str, seeds: Iterable[int]) -> str:
    """Plant a bug, play runs; return the row about it."""
    plant, coordinations = plants()[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in seeds:
            for coordination in coordinations:
                signal.alarm(_HANGS_S)
                result = run(seed, coordination=coordination, events=EVENTS)
                signal.alarm(0)
                if result.violations:
                    rule = result.violations[0].rule
                    return f'    "{name}": Found("{coordination}", {seed}, "{rule}"),'
    return f"# not found: {name}"


def _safely(seeds: range, name: str) -> str:
    try:
        return search(name, seeds)
    except BaseException as error:  # noqa: BLE001 - the others are searched all the same
        return f"# {name}: {error!r}"


def _hangs(*_: object) -> None:
    raise TimeoutError("a run hangs")


def main(arguments: list[str]) -> None:
    """Search."""
    signal.signal(signal.SIGALRM, _hangs)
    first, count = 0, 1000
    if arguments and ":" in arguments[0]:
        first, count = map(int, arguments.pop(0).split(":"))
    names = arguments or sorted(plants())
    with Pool(2) as pool:
        for row in pool.imap_unordered(partial(_safely, range(first, first + count)), names):
            sys.stdout.write(row + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
