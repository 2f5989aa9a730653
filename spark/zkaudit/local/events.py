"""A group's history as events of its fold, and the identities of sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from zkaudit.group import Coverage, Event, Fold, LaterEvents, member_of, znode_of
from zkaudit.group.znodes import IDS, OWNERS
from zkaudit.history.facts import shown_of
from zkaudit.local.history import GroupHistory
from zkaudit.schema import CREATES
from zkaudit.text import hex_of, printable

_SERVER_BITS: Final = 56


class Session(NamedTuple):
    """A session of a ZooKeeper client."""

    id: int
    opened_us: int | None = None
    opened_zxid: int | None = None
    timeout_ms: int | None = None

    @property
    def server(self) -> int:
        """Id of the server (``myid``) at which the session was opened."""
        return (self.id & (1 << 64) - 1) >> _SERVER_BITS


@dataclass(slots=True)
class Sessions:
    """The sessions in a group's history."""

    members: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The consumer ids that each session registered."""
    claimants: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The consumer ids that each session wrote into owner znodes."""
    brokers: dict[int, str] = field(default_factory=dict)
    """The id of the broker that each session registered."""
    opened: dict[int, Session] = field(default_factory=dict)
    complete: bool = True
    """Whether there are no log gaps, which may hide registrations."""

    def __getitem__(self, session: int) -> Session:
        return self.opened.get(session, Session(session))

    def member(self, session: int | None) -> str | None:
        """Return the consumer id that a session registered; ``None`` unless it registered exactly
        one."""
        names = self.members.get(session or 0, ())
        return next(iter(names)) if len(names) == 1 else None

    def who(self, session: int | None) -> str:
        """Return the name of a session's client in words: a member, a broker, or another client."""
        if session is None:
            return "an unknown session"
        if session in self.brokers:
            return f"broker {printable(self.brokers[session])}"
        names = self.members.get(session, ())
        if names:
            return f"member {' and '.join(map(printable, sorted(names)))}"
        text = f"session {hex_of(session)}"
        if names := self.claimants.get(session, ()):
            return f"{text} (which claims as {' and '.join(map(printable, sorted(names)))})"
        return f"{text} (not a member's)" if self.complete else f"{text} (never registered here)"


def fold_of(history: GroupHistory, events: Iterable[Event]) -> Fold:
    """Return a new ``Fold`` for a history. ``events``: all events that will be applied to it."""
    coverage = Coverage(history.log_gaps, history.known)
    shown = list(shown_of(history.nodes))
    later = LaterEvents(coverage, shown)
    if history.log_gaps:
        for event in events:
            later.read(event)
    return Fold(coverage, shown, later)


def sessions_of(history: GroupHistory) -> Sessions:
    """Return the sessions in a history, with the members and brokers that opened them."""
    sessions = Sessions(complete=not history.log_gaps)
    creates = history.rows.filter(pc.is_in(history.rows["type"], pa.array(list(CREATES))))
    for table, owner in ((creates, "session"), (history.nodes, "ephemeral_owner")):
        values = [table[name].to_pylist() for name in ("path", owner, "data")]
        for path, session, data in zip(*values, strict=True):
            _name(sessions, path, session, data)
    closes = history.rows.filter(pc.is_valid(history.rows["deleted"]))
    for row in closes.select(["session", "deleted"]).to_pylist():
        for path in row["deleted"]:
            _name(sessions, path, row["session"])
    opened = history.rows.filter(pc.equal(history.rows["type"], "createSession"))
    columns = [
        opened["session"],
        opened["time"].cast(pa.int64()),
        opened["zxid"],
        opened["timeout"],
    ]
    for session in map(Session, *(column.to_pylist() for column in columns)):
        sessions.opened[session.id] = session
    return sessions


def _name(sessions: Sessions, path: str, session: int, data: bytes | None = None) -> None:
    if "/brokers/ids/" in path:
        sessions.brokers[session] = path.rpartition("/")[2]
    elif (znode := znode_of(path)) is not None and znode.tree == IDS:
        sessions.members[session].add(znode.name)
    elif znode is not None and znode.tree == OWNERS and data:
        sessions.claimants[session].add(member_of(data)[0] or "")
