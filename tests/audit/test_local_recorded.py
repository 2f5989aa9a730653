"""``zkaudit who`` and ``zkaudit log`` say the same from parts of a recorded log as from all of it.

The parts are what follows a snapshot, or what several servers have together. They are cut at random
transactions. ``AUDIT_SEED`` replays a failure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from zkaudit.decode.batches import LogReader
from zkaudit.group import Lifetime, Write, znode_of
from zkaudit.local.history import Question, read
from zkaudit.local.log import entries
from zkaudit.local.who import Answer, who

from tests.audit.corpus.held_out import HELD_OUT, HELD_OUT_OWNERSHIP, HELD_OUT_REAL
from tests.audit.corpus.incidents import WRITTEN_WITH_THE_RULES, Corpus
from tests.audit.corpus.play import unpacked
from tests.audit.snapshots import snapshot_after

SEED = int(os.environ.get("AUDIT_SEED", "20261126"))
CORPORA = (WRITTEN_WITH_THE_RULES, HELD_OUT, HELD_OUT_OWNERSHIP, HELD_OUT_REAL)
DRAWS = 25
GROUPS = 12


@pytest.fixture(scope="module", params=CORPORA, ids=lambda corpus: str(corpus.name))
def logs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a recorded log."""
    corpus: Corpus = request.param
    place = tmp_path_factory.mktemp(corpus.name)
    unpacked(corpus, place)
    return place


def rows_of(logs: Path) -> list[dict[str, Any]]:
    """All operations of the log."""
    (log,) = logs.glob("log.*")
    return [row for batch in LogReader(log).batches() for row in batch.to_pylist()]


def cut(logs: Path, place: Path, rows: list[dict[str, Any]], first: int) -> None:
    """Write the log from a transaction on, and the snapshot before it."""
    place.mkdir()
    (log,) = logs.glob("log.*")
    position = next(row["position"] for row in rows if row["zxid"] == first)
    content = log.read_bytes()
    (place / f"log.{first:x}").write_bytes(content[:16] + content[position:])
    before = [row for row in rows if row["zxid"] < first]
    (place / f"snapshot.{first - 1:x}").write_bytes(snapshot_after(before))


def shown(answer: Answer) -> tuple[object, ...]:
    """What an answer says."""
    owner, offset = answer.owner, answer.offset
    said: object = owner
    if isinstance(owner, Lifetime):
        end = owner.end and owner.end.zxid
        said = (owner.session, owner.member, owner.start_zxid, end, owner.ended)
    return said, (offset.data, offset.zxid) if isinstance(offset, Write) else offset


def test_owners_and_offsets(logs: Path, tmp_path: Path) -> None:
    """The owner, its end, and the offset of a random partition at random times behind the cut."""
    rng = random.Random(SEED)
    rows = [
        row for log in logs.glob("log.*") for b in LogReader(log).batches() for row in b.to_pylist()
    ]
    first = rng.choice(rows[len(rows) // 8 : len(rows) * 7 // 8])["zxid"]
    cut(logs, tmp_path / "cut", rows, first)
    begin = next(row["time"] for row in rows if row["zxid"] == first)
    later = [row for row in rows if row["zxid"] > first and row["path"]]
    for draw in range(DRAWS):
        znode = next(
            znode
            for row in iter(lambda: rng.choice(later), None)
            if (znode := znode_of(row["path"])) is not None and znode.partition is not None
        )
        at: datetime = begin + (rows[-1]["time"] - begin) * rng.random()
        at += timedelta(milliseconds=rng.choice((0, 1)))
        at = min(at, rows[-1]["time"])
        answers = [
            [
                shown(answer)
                for answer in who(
                    Question([str(place)], znode.group, servers=1), znode.topic, znode.partition,
                    at.isoformat(" "),
                )
            ]
            for place in (logs, tmp_path / "cut")
        ]  # fmt: skip
        where = f"{znode.path} at {at}, from {first:#x}: AUDIT_SEED={SEED}, draw {draw}"
        assert answers[0] == answers[1], where


def lines(places: Iterable[Path], group: str, first: int = 0) -> list[tuple[object, ...]]:
    """The changes from a transaction on, without what depends on registrations before it."""
    names = ("zxid", "idx", "kind", "chroot", "topic", "partition", "session", "committed_offset",
             "previous", "lost")  # fmt: skip
    return [
        tuple(getattr(entry, name) for name in names)
        for entry in entries(read(Question([*map(str, places)], group, servers=1)), group)
        if entry.zxid >= first and entry.kind not in ("log gap", "snapshot")
    ]


def some_groups(rows: list[dict[str, Any]], rng: random.Random, first: int = 0) -> list[str]:
    """Groups that are in the log from a transaction on."""
    znodes = {znode_of(row["path"]) for row in rows if row["zxid"] >= first and row["path"]}
    groups = sorted({znode.group for znode in znodes if znode is not None})
    return rng.sample(groups, min(GROUPS, len(groups)))


def test_changes_after_a_snapshot(logs: Path, tmp_path: Path) -> None:
    """Each later change of some groups is the same."""
    rng = random.Random(SEED + 1)
    rows = rows_of(logs)
    first = rng.choice(rows[len(rows) // 8 : len(rows) * 7 // 8])["zxid"]
    cut(logs, tmp_path / "cut", rows, first)
    for group in some_groups(rows, rng, first + 1):
        where = f"{group} from {first:#x}: AUDIT_SEED={SEED}"
        assert lines([logs], group, first) == lines([tmp_path / "cut"], group, first), where


def test_servers_that_have_a_part_each(logs: Path, tmp_path: Path) -> None:
    """Three servers lack different logs, and together have all."""
    rng = random.Random(SEED + 2)
    rows = rows_of(logs)
    (log,) = logs.glob("log.*")
    content = log.read_bytes()
    starts = {row["position"]: row["zxid"] for row in rows}
    cuts = sorted({16, *rng.sample(sorted(starts), 9)})
    servers = [tmp_path / f"zk{number}" for number in range(3)]
    for server in servers:
        server.mkdir()
    for begin, end in zip(cuts, [*cuts[1:], len(content)], strict=True):
        for server in rng.sample(servers, rng.randint(1, 3)):
            part = content[:16] + content[begin:end]
            (server / f"log.{starts[begin]:x}").write_bytes(part)
    servers = [server for server in servers if any(server.iterdir())]
    for group in some_groups(rows, rng):
        assert lines([logs], group) == lines(servers, group), f"{group}: AUDIT_SEED={SEED}"
