"""Converts one member's actions to journal entries.

Called by the thread that runs the member: the connector's loop, or the simulation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final, Protocol

from zkconsumer.core.common.commands import (
    AnswerCommit,
    AnswerStart,
    Close,
    Drop,
    Fail,
    Forget,
    NotifyLost,
    NotifyReleasing,
    Report,
    SetTimer,
    StartFetching,
    StopFetching,
)
from zkconsumer.core.common.error_codes import name_of
from zkconsumer.core.common.events import (
    CommitRequested,
    Dropped,
    FetchingStopped,
    ListenerDone,
    TimerFired,
)
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper import commands, events
from zkconsumer.core.zookeeper.events import Claim
from zkconsumer.core.zookeeper.ops import Failed, OffsetOp, Reply, ZkOp, session_text
from zkconsumer.core.zookeeper.scripts.common import path_of
from zkconsumer.journal.codec import Codec
from zkconsumer.journal.counts import counts, touched
from zkconsumer.journal.schema import SCHEMA_VERSION, Kind

Entry = dict[str, Any]

RELEASE: Final = version("zkconsumer")
_LARGE: Final = 1024
"""Length of JSON from which a field is left out of an entry if it has not changed."""


def digest_of(text: str) -> str:
    """Return the digest of a field's JSON, as written in ``unchanged``."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Sink(Protocol):
    """The destination of entries, such as ``JournalWriter`` or a wrapped ``list.append``."""

    def write(self, entry: Entry) -> None:
        """Write one entry."""


class Observer(Protocol):
    """Called for every action of a member, in order. Must be quick, and must not raise.

    ``epoch`` is the member's session, or its generation in Kafka.
    """

    def event(self, event: Any, epoch: int, attempt: int) -> None:
        """Record an event before the state machine receives it."""

    def command(self, command: Any, epoch: int, attempt: int) -> None:
        """Record a command that the state machine issued."""


class MemberObserver(Observer, Protocol):
    """Observes a member of a group in ZooKeeper."""

    def op(
        self, op: ZkOp | OffsetOp, reply: Reply, sent_us: int, session: int, attempt: int
    ) -> None:
        """Record the answer to ``op``, which was sent at ``sent_us``."""

    def shut(self, since_us: int) -> None:
        """Record that delivery has been paused since ``since_us`` on the run's clock, because the
        session is lost."""


def run_entry(at_us: int, clock: str, settings: Mapping[str, object]) -> Entry:
    """Return the first entry of a file."""
    return {
        "at": at_us,
        "kind": Kind.RUN.value,
        "schema": SCHEMA_VERSION,
        "clock": clock,
        "settings": {name: str(value) for name, value in settings.items()},
    }


def event_entry(
    at_us: int, name: str, member: str = "", detail: str = "", partitions: Iterable[str] = ()
) -> Entry:
    """Return the entry for an action on the group."""
    entry: Entry = {"at": at_us, "kind": Kind.ACTION.value, "name": name}
    if member:
        entry["member"] = member
    if listed := list(partitions):
        entry["partitions"] = listed
    if detail:
        entry["detail"] = detail
    return entry


class Recorded(Protocol):
    """The part of a member's state machine that a journal records."""

    @property
    def spec(self) -> Any:
        """The state machine's settings, a dataclass."""

    @property
    def state(self) -> Any:
        """The member's state."""


class Recorder:
    """Writes the events and commands of one member.

    Args:
        sink: takes the entries.
        member: its consumer id.
        now_us: microseconds on the run's clock.
    """

    def __init__(self, sink: Sink, member: str, now_us: Callable[[], int]) -> None:
        self._sink = sink
        self._member = member
        self._now_us = now_us
        self._machine: Recorded | None = None
        self._codec = Codec()
        self._large: dict[tuple[str, str], str] = {}
        """By entry name and field name, the digest of a large value that was written."""

    def made(self, machine: Recorded, coordination: str) -> None:
        """Write the state machine's settings. Later events and commands are written completely.

        ``coordination``: ``zookeeper`` or ``coordinator``. Without this call the journal has only
        summaries, which cannot be replayed. Simulations are replayed from their seed.
        """
        self._machine = machine
        self._sink.write(
            {
                "at": self._now_us(),
                "kind": Kind.MEMBER.value,
                "member": self._member,
                "release": RELEASE,
                "coordination": coordination,
                "fields": self._codec.encode(machine.spec),
            }
        )

    def _entry(self, kind: Kind, what: object, epoch: int, attempt: int) -> Entry:
        return {
            "at": self._now_us(),
            "kind": kind.value,
            "name": type(what).__name__,
            "member": self._member,
            "session": session_text(epoch),
            "attempt": attempt,
        }

    def _describe(self, what: Any, entry: Entry) -> None:
        describe(what, entry)

    def _write(self, kind: Kind, what: Any, epoch: int, attempt: int) -> None:
        entry = self._entry(kind, what, epoch, attempt)
        self._describe(what, entry)
        if self._machine is not None:
            entry["state"] = self._machine.state.name
            entry["fields"] = self._codec.encode(what)
            self._leave_out_unchanged(entry)
        self._sink.write(entry)

    def _leave_out_unchanged(self, entry: Entry) -> None:
        """Leave out large fields that have not changed since the last line of this name.

        An idle member reads its group repeatedly, which in a large group would write megabytes
        each time.
        """
        fields, unchanged = entry["fields"], dict[str, str]()
        for name, value in list(fields.items()):
            key = (entry["name"], name)
            text = json.dumps(value) if isinstance(value, dict | list) else ""
            if len(text) < _LARGE:
                self._large.pop(key, None)
                continue
            before, self._large[key] = self._large.get(key), digest_of(text)
            if before == self._large[key]:
                unchanged[name] = before
                del fields[name]
        if unchanged:
            entry["unchanged"] = unchanged

    def event(self, event: Any, epoch: int, attempt: int) -> None:
        """Write an event before the state machine handles it."""
        self._write(Kind.EVENT, event, epoch, attempt)

    def command(self, command: Any, epoch: int, attempt: int) -> None:
        """Write a command."""
        self._write(Kind.COMMAND, command, epoch, attempt)


class MemberRecorder(Recorder):
    """Writes the journal of one member of a group in ZooKeeper. The arguments are those of
    ``Recorder``."""

    def op(
        self, op: ZkOp | OffsetOp, reply: Reply, sent_us: int, session: int, attempt: int
    ) -> None:
        """Write an operation."""
        entry = self._entry(Kind.OP, op, session, attempt)
        entry["sent"] = sent_us
        if path := path_of(op) if not isinstance(op, OffsetOp) else "":
            entry["path"] = path
        entry["result"] = reply.code.value if isinstance(reply, Failed) else "ok"
        entry |= self._spent(op, reply)
        created, deleted = touched(op, reply)
        if created:
            entry["created"] = created
        if deleted:
            entry["deleted"] = deleted
        self._sink.write(entry)

    def _spent(self, op: ZkOp | OffsetOp, reply: Reply) -> dict[str, int]:
        """Return the counts of an operation."""
        return counts(op, reply)._asdict()

    def shut(self, since_us: int) -> None:
        """Record that delivery is paused, and since when."""
        entry = event_entry(self._now_us(), "DeliveryShut", self._member)
        self._sink.write(entry | {"since": since_us})


def names_of(partitions: Iterable[TopicPartition]) -> list[str]:
    """Return partitions in the form of the journal's field ``partitions``."""
    return [str(tp) for tp in sorted(partitions)]


def offsets_of(offsets: Mapping[TopicPartition, int | None]) -> dict[str, int]:
    """Return offsets in the form of the journal's field ``offsets``."""
    return {str(tp): at for tp, at in sorted(offsets.items()) if at is not None}


def _committed(claims: Mapping[TopicPartition, Claim]) -> dict[str, int]:
    return offsets_of({tp: claim.committed for tp, claim in claims.items()})


def describe(what: object, entry: Entry) -> None:
    """Add the fields of an event or a command to ``entry``, under the schema's names."""
    numbers = {name: getattr(what, name, None) for name in ("token", "zxid")}
    entry |= {name: number for name, number in numbers.items() if number is not None}
    more: dict[str, Any] = {}
    match what:
        case events.Changed(path):
            more["path"] = path
        case TimerFired(_, name) | SetTimer(_, name):
            more["detail"] = name
        case events.ScriptFailed(_, code, path):
            more |= {"path": path, "result": code.value, "detail": what.text}
        case events.ViewLoaded(_, view):
            more["members"] = sorted(view.members)
        case events.Claimed(_, claims, blocked):
            more["partitions"] = names_of(claims)
            more["blocked"] = {str(tp): text for tp, text in sorted(blocked.items())}
            more["offsets"] = _committed(claims)
        case events.Committed(_, claims, fenced):
            more["offsets"] = _committed(claims)
            more["detail"] = f"fenced: {' '.join(names_of(fenced))}" if fenced else ""
        case events.OwnersChecked(_, foreign) | events.Released(_, foreign):
            more["partitions"] = names_of(foreign)
        case (
            FetchingStopped(positions=positions)
            | CommitRequested(positions=positions)
            | Dropped(positions)
            | commands.Commit(positions=positions)
        ):
            more["offsets"] = offsets_of(positions)
        case events.OffsetReset(tp, old, new):
            more["partitions"] = [str(tp)]
            more["replaced"], more["offsets"] = offsets_of({tp: old}), offsets_of({tp: new})
        case ListenerDone(_, error):
            more["detail"] = error or ""
        case events.RegistrationRefused(_, owner):
            more["detail"] = f"registered by session {session_text(owner)}"
        case StartFetching(_, starting):
            more["partitions"] = names_of(starting)
            more["offsets"] = offsets_of({tp: start for tp, (_, start) in starting.items()})
        case (
            commands.Release(claims=partitions)
            | commands.ClaimPartitions(wanted=partitions)
            | commands.CheckOwners(partitions=partitions)
            | commands.WatchBlockers(partitions=partitions)
            | StopFetching(partitions=partitions)
            | NotifyReleasing(partitions=partitions)
            | NotifyLost(partitions=partitions)
            | Drop(partitions)
            | Forget(partitions)
        ):
            more["partitions"] = names_of(partitions)
        case commands.LoadView(_, scope):
            more["detail"] = scope.value
        case AnswerStart(outcome, detail):
            more |= {"result": outcome.value, "detail": detail}
        case Report(event, text):
            more |= {"result": event, "detail": text}
        case Fail(code, text):
            more |= {"result": name_of(code), "detail": text}
        case Close(faults) | AnswerCommit(_, faults):
            more["detail"] = "; ".join(faults)
    entry |= {name: value for name, value in more.items() if value or value == 0}
