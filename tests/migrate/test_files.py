"""Plan files, journals and files of offsets are read whole, or refused with the place of the
fault."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest
from zkmigrate.apply.journal import Journal, parse
from zkmigrate.errors import JournalError, JournalWriteError, PlanFileError
from zkmigrate.formats import offset_csv, plan_file, whole_file
from zkmigrate.model import Before, Direction, KafkaOffset, Record, Store
from zkmigrate.plan.options import Options, Rule
from zkmigrate.plan.values import Entry, GroupPlan, Problem, ReadAs, StaysBehind, There
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record

from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.errors import OffsetsFileError, ZnodeFormatError

PLANS = (
    GroupPlan(
        "orders",
        notes=("a note",),
        entries=(
            Entry(TopicPartition("t", 0), 2**63 - 1, 4, KafkaOffset(0, 3, "é\n"), 7, True, "why"),
            Entry(TopicPartition("t", 1), None, None, None, None, False, "none"),
            Entry(TopicPartition("t", 2), None, 9, KafkaOffset(5), 5, False, "stays"),
        ),
        marker=b'{"version":1}',
        topics={"t": 77},
        skipped=frozenset({"other", "more:*", "t:7"}),
        stays=(
            StaysBehind(TopicPartition("more", 3), None, "skipped"),
            StaysBehind(TopicPartition("t", 7), 9, "partition-missing"),
        ),
        layout=ReadAs("brooklin:/b:t", {TopicPartition("t", 0): 6, TopicPartition("t", 1): 0}),
    ),
    GroupPlan("../<script>\x1b", (Problem(Reason.BAD_NAME, "what", "fix", ("a", "b"), ("g:t",)),)),
)


ODD = b'{}[]",:\n0159-.eE\x00\xff truefalsn'


def whole() -> bytes:
    """A complete plan file."""
    return "".join(plan_file.render(Direction.ZK_TO_KAFKA, 17, PLANS)).encode()


def test_a_plan_is_read_as_it_was_written() -> None:
    """Every value of a plan survives the file: extremes, metadata, missing offsets, odd names."""
    read = plan_file.parse("plan", whole())
    assert (read.direction, read.made_ms, read.groups) == (Direction.ZK_TO_KAFKA, 17, PLANS)


def test_a_plan_for_another_cluster_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With its cluster and every offset there. Only a reader that asks for it gets it, no plan for
    this cluster has offsets of another, and one that is ready has them all."""
    there = There("old.t", "id", 7, 9, "bounded", 3, "why")
    one = Entry(TopicPartition("t", 0), 5, 4, None, 5, False, "why", there=there)
    plan = GroupPlan("g", entries=(one,), kafka_group="new")
    to = plan_file.To("b:1", None)

    def made(plan: GroupPlan, to: plan_file.To | None) -> bytes:
        return "".join(plan_file.render(Direction.ZK_TO_KAFKA, 17, [plan], to=to)).encode()

    file = tmp_path / "plan"
    file.write_bytes(made(plan, to))
    read = plan_file.load(str(file), elsewhere=True)
    assert (read.to, tuple(read.groups)) == (to, (plan,))
    with pytest.raises(PlanFileError, match="plan for another cluster, and only zkmigrate apply"):
        plan_file.load(str(file))
    with pytest.raises(PlanFileError, match="t-0 has an offset in another cluster"):
        plan_file.parse("plan", made(plan, None))
    with pytest.raises(PlanFileError, match="t-0 has no offset in the other cluster"):
        plan_file.parse("plan", made(replace(plan, entries=(replace(one, there=None),)), to))
    assert plan_file.parse("plan", made(GroupPlan("g"), None)).to is None


def test_a_plan_cut_at_any_byte_is_refused() -> None:
    """A truncated plan is never accepted as a plan."""
    data = whole()
    for end in range(len(data)):
        with pytest.raises(PlanFileError, match=r"^plan:"):
            plan_file.parse("plan", data[:end])


def test_a_plan_that_lacks_a_group_is_refused() -> None:
    """The totals at the end of the plan must match its groups."""
    lines = list(plan_file.render(Direction.ZK_TO_KAFKA, 17, PLANS))
    heads = [number for number, line in enumerate(lines) if line.startswith('{"group":')]
    without = "".join(lines[: heads[0]] + lines[heads[1] :])
    with pytest.raises(PlanFileError, match="the totals at the end do not agree"):
        plan_file.parse("plan", without.encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("marker", "\u0100"), ("marker", "\ud800"), ("marker", 1), ("skipped", None),
        ("skipped", "more"), ("skipped", [1]), ("skipped", ["t"]), ("topics", []), ("notes", 0),
        ("layout", "storm:/s"), ("layout", {"place": "x:/s", "numbers": {"t": {"0": 1}}}),
        ("layout", {"place": "storm:/s", "numbers": {}}), ("from", "g"), ("from", []),
        ("stays_behind", None), ("stays_behind", [{"topic": "t", "partition": 1, "why": ""}]),
    ],
)  # fmt: skip
def test_bad_fields_of_a_group_are_named(key: str, value: object) -> None:
    """A field that no plan can have is refused with its line, for any value."""
    named = "skips" if value == ["t"] else "offset" if value and key == "stays_behind" else key
    head, group, *rest = whole().decode().splitlines(keepends=True)
    changed = json.dumps({**json.loads(group), key: value}) + "\n"
    with pytest.raises(PlanFileError, match=rf"^plan:\d: .*{named}"):
        plan_file.parse("plan", "".join((head, changed, *rest)).encode())


@pytest.mark.parametrize("line", range(5))
def test_a_key_that_is_not_known_is_refused(line: int) -> None:
    """In the head, a group, a problem, an entry, an offset that stays behind, and the totals: a
    newer version may have changed with it what ``apply`` has to do."""
    options = Options(rules=(Rule(group="g", skip=True),))
    lines = "".join(plan_file.render(Direction.ZK_TO_KAFKA, 17, PLANS, options)).splitlines()
    document = json.loads(lines[(0, 1, 2, -2, -1)[line]])
    places = [document, *document.get("stays_behind", [])[:1], *document.get("problems", [])[:1]]
    places += [one for one in (document.get("at_apply"),) if one is not None]
    for place in places:
        place["transform"] = "reverse"
        changed = list(lines)
        changed[(0, 1, 2, -2, -1)[line]] = json.dumps(document)
        del place["transform"]
        text = "\n".join(changed) + "\n"
        with pytest.raises(PlanFileError, match="'transform' is not a"):
            plan_file.parse("plan", text.encode())


def test_a_plan_of_another_format_is_refused() -> None:
    """A plan has the number of the version that made it: its keys may mean something else."""
    first, *rest = whole().decode().splitlines(keepends=True)
    head = json.loads(first)
    assert head["zkmigrate"] == 6
    for number, words in (
        (1, "in format 1"),
        (7, "in format 7, which this zkmigrate does not know"),
        ("2", "not a"),
    ):
        changed = json.dumps({**head, "zkmigrate": number}) + "\n"
        with pytest.raises(PlanFileError, match=words):
            plan_file.parse("plan", "".join((changed, *rest)).encode())


@pytest.mark.parametrize("odd", [{"fence": 3}, {"version": 2}])
def test_a_marker_of_a_newer_version_is_refused(odd: dict[str, int]) -> None:
    """It is not called damaged, and nobody is told to delete it."""
    found = json.loads(migration_marker.encode(Store.KAFKA, 5, {TopicPartition("t", 0): 3}, "x"))
    node = Node(json.dumps({**found, **odd}).encode(), Stat(1, 1, 0, 0, 5))
    with pytest.raises(ZnodeFormatError, match="another version of zkmigrate") as caught:
        migration_marker.decode("/consumers/g/migration", node)
    assert "delete" not in str(caught.value)
    plain = Node(json.dumps(found).encode(), node.stat)
    assert migration_marker.decode("/consumers/g/migration", plain).kafka_group == "x"


def test_a_record_without_a_key_is_of_another_version() -> None:
    """An older version wrote it. It is not called damaged."""
    before = Before(Store.KAFKA, "", None, False, frozenset(), {}, {}, {})
    for data, decode in (
        (record.encode(Record()), lambda data: record.decode("x", Node(data, Stat(1, 1, 0, 0, 5)))),
        (record.encode_before(before), partial(record.decode_before, "x")),
    ):
        document = json.loads(data)
        decode(data)
        for key in document.keys() - {"version"}:
            older = {name: value for name, value in document.items() if name != key}
            with pytest.raises(ZnodeFormatError, match="another version of zkmigrate"):
                decode(json.dumps(older).encode())


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    """Also one whose number is no number."""
    data = written(tmp_path / "whole").splitlines(keepends=True)
    for number, words in ((2, "in format 2, which this zkmigrate does not"), (None, "not a jour")):
        body = json.dumps({"journal": number, "plan": "digest", "n": 0})
        first = f"{body}\t{crc32(body.encode()):08x}\n".encode()
        with pytest.raises(JournalError, match=words):
            parse("journal", b"".join((first, *data[1:])))


def test_changed_plans_are_refused_or_mean_what_they_say() -> None:
    """10,000 plans with changed bytes are each refused in one line or read. None causes a crash."""
    seed = int(os.environ.get("FILES_SEED", str(random.randrange(10**6))))
    print(f"FILES_SEED={seed}")  # noqa: T201
    rng = random.Random(seed)
    data = whole()
    refused: list[str] = []
    for _ in range(10_000):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice(ODD)
        try:
            plan_file.parse("plan", bytes(changed))
        except PlanFileError as error:
            refused.append(str(error))
    assert len(refused) > 5_000
    assert not any("\n" in text for text in refused)


def written(path: Path) -> bytes:
    """A journal with three records."""
    with Journal(path, "digest") as journal:
        journal.write(group="g", step="claim", name="x")
        journal.write(group="g", step="write")
        journal.write(group="g", step="done")
    return path.read_bytes()


def test_a_record_is_on_disk_before_anything_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync follows each change of the file before the change is reported as done. So a power
    failure does not undo a record on which a later side effect depends."""
    happened: list[str] = []
    right = {name: getattr(os, name) for name in ("write", "fsync", "link", "ftruncate")}

    def seen(name: str, *arguments: object, **options: object) -> object:
        folder = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)  # type: ignore
        happened.append(f"{name} folder" if folder else name)
        return right[name](*arguments, **options)

    for name in right:
        monkeypatch.setattr(os, name, partial(seen, name))
    path = tmp_path / "journal"
    with Journal(path, "digest", happened.append) as journal:
        for step in ("claim", "write", "mark"):
            journal.write(group="g", step=step)
    before, *created, after = happened[: happened.index("after journal create") + 1]
    assert (before, after) == ("before journal create", "after journal create")
    assert created == ["fsync", "link", "fsync folder"]
    del happened[: len(created) + 2]
    assert happened == [
        what
        for step in ("claim", "write", "mark")
        for what in (f"before journal {step}", "write", "fsync", f"after journal {step}")
    ]
    happened.clear()
    with path.open("ab") as file:
        file.write(b"torn")
    with Journal(path, "digest", happened.append):
        pass
    assert happened == ["before journal cut", "ftruncate", "fsync", "after journal cut"]


def test_nothing_is_recorded_after_a_failed_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fsync succeeds, but what the failed one has not stored is lost: a later record would
    make the journal look damaged."""
    right = os.fsync
    with Journal(tmp_path / "journal", "digest") as journal:
        journal.write(group="g", step="claim")

        def full(_file: int) -> None:
            monkeypatch.setattr(os, "fsync", right)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        for step in ("write", "done"):
            with pytest.raises(
                JournalWriteError, match=r"journal: No space left .* free disk space"
            ):
                journal.write(group="g", step=step)


@pytest.mark.parametrize("lines", [(0, 2, 3), (0, 1, 1, 2, 3), (0, 2, 1, 3)])
def test_a_journal_with_whole_lines_missing_or_out_of_order_is_refused(
    tmp_path: Path, lines: tuple[int, ...]
) -> None:
    """Each line is valid by itself, but together they do not show what was done."""
    whole = written(tmp_path / "whole").splitlines(keepends=True)
    path = tmp_path / "changed"
    path.write_bytes(b"".join(whole[number] for number in lines))
    with pytest.raises(JournalError, match="is damaged"), Journal(path, "digest"):
        pass


def test_a_journal_cut_at_any_byte_goes_on_or_is_refused(tmp_path: Path) -> None:
    """A torn last record counts as not written and is cut off. A torn first one is refused."""
    data = written(tmp_path / "whole")
    first = data.index(b"\n") + 1
    for end in range(len(data) + 1):
        path = tmp_path / "cut"
        path.write_bytes(data[:end])
        if end < first:
            with (
                pytest.raises(JournalError, match="first line is damaged"),
                Journal(path, "digest"),
            ):
                pass
            continue
        with Journal(path, "digest") as journal:
            steps = [record["step"] for record in journal.records]
            journal.write(group="g", step="more")
        assert steps == ["claim", "write", "done"][: data[:end].count(b"\n") - 1]
        records, good = parse("cut", path.read_bytes())
        assert [record.get("step") for record in records[1:]] == [*steps, "more"]
        assert good == path.stat().st_size


def test_a_journal_damaged_in_the_middle_is_refused(tmp_path: Path) -> None:
    """A changed byte anywhere is noticed. Only the very last newline may look as if it was not
    written yet."""
    data = written(tmp_path / "whole")
    for place in range(len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(JournalError):
            parse("journal", bytes(changed))


def test_the_journal_is_private_and_of_one_plan(tmp_path: Path) -> None:
    """The mode is 0600. A link, a second run at the same time, and another plan are refused."""
    path = tmp_path / "journal"
    with Journal(path, "digest") as journal:
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(JournalError, match="another run"), Journal(path, "digest"):
            pass
        journal.write(step="x")
    with pytest.raises(JournalError, match="another plan"), Journal(path, "other"):
        pass
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(JournalError), Journal(link, "digest"):
        pass
    assert sorted(os.listdir(tmp_path)) == ["journal", "link"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_files_are_created_on_volumes_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Plans, journals and reports: whole, private, and never over another file."""

    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "plan"
    whole_file.create(path, [b"whole"])
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("plan", b"whole")]
    assert path.stat().st_mode & 0o777 == 0o600

    def late() -> Iterator[bytes]:
        (tmp_path / "other").write_bytes(b"of another run")
        yield b"mine"

    with pytest.raises(FileExistsError):
        whole_file.create(tmp_path / "other", late())
    assert (tmp_path / "other").read_bytes() == b"of another run"
    with Journal(tmp_path / "journal", "digest") as journal:
        journal.write(group="g", step="claim")
    assert sorted(os.listdir(tmp_path)) == ["journal", "other", "plan"]


def test_an_error_of_a_link_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no volume without hard links."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="No space"):
        whole_file.create(tmp_path / "plan", [b"whole"])
    assert os.listdir(tmp_path) == []


OFFSETS = {OffsetKey("g", "t", 0): 0, OffsetKey("g", "t", 10): 2**63 - 1, OffsetKey("h", "u", 1): 5}


def test_a_group_whose_name_begins_like_json_can_be_imported() -> None:
    """The file has a column of groups."""
    offsets = {OffsetKey("[etl] daily", "t", 0): 5}
    assert offset_csv.parse("f", offset_csv.render(offsets, "csv").encode()) == offsets
    for empty in ("[]", "[ ]", "[\n]"):
        assert offset_csv.parse("f", empty.encode()) == {}


@pytest.mark.parametrize("form", offset_csv.FORMATS)
def test_files_of_offsets_are_read_as_they_were_written(form: str) -> None:
    """Each format restores exactly the offsets, CSV with and without the group."""
    data = offset_csv.render(OFFSETS, form).encode()
    assert offset_csv.parse("file", data) == OFFSETS
    mine = {key: offset for key, offset in OFFSETS.items() if key.group == "g"}
    text = offset_csv.render(mine, form, one_group=True)
    assert offset_csv.parse("file", text.encode(), "g") == mine
    if form == "csv":
        assert text == f"t,0,0\nt,10,{2**63 - 1}\n"


@pytest.mark.parametrize(
    "line",
    [
        "t,0,-1", "t,0, 5", "t,0,+5", "t,0,1_000", "t,0,5,", "t,,5", "t,0,9223372036854775808",
        "t,2147483648,1", "../t,0,1", "=t,0,1", "t,٣,1", " ", "t,0",
    ],
)  # fmt: skip
def test_bad_lines_are_named(line: str) -> None:
    """Numbers must be plain and names must be legal. The message names file and line."""
    with pytest.raises(OffsetsFileError, match=r"file:2: "):
        offset_csv.parse("file", f"t,7,1\n{line}\n".encode(), "g")


@pytest.mark.parametrize(
    ("exported", "group"),
    [
        (b"orders,0,5\norders,1,7\n\n", "billing"),
        (b"billing,orders,0,5\r\nbilling,orders,1,7\r\n\r\n", None),
    ],
)
def test_the_export_of_the_java_tool_is_read(exported: bytes, group: str | None) -> None:
    """The output of ``kafka-consumer-groups --reset-offsets --export`` of Kafka 3.9.1 is accepted,
    with the empty line at its end."""
    assert offset_csv.parse("file", exported, group) == {
        OffsetKey("billing", "orders", 0): 5,
        OffsetKey("billing", "orders", 1): 7,
    }


def test_a_partition_that_occurs_twice_is_refused() -> None:
    """If two lines name the same partition, the file is refused."""
    with pytest.raises(OffsetsFileError, match="file:2: repeats"):
        offset_csv.parse("file", b"g,t,0,1\ng,t,0,2\n")


def test_a_quoted_line_with_a_carriage_return_is_refused() -> None:
    """Python's CSV reader raises an error of its own for it."""
    with pytest.raises(OffsetsFileError, match="file:1: is not group,topic,partition,offset"):
        offset_csv.parse("file", b'"g"\rx,t,0,1\n')


def test_changed_files_of_offsets_never_crash() -> None:
    """10,000 files with changed bytes each give offsets or one refusal."""
    seed = int(os.environ.get("FILES_SEED", str(random.randrange(10**6))))
    print(f"FILES_SEED={seed}")  # noqa: T201
    rng = random.Random(seed)
    refused: list[str] = []
    for number in range(10_000):
        form = offset_csv.FORMATS[number % 3]
        data = bytearray(offset_csv.render(OFFSETS, form).encode())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            found = offset_csv.parse("file", bytes(data))
        except OffsetsFileError as error:
            refused.append(str(error))
        else:
            assert all(0 <= offset < 2**63 for offset in found.values())
    assert refused
    assert not any("\n" in text for text in refused)


def test_a_plan_on_disk_is_checked_whole_and_not_changed_meanwhile(tmp_path: Path) -> None:
    """A stored plan can be read repeatedly with the same result. A plan that is cut, or edited
    while it is applied, is refused."""
    path = tmp_path / "plan"
    path.write_bytes(whole())
    loaded = plan_file.load(str(path))
    assert (len(loaded.groups), loaded.digest) == (2, plan_file.parse("", whole()).digest)
    assert tuple(loaded.groups) == tuple(loaded.groups) == PLANS
    reading = iter(loaded.groups)
    next(reading)
    path.write_bytes(whole() + b" ")
    with pytest.raises(
        PlanFileError, match="changed while it was being read: run the command again"
    ):
        next(reading)
    path.write_bytes(whole()[:-3])
    with pytest.raises(PlanFileError, match="ends too early"):
        plan_file.load(str(path))


def test_a_new_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """If its content cannot be produced, no file remains. A file of a killed run is replaced. If
    the file already exists, it is refused before any content is produced."""
    path = tmp_path / "plan"
    (tmp_path / f".plan.{os.getpid()}").write_bytes(b"left by a killed run")

    def content(good: bool) -> Iterator[bytes]:
        yield b"first"
        if not good:
            raise RuntimeError("the source is gone")
        yield b" second"

    with pytest.raises(RuntimeError, match="is gone"):
        whole_file.create(path, content(good=False))
    assert list(tmp_path.iterdir()) == []
    whole_file.create(path, content(good=True))
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [
        ("plan", b"first second")
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        whole_file.create(path, content(good=False))
    assert path.read_bytes() == b"first second"


def test_a_journal_is_cut_again_after_a_second_power_failure(tmp_path: Path) -> None:
    """What was written after the first cut stays, and its numbers go on."""
    path = tmp_path / "journal"
    for number, torn in enumerate((b"t", b'{"step":"mark"}\t0', b"")):
        with Journal(path, "digest") as journal:
            assert [one["step"] for one in journal.records] == ["claim", "write"][:number]
            journal.write(group="g", step=("claim", "write", "mark")[number])
        with path.open("ab") as file:
            file.write(torn)
    records, good = parse("journal", path.read_bytes())
    assert [one.get("step") for one in records[1:]] == ["claim", "write", "mark"]
    assert good == path.stat().st_size
