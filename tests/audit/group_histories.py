"""Random histories of groups, with log gaps and snapshots, as the fold takes them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from zkaudit.group import Act, Event, LogGap, Shown

Operation = tuple[Act, str, bytes | None, bool]
_REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static"}'


class RandomGroup:
    """A ZooKeeper that makes random changes to one group, and logs them.

    Its ``events`` and what its snapshots have show (``shown``) are consistent.
    """

    def __init__(self, rng: random.Random, group: str, first: int = 0, steps: int = 100) -> None:
        self.rng = rng
        self.root = f"/consumers/{group}"
        self.group = group
        self.zxid = first
        self.session = first * 100
        self.lists = rng.random() < 0.7  # ZooKeeper 3.6+
        self.nodes: dict[str, tuple[bytes | None, int, int, int]] = {}
        """Data, session, czxid and mzxid of each znode."""
        self.sessions: list[int] = []
        self.events: list[Event] = []
        self.shown: list[Shown] = []
        for _ in range(steps):
            self._step()

    def _log(self, session: int, *operations: Operation) -> None:
        self.zxid += 1
        for idx, (act, path, data, ephemeral) in enumerate(operations):
            self.events.append(
                Event(self.zxid, idx, self.zxid * 10_000, session, act, path, data, ephemeral)
            )
            if act is Act.CREATE:
                self.nodes[path] = (data, session if ephemeral else 0, self.zxid, self.zxid)
            elif act is Act.DELETE:
                self.nodes.pop(path)
            else:
                self.nodes[path] = (data, *self.nodes[path][1:3], self.zxid)

    def _step(self) -> None:
        rng = self.rng
        if not self.sessions or rng.random() < 0.06:
            self.session += 1
            self.sessions.append(self.session)
        session = rng.choice(self.sessions)
        if rng.random() < 0.08:
            self._close(session)
            return
        if rng.random() < 0.04:
            self._snapshot()
        if rng.random() < 0.2:
            self._toggle(f"{self.root}/ids/{self.group}_c{session % 4}", _REGISTRATION, session)
            return
        partition = rng.randrange(3)
        owner, offset = (f"{self.root}/{tree}/t-{partition}/0" for tree in ("owners", "offsets"))
        self._use(session, owner, offset)

    def _close(self, session: int) -> None:
        self.sessions.remove(session)
        mine = [path for path, node in self.nodes.items() if node[1] == session]
        self.zxid += 1
        self.events.append(
            Event(self.zxid, 0, self.zxid * 10_000, session, Act.CLOSE,
                  cxid=self.rng.choice((0, 7)), deleted=mine if self.lists else None)
        )  # fmt: skip
        for path in mine:
            del self.nodes[path]

    def _use(self, session: int, owner: str, offset: str) -> None:
        """Claim or release a partition, or write its offset, or both in one multi."""
        rng = self.rng
        text = rng.choice((f"{self.group}_c{session % 4}-0".encode(), b"odd\xff"))
        if rng.random() < 0.1 and owner in self.nodes and offset in self.nodes:
            both = [(Act.DELETE, owner, None, False), (Act.SET, offset, b"3", False)]
            self._log(self.nodes[owner][1] or session, *rng.sample(both, 2))
        elif rng.random() < 0.5:
            self._toggle(owner, text, session)
        elif rng.random() < 0.2 and owner not in self.nodes and offset in self.nodes:
            touch = (Act.SET, offset, self.nodes[offset][0], False)
            self._log(session, (Act.CREATE, owner, text, True), touch)
        elif offset not in self.nodes:
            self._log(session, (Act.CREATE, offset, b"1", False))
        elif rng.random() < 0.1:
            self._log(session, (Act.DELETE, offset, None, False))
        else:
            value = str(rng.randrange(9)).encode() if rng.random() < 0.9 else b"9" * 19
            self._log(session, (Act.SET, offset, value, False))

    def _toggle(self, path: str, data: bytes, session: int) -> None:
        gone = (Act.DELETE, path, None, False)
        create = (Act.CREATE, path, data, self.rng.random() < 0.95)
        if path not in self.nodes:
            self._log(session, create)
        elif self.rng.random() < 0.2:
            self._log(session, gone, create)
        else:
            self._log(session, gone)

    def _snapshot(self) -> None:
        for path, (data, session, czxid, mzxid) in self.nodes.items():
            if session or "/offsets/" in path:
                self.shown.append(
                    Shown(self.zxid, path, data, czxid, czxid * 10_000, mzxid, mzxid * 10_000,
                          session)
                )  # fmt: skip


def cut(rng: random.Random, groups: Sequence[RandomGroup]) -> tuple[list[Event], list[LogGap]]:
    """Drop the front, or parts of the middle, or nothing. The groups follow one another."""
    events = [event for group in groups for event in group.events]
    first, last = events[0].zxid, events[-1].zxid
    log_gaps: list[LogGap] = []
    if rng.random() < 0.5:
        first += rng.randrange(1, 60)
        log_gaps.append((0, first))
    for group in groups:
        if rng.random() < 0.6:
            begin = rng.randrange(group.events[0].zxid, group.events[-1].zxid)
            log_gaps.append((begin, min(begin + rng.randrange(2, 40), last)))
    log_gaps = [gap for gap in log_gaps if gap[0] == 0 or gap[0] >= first]
    log_gaps = [
        gap
        for number, gap in enumerate(log_gaps)
        if all(end <= gap[0] for _, end in log_gaps[:number])
    ]  # as in real logs, gaps do not overlap
    logged = [
        event
        for event in events
        if event.zxid >= first and not any(a < event.zxid < b for a, b in log_gaps)
    ]
    return logged, log_gaps
