"""Many groups at once: broken groups are named with their fix, and all others are moved in one
run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.migrate.estate import FIXES, Estate
from zkconsumer.servers import LocalCluster

if TYPE_CHECKING:
    from conftest import Shell  # type: ignore[import-not-found]

SEED = 17


@pytest.fixture(scope="module")
def estate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Estate]]:
    """100 groups on their own servers, ten of them broken."""
    with LocalCluster("3.9") as cluster:
        made = Estate(cluster, 100, SEED)
        made.fill()
        yield cluster, made
        made.close()


def test_a_broken_group_is_named_with_its_fix_and_the_others_are_moved(
    estate: tuple[LocalCluster, Estate], tmp_path: Path, shell_on: Callable[[LocalCluster], Shell]
) -> None:
    """Ten groups are broken in different ways, and each is named with its fix. All offsets of the
    other groups are moved, and no claim remains. A second run from another folder can resume plan
    and journal, as another operator would from a copy. The journal names the user and host of each
    run."""
    cluster, made = estate
    print(f"seed {SEED}")  # noqa: T201
    shell: Shell = shell_on(cluster)
    plan = str(tmp_path / "plan")
    status, rows = shell.rows("plan", "--all", "--out", plan)
    assert status == 3
    named = {row["group"]: row for row in rows if row["kind"]}
    assert {group: row["kind"] for group, row in named.items()} == made.broken
    for group, way in made.broken.items():
        assert FIXES[way] in named[group]["fix"]
    with open(plan) as file:
        head = json.loads(file.readline())
    assert head["made_with"]["version"]
    assert head["made_with"]["options"]["on_conflict"] == "refuse"
    status, rows = shell.rows("apply", plan, "--execute", "--limit", "30", "--parallel", "4")
    assert [row["outcome"] for row in rows] == ["done"] * 30
    elsewhere = tmp_path / "another"
    elsewhere.mkdir()
    for name in ("plan", "plan.journal"):
        shutil.copy(tmp_path / name, elsewhere / name)
    status, rows = shell.rows("apply", str(elsewhere / "plan"), "--execute", "--parallel", "8")
    assert status == 3
    outcomes = {row["group"]: row["outcome"] for row in rows}
    assert [row["group"] for row in rows] == made.groups, "in the order of the plan"
    assert {group for group, one in outcomes.items() if one == "skipped"} == made.broken.keys()
    assert sum(one == "was done before" for one in outcomes.values()) == 30
    assert sum(one == "done" for one in outcomes.values()) == 60
    assert all(good for _, good in made.moved())
    for group in made.groups:
        if group not in made.broken:
            assert made.client.get_children(f"/consumers/{group}/ids") == []
    journal = (elsewhere / "plan.journal").read_text().splitlines()
    runs = [json.loads(line.rpartition("\t")[0]).get("run") for line in journal]
    runs = [run for run in runs if run]
    assert [run["options"]["parallel"] for run in runs] == [4, 8]
    assert all("@" in run["by"] and run["cluster"] and run["version"] for run in runs)
    status, rows = shell.rows("status", str(elsewhere / "plan"))
    assert status == 3
    assert {row["group"] for row in rows if row["kind"] == "not-moved"} == made.broken.keys()
    assert not [row for row in rows if row["kind"] != "not-moved"]
