"""Replayed journals: the same machine does the same again, and a different one is found.

``ZKC_SEED=4711`` runs that seed alone. ``ZKC_SEEDS=20000`` runs more than the usual number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.sim.runs.broker_scenario import BrokerGroup
from tests.sim.runs.run import run as simulate
from tests.support.rewriting import rewrite
from zkconsumer.cli.main import cli
from zkconsumer.core.common.commands import AnswerCommit, Drop, Forget, StartFetching
from zkconsumer.core.common.events import FetchingStarted, ListenerDone, TimerFired
from zkconsumer.core.common.types import (
    BrokerEndpoint,
    ConsumerThreadId,
    Pattern,
    Subscription,
    TopicPartition,
)
from zkconsumer.core.groups.assignors.sticky import StickyStrategy
from zkconsumer.core.groups.assignors.strategies import LegacyStrategy
from zkconsumer.core.groups.classic import ClassicMachine
from zkconsumer.core.zookeeper.commands import Commit
from zkconsumer.core.zookeeper.events import (
    Claim,
    Claimed,
    Event,
    OwnersChecked,
    Registered,
    SessionLost,
    SessionOpened,
    SessionResumed,
    ViewLoaded,
)
from zkconsumer.core.zookeeper.machine import RebalanceMachine
from zkconsumer.core.zookeeper.view import GroupView, MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import JournalFormatError
from zkconsumer.journal import JournalWriter
from zkconsumer.journal.group import GroupRecorder
from zkconsumer.journal.recorder import Entry, MemberRecorder, Recorder, event_entry, run_entry
from zkconsumer.journal.replay import Replayed, replay
from zkconsumer.runtime.membership.loop import MemberLoop

STRATEGIES = (*BrokerGroup.strategies, StickyStrategy(False), StickyStrategy(True))
CLASSES = {type(one) for one in STRATEGIES} | {LegacyStrategy}
TP = TopicPartition("x", 0)
ONLY = os.environ.get("ZKC_SEED")
SEEDS = [int(ONLY)] if ONLY else range(int(os.environ.get("ZKC_SEEDS", "512")) // 64)


class Lines:
    """A journal in memory. Entries pass through JSON, as in a file."""

    def __init__(self) -> None:
        self.entries: list[Entry] = [run_entry(0, "virtual", {})]

    def write(self, entry: Entry) -> None:
        self.entries.append(json.loads(json.dumps(entry)))

    def save(self, path: Path) -> Path:
        with JournalWriter(path) as writer:
            for entry in self.entries:
                writer.write(entry)
        return path


class Both:
    """Two observers of one loop. The first one also gets what the coordination reports."""

    def __init__(self, first: Any, second: Recorder) -> None:
        self._each = (first, second)
        self.op, self.shut = getattr(first, "op", None), getattr(first, "shut", None)

    def event(self, *what: Any) -> None:
        for observer in self._each:
            observer.event(*what)

    def command(self, *what: Any) -> None:
        for observer in self._each:
            observer.command(*what)


def recorded(patch: pytest.MonkeyPatch, play: Callable[[], object]) -> Lines:
    """The journal of all members of a simulation, as a running member writes it."""
    lines, begin = Lines(), MemberLoop.__init__

    def init(self: MemberLoop[Any], name: str, machine: Any, *more: Any, **others: Any) -> None:
        begin(self, name, machine, *more, **others)
        recorder: Recorder
        if isinstance(machine, RebalanceMachine):
            recorder = MemberRecorder(lines, name, self.host.wall_us)
            recorder.made(machine, "zookeeper")
        else:
            recorder = GroupRecorder(lines, name, self.host.wall_us)
            recorder.made(machine, "coordinator")
        self.observer = Both(self.observer, recorder)

    with patch.context() as patched:
        patched.setattr(MemberLoop, "__init__", init)
        play()
    return lines


def zookeeper(patch: pytest.MonkeyPatch, seed: int) -> Lines:
    """Journals of a group in ZooKeeper."""
    return recorded(patch, lambda: simulate(seed, coordination="zookeeper"))


def coordinator(patch: pytest.MonkeyPatch, seed: int) -> Lines:
    """Journals of a group on the brokers."""
    return recorded(
        patch, lambda: simulate(seed, coordination="coordinator", strategies=STRATEGIES)
    )


_MAIN = "import sys; from zkconsumer.cli.main import run; sys.exit(run(sys.argv[1:]))"
RUNS = {"zookeeper": zookeeper, "coordinator": coordinator}


def replayed(lines: Lines, **more: Any) -> list[Replayed]:
    """Replay all members of a journal in memory."""
    return replay("j", lines.entries, CLASSES, **more)


def command_line(*arguments: str) -> Result:
    """Run ``zkconsumer replay``."""
    return CliRunner().invoke(cli, ["replay", *arguments], catch_exceptions=True)


@pytest.mark.parametrize("kind", RUNS)
def test_a_replay_does_what_the_member_did(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """In groups under every fault, all members' machines do the same again to the last command, and
    obey the rules, also those that were killed."""
    events = members = 0
    for seed in SEEDS:
        for run in replayed(RUNS[kind](monkeypatch, seed)):
            assert run.difference is None, f"replay with ZKC_SEED={seed}\n{run}"
            assert run.coordination == kind
            events += run.events
            members += 1
    assert members > 3 * len(SEEDS)
    assert events > 20 * members


def losing_six() -> Lines:
    """The journal of a member that owns six partitions, and then none of them."""
    tps = [TopicPartition("t", n) for n in range(6)]
    thread = ConsumerThreadId("g_m", 0)
    spec = MemberSpec(GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    view = GroupView(
        True, (BrokerEndpoint(0, "b", 1),), {"g_m": {"t": 1}}, {}, {"t": tuple(range(6))}
    )
    lines, machine = Lines(), RebalanceMachine(spec)
    recorder = MemberRecorder(lines, "g_m", lambda: 0)
    recorder.made(machine, "zookeeper")
    steps: list[Callable[[int], Event]] = [
        lambda _: SessionOpened(1),
        Registered,
        lambda token: ViewLoaded(token, view),
        lambda token: Claimed(token, {tp: Claim(thread, None, None) for tp in tps}),
        ListenerDone,
        FetchingStarted,
        lambda _: SessionResumed(),
        lambda _: TimerFired(machine._timers["coalesce"], "coalesce"),
        lambda token: ViewLoaded(token, view),
        lambda token: OwnersChecked(token, frozenset(tps)),
    ]
    for step in steps:
        event = step(machine._awaited or 0)
        recorder.event(event, 1, 0)
        for command in machine.on(event):
            recorder.command(command, 1, 0)
    assert [e.get("result") for e in lines.entries].count("lost-owner") == 6
    return lines


@pytest.mark.parametrize("kind", RUNS)
def test_the_order_of_hashes_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """A machine does not depend on the order of a set, which differs between processes."""
    lines = losing_six()
    if kind == "coordinator":
        for seed in SEEDS[:5]:
            lines.entries += coordinator(monkeypatch, seed).entries[1:]
    path = lines.save(tmp_path / "j")
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, "replay", str(path)],
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"ZKC_SEED={SEEDS[0]} PYTHONHASHSEED={hashes}\n{done}"


def _passing_over(machine: type, name: str, command: type) -> Callable[..., Any]:
    """A bug: ``machine`` skips this command."""
    right = getattr(machine, name)

    def on(self: Any, event: Any) -> list[Any]:
        return [one for one in right(self, event) if not isinstance(one, command)]

    return on


@pytest.mark.parametrize(
    ("kind", "machine", "command"),
    [("zookeeper", RebalanceMachine, Drop), ("coordinator", ClassicMachine, Forget)],
)
def test_a_planted_bug_is_the_first_difference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, machine: type, command: type
) -> None:
    """A changed machine differs where it first does something else, and nowhere before. Line,
    event, expected and actual commands, and the events before are printed."""
    for seed in SEEDS if ONLY else range(200):
        lines = RUNS[kind](monkeypatch, seed)
        first: dict[str, int] = {}
        for line, entry in enumerate(lines.entries, 1):
            if entry["kind"] == "command" and entry["name"] == command.__name__:
                first.setdefault(entry["member"], line)
        if first:
            break
    member, line = next(iter(first.items()))
    path = lines.save(tmp_path / "j.jsonl")
    assert command_line(str(path), "--member", member).exit_code == 0
    monkeypatch.setattr(machine, "on", _passing_over(machine, "on", command))
    found = command_line(str(path), "--member", member)
    assert found.exit_code == 1, f"ZKC_SEED={seed}\n{found.output}"
    assert f"j.jsonl:{line}: differs: commands" in found.output
    assert f"expected  line {line}: {command.__name__}" in found.output
    assert "sequenceDiagram\n" in found.output
    assert f"Note over M: line {line}: differs after" in found.output

    (run,) = json.loads(command_line(str(path), "--member", member, "--json").output)["members"]
    there = run["difference"]
    assert there["line"] == line
    assert there["expected_state"] == there["actual_state"]
    assert command.__name__ in [one["name"] for one in there["expected"]]
    assert command.__name__ not in [one["name"] for one in there["actual"]]
    before = command_line(str(path), "--member", member, "--until", str(there["event_line"] - 1))
    assert before.exit_code == 0, before.output


def test_a_state_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference that shows in no command is found in the state."""
    lines = zookeeper(monkeypatch, 1)
    events = [n for n, e in enumerate(lines.entries) if e["kind"] == "event"]
    changed = next(n for n in events if lines.entries[n]["state"] == "RESTING")
    lines.entries[changed]["state"] = "VIEWING"
    member = lines.entries[changed]["member"]
    before = [n for n in events if n < changed and lines.entries[n]["member"] == member][-1]
    run = next(run for run in replayed(lines, member=member))
    assert run.difference is not None
    assert run.difference.event_line == before + 1
    assert (run.difference.expected_state, run.difference.actual_state) == ("VIEWING", "RESTING")


def test_a_machine_that_raises_and_a_broken_rule_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay reports an exception of a machine. It also reports a broken rule, even if everything
    else is as recorded."""
    lines = zookeeper(monkeypatch, 1)

    with monkeypatch.context() as patch:
        old = "self._hold(tp, claim, event.token, 1)"
        rewrite(patch, RebalanceMachine._claimed, old, 'raise KeyError("planted")')
        run = replayed(lines)[0]
        assert run.difference is not None
        assert run.difference.event.name == "Claimed"
        assert run.difference.broken == ["the machine raises KeyError('planted')"]

    def careless(self: RebalanceMachine) -> int:
        return 1

    with monkeypatch.context() as patch:
        patch.setattr(RebalanceMachine, "_next_token", careless)
        tokens = zookeeper(patch, 1)
        run = replayed(tokens)[0]
        assert run.difference is not None
        assert "the token 1 was used before" in run.difference.broken[0]


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        (StartFetching(10**6, {TP: (ConsumerThreadId("m", 0), 5)}), "StartFetching: not held: x-0"),
        (Commit(10**6, 0, {TP: 5}, {}), "Commit: not held: x-0"),
        (AnswerCommit(10**6, ()), "the commit request 1000000 is answered twice, or was not made"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_rule_is_kept(monkeypatch: pytest.MonkeyPatch, command: object, rule: str) -> None:
    """A machine that fetches or commits a partition it does not own, or answers a question that was
    not asked, is found."""
    lines = zookeeper(monkeypatch, 1)
    right = RebalanceMachine.on
    monkeypatch.setattr(RebalanceMachine, "on", lambda self, event: [*right(self, event), command])
    difference = replayed(lines)[0].difference
    assert difference is not None
    assert difference.broken == [rule]


def test_partitions_that_are_fetched_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not remove a lost partition from the fetched ones is found."""
    for seed in range(200):
        lines = zookeeper(monkeypatch, seed)
        losers = [e["member"] for e in lines.entries if e.get("name") == "Drop"]
        losers = [name for name in losers if not _is_scala(lines, name)]
        if losers:
            break

    def on(self: RebalanceMachine, event: Any) -> list[Any]:
        before = set(self.fetching)
        found = right(self, event)
        self.fetching |= before if isinstance(event, SessionLost) else set()
        return found

    right = RebalanceMachine.on
    monkeypatch.setattr(RebalanceMachine, "on", on)
    difference = replayed(lines, member=losers[0])[0].difference
    assert difference is not None
    assert difference.event.name == "SessionLost"
    assert difference.broken == ["partitions are fetched that are not held"]


def _is_scala(lines: Lines, member: str) -> bool:
    made = next(e for e in lines.entries if e["kind"] == "member" and e["member"] == member)
    return bool(made["fields"]["scala"])


@pytest.mark.parametrize("kind", RUNS)
def test_a_journal_may_end_anywhere(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A killed member leaves a journal that ends after any line, or in the middle of one."""
    lines = RUNS[kind](monkeypatch, 3)
    name = lines.entries[1]["member"]
    whole = replayed(lines, member=name)[0]
    ends = [n for n, e in enumerate(lines.entries, 1) if e.get("member") == name][:80]
    assert whole.events > 20
    for end in ends:
        assert replayed(lines, member=name, until=end)[0].difference is None, end


def test_where_entries_were_dropped_a_replay_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Entries after a gap cannot be replayed. The command says so, with status 2. Entries before it
    can."""
    lines = zookeeper(monkeypatch, 1)
    name = lines.entries[1]["member"]
    mine = [n for n, entry in enumerate(lines.entries) if entry.get("member") == name]
    gap = mine[30]
    at = lines.entries[gap]["at"]
    lines.entries[gap : mine[36]] = [event_entry(at, "EntriesDropped", name) | {"count": 6}]
    path = lines.save(tmp_path / "j")
    found = command_line(str(path), "--member", name)
    assert found.exit_code == 2, found.output
    assert f"line {gap + 1}: entries are missing" in found.output
    assert command_line(str(path), "--member", name, "--until", str(gap)).exit_code == 0


def _spoiled(change: Callable[[list[Entry]], object]) -> Callable[[Lines], Lines]:
    def spoil(lines: Lines) -> Lines:
        change(lines.entries)
        return lines

    return spoil


def _first(entries: list[Entry], name: str) -> Entry:
    return next(entry for entry in entries if entry.get("name") == name)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda e: e.pop(1), "the events in the journal are incomplete"),
        (
            lambda e: _first(e, "Registered").pop("fields"),
            "the events in the journal are incomplete",
        ),
        (lambda e: _first(e, "Registered")["fields"].clear(), "Registered must be an object"),
        (
            lambda e: _first(e, "SessionOpened")["fields"].update(session_id="x"),
            "SessionOpened.session_id: 'x' is not an integer",
        ),
        (lambda e: _first(e, "SessionOpened").update(name="What"), "What is not an event"),
        (lambda e: e[1].update(coordination="x"), "coordination 'x' is not one of"),
        (
            lambda e: e[1]["fields"]["subscription"].update(pattern="x"),
            "MemberSpec.subscription.pattern: 'x' is not one of STATIC",
        ),
        (
            lambda e: _first(e, "ViewLoaded")["fields"]["view"]["partitions"].update(t=5),
            "ViewLoaded.view.partitions: 5 is not a list",
        ),
        (lambda e: e.__delitem__(slice(1, None)), "no member that can be replayed"),
    ],
)
def test_what_cannot_be_replayed_is_named(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spoil: Callable[[list[Entry]], object],
    reason: str,
) -> None:
    """For an old journal, a simulation's journal or damaged fields, the error names file, line and
    reason. The status is 2."""
    path = _spoiled(spoil)(zookeeper(monkeypatch, 1)).save(tmp_path / "j.jsonl")
    found = command_line(str(path))
    assert isinstance(found.exception, JournalFormatError), found.output
    assert found.exception.exit_code == 2
    assert f"{path}:" in str(found.exception)
    assert reason in str(found.exception)
