"""The herd in virtual time: counts, their sources, and what bulk reads must not change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer.errors import ConfigError
from zkconsumer.herd.parameters import EVENTS
from zkconsumer.herd.tally import Tally
from zkconsumer.journal import JournalWriter, read_journal
from zkconsumer.journal.recorder import Entry, run_entry
from zkconsumer.sim.members import bulk as bulk_module
from zkconsumer.sim.runs import herd
from zkconsumer.sim.runs.herd import Herd, ZooKeeperRun, simulate
from zkconsumer.sim.runs.herd_coordinator import CoordinatorRun, simulate_any

ON_BROKERS = ("coordinator", "consumer")
"""Profiles of the coordinator: the classic protocol, and KIP-848."""
PROFILES = ("scala", "default", *ON_BROKERS)

#: Figures that do not contain times.
COUNTS = (
    *("watches_fired", "requests", "reads", "writes", "changes", "bytes_out", "bytes_in"),
    *("attempts", "failed_attempts", "gave_up", "conflicts", "moved", "unowned_at_end"),
    *("by_kind", "by_member"),
)


def _counts(figures: Any) -> dict[str, object]:
    return {name: getattr(figures, name) for name in COUNTS}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("profile", ["scala", "default"])
def test_bulk_reading_changes_no_count(event: str, profile: str) -> None:
    """Runs that read in bulk and one by one give the same counts, by kind and by member, at small
    sizes.

    If servers take time, bulk reads share it evenly instead of one after the other. That may decide
    a race for a partition differently, so the counts of several runs are then only close.
    """
    sizes = ((5, 1), (17, 2), (40, 3))
    if event == "rolling-restart":
        sizes = ((5, 1), *((10, seed) for seed in range(2, 6)))
    operations, requests = Counter[bool](), Counter[bool]()
    for members, seed in sizes:
        herd = Herd(members, 2 * members + 1, 2, event=event, profile=profile, seed=seed)
        for service in ((0.0, 0.0), herd.service):
            asked = replace(herd, service=service)
            bulk, single = simulate(asked), simulate(replace(asked, bulk=False))
            assert bulk.notes != ["0 reads in bulk"]
            if service[0]:
                operations += Counter({True: bulk.operations, False: single.operations})
                requests += Counter({True: bulk.requests, False: single.requests})
            else:
                assert _counts(bulk) == _counts(single), (members, seed)
            if bulk.seconds_to_stable and single.seconds_to_stable:
                ratio = bulk.seconds_to_stable / single.seconds_to_stable
                assert 0.8 < ratio < 1.25, (members, seed, service)
    assert operations[False] == pytest.approx(operations[True], rel=0.03)
    assert requests[False] == pytest.approx(requests[True], rel=0.05)


@pytest.mark.parametrize("members", [50, 100, 200])
def test_a_bulk_reads_cost_is_computed_once_for_all_members(
    monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    """Every member reads every registration. The simulator measures each of these reads once, not
    once for each member: the time of a run would grow with the square of the group."""
    measured = 0
    real = bulk_module.cost

    def counted(op: Any, reply: Any) -> Any:
        nonlocal measured
        measured += 1
        return real(op, reply)

    monkeypatch.setattr(bulk_module, "cost", counted)
    run = simulate(Herd(members, members, event="join", profile="scala"))
    assert run.operations >= members**2
    assert measured <= 3 * members


@pytest.mark.parametrize("seed", range(6))
def test_a_change_in_the_middle_of_bulk_reads(seed: int) -> None:
    """Members that joined while others read continue one by one, with the same counts."""
    found = []
    for bulk in (True, False):
        run = ZooKeeperRun(Herd(30, 60, seed=seed, service=(0.0, 0.0), bulk=bulk))
        event = run._event

        def twice(run: ZooKeeperRun = run, event: Any = event) -> None:
            event()
            for number in (1, 2):
                run.kernel.schedule(0.011 * number, lambda n=number: run._start(30 + n))

        run._event = twice  # type: ignore[method-assign]
        found.append(run.perform())
    assert _counts(found[0]) == _counts(found[1])
    assert found[0].attempts > 40, "no member was disturbed"


@pytest.mark.parametrize("members", [2, 10, 50])
def test_members_that_start_in_one_instant_rebalance_once(members: int) -> None:
    """Each reads the group together with its registration, when only some have registered. What it
    reads then is not claimed: hardly a partition moves twice, and no registration is read twice."""
    run = ZooKeeperRun(Herd(members, 100, profile="default", bulk=False))
    run._prepare()
    run.zk.set_latency(run.herd.latency)
    run.zk.service = run.herd.service
    run._count()
    for number in range(members):
        run._start(number)
    run._rest()
    found = run._measures()
    assert found.unowned_at_end == found.conflicts == 0
    assert {len(spans) for spans in run.tally.ownership.spans.values()} == {1}
    assert sum(member.machine.attempts for member in run.members.values()) == members
    # Registration and lists; brokers and topic; owners, offsets and claims; the group.
    assert found.reads <= 2 * 100 + members**2 + 10 * members


def test_a_reconnection_of_all_members_reads_little() -> None:
    """Members have joined one after the other, so each has owned partitions that others own now.
    After a lost connection it looks at the owner znodes, all of them in one request, and reads
    no registration again and no offset."""
    members, partitions = 15, 150
    run = ZooKeeperRun(Herd(members, partitions, profile="default", bulk=False))
    run._prepare()
    for number in range(members):
        run.kernel.schedule(number, partial(run._start, number))
    run._rest()
    run._count()
    for member in run.members.values():
        member.client.disconnect(1.0)
    run._rest()
    found = run._measures()
    assert (found.attempts, found.moved, found.writes) == (members, 0, 0)
    # Names of members and of brokers; topic; brokers; owners.
    assert found.requests == 5 * members
    here = sum(len(member.machine._claimed_here) for member in run.members.values())
    assert here > 3 * partitions, "partitions have not moved"
    assert found.by_kind["read owners"]["reads"] == here
    assert found.reads == here + members * (1 + 1 + 1 + 3)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_journal_is_a_function_of_the_seed(profile: str, tmp_path: Path) -> None:
    """The same seed writes the same bytes; another seed writes others."""
    texts = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        with JournalWriter(tmp_path / name) as sink:
            sink.write(run_entry(0, "virtual", {}))
            simulate_any(Herd(12, 24, event="crash", seed=seed, profile=profile), sink)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("profile", "event"), list(product(PROFILES, EVENTS)))
def test_the_journal_tells_the_same_as_the_counters(
    profile: str, event: str, tmp_path: Path
) -> None:
    """Each line follows the schema, and the sums over the lines are the run's figures."""
    path = tmp_path / "j"
    kind = CoordinatorRun if profile in ON_BROKERS else ZooKeeperRun
    run: Any = kind(Herd(15, 40, event=event, profile=profile, seed=4))
    with JournalWriter(path) as sink:
        sink.write(run_entry(0, "virtual", {}))
        run._sink = sink
        figures = run.perform()
    tally = Tally(start=run.tally.start)
    for entry in read_journal(path):
        tally.entry(entry)
    total = tally.total
    for name in ("watches_fired", "requests", "reads", "writes", "changes", "bytes_out"):
        assert getattr(total, name) == getattr(figures, name), name
    for name in ("attempts", "failed_attempts", "conflicts", "bytes_in"):
        assert getattr(total, name) == getattr(figures, name), name
    assert figures.requests > 10
    ends = {tp: spans[-1].member for tp, spans in tally.ownership.spans.items()}
    assert ends == {tp: spans[-1].member for tp, spans in run.tally.ownership.spans.items()}
    moved = {tp: spans[-1].member for tp, spans in tally.ownership.spans.items()}
    assert moved == {tp: spans[-1].member for tp, spans in run.tally.ownership.spans.items()}


@pytest.mark.parametrize("profile", ["scala", "default"])
def test_the_journal_names_the_change_that_woke_the_members(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other member rebalances because of the one transaction that ended the registration. A
    server that does not name it changes nothing but these fields."""
    zk, gone = herd.FakeZk, list[int]()

    def journal(names_causes: bool) -> list[Entry]:
        entries: list[Entry] = []
        make = lambda *args, **more: zk(*args, **more | {"names_causes": names_causes})  # noqa: E731
        monkeypatch.setattr(herd, "FakeZk", make)
        run: Any = ZooKeeperRun(Herd(12, 24, event="leave", seed=3, profile=profile))
        run.zk.on_commit(
            lambda zxid, txn: gone.extend(
                zxid for change in txn.changes if change.after is None and "/ids/" in change.path
            )
        )
        run._sink = SimpleNamespace(write=entries.append)
        run.perform()
        return entries

    entries = journal(True)
    woken = [entry for entry in entries if entry.get("name") == "LoadView" and "zxid" in entry]
    assert len({entry["member"] for entry in woken}) == 11
    assert {entry["zxid"] for entry in woken} == set(gone)
    unnamed = [{name: v for name, v in entry.items() if name != "zxid"} for entry in entries]
    assert unnamed == journal(False)


def test_legacy_reads_grow_with_the_square_of_the_members() -> None:
    """One join: each of N + 1 members lists the group and reads N + 1 registrations."""
    reads = {
        n: simulate(Herd(n, 2 * n)).by_kind["read registrations"]["reads"] for n in (20, 40, 80)
    }
    for members, found in reads.items():
        # Listing, own registration read back, all registrations. Nothing else is read.
        assert found == (members + 1) * (members + 1 + 2)


def test_the_default_profile_moves_only_what_must_move() -> None:
    """After a join, partitions that stay with their member always have an owner."""
    for profile, most in (("default", 0.15), ("scala", 1.0)):
        found = simulate(Herd(20, 60, profile=profile))
        idle = sum(len(spans) > 1 for spans in found.timeline.values()) / len(found.timeline)
        assert idle <= most
        assert found.unowned_at_end == 0
        if profile == "scala":
            assert idle == 1.0


def test_bad_sizes_are_named() -> None:
    """The error names each wrong option and its permitted values."""
    with pytest.raises(ConfigError) as refused:
        simulate(Herd(1, 0, event="x", profile="y"))
    assert len(refused.value.faults) == 4


@pytest.mark.parametrize("profile", ["scala", "default"])
def test_a_broker_that_restarts_does_not_rebalance(profile: str) -> None:
    """While another broker is registered, a broker that restarts causes no attempt and moves
    nothing, in the JVM's behaviour as in ours. (Scala 1.1.1 watches brokers only while there are
    none.)"""
    found = simulate(Herd(6, 12, event="broker-bounce", profile=profile))
    assert found.attempts == 0
    assert found.writes == 0
