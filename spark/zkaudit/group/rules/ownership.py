"""Rules about owners."""

from __future__ import annotations

from collections.abc import Iterable

from zkaudit.group.coverage import UNKNOWN
from zkaudit.group.events import Ended, Lifetime, Moment
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.words import partition_of, who
from zkaudit.group.znodes import IDS, OWNERS
from zkaudit.text import hex_of


class ForeignReleases(Rule):
    """Finds owner znodes that were deleted by a session other than their own.

    The severity is below critical if both sessions belong to one member, because then no other
    member consumes the partition. A znode that is older than the logs, or than the last log gap,
    cannot belong to a session that began later.
    """

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Check which session deleted an owner znode."""
        if lifetime.znode.tree != OWNERS:
            return
        if lifetime.ended is Ended.FOREIGN_DELETE:
            yield self._finding(lifetime, is_hidden=False)
        elif lifetime.ended is Ended.UNKNOWN and self.group.is_new(lifetime.ended_by):
            yield self._finding(lifetime, is_hidden=True)

    def _finding(self, owned: Lifetime, is_hidden: bool) -> Finding:
        """Return the finding. ``is_hidden``: a log gap hides whose znode it was."""
        group = self.group.name
        end, deleter = owned.end, owned.ended_by
        assert end is not None
        assert deleter is not None
        member = self.group.member(deleter)
        owner = None if is_hidden else owned.session
        same = member is not None and member == owned.member and owner is not None
        what = f"Session {hex_of(deleter)}" if member is None else who(group, member, deleter)
        what += f" deleted the owner znode of {partition_of(owned.znode)} of group {group} that "
        if same and owner is not None:
            what += f"belonged to its other session {hex_of(owner)}."
        else:
            of = self._hidden(owned) if is_hidden else self._owner(owned)
            what += (
                f"belonged to {of}. From then on another member could claim the "
                "partition while that member still consumed it."
            )
        evidence = [Evidence("ownership", end.zxid, end.idx, deleter, "deleted")]
        start = owned.start
        if start is not UNKNOWN and not is_hidden:
            evidence.insert(0, Evidence("ownership", start.zxid, start.idx, owner, "claimed"))
        return Finding(
            severity="medium" if same else "critical",
            kind="foreign release",
            basis="inferred" if is_hidden and member is not None else "proven",
            sentence=what,
            evidence=tuple(evidence),
            zxid=end.zxid,
            time=end.time,
            topic=owned.znode.topic,
            partition=owned.znode.partition,
            member=None if is_hidden else owned.member,
            session=owner,
        )

    def _hidden(self, owned: Lifetime) -> str:
        when = "before the logs begin" if owned.start is UNKNOWN else "before the end of a log gap"
        return f"a session that had claimed it {when}"

    def _owner(self, owned: Lifetime) -> str:
        if owned.session is None:
            return "no session, as it is not ephemeral"
        if owned.member is None:
            return f"session {hex_of(owned.session)}"
        return who(self.group.name, owned.member, owned.session)


class TwoSessions(Rule):
    """Finds members that have owner znodes in one session while they are registered in another."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._registered: dict[str | None, Lifetime] = {}
        self._pairs: dict[str, tuple[Lifetime, Lifetime]] = {}
        """Owner and registration, by the path of the owner znode."""

    def began(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Compare the session of a znode with those of the member's other znodes."""
        if lifetime.session is None:
            return ()
        if lifetime.znode.tree == IDS:
            self._registered[lifetime.znode.name] = lifetime
            for owned in self.group.owned_by(lifetime.znode.name):
                self._compare(owned, lifetime)
        elif lifetime.znode.tree == OWNERS and lifetime.member in self._registered:
            self._compare(lifetime, self._registered[lifetime.member])
        return ()

    def _compare(self, owned: Lifetime, registered: Lifetime) -> None:
        exist = self.group.exists(owned) and self.group.exists(registered)
        if exist and owned.session not in (None, registered.session):
            self._pairs[owned.znode.path] = owned, registered

    def ended(self, lifetime: Lifetime) -> Iterable[Finding]:
        """Report the member if it no longer has znodes in two sessions."""
        znode = lifetime.znode
        paths = [znode.path]
        if znode.tree == IDS:
            self._registered.pop(znode.name, None)
            paths = [owned.znode.path for owned in self.group.owned_by(znode.name)]
        for path in paths:
            pair = self._pairs.pop(path, None)
            contradicted = lifetime.ended is Ended.UNKNOWN and lifetime.last_seen is None
            if pair is not None and not contradicted:
                yield from self._finding(*pair, lifetime.end)

    def finish(self, end: Moment) -> Iterable[Finding]:
        """Report the members that still have znodes in two sessions."""
        for owned, registered in self._pairs.values():
            yield from self._finding(owned, registered, None)

    def _finding(
        self, owned: Lifetime, registered: Lifetime, end: Moment | None
    ) -> Iterable[Finding]:
        begin = max(owned.start, registered.start)  # type: ignore[type-var]
        assert isinstance(begin, Moment)
        assert owned.session is not None
        assert registered.session is not None
        if end is not None and end.zxid <= begin.zxid:
            return
        yield Finding(
            severity="high",
            kind="one consumer id on two sessions",
            basis="proven",
            sentence=f"Member {owned.member} of group {self.group.name} was registered in session "
            f"{hex_of(registered.session)} while {partition_of(owned.znode)} was owned under its "
            f"name by session {hex_of(owned.session)}. The owner znode disappears when that "
            "session ends.",
            evidence=(
                Evidence("ownership", owned.start_zxid, None, owned.session, "owner znode"),
                Evidence(
                    "registrations", registered.start_zxid, None, registered.session, "registration"
                ),
            ),
            zxid=begin.zxid,
            time=begin.time,
            end_zxid=None if end is None else end.zxid,
            end_time=None if end is None else end.time,
            topic=owned.znode.topic,
            partition=owned.znode.partition,
            member=owned.member,
            session=owned.session,
        )
