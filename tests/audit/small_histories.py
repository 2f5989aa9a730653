"""Small histories, and ``write``, which writes them as the logs and the snapshot of one server."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from zkaudit.decode.txnlog import TXN_HEADER

from tests.audit.snapshots import snapshot_of
from tests.audit.test_txnlog import log, text

TAKEN: Final = 100
"""zxid of the snapshot."""
START_MS: Final = 50
THRESHOLDS: Final[dict[str, Any]] = {"jump_rate": 1000.0, "stalled_ms": 60_000}
_TOPIC: Final = json.dumps({"partitions": {"0": [1], "1": [1]}}).encode()
_WANTS: Final = json.dumps(
    {"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "17"}
).encode()


def at(ms: int) -> datetime:
    """A time."""
    return datetime.fromtimestamp(ms / 1000, UTC)


class History:
    """A snapshot, and the commits after it, below a chroot: groups ``g`` and ``other`` with two
    members each."""

    def __init__(self, chroot: str = "", number: int = 0) -> None:
        """``number``: each history has other sessions."""
        self.chroot = chroot
        self.znodes = [(f"{chroot}/brokers/topics/t", _TOPIC, 0)]
        """Path, content and session of each."""
        self.commits: list[tuple[int, int, str, int]] = []
        """Time, session, path and offset of each."""
        self._first = {"g": 100 * number + 10, "other": 100 * number + 20}
        for group, first in self._first.items():
            root = f"{chroot}/consumers/{group}"
            for place, member in enumerate("ab"):
                session = first + place
                self.znodes += [
                    (f"{root}/ids/{member}", _WANTS, session),
                    (f"{root}/owners/t/{place}", f"{member}-0".encode(), session),
                    (f"{root}/offsets/t/{place}", b"10", 0),
                ]
                self._commit(group, place, 15, TAKEN + 2 + len(self.commits))

    def _commit(self, group: str, number: int, offset: int, ms: int) -> None:
        path = f"{self.chroot}/consumers/{group}/offsets/t/{number}"
        self.commits.append((ms, self._first[group] + number, path, offset))

    def stop(self) -> None:
        """Both members of group ``g`` commit, and the second one stops."""
        for number, seconds in enumerate((120, 60)):
            for place, second in enumerate(range(0, seconds, 10)):
                self._commit("g", number, 20 + place, 1000 + 1000 * second)


def write(histories: Sequence[History], place: Path) -> None:
    """Write the directory of a server whose newest log follows its snapshot."""
    place.mkdir()
    opened = struct.pack(">i", 6000)
    log(place / "log.1", TXN_HEADER.pack(1, 1, 1, 0, -10) + opened)
    payloads = [TXN_HEADER.pack(1, 1, TAKEN + 1, START_MS, -10) + opened]
    commits = sorted((commit for one in histories for commit in one.commits), key=lambda c: c[0])
    for zxid, (ms, session, path, offset) in enumerate(commits, TAKEN + 2):
        body = text(path.encode()) + text(b"%d" % offset) + struct.pack(">i", 7)
        payloads.append(TXN_HEADER.pack(session, 1, zxid, ms, 5) + body)
    log(place / f"log.{TAKEN + 1:x}", *payloads)
    znodes = [("", b"", 0), *(znode for one in histories for znode in one.znodes)]
    content = snapshot_of(
        (path.encode(), data, (5, 5, 0, 0, 0, 0, 0, session, 0)) for path, data, session in znodes
    )
    (place / f"snapshot.{TAKEN:x}").write_bytes(content)
