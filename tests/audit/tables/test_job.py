"""Audits of a log that a real ZooKeeper wrote, from its directory to the tables and the report."""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession
from zkaudit.cli import run
from zkaudit.collect import Kept, collect
from zkaudit.commands.summary import print_summary, status_of
from zkaudit.decode.txnlog import read_transactions
from zkaudit.errors import AuditError, InputMissingError
from zkaudit.job import audit as job, inputs
from zkaudit.job.output import kept, load
from zkaudit.job.place import finished, new_tables, prepare, publish
from zkaudit.job.spark import check_group, errors_named
from zkaudit.report import page as report
from zkaudit.schema import RUN
from zkaudit.sources import selection
from zkaudit.sources.rows import rows_of
from zkaudit.sources.selection import find
from zkaudit.tables import journals
from zkaudit.tables.catalog import SCHEMA_VERSION
from zkaudit.text import names_of, regex_of

from zkconsumer.servers import LocalZooKeeper

pytestmark = pytest.mark.timeout(600)  # Spark compiles long on a busy machine
HOSTILE = "<img src=x onerror=alert(1)>&'\"{{data}}"
SAYS = "\x1b[31m</script><script>document.title='owned'</script>\u202e"
FINISHED = json.dumps({"findings": [], "schema_version": SCHEMA_VERSION})
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server. A zombie committed after another member had claimed the
    partition."""
    folder = tmp_path_factory.mktemp("zk")
    with LocalZooKeeper(dir=folder) as server:
        member, zombie = KazooClient(server.zookeeper), KazooClient(server.zookeeper)
        for client in (member, zombie):
            client.start(timeout=15)
        try:
            ids, owner, offset = (
                f"/consumers/g/{tail}" for tail in ("ids/g_a", "owners/t/0", "offsets/t/0")
            )
            member.create(ids, REGISTRATION, ephemeral=True, makepath=True)
            member.create(offset, b"5", makepath=True)
            member.ensure_path("/consumers/g/owners/t")
            claim = member.transaction()
            claim.create(owner, b"g_a-0", ephemeral=True)
            claim.set_data(offset, b"5", version=0)
            claim.commit()
            member.set(offset, b"9")
            zombie.create("/consumers/g/ids/g_b", REGISTRATION, ephemeral=True)
            zombie.set(offset, b"7")
            member.delete(owner)
            strange(member, zombie)
        finally:
            for client in (member, zombie):
                client.stop()
                client.close()
    return folder / "data" / "zookeeper"


def strange(member: KazooClient, other: KazooClient) -> None:
    """A group whose names and contents are markup, control characters and broken text."""
    root = f"/consumers/{HOSTILE}"
    member.create(f"{root}/ids/{HOSTILE}", b"\xff{[\x00", ephemeral=True, makepath=True)
    owner = f"{root}/owners/<b>topic/0"
    member.create(owner, f"{SAYS}-0".encode(), ephemeral=True, makepath=True)
    for name in ("99999999999", "-1", "x", "00"):
        member.create(f"{root}/owners/<b>topic/{name}", b"\xff", makepath=True)
    member.create(f"{root}/migration", b'{"moved_to": ["kafka"]}')
    member.create("/brokers/topics/<b>topic", b'{"partitions": {"0": 1, "x": []}}', makepath=True)
    other.delete(owner)


@pytest.fixture
def far_west(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose time zone is hours behind UTC."""
    with monkeypatch.context() as change:
        change.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_an_audit_of_a_real_log(
    far_west: None, browse: Any, spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """Two servers with the same history count once. The zombie is found, and a claim is not a
    commit. The tables can be read again. The report has the finding, and shows strange names as
    text.

    The end of the logs is printed in UTC in any time zone. Lines of journals are joined with their
    groups once, so there are few jobs.
    """
    twin = tmp_path / "twin"
    shutil.copytree(logs, twin)
    out = tmp_path / "out"
    journal = tmp_path / "a.jsonl"
    journal.write_text(
        '{"at": 1, "kind": "run", "schema": 1, "clock": "epoch"}\n'
        + json.dumps(
            {"at": 2, "kind": "command", "name": "StartFetching", "member": SAYS, "session": "0xz",
             "attempt": 1, "path": f"/consumers/{HOSTILE}/ids", "partitions": ["<b>-0", "-", "x"]}
        )
        + "\n"
        + "".join(
            json.dumps(
                {"at": at, "kind": "op", "name": "Get", "member": SAYS, "session": "0x" + "f" * 40,
                 "attempt": 1, "sent": 1, "path": f"/consumers/{HOSTILE}/ids", "requests": 1,
                 "reads": 2**63 - 1, "writes": 1, "changes": 0, "bytes_out": 0, "bytes_in": 0}
            ) + "\n" for at in (-(2**63), 3, 4, 2**63 - 1)
        )
        + json.dumps(
            {"at": 5, "kind": "event", "name": "CommitRequested", "member": SAYS, "session": "0x1",
             "attempt": 2**63 - 1, "offsets": {"<b>-0": -(2**63)}}
        )
        + "\nno line of a journal <b>\n"
    )  # fmt: skip
    options = job.Options([str(logs), str(twin)], str(out), journals=[str(journal)])
    jobs = jobs_of(spark)
    summary = job.run(spark, options)
    assert len(jobs_of(spark) - jobs) <= 66
    assert [summary[k] for k in ("journals", "journal_lines", "unreadable")] == [1, 8, 1]
    assert (summary["servers"], summary["intervals"], summary["commits"]) == (2, 2, 4)
    assert summary["log_gaps"] == []
    assert {(f["severity"], f["kind"], f["count"]) for f in summary["findings"]} == {
        ("high", "orphan commit", 1),  # the first one: registered, but not yet an owner
        ("critical", "zombie commit", 1),
        ("critical", "foreign release", 1),  # of the strange group
        ("info", "unreadable registration", 1),  # its member's
    }
    assert (status_of(summary, "critical"), status_of(summary, None)) == (3, 0)
    times = [op.time_ms for log in find([logs])[0] for op in read_transactions(log.path)]
    ended = datetime.fromisoformat(summary["last_time"])
    assert (ended.utcoffset(), ended.timestamp() * 1000) == (timedelta(0), times[-1])
    again, tables = load(spark, out)
    assert again == json.loads(json.dumps(summary))
    kinds = [r["kind"] for r in tables["commits"].orderBy("zxid", "idx").collect()]
    assert kinds == ["commit", "claim", "commit", "commit"]
    (bad,) = tables["unreadable"].collect()
    assert (bad["line"], bad["text"]) == (8, "no line of a journal <b>")
    (told,) = tables["deliveries"].collect()
    assert (told["group_id"], told["topic"], told["session"]) == (HOSTILE, "<b>", None)
    (lifetime,) = tables["ownership"].where("group_id = 'g'").collect()
    assert (lifetime["member"], lifetime["ended"]) == ("g_a", "released")
    assert not (out / "staging").exists()
    page = report.write(out).read_text()
    assert "zombie commit" in page
    shown = browse(page, tmp_path)
    assert 'data-drawn="yes"' in shown
    assert "<title>zkaudit report</title>" in shown
    assert "<img" not in shown
    assert not {"\x1b", "\u202e"} & set(shown)
    assert html.escape(f"topic-0 of group {HOSTILE}", quote=False) in shown


def test_a_journal_of_a_simulation_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Simulated time is not the clock of the logs, so the audit refuses the journal. The error
    names the file. A journal that does not exist is refused, too."""
    place = tmp_path / "j.jsonl"
    place.write_text('{"at": 0, "kind": "run", "schema": 1, "clock": "virtual"}\n')
    with pytest.raises(AuditError, match=r"j\.jsonl is the journal of a simulation"):
        journals.refuse_virtual(journals.read(spark, [place]))
    with pytest.raises(AuditError, match="no such journal"):
        journals.check([tmp_path / "none"])


def test_an_audit_plans_few_jobs(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Each job of Spark costs CPU time that does not depend on the data, and most tables of most
    audits are empty. An empty table takes no job."""
    jobs = jobs_of(spark)
    summary = job.run(spark, job.Options([str(logs)], str(tmp_path / "out")))
    assert summary["findings"]
    assert len(jobs_of(spark) - jobs) <= 16
    assert load(spark, tmp_path / "out")[1]["views"].count() == 0


def jobs_of(spark: SparkSession) -> set[int]:
    """The jobs up to now."""
    return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_a_damaged_log_is_named(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """A flipped byte ends the audit with one line: file, byte and reason."""
    (path,) = [Path(log.path) for log in find([logs])[0]]
    damaged = tmp_path / "server" / path.name
    damaged.parent.mkdir()
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    damaged.write_bytes(content)
    with pytest.raises(AuditError, match=rf"{path.name}: byte \d+: ") as caught:
        job.run(spark, job.Options([str(damaged.parent)], str(tmp_path / "out")))
    assert "\n" not in str(caught.value)


def test_a_place_with_something_else_is_left_alone(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """If ``--out`` has files that are not an audit, the command refuses it and changes nothing."""
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(AuditError, match="is not empty"):
        job.run(spark, job.Options([str(logs)], str(tmp_path)))
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def test_inputs_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If an input does not exist, the command prints one line and exits with status 2 before Spark
    starts."""
    for place in (tmp_path / "none", tmp_path):
        assert run(["run", "--zookeeper-logs", str(place), "--out", str(tmp_path / "o")]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {place}: no ")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited."),
            "Spark cannot start Java: install Java 17 or later, or set JAVA_HOME",
        ),
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/o.\nJVM stacktrace:\n"),
            "Spark failed and --out may be incomplete: fix the cause, then run again: "
            "[PATH_NOT_FOUND] Path does not exist: file:/o.",
        ),
        (Py4JError("Java\nis gone"), "then run again: Java"),
        (
            AnalysisException(
                "[TASK_WRITE_FAILED] Task failed while writing rows to file:/o/staging/f. "
                "SQLSTATE: 58030\n\nCaused by: java.io.IOException: No space left on device"
            ),
            "/o/staging/f: No space left on device: free disk space, then run again",
        ),
        (
            PermissionError(13, "Permission denied", "/logs/log.1"),
            "/logs/log.1: Permission denied: give this user permission to read and write it",
        ),
    ],
)
def test_errors_that_are_not_ours_are_one_line_too(
    error: Exception,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error of Spark, Java or the system is one line that names the fault and the fix. The
    status is 1."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("zkaudit.job.spark.session", fail)
    (tmp_path / "summary.json").write_text(FINISHED)
    assert run(["export", str(tmp_path), "--to", str(tmp_path / "lake")]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.endswith(f"{told}\n")
    assert shown.count("\n") == 1


def test_what_cannot_be_used_is_named(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """Each error is one line: ``--out`` is a file, Java does not accept a regex, a file cannot be
    read, or tables are incomplete. A regex that only Java accepts is valid."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(AuditError, match="file is not a directory: choose another --out"):
        job.run(spark, job.Options([str(logs)], str(file)))
    with pytest.raises(AuditError, match=r"--groups-regex '\(\?P<n>g\)': not a valid Java regex"):
        job.run(spark, job.Options([str(logs)], str(tmp_path / "o"), group="(?P<n>g)"))
    check_group(spark, r"\p{L}+")
    journal = tmp_path / "a.jsonl"
    journal.symlink_to("/proc/self/mem")  # even root cannot read its first page
    with (
        pytest.raises(AuditError, match="Input/output error: fix the cause, then run again"),
        errors_named(),
    ):
        journals.read(spark, [journal]).count()
    (tmp_path / "o" / "summary.json").write_text(FINISHED)
    with pytest.raises(
        AuditError,
        match=r"o: the audit in this directory is incomplete: run it again: .*PATH_NOT_FOUND",
    ):
        load(spark, tmp_path / "o")


def test_a_group_that_the_logs_do_not_have_is_an_error(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """A ``--group`` that matches nothing is an error of one line with status 2, not a clean result.
    An earlier audit in ``--out`` stays unchanged."""
    (tmp_path / "summary.json").write_text(FINISHED.replace("{", '{"mine": 1, '))
    group = "nosuchgroup|G|[x]+"
    with pytest.raises(
        InputMissingError, match=f"--groups-regex '{re.escape(group)}': the logs have no"
    ):
        job.run(spark, job.Options([str(logs)], str(tmp_path), group=group))
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert json.loads((tmp_path / "summary.json").read_text())["mine"] == 1
    assert InputMissingError.exit_code == 2


def test_a_stream_warns_while_no_group_matches(capsys: pytest.CaptureFixture[str]) -> None:
    """The group may still appear, so this is not an error in a stream. But every round prints a
    warning."""
    summary = {"intervals": 0, "commits": 0, "log_gaps": [], "torn_snapshots": [], "journals": 0,
               "findings": [], "group": "nosuch", "groups": 0,
               "dropped": [], "unconfirmed": []}  # fmt: skip
    print_summary(summary)
    told = capsys.readouterr()
    assert "no findings" in told.out
    assert told.err.startswith("warning: --groups-regex 'nosuch': up to now the logs have no group")
    print_summary(summary | {"group": regex_of(["a.b", "it's"])})
    warned = capsys.readouterr().err
    assert warned.startswith("warning: --group 'a.b' --group \"it's\": up to now the logs have no")
    print_summary(summary | {"groups": 1})
    assert not capsys.readouterr().err


def test_transactions_without_a_majority_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """With the log of one server of an ensemble no transaction is certain. The command names the
    missing logs."""
    summary = {"intervals": 0, "commits": 0, "log_gaps": [], "torn_snapshots": [], "journals": 0,
               "findings": [], "group": None, "groups": 1,
               "dropped": [], "unconfirmed": [(5, 9), (20, 20)]}  # fmt: skip
    print_summary(summary)
    told = capsys.readouterr().err
    assert "6 transactions are not in a majority of the servers' logs" in told
    assert "add the logs of all servers, or use --servers 1 if there is only one" in told


def test_a_time_outside_of_the_logs_is_an_error(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """``--from`` after the end of the logs could give no finding."""
    said = r"--from 2999-01-01: the logs end before that, at 20\d\d-"
    with pytest.raises(InputMissingError, match=said):
        job.run(spark, job.Options([str(logs)], str(tmp_path), start="2999-01-01"))


def test_a_range_of_times_that_ends_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command refuses such a range before Spark starts, even if the two times have different
    zones."""
    times = ["--from", "2026-01-01T12:00", "--to", "2026-01-01T13:00+02:00"]
    given = ["--zookeeper-logs", str(tmp_path), "--out", str(tmp_path / "o")]
    assert run(["run", *given, *times]) == 2
    error = capsys.readouterr().err
    assert "--to: 2026-01-01 11:00:00+00:00 is not after --from 2026-01-01 12:00:00+00:00" in error


def test_the_source_reads_the_wanted_groups_only(logs: Path) -> None:
    """If the pattern begins with plain text, the log's reader drops rows of other groups. Sessions
    and topics, which belong to all groups, stay."""

    def rows(group: str | None) -> list[dict[str, Any]]:
        options = {"table": "groups", **inputs._of_group(group)}
        settings = inputs._settings("zookeeper_txnlog", [logs], options, ())
        return [row for batch in rows_of(settings, find([logs])[0]) for row in batch.to_pylist()]

    def paths(group: str | None) -> set[str]:
        return {row["path"] for row in rows(group) if row["path"]}

    every = paths(None)
    of_g = {path for path in every if path.startswith("/consumers/g/")}
    topics = {path for path in every if path.startswith("/brokers/topics/")}
    assert of_g
    assert topics
    assert len(every) > len(of_g | topics)
    assert paths("g") == paths("g|nosuchgroup") == of_g | topics
    assert paths("nosuchgroup") == topics
    assert paths("[g]") == paths(".*") == every
    none = rows("nosuchgroup")
    assert "createSession" in {row["type"] for row in none}
    assert [row["kind"] for row in none].count(RUN) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of Python's regexes, on nested sets
@pytest.mark.parametrize("seed", range(3))
def test_what_the_source_leaves_out_matches_no_pattern(seed: int) -> None:
    """With random patterns and names, no group that a pattern matches is left out."""
    chance = random.Random(seed)
    narrowed = 0
    for _ in range(7_000):
        regex = "".join(chance.choices("aab-|?*+.()[]{1}\\", k=chance.randrange(1, 8)))
        try:
            pattern = re.compile(regex)
        except re.error:
            continue
        begins = selection.group_begins(regex)
        names = ["".join(chance.choices("ab-1", k=chance.randrange(1, 6))) for _ in range(10)]
        for name in names if begins else ():
            narrowed += 1
            if pattern.fullmatch(name):
                assert any(f"{name}/".startswith(begin) for begin in begins), (regex, name)
    assert narrowed > 300
    assert selection.group_begins("orders") == ("orders/",)
    assert selection.group_begins("orders-.*|bills?") == ("orders-", "bill")
    assert selection.group_begins("(?i)orders") == ()


def test_groups_that_are_named_are_all_the_source_reads() -> None:
    """The source gets the exact name that ``--group`` gives, with any characters."""
    odd = ["orders", "a.b", "x|y", "(", "\\E", "\\E|\\Q", "\\Q", "a\\"]
    for names in (*([name] for name in odd), odd):
        assert names_of(regex_of(names)) == names
        assert selection.group_begins(regex_of(names)) == tuple(f"{name}/" for name in names)
    assert selection.group_begins(regex_of(["a,b", "c"])) == ("a", "c/")
    assert selection.group_begins(regex_of([",b"])) == ()
    assert names_of("orders.*") is None
    assert names_of("\\Qa\\E.*\\Qb\\E") is None


def test_tables_without_rows_are_left_out_of_plans(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result that depends on an empty table is empty, and Spark knows this when it plans. It
    reads neither the empty table nor the tables joined with it. Names and types stay."""
    frame = spark.range(3).selectExpr("id", "array(id) as l", "map('a', id) as m", "now() as t")
    some, none = kept(tmp_path, "some", frame), kept(tmp_path, "none", frame.where("id > 3"))
    assert some.count() == 3
    assert [(f.name, f.dataType) for f in none.schema] == [
        (f.name, f.dataType) for f in frame.schema
    ]
    assert none.count() == 0
    some.join(none, "id").explain()
    assert "FileScan" not in capsys.readouterr().out
    some.explain()
    assert "FileScan" in capsys.readouterr().out


def test_an_audit_that_fails_leaves_no_summary(
    spark: SparkSession, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed audit, readers see the whole previous audit, or none if there was none."""
    out = prepare(str(tmp_path / "out"))
    monkeypatch.setattr("zkaudit.tables.build.moves", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.run(spark, job.Options([str(logs)], str(out)))
    with pytest.raises(AuditError, match="the audit did not finish"):
        load(spark, out)
    before = new_tables(out)
    before.mkdir()
    publish(out, before, json.loads(FINISHED) | {"mine": 1}, keep=False)
    monkeypatch.setattr("zkaudit.job.inputs.once", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.run(spark, job.Options([str(logs)], str(out)))
    summary, tables = finished(out)
    assert (summary["mine"], tables) == (1, before.resolve())
    assert json.loads((out / "summary.json").read_text()) == summary


def test_collect_keeps_what_is_closed(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector stores closed logs and whole snapshots once. It does not store the newest log
    or a torn snapshot yet. It copies the newest closed log, so the copy stays whole if the server
    truncates the original."""
    source, target = tmp_path / "version-2", tmp_path / "kept"
    shutil.copytree(logs / "version-2", source)
    (source / "log.ffff").write_bytes(b"")
    (source / "snapshot.ffff").write_bytes(b"ZKSN")
    closed = {p.name for p in (logs / "version-2").iterdir() if p.name[:3] in ("log", "sna")}
    first = collect([tmp_path], target)
    assert first.linked + first.copied == len(closed)
    assert {p.name for p in target.iterdir()} == closed
    (log,) = (target / name for name in closed if name.startswith("log."))
    assert all((target / name).stat().st_nlink == (1 if name == log.name else 2) for name in closed)
    content = log.read_bytes()
    os.truncate(source / log.name, 100)  # as a server does with an uncommitted tail
    (source / "snapshot.ffff").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("zkaudit.collect.open_snapshot", None)  # stored files are not read again
        assert collect([tmp_path], target) == Kept(known=len(closed))
    assert log.read_bytes() == content
    (source / "log.10000").write_bytes(b"")
    (source / "log.fffe").write_bytes(b"")
    assert collect([tmp_path], target) == Kept(linked=1, copied=1, known=len(closed))
    assert ((target / "log.ffff").stat().st_nlink, (target / "log.fffe").stat().st_nlink) == (1, 2)
