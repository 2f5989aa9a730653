"""Replays a journal's events on the same machine, and compares the results. Pure.

After each event it compares the machine's state and its commands with all their fields, and checks
the rules of every machine. A machine uses neither clock nor random numbers, so the events
determine everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, get_args

from zkconsumer.core.common.commands import AnswerCommit, StartFetching
from zkconsumer.core.common.events import CommitRequested
from zkconsumer.core.groups import (
    commands as group_commands,
    events as group_events,
    kip848_events as consumer_events,
)
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.groups.kip848 import Kip848Machine
from zkconsumer.core.groups.spec import ClassicSpec, Kip848Spec
from zkconsumer.core.zookeeper import commands as zk_commands, events as zk_events
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.errors import JournalFormatError
from zkconsumer.journal.codec import Codec, CodecError
from zkconsumer.journal.recorder import Entry, digest_of

_MACHINES: Final[Mapping[str, tuple[Any, type, Any]]] = {
    "zookeeper": (RebalanceMachine, MemberSpec, zk_events.Event),
    "coordinator": (ClassicMachine, ClassicSpec, group_events.Event),
    "consumer": (Kip848Machine, Kip848Spec, consumer_events.Event),
}
"""By coordination, the machine, its settings and its events."""


@dataclass(frozen=True, slots=True)
class Did:
    """A command: its class, and all its fields as in the journal. ``line`` is 0 if it was not
    recorded."""

    name: str
    fields: Mapping[str, Any]
    line: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between a replay and the journal. ``expected`` is the recorded value.
    ``event_line`` is the line of the event after which the two differ, ``at`` its time
    (microseconds on the run's clock), and ``line`` the first line that differs. A state is empty if
    the journal does not contain it. ``broken``: violated rules, among those that every state
    machine must follow."""

    line: int
    event_line: int
    at: int
    event: Did
    expected_state: str
    actual_state: str
    expected: Sequence[Did]
    actual: Sequence[Did]
    broken: Sequence[str]


@dataclass(slots=True)
class Replayed:
    """One run of one member. ``line`` is its first line, ``last_line`` the line of its last
    event."""

    member: str
    line: int
    release: str
    coordination: str
    events: int = 0
    commands: int = 0
    state: str = ""
    last_line: int = 0
    difference: Difference | None = None
    dropped_line: int = 0
    """Line at which entries are missing, so that the replay must stop; 0 if none are missing."""


@dataclass(slots=True)
class _Step:
    """An event and the commands that were recorded after it."""

    line: int
    entry: Entry
    event: Any
    done: list[Did] = field(default_factory=list)
    state: str = ""


class _Run:
    """Replays one run of one member."""

    def __init__(self, result: Replayed, machine: Any, events: Mapping[str, type], codec: Codec):
        self.result = result
        self._machine = machine
        self._events = events
        self._codec = codec
        self._step: _Step | None = None
        self._tokens: set[int] = set()
        self._asked: set[int] = set()
        self._last: dict[str, Mapping[str, Any]] = {}
        """The fields of the last line of each name."""
        result.state = machine.state.name

    @property
    def over(self) -> bool:
        """Whether the comparison has ended."""
        return self.result.difference is not None or self.result.dropped_line > 0

    def event(self, line: int, entry: Entry) -> None:
        """Record an event of the member. The previous step is then complete."""
        kind = self._events.get(entry["name"])
        if kind is None:
            raise CodecError(f"{entry['name']} is not an event of this kind of coordination")
        event = self._codec.decode(kind, self._whole(entry))
        state = entry.get("state", "")
        if self._step is not None:
            self._step.state = state or self._step.state
        self.finish(complete=True)
        if not self.over:
            self._step = _Step(line, entry, event)

    def command(self, line: int, entry: Entry) -> None:
        """Record a command of the member's machine."""
        if self._step is None:
            raise CodecError(f"the command {entry['name']} does not follow an event")
        self._step.done.append(Did(entry["name"], self._whole(entry), line))
        self._step.state = entry.get("state", "")

    def _whole(self, entry: Entry) -> Mapping[str, Any]:
        """Return all fields of an event or command, including those unchanged since an earlier
        line."""
        name = entry["name"]
        fields = dict(entry["fields"])
        for key, digest in entry.get("unchanged", {}).items():
            value = self._last.get(name, {}).get(key)
            if digest_of(json.dumps(value)) != digest:
                raise CodecError(
                    f"{name}: the field {key} is marked unchanged, but differs from "
                    f"the previous {name} or is missing there"
                )
            fields[key] = value
        self._last[name] = fields
        return fields

    def finish(self, complete: bool) -> None:
        """Replay the event of the current step, and compare. ``complete``: all its commands were
        recorded; the last step of a journal may lack some."""
        step, self._step = self._step, None
        if step is None:
            return
        broken: list[str] = []
        commands: list[Any] = []
        try:
            commands = self._machine.on(step.event)
        except Exception as error:  # noqa: BLE001 - it is what a replay is there to find
            broken.append(f"the machine raises {error!r}")
        broken += self._broken(step.event, commands)
        actual = [Did(type(command).__name__, self._codec.encode(command)) for command in commands]
        state = self._machine.state.name
        result = self.result
        result.events += 1
        result.commands += len(actual)
        result.state, result.last_line = state, step.line
        same = _alike(step.done, actual)
        as_recorded = same == len(step.done) and (same == len(actual) or not complete)
        if as_recorded and step.state in ("", state) and not broken:
            return
        line = step.done[same].line if same < len(step.done) else step.line
        event = Did(step.entry["name"], self._codec.encode(step.event), step.line)
        result.difference = Difference(
            line, step.line, step.entry["at"], event, step.state, state, step.done, actual, broken
        )

    def _broken(self, event: Any, commands: Sequence[Any]) -> list[str]:
        """Return the rules of every machine that are violated after ``event``."""
        machine, faults = self._machine, []
        if isinstance(event, CommitRequested) and event.request is not None:
            self._asked.add(event.request)
        for command in commands:
            name = type(command).__name__
            token = getattr(command, "token", None)
            if token is not None and token in self._tokens:
                faults.append(f"{name}: the token {token} was used before")
            if token is not None:
                self._tokens.add(token)
            uses: Iterable[Any] = ()
            match command:
                case AnswerCommit(request) if request not in self._asked:
                    faults.append(
                        f"the commit request {request} is answered twice, or was not made"
                    )
                case AnswerCommit(request):
                    self._asked.discard(request)
                case StartFetching(_, partitions):
                    uses = partitions
                case zk_commands.Commit() | group_commands.CommitOffsets():
                    uses = command.positions
            if others := sorted(str(tp) for tp in uses if tp not in machine.held):
                faults.append(f"{name}: not held: {', '.join(others)}")
        if isinstance(machine, RebalanceMachine):
            if (
                not machine.profile.forgets_positions
                and not machine.fetching <= machine.held.keys()
            ):
                faults.append("partitions are fetched that are not held")
        elif machine.generation < 0 and machine.held:
            faults.append("partitions are held without a generation")
        return faults


def _alike(actual: Sequence[Did], expected: Sequence[Did]) -> int:
    """Return the number of equal commands before the first difference."""
    pairs = zip(actual, expected, strict=False)
    return sum(1 for _ in takewhile(lambda p: _content(p[0]) == _content(p[1]), pairs))


def _content(command: Did) -> tuple[str, Mapping[str, Any]]:
    """Leave out null fields, because journals of earlier releases lack newer fields."""
    fields = command.fields.items()
    return command.name, {name: value for name, value in fields if value is not None}


def replay(
    path: str,
    entries: Iterable[Entry],
    strategies: Iterable[type] = (),
    member: str | None = None,
    until: int | None = None,
) -> list[Replayed]:
    """Replay each run of each member in a journal, up to its first difference.

    Args:
        path: the journal's path, for messages.
        entries: all lines of the journal, from the first.
        strategies: classes of assignment strategies for members on the coordinator.
        member: replay only this member; by default all.
        until: the last line to read.

    Raises JournalFormatError if an event is unreadable, or if there is nothing to replay.
    """
    codec = Codec(strategies)
    runs: dict[str, _Run] = {}
    results: list[Replayed] = []
    for line, entry in enumerate(entries, 1):
        if until is not None and line > until:
            break
        name, kind = entry.get("member", ""), entry["kind"]
        if not name or (member is not None and name != member):
            continue
        try:
            if kind == "member":
                if name in runs:
                    runs[name].finish(complete=False)
                runs[name] = _begin(line, entry, codec)
                results.append(runs[name].result)
            elif name not in runs or "fields" not in entry:
                if kind in ("event", "command"):
                    raise CodecError(
                        "the events in the journal are incomplete, so it cannot be replayed: it "
                        "was written by an older release, or by a simulation (run the simulation "
                        "again with its seed)"
                    )
                if entry.get("name") == "EntriesDropped" and name in runs and not runs[name].over:
                    runs[name].finish(complete=False)
                    runs[name].result.dropped_line = line
            elif not runs[name].over:
                (runs[name].event if kind == "event" else runs[name].command)(line, entry)
        except CodecError as error:
            raise JournalFormatError(path, line, str(error)) from None
    for run in runs.values():
        run.finish(complete=False)
    if not results:
        raise JournalFormatError(path, 1, "the journal has no member that can be replayed")
    return results


def _begin(line: int, entry: Entry, codec: Codec) -> _Run:
    coordination = entry["coordination"]
    if coordination not in _MACHINES:
        raise CodecError(f"coordination {coordination!r} is not one of {', '.join(_MACHINES)}")
    machine, spec, event = _MACHINES[coordination]
    replayed = machine(codec.decode(spec, entry["fields"]))
    events = {kind.__name__: kind for kind in get_args(event)}
    return _Run(
        Replayed(entry["member"], line, entry["release"], coordination), replayed, events, codec
    )
