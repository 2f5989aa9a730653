"""The two profiles of a ``RebalanceMachine``: the decisions in which the JVM's consumer differs.

``Modern`` is the default. ``Scala`` behaves like Scala 1.1.1 ``ZKRebalancerListener``, including
its faults. Data and pure functions, without state.
"""

from __future__ import annotations

from typing import Final

from zkconsumer.core.zookeeper.view import MemberSpec

EPOCHS: Final = 64
"""Number of sessions after which registration versions restart (see ``commands.Register``)."""


LEAST_PAUSE: Final = 0.1
"""Shortest time in seconds between attempts that are repeated indefinitely, even with
``rebalance.backoff.ms=0``."""


class Modern:
    """The default profile: reads the group, then releases only partitions that it loses. Every
    write is fenced by the session."""

    # DEVIATION-01: the JVM gives up everything before it reads the group.
    releases_first = False
    """Release all partitions, then read members and topics, claim, and start everything again."""
    # DEVIATION-30: the JVM reads everything at every change.
    reads_everything = False
    """Read every znode in every attempt."""
    # DEVIATION-10: the JVM forgets what it owned and read, and reads on meanwhile.
    forgets_positions = False
    """When the session is lost, keep partitions and do not remember positions."""
    # DEVIATION-14: the JVM trusts its watches alone.
    rereads = True
    """Read everything again from time to time, in case a watch was lost."""
    lowers_offsets = False
    """Commit a position that is below the committed offset."""
    recovers = True
    """Register again, and claim blocked partitions later. Otherwise each of these fails the
    attempt, which drops the triggers from before it, but not later ones."""
    # DEVIATION-17: in the JVM a listener that raises fails the attempt.
    needs_listener = False
    """Fail an attempt if the listener raises."""
    # DEVIATION-06: the JVM gives up after rebalance.max.retries attempts, yet stays registered.
    gives_up = False
    """Fail after ``rebalance.max.retries`` attempts, until the next change."""
    reports_refusals = True
    """Raise an error in the application's call if ZooKeeper refuses an operation at the start."""
    # DEVIATION-15: the JVM leaves owner znodes and registration to the session's end.
    cleans_up = True
    """Delete owner znodes that a claim with unknown outcome may have left, and, when the member
    leaves, all its owner znodes and its registration."""

    def epoch(self, sessions: int) -> int:
        """Return the version of the registration in the member's nth session."""
        return (sessions - 1) % EPOCHS

    def takeover_wait(self, session_timeout: float) -> float:
        """Return how many seconds a registration from an earlier session of this member may
        remain."""
        return 1.5 * session_timeout + 1

    def coalesce(self, wait: float) -> float:
        """Return how long changes are collected before an attempt starts."""
        return wait

    def pause(self, backoff: float) -> float:
        """Return the minimum pause between attempts."""
        return max(backoff, LEAST_PAUSE)

    def jitter(self, backoff: float) -> float:
        """Return by how much a pause between attempts may exceed the minimum."""
        return backoff / 2


class Scala(Modern):
    """Profile ``scala``: behaves like the JVM consumer."""

    releases_first = True
    reads_everything = True
    forgets_positions = True
    rereads = False
    lowers_offsets = True
    recovers = False
    needs_listener = True
    gives_up = True
    reports_refusals = False
    cleans_up = False

    def epoch(self, sessions: int) -> int:
        """Implement ``Modern.epoch``: a registration is written once."""
        return 0

    def takeover_wait(self, session_timeout: float) -> float:
        """Implement ``Modern.takeover_wait``: the first refusal is final."""
        return 0.0

    # DEVIATION-19: the JVM starts at the first event; those that follow cost another.
    def coalesce(self, wait: float) -> float:
        """Implement ``Modern.coalesce``."""
        return 0.0

    def pause(self, backoff: float) -> float:
        """Implement ``Modern.pause``. The number of attempts is limited instead."""
        return backoff

    def jitter(self, backoff: float) -> float:
        """Implement ``Modern.jitter``."""
        return 0.0


MODERN: Final = Modern()
SCALA: Final = Scala()


def profile_of(spec: MemberSpec) -> Modern:
    """Return the profile of a member."""
    return SCALA if spec.scala else MODERN
