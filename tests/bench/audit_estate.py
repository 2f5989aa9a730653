"""Write logs and snapshots of many groups on three servers, with purged logs and changing members.

Run it as ``python tests/bench/audit_estate.py DIR --groups 100000 --partitions 20 --transactions
50000000``. All servers have the same logs (hard links), but each has purged a different number of
them. Each server has a snapshot of the whole tree at its first log, and one from a few hours before
the end. A share of the groups (``--churn``) loses a member and gets it back. The other groups only
commit. The logs are of a month.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
from audit_logs import _ACL, _SUBSCRIPTION, _TAIL, _digest, _text, _Writer

MEMBERS: Final = 4
PURGED: Final = (0.0, 0.1, 0.2)
"""The share of the logs that each server has purged."""
LATE: Final = (0.994, 0.9945, 0.995)
"""The share of the transactions that are before each server's last snapshot."""
MONTH_MS: Final = 30 * 24 * 3_600_000
_STAT: Final = struct.Struct(">qqqqiiiqq")


class Estate:
    """The state of all groups, in flat lists because there are millions of partitions."""

    def __init__(self, out: _Writer, groups: int, partitions: int) -> None:
        self.out = out
        self.groups = groups
        self.partitions = partitions
        self.sessions = [0] * (groups * MEMBERS)
        self.registered = [0] * (groups * MEMBERS)
        self.owned = [0] * (groups * partitions)
        self.offsets = [0] * (groups * partitions)
        self.versions = [-1] * (groups * partitions)

    def root(self, group: int) -> bytes:
        return b"/consumers/group-%06d" % group

    def member(self, group: int, member: int) -> bytes:
        return b"group-%06d_host%d-1700000000000-%08x" % (group, member, member)

    def owner(self, partition: int) -> int:
        """The member that owns a partition. It never changes."""
        return partition % MEMBERS

    def path(self, group: int, tree: bytes, partition: int) -> bytes:
        return b"%s/%s/events/%d" % (self.root(group), tree, partition)

    def join(self, group: int, member: int) -> None:
        out, at = self.out, group * MEMBERS + member
        out.session += 1
        self.sessions[at] = out.session
        out.add(out.session, 0, -10, struct.pack(">i", 6000) + _digest(out.zxid))
        path = self.root(group) + b"/ids/" + self.member(group, member)
        body = _text(path) + _text(_SUBSCRIPTION) + _ACL + struct.pack(">?i", True, 1)
        out.add(out.session, 1, 1, body + _digest(out.zxid))
        self.registered[at] = out.zxid
        for partition in range(member, self.partitions, MEMBERS):
            name = self.member(group, member) + b"-0"
            body = _text(self.path(group, b"owners", partition)) + _text(name) + _ACL
            body += struct.pack(">?i", True, 1)
            out.add(out.session, 2, 1, body + _digest(out.zxid))
            self.owned[group * self.partitions + partition] = out.zxid

    def leave(self, group: int, member: int) -> None:
        paths = [self.root(group) + b"/ids/" + self.member(group, member)]
        paths += [self.path(group, b"owners", partition)
                  for partition in range(member, self.partitions, MEMBERS)]  # fmt: skip
        body = struct.pack(">i", len(paths)) + b"".join(map(_text, paths))
        session = self.sessions[group * MEMBERS + member]
        self.out.add(session, 0, -11, body + _digest(self.out.zxid))

    def commit(self, group: int, partition: int, more: int) -> None:
        out, at = self.out, group * self.partitions + partition
        self.offsets[at] += more
        self.versions[at] += 1
        version = self.versions[at]
        body = _text(self.path(group, b"offsets", partition)) + _text(b"%d" % self.offsets[at])
        if version:
            tail = _TAIL.pack(version, 2, out.zxid * 7919)
        else:
            tail = _ACL + struct.pack(">?i", False, 1) + _digest(out.zxid)
        session = self.sessions[group * MEMBERS + self.owner(partition)]
        out.add(session, out.zxid & 0xFFFF, 5 if version else 1, body + tail)

    def nodes(self) -> Iterator[tuple[bytes, bytes, int, int]]:
        """Path, content, creating zxid and session of each znode."""
        yield b"", b"", 0, 0
        for group in range(self.groups):
            for member in range(MEMBERS):
                at = group * MEMBERS + member
                path = self.root(group) + b"/ids/" + self.member(group, member)
                yield path, _SUBSCRIPTION, self.registered[at], self.sessions[at]
            for partition in range(self.partitions):
                at = group * self.partitions + partition
                owner = self.owner(partition)
                session = self.sessions[group * MEMBERS + owner]
                name = self.member(group, owner) + b"-0"
                yield self.path(group, b"owners", partition), name, self.owned[at], session
                content = b"%d" % self.offsets[at]
                yield self.path(group, b"offsets", partition), content, self.owned[at], 0

    def snapshot(self, file: Path) -> int:
        """Write the whole tree as a server does, and return its number of znodes."""
        parts = [struct.pack(">4siq", b"ZKSN", 2, 0), struct.pack(">ii", 0, 0)]
        count = check = 0
        check = 1
        with file.open("wb") as out:

            def flush() -> None:
                nonlocal check
                block = b"".join(parts)
                check = zlib.adler32(block, check)
                out.write(block)
                parts.clear()

            for path, content, zxid, session in self.nodes():
                stat = _STAT.pack(zxid, zxid, 0, 0, 0, 0, 0, session, zxid)
                parts += (_text(path), _text(content), struct.pack(">q", 0), stat)
                count += 1
                if len(parts) > 100_000:
                    flush()
            parts.append(_text(b"/"))
            flush()
            out.write(struct.pack(">q", check) + _text(b"/"))
        return count


def write_estate(
    folder: Path,
    groups: int,
    transactions: int,
    partitions: int = 20,
    churn: float = 0.1,
    per_file: int = 125_000,
    seed: int = 1,
) -> list[Path]:
    """Write the directories of three servers and return them. The logs have ``transactions``
    transactions or slightly more."""
    rng = random.Random(seed)
    every = folder / "every"
    every.mkdir(parents=True)
    out = _Writer(every, per_file, max(1, MONTH_MS // transactions))
    estate = Estate(out, groups, partitions)
    servers = [folder / f"zk{number + 1}" for number in range(len(PURGED))]
    for server in servers:
        server.mkdir()
    purged = [int(transactions * share) for share in PURGED]
    for group in range(groups):
        for member in range(MEMBERS):
            estate.join(group, member)
    begins = [0] * len(PURGED)
    late = list(zip(LATE, servers, strict=True))
    returns = max(1, (transactions - out.count) // max(1, int(groups * churn)))
    while out.count < transactions:
        for number, least in enumerate(purged):
            if least and not begins[number] and out.count >= least:
                out.flush()  # the server's oldest log begins here, after its snapshot
                begins[number] = out.zxid + 1
                estate.snapshot(servers[number] / f"snapshot.{out.zxid:x}")
        if late and out.count >= int(transactions * late[0][0]):
            out.flush()
            estate.snapshot(late.pop(0)[1] / f"snapshot.{out.zxid:x}")
        if rng.random() < 1 / returns:
            group, member = rng.randrange(groups), rng.randrange(MEMBERS)
            estate.leave(group, member)
            estate.join(group, member)
        estate.commit(int(rng.random() * groups), int(rng.random() * partitions), 100)
    out.flush()
    for number, server in enumerate(servers):
        for log in every.iterdir():
            if int(log.name[4:], 16) >= begins[number]:
                os.link(log, server / log.name)
    for log in every.iterdir():
        log.unlink()
    every.rmdir()
    return servers


def main() -> None:
    """Write the files and print their size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--transactions", type=int, default=50_000_000)
    parser.add_argument("--churn", type=float, default=0.1)
    parser.add_argument("--per-file", type=int, default=125_000, help="transactions in a log")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    servers = write_estate(
        given.folder, given.groups, given.transactions, given.partitions, given.churn,
        given.per_file, given.seed,
    )  # fmt: skip
    for server in servers:
        files = list(server.iterdir())
        logs = sum(file.name.startswith("log.") for file in files)
        size = sum(file.stat().st_size for file in files) >> 20
        sys.stdout.write(f"{server}: {logs} logs, {len(files) - logs} snapshots, {size:,} MiB\n")


if __name__ == "__main__":
    main()
