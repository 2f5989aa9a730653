"""Small histories with a quiet group, and changes that leave it quiet or do not.

``write`` writes histories as the logs and the snapshot of one server.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from zkaudit.decode.txnlog import TXN_HEADER
from zkaudit.history.quiet import QuietGroups, TimeRange
from zkaudit.schema import PATH, RUN, SNAPSHOT, TXNLOG_GROUPS, arrow_schema

from tests.audit.snapshots import snapshot_of
from tests.audit.test_txnlog import log, text

TAKEN: Final = 100
"""zxid of the snapshot."""
START_MS: Final = 50
THRESHOLDS: Final[dict[str, Any]] = {"jump_rate": 1000.0, "stalled_ms": 60_000}
Node = dict[str, Any]
Row = dict[str, Any]
Change = Callable[["History"], None]


def at(ms: int) -> datetime:
    """A time."""
    return datetime.fromtimestamp(ms / 1000, UTC)


class History:
    """A snapshot, and what the logs have after it, below a chroot: two groups with two members."""

    def __init__(self, chroot: str = "", number: int = 0) -> None:
        """``number``: each history has other sessions."""
        self.chroot = chroot
        self.znodes: dict[str, Node] = {}
        self.rows: list[Row] = []
        self.stranger = 100 * number + 9
        """A session of a program that is not a member."""
        self.znode("/brokers/topics/t", topic(2))
        for group, first in (("g", 10), ("other", 20)):
            self._group(group, 100 * number + first)

    def _group(self, name: str, first: int) -> None:
        """Two members own a partition each, and commit."""
        for place, member in enumerate("ab"):
            session = first + place
            self.znode(f"/consumers/{name}/ids/{member}", wants({"t": 1}), session)
            self.znode(f"/consumers/{name}/owners/t/{place}", f"{member}-0".encode(), session)
            self.znode(f"/consumers/{name}/offsets/t/{place}", b"10")
            self.commit(name, place, 15)

    def znode(self, path: str, data: bytes | None, session: int = 0, **more: Any) -> None:
        """Put a znode into the snapshot, or replace it."""
        self.znodes[self.chroot + path] = {
            "path": self.chroot + path, "data": data, "czxid": 5, "mzxid": 5, "ctime": at(0),
            "ephemeral_owner": session, **more,
        }  # fmt: skip

    def session(self, name: str = "g", number: int = 0) -> int:
        """The session of a member."""
        path = f"{self.chroot}/consumers/{name}/ids/{'ab'[number]}"
        return int(self.znodes[path]["ephemeral_owner"])

    def log(self, type: str | None, path: str | None = None, **more: Any) -> None:
        """Log an operation after all others."""
        zxid = TAKEN + 2 + len(self.rows)
        path = None if path is None else self.chroot + path
        self.rows.append(
            {"type": type, "path": path, "zxid": zxid, "idx": 0, "time": at(zxid),
             "session": self.stranger, "data": None, "error": None, "deleted": None,
             "kind": None, **more}
        )  # fmt: skip

    def commit(self, name: str, number: int, offset: int, **more: Any) -> None:
        """Log a commit by the owner."""
        given = {"session": self.session(name, number), "data": b"%d" % offset}
        self.log("setData", f"/consumers/{name}/offsets/t/{number}", **given | more)

    def commits(self, number: int, seconds: Iterable[float]) -> None:
        """Commits of a member at these times."""
        for place, second in enumerate(seconds):
            self.commit("g", number, 20 + place, time=at(1000 + int(second * 1000)))


def found(histories: Sequence[History], batches: int = 2) -> QuietGroups:
    """The quiet groups of histories, read in several batches."""
    quiet = QuietGroups(TAKEN, TimeRange(START_MS, **THRESHOLDS))
    for schema, values, read in (
        (arrow_schema(TXNLOG_GROUPS), [row for one in histories for row in one.rows], quiet.rows),
        (arrow_schema(SNAPSHOT), nodes(histories), quiet.nodes),
    ):
        part = pa.schema([f.with_nullable(True) for f in schema if f.name in values[0]])
        size = max(1, -(-len(values) // batches))
        for begin in range(0, len(values), size):
            read(pa.RecordBatch.from_pylist(values[begin : begin + size], part))
    return quiet


def nodes(histories: Iterable[History]) -> list[Node]:
    """The znodes of the snapshot."""
    root = {"path": "/", "data": b"", "czxid": 0, "mzxid": 0, "ctime": at(0), "ephemeral_owner": 0}
    return [root, *(node for one in histories for node in one.znodes.values())]


def names_of(quiet: QuietGroups) -> set[str]:
    """Chroots and names of the quiet groups."""
    return {f"{row['chroot']}/{row['group']}" for row in quiet.table().to_pylist()}


def write(histories: Sequence[History], place: Path) -> None:
    """Write the directory of a server whose newest log follows its snapshot."""
    place.mkdir()
    log(place / "log.1", _payload(1, {"type": "createSession", "time": at(0), "session": 1}))
    rows: list[Row] = [{"type": "createSession", "time": at(START_MS), "session": 1}]
    rows += (row for one in histories for row in one.rows if row["kind"] is None)
    rows.sort(key=lambda row: row["time"])
    payloads = [_payload(TAKEN + 1 + place, row) for place, row in enumerate(rows)]
    log(place / f"log.{TAKEN + 1:x}", *payloads)
    content = snapshot_of(
        (
            node["path"].removesuffix("/").encode(), node["data"],
            (node["czxid"], node["mzxid"], _ms(node["ctime"]), 0, 0, 0, 0,
             node["ephemeral_owner"], 0),
        )
        for node in nodes(histories)
    )  # fmt: skip
    (place / f"snapshot.{TAKEN:x}").write_bytes(content)


def _payload(zxid: int, row: Row) -> bytes:
    path, data = text((row.get("path") or "").encode()), text(row.get("data") or b"")
    match row["type"]:
        case "createSession":
            code, body = -10, struct.pack(">i", 6000)
        case "closeSession":
            deleted = [text(name.encode()) for name in row["deleted"] or ()]
            code, body = -11, struct.pack(">i", len(deleted)) + b"".join(deleted)
        case "error":
            code, body = -1, struct.pack(">i", row["error"])
        case "create":
            acl = struct.pack(">ii", 1, 31) + text(b"world") + text(b"anyone")
            code, body = 1, path + data + acl + struct.pack(">?i", b"/ids/" in path, 1)
        case "setData":
            code, body = 5, path + data + struct.pack(">i", 7)
        case "delete":
            code, body = 2, path
    return TXN_HEADER.pack(row["session"], 1, zxid, _ms(row["time"]), code) + body


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def topic(count: int, first: int = 0) -> bytes:
    """The content of a topic's znode with ``count`` partitions."""
    return json.dumps({"partitions": {str(first + n): [1] for n in range(count)}}).encode()


def wants(topics: dict[str, int], pattern: str = "static", **more: Any) -> bytes:
    """The content of a registration."""
    content = {"version": 1, "subscription": topics, "pattern": pattern, "timestamp": "17"}
    return json.dumps(content | more).encode()


def logs(type: str | None, path: str | None = None, **more: Any) -> Change:
    """An operation of a program that is not a member."""
    return lambda history: history.log(type, path, **more)


def has(path: str, data: bytes | None, session: int | None = None, **more: Any) -> Change:
    """The snapshot has this znode, of a session that no other znode has."""
    return lambda history: history.znode(
        path, data, history.stranger if session is None else session, **more
    )


def lacks(path: str) -> Change:
    """The snapshot does not have this znode."""
    return lambda history: history.znodes.__delitem__(history.chroot + path)


def of_member(type: str, **more: Any) -> Change:
    """An operation of member a."""
    return lambda history: history.log(type, session=history.session(), **more)


def commits(offset: int, **more: Any) -> Change:
    """A commit by member a."""
    return lambda history: history.commit("g", 0, offset, **more)


def closed(name: str) -> Change:
    """A closeSession that lists a znode."""
    return lambda history: history.log("closeSession", deleted=[history.chroot + name])


def two_commit(first: Iterable[float], second: Iterable[float]) -> Change:
    """Commits of both members, at these seconds."""

    def change(history: History) -> None:
        history.commits(0, first)
        history.commits(1, second)

    return change


def silent(history: History) -> None:
    """No member commits."""
    history.rows.clear()
    history.log("createSession")


def one_session(history: History) -> None:
    """Both members have the session of the first one, and the second one stops."""
    silent(history)
    for path, data in (("ids/b", wants({"t": 1})), ("owners/t/1", b"b-0")):
        history.znode(f"/consumers/g/{path}", data, history.session())
    two_commit(range(0, 120, 10), range(0, 60, 10))(history)


def all_of(*changes: Change) -> Change:
    """Several changes."""

    def change(history: History) -> None:
        for one in changes:
            one(history)

    return change


def mine(path: str, data: bytes | None, **more: Any) -> Change:
    """The snapshot has this znode, of the session of member a."""
    return lambda history: history.znode(path, data, history.session(), **more)


IDS, OWNER, OFFSET = (f"/consumers/g/{name}" for name in ("ids/a", "owners/t/0", "offsets/t/0"))
BUSY: Final[dict[str, Change]] = {
    "a member joined": logs("create", "/consumers/g/ids/c"),
    "a member left": logs("delete", IDS),
    "an owner released": logs("delete", OWNER),
    "a claim": logs("create", "/consumers/g/owners/t/5"),
    "a registration was written": logs("setData", IDS, data=b"15"),
    "an offset was created": logs("create", OFFSET, data=b"16"),
    "an offset that is not a number": commits(16, data=b"x"),
    "an offset of a partition that is not a number": logs("setData", OFFSET[:-1] + "x", data=b"16"),
    "an offset without data": commits(16, data=None),
    "a tool wrote an offset": logs("setData", OFFSET, data=b"16"),
    "another member wrote the offset": lambda h: h.commit("g", 0, 16, session=h.session("g", 1)),
    "an offset went back": commits(14),
    "an offset is lower than in the snapshot": has(OFFSET, b"16", 0),
    "an offset jumped": commits(1015),
    "an offset jumped after the snapshot": has(OFFSET, b"-1000", 0),
    "an offset was unreadable before": has(OFFSET, b"0x5", 0),
    "an offset was not there before": lacks(OFFSET),
    "a partition without owner": lacks(OWNER),
    "a topic without owners that is in no znode": all_of(
        lacks("/brokers/topics/t"), lacks(OWNER), commits(16)
    ),
    "a session was closed": of_member("closeSession"),
    "a session was closed that lists the member": closed(IDS),
    "the session of a member without a partition was closed": all_of(
        has("/consumers/g/ids/c", wants({"t": 1})), logs("closeSession")
    ),
    "a claim was refused": of_member("error", error=-110),
    "the mode was set": logs("setData", "/consumers/g/live/mode"),
    "it has a mode": has("/consumers/g/live/mode", b"{}", 0),
    "a member acknowledged a mode": has("/consumers/g/live/members/a", b"{}"),
    "it was moved": has("/consumers/g/migration", b"{}", 0),
    "the lock": logs("setData", "/consumers/g/ids"),
    "the owner's session is another one": has(OWNER, b"a-0"),
    "an owner, but not of a partition": mine("/consumers/g/owners/t/1234567890", b"a-0"),
    "an owner that commits nothing is in another session": all_of(silent, has(OWNER, b"a-0")),
    "the owner is not registered": lacks(IDS),
    "the owner is registered in another group": all_of(
        mine(OWNER, b"c-0"), mine("/consumers/other/ids/c", wants({"t": 1}))
    ),
    "the owner has no name": mine(OWNER, b"a"),
    "the owner's name is not UTF-8": mine(OWNER, b"a\xff-0"),
    "a member registered while the snapshot was written": mine(IDS, wants({"t": 1}), czxid=101),
    "a claim while the snapshot was written": mine(OWNER, b"a-0", czxid=101),
    "a registration was set while the snapshot was written": mine(IDS, wants({"t": 1}), mzxid=101),
    "a claim after the start": mine(OWNER, b"a-0", ctime=at(START_MS)),
    "a registration cannot be read": mine(IDS, b"{"),
    "a registration that is nested too deeply": mine(IDS, b"[" * 100_000),
    "a topic that is nested too deeply": has("/brokers/topics/t", b"[" * 100_000, 0),
    "a registration without topics": mine("/consumers/g/ids/c", wants({})),
    "a registration with half a stream": mine(IDS, wants({"t": 0.5})),
    "a registration with an unknown pattern": mine(IDS, wants({"t": 1}, "none")),
    "a registration with a key twice": mine(
        IDS, b'{"subscription":{"t":1,"t":1},"pattern":"static"}'
    ),
    "a member that owns nothing": all_of(
        has("/brokers/topics/t", topic(3), 0), mine("/consumers/g/owners/t/2", b"a-1"),
        has("/consumers/g/ids/c", wants({"t": 1})),
    ),
    "a member owns what it does not want": all_of(
        mine("/consumers/g/owners/u/0", b"a-0"), has("/brokers/topics/u", topic(1), 0)
    ),
    "more partitions than owners": has("/brokers/topics/t", topic(3), 0),
    "an owner of a partition that does not exist": mine("/consumers/g/owners/t/2", b"a-0"),
    "a topic without partitions": has("/brokers/topics/t", topic(0), 0),
    "partitions without 0": has("/brokers/topics/t", topic(2, 1), 0),
    "a topic that cannot be read": has("/brokers/topics/t", b"", 0),
    "a topic changed while the snapshot was written": has(
        "/brokers/topics/t", topic(2), 0, mzxid=101
    ),
    "a topic changed": logs("setData", "/brokers/topics/t", data=topic(2)),
    "a topic was created that a member wants": all_of(
        mine(IDS, wants({"t": 1, "new": 1})), logs("create", "/brokers/topics/new", data=topic(1))
    ),
    "a topic that a member wants has no owners": all_of(
        mine(IDS, wants({"t": 1, "u": 1})), has("/brokers/topics/u", topic(1), 0)
    ),
    "a filter matches a topic that has no owners": all_of(
        mine(IDS, wants({"t|u.*": 1}, "white_list")), has("/brokers/topics/u1", topic(1), 0)
    ),
    "a filter matches a topic that only others own": all_of(
        mine(IDS, wants({"t|u.*": 1}, "white_list")),
        lambda h: h.znode("/consumers/other/owners/u1/0", b"a-0", h.session("other")),
        lambda h: h.znode("/consumers/other/ids/a", wants({"t": 1, "u1": 1}), h.session("other")),
        has("/brokers/topics/u1", topic(1), 0),
    ),
    "a stream has two partitions and a member none": all_of(
        lacks("/brokers/topics/t"), mine("/consumers/g/owners/t/2", b"a-0"),
        has("/consumers/g/ids/c", wants({"t": 1})),
    ),
    "a member stopped": two_commit(range(0, 120, 10), range(0, 60, 10)),
    "a member stopped that shares its session": one_session,
    "a member paused": two_commit(range(0, 120, 10), (0, 10, 20, 80, 90, 110)),
    "the name is ambiguous": logs("delete", "/consumers/g/ids/consumers/x/ids/a"),
}  # fmt: skip
OF_TOPIC: Final = {"a topic changed", "a topic without partitions", "partitions without 0",
                 "a topic that cannot be read", "a topic changed while the snapshot was written",
                 "more partitions than owners", "a member that owns nothing",
                 "a topic that is nested too deeply"}  # fmt: skip
"""The other group has the same topic, and is not quiet either."""
QUIET: Final[dict[str, Change]] = {
    "nothing": lambda history: None,
    "the same offset again": commits(15),
    "a jump below the limit": commits(1014),
    "a new session": logs("createSession"),
    "another session was closed": logs("closeSession"),
    "another write was refused": of_member("error", error=-101),
    "another session's claim was refused": logs("error", error=-110),
    "rows about the logs": all_of(
        logs(None, kind=RUN), logs(None, IDS, kind=PATH)
    ),
    "the offset is newer than the snapshot": has(OFFSET, b"400", 0, mzxid=102),
    "the topic's znode is not in the tree": lacks("/brokers/topics/t"),
    "another topic was deleted": logs("delete", "/brokers/topics/u"),
    "a broker changed": logs("delete", "/brokers/ids/1"),
    "a partition's state changed": logs("setData", "/brokers/topics/t/partitions/0/state"),
    "a persistent znode": has("/consumers/g/ids/c", b"", 0),
    "a container": has("/consumers/g/ids/c", b"", -(2**63)),
    "a znode that no audit reads": has("/consumers/g/owners/t/x", b"", 0),
    "more members than partitions": has("/consumers/g/ids/c", wants({"t": 1})),
    "two streams": mine(IDS, wants({"t": 2})),
    "a filter": mine(IDS, wants({"t|x": 1}, "white_list")),
    "another registration time": mine(IDS, wants({"t": 1}, timestamp="18")),
    "a member that wants a topic without a znode": mine(IDS, wants({"t": 1, "u": 1})),
    "only offsets": all_of(has("/consumers/old/offsets/t/0", b"7", 0)),
    "a member commits rarely": two_commit(range(0, 120, 10), range(0, 120, 30)),
    "both stopped": two_commit(range(0, 60, 10), range(0, 70, 10)),
    "no member commits often": two_commit((0, 120), (0, 200, 600)),
}  # fmt: skip
