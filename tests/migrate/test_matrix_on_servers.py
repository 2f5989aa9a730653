"""A twentieth of the table of states and commands (``matrix``) on real servers.

A seed draws the cells: the day's number, or ``ZKC_SEED``. ``MATRIX=all`` checks all cells (a
minute), ``MATRIX=moved:gate,hidden:reset`` these. All groups are on one cluster. Its broker has an
authorizer, so that the topic of ``hidden`` can be hidden. The states ``hidden_in_kraft``,
``leaving`` and ``handed_over`` are not drawn: they would need a cluster that has left ZooKeeper, or
a second one.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.migrate.matrix import answer_of, build, cells
from tests.migrate.real import ACL_PROPERTIES, RealCluster
from zkconsumer.errors import ZkConsumerError
from zkconsumer.servers import LocalCluster

if TYPE_CHECKING:
    from conftest import Bench  # type: ignore[import-not-found]

SIMULATED_ONLY = {"hidden_in_kraft", "leaving", "handed_over"}
WANTED = os.environ.get("MATRIX", "")
DAY_SECONDS = 86_400


def drawn() -> list[tuple[str, str, str]]:
    """Return state, command and answer of each cell that is checked, and print how to repeat it."""
    # Without a plan, the command is not run.
    every = [cell for cell in cells() if cell[0] not in SIMULATED_ONLY and cell[2] != "-"]
    if WANTED == "all":
        return every
    if WANTED:
        names = WANTED.split(",")
        return [cell for cell in every if f"{cell[0]}:{cell[1]}" in names]
    seed = int(os.environ.get("ZKC_SEED") or time.time() // DAY_SECONDS)
    sys.stdout.write(f"repeat with ZKC_SEED={seed}\n")
    return random.Random(seed).sample(every, len(every) // 20)


def test_cells_that_are_drawn(
    bench_on: Callable[[LocalCluster], Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Real servers give the same answers as the simulation."""
    wrong: list[str] = []
    chosen = drawn()
    assert chosen, f"MATRIX={WANTED} names no cell"
    with LocalCluster("3.9", properties=ACL_PROPERTIES) as cluster:
        bench = bench_on(cluster)
        for number, (state, command, answer) in enumerate(chosen):
            folder = tmp_path / str(number)
            folder.mkdir()
            monkeypatch.chdir(folder)  # where some commands leave a journal
            real = RealCluster(bench, folder, f"{number}")
            since = time.monotonic()
            try:
                build(real, state)
                found = answer_of(real, command)
            except (AssertionError, IndexError, ZkConsumerError) as error:  # others are checked
                traceback.print_exc(file=sys.stdout)
                found = f"{type(error).__name__}: {error}"
            finally:
                real.close()
            sys.stdout.write(f"{state}:{command} {time.monotonic() - since:.1f} s\n")
            if found != answer:
                wrong.append(f"{state}:{command} {found!r}, not {answer!r}")
        bench.close()
    repeat = ",".join(text.partition(" ")[0] for text in wrong)
    assert not wrong, f"repeat with MATRIX={repeat}: " + "; ".join(wrong)
