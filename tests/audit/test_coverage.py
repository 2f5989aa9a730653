"""What the logs cover, on which servers, and where they are damaged or contradict each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zkaudit.cli import run
from zkaudit.commands.summary import print_summary, status_of
from zkaudit.decode.batches import cuts, read_log
from zkaudit.decode.txnlog import FILE_HEADER
from zkaudit.errors import AuditError
from zkaudit.history import committed
from zkaudit.job import coverage
from zkaudit.job.coverage import LoggedRun, as_runs, check_agreement, check_damage, damages
from zkaudit.report.verdict import Count, verdict
from zkaudit.sources.options import parse_options
from zkaudit.sources.rows import LONGEST, in_sample, sample_of
from zkaudit.sources.zookeeper import BatchLogReader

from tests.audit.histories import History
from tests.audit.test_given_files import RECORD, damaged, written
from tests.audit.written import write_log

EPOCH = 1 << 32


def runs(places: Sequence[Path], size: int | None = None) -> list[LoggedRun]:
    """What an audit reads of the logs of these servers, each in tasks of ``size`` bytes."""
    options = {"paths": json.dumps([str(place) for place in places]), "table": "runs"}
    options |= {"corruption": "stop"} | ({} if size is None else {"bytesPerTask": str(size)})
    reader = BatchLogReader(parse_options("zookeeper_txnlog", options))
    found = []
    for task in reader.partitions():
        for row in (row for batch in reader.read(task) for row in batch.to_pylist()):
            clocks = [row[name] and round(row[name].timestamp() * 1000)
                      for name in ("first_time", "last_time")]  # fmt: skip
            found.append(
                LoggedRun(Path(row["server"]).name, row["file"], row["first_zxid"],
                          row["last_zxid"], *clocks, row["times"] or (), row["damage"], row["cut"],
                          row["large"])
            )  # fmt: skip
    return found


def of(logged: Sequence[LoggedRun], *asked: int | None) -> coverage.Coverage:
    """What they cover together."""
    plan = committed.plan(as_runs(logged))
    found = damages(logged)
    plan = coverage.with_gaps(plan, found)
    start, end = asked or (None, None)
    servers = {run.server for run in logged}
    return coverage.covered(logged, servers, committed.log_gaps_of(plan), start, end, found)


def summary_of(found: coverage.Coverage, **more: Any) -> dict[str, Any]:
    """The parts of a summary that the first line is made of."""
    last = None if found.last_ms is None else coverage.moment_of(found.last_ms)
    return {
        "from": None, "to": None, "last_time": last and last.isoformat(), "findings": [],
        "intervals": 0, "commits": 0, "log_gaps": [], "group": None,
        "unconfirmed": [], "dropped": [], "torn_snapshots": [], "journals": 0,
        **found.summary(), **more,
    }  # fmt: skip


def test_the_first_line_says_what_was_asked_and_what_is_covered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the terminal and of the verdict: the range that was asked for, that of the logs, and the
    servers that have only a part of it."""
    written(tmp_path / "zk1" / "log.1", 1, 60)
    written(tmp_path / "zk2" / "log.1", 1, 60)
    written(tmp_path / "zk3" / "log.1", 1, 50)
    written(tmp_path / "zk4" / "log.14", 20, 41)
    found = of(runs([tmp_path / f"zk{number}" for number in (1, 2, 3, 4)]), 0, 90_000)
    line = (
        "Asked: 1970-01-01 00:00:00 to 1970-01-01 00:01:30. Covered: 1970-01-01 00:00:01 to "
        "1970-01-01 00:01:00 UTC, by zk1, zk2 (zk3 only until 1970-01-01 00:00:50, zk4 only from "
        "1970-01-01 00:00:20)."
    )
    asked = {"from": "1970-01-01 02:00:00+02:00", "to": "1970-01-01 00:01:30"}
    summary = summary_of(found, **asked)
    assert verdict([], summary)[0]["text"] == line
    print_summary(summary)
    assert capsys.readouterr().out.splitlines()[0] == line
    alone = summary_of(of(runs([tmp_path / "zk3", tmp_path / "zk4"])))
    assert verdict([], alone)[0]["text"].startswith(
        "Covered: 1970-01-01 00:00:01 to 1970-01-01 00:01:00 UTC, by no server alone (zk3 only "
        "until 1970-01-01 00:00:50, zk4 only from"
    )
    nothing = coverage.covered(runs([tmp_path / "zk1"]), ["zk1", "zk5"], [], None, None)
    assert verdict([], summary_of(nothing))[0]["text"].endswith("by zk1 (zk5 has no transaction).")


@pytest.mark.parametrize(
    ("first", "asked", "missing"),
    [
        (1, (None, None), []),
        (1, (0, None), []),  # the history begins with the first transaction
        (20, (None, None), []),  # the logs begin late, and nothing earlier was asked for
        (20, (20_000, 60_000), []),
        (20, (19_999, None), [(19_999, 20_000)]),
        (20, (None, 60_001), [(60_000, 60_001)]),
        (20, (5_000, 99_000), [(5_000, 20_000), (60_000, 99_000)]),
    ],
)
def test_time_that_was_asked_for_and_is_not_covered(
    tmp_path: Path,
    first: int,
    asked: tuple[int | None, int | None],
    missing: list[tuple[int, int]],
) -> None:
    """The logs end before ``--to``, or begin after ``--from``: purged, or copied early."""
    written(tmp_path / "zk1" / f"log.{first:x}", first, 61 - first)
    found = of(runs([tmp_path / "zk1"]), *asked)
    assert [part[:2] for part in found.missing] == missing


def test_a_gap_in_the_logs_is_time_that_is_not_covered(tmp_path: Path) -> None:
    """Unless it is outside of the range that was asked for."""
    written(tmp_path / "zk1" / "log.1", 1, 20)
    written(tmp_path / "zk1" / "log.1f", 31, 30)
    logged = runs([tmp_path / "zk1"])
    ((*times, reason),) = of(logged).missing
    assert (times, reason) == ([20_000, 31_000], "no log has zxids 0x15 to 0x1e")
    assert of(logged, 1_000, 20_000).missing == ()
    assert of(logged, 31_001, 60_000).missing == ()
    assert len(of(logged, 25_000, 26_000).missing) == 1


def test_what_is_not_covered_fails_whatever_the_severity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It may hide a finding of any severity. The verdict does not call such a history clean."""
    row = {"severity": "high", "kind": "not covered", "count": 2}
    for severity in ("critical", "high", "info"):
        assert status_of({"findings": [row]}, severity) == 3
    assert status_of({"findings": [row]}, None) == 0
    assert status_of({"findings": [{**row, "kind": "rebalance storm"}]}, "critical") == 0
    nothing = summary_of(coverage.Coverage(None, None, {}, (), ()))
    count = Count("high", "not covered", None, 2, 0, 0, 2, True)
    lines = verdict([count], nothing)
    assert [(line["severity"], line["kind"]) for line in lines] == [
        ("high", "not covered"), (None, None), (None, None),
    ]  # fmt: skip
    assert lines[0]["text"].startswith("No log covers 2 times that the audit is about")
    assert lines[1]["text"] == "No rule found anything wrong in what the logs cover."
    print_summary({**nothing, "dropped": [[5, 9], [20, 20]]})
    printed = capsys.readouterr().out
    assert "6 transactions were rolled back when a leader changed, and are left out" in printed


@pytest.mark.parametrize("size", [None, 300])
def test_damage_is_a_gap_of_one_server(tmp_path: Path, size: int | None) -> None:
    """From the damaged byte to the server's next log. If another server has these transactions,
    nothing is missing. A long log is read in parts, and not beyond the damage."""
    for server in ("zk1", "zk2"):
        written(tmp_path / server / "log.1", 1, 40)
        written(tmp_path / server / "log.29", 41, 40)
    position = damaged(tmp_path / "zk2" / "log.1", 9)
    logged = runs([tmp_path / "zk2"], size)
    assert sorted(
        (run.file, run.first, run.last) for run in logged if run.file == "log.29"
    )[0][1] == 41  # fmt: skip
    assert max(run.last or 0 for run in logged if run.file == "log.1") == 9
    both = runs([tmp_path / "zk1", tmp_path / "zk2"], size)
    (found,) = damages(both)
    assert (found.server, found.file, found.after, found.until) == ("zk2", "log.1", 9, 41)
    assert found.reason.startswith(f"byte {position}: checksum")
    assert found.lost is None
    check_damage([found])
    assert of(both).missing == ()
    (alone,) = damages(logged)
    assert alone.lost == (10, 40)
    with pytest.raises(AuditError, match=rf"zk2: log\.1: byte {position}: .*--allow-damage"):
        check_damage([alone])
    ((begin, end, _),) = of(logged).missing
    assert (begin, end) == (9_000, 41_000)


@pytest.mark.parametrize("record", [0, 39])
def test_damage_at_the_ends_of_logs(tmp_path: Path, record: int) -> None:
    """The first record of a log, the last one of an epoch, and the newest log: what follows is no
    gap of the zxids."""
    one, two = tmp_path / "zk1", tmp_path / "zk2"
    for place in (one, two):
        written(place / f"log.{EPOCH + 1:x}", EPOCH + 1, 40)
        written(place / f"log.{2 * EPOCH + 1:x}", 2 * EPOCH + 1, 5)
    damaged(one / f"log.{EPOCH + 1:x}", record)
    for places, lost in (
        ([one], (EPOCH + record + 1, 2 * EPOCH)), ([one, two], None)
    ):  # fmt: skip
        logged = runs(places)
        (found,) = damages(logged)
        assert found.lost == lost
    logged = runs([one])
    plan = coverage.with_gaps(committed.plan(as_runs(logged)), damages(logged))
    assert (EPOCH + record + 1, 2 * EPOCH) in plan.log_gaps
    newest = two / f"log.{2 * EPOCH + 1:x}"
    damaged(newest, 3)
    logged = runs([two])
    (found,) = damages(logged)
    assert found.until is None
    assert found.lost is not None
    ((_, end, reason),) = of(logged).missing
    assert end is None
    assert "checksum" in reason
    longer = runs([one, two])
    newer = [found for found in damages(longer)
             if found.file == newest.name]  # fmt: skip
    assert [found.lost for found in newer] == [None]


def test_what_damage_hides_contradicts_no_other_log(tmp_path: Path) -> None:
    """A damaged log does not show that its server lacked the transactions of another one."""
    one, two = tmp_path / "zk1", tmp_path / "zk2"
    for place in (one, two):
        written(place / f"log.{EPOCH + 1:x}", EPOCH + 1, 40)
    written(one / f"log.{2 * EPOCH + 1:x}", 2 * EPOCH + 1, 5)
    damaged(one / f"log.{EPOCH + 1:x}", 9)
    logged = runs([one, two])
    plan = committed.plan(as_runs(logged), 3)
    assert plan.contradicted == ((EPOCH + 10, EPOCH + 40),)
    plan = committed.settled(coverage.with_gaps(plan, damages(logged)))
    assert not plan.dropped
    assert (EPOCH + 10, EPOCH + 40) in plan.unconfirmed


def test_a_record_that_is_cut_off_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of the newest log: the server is writing it, or the copy ended early. A server
    that was killed while it wrote has the record again in its next log."""
    log = written(tmp_path / "zk1" / "log.1", 1, 40)
    log.write_bytes(log.read_bytes()[:-5])
    found = of(runs([tmp_path / "zk1"]))
    ((text),) = found.cut
    assert text.startswith(f"zk1: log.1: byte {16 + 39 * RECORD}: ")
    print_summary(summary_of(found))
    assert f"{text}: the server is writing this log, or" in capsys.readouterr().out
    written(tmp_path / "zk1" / "log.28", 40, 5)
    assert of(runs([tmp_path / "zk1"])).cut == ()
    written(tmp_path / "zk1" / "log.28", 41, 5).rename(tmp_path / "zk1" / "log.29")
    behind = of(runs([tmp_path / "zk1"]))
    assert (behind.cut, len(behind.missing)) == ((text,), 1)


@pytest.mark.parametrize("content", [b"", b"ZKLG", FILE_HEADER[:9], FILE_HEADER + bytes(64)])
def test_a_log_without_a_transaction(tmp_path: Path, content: bytes) -> None:
    """The disk was full when a server began a log (ZOOKEEPER-2332). That is no damage, unless a
    later log lacks the transactions in between."""
    written(tmp_path / "zk1" / "log.1", 1, 40)
    (tmp_path / "zk1" / "log.29").write_bytes(content)
    written(tmp_path / "zk2" / "log.1", 1, 40)
    for first, missing in ((None, 0), (41, 0), (45, 1)):
        if first is not None:
            written(tmp_path / "zk1" / f"log.{first + 1:x}", first, 5)
        logged = runs([tmp_path / "zk1"])
        assert damages(logged) == []
        assert len(of(logged).missing) == missing
        (tmp_path / "zk1" / "log.2a").unlink(missing_ok=True)


def test_a_record_that_a_server_may_not_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ZooKeeper writes a record of any length, such as a multi, and refuses to read one that is
    longer than ``jute.maxbuffer``. The audit reads it (ZOOKEEPER-4843)."""
    h = History()
    h.join("g", "a", 5)
    h.add("setData", 5, "/x", data=bytes(LONGEST - 60), version=1)
    h.add("setData", 5, "/x", data=bytes(LONGEST), version=2)
    h.leave("g", "a", 5)
    log = write_log(tmp_path / "zk1", h.rows)
    at = [row["position"] for batch in read_log(log) for row in batch.to_pylist()][-2]
    text = f"zk1: log.1: byte {at}: a record of {LONGEST + 46:,} bytes"
    found = of(runs([tmp_path / "zk1"]))
    assert found.large == (text,)
    print_summary(summary_of(found))
    assert f"warning: {text}: a server may not start" in capsys.readouterr().err
    assert run(["log", "g", "--zookeeper-logs", f"zk1={tmp_path / 'zk1'}"]) == 0
    assert f"{text}: a server may not start from this log" in capsys.readouterr().out
    write_log(tmp_path / "zk2", [*h.rows[:-2], h.rows[-1] | {"zxid": h.rows[-2]["zxid"]}])
    assert of(runs([tmp_path / "zk2"])).large == ()


def test_logs_of_zookeepers_own_test_with_one_wrong_checksum(tmp_path: Path) -> None:
    """As in ZooKeeper's ``invalidsnap``: four logs of one server, one record is damaged. All others
    are read."""
    begins = (0x1, 0x42, 0x274, 0x63B, 0x841)
    for first, following in pairwise(begins):
        written(tmp_path / "zk" / f"log.{first:x}", first, following - first)
    damaged(tmp_path / "zk" / "log.42", 0x100 - 0x42)
    logged = runs([tmp_path / "zk"])
    assert sorted((run.first, run.last) for run in logged) == [
        (0x1, 0x41), (0x42, 0xFF), (0x274, 0x63A), (0x63B, 0x840),
    ]  # fmt: skip
    (found,) = damages(logged)
    assert found.lost == (0x100, 0x273)


def test_damage_before_the_first_transaction_that_is_read(tmp_path: Path) -> None:
    """With ``--from``, the audit reads the logs from a snapshot on. A record before it is damaged,
    so what follows the snapshot is missing up to the next log."""
    for server in ("zk1", "zk2"):
        written(tmp_path / server / "log.1", 1, 40)
        written(tmp_path / server / "log.29", 41, 40)
    damaged(tmp_path / "zk2" / "log.1", 9)
    for places, begin, lost in (
        (["zk2"], 21, (21, 40)), (["zk1", "zk2"], 21, None), (["zk2"], 41, None)
    ):  # fmt: skip
        logged = [
            replace(run, first=None, last=None) if (run.last or 0) < begin
            else replace(run, first=max(run.first or 0, begin))
            for run in runs([tmp_path / place for place in places])
        ]  # fmt: skip
        (found,) = damages(logged, begin)
        assert found.lost == lost
        plan = coverage.with_gaps(committed.plan(as_runs(logged)), [found])
        gaps = committed.log_gaps_of(plan)
        covered = coverage.covered(logged, ["zk2"], gaps, 60_000, None, [found])
        assert len(covered.missing) == (lost is not None)


def test_no_long_log_is_cut_behind_damage(tmp_path: Path) -> None:
    """Lengths there may be a znode's data."""
    log = written(tmp_path / "log.1", 1, 40)
    assert max(cuts(log, 200)) > 16 + 30 * RECORD
    position = damaged(log, 9)
    assert max(cuts(log, 200)) < position


def test_servers_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    """Logs of two ensembles, or of one before and after a restore, are not one history."""
    written(tmp_path / "zk1" / "log.1", 1, 100)
    shutil.copytree(tmp_path / "zk1", tmp_path / "zk2")
    written(tmp_path / "zk3" / "log.5", 5, 60)
    check_agreement(runs([tmp_path / f"zk{number}" for number in (1, 2, 3)]))
    check_agreement([])
    written(tmp_path / "zk3" / "log.5", 5, 60, later=1)
    with pytest.raises(
        AuditError,
        match=r"zk1: log\.1 and zk3: log\.5 have different transactions with zxid 0x10: they are",
    ):
        check_agreement(runs([tmp_path / "zk1", tmp_path / "zk3"]))


@pytest.mark.parametrize("epoch", [0, 5 * EPOCH])
@pytest.mark.parametrize(
    ("first", "last"), [(1, 40), (17, 31), (900, 3000), (2000, 5000), (1, 5000)]
)
def test_a_run_has_the_times_of_its_sample(epoch: int, first: int, last: int) -> None:
    """In order, whatever the run begins with. Each 256 transactions have one."""
    zxids = np.arange(epoch + first, epoch + last + 1)
    found = sample_of(epoch + first, epoch + last)
    assert found.tolist() == zxids[in_sample(zxids)].tolist()
    assert len(found) >= (last - first) // 256


def test_a_server_that_logged_a_zxid_twice(tmp_path: Path) -> None:
    """Two of its logs overlap: the audit then counts each transaction once."""
    written(tmp_path / "zk1" / "log.1", 1, 40)
    written(tmp_path / "zk1" / "log.29", 41, 40)
    assert not coverage.logged_twice(runs([tmp_path / "zk1"]))
    written(tmp_path / "zk1" / "log.27", 39, 2)
    assert coverage.logged_twice(runs([tmp_path / "zk1"]))
