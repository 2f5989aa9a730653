"""The rules of one group: they read the rows of its fold in order and return findings.

``Rules`` calls all rules. ``zkaudit.group.audit_group`` runs a fold and its rules for events in
memory, ``zkaudit.history.batches`` for a group as a stream. So a rule is tested with a few events::

    events = [
        Event(1, 0, None, 5, Act.CREATE, "/consumers/g/owners/t/0", b"g_c-0", True),
        Event(2, 0, None, 6, Act.DELETE, "/consumers/g/owners/t/0"),
    ]
    rows, findings = audit_group(events)
    [finding.kind for finding in findings]  # ["foreign release"]

A new rule:

1. Subclass ``Rule`` and override the methods for the rows that it reads: ``began`` and ``ended``
   of lifetimes (``znode.tree`` has which: ``ids``, ``owners``, ...), ``membership``,
   ``committed``, ``deleted`` of an offset, ``burst`` of a rebalance, ``changed``, ``live_move``,
   ``gap`` for transactions that are missing, ``finish``. Return the findings that are complete. A
   lasting state is kept in the rule until it ends; ``finish`` returns findings about states that
   have not ended.
2. ``self.group`` has the data that rules share: ``live`` lifetimes, the ``member`` behind a
   session, ``coverage``, ``limits``, and ``facts`` from outside the group: sessions, brokers,
   topics, the end of the history. State that two rules need belongs there.
3. Nothing may depend on what happened in a log gap. ``Group.exists`` and ``is_new`` help.
4. State is kept for members and partitions, never for commits: a group may have millions.
5. Add the rule to ``RULES``, its kind to ``zkaudit.findings.kinds``, and a test with a few events
   to ``tests/audit/test_rules.py``, with a case that resembles the fault but is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from zkaudit.group.coverage import UNKNOWN, Coverage
from zkaudit.group.events import (
    Began,
    Burst,
    Change,
    Commit,
    Deleted,
    Event,
    Lifetime,
    Membership,
    Moment,
    Row,
)
from zkaudit.group.facts import Facts
from zkaudit.group.later import LaterEvents
from zkaudit.group.live_moves import LiveMove
from zkaudit.group.rules.layouts import ForeignOwners, UnreadableRegistrations
from zkaudit.group.rules.load import Contention, Herds, Storms
from zkaudit.group.rules.members import Flapping, Stalled, StuckPartitions
from zkaudit.group.rules.moves import (
    CommitsPastMoves,
    LegacyMembers,
    OutOfOrder,
    StandsStill,
    TooEarly,
    TwoOperators,
    Unlocked,
    WrittenByMembers,
)
from zkaudit.group.rules.offsets import WrongOffsets
from zkaudit.group.rules.ownership import ForeignReleases, TwoSessions
from zkaudit.group.rules.resets import Jumps, StaleOffsets
from zkaudit.group.rules.rule import Evidence, Finding, Group, Rule
from zkaudit.group.rules.shares import Shares
from zkaudit.group.rules.unowned import Unclaimed, Unowned
from zkaudit.group.znodes import Znode
from zkaudit.limits import Limits

__all__ = ["RULES", "Evidence", "Finding", "Group", "Rule", "Rules"]

RULES: Final[tuple[type[Rule], ...]] = (
    ForeignReleases,
    TwoSessions,
    Unowned,
    Unclaimed,
    Shares,
    Flapping,
    Stalled,
    StuckPartitions,
    Storms,
    Contention,
    Herds,
    ForeignOwners,
    UnreadableRegistrations,
    CommitsPastMoves,
    WrongOffsets,
    Jumps,
    StaleOffsets,
    TooEarly,
    OutOfOrder,
    WrittenByMembers,
    TwoOperators,
    Unlocked,
    LegacyMembers,
    StandsStill,
)


_METHODS: Final = (
    "began", "ended", "membership", "committed", "deleted", "changed", "burst", "live_move",
)  # fmt: skip
"""Methods of a rule that are called with a row."""


class Rules:
    """Applies all rules to the history of one group.

    Args:
        coverage: the segments of the history, as for ``Fold``.
        facts: data that concern all groups.
        limits: the thresholds.
    """

    def __init__(self, coverage: Coverage, facts: Facts, limits: Limits) -> None:
        self.group: Group | None = None
        """``None`` before the first row."""
        self.later: LaterEvents | None = None
        """The same history, read to its end. Without it, a session that writes an offset before it
        registers is not recognized as a member's."""
        self._outside = coverage, facts, limits
        self._with_gaps = bool(coverage.log_gaps)
        self._rules: list[Rule] = []
        self._methods: dict[str, list[Callable[[Any], Iterable[Finding]]]] = {}
        self._committed: list[Callable[[Commit], Iterable[Finding]]] = []

    def read(self, row: Row | LiveMove) -> list[Finding]:
        """Pass the next row from ``Fold`` to the rules. Return the findings that are complete."""
        findings: list[Finding] = []
        if isinstance(row, Commit):
            if self.group is None or self._with_gaps:
                self._prepare(row.znode, row, findings)
            for read in self._committed:
                findings += read(row)
        elif isinstance(row, Began):
            start = row.lifetime.start
            at = None if start is UNKNOWN else start
            group = self._prepare(row.lifetime.znode, at, findings)
            group.began(row.lifetime)
            self._call("began", row.lifetime, findings)
        elif isinstance(row, Deleted):
            self._prepare(row.znode, Moment(*row[1:4]), findings)
            self._call("deleted", row, findings)
        elif isinstance(row, Change):
            group = self._prepare(row.znode, row.event, findings)
            group.changed(row)
            self._call("changed", row, findings)
        elif isinstance(row, Membership):
            self._prepare(row.registration.znode, None, findings)
            self._call("membership", row, findings)
        elif isinstance(row, Burst):
            self._prepare(row.znode, None, findings)
            self._call("burst", row, findings)
        elif isinstance(row, LiveMove):
            self._prepare(row.znode, None, findings)
            self._call("live_move", row, findings)
        elif isinstance(row, Lifetime) and row.end is not None:
            group = self._prepare(row.znode, row.end, findings)
            group.ended(row)
            self._call("ended", row, findings)
        return findings

    def finish(self, end: Moment) -> list[Finding]:
        """Return the findings that are complete at the end of the history. May be called again with
        a later end."""
        return [finding for rule in self._rules for finding in rule.finish(end)]

    def _call(self, method: str, row: Any, findings: list[Finding]) -> None:
        for read in self._methods[method]:
            findings += read(row)

    def _prepare(
        self, znode: Znode, at: Moment | Event | Commit | None, findings: list[Finding]
    ) -> Group:
        group = self.group
        if group is None:
            self.group = group = Group(znode.chroot, znode.group, *self._outside)
            group.later = self.later
            self._rules = [rule(group) for rule in RULES]
            for name in _METHODS:
                self._methods[name] = [
                    getattr(rule, name)
                    for rule in self._rules
                    if getattr(type(rule), name) is not getattr(Rule, name)
                ]
            self._committed = self._methods["committed"]
        if self._with_gaps and at is not None:
            segment = group.coverage.segment(at.zxid)
            if segment > group.segment:
                for rule in self._rules:
                    findings += rule.gap()
                group.enter(segment)
            if segment == group.coverage.last_segment or at.zxid <= group.coverage.end_of(segment):
                group.latest = at
                if group.known is None and group.is_known(at.zxid):
                    group.known = at
        return group
