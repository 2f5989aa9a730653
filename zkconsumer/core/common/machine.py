"""The common base of all machines: tokens, timers, dispatch of events, a commit queue.

Events in, commands out. Rules for every machine:

1. Total: any event is legal in any state; nothing raises. 2. An answer whose token is not expected
is dropped and counted (``stale_answers``). 3. Waiting is a timer command, calling the user's
listener is a command; their result is an event.

The owner thread of a machine is the only caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from zkconsumer.core.common import commands
from zkconsumer.core.common.commands import AnswerCommit
from zkconsumer.core.common.events import CommitAbandoned, CommitRequested
from zkconsumer.core.common.types import TopicPartition

StateT = TypeVar("StateT")
EventT = TypeVar("EventT")
CommandT = TypeVar("CommandT")

Handler = Callable[[Any, Any], None]
"""A method of a machine that takes the event. Exactly the function in the table is called, so a
subclass that overrides a handler lists it in its own table."""


@dataclass(slots=True)
class _Waiting:
    """One commit for all requests that it answers. ``automatic``: no caller waits for it."""

    positions: dict[TopicPartition, int]
    strict: bool
    automatic: bool
    callers: list[int]


class CommitQueue:
    """Requests for commits, carried out one at a time. Every request is answered.

    The machine sends the commands; the queue decides their content.

    ``token`` identifies the command in progress; it is ``None`` between commands. ``sent`` has the
    command's positions, and ``left`` the request's unsettled positions. ``attempts`` counts how
    often the request was sent. While ``paused``, nothing is sent. ``stored`` has the known stored
    offset of each partition since the member began to read it.
    """

    def __init__(self) -> None:
        self.token: int | None = None
        self.sent: dict[TopicPartition, int] = {}
        self.left: dict[TopicPartition, int] = {}
        self.attempts = 0
        self.paused = False
        self.stored: dict[TopicPartition, int] = {}
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

        It is merged with a queued request of the same kind, so that requests do not pile up: the
        later positions are committed once, which answers both. An automatic request replaces an
        automatic one. Offsets given by a user are merged only with lower ones of the same
        partitions.
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
        """Return a queued commit that can include these positions without overtaking another."""
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
        """Drop the request of a caller that no longer waits, unless it has been sent."""
        for waiting in self._waiting:
            if request in waiting.callers:
                waiting.callers.remove(request)
                if not waiting.callers:
                    self._waiting.remove(waiting)
                self._answers.append(AnswerCommit(request, ("the caller does not wait any more",)))
                return

    def note_stored(self, tp: TopicPartition, offset: int | None) -> None:
        """Record the stored offset; ``None`` if there is no usable one."""
        if offset is None:
            self.stored.pop(tp, None)
        else:
            self.stored[tp] = offset

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget positions of these partitions, because their logs no longer contain them.
        Positions given by a user are kept."""
        for positions in (self.stored, *self._unnamed()):
            for tp in partitions:
                positions.pop(tp, None)

    def forget_above(self, kept: Callable[[], Collection[TopicPartition]]) -> None:
        """Forget stored offsets of ``kept`` partitions that are above a position to be committed.

        While a partition is being read, only ``auto.offset.reset`` lowers its position.
        """
        for positions in self._unnamed():
            for tp, position in positions.items():
                if position < self.stored.get(tp, -1) and tp in kept():
                    del self.stored[tp]

    def stopped(self, positions: Mapping[TopicPartition, int]) -> None:
        """Queue the final positions of stopped partitions, to be committed next.

        Automatic commits no longer include these partitions. The final positions also replace
        positions in waiting requests, unless a user gave them.
        """

        def final(commit: _Waiting, found: Mapping[TopicPartition, int]) -> dict[Any, int]:
            if commit.strict:
                return dict(found)
            if commit.automatic:
                return {tp: at for tp, at in found.items() if tp not in positions}
            return {tp: positions.get(tp, at) for tp, at in found.items()}

        for waiting in self._waiting:
            waiting.positions = final(waiting, waiting.positions)
        if self._current is not None:
            self.left = final(self._current, self.left)

    def next(self, obstacle: Callable[[TopicPartition, int], str | None]) -> bool:
        """Set ``sent`` to the positions to send now. Return whether there are any.

        ``obstacle`` returns why a position cannot be committed, "" if it is already committed, and
        ``None`` if it must be sent. An obstacle is reported as a fault if a user gave the position,
        or if the position is not stored.
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
                    if fault and not self._is_stored(self._current, tp, position):
                        self._faults.append(f"{tp}: {fault}")
            if self.left:
                self.attempts += 1
                self.sent = dict(self.left)
                return True
            self._finish()
        return False

    def settle(self, faults: Iterable[str] = (), again: Collection[TopicPartition] = ()) -> None:
        """Record the answer to the command in progress. ``again``: what remains in ``left``."""
        self.token, self.sent = None, {}
        self._faults += faults
        self.left = {tp: at for tp, at in self.left.items() if tp in again}
        if not self.left:
            self._finish()

    def refuse(self, why: str) -> None:
        """Refuse all requests, because no offset can be stored any more."""
        due = [(commit, self._refusal(commit, commit.positions, why)) for commit in self._waiting]
        if self._current is not None:
            # A reset has emptied what was sent, so it is unknown whether it is stored.
            refusal = self._refusal(self._current, self.left, why) if self.left else [why]
            faults = [*self._faults, *refusal]
            due.insert(0, (self._current, faults))
        for commit, faults in due:
            self._answer(commit, faults)
        self.token, self.paused = None, False
        self._waiting.clear()
        self._clear()

    def answers(self) -> list[AnswerCommit]:
        """Return answers that are due, each once. Automatic commits have no caller and get no
        answer."""
        due, self._answers = self._answers, []
        return due

    def _finish(self) -> None:
        assert self._current is not None
        self._answer(self._current, self._faults)
        self._clear()

    def _unnamed(self) -> list[dict[TopicPartition, int]]:
        """Return positions, in queued commits and the current one, that no user has given."""
        every = [commit.positions for commit in self._waiting if not commit.strict]
        if self._current is not None and not self._current.strict:
            every.append(self.left)
        return every

    def _is_stored(self, commit: _Waiting, tp: TopicPartition, position: int) -> bool:
        """Whether this position, which is not sent, or a later one is stored."""
        return not commit.strict and self.stored.get(tp, -1) >= position

    def _refusal(
        self, commit: _Waiting, positions: Mapping[TopicPartition, int], why: str
    ) -> list[str]:
        stored = (self._is_stored(commit, tp, at) for tp, at in positions.items())
        return [] if all(stored) else [why]

    def _answer(self, commit: _Waiting, faults: Iterable[str]) -> None:
        texts = tuple(faults)
        self._answers += [AnswerCommit(caller, texts) for caller in commit.callers]

    def _clear(self) -> None:
        self._current, self.sent, self.left, self._faults = None, {}, {}, []


class Machine(ABC, Generic[StateT, EventT, CommandT]):
    """Passes each event to its handler, and collects the commands. ``state`` and ``stale_answers``
    may be read by the owner thread at any time."""

    ANYWHERE: ClassVar[Mapping[type, Handler]]
    """Events that are not answers, and their handlers; legal in every state except the last."""
    ANSWERS: ClassVar[Mapping[Any, Mapping[type, Handler]]]
    """The answers that each state expects, and their handlers."""

    def __init__(self, state: StateT) -> None:
        self.state = state
        self.stale_answers = 0
        self._commands: list[CommandT] = []
        self._token = 0
        self._awaited: int | None = None
        self._timers: dict[str, int] = {}
        self._commits = CommitQueue()

    @abstractmethod
    def _ended(self, event: EventT) -> bool:
        """Return whether the machine has ended. If so, this method handles ``event``."""

    @abstractmethod
    def _commit_answered(self, event: EventT) -> None:
        """Handle the answer to the queue's commit in progress."""

    @abstractmethod
    def _stepped(self) -> None:
        """Send the next commit, if it may be sent now. Called after each event."""

    def _commit_abandoned(self, event: CommitAbandoned) -> None:
        self._commits.abandon(event.request)

    def _answered_otherwise(self, token: int, event: EventT) -> bool:
        """Handle an answer that the state does not expect. Return whether it was one."""
        return False

    def _unexpected(self, event: EventT) -> bool:
        """Handle an expected answer without a handler in the state. Return whether it was
        handled."""
        return False

    def on(self, event: EventT) -> list[CommandT]:
        """Handle one event. Return the resulting commands."""
        self._commands = []
        if self._ended(event):
            return self._commands
        token: int | None = getattr(event, "token", None)
        handler = self.ANYWHERE.get(type(event))
        if handler is not None:
            handler(self, event)
        elif token is None or not self._answer(token, event):
            self.stale_answers += 1
        self._stepped()
        return self._commands

    def _answer(self, token: int, event: EventT) -> bool:
        if token == self._commits.token:
            self._commit_answered(event)
            return True
        if self._answered_otherwise(token, event):
            return True
        if token != self._awaited:
            return False
        handler = self.ANSWERS.get(self.state, {}).get(type(event))
        if handler is None:
            return self._unexpected(event)
        self._awaited = None
        handler(self, event)
        return True

    def _emit(self, command: CommandT) -> None:
        self._commands.append(command)

    def _refuse_commits(self, why: str) -> None:
        self._commits.refuse(why)
        self._answer_commits()

    def _answer_commits(self) -> None:
        answers = self._commits.answers()
        self._commands += answers  # type: ignore[arg-type]  # every machine's commands include them

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    def _await(self, state: StateT) -> int:
        """Enter ``state``, and return the token that the answer must repeat."""
        self.state = state
        self._awaited = self._next_token()
        return self._awaited

    def _timer(self, name: str, seconds: float, jitter: float = 0.0) -> None:
        """Set the timer ``name``, which replaces an earlier one with that name."""
        self._timers[name] = self._next_token()
        timer = commands.SetTimer(self._timers[name], name, seconds, jitter)
        self._emit(timer)  # type: ignore[arg-type]  # every machine's commands include it
