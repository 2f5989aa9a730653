"""CommitDesk: commits that were asked for, one at a time, and what becomes of each. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.error_codes import ErrorCode
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.coordinator.reactions import Reaction, Request, name_of, reaction

_WORST = (
    Reaction.FATAL,
    Reaction.EXPELLED,
    Reaction.LOST,
    Reaction.FIND_AGAIN,
    Reaction.RETRY,
    Reaction.REFUSE,
)


class CommitDesk:
    """Holds requests until they may run. ``token`` is the answer it waits for."""

    def __init__(self, attempts: int) -> None:
        self.token: int | None = None
        self.paused = False
        """Whether to wait before the next attempt."""
        self._attempts = attempts
        self._tried = 0
        self._waiting: deque[CommitRequested] = deque()
        self._current: CommitRequested | None = None
        self._left: dict[TopicPartition, int] = {}
        self._faults: list[str] = []
        self._answers: list[AnswerCommit] = []

    def ask(self, request: CommitRequested) -> None:
        """Take a request; an automatic one replaces an automatic one that still waits."""
        if request.request is None:
            self._waiting = deque(one for one in self._waiting if one.request is not None)
        self._waiting.append(request)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """What waits for these is out of date: they are released, or a later commit is sent.

        Offsets that a user gave by name stay; they count if the partitions are held then.
        """
        gone = set(partitions)
        if self._current is not None and not self._current.strict:
            self._left = {tp: n for tp, n in self._left.items() if tp not in gone}
        self._waiting = deque(
            one
            if one.strict
            else replace(one, positions={t: n for t, n in one.positions.items() if t not in gone})
            for one in self._waiting
        )

    def next(self, held: Collection[TopicPartition], ready: bool) -> dict[TopicPartition, int]:
        """What to commit now; empty when nothing is to be done."""
        while ready and not self.paused and self.token is None:
            if self._current is None:
                if not self._waiting:
                    break
                self._current = self._waiting.popleft()
                self._left, self._faults, self._tried = dict(self._current.positions), [], 0
            for tp in [tp for tp in self._left if tp not in held]:
                del self._left[tp]
                if self._current.strict:
                    self._faults.append(f"{tp} is not owned by this member")
            if self._left:
                self._tried += 1
                return dict(self._left)
            self._finish()
        return {}

    def answered(self, codes: Mapping[TopicPartition, int]) -> tuple[Reaction, int]:
        """Take in the answer; return the worst reaction it asks for, and its code."""
        self.token = None
        found: dict[Reaction, int] = {}
        for tp in list(self._left):
            code = codes.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            what = reaction(Request.COMMIT, code)
            found[what] = code
            again = what in (Reaction.FIND_AGAIN, Reaction.RETRY)
            if again and self._tried < self._attempts:
                continue
            del self._left[tp]
            if code:
                self._faults.append(f"{tp}: {name_of(code)}")
        if not self._left:
            self._finish()
        return next(
            ((what, found[what]) for what in _WORST if what in found), (Reaction.PROCEED, 0)
        )

    def failed(self, code: int, detail: str) -> tuple[Reaction, int]:
        """The request as a whole failed."""
        return self.answered(dict.fromkeys(self._left, code))

    def refuse(self, why: str) -> None:
        """Nothing of what was asked for can be stored any more."""
        self.token, self.paused = None, False
        if self._current is not None:
            self._faults.append(why)
            self._finish()
        while self._waiting:
            one = self._waiting.popleft()
            if one.request is not None:
                self._answers.append(AnswerCommit(one.request, (why,) if one.positions else ()))

    def answers(self) -> list[AnswerCommit]:
        """Answers that are due; each is given once."""
        found, self._answers = self._answers, []
        return found

    def _finish(self) -> None:
        assert self._current is not None
        if self._current.request is not None:
            self._answers.append(AnswerCommit(self._current.request, tuple(self._faults)))
        self._current, self._left, self._faults = None, {}, []
