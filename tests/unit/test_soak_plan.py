"""The soak's plan follows from its seed. Its tables follow from the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import report
from tests.soak.faults import FAULTS, RESTARTS, STORM_FAULTS, STORM_SECONDS, Plan, named
from tests.soak.kinds import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_follows_from_the_seed(kind: str) -> None:
    """The same seed gives the same faults; another one gives others."""

    def drawn(seed: int) -> list[str]:
        plan = Plan(seed, kind, 8, 2)
        return [str(planned) for _ in range(3) for planned in [*plan.storm(), plan.alone()]]

    assert drawn(7) == drawn(7) != drawn(8)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_faults_come_up(kind: str) -> None:
    """Eleven storms, as in ten minutes, have all twelve kinds, or nine without ZooKeeper. Storms
    stay within their time and hit only our members."""
    plan = Plan(7, kind, 8, 2)
    faults = [planned for _ in range(11) for planned in plan.storm()]
    assert set(FAULTS) == set(report.FAULTS)
    servers = {"follower", "leader", "ensemble"}
    expected = set(FAULTS) if KINDS[kind].zookeeper else set(FAULTS) - servers
    assert {planned.kind for planned in faults} == expected
    assert len(faults) == 11 * STORM_FAULTS > 190
    assert all(0 <= planned.at <= STORM_SECONDS for planned in faults)
    assert {planned.target for planned in faults} == set(range(6))
    if KINDS[kind].member == "coordinator":
        silent = {planned.variant for planned in faults if planned.kind == "silence"}
        assert silent == {"broker answers", "broker requests", "broker both"}


def test_survivors_are_not_restarted() -> None:
    """When memory is watched, some members live from beginning to end."""
    plan = Plan(7, "zookeeper", 8, 0, survivors=2)
    faults = [plan.one() for _ in range(300)]
    assert min(planned.target for planned in faults if planned.kind in RESTARTS) == 2
    assert min(planned.target for planned in faults) == 0
    assert {planned.first for planned in faults} == {2}


RESULT = {
    "began": "2026-11-22T15:00",
    "mode": "soak",
    "rounds": None,
    "every": 0.0,
    "disturbed": 600.0,
    "settings": {
        "kind": "zookeeper", "seed": 14, "seconds": 600.0, "members": 8, "partitions": 64,
        "rate": 2000, "brokers": 2, "broken": "",
    },
    "counts": {"acknowledged": 1_200_000, "repeated": 12},
    "faults": {"kill": {"planned": 3, "delivered": 2}},
    "recovery": {"kill": {
        "all": [4.1, 4.9], "back": [0.0, 0.1], "producer": [0.0, 0.0], "hiccup": [0.0, 0.6],
        "sessions": [1, 1],
    }},
    "resources": {
        "rss": {"members": 2, "growth": 0.01, "median": 1 << 26, "highest": 1 << 26},
        "descriptors": {"members": 2, "growth": 0.0, "median": 11, "highest": 12},
        "threads": {"members": 2, "growth": None, "median": 11, "highest": 12},
        "watches": {"growth": 0.02, "median": 13, "highest": 16},
    },
    "violations": [{"rule": "lost", "text": "partition 3 offset 4"}],
    "violations_by_rule": {"lost": 2},
}  # fmt: skip


def test_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are shown with their figures and recovery, broken builds apart."""
    lines = report.page([RESULT])
    assert "| zookeeper | 1 | 0.2 | 1,200,000 | 2 of 3 | 12 | in 1 |" in lines
    what = report.FAULTS["kill"]
    assert f"| kill | {what} | 2 of 3 | 2 | 4.9 | 4.9 |" in lines
    assert "1.0% in memory (to 64 MiB), 0.0% in descriptors, 0.0% in threads and 2.0%" in lines[-1]
    broken = RESULT | {"settings": RESULT["settings"] | {"broken": "unfenced", "members": 4}}
    lines = report.page([broken])
    assert any(line.startswith("| zookeeper, broken build |") for line in lines)


def test_the_page_has_the_kept_results() -> None:
    """docs/explanation/evidence.md agrees with the kept results."""
    text = report.PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition(report.BEGIN)
    body, found, _ = rest.partition(report.END)
    assert found
    assert body.strip() == "\n".join(report.page(report.results())).strip()


def test_a_fault_that_does_not_exist_is_refused() -> None:
    """A misspelt name in ``--only`` would silently make a run with fewer faults."""
    assert named(["kill", "silence: one both"]) == {"kill", "silence: one both"}
    with pytest.raises(ValueError, match="'silence one: both': did you mean silence: one both"):
        named(["kill", "silence one: both"])
    for result in report.results():
        named(result.get("only") or ())
