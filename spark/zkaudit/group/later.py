"""Facts that only later events of a group show.

The fold reads commits in order, and there are too many to keep in memory. So other events are read
twice: first by ``LaterEvents``, then by the fold.

- A session may register after it has written an offset, as a reconnecting member does. So all
  registrations are needed to know whether a session belongs to a member.
- A znode that was created in a log gap is first seen at its end. So an owner whose end is listed
  by the close of its session was the owner of every commit since the log gap. Events other than
  registrations and markers of migrations are needed only behind log gaps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from zkaudit.group.coverage import Coverage
from zkaudit.group.events import FROM_SNAPSHOT, Act, Event, Shown
from zkaudit.group.znodes import IDS, MIGRATION, OWNERS, Znodes

_MARKER: Final = "/migration"


class FirstEvent(NamedTuple):
    """The first creation or deletion of an owner znode in a segment."""

    zxid: int
    idx: int
    time: int | None
    is_create: bool
    listed_by: int | None = None
    """The session whose close lists the znode, if that is how it was deleted."""
    expired: bool = False


class Listed:
    """Finds znodes that were created in a log gap and are deleted by the end of a session.

    The operation that closes a session lists the znodes that it deletes. If the segment does not
    show the creation of one, it was created in the log gap before it.

    Args:
        coverage: the segments of the history.
    """

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._created: dict[int, dict[str, int]] = {}

    def create(self, event: Event) -> None:
        """Record the creation of a znode."""
        if event.path is not None:
            created = self._created.setdefault(event.session, {})
            created[event.path] = self._coverage.segment(event.zxid)

    def close(self, event: Event) -> Iterable[str]:
        """Return the znodes that the end of a session deletes and that were not created in the same
        segment of the log."""
        created, here = self._created.pop(event.session, {}), self._coverage.segment(event.zxid)
        return [path for path in event.deleted or () if created.get(path) != here]


class LaterEvents:
    """What rules need to know about later events: what each session does until its end, and the
    first event of each owner znode in each segment."""

    def __init__(self, coverage: Coverage, shown: Iterable[Shown] = ()) -> None:
        self._coverage = coverage
        self._znodes = Znodes()
        self._listed = Listed(coverage)
        self._first: dict[tuple[str, int], FirstEvent] = {}
        self._closes: dict[int, int] = {}
        self._names: dict[tuple[str, str, int], set[str]] = {}
        self._migrations: set[tuple[str, str, int]] = set()
        self._markers: set[tuple[str, str, int]] = set()
        for znode in shown:
            self._read_shown(znode)

    def first(self, path: str, segment: int) -> FirstEvent | None:
        """Return the first creation or deletion of an owner znode in a segment."""
        return self._first.get((path, segment))

    def closed(self, session: int | None) -> int | None:
        """Return the zxid at which a session ended; ``None`` if the logs do not show it."""
        return None if session is None else self._closes.get(session)

    def names(self, chroot: str, group: str, session: int) -> Collection[str]:
        """Return the consumer ids that a session registered in the group."""
        return self._names.get((chroot, group, session), ())

    def moves(self, chroot: str, group: str, session: int) -> bool:
        """Return whether a session writes the group's migration marker at any time."""
        return (chroot, group, session) in self._migrations

    def shows_marker(self, chroot: str, group: str, segment: int) -> bool:
        """Return whether a snapshot in a segment has the group's migration marker."""
        return (chroot, group, segment) in self._markers

    def only_member(self, chroot: str, group: str, session: int) -> str | None:
        """Return the consumer id that a session registered in the group; ``None`` unless it
        registered exactly one."""
        names = self.names(chroot, group, session)
        return next(iter(names)) if len(names) == 1 else None

    def read(self, event: Event) -> None:
        """Read the next event. Writes of offsets are ignored."""
        match event.act:
            case Act.CLOSE:
                self._close(event)
            case Act.SET if event.path is not None:
                if event.path.endswith(_MARKER):
                    self._mark(event.path, event.session)
            case Act.CREATE | Act.DELETE if event.path is not None:
                self._mark(event.path, event.session)
                created = event.act is Act.CREATE
                first = FirstEvent(event.zxid, event.idx, event.time, created)
                self._change(event.path, event.session, first)
                if created:
                    self._listed.create(event)

    def _mark(self, path: str, session: int) -> None:
        znode = self._znodes[path]
        if znode is not None and znode.tree == MIGRATION:
            self._migrations.add((znode.chroot, znode.group, session))

    def _close(self, event: Event) -> None:
        if event.session in self._closes:
            return
        self._closes[event.session] = event.zxid
        for path in self._listed.close(event):
            first = FirstEvent(event.zxid, 0, event.time, False, event.session, event.cxid == 0)
            self._change(path, event.session, first)

    def _read_shown(self, shown: Shown) -> None:
        znode = self._znodes[shown.path] if shown.path.endswith(_MARKER) else None
        if znode is not None and znode.tree == MIGRATION:
            segment = self._coverage.segment(shown.zxid + 1)
            self._markers.add((znode.chroot, znode.group, segment))
        elif shown.is_ephemeral:
            first = FirstEvent(shown.czxid, FROM_SNAPSHOT, shown.ctime, True)
            self._change(shown.path, shown.session, first)

    def _change(self, path: str, session: int, event: FirstEvent) -> None:
        znode = self._znodes[path]
        if znode is None:
            return
        if znode.tree == IDS and (event.is_create or event.listed_by is not None):
            self._names.setdefault((znode.chroot, znode.group, session), set()).add(znode.name)
        if znode.tree == OWNERS:
            place = path, self._coverage.segment(event.zxid)
            before = self._first.get(place)
            if before is None or event[:2] < before[:2]:
                self._first[place] = event
