"""CommitQueue: requests for commits, carried out one at a time; every request is answered. Pure.

Owned by a machine and called on its thread. The machine sends the commands; the queue decides what
is in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.types import TopicPartition


@dataclass(slots=True)
class _Waiting:
    """One commit, for all requests that it answers. ``automatic``: no caller waits for it."""

    positions: dict[TopicPartition, int]
    strict: bool
    automatic: bool
    callers: list[int]


class CommitQueue:
    """The waiting requests, and the one in progress.

    ``token`` is the one of the command in progress, ``None`` between commands. ``sent`` are its
    positions, and ``left`` those of its request that may be sent again. ``attempts`` counts how
    often that request was sent. While ``paused``, nothing is sent.
    """

    def __init__(self) -> None:
        self.token: int | None = None
        self.sent: dict[TopicPartition, int] = {}
        self.left: dict[TopicPartition, int] = {}
        self.attempts = 0
        self.paused = False
        self._waiting: deque[_Waiting] = deque()
        self._current: _Waiting | None = None
        self._faults: list[str] = []
        self._answers: list[AnswerCommit] = []

    @property
    def automatic(self) -> bool:
        """Whether no caller waits for the answer to the request in progress."""
        return self._current is not None and self._current.automatic

    def add(self, request: CommitRequested) -> None:
        """Queue a request.

        It joins one of its kind that still waits, so that requests do not pile up: the later
        positions are committed once, and both are answered by that. An automatic one replaces an
        automatic one. Offsets that a user has named join only lower ones of the same partitions.
        """
        positions, number = dict(request.positions), request.request
        if number is None:
            self._waiting = deque(commit for commit in self._waiting if not commit.automatic)
        elif not positions:
            self._answers.append(AnswerCommit(number, ()))
            return
        elif (same := self._same_kind(positions, request.strict)) is not None:
            same.positions |= positions
            same.callers.append(number)
            return
        callers = [] if number is None else [number]
        self._waiting.append(_Waiting(positions, request.strict, number is None, callers))

    def _same_kind(self, positions: dict[TopicPartition, int], strict: bool) -> _Waiting | None:
        """A waiting commit that these positions may join, without overtaking another one."""
        for waiting in reversed(self._waiting):
            if waiting.strict == strict and not waiting.automatic:
                if not strict:
                    return waiting
                higher = all(positions.get(tp, -1) >= at for tp, at in waiting.positions.items())
                if higher and waiting.positions.keys() == positions.keys():
                    return waiting
            if not waiting.positions.keys().isdisjoint(positions):
                return None
        return None

    def abandon(self, request: int) -> None:
        """The caller does not wait any more: the request is dropped if it was not sent yet."""
        for waiting in self._waiting:
            if request in waiting.callers:
                waiting.callers.remove(request)
                if not waiting.callers:
                    self._waiting.remove(waiting)
                self._answers.append(AnswerCommit(request, ("the caller does not wait any more",)))
                return

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Positions of these partitions are outdated: released, committed later, or reset.

        Positions that a user has named stay.
        """

        for waiting in self._waiting:
            if not waiting.strict:
                for tp in partitions:
                    waiting.positions.pop(tp, None)
        if self._current is not None and not self._current.strict:
            self.left = {tp: at for tp, at in self.left.items() if tp not in partitions}

    def next(self, obstacle: Callable[[TopicPartition, int], str | None]) -> bool:
        """Choose the positions to send now, as ``sent``; return whether there are any.

        ``obstacle`` returns why a position cannot be committed, "" when it is committed already,
        ``None`` when it is to be sent. Only the positions that a user has named are refused for it.
        """
        while self.token is None and not self.paused:
            if self._current is None:
                if not self._waiting:
                    break
                self._current, self.attempts = self._waiting.popleft(), 0
                self.left = dict(self._current.positions)
            for tp, position in list(self.left.items()):
                fault = obstacle(tp, position)
                if fault is not None:
                    del self.left[tp]
                    if fault and self._current.strict:
                        self._faults.append(f"{tp}: {fault}")
            if self.left:
                self.attempts += 1
                self.sent = dict(self.left)
                return True
            self._finish()
        return False

    def settle(self, faults: Iterable[str] = (), again: Collection[TopicPartition] = ()) -> None:
        """The command in progress is answered; partitions in ``again`` stay ``left``."""
        self.token, self.sent = None, {}
        self._faults += faults
        self.left = {tp: at for tp, at in self.left.items() if tp in again}
        if not self.left:
            self._finish()

    def refuse(self, why: str) -> None:
        """No requested offset can be stored any more."""
        due = [(commit, [why] if commit.positions else []) for commit in self._waiting]
        if self._current is not None:
            due.insert(0, (self._current, [*self._faults, why]))
        for commit, faults in due:
            self._answer(commit, faults)
        self.token, self.paused = None, False
        self._waiting.clear()
        self._clear()

    def answers(self) -> list[AnswerCommit]:
        """Answers that are due; each is returned once. No caller waits for the answer to an
        automatic commit."""
        due, self._answers = self._answers, []
        return due

    def _finish(self) -> None:
        assert self._current is not None
        self._answer(self._current, self._faults)
        self._clear()

    def _answer(self, commit: _Waiting, faults: Iterable[str]) -> None:
        texts = tuple(faults)
        self._answers += [AnswerCommit(caller, texts) for caller in commit.callers]

    def _clear(self) -> None:
        self._current, self.sent, self.left, self._faults = None, {}, {}, []
