"""Write transaction logs of a busy ensemble, such as groups write in weeks, as fast as possible.

There are sessions, registrations, claims (half of the groups claim in a multi), releases, expiries
and refused claims. 19 of 20 transactions are offset commits. One group has a larger share than the
others. Every record is as a server writes it, but digests are invented. Run it alone as ``python
tests/bench/audit_logs.py DIR TRANSACTIONS [TRANSACTIONS_PER_FILE]``.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections import deque
from pathlib import Path
from typing import Final

PER_FILE: Final = 125_000
GROUPS: Final = 40
SHARE: Final = 0.2
"""The share of all transactions that belong to the first group."""

CHURN: Final = 1 / 6000
"""The share of transactions at which a member leaves and returns, followed by a rebalance."""

ZOMBIE: Final = 1 / 100_000
_EPOCH: Final = 1 << 32
_BEGIN_MS: Final = 1_700_000_000_000
_ACL: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
_SUBSCRIPTION: Final = b'{"version":1,"subscription":{"events":1},"pattern":"static"}'
_HEAD: Final = struct.Struct(">qiqqi")
_TAIL: Final = struct.Struct(">iiq")


def _text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


class _Group:
    """One group: its members' sessions, the owners, and the offset of each partition."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.name = f"group-{number}"
        self.in_multi = number % 2 == 1
        partitions = 400 if number == 0 else rng.choice((20, 50, 100))
        root = f"/consumers/{self.name}".encode()
        self.ids = [f"{self.name}_host{i}-1700000000000-{i:08x}".encode() for i in range(8)]
        self.registrations = [_text(root + b"/ids/" + name) for name in self.ids]
        self.sessions = [0] * 8
        self.owner_paths = [_text(b"%s/owners/events/%d" % (root, p)) for p in range(partitions)]
        self.offset_paths = [_text(b"%s/offsets/events/%d" % (root, p)) for p in range(partitions)]
        self.owners = [-1] * partitions
        self.offsets = [0] * partitions
        self.versions = [-1] * partitions


class _Writer:
    """Assigns zxids and times, ``step_ms`` apart, and writes records, ``per_file`` to each file."""

    def __init__(self, folder: Path, per_file: int, step_ms: int = 10) -> None:
        self.folder = folder
        self.step_ms = step_ms
        self.per_file = per_file
        self.zxid = _EPOCH
        self.parts: list[bytes] = []
        self.first = 0
        self.session = 0x100000000000000

    @property
    def count(self) -> int:
        """Number of transactions so far."""
        return self.zxid - _EPOCH

    def add(self, session: int, cxid: int, kind: int, body: bytes) -> None:
        """Write one transaction."""
        self.zxid += 1
        if not self.parts:
            self.first = self.zxid
            self.parts.append(struct.pack(">4siq", b"ZKLG", 2, 0))
        at = _BEGIN_MS + self.count * self.step_ms
        payload = _HEAD.pack(session, cxid, self.zxid, at, kind) + body
        self.parts.append(struct.pack(">qi", zlib.adler32(payload), len(payload)))
        self.parts.append(payload)
        self.parts.append(b"B")
        if len(self.parts) > 3 * self.per_file:
            self.flush()

    def flush(self) -> None:
        """End the file, with some reserved space after the last record."""
        if self.parts:
            (self.folder / f"log.{self.first:x}").write_bytes(b"".join(self.parts) + bytes(1 << 16))
            self.parts = []


def _digest(zxid: int) -> bytes:
    return struct.pack(">iq", 2, zxid * 7919)


def _join(out: _Writer, group: _Group, member: int) -> None:
    out.session += 1
    group.sessions[member] = out.session
    out.add(out.session, 0, -10, struct.pack(">i", 6000) + _digest(out.zxid))
    body = group.registrations[member] + _text(_SUBSCRIPTION) + _ACL
    out.add(out.session, 1, 1, body + struct.pack(">?i", True, 1) + _digest(out.zxid))


def _claim(out: _Writer, group: _Group, member: int, partition: int) -> None:
    owner = group.owner_paths[partition] + _text(group.ids[member] + b"-0") + _ACL
    owner += struct.pack(">?i", True, 1)
    group.owners[partition] = member
    if group.in_multi and group.versions[partition] >= 0:
        group.versions[partition] += 1
        offset = group.offset_paths[partition] + _text(b"%d" % group.offsets[partition])
        offset += struct.pack(">i", group.versions[partition])
        body = struct.pack(">ii", 2, 1) + _text(owner) + struct.pack(">i", 5) + _text(offset)
        out.add(group.sessions[member], 2, 14, body + _digest(out.zxid))
    else:
        out.add(group.sessions[member], 2, 1, owner + _digest(out.zxid))


def _rebalance(out: _Writer, group: _Group, rng: random.Random, went: int) -> None:
    """Release and claim all partitions, as original consumers do."""
    for partition, owner in enumerate(group.owners):
        if owner not in (-1, went):
            body = group.owner_paths[partition] + _digest(out.zxid)
            out.add(group.sessions[owner], 3, 2, body)
    turn = rng.randrange(8)
    for partition in range(len(group.owners)):
        member = (partition + turn) % 8
        if rng.random() < 0.02:  # another member claimed first
            out.add(group.sessions[member], 2, -1, struct.pack(">i", -110))
        _claim(out, group, member, partition)


def _leave(out: _Writer, group: _Group, member: int, expired: bool) -> None:
    paths = [group.registrations[member]]
    paths += [path for path, o in zip(group.owner_paths, group.owners, strict=True) if o == member]
    body = struct.pack(">i", len(paths)) + b"".join(paths)
    out.add(group.sessions[member], 0 if expired else 9, -11, body + _digest(out.zxid))


class History:
    """The logs of one server, which can be continued. A continuation begins a new file."""

    def __init__(
        self,
        folder: Path,
        seed: int = 1,
        per_file: int = PER_FILE,
        churn: float = CHURN,
        groups: int = GROUPS,
    ) -> None:
        self.rng = random.Random(seed)
        self.churn = churn
        folder.mkdir(parents=True, exist_ok=True)
        self.out = _Writer(folder, per_file)
        self.groups = [_Group(number, self.rng) for number in range(groups)]
        self.old: deque[tuple[_Group, int]] = deque(maxlen=50)
        for group in self.groups:
            for member in range(8):
                _join(self.out, group, member)
            _rebalance(self.out, group, self.rng, -1)

    def write(self, transactions: int) -> None:
        """Continue to ``transactions`` transactions in all, or one rebalance more."""
        out, rng, groups = self.out, self.rng, self.groups
        while out.count < transactions:
            dice = rng.random()
            others = len(groups) - 1
            group = groups[0] if rng.random() < SHARE else groups[1 + int(rng.random() * others)]
            if dice < self.churn:
                member = rng.randrange(8)
                self.old.append((group, group.sessions[member]))
                _leave(out, group, member, expired=rng.random() < 0.3)
                _join(out, group, member)
                _rebalance(out, group, rng, member)
                continue
            session = 0
            if dice < self.churn + ZOMBIE and self.old:
                group, session = rng.choice(self.old)
            partition = int(rng.random() * len(group.owners))
            group.offsets[partition] += 1 + int(dice * 500)
            _commit(out, group, partition, session)
        out.flush()


def _commit(out: _Writer, group: _Group, partition: int, session: int) -> None:
    """Write a partition's offset, as the owner if ``session`` is 0."""
    group.versions[partition] += 1
    version = group.versions[partition]
    zxid = out.zxid
    if version:
        tail = _TAIL.pack(version, 2, zxid * 7919)
    else:
        tail = _ACL + struct.pack(">?i", False, 1) + _digest(zxid)
    out.add(
        session or group.sessions[group.owners[partition]],
        zxid & 0xFFFF,
        5 if version else 1,
        group.offset_paths[partition] + _text(b"%d" % group.offsets[partition]) + tail,
    )


def write_history(
    folder: Path,
    transactions: int,
    seed: int = 1,
    per_file: int = PER_FILE,
    churn: float = CHURN,
) -> list[Path]:
    """Write the logs of one server and return them. They have ``transactions`` transactions, or one
    rebalance more."""
    History(folder, seed, per_file, churn).write(transactions)
    return sorted(folder.glob("log.*"), key=lambda path: int(path.name[4:], 16))


if __name__ == "__main__":
    made = write_history(
        Path(sys.argv[1]), int(sys.argv[2]), per_file=int(sys.argv[3]) if sys.argv[3:] else PER_FILE
    )
    sys.stdout.write(f"{len(made)} logs, {sum(p.stat().st_size for p in made) >> 20} MiB\n")
