"""CommitQueue: requests for commits, carried out one at a time; every request is answered. Pure.

Owned by a machine and called on its thread. The machine sends the commands; the queue decides what
is in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.common.types import TopicPartition


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
        self._waiting: deque[CommitRequested] = deque()
        self._current: CommitRequested | None = None
        self._faults: list[str] = []
        self._answers: list[AnswerCommit] = []

    @property
    def automatic(self) -> bool:
        """Whether no caller waits for the answer to the request in progress."""
        return self._current is not None and self._current.request is None

    def add(self, request: CommitRequested) -> None:
        """Queue a request. An automatic one replaces an automatic one that still waits."""
        if request.request is None:
            self._waiting = deque(one for one in self._waiting if one.request is not None)
        self._waiting.append(request)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Positions of these partitions are outdated: released, committed later, or reset.

        Positions that a user has named stay.
        """

        def kept(request: CommitRequested) -> CommitRequested:
            if request.strict:
                return request
            positions = {tp: at for tp, at in request.positions.items() if tp not in partitions}
            return replace(request, positions=positions)

        self._waiting = deque(map(kept, self._waiting))
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
        due = [(one, [why] if one.positions else []) for one in self._waiting]
        if self._current is not None:
            due.insert(0, (self._current, [*self._faults, why]))
        self._answers += [
            AnswerCommit(one.request, tuple(faults))
            for one, faults in due
            if one.request is not None
        ]
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
        if self._current.request is not None:
            self._answers.append(AnswerCommit(self._current.request, tuple(self._faults)))
        self._clear()

    def _clear(self) -> None:
        self._current, self.sent, self.left, self._faults = None, {}, {}, []
