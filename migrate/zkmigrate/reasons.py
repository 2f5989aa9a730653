"""Reasons why a group is refused, skipped or needs attention, each with a short, stable code.

Programs can use these codes. The sentences that accompany them may change. Values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class Reason(Enum):
    """The reasons. Commands print the value."""

    # Members and claims
    LIVE_MEMBER = "live-member"
    OWNED = "owned"
    COORDINATOR_MEMBER = "coordinator-member"
    OTHER_WRITER = "other-writer"
    EARLIER_RUN = "earlier-run"
    HOOK_FAILED = "hook-failed"
    SESSION_ENDED = "session-ended"
    WRITTEN_LATE = "written-late"
    # What could not be read or is not allowed
    COORDINATOR_AWAY = "coordinator-away"
    COORDINATOR_REFUSED = "coordinator-refused"
    CLOSED = "closed"
    CANNOT_LOCK = "cannot-lock"
    UNREADABLE = "unreadable"
    UNKNOWN = "unknown"
    BAD_NAME = "bad-name"
    HIDDEN = "hidden-offsets"
    # What has happened to the group
    NOT_MOVED = "not-moved"
    MOVED = "moved"
    MOVED_SINCE = "moved-since"
    ROLLED_BACK = "rolled-back"
    UNFINISHED = "unfinished"
    NO_RECORD = "no-record"
    LIVE_MOVE = "live-move"
    OTHER_OPERATOR = "other-operator"
    USED = "used"
    EXPIRED = "expired"
    EXPIRES = "expires"
    SOURCE_MOVED_ON = "source-moved-on"
    CHANGED = "changed"
    NOT_REVIEWED = "not-reviewed"
    NOT_LOCKED = "not-locked"
    LOCKED = "locked"
    ONLY_IN_ZOOKEEPER = "only-in-zookeeper"
    # Offsets and znodes
    FOREIGN_LAYOUT = "foreign-layout"
    OTHER_ZNODES = "other-znodes"
    OTHER_CLIENT = "other-client"
    GROUP_EXISTS = "group-exists"
    NOTHING = "nothing-stored"
    CONFLICT = "conflict"
    WOULD_LOWER = "would-lower"
    WOULD_UNDO = "would-undo"
    OUT_OF_RANGE = "out-of-range"
    TOPIC_MISSING = "topic-missing"
    PARTITION_MISSING = "partition-missing"
    RECREATED = "topic-recreated"
    UNPROVEN = "topic-unproven"
    MISPLACED = "misplaced-offsets"
    NO_OFFSET = "no-offset"
    IDLE = "idle"
    NOT_PROVEN = "not-proven"
    IGNORED = "ignored"
    FROM_FILE = "from-file"
    # Gates of a live move
    WRONG_MODE = "wrong-mode"
    NOT_ACKNOWLEDGED = "not-acknowledged"
    IDS_OPEN = "ids-open"
    NOT_MIGRATABLE = "not-migratable"
    MIGRATABLE = "migratable-member"
    PLAIN_MEMBER = "plain-member"
    FORMER_MEMBER = "former-member"
    BEHIND = "behind"
    AHEAD_IN_KAFKA = "ahead-in-kafka"
    # Mirrored groups
    MIRRORED = "mirrored"
    NOT_MIRRORED = "not-mirrored"
    LEAVING = "leaving"
    HANDED_OVER = "handed-over"
    NO_MIRROR = "no-mirror-runs"
    MIRROR_STOPPED = "mirror-stopped"
    BOTH_SIDES = "members-on-both-sides"
    FOLLOWER_MOVED = "follower-moved"


MEANING: Final[Mapping[Reason, tuple[str, str]]] = {
    Reason.LIVE_MEMBER: (
        "Members are registered in ZooKeeper.",
        "Stop them. A killed member disappears when its session ends; `apply --wait` waits.",
    ),
    Reason.OWNED: (
        "Partitions are owned by members that are not registered.",
        "Make sure that no process of the group is running, then delete the named `owners` znode.",
    ),
    Reason.COORDINATOR_MEMBER: (
        "Consumers are members of the group in Kafka.",
        "Stop them.",
    ),
    Reason.OTHER_WRITER: (
        "A client that is not a member wrote an offset while the group was being changed.",
        "Stop that client, then plan again.",
    ),
    Reason.EARLIER_RUN: (
        "An earlier run of `zkmigrate` still has its session.",
        "Wait until it has ended, then run the command again.",
    ),
    Reason.HOOK_FAILED: (
        "The command given by `--before-group` failed.",
        "Remove the cause, then run it again.",
    ),
    Reason.SESSION_ENDED: (
        "The session that claimed the group has ended, perhaps because `zkmigrate` was suspended. "
        "Nothing more was written.",
        "Run it again.",
    ),
    Reason.WRITTEN_LATE: (
        "A command may have overwritten newer offsets in Kafka: its session had ended, or another "
        "client has committed meanwhile.",
        "Find out how far the consumers were, set these offsets with `reset`, then plan again.",
    ),
    Reason.COORDINATOR_AWAY: (
        "The group's coordinator does not answer.",
        "Bring the broker back and run the command again. Other groups are not affected.",
    ),
    Reason.COORDINATOR_REFUSED: (
        "The coordinator refused to store offsets.",
        "Remove the cause in the message, then run it again.",
    ),
    Reason.CLOSED: (
        "The ACL of the group's `ids` does not let `zkmigrate` register.",
        "Allow its identity to create znodes there.",
    ),
    Reason.CANNOT_LOCK: (
        "The group cannot be locked: ZooKeeper does not enforce ACLs, or `zkmigrate` is not "
        "authorized to change the ACL, or is ZooKeeper's super user.",
        "Use another identity, or `lock --hold`.",
    ),
    Reason.UNREADABLE: (
        "An offset, the group's record or another znode cannot be read.",
        "Correct the znode or allow it to be read, leave the offset out with `--skip`, or the "
        "group with `--exclude`.",
    ),
    Reason.UNKNOWN: (
        "The brokers returned no log range.",
        "Make sure that the partition has a leader, then run it again.",
    ),
    Reason.BAD_NAME: (
        "ZooKeeper cannot store the name of this group.",
        "Leave the group in Kafka.",
    ),
    Reason.HIDDEN: (
        "The broker's ACLs hide the offsets of a topic.",
        "Allow `zkmigrate` to describe the topic, or leave it out with `--skip`.",
    ),
    Reason.NOT_MOVED: (
        "The group was not moved, is not in a live move, and is not mirrored.",
        "Nothing, or move it.",
    ),
    Reason.MOVED: (
        "The group is recorded as moved to Kafka.",
        "For a live move, first move it back with `plan --direction kafka-to-zk`.",
    ),
    Reason.MOVED_SINCE: (
        "The group was rolled back, or changed by another plan, since this plan was made.",
        "To undo that change, give its plan or no plan. To move the group, make a new plan.",
    ),
    Reason.ROLLED_BACK: ("This plan was rolled back in the group.", "Make a new plan."),
    Reason.UNFINISHED: (
        "A command has begun to change the group's offsets and has not finished.",
        "Run `apply` again with its plan, or `undo`.",
    ),
    Reason.NO_RECORD: (
        "ZooKeeper has no record of the previous offsets, because there were too many.",
        "Move the group back with `plan --direction kafka-to-zk`.",
    ),
    Reason.LIVE_MOVE: (
        "The group is in a live move.",
        "Finish the move with `live`, or go back with `undo`.",
    ),
    Reason.OTHER_OPERATOR: (
        "Another operator has changed the group meanwhile, or may have: the connection to "
        "ZooKeeper was lost during a write.",
        "Agree on what to do, then run it again.",
    ),
    Reason.USED: (
        "New consumers have committed since the move, so a rollback would repeat messages.",
        "Stop them and move Kafka's offsets back with `plan --direction kafka-to-zk`.",
    ),
    Reason.EXPIRED: (
        "Moved offsets are gone from their store: they expired or were deleted.",
        "Make a new plan and choose `--expired-offsets`.",
    ),
    Reason.EXPIRES: (
        "The broker will soon delete the offsets.",
        "Start the new consumers.",
    ),
    Reason.SOURCE_MOVED_ON: (
        "The source store has changed since the move: an old consumer is or was alive.",
        "Stop it, then plan again; the plan shows both offsets.",
    ),
    Reason.CHANGED: (
        "Offsets, topics or the group's record have changed since the plan was made or the group "
        "was read.",
        "Plan again, or run the command again.",
    ),
    Reason.NOT_REVIEWED: (
        "A decision would apply to something that the preview did not show.",
        "Plan again, and review the new plan.",
    ),
    Reason.NOT_LOCKED: (
        "The group's offsets in Kafka are current, and old consumers can start.",
        "Run `lock`, or repeat the last step of `live`.",
    ),
    Reason.LOCKED: (
        "The group's offsets in ZooKeeper are current, and old consumers cannot start.",
        "Run `unlock`. If the group is mirrored, run `cut-over` again, or `undo`.",
    ),
    Reason.ONLY_IN_ZOOKEEPER: (
        "Kafka has no offset, or a lower one, where ZooKeeper has one.",
        "Move the group.",
    ),
    Reason.FOREIGN_LAYOUT: (
        "Another client keeps its offsets in the group's znode.",
        "Move the group with that client's tools.",
    ),
    Reason.OTHER_ZNODES: (
        "Next to the group's offsets are znodes of an unknown kind.",
        "Look at them, then choose `--other-znodes ignore` if they hold no offsets.",
    ),
    Reason.OTHER_CLIENT: (
        "The group was moved from a client whose numbers are not next offsets, or are in different "
        "znodes. So Kafka's offsets cannot be copied back.",
        "Roll back with `undo --force`, which repeats messages. Or write what the old client "
        "reads: with `plan --direction kafka-to-zk --from-file`, or with that client's own tools.",
    ),
    Reason.GROUP_EXISTS: (
        "The target store has offsets of another group with that name.",
        "Choose another name with `--rename`.",
    ),
    Reason.NOTHING: (
        "The source store has no offset of the group.",
        "Check group, chroot and `--direction`.",
    ),
    Reason.CONFLICT: ("The stores have different offsets.", "Choose `--on-conflict`."),
    Reason.WOULD_LOWER: (
        "An old consumer has used the source store since the move, and the decision would lower "
        "the target's offset. Or a group mirrored to another cluster was set back.",
        "Choose `--on-conflict max`, or give the right offsets with `--from-file`. If it was set "
        "back on purpose, delete its offsets for the topic in the other cluster.",
    ),
    Reason.WOULD_UNDO: (
        "Members start at the higher of the two offsets, so the offset in the other store would "
        "undo a reset.",
        "Give `--store both`.",
    ),
    Reason.OUT_OF_RANGE: ("An offset is outside the log.", "Choose `--out-of-range clamp`."),
    Reason.TOPIC_MISSING: ("The topic does not exist.", "Choose `--missing-topics skip`."),
    Reason.PARTITION_MISSING: (
        "The topic has no such partition.",
        "Add partitions, or choose `--missing-topics skip`.",
    ),
    Reason.RECREATED: (
        "The offset was stored before the topic was created.",
        "Choose `--recreated-topics skip` or `earliest`.",
    ),
    Reason.UNPROVEN: (
        "It is not certain that the topic is still the same.",
        "Choose `--unproven-topics`.",
    ),
    Reason.MISPLACED: (
        "A 1.1.0 broker has stored offsets in `offset`, not `offsets`.",
        "Choose `--misplaced use` or `ignore`.",
    ),
    Reason.NO_OFFSET: (
        "A partition has no offset in either store.",
        "Choose `--without-offset`.",
    ),
    Reason.IDLE: (
        "The group has stored no offset for a long time.",
        "If the group is needed, give `--max-idle-days N`.",
    ),
    Reason.NOT_PROVEN: (
        "The offset in another cluster is not proven.",
        "Choose `--not-proven lower`, or leave it out with `--skip`. If the topics are being "
        "mirrored, wait until the records are copied.",
    ),
    Reason.IGNORED: ("An operator decided to leave the group as it is.", "Nothing."),
    Reason.FROM_FILE: ("Not a problem: the operator gave the offset.", "Nothing."),
    Reason.WRONG_MODE: (
        "This step cannot follow the group's present mode.",
        "Run the steps in between first.",
    ),
    Reason.NOT_ACKNOWLEDGED: (
        "Members do not act on the mode yet.",
        "Wait, or look at the health and the logs of these members. If the message names plain "
        "consumers, stop them: they joined before the mode was written.",
    ),
    Reason.IDS_OPEN: ("Legacy consumers can still register.", "Run `lock`."),
    Reason.NOT_MIGRATABLE: (
        "Members are not migratable.",
        "Restart them as `MigratableConsumerConnector`.",
    ),
    Reason.MIGRATABLE: ("Migratable members are running.", "Replace them with plain consumers."),
    Reason.PLAIN_MEMBER: (
        "Plain Kafka consumers are members on the coordinator.",
        "Stop them first.",
    ),
    Reason.FORMER_MEMBER: (
        "Plain consumers, or migratable members that have been replaced, are on the coordinator.",
        "Wait until their sessions end. If they are plain consumers, stop them.",
    ),
    Reason.BEHIND: (
        "Offsets are lower in the store that the next mode uses.",
        "Wait for the next commit. Without members, start a migratable one. If no member reads the "
        "topic any longer, delete `/consumers/GROUP/offsets/TOPIC` with ZooKeeper's shell.",
    ),
    Reason.AHEAD_IN_KAFKA: (
        "Offsets are higher in Kafka than in ZooKeeper, where a live move starts.",
        "If members have `offsets.storage=kafka`, let them commit to ZooKeeper again first. If the "
        "offsets are old, stop the members and set them with `reset --store kafka`. If ZooKeeper "
        "was restored from a backup, use `reset --store both --to-current --all-topics`.",
    ),
    Reason.MIRRORED: (
        "The group is mirrored: both stores are kept in step.",
        "Continue with `cut-over` and `complete`, go back with `undo`, or end it with `mirror "
        "--end`.",
    ),
    Reason.NOT_MIRRORED: ("The group is not mirrored.", "Begin with `mirror`."),
    Reason.LEAVING: (
        "A cut-over to another cluster has begun, and has not finished.",
        "Run `cut-over --to-cluster` again, or `unlock`, which lets old consumers start.",
    ),
    Reason.HANDED_OVER: (
        "The group was handed over to another cluster.",
        "Leave it as it is, and leave it out of `gate` with `--exclude`. Before the old consumers "
        "may read in this cluster again, stop the new ones and run `unlock`.",
    ),
    Reason.NO_MIRROR: (
        "The group is mirrored, but no process keeps its stores in step now.",
        "Run `mirror` for it.",
    ),
    Reason.MIRROR_STOPPED: (
        "The mirror of the group has stopped, and `status` shows why.",
        "Follow the advice in the group's row, then begin again with `mirror --lead`.",
    ),
    Reason.BOTH_SIDES: (
        "A mirrored group has members in ZooKeeper and on the coordinator at the same time, or in "
        "both clusters.",
        "Stop the members of one side, then begin again with `mirror --lead` and the other store. "
        "With `--to-cluster`, the mirror continues by itself.",
    ),
    Reason.FOLLOWER_MOVED: (
        "A client changed an offset in the store to which the mirror copies.",
        "Stop the client that commits there. Then begin again with `mirror --lead` and the store "
        "whose offsets are right. If the offset is in another cluster, delete the group there.",
    ),
}
"""Meaning of each reason, and what to do. The reference shows this table."""
