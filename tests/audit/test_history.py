"""Logs of several servers become one history with every commit and no uncommitted transaction."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from zkaudit.decode.batches import read_log
from zkaudit.history import committed
from zkaudit.history.committed import History, Run, apply, plan, settled, subtracted

from tests.audit.cost import seconds

SEED = 20261121


def zxid(epoch: int, counter: int) -> int:
    """A zxid."""
    return epoch << 32 | counter


def read_runs(frame: DataFrame) -> list[Run]:
    """Rows of the source's table ``runs``."""
    return [Run(row.server, row.first_zxid, row.last_zxid) for row in frame.collect()]


def runs(**servers: list[tuple[int, int, int]]) -> list[Run]:
    """Runs as (epoch, first counter, last counter)."""
    return [
        Run(server, zxid(e, first), zxid(e, last))
        for server, ranges in servers.items()
        for e, first, last in ranges
    ]


def inside(ranges: Any) -> set[int]:
    """All zxids of some ranges."""
    return {z for first, last in ranges for z in range(first, last + 1)}


def taken(history: History) -> list[int]:
    """All zxids that are read, one entry for each time."""
    return [z for ranges in history.take.values() for r in ranges for z in inside([r])]


def test_a_killed_leaders_proposals_are_dropped() -> None:
    """Five proposals are in one log only, and two servers never had them. So they were not
    committed.

    This happened on a real ensemble whose leader was killed. The leader restarted from a snapshot,
    so its own log lacks the beginning of the next epoch.
    """
    made = plan(
        runs(
            a=[(1, 1, 0x9E), (2, 0x20, 0x40)],
            b=[(1, 1, 0x99), (2, 1, 0x40)],
            c=[(1, 1, 0x99), (2, 1, 0x40)],
        )
    )
    assert made.dropped == ((zxid(1, 0x9A), zxid(1, 0x9E)),)
    assert made.log_gaps == made.unconfirmed == ()
    assert len(taken(made)) == len(set(taken(made))) == 0x99 + 0x40


def test_what_no_majority_holds_is_unconfirmed() -> None:
    """One log of three servers does not prove that its last transactions were committed."""
    alone = [(1, 1, 50), (2, 1, 9)]
    assert plan(runs(a=alone), ensemble=3).unconfirmed == ((zxid(2, 1), zxid(2, 9)),)
    behind = plan(runs(a=[(1, 1, 50)], b=[(1, 1, 40)], c=[(1, 1, 30)]))
    assert behind.unconfirmed == ((zxid(1, 41), zxid(1, 50)),)


def test_the_log_of_one_server_of_an_ensemble_leaves_the_last_proposals_in_doubt() -> None:
    """Epochs from 1 on have a leader, so there are other servers. A leader has few proposals open,
    and what a server still has when it continues with the next epoch was committed. If the plan
    states that there is one server, or if there is no leader, every transaction was committed."""
    one = runs(a=[(1, 1, 50), (2, 1, 9)])
    assert plan(one).unconfirmed == ((zxid(2, 1), zxid(2, 9)),)
    long = runs(a=[(1, 1, 9_000), (2, 5, 10_000)])
    assert plan(long).unconfirmed == (
        (zxid(1, 7_001), zxid(1, 9_000)),
        (zxid(2, 8_001), zxid(2, 10_000)),
    )
    every = {z for run in one for z in range(run.first, run.last + 1)}
    assert inside(plan(one, open_proposals=None).unconfirmed) == inside([(zxid(2, 1), zxid(2, 9))])
    assert every > inside(plan(one).unconfirmed)
    assert inside(plan(one, 1).unconfirmed) == set()
    assert inside(plan(runs(a=[(0, 1, 50)])).unconfirmed) == set()
    assert plan(one).dropped == ()


def test_one_witness_of_three_servers_drops_nothing() -> None:
    """The server whose log is missing may have the transactions that the witness lacks, which makes
    a majority."""
    made = plan(runs(a=[(1, 1, 50)], b=[(1, 1, 40), (2, 1, 9)]), ensemble=3)
    assert made.dropped == ()
    assert made.unconfirmed == ((zxid(1, 41), zxid(1, 50)), (zxid(2, 1), zxid(2, 9)))


def test_a_contradiction_stands_until_something_shows_otherwise() -> None:
    """A server that continued with the next epoch lacks the last proposals of the previous one. If
    no later transaction shows whether they were committed, they are left out."""
    made = plan(runs(a=[(1, 1, 50)], b=[(1, 1, 40), (2, 1, 9)]), ensemble=3)
    assert made.contradicted == ((zxid(1, 41), zxid(1, 50)),)
    assert settled(made).dropped == ((zxid(1, 41), zxid(1, 50)),)
    assert settled(made).unconfirmed == ((zxid(2, 1), zxid(2, 9)),)
    assert not set(taken(settled(made))) & inside(made.contradicted)
    kept = settled(made, proven={1: zxid(1, 45)})
    assert kept.dropped == ((zxid(1, 46), zxid(1, 50)),)
    known = settled(made, {2: zxid(2, 5)}, {1: zxid(1, 50), 2: zxid(2, 2)})
    assert known.dropped == ((zxid(2, 5), zxid(2, 9)),)
    assert known.unconfirmed == ((zxid(2, 3), zxid(2, 4)),)


def test_observers_that_lagged_drop_nothing() -> None:
    """Two observers were brought up to date by a snapshot. They do not vote, and the voter
    continued with what they lack."""
    lagged = [(1, 1, 400), (2, 1, 9)]
    made = plan(runs(v=[(1, 1, 1000), (2, 1, 9)], o=lagged, p=lagged), ensemble=3)
    assert made.dropped == made.contradicted == ()
    assert made.unconfirmed == ((zxid(1, 401), zxid(1, 1000)),)


def test_a_follower_that_lagged_is_no_witness_against_a_majority() -> None:
    """A follower that was brought up to date without log entries also starts the next epoch. Other
    servers have the transactions that it lacks."""
    made = plan(runs(a=[(1, 1, 99)], b=[(1, 1, 90), (2, 1, 9)], c=[(1, 1, 50), (2, 1, 9)]))
    assert made.dropped == ((zxid(1, 91), zxid(1, 99)),)
    assert made.unconfirmed == ()


def test_a_server_whose_next_epoch_begins_late_is_no_witness() -> None:
    """The log lacks the beginning of that epoch. The missing transactions may have included the
    rest of the previous epoch."""
    made = plan(runs(a=[(1, 1, 5)], b=[(1, 1, 3), (2, 4, 6)]), ensemble=2)
    assert made.dropped == ()
    assert made.unconfirmed == ((zxid(1, 4), zxid(1, 5)), (zxid(2, 4), zxid(2, 6)))


def test_what_a_majority_logged_is_not_dropped() -> None:
    """The logs may include those of observers, so there may be more logs than voting servers."""
    made = plan(runs(a=[(1, 1, 5)], b=[(1, 1, 3), (2, 1, 6)]), ensemble=1)
    assert made.dropped == ()


def test_what_a_server_went_on_from_is_not_dropped() -> None:
    """Two of three servers have logs, and one of them lagged. The other server kept the rest of the
    older epoch and continued from it. So the third server may have had these transactions too."""
    lagged = [(1, 1, 50), (2, 1, 9)]
    made = plan(runs(a=[(1, 1, 99), (2, 1, 9)], b=lagged))
    assert made.dropped == ()
    assert made.unconfirmed == ((zxid(1, 51), zxid(1, 99)),)
    alone = runs(a=[(1, 1, 99)], b=lagged)
    assert plan(alone).dropped == ((zxid(1, 51), zxid(1, 99)),)
    assert plan(alone, ensemble=3).dropped == ()


def test_log_gaps_are_named() -> None:
    """Missing zxids within an epoch or at its beginning are named. Purged logs at the front are not
    a log gap."""
    made = plan(runs(a=[(3, 10, 20), (3, 31, 40), (5, 4, 9)], b=[(3, 15, 25)]), ensemble=1)
    assert made.log_gaps == ((zxid(3, 26), zxid(3, 30)), (zxid(5, 1), zxid(5, 3)))
    assert sorted(taken(made)) == sorted(inside([(zxid(3, 10), zxid(3, 25))])
        | inside([(zxid(3, 31), zxid(3, 40)), (zxid(5, 4), zxid(5, 9))]))  # fmt: skip


def test_random_ensembles() -> None:
    """In 500 random ensembles no committed transaction is dropped and no uncommitted one is
    confirmed.

    Each epoch has a leader and a majority that follows it. The epoch's commits reach a majority,
    and its last proposals reach fewer servers. A server that was away joins a later epoch without
    log entries, and keeps proposals that were never committed.
    """
    found = 0
    for attempt in range(500):
        rng = random.Random(SEED + attempt)
        servers = rng.choice([1, 3, 5])
        logs: dict[int, set[int]] = {s: set() for s in range(servers)}
        committed: set[int] = set()
        false: set[int] = set()
        complete = set(range(servers))  # those whose state has all commits
        for epoch in range(1, rng.randrange(2, 5)):
            majority = servers // 2 + 1
            leader = rng.choice(sorted(complete))
            others = [s for s in range(servers) if s != leader]
            rng.shuffle(others)
            members = [leader, *others[: rng.randrange(majority - 1, servers)]]
            commits = rng.randrange(0, 12)
            acked = [leader, *rng.sample(members[1:], majority - 1)]
            more = rng.randrange(4) if servers > 1 and majority > 1 else 0
            for number in range(1, commits + more + 1):
                if number <= commits:
                    holders = members if rng.random() < 0.8 else acked
                    committed.add(zxid(epoch, number))
                else:
                    holders = [leader]  # killed before any follower logged it
                    false.add(zxid(epoch, number))
                for server in holders:
                    # A follower's log has gaps only at the end of an epoch.
                    if server in acked or all(
                        zxid(epoch, n) in logs[server] for n in range(1, number)
                    ):
                        logs[server].add(zxid(epoch, number))
            if commits:
                complete = set(acked)
            if more:
                complete.discard(leader)
                complete = complete or set(acked) - {leader}
        made = plan((Run(str(s), z, z) for s, held in logs.items() for z in held), ensemble=servers)
        told = taken(made)
        assert len(told) == len(set(told)), attempt
        dropped, unsure = inside(made.dropped), inside(made.unconfirmed)
        assert not dropped & committed, attempt
        assert committed & set().union(*logs.values()) <= set(told), attempt
        assert false & set(told) <= unsure, attempt
        found += len(dropped)
    assert found > 50  # others are in doubt, because their server continued from them


def test_a_log_that_grows_changes_nothing_of_what_it_had() -> None:
    """A round of a stream audits what is new. So no other transaction may be read from another
    server than before. What became sure or unsure meanwhile is found from the ranges."""
    for attempt in range(500):
        rng = random.Random(SEED + attempt)
        before = []
        for server in "abc":
            at = zxid(1, 1)
            for _ in range(rng.randrange(4)):
                first = at + rng.randrange(4)
                at = first + rng.randrange(2, 9)
                before.append(Run(server, first, at - 1))
        ends = {run.server: run.last for run in before}
        grown = [server for server in "abc" if server in ends and rng.random() < 0.6]
        new = [Run(s, ends[s] + 1, ends[s] + rng.randrange(1, 20)) for s in grown]
        old, now = plan(before), plan(before + new)
        news = inside((run.first, run.last) for run in new)
        servers = [
            {z: server for server, ranges in made.take.items() for z in inside(ranges)}
            for made in (old, now)
        ]
        for z, server in servers[0].items():
            assert z in news or servers[1].get(z) == server, f"seed {SEED + attempt}"
        unsure = inside(old.unconfirmed) ^ inside(now.unconfirmed)
        changed = subtracted(old.unconfirmed, now.unconfirmed)
        changed += subtracted(now.unconfirmed, old.unconfirmed)
        assert inside(changed) == unsure, f"seed {SEED + attempt}"


def test_spark_reads_each_transaction_once(
    spark: SparkSession, recordings: Any, tmp_path: Path
) -> None:
    """If two servers have overlapping parts of one history, every row is read once. A lost log is a
    log gap."""
    logs = recordings("3.9.3").logs
    for server, part in (("a", logs[:2]), ("b", logs[1:])):
        (tmp_path / server).mkdir()
        for log in part:
            shutil.copy(log, tmp_path / server)
    path = f"a={tmp_path / 'a'},b={tmp_path / 'b'}"
    source = spark.read.format("zookeeper_txnlog")
    made = plan(read_runs(source.option("table", "runs").load(path)))
    source = spark.read.format("zookeeper_txnlog").option("columns", "server,zxid,idx,time")
    rows = apply(source.load(path), made).select("zxid", "idx", "confirmed").collect()
    expected = [(r["zxid"], r["idx"]) for log in logs for b in read_log(log) for r in b.to_pylist()]
    assert sorted((row.zxid, row.idx) for row in rows) == sorted(expected)
    assert made.log_gaps == made.dropped == ()
    both = {z for b in read_log(logs[1]) for z in b["zxid"].to_pylist()}
    assert {row.zxid for row in rows if row.confirmed} >= both
    for server in ("a", "b"):
        (tmp_path / server / logs[1].name).unlink()
    source = spark.read.format("zookeeper_txnlog").option("table", "runs")
    assert plan(read_runs(source.load(path))).log_gaps == ((min(both), max(both)),)


@pytest.mark.parametrize("epochs", [10, 1_500])
def test_spark_takes_what_the_plan_says(spark: SparkSession, epochs: int) -> None:
    """With many epochs and log gaps, each zxid is read once, and the uncertain ones are marked."""
    made = plan(
        runs(
            a=[(e, 1, 4) for e in range(1, epochs)] + [(epochs, 0xFFFE, 0x20001)],
            b=[(e, 3, 6) for e in range(1, epochs, 2)] + [(epochs, 0x10005, 0x10006)],
        ),
        ensemble=3,
    )
    held = [
        (server, zxid(e, n))
        for server, first in (("a", 1), ("b", 3))
        for e in range(1, epochs)
        for n in range(first, first + 4)
    ]
    last = (0xFFFE, 0xFFFF, 0x10000, 0x10004, 0x10005, 0x10006, 0x10007, 0x1FFFF, 0x20000, 0x20001)
    held += [(server, zxid(epochs, n)) for server in "ab" for n in (1, *last, 0x20002)]
    assert made.unconfirmed
    rows = apply(spark.createDataFrame(held, "server string, zxid long"), made).collect()
    unsure, every = inside(made.unconfirmed), set(taken(made))
    assert sorted((row.zxid, row.confirmed) for row in rows) == sorted(
        (z, z not in unsure) for z in every & {z for _, z in held}
    )


def test_many_ranges_take_what_few_take(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both forms of the filter keep the same rows, also where a range ends or begins with a piece.
    Ranges end at each zxid around two multiples of the size of a piece, far from one another."""
    size = 1 << 4
    monkeypatch.setattr(committed, "_PIECE", 4)
    cases = [
        (begin, end)
        for end in range(size - 1, 2 * size + 2)
        for begin in (1, size, end)
        if begin <= end
    ]
    ranges = tuple(
        (4 * size * n + begin, 4 * size * n + end) for n, (begin, end) in enumerate(cases)
    )
    made = History({"a": ranges}, (), (), tuple((end, end) for _, end in ranges))
    held = [("a", zxid) for zxid in range(4 * size * len(cases))]
    frame = spark.createDataFrame(held, "server string, zxid long")
    expected = [(zxid, zxid != last) for first, last in ranges for zxid in range(first, last + 1)]
    for limit in (1_000, 0):
        monkeypatch.setattr(committed, "MAX_TESTS", limit)
        rows = apply(frame, made).collect()
        assert sorted((row.zxid, row.confirmed) for row in rows) == expected, limit


def test_a_plan_costs_what_the_log_gaps_cost() -> None:
    """With ten thousand log gaps of two servers, the work grows with their number, not with its
    square."""

    def planned(count: int) -> None:
        made = runs(
            a=[(1, n * 10, n * 10 + 5) for n in range(1, count)],
            b=[(1, n * 10 + 3, n * 10 + 6) for n in range(1, count)],
        )
        assert len(plan(made).log_gaps) == count - 2

    few = seconds(lambda: planned(1_000))
    assert seconds(lambda: planned(10_000)) < 40 * few  # the square would be 100 times


@pytest.mark.parametrize("ensemble", [None, 3])
def test_a_plan_costs_what_the_epochs_cost(ensemble: int | None) -> None:
    """With many epochs, each with proposals of a killed leader, the work grows with their number,
    not with its square."""

    def planned(count: int) -> None:
        ends = ((9, 6, 6), (6, 9, 6), (6, 6, 9))
        made = runs(
            **{
                server: [(epoch, 1, ends[epoch % 3][place]) for epoch in range(1, count)]
                for place, server in enumerate("abc")
            }
        )
        history = plan(made, ensemble)
        assert len(history.unconfirmed) >= count - 2

    few = seconds(lambda: planned(500))
    assert seconds(lambda: planned(2_000)) < 9 * few  # the square would be 16 times


@pytest.mark.parametrize("ensemble", [None, 3])
def test_no_logs_are_an_empty_history(ensemble: int | None) -> None:
    """Without logs the history is empty."""
    assert plan([], ensemble) == History({}, (), (), ())
