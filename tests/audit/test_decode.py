"""Decoded logs and snapshots of real servers equal the output of ZooKeeper's own tools."""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from zkaudit.decode import batches
from zkaudit.decode.batches import LogReader, read_log, read_snapshot, read_snapshot_sessions
from zkaudit.decode.columns import Filters, operations_batch
from zkaudit.decode.snapshot import open_snapshot
from zkaudit.decode.txnlog import Operation, Stop, read_transactions
from zkaudit.schema import SNAPSHOT, TXNLOG, TYPES, arrow_schema

from tests.audit.replayed import Tree
from tests.audit.snapshots import snapshot_of

STAT_FIELDS = ("czxid", "mzxid", "ctime", "mtime", "version", "cversion", "aversion",
               "ephemeral_owner", "pzxid")  # fmt: skip

TYPES_OF_34 = {"createSession", "closeSession", "create", "delete", "setData", "setACL", "error"}
TYPES_OF_35 = {"create2", "createContainer", "createTTL", "deleteContainer"}


def quoted(text: str) -> str:
    """A string as Jute's text form writes it."""
    return "'" + text.replace("%", "%25").replace(",", "%2C").replace("}", "%7D")


def jute_hex(data: bytes) -> str:
    """The tools print each byte without leading zeros, and those from 0x80 on as negative ints."""
    return (
        "#" + "".join(f"{b if b < 128 else b - 256 & 0xFFFFFFFF:x}" for b in data) if data else ""
    )


def body_as_printed(op: Operation, version: str) -> str:
    """One operation as LogFormatter (3.4) or TxnLogToolkit prints it."""
    old = version < "3.5"
    if op.type in ("createSession", "error"):
        return str(op.timeout if op.type == "createSession" else op.error)
    if op.type == "closeSession":
        if op.deleted is None:
            return "null" if old else ""
        return "v{" + ",".join(map(quoted, op.deleted)) + "}"
    assert op.path is not None
    if op.type in ("delete", "deleteContainer"):
        return quoted(op.path)
    acls = [f"{a.perms},s{{{quoted(a.scheme)},{quoted(a.id)}}}" for a in op.acl or ()]
    if op.type == "setACL" or old:
        parts = [quoted(op.path)]
        if op.type != "setACL":
            parts.append(jute_hex(op.data or b""))
        if op.acl is not None:
            parts.append("v{" + ",".join(f"s{{{acl}}}" for acl in acls) + "}")
    else:
        assert op.data is not None
        parts = [op.path, op.data.decode("utf-8", "replace")]
        if op.acl is not None:
            parts.append("[" + ", ".join(f"{acl}\n" for acl in acls) + "]")
    if op.type in ("create", "create2"):
        parts.append(("T" if op.ephemeral else "F") if old else str(op.ephemeral).lower())
    last = op.version if op.type in ("setData", "setACL") else op.parent_cversion
    parts.append(str(last))
    if op.type == "createTTL":
        parts.append(str(op.ttl))
    return ",".join(parts)


LINE = re.compile(
    r"^(\d+/\d+/\d+, \d+:\d+:\d+ [AP]M) UTC session (0x\w+) cxid (0x\w+) zxid (0x\w+) (\w+) ?",
    re.MULTILINE,
)


def test_every_transaction_is_what_zookeepers_own_tool_prints(recording: Any) -> None:
    """Session, cxid, zxid, time, type and body of every transaction in every log are the same.

    The tools print a multi as raw bytes. ``test_multis_are_opened`` compares their operations.
    """
    old = recording.version < "3.5"
    tool = "server.LogFormatter" if old else "server.persistence.TxnLogToolkit"
    arguments = [] if old else ["-d"]
    compared = 0
    for log in recording.logs:
        printed = recording.tool(f"org.apache.zookeeper.{tool}", *arguments, str(log))
        printed = printed.replace("\u202f", " ")
        found = list(LINE.finditer(printed))
        ops = [op for op in read_transactions(log) if op.idx == 0]
        assert len(found) == len(ops) > 0
        ends = [match.start() for match in found[1:]] + [len(printed)]
        for match, end, op in zip(found, ends, ops, strict=True):
            time = datetime.strptime(match[1], "%m/%d/%y, %I:%M:%S %p").replace(tzinfo=UTC)
            assert int(time.timestamp()) == op.time_ms // 1000
            assert [int(match[group], 16) for group in (2, 3, 4)] == [op.session, op.cxid, op.zxid]
            if op.size:
                assert match[5] == "multi"
                continue
            name = "createTtl" if op.type == "createTTL" and match[5] == "createTtl" else op.type
            assert match[5] == name
            body = printed[match.end() : end]
            if end == len(printed):
                body = re.sub(r"\n*EOF reached after \d+ txns\.\s*$", "", body)
            assert body.rstrip("\n") == body_as_printed(op, recording.version)
            compared += 1
    assert compared > 300


def test_columns_equal_the_plain_decoder(recording: Any) -> None:
    """The fast decoder gives the same rows as the plain one, however the file is cut into
    chunks."""
    seen: set[str] = set()
    for log in recording.logs:
        plain = operations_batch(list(read_transactions(log)), "server", log.name)
        for chunk in (64, 333, 4 << 20):
            reader = LogReader(log, "server", chunk=chunk)
            batches = list(reader.batches())
            assert all(batch.schema.equals(arrow_schema(TXNLOG)) for batch in batches)
            assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([plain]))
            assert reader.end is not None
            assert reader.end.stop is Stop.PADDING
        seen |= set(plain["type"].to_pylist())
        zxids = plain["zxid"].to_pylist()
        assert [reader.first_zxid, reader.last_zxid] == [zxids[0], zxids[-1]]
        assert reader.transactions == len(set(zxids))
    expected = TYPES_OF_34 | {"check"} | (TYPES_OF_35 if recording.version > "3.5" else set())
    assert seen == expected


def test_multis_are_opened(recording: Any) -> None:
    """The operations of a multi are rows in order. Those of a failed multi are errors, not
    events."""
    rows = [row for log in recording.logs for b in read_log(log) for row in b.to_pylist()]
    multis = [row for row in rows if row["size"]]
    good = [row for row in multis if row["size"] == 5]
    assert [(r["idx"], r["type"], r["path"], r["data"]) for r in good] == [
        (0, "check", "/a", None),
        (1, "create", "/multi", b"made"),
        (2, "setData", "/multi", b"set"),
        (3, "create", "/multi/gone", b""),
        (4, "delete", "/multi/gone", None),
    ]
    assert [r["ephemeral"] for r in good] == [None, False, None, True, None]
    bad = [row for row in multis if row["size"] == 2]
    assert [(r["type"], r["tried"], r["error"], r["path"]) for r in bad] == [
        ("error", "setData", 0, "/multi"),
        ("error", None, -110, None),
    ]


def test_znode_data_is_never_taken_for_a_record(recording: Any) -> None:
    """A znode whose content is three valid delete records deletes nothing."""
    rows = [row for log in recording.logs for b in read_log(log) for row in b.to_pylist()]
    (trap,) = [row for row in rows if row["path"] == "/trap"]
    assert trap["data"].count(b"/aB") == 3
    assert not [row for row in rows if row["type"] == "delete" and row["path"] == "/a"]


def test_all_layouts_of_close_session(recording: Any) -> None:
    """Up to 3.5 a closed session lists no znodes. Later versions list the ephemerals that end with
    it."""
    rows = [row for log in recording.logs for b in read_log(log) for row in b.to_pylist()]
    closed = [row["deleted"] for row in rows if row["type"] == "closeSession"]
    if recording.version < "3.6":
        assert closed == [None, None]
    else:
        assert [sorted(paths) for paths in closed] == [[f"/brief-{n}" for n in range(5)], []]
        digests = [row["digest"] for row in rows if row["type"] != "error" and row["error"] is None]
        assert None not in digests


def test_filters_leave_out_what_they_say(recording: Any) -> None:
    """A prefix keeps rows below it and rows without a path. Ranges of zxids are inclusive."""
    log = recording.logs[1]
    rows = [row for batch in read_log(log) for row in batch.to_pylist()]
    wanted = Filters("/a/child", rows[20]["zxid"], rows[70]["zxid"])
    kept = [row for batch in read_log(log, "", wanted) for row in batch.to_pylist()]
    assert kept == [
        row
        for row in rows
        if rows[20]["zxid"] <= row["zxid"] <= rows[70]["zxid"]
        and (row["path"] is None or row["path"].startswith("/a/child"))
    ]
    assert 0 < len(kept) < 60


def test_only_the_columns_asked_for(recording: Any) -> None:
    """Reading one column, or some in another order, gives the same values as reading all
    columns."""
    for log in recording.logs[:2]:
        every = pa.Table.from_batches(read_log(log, "s"))
        for names in [*((name,) for name in every.column_names), ("path", "zxid", "error")]:
            some = pa.Table.from_batches(LogReader(log, "s", columns=names).batches())
            assert some.equals(every.select(names))


def test_records_that_do_not_mention_a_text_are_skipped(recording: Any) -> None:
    """The rows of a path are the same as from reading everything, also in multis. Rows without a
    path are kept, such as the errors of a failed multi. All zxids and times are returned."""
    skipped = 0
    for log in recording.logs:
        rows = [row for batch in read_log(log) for row in batch.to_pylist()]
        for text in ("/multi", "/a/child", "/nothing"):
            for chunk in (333, 4 << 20):
                filters = Filters(mentions=(text.encode(), b"/tt"))
                reader = LogReader(log, filters=filters, chunk=chunk)
                blocks = list(reader.blocks())
                kept = [row for found in blocks for row in found.batch.to_pylist()]

                def needed(found: list[Any], text: str = text) -> list[Any]:
                    return [row for row in found if row["path"] is None or text in row["path"]]

                assert needed(kept) == needed(rows)
                skipped += len(rows) - len(kept)
                zxids = [zxid for found in blocks for zxid in found.zxids.tolist()]
                assert zxids == sorted({row["zxid"] for row in rows})
    assert skipped > 1000


def test_heads_are_those_of_all_records(recording: Any) -> None:
    """Zxids and times without the bodies equal those of the rows."""
    for log in recording.logs:
        rows = [row for batch in read_log(log) for row in batch.to_pylist()]
        reader = LogReader(log, chunk=333)
        heads = list(reader.heads())
        found = [
            (zxid, time)
            for head in heads
            for zxid, time in zip(head.zxids.tolist(), head.times.tolist(), strict=True)
        ]
        of_rows = {row["zxid"]: round(row["time"].timestamp() * 1000) for row in rows}
        assert found == sorted(of_rows.items())
        assert (reader.first_zxid, reader.last_zxid) == (found[0][0], found[-1][0])
        assert reader.transactions == len(found)


FIELD = re.compile(r"^  (\w+) = (.*)$", re.MULTILINE)


def test_every_znode_is_what_the_snapshot_formatter_prints(recording: Any) -> None:
    """All znodes and sessions of all snapshots are equal: plain (3.4, 3.5), gzip (3.6) and snappy
    (3.9)."""
    suffixes = Counter(path.suffix for path in recording.snapshots)
    wanted = {"3.6.4": ".gz", "3.9.3": ".snappy"}.get(recording.version)
    assert wanted is None or set(suffixes) == {wanted}
    for snapshot in recording.snapshots:
        printed = recording.tool("org.apache.zookeeper.server.SnapshotFormatter", str(snapshot))
        nodes = {}
        for part in printed.partition("Session Details")[0].split("----\n")[1:]:
            path, _, fields = part.partition("\n")
            if path:
                nodes[path] = dict(FIELD.findall(fields))
        rows = [row for batch in read_snapshot(snapshot) for row in batch.to_pylist()]
        paths = [row["path"] for row in rows]
        assert len(nodes) == len(rows) == len(set(paths)) > 3
        for row in rows:
            fields = nodes[row["path"]]
            for name in ("czxid", "mzxid", "pzxid", "ephemeral_owner"):
                shown = {"ephemeral_owner": "ephemeralOwner"}.get(name, f"{name[0]}Zxid")
                assert int(fields[shown], 16) == row[name] % (1 << 64), (row["path"], name)
            for name in ("ctime", "mtime"):
                shown_time = datetime.strptime(fields[name], "%a %b %d %H:%M:%S UTC %Y")
                assert shown_time.replace(tzinfo=UTC) == row[name].replace(microsecond=0)
            assert int(fields["cversion"]) == row["cversion"]
            assert int(fields["dataVersion"]) == row["version"]
            assert int(fields["aclVersion"]) == row["aversion"]
            length = len(row["data"] or b"")
            assert fields.get("dataLength", "0") == str(length)
        sessions = {
            int(session, 16): int(timeout)
            for session, timeout in re.findall(r"^(0x\w+), (\d+), \d+$", printed, re.MULTILINE)
        }
        found = [row for b in read_snapshot_sessions(snapshot) for row in b.to_pylist()]
        assert {row["session"]: row["timeout"] for row in found} == sessions
        assert open_snapshot(snapshot).sessions == sessions


def test_every_type_has_been_in_a_real_log_but_reconfig() -> None:
    """The tests above cover all types. ``multi`` is opened, and ``reconfig`` needs an ensemble."""
    assert set(TYPES.values()) == TYPES_OF_34 | TYPES_OF_35 | {"check", "multi", "reconfig"}


def test_columns_are_what_the_schema_says(recording: Any) -> None:
    """Batches have exactly the declared names, types and nullability."""
    for snapshot in recording.snapshots:
        for batch in read_snapshot(Path(snapshot)):
            assert batch.schema.equals(arrow_schema(SNAPSHOT))
            for column in SNAPSHOT:
                assert column.nullable or not batch[column.name].null_count
    for log in recording.logs:
        for batch in read_log(log):
            for column in TXNLOG:
                assert column.nullable or not batch[column.name].null_count


def test_replayed_tree_digests_are_the_servers_own(recording: Any) -> None:
    """From 3.6 on every applied transaction has the tree's digest, and the replay computes the same
    one.

    This covers what the tools print only in part: milliseconds, multis, containers, TTLs and ends
    of sessions. Older servers write no digests.
    """
    ops = [op for log in recording.logs for op in read_transactions(log)]
    tree, compared = Tree(), 0
    for zxid, of_transaction in groupby(ops, key=lambda op: op.zxid):
        for op in (every := list(of_transaction)):
            tree.apply(op)
        if (digest := every[0].digest) is not None:
            compared += 1
            assert tree.digest == digest & (1 << 64) - 1, hex(zxid)
    assert (compared > 300) == (recording.version > "3.6")


def test_many_znodes_decoded_at_once_are_those_decoded_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With empty and missing content, odd names, times before year 1 and after 9999."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    monkeypatch.setattr(batches, "SNAPSHOT_ROWS", 7)
    for count in (1, 7, 8, 100):
        nodes = []
        for number in range(count):
            name = chance.choice((b"a", b"/consumers", "ä/漢".encode(), b"\xff\xfe", b"x" * 300))
            data = chance.choice((None, b"", b"1", bytes(chance.randrange(200))))
            longs = [chance.choice((0, 1, -1, 1 << 62, -(1 << 63), 1_700_000_000_123))
                     for _ in range(6)]  # fmt: skip
            ints = [chance.choice((0, -1, 2**31 - 1)) for _ in range(3)]
            path = b"/%s/%d" % (name, number) if number else b""
            nodes.append((path, data, (*longs[:4], *ints, *longs[4:])))
        file = tmp_path / "snapshot.2a"
        file.write_bytes(snapshot_of(nodes))
        one_by_one = [
            {"path": path.decode("utf-8", "replace") or "/", "data": data}
            | dict(zip(STAT_FIELDS, stat, strict=True))
            for path, data, stat in nodes
        ]
        for prefix in ("", "/", "/a", "/none"):
            chosen = [row for row in one_by_one if row["path"].startswith(prefix)]
            whole = list(read_snapshot(file, "s", Filters(prefix)))
            found = [row for batch in whole for row in batch.to_pylist()]
            assert len(found) == len(chosen)
            for row, expected in zip(found, chosen, strict=True):
                assert (row["server"], row["file"], row["zxid"]) == ("s", "snapshot.2a", 42)
                for name, value in expected.items():
                    if name in ("ctime", "mtime"):
                        known = abs(value) <= 1 << 60
                        value = datetime.fromtimestamp(value / 1000, UTC) if known else None
                    assert row[name] == value, name
            columns = ["data", "path"]
            some = list(read_snapshot(file, "s", Filters(prefix), columns))
            assert some == [b.select(columns) for b in whole]
