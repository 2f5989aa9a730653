"""What each action does with a group in each case: a table that all commands use. Pure.

A cell is evaluated before the checks of the action itself, such as those for members and for
offsets that have changed since a plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from zkmigrate.model import Direction, GroupState
from zkmigrate.plan.cases import Case, case_of
from zkmigrate.plan.layout import reason_for
from zkmigrate.reasons import MEANING, Reason
from zkmigrate.text import late_text, shown


class Action(Enum):
    """What an operator wants to do with a group. The value is the command."""

    PLAN = "plan"
    PLAN_BACK = "plan --direction kafka-to-zk"
    APPLY = "apply"
    APPLY_BACK = "apply, back to ZooKeeper"
    UNDO = "undo"
    LOCK = "lock"
    UNLOCK = "unlock"
    RESET = "reset"
    PREPARE = "live prepare"
    TO_KAFKA = "live to-kafka"
    FINALIZE = "live finalize"
    TO_ZOOKEEPER = "live to-zookeeper"
    MIRROR = "mirror"
    MIRROR_ELSEWHERE = "mirror --to-cluster"
    CUT_OVER = "cut-over"
    COMPLETE = "complete"
    GATE = "gate"
    STATUS = "status"

    @classmethod
    def plan(cls, direction: Direction) -> Action:
        """Return the action of planning a move in this direction."""
        return cls.PLAN if direction is Direction.ZK_TO_KAFKA else cls.PLAN_BACK


class Way(Enum):
    """How ``undo`` moves a group back. Commands print the value."""

    ROLL_BACK = "roll back"
    """Both stores get the offsets that they had before the last change."""
    COPY_BACK = "copy back"
    """ZooKeeper gets the offsets that Kafka has now."""
    LIVE_BACK = "live back"
    """The group's mode changes back to ``zookeeper`` while its members run."""
    MIRROR_BACK = "mirror back"
    """ZooKeeper leads again in the mirrored group, and old consumers may start again."""
    UNLOCK = "unlock"
    """Old consumers may start again."""


class Do(Enum):
    """What a command does with a group. The value is the text in the table on the reference
    page."""

    GO = "go"
    DONE = "done before"
    SKIP = "skip"
    DECIDE = "decide"
    REFUSE = "refuse"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an action does with groups of one case. ``reason``: why it is not carried out. ``way``:
    how ``undo`` moves the group back."""

    do: Do
    reason: Reason | None = None
    way: Way | None = None

    def __str__(self) -> str:
        if self.way is not None:
            return self.way.value
        return self.do.value + (f": {self.reason.value}" if self.reason else "")

    @property
    def why(self) -> str:
        """Why the action is not carried out, and the fix, as text."""
        if self.reason is None:
            return ""
        return " ".join(MEANING[self.reason]).replace("`", "")


GO: Final = Answer(Do.GO)
UNFINISHED: Final = Answer(Do.REFUSE, Reason.UNFINISHED)

_EXPIRED: Final = (Case.EXPIRED_IN_PART, Case.EXPIRED)
_IN_KAFKA: Final = (Case.MOVED, Case.USED, Case.LATE_COMMIT, *_EXPIRED)
"""Cases of groups that were moved to Kafka."""
_FOLLOWS_KAFKA: Final = (Case.KAFKA, Case.OPEN)
_LIVE: Final = (Case.LOCKED, *_FOLLOWS_KAFKA)
_MIRRORED: Final = (Case.MIRROR_ZOOKEEPER, Case.MIRROR_KAFKA, Case.MIRROR_STOPPED)
_NEVER: Final = (
    Case.UNTOUCHED, Case.IN_KAFKA, Case.EMPTY, Case.MISPLACED, Case.HIDDEN, Case.OTHER_LAYOUT,
    Case.OTHER_ZNODES,
)  # fmt: skip
"""Cases of groups that were never moved."""
_NO_MODE: Final = (*_NEVER, Case.ROLLED_BACK, Case.MOVED_BACK)
"""Cases of groups that were neither moved to Kafka nor are in a live move."""


def _row(*rules: tuple[tuple[Case, ...], Do, Reason | None]) -> Mapping[Case, Answer]:
    """Return the answer for each case: that of the first matching rule, otherwise ``GO``."""
    row = dict.fromkeys(Case, GO)
    for cases, do, reason in reversed(rules):
        row |= dict.fromkeys(cases, Answer(do, reason))
    return row


_UNREADABLE: Final = ((Case.UNREADABLE,), Do.FAIL, Reason.UNREADABLE)
_INTERRUPTED: Final = ((Case.INTERRUPTED,), Do.REFUSE, Reason.UNFINISHED)
_LATE: Final = ((Case.WRITTEN_LATE,), Do.REFUSE, Reason.WRITTEN_LATE)
_UNFINISHED: Final = (_INTERRUPTED, _LATE)
_LIVE_REFUSED: Final = (_LIVE, Do.REFUSE, Reason.LIVE_MOVE)
_MIRRORED_REFUSED: Final = (_MIRRORED, Do.REFUSE, Reason.MIRRORED)
_STOPPED: Final = ((Case.MIRROR_STOPPED,), Do.REFUSE, Reason.MIRROR_STOPPED)
_LEAVING: Final = ((Case.LEAVING,), Do.REFUSE, Reason.LEAVING)
_ELSEWHERE: Final = (_LEAVING, ((Case.HANDED_OVER,), Do.REFUSE, Reason.HANDED_OVER))
_PROBLEMS: Final = (
    _LATE,
    ((Case.UNREADABLE,), Do.DECIDE, Reason.UNREADABLE),
    ((Case.OTHER_LAYOUT,), Do.REFUSE, Reason.FOREIGN_LAYOUT),
    ((Case.OTHER_ZNODES,), Do.DECIDE, Reason.OTHER_ZNODES),
    ((Case.HIDDEN,), Do.DECIDE, Reason.HIDDEN),
    (_EXPIRED, Do.DECIDE, Reason.EXPIRED),
    ((Case.LATE_COMMIT,), Do.DECIDE, Reason.CONFLICT),
    _LIVE_REFUSED,
    _MIRRORED_REFUSED,
)
_BEFORE_LIVE: Final = (
    _UNREADABLE,
    *_UNFINISHED,
    (_IN_KAFKA, Do.REFUSE, Reason.MOVED),
    _MIRRORED_REFUSED,
    *_ELSEWHERE,
)
_BEFORE_MIRROR: Final = (
    _UNREADABLE,
    *_UNFINISHED,
    (_IN_KAFKA, Do.SKIP, Reason.MOVED),
    (_LIVE, Do.SKIP, Reason.LIVE_MOVE),
    _LEAVING,
    ((Case.HANDED_OVER,), Do.SKIP, Reason.HANDED_OVER),
)
_LAYOUT: Final = (
    ((Case.OTHER_LAYOUT,), Do.REFUSE, Reason.FOREIGN_LAYOUT),
    ((Case.OTHER_ZNODES,), Do.REFUSE, Reason.OTHER_ZNODES),
)

TABLE: Final[Mapping[Action, Mapping[Case, Answer]]] = {
    Action.PLAN: _row(
        *_PROBLEMS,
        *_ELSEWHERE,
        ((Case.MISPLACED,), Do.DECIDE, Reason.MISPLACED),
        ((Case.EMPTY,), Do.REFUSE, Reason.NOTHING),
        ((Case.MOVED, Case.USED), Do.DONE, None),
    ),
    Action.PLAN_BACK: _row(*_PROBLEMS, _LEAVING, ((Case.MOVED_BACK,), Do.DONE, None)),
    Action.APPLY: _row(_UNREADABLE, _LATE, _LIVE_REFUSED, _MIRRORED_REFUSED, *_ELSEWHERE),
    Action.APPLY_BACK: _row(_UNREADABLE, _LATE, _LIVE_REFUSED, _MIRRORED_REFUSED, _LEAVING),
    Action.UNDO: {
        **_row(
            _UNREADABLE,
            _LATE,
            ((Case.LATE_COMMIT,), Do.REFUSE, Reason.CONFLICT),
            ((Case.ROLLED_BACK,), Do.DONE, None),
            _STOPPED,
            *_ELSEWHERE,
        ),
        **dict.fromkeys(
            (Case.INTERRUPTED, Case.MOVED, *_EXPIRED, Case.MOVED_BACK),
            Answer(Do.GO, way=Way.ROLL_BACK),
        ),
        Case.USED: Answer(Do.GO, way=Way.COPY_BACK),
        **dict.fromkeys(_LIVE, Answer(Do.GO, way=Way.LIVE_BACK)),
        **dict.fromkeys((Case.PREPARED, *_NEVER), Answer(Do.GO, way=Way.UNLOCK)),
        Case.MIRROR_ZOOKEEPER: Answer(Do.GO, way=Way.MIRROR_BACK),
        Case.MIRROR_KAFKA: Answer(Do.GO, way=Way.MIRROR_BACK),
    },
    Action.LOCK: _row(
        _UNREADABLE,
        (_NO_MODE, Do.SKIP, Reason.NOT_MOVED),
        ((Case.MIRROR_ZOOKEEPER,), Do.REFUSE, Reason.MIRRORED),
        _STOPPED,
        _LEAVING,
    ),
    Action.UNLOCK: _row(
        _UNREADABLE,
        (_FOLLOWS_KAFKA, Do.REFUSE, Reason.LIVE_MOVE),
        _STOPPED,
        _MIRRORED_REFUSED,
    ),
    Action.RESET: _row(
        _INTERRUPTED,
        _STOPPED,
        ((Case.UNREADABLE,), Do.REFUSE, Reason.UNREADABLE),
        *_LAYOUT,
        ((Case.HIDDEN,), Do.REFUSE, Reason.HIDDEN),
    ),
    Action.PREPARE: _row(
        ((Case.MIRROR_ZOOKEEPER,), Do.GO, None),
        *_BEFORE_LIVE,
        ((Case.IN_KAFKA,), Do.REFUSE, Reason.AHEAD_IN_KAFKA),
        ((Case.HIDDEN,), Do.REFUSE, Reason.HIDDEN),
        ((Case.OTHER_LAYOUT,), Do.REFUSE, Reason.FOREIGN_LAYOUT),
    ),
    Action.TO_KAFKA: _row(
        *_BEFORE_LIVE, ((*_NO_MODE, Case.PREPARED), Do.REFUSE, Reason.WRONG_MODE)
    ),
    Action.FINALIZE: _row(
        *_BEFORE_LIVE, ((*_NO_MODE, Case.PREPARED, Case.LOCKED), Do.REFUSE, Reason.WRONG_MODE)
    ),
    Action.TO_ZOOKEEPER: _row(*_BEFORE_LIVE, ((*_NO_MODE, Case.PREPARED), Do.DONE, None)),
    Action.MIRROR: _row(
        *_BEFORE_MIRROR,
        ((Case.EMPTY,), Do.SKIP, Reason.NOTHING),
        ((Case.IN_KAFKA,), Do.SKIP, Reason.NOTHING),
        ((Case.HIDDEN,), Do.REFUSE, Reason.HIDDEN),
        ((Case.MISPLACED,), Do.REFUSE, Reason.MISPLACED),
        *_LAYOUT,
        ((Case.MIRROR_ZOOKEEPER, Case.MIRROR_KAFKA), Do.DONE, None),
        _STOPPED,
    ),
    Action.MIRROR_ELSEWHERE: _row(
        ((Case.LEAVING, Case.HANDED_OVER), Do.GO, None),
        _STOPPED,
        _MIRRORED_REFUSED,
        *_BEFORE_MIRROR,
        ((Case.PREPARED,), Do.SKIP, Reason.LIVE_MOVE),
        ((Case.EMPTY,), Do.SKIP, Reason.NOTHING),
        ((Case.HIDDEN,), Do.REFUSE, Reason.HIDDEN),
        ((Case.MISPLACED,), Do.REFUSE, Reason.MISPLACED),
        *_LAYOUT,
    ),
    Action.CUT_OVER: _row(
        *_BEFORE_MIRROR,
        ((*_NO_MODE, Case.PREPARED), Do.SKIP, Reason.NOT_MIRRORED),
        ((Case.MIRROR_KAFKA,), Do.DONE, None),
        _STOPPED,
    ),
    Action.COMPLETE: _row(
        _UNREADABLE,
        *_UNFINISHED,
        (_IN_KAFKA, Do.DONE, None),
        (_NO_MODE, Do.SKIP, Reason.NOT_MOVED),
        ((Case.PREPARED, Case.LOCKED, Case.KAFKA), Do.REFUSE, Reason.WRONG_MODE),
        ((Case.MIRROR_ZOOKEEPER,), Do.REFUSE, Reason.WRONG_MODE),
        _STOPPED,
        _LEAVING,
        ((Case.HANDED_OVER,), Do.SKIP, Reason.HANDED_OVER),
    ),
    Action.GATE: _row(
        *_UNFINISHED,
        ((Case.UNREADABLE,), Do.REFUSE, Reason.UNREADABLE),
        *_LAYOUT,
        ((Case.HIDDEN,), Do.REFUSE, Reason.HIDDEN),
        (_EXPIRED, Do.REFUSE, Reason.EXPIRED),
        _LIVE_REFUSED,
        _MIRRORED_REFUSED,
        *_ELSEWHERE,
    ),
    Action.STATUS: _row(
        *_UNFINISHED,
        _UNREADABLE,
        *_LAYOUT,
        ((Case.LATE_COMMIT,), Do.REFUSE, Reason.SOURCE_MOVED_ON),
        (_EXPIRED, Do.REFUSE, Reason.EXPIRED),
        _STOPPED,
        _LEAVING,
    ),
}
"""The answer by action and case. For ``gate``, ``refuse`` means that the group is left behind. For
``status`` it means that the group needs attention."""


BY_RECORD: Final = frozenset(
    {
        Action.APPLY, Action.APPLY_BACK, Action.LOCK, Action.UNLOCK, Action.PREPARE,
        Action.TO_KAFKA, Action.FINALIZE, Action.TO_ZOOKEEPER, Action.CUT_OVER, Action.COMPLETE,
    }
)  # fmt: skip
"""Actions that know only a group's record and mode, and then make their own checks of offsets."""


def decide(state: GroupState, action: Action) -> Answer:
    """Return what an action does with a group, according to the table of cases."""
    return TABLE[action][case_of(state)]


def add_reasons(
    found: list[tuple[Reason, str]], state: GroupState, action: Action, faults: Iterable[str]
) -> None:
    """Add to ``found`` the reasons that concern every command, with their texts.

    These are offsets that may have been overwritten, znodes of unknown formats, ``faults``, and
    what the table of cases says about the action.
    """
    if state.record.in_doubt:
        text = late_text(state.record.late, state.record.late_more)
        found.append((Reason.WRITTEN_LATE, text))
    if odd := reason_for(state):
        found.append((odd, f"not understood: {shown(state.foreign)}"))
    found += ((Reason.UNREADABLE, fault) for fault in faults)
    answer = decide(state, action)
    if answer.reason is not None and answer.reason not in {reason for reason, _ in found}:
        found.append((answer.reason, answer.why))
