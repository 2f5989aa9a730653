"""All kinds of findings, with name, severities, meaning, proof, and what to do.

The rules use the names; the verdict and the reference page use the texts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One kind of finding.

    Attributes:
        name: the value of the column ``kind``.
        severities: the severities that the rule assigns, the worst first. A finding that depends on
            a transaction in doubt gets the next lower severity.
        meaning: what happened.
        proof: what shows it, and what an inferred finding assumes.
        action: what to do.
        lasts: whether a finding without an end lasts until the end of the logs.
        verdict: the report's sentence for all findings of this kind; empty: use the name.
    """

    name: str
    severities: tuple[str, ...]
    meaning: str
    proof: str
    action: str
    lasts: bool = False
    verdict: str = ""


_KINDS: Final = (
    FindingKind(
        "not covered",
        ("high",),
        "No log covers part of the requested time, or the logs have a gap. The gap may hide "
        "anything, so this finding always counts for `--fail-on`.",
        "The first and last transaction of each server's logs.",
        "Get the missing logs, or another server's logs. `zkaudit collect` keeps logs before a "
        "server purges them.",
    ),
    FindingKind(
        "zombie commit",
        ("critical", "high", "medium"),
        "A member wrote the offset of a partition that another session owned. `medium`: both "
        "sessions belong to one member, or the offset did not change.",
        "The owner znode and the session that wrote the offset. Inferred if the member is not "
        "known by name.",
        "Look for a long pause of this member (garbage collection, a suspended machine) before the "
        "write, and compare the messages that both members processed. Members of this library "
        "cannot make such a commit, except in profile `scala`.",
        verdict="Members committed offsets of partitions that other members owned",
    ),
    FindingKind(
        "orphan commit",
        ("critical", "high", "medium", "low", "info"),
        "A member wrote the offset while no member owned the partition. `critical`: the member had "
        "never owned the partition and the next owner started from the higher offset, so the "
        "messages in between were not delivered; or the offset rose far (see *offset jump*). "
        "`info`: no member was registered.",
        "The deletion of the owner znode before the write.",
        "Usually nothing: a JVM member auto-committed between its release and the next claim. If "
        "the next owner began before this offset, messages were delivered twice.",
    ),
    FindingKind(
        "tool write",
        ("critical", "high", "medium", "low", "info"),
        "A session that does not belong to a member wrote an offset, or data that is not an "
        "offset. No member is known to have repeated or skipped messages because of it. `medium`: "
        "a member may have done so. More severe if the offset rose far, as with *offset jump*.",
        "The writing session, which never registered a member.",
        "Ask who ran a tool at that time; `zkaudit show ZXID` prints the raw transactions. Stop "
        "the group before you change its offsets: a running member overwrites them.",
        verdict="Tools wrote offsets while members were running",
    ),
    FindingKind(
        "lost messages",
        ("critical",),
        "A tool raised the offset and a member started from it, so the messages in between were "
        "not delivered. A log cannot show whether the operator intended that.",
        "The owner's last offset, the write, the claim after it and its first commit.",
        "If it was a mistake, stop the group, set the offset back with `zkmigrate reset`, and "
        "start it again while the topic still has these messages.",
    ),
    FindingKind(
        "offset jump",
        ("critical", "high", "medium", "low"),
        "An owner's offset rose faster than a consumer can read (`--jump-rate`), or it was deleted "
        "and the next owner's first one is higher: probably a reset to the end. `low`: it rose by "
        "at least 10,000, and 20 times faster than in 99 % of the topic's commits. That may also "
        "be a backlog. The severity is one step higher if a consumer at `--jump-rate` needs a "
        "minute or more to read so many offsets, and one more step each for an hour, a day and 30 "
        "days.",
        "Two commits by the same owner, and the time between them (always inferred).",
        "Compare with the member's log at that time (OffsetOutOfRange) and with the topic's "
        "retention. Set `auto.offset.reset=smallest` if messages must not be skipped.",
    ),
    FindingKind(
        "offset written through a broker",
        ("critical", "high", "medium", "low", "info"),
        "A broker wrote the offset for a client that commits with OffsetCommit v0. `high`: the "
        "offset rose and a member started from it, so the messages in between were not delivered, "
        "unless that client delivered them. `critical`: as `high`, with as many messages as in a "
        "critical *offset jump*. `medium`: the owner writes its own offsets, or messages may have "
        "been delivered again. Not reported for owners that always commit through brokers.",
        "The writing session, which holds a broker's registration. The log does not name the "
        "client.",
        "Look for a client with the group's id that is not one of its members, in the broker's "
        "request log.",
    ),
    FindingKind(
        "owner in another layout",
        ("high", "medium"),
        "A session claimed partitions in the layout of another client, such as pykafka, which "
        "members of the JVM and of zkconsumer ignore. `high`: members owned partitions of the same "
        "topic at that time, so both may have read the same messages.",
        "The path of the owner znode.",
        "Give the two kinds of clients different groups.",
        lasts=True,
    ),
    FindingKind(
        "unreadable registration",
        ("high", "info"),
        "A registration is not JSON (those of pykafka and samsa are not), or lacks a field. While "
        "it exists, rebalances of JVM members fail, and zkconsumer ignores it. `high`: other "
        "members were registered at the same time. `info`: there were none, or only a [limit of "
        "zkconsumer](znodes.md#limits) is exceeded.",
        "The registration.",
        "Give the two kinds of clients different groups. `zkconsumer groups verify` names such "
        "registrations.",
        lasts=True,
    ),
    FindingKind(
        "offset of a deleted topic",
        ("high", "medium"),
        "A topic was recreated, and the stored offset was still that of the old topic when a "
        "member made its first commit. `high`: that commit is not below the stored offset, so the "
        "member may have skipped all earlier messages.",
        "The creation of the topic between two commits. Always inferred: the topic's log is not "
        "read.",
        "Delete the group's offsets of a topic before it is recreated: `zkconsumer groups delete "
        "--topic`.",
    ),
    FindingKind(
        "offset regression",
        ("high", "medium", "info"),
        "An owner lowered its offset, or started from an offset that a tool had lowered. `high`: a "
        "member started there, so messages were delivered again. `medium`: no later write or claim "
        "shows where a member started, so two commits may have arrived in the wrong order; or the "
        "offset is in Kafka.",
        "The lower offset, and the writes or claims after it. Inferred if the owner is unknown, or "
        "if only its first commit after a claim shows where it started.",
        "Make sure that the application tolerates repeated messages. Look for two threads that "
        "commit for one member, or for a tool.",
    ),
    FindingKind(
        "commit past the end of a move",
        ("critical",),
        "An offset was written to ZooKeeper after `zkmigrate` had moved the group to Kafka.",
        "The migration marker and the write after it. Inferred if the partition's owner wrote it: "
        "with `dual.commit.enabled` it also commits to Kafka, which ZooKeeper's logs do not show.",
        "A legacy consumer is running: stop it, unless it commits to both stores on purpose. "
        "`zkmigrate status` shows the difference.",
    ),
    FindingKind(
        "foreign release",
        ("critical", "medium"),
        "A session deleted the owner znode of another session. `medium`: both sessions belong to "
        "one member.",
        "The session of the owner znode and the session that deleted it.",
        "JVM members delete owner znodes by path: see the member's log for a rebalance after an "
        "expired session. If no member did it, look for a tool.",
        verdict="Owner znodes were deleted by sessions that did not own them",
    ),
    FindingKind(
        "one consumer id on two sessions",
        ("high",),
        "A member's owner znode and its registration belong to different sessions.",
        "Both znodes.",
        "Look for two processes with the same `consumer.id`, or for a member that did not notice "
        "the end of its session.",
        lasts=True,
        verdict="Members used one consumer id in two sessions",
    ),
    FindingKind(
        "overlapping delivery",
        ("critical", "high"),
        "Two members delivered messages of one partition at the same time. `critical`: both "
        "delivered the "
        "same messages.",
        "The members' journals.",
        "Look for a finding that explains it, such as *zombie commit*, and compare the clocks of "
        "the two hosts.",
    ),
    FindingKind(
        "delivered twice",
        ("low",),
        "Two members delivered the same messages at different times, for example after a crash or "
        "an expiry.",
        "The members' journals.",
        "This is normal after a crash. Commit more often to repeat fewer messages.",
    ),
    FindingKind(
        "members whose views disagree",
        ("high",),
        "Two members acted on different lists of members for 30 s or more.",
        "The members' journals.",
        "A watch was lost or a member read old data: restart the member whose list is outdated.",
    ),
    FindingKind(
        "delivery gap",
        ("high",),
        "No member delivered some messages, although a member delivered later ones.",
        "The members' journals.",
        "Look for an offset reset, a tool's write, or a member without a journal.",
    ),
    FindingKind(
        "offset reset",
        ("high", "medium", "info"),
        "A member's offset was not in the log, and was replaced according to `auto.offset.reset`. "
        "`high`: the member skipped messages. `medium`: messages are delivered again, or the "
        "journal does not show the offsets. The first position of a group without a stored offset "
        "is not a finding.",
        "The members' journals.",
        "Alert on lag and retention: the member was away for longer than the topic keeps messages, "
        "or the log was truncated.",
    ),
    FindingKind(
        "commit past delivery",
        ("high",),
        "A member committed an offset past the last delivered message.",
        "The member's journal and the offset znode.",
        "Report it: a member of this library must never do this.",
    ),
    FindingKind(
        "unowned interval",
        ("medium",),
        "A partition had no owner for 30 s (`--unowned-seconds`) although a subscribed member was "
        "registered all that time.",
        "The owner znodes and registrations. Inferred if ZooKeeper elected a new leader during "
        "the interval.",
        "Look at the rebalances at that time, for refused claims or unreleased partitions.",
    ),
    FindingKind(
        "orphan partition",
        ("high",),
        "Like *unowned interval*, but the partition still has no owner when the logs end.",
        "The owner znodes and registrations. Inferred if ZooKeeper elected a new leader during "
        "the interval.",
        "Restart the member that should own it (`zkconsumer groups verify` names it). Its messages "
        "are not read until then.",
        lasts=True,
        verdict="Partitions have no owner",
    ),
    FindingKind(
        "member without its share",
        ("medium",),
        "At the end of the logs a member owns fewer partitions than any assignment would give it.",
        "Registrations, owners and the assignment strategies of this release.",
        "Restart this member. If it happens again, compare the members' lists of members.",
        lasts=True,
    ),
    FindingKind(
        "rebalance storm",
        ("high", "medium"),
        "A group rebalanced 10 times in 10 minutes; on the coordinator, it had 10 generations or "
        "epochs. `high`: 6 per minute on average, or in its worst 10 minutes.",
        "Registrations and owners. The finding names the host, member or client that joined and "
        "left most often.",
        "Look at that host or member first. If processes pause, raise the session timeout. In a "
        "rolling restart, wait after each member.",
        verdict="Groups rebalanced again and again",
    ),
    FindingKind(
        "claim contention",
        ("medium",),
        "ZooKeeper refused 20 claims in one rebalance.",
        "Failed transactions in the logs.",
        "This is normal in large groups of JVM members. Raise `rebalance.backoff.ms` to give "
        "owners "
        "time to release.",
    ),
    FindingKind(
        "flapping member",
        ("medium",),
        "A member's sessions expired 3 times within an hour. On the coordinator: a client left "
        "and returned 3 times within an hour while other members stayed.",
        "The ends of its sessions.",
        "Look for garbage collection, an overloaded host, or a network that drops idle "
        "connections; raise `zookeeper.session.timeout.ms`.",
    ),
    FindingKind(
        "two owners",
        ("high", "medium"),
        "The coordinator had assigned a partition to a consumer while a member had its owner "
        "znode, for more than 1 s (`--skew-seconds`), so both may have delivered. `medium`: the "
        "logs begin too late to show whether the group was in a live move.",
        "Owner znodes and the records of `__consumer_offsets`. Inferred: two clocks.",
        "Stop the last legacy member before the first new consumer starts, or move the group while "
        "it runs with `zkmigrate live`.",
        verdict="Partitions had owners in ZooKeeper and on the coordinator at the same time",
    ),
    FindingKind(
        "mode written too early",
        ("high", "medium"),
        "A mode was written before a member had acknowledged the previous one. `medium`: the "
        "member had registered shortly before.",
        "The mode znode and the members' acknowledgements.",
        "Use `zkmigrate live`, which waits; do not write the mode by hand.",
    ),
    FindingKind(
        "mode out of order",
        ("high",),
        "The mode that was written is unknown or cannot follow the previous one, or the mode was "
        "deleted while members followed it.",
        "The mode znode.",
        "Use `zkmigrate live`; do not write or delete the mode by hand.",
    ),
    FindingKind(
        "mode written by a member",
        ("high",),
        "A member wrote a mode: only `zkmigrate live` may.",
        "The session that wrote it.",
        "Report it, and check the ACL of the group's `live` znode.",
    ),
    FindingKind(
        "legacy member in a locked group",
        ("high",),
        "A member that is not migratable was registered in mode `locked`, `kafka` or `open`.",
        "The registration and the mode.",
        "Stop this member. Use ACLs if the lock must hold for all clients.",
        lasts=True,
    ),
    FindingKind(
        "unlocked during a move",
        ("high",),
        "The lock of `ids` was removed in mode `locked`, `kafka` or `open`.",
        "The change of the ACL and the mode.",
        "Lock the group again with `zkmigrate lock`, and look for legacy members.",
    ),
    FindingKind(
        "two operators",
        ("medium",),
        "A session reverted a mode while the session that had written it was still open.",
        "The sessions of both writes. Always inferred: one operator may have two sessions.",
        "Agree on one operator for each group.",
    ),
    FindingKind(
        "migration stands still",
        ("medium", "low"),
        "A member did not acknowledge a mode for 10 minutes (`--standstill-seconds`). `low`: the "
        "group was left in mode `locked` or `kafka` for that long.",
        "The mode znode and the members' acknowledgements. Inferred if ZooKeeper elected a new "
        "leader during the interval.",
        "`zkmigrate status` names the member and what it waits for. Restart the member, or go "
        "back with `zkmigrate live to-zookeeper`.",
        lasts=True,
    ),
    FindingKind(
        "two owners during a move",
        ("medium",),
        "The coordinator had assigned a partition to a plain consumer while a member had its "
        "owner znode, so both may have delivered.",
        "Owner znodes and the records of `__consumer_offsets`. Inferred: two clocks.",
        "Start plain consumers only in mode `open`.",
    ),
    FindingKind(
        "stalled owner",
        ("medium",),
        "An owner that had committed regularly committed nothing for 5 minutes "
        "(`--stalled-seconds`) while other members of its group did, even if it continued later.",
        "The member's commits (always inferred). The finding gives its longest pause and the "
        "number of pauses.",
        "If the topic had messages at that time, check this member's application. Its partitions "
        "are not assigned to other members.",
    ),
    FindingKind(
        "stuck partition",
        ("medium", "low"),
        "An owner that had committed regularly for a partition committed nothing for it for 5 "
        "minutes (`--stalled-seconds`), while it still committed for other partitions of the "
        "topic. `medium`: the offset then rose by about as much as usual in such a time, so "
        "messages had been waiting. `low`: there is no next commit.",
        "The partition's commits (always inferred: the logs do not show how many messages the "
        "topic has).",
        "Compare the lag of all partitions (`zkconsumer groups describe`). Look for a blocked "
        "thread of this member, or a message that it cannot process. Restart the member if the lag "
        "grows.",
    ),
    FindingKind(
        "herd",
        ("low",),
        "One change woke 50 members or more.",
        "The members' journals. They prove it if ZooKeeper (3.9 and later) sent the transaction "
        "with each watch event. Otherwise the members that were notified in the 30 s after the "
        "change are counted. Without journals, an upper bound is modelled.",
        "This is not a fault. So large a group would be cheaper on the coordinator (`zkconsumer "
        "simulate`).",
    ),
)
KINDS: Final[Mapping[str, FindingKind]] = {kind.name: kind for kind in _KINDS}
"""The kinds by name, in the order of the reference page."""
NOT_LOOKED_FOR: Final = (
    "overlapping delivery",
    "delivered twice",
    "members whose views disagree",
    "delivery gap",
    "offset reset",
    "commit past delivery",
    "two owners",
    "two owners during a move",
)
"""Kinds that ZooKeeper's logs cannot show. They need members' journals or the coordinator's
records."""
LASTING: Final = tuple(kind.name for kind in _KINDS if kind.lasts)
"""Names of the kinds that have no end if they last until the end of the logs."""


def page() -> str:
    """Return the reference page about all kinds of findings."""
    lines = [
        "# Findings of zkaudit",
        "",
        "<!-- Generated: python docs/generate.py -->",
        "",
        "Every kind of finding that `zkaudit run`, `zkaudit stream` and `zkaudit findings` report.",
        "The name is in column `kind` of the table [`findings`](audit-tables.md#findings). A",
        "finding that depends on a transaction in doubt is *inferred*, and its severity is one",
        "level lower than here. Findings of kinds marked *lasts* have no end if they last until",
        "the end of the logs.",
        "",
    ]
    for kind in _KINDS:
        severities = f"*{', '.join(kind.severities)}{'; lasts' if kind.lasts else ''}.*"
        lines += [
            f"## {kind.name}",
            "",
            f"{severities} {kind.meaning}",
            "",
            f"- **Shown by**: {kind.proof}",
            f"- **What to do**: {kind.action}",
            "",
        ]
    return "\n".join(lines)
