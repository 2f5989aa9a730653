"""Journals: the schema, what is written, and what a reader does with damaged files."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from zkconsumer.core.common import commands as common, events
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.groups.commands import FindCoordinator
from zkconsumer.core.groups.events import CoordinatorFound
from zkconsumer.core.zookeeper import commands
from zkconsumer.core.zookeeper.events import Changed, Registered, SessionOpened, ViewLoaded
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.ops import (
    Check,
    Code,
    Create,
    Delete,
    Failed,
    GetChildren,
    GetData,
    GetMany,
    Multi,
    Node,
    Ok,
    SetData,
    Stat,
)
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import JournalFormatError
from zkconsumer.herd.owner_spans import Ownership
from zkconsumer.herd.recorders import SizedRecorder
from zkconsumer.herd.wire import cost
from zkconsumer.journal import JournalWriter, read_journal
from zkconsumer.journal.counts import kind_of
from zkconsumer.journal.group import GroupRecorder
from zkconsumer.journal.json_lines import MemberJournal, check_entry
from zkconsumer.journal.recorder import Entry, MemberRecorder, describe, event_entry, run_entry
from zkconsumer.journal.replay import replay
from zkconsumer.servers import wait_until

STAT = Stat(1, 1, 0, 0)


def _write(path: Path, lines: int) -> None:
    with JournalWriter(path) as writer:
        writer.write(run_entry(0, "virtual", {"members": 3}))
        for number in range(lines):
            writer.write(event_entry(number, "join", f"g_{number}"))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """A reader returns exactly the written entries, in order."""
    path = tmp_path / "j.jsonl"
    _write(path, 3)
    found = list(read_journal(path))
    assert [entry.get("member") for entry in found] == [None, "g_0", "g_1", "g_2"]
    assert found[0]["settings"] == {"members": "3"}


def test_a_journal_cut_anywhere_gives_its_whole_lines(tmp_path: Path) -> None:
    """A killed writer may leave a file that is cut at any byte. The lines before the cut are
    returned, and nothing is guessed."""
    path, cut = tmp_path / "j.jsonl", tmp_path / "cut.jsonl"
    _write(path, 4)
    content = path.read_bytes()
    for length in range(len(content) + 1):
        cut.write_bytes(content[:length])
        assert len(list(read_journal(cut))) == content[:length].count(b"\n")


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    """Any changed bit is refused with file and line, and the entries before it are unchanged. Only
    the very last line end may look as if it was not written yet."""
    path, flipped = tmp_path / "j.jsonl", tmp_path / "flipped.jsonl"
    _write(path, 4)
    content, entries = path.read_bytes(), list(read_journal(path))
    seed = int(os.environ.get("FILES_SEED", str(random.randrange(10**6))))
    print(f"FILES_SEED={seed}")  # noqa: T201
    rng = random.Random(seed)
    for place in range(len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        flipped.write_bytes(changed)
        own = content[:place].count(b"\n")
        found = []
        with pytest.raises(JournalFormatError, match=r"flipped\.jsonl:") as refused:
            found += read_journal(flipped)
        assert refused.value.line == own + 1, place
        assert found == entries[:own], place


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "cannot be read"),
        ("[1]", "not a JSON object"),
        ('{"at":1,"kind":"what"}', "kind 'what'"),
        ('{"at":1,"kind":"action"}', "name is missing"),
        ('{"at":true,"kind":"action","name":"x"}', "at must be integer"),
        ('{"at":1,"kind":"action","name":"x","partitions":[1]}', "partitions must be list"),
        ('{"at":1,"kind":"action","name":"x","token":1}', "unknown field token"),
        ("[" * 100_000, "cannot be read"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    """A line that does not follow the schema is refused with file, line number and reason."""
    path = tmp_path / "j.jsonl"
    _write(path, 1)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(JournalFormatError, match=reason) as refused:
        list(read_journal(path))
    assert refused.value.line == 3


def test_a_journal_of_another_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later schema, or without its first line, is refused."""
    path = tmp_path / "j.jsonl"
    first = run_entry(0, "virtual", {}) | {"schema": 2}
    for start in (first, event_entry(1, "join")):
        path.write_text(json.dumps(start) + "\n")
        with pytest.raises(JournalFormatError):
            list(read_journal(path))


def test_the_journal_of_a_running_member_has_no_sizes() -> None:
    """A running member's operations are counted. Sizes are only computed for studies of herds."""
    lines: list[Entry] = []
    sink = SimpleNamespace(write=lines.append)
    op, reply = GetData("/a/b"), Ok(Node(b"xyz", STAT))
    MemberRecorder(sink, "g_m", lambda: 0).op(op, reply, 0, 1, 0)
    SizedRecorder(sink, "g_m", lambda: 0).op(op, reply, 0, 1, 0)
    GroupRecorder(sink, "g_m", lambda: 0).request(FindCoordinator(1), CoordinatorFound(1), 0, 1, 0)
    plain, sized, request = lines
    assert not any(map(check_entry, lines))
    assert {"bytes_out", "bytes_in"} == sized.keys() - plain.keys()
    assert (plain["requests"], plain["reads"], plain["writes"], plain["changes"]) == (1, 1, 0, 0)
    assert (request["requests"], request["reads"], request.get("bytes_out")) == (1, 0, None)


def test_a_field_left_out_is_found() -> None:
    """Each required field of each kind has to be there."""
    entry = run_entry(0, "epoch", {})
    assert not check_entry(entry)
    for name in ("at", "schema", "clock"):
        assert name in check_entry({key: value for key, value in entry.items() if key != name})


TP = TopicPartition("t", 0)
SOME: Any = {TP: ("a-0", 7)}
NAMED = {"partitions": ["t-0"]}
READ = {"offsets": {"t-0": 7}}


@pytest.mark.parametrize(
    ("what", "fields"),
    [
        *((kind(1, frozenset(SOME)), NAMED)
          for kind in (common.StopFetching, common.NotifyReleasing, common.NotifyLost,
                       commands.CheckOwners, commands.WatchBlockers)),
        *((kind(frozenset(SOME)), NAMED) for kind in (common.Drop, common.Forget)),
        *((kind(1, 0, SOME), NAMED) for kind in (commands.Release, commands.ClaimPartitions)),
        (common.StartFetching(1, SOME), NAMED | READ),
        (commands.Commit(1, 0, {TP: 7}, {}), READ),
        (events.FetchingStopped(1, {TP: 7}), READ),
        (events.CommitRequested(1, {TP: 7}), READ),
        (events.Dropped({TP: 7}), READ),
        (common.Close(("one", "two")), {"detail": "one; two"}),
        (common.AnswerCommit(1, ("one",)), {"detail": "one"}),
        (common.Fail(ErrorCode.INVALID_SESSION_TIMEOUT, "why"),
         {"result": "INVALID_SESSION_TIMEOUT (26)", "detail": "why"}),
    ],
)  # fmt: skip
def test_a_line_has_what_an_event_or_command_is_about(what: object, fields: Entry) -> None:
    """Its partitions, their offsets, and how something failed: for members of both kinds."""
    entry: Entry = {}
    describe(what, entry)
    assert {name: entry[name] for name in entry if name != "token"} == fields


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("GetMany", "/consumers/g/ids/m", "read registrations"),
        ("Create", "/consumers/g/owners/t/0", "write owners"),
        ("GetData", "/consumers/g/offsets/t/0", "read offsets"),
        ("GetChildren", "/brokers/ids", "read brokers"),
        ("GetMany", "/brokers/topics/t", "read topics"),
        ("Multi", "/consumers/g/ids/m", "multi"),
        ("Create", "/consumers", "write other"),
        ("FetchOffsets", "", "fetch offsets"),
        ("StoreOffsets", "", "commit offsets"),
    ],
)
def test_operations_are_counted_by_what_they_are_about(name: str, path: str, kind: str) -> None:
    """The kind of an operation follows from its class and path."""
    assert kind_of(name, path) == kind


def test_sizes_on_the_wire() -> None:
    """Sizes are those of ZooKeeper's encoding, calculated by hand."""
    read = cost(GetData("/a/b"), Ok(Node(b"xyz", STAT)))
    assert (read.bytes_out, read.bytes_in) == (12 + 4 + 4 + 1, 20 + 4 + 3 + 68)
    listed = cost(GetChildren("/a"), Ok(("b", "cc")))
    assert (listed.bytes_out, listed.bytes_in) == (12 + 4 + 2 + 1, 20 + 4 + 5 + 6)
    created = cost(Create("/a", b"d"), Ok())
    assert (created.bytes_out, created.bytes_in) == (12 + 6 + 5 + 27 + 4, 20 + 6)
    many = cost(GetMany(("/a", "/b")), Ok((Node(b"", STAT), None)))
    assert (many.requests, many.reads) == (1, 2)
    single = cost(GetMany(("/a", "/b"), watch=True), Ok((None, None)))
    assert (single.requests, single.reads) == (2, 2)
    assert cost(GetData("/b"), Ok(), chroot=5).bytes_out == 12 + 4 + 7 + 1


def test_a_multi_counts_as_one_transaction() -> None:
    """Checks change nothing. A refused multi changes nothing at all."""
    multi = Multi((Check("/a", 0), Create("/b"), SetData("/c", b""), Delete("/d")))
    done = cost(multi, Ok((None, None, STAT, None)))
    assert (done.requests, done.writes, done.changes) == (1, 1, 3)
    assert cost(multi, Failed(Code.NO_NODE, 1)).changes == 0


def test_ownership_over_time() -> None:
    """Ownership follows owner znodes. A dead member owns nothing, whatever its znodes say."""
    tp, held = TopicPartition("t", 0), Ownership()
    held.took(10, tp, "a")
    held.gone(20, "a")
    held.lost(60, tp, "a")
    assert held.changed_at == 20
    held.took(70, tp, "b")
    held.lost(80, tp, "a")  # a late answer: b is the owner
    assert held.owner(tp) == "b"
    assert [(s.start, s.end, s.member) for s in held.spans[tp]] == [(10, 20, "a"), (70, None, "b")]
    assert held.unowned(0, 100)[tp] == 10 + 50
    assert held.unowned(15, 75)[tp] == 50


class SlowFile:
    """A file on a disk that hangs until ``go`` is set."""

    def __init__(self, file: IO[bytes], go: threading.Event) -> None:
        self._file = file
        self._go = go
        self.writing = 0

    def write(self, text: bytes) -> int:
        self.writing += 1
        assert self._go.wait(60)
        self.writing -= 1
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _member_journal(path: Path) -> MemberJournal:
    return MemberJournal(str(path / "made"), "g_m", {"group.id": "g"})


def test_a_members_journal_can_be_read_while_it_runs(tmp_path: Path) -> None:
    """Entries of a running member reach the operating system within moments, so a kill loses almost
    nothing. Entries that are queued when it ends are written."""
    journal = _member_journal(tmp_path)
    journal.write(event_entry(5, "DeliveryShut", "g_m") | {"since": 3})
    assert journal.path.name.startswith("g_m-")
    wait_until(lambda: len(list(read_journal(journal.path))) == 2, 10, "the entry is written")
    run, event = read_journal(journal.path)
    assert (run["settings"], event["since"]) == ({"group.id": "g"}, 3)
    for number in range(1000):
        journal.write(event_entry(number, "x"))
    journal.close()
    journal.write(event_entry(6, "late"))
    assert [entry["at"] for entry in list(read_journal(journal.path))[2:]] == list(range(1000))
    assert not [one for one in threading.enumerate() if one.name == "g_m_journal"]


def test_a_full_disk_ends_the_journal_and_not_the_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a journal can no longer be written, this is logged once, and the member continues."""
    monkeypatch.setattr(Path, "open", lambda *_, **__: open("/dev/full", "wb"))  # noqa: SIM115
    journal = _member_journal(tmp_path)
    wait_until(
        lambda: "the journal ends here: No space left" in caplog.text, 10, "the fault is logged"
    )
    for number in range(3):
        journal.write(event_entry(number, "x" * 100))
    journal.close()
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_a_disk_that_hangs_costs_entries_and_no_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk hangs, entries wait. Those beyond the limit are dropped and counted where they
    are missing. The rest is written in order. Both are logged."""
    monkeypatch.setattr("zkconsumer.journal.json_lines.QUEUE_BYTES", 100_000)
    go, right = threading.Event(), Path.open
    slow: list[SlowFile] = []

    def opened(path: Path, mode: str, *more: Any) -> Any:
        slow.append(SlowFile(right(path, mode, *more), go))  # type: ignore[arg-type]
        return slow[0]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        journal = _member_journal(tmp_path)
    wait_until(lambda: slow[0].writing, 10, "the disk hangs")
    for number in range(1000):
        journal.write(event_entry(number, "x" * 200))
    assert "the disk does not keep up" in caplog.text
    go.set()
    wait_until(lambda: journal._bytes == 0, 10, "all that waits is written")
    journal.write(event_entry(1000, "after"))
    journal.close()
    _, *entries = read_journal(journal.path)
    gap = next(n for n, entry in enumerate(entries) if entry["name"] == "EntriesDropped")
    assert [entry["at"] for entry in entries[:gap]] == list(range(gap))
    assert 300 < gap < 500
    assert entries[gap]["count"] == 1000 - gap
    assert [entry["name"] for entry in entries[gap + 1 :]] == ["after"]
    assert f"{1000 - gap} entries were dropped" in caplog.text
    assert len(caplog.records) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_journal_whose_thread_ends_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread may end anywhere, even in the middle of a line. Another one continues, and no
    entry is missing, doubled or torn."""
    journal = _member_journal(tmp_path)
    write = journal._file.write
    left = [3]

    def half(text: bytes) -> int:
        if not left[0]:
            return write(text)
        left[0] -= 1
        write(text[: len(text) // 2])
        journal._file.flush()
        raise SystemExit

    wait_until(lambda: journal._bytes == 0, 10, "the first line is written")
    journal._file.write = half  # type: ignore[method-assign]
    for number in range(100):
        journal.write(event_entry(number, "x"))
        if number % 30 == 29:
            wait_until(lambda: not journal._thread.is_alive(), 10, "the thread has ended")
            journal.check()
    journal.close()
    assert not left[0]
    assert [entry["at"] for entry in list(read_journal(journal.path))[1:]] == list(range(100))
    assert caplog.text.count("the journal's thread has ended") == 3
    journal.check()
    assert not journal._thread.is_alive()


def test_the_end_waits_for_the_disk_no_longer_than_it_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hanging disk does not delay the end of a member. The log names what was not written."""
    go, right = threading.Event(), Path.open

    def opened(path: Path, mode: str, *more: Any) -> Any:
        return SlowFile(right(path, mode, *more), go)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", opened)
    journal = _member_journal(tmp_path)
    began = time.monotonic()
    journal.close(0.1)
    assert time.monotonic() - began < 5
    assert "the journal lacks its end" in caplog.text
    go.set()


def test_a_group_at_rest_is_not_written_again_and_again(tmp_path: Path) -> None:
    """A member reads its group every 30 s. A line has a large field only if it has changed since
    the member's last line of that name. A replay has all fields."""
    topics = {f"topic-{number}": tuple(range(8)) for number in range(100)}

    def view(**more: tuple[int, ...]) -> GroupView:
        return GroupView(True, (), {}, {}, topics | more)

    views = [view(), view(), view(new=(0,)), GroupView(True, (), {}, {}, {}), view(), view()]
    spec = MemberSpec(GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    lines: list[Entry] = [run_entry(0, "virtual", {})]
    sink: Any = SimpleNamespace(write=lambda entry: lines.append(json.loads(json.dumps(entry))))
    recorder = MemberRecorder(sink, "g_m", lambda: 0)
    machine = RebalanceMachine(spec)
    recorder.made(machine, "zookeeper")
    for token, view in enumerate(views):
        event = ViewLoaded(token, view)
        recorder.event(event, 0, 0)
        for command in machine.on(event):
            recorder.command(command, 0, 0)
    found = [entry for entry in lines if entry.get("name") == "ViewLoaded"]
    unchanged = [list(entry.get("unchanged", {})) for entry in found]
    assert unchanged == [[], ["view"], [], [], [], ["view"]]
    assert "view" not in found[1]["fields"]
    assert len(json.dumps(found[1])) < 1000
    (result,) = replay("journal", lines)
    assert result.difference is None
    assert result.events == len(views)
    found[0]["fields"]["view"]["registered"] = False
    with pytest.raises(JournalFormatError, match="the field view is marked unchanged, but differs"):
        replay("journal", lines)


def test_a_change_has_its_transaction_and_an_older_journal_lacks_it(tmp_path: Path) -> None:
    """Servers before ZooKeeper 3.9 do not send it, and earlier releases had no such field. Their
    journals are read and replayed."""
    spec = MemberSpec(GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    path = tmp_path / "j.jsonl"
    with JournalWriter(path) as writer:
        writer.write(run_entry(0, "virtual", {}))
        recorder, machine = MemberRecorder(writer, "g_m", lambda: 0), RebalanceMachine(spec)
        recorder.made(machine, "zookeeper")
        for event in (SessionOpened(1), Registered(1), Changed("/a", 7), Changed("/a")):
            recorder.event(event, 0, 0)
            for command in machine.on(event):
                recorder.command(command, 0, 0)
    entries = list(read_journal(path))
    assert [entry.get("zxid") for entry in entries if entry.get("name") == "Changed"] == [7, None]
    for entry in entries:
        entry.get("fields", {}).pop("zxid", None)
    (result,) = replay("journal", entries)
    assert (result.difference, result.events) == (None, 4)
