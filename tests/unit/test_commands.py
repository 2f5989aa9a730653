"""Commands without servers: their defaults and their exit status."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from zkconsumer.admin.change import Deletion
from zkconsumer.admin.describe import GroupRow, GroupStateRow
from zkconsumer.admin.tools import ImportPlan
from zkconsumer.admin.verifier import Finding, Kind
from zkconsumer.cli.consume import command as consume
from zkconsumer.cli.groups import groups
from zkconsumer.cli.laboratory.demo import Member, demo
from zkconsumer.cli.offsets import offsets
from zkconsumer.cli.top import top
from zkconsumer.cli.tree import tree
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.errors import (
    ClusterError,
    CommitFailedError,
    ConsumerTimeoutError,
    UnknownGroupError,
    ZkUnavailableError,
)
from zkconsumer.servers.herd.membership_change import Pack

ZOOKEEPER = ["--zookeeper", "127.0.0.1:1"]


class Tools:
    """Records what is done."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[str] = []
        self.findings: list[Finding] = []

    def __enter__(self) -> Tools:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def verify(self, *_: object, **__: object) -> list[Finding]:
        return self.findings

    def delete(self, group: str, topic: str | None, force: bool) -> Deletion:
        self.done.append("deleted")
        return self.plan_delete(group, topic, force)

    def plan_delete(self, group: str, topic: str | None, force: bool) -> Deletion:
        return Deletion(group, topic, True, ("/consumers/g",))

    def plan_import(self, _wanted: object) -> ImportPlan:
        return ImportPlan((), 0, {}, {})

    def carry_out(self, *_: object) -> None:
        self.done.append("written")


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The tools that the commands use."""
    made = Tools()
    for module in ("groups", "offsets"):
        monkeypatch.setattr(f"zkconsumer.cli.{module}.GroupTools", lambda *_: made)
    return made


@pytest.mark.parametrize(
    ("kinds", "status"), [([], 0), ([Kind.TOPIC_MISSING], 0), ([Kind.UNOWNED], 1)]
)
def test_verify_ends_with_1_when_something_is_wrong(
    tools: Tools, kinds: list[Kind], status: int
) -> None:
    """A warning is not a fault."""
    tools.findings = [Finding("g", kind, "/x", "what") for kind in kinds]
    assert CliRunner().invoke(groups, ["verify", "g", *ZOOKEEPER]).exit_code == status


@pytest.mark.parametrize(("option", "done"), [([], []), (["--execute"], ["deleted"])])
def test_a_deletion_is_a_dry_run_without_execute(
    tools: Tools, option: list[str], done: list[str]
) -> None:
    """A dry run changes nothing."""
    assert CliRunner().invoke(groups, ["delete", "g", *option, *ZOOKEEPER]).exit_code == 0
    assert tools.done == done


@pytest.mark.parametrize(("option", "done"), [([], []), (["--execute"], ["written"])])
def test_an_import_is_a_dry_run_without_execute(
    tools: Tools, option: list[str], done: list[str], tmp_path: Path
) -> None:
    """A dry run changes nothing."""
    file = tmp_path / "offsets"
    file.write_text("/consumers/g/offsets/t/0:5\n")
    result = CliRunner().invoke(offsets, ["import", str(file), *option, *ZOOKEEPER])
    assert (result.exit_code, tools.done) == (0, done)


# -- consume --------------------------------------------------------------------------------------


class Stream:
    """Raises one error after the other, each time it is read."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = iter(errors)

    def __iter__(self) -> Iterator[object]:
        raise next(self._errors)


class Output:
    """A printer that has just printed. ``count`` is the number of messages so far."""

    def __init__(self, count: int = 0) -> None:
        self.count, self.last = count, time.monotonic()

    def close(self) -> None:
        pass


def end_of(stream: Stream, timeout: float) -> BaseException | None:
    """Return what a stream's thread reports."""
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    output: Any = Output()
    consume._write_stream(stream, output, timeout, ends)  # type: ignore[arg-type]
    return ends.get(timeout=1)


def test_a_timeout_of_one_stream_counts_when_the_others_are_silent_too() -> None:
    """Another stream has just printed a message, so the command continues."""
    late, other = ConsumerTimeoutError("late"), ValueError("other")
    assert end_of(Stream(late, other), timeout=60) is other
    assert end_of(Stream(late, other), timeout=0) is late


@pytest.mark.parametrize("broken", [RuntimeError("broken"), SystemExit(3)])
def test_any_error_of_a_stream_is_reported(broken: BaseException) -> None:
    """The main thread waits for it. A formatter of the user's may also call ``sys.exit``."""
    assert end_of(Stream(broken), timeout=60) is broken


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``consume`` with a connector whose shutdown may fail."""

    def run(opened: Callable[[Any], Any], count: int = 0, fault: Exception | None = None) -> int:
        def shutdown() -> None:
            if fault is not None:
                raise fault

        connector = SimpleNamespace(shutdown=shutdown)
        monkeypatch.setattr(consume, "ZookeeperConsumerConnector", lambda _: connector)
        config: Any = SimpleNamespace(consumer_timeout_ms=0)
        output: Any = Output(count)
        return consume._consume(config, opened, output, lambda: None, None)

    return run


@pytest.mark.parametrize(("count", "status"), [(0, 1), (3, 0)])
def test_a_timeout_is_a_success_after_messages_only(
    run: Callable[..., int], count: int, status: int
) -> None:
    """As in the JVM's tool."""
    assert run(lambda _: [Stream(ConsumerTimeoutError("late"))], count) == status


def test_an_interruption_tells_that_the_last_commit_failed(run: Callable[..., int]) -> None:
    """The printed messages will be printed again."""

    def interrupted(_connector: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        run(interrupted, fault=CommitFailedError("no answer"))
    assert raised.value.__notes__ == ["and the last commit failed: no answer"]


def test_a_group_that_is_deleted_is_a_change_of_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--watch``. At the first look it is an error."""
    node = Node(b"", Stat(1, 1, 0, 0))
    looks = iter([{"/consumers/g": node}, None, {"/consumers/g": node}])

    class Deleted(Tools):
        def tree(self, _group: str) -> dict[str, Node]:
            found = next(looks, None)
            if found is None:
                raise UnknownGroupError("there is no group g")
            return found

    monkeypatch.setattr("zkconsumer.cli.tree.GroupTools", lambda *_: Deleted())
    options = ["g", "--watch", "--every", "50ms", "--seconds", "0.2s", *ZOOKEEPER]
    done = CliRunner().invoke(tree, options, standalone_mode=False)
    assert done.exception is None
    first, *others = done.output.splitlines()
    assert first == "/consumers/g"
    signs = [line.split(" ", 1)[1] for line in others]
    assert signs == ["- /consumers/g", "+ /consumers/g", "- /consumers/g"]
    assert isinstance(CliRunner().invoke(tree, options).exception, UnknownGroupError)


def test_top_names_each_reason_why_a_lag_is_missing_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that is named twice is one group."""

    class Away(Tools):
        def describe(self, groups: list[str]) -> list[GroupRow]:
            self.notes += ["broker 1 is away"] * 2
            return [GroupRow(group, "t", 0, 5, 9, 4, None, "") for group in groups]

        def states(self, groups: list[str]) -> list[GroupStateRow]:
            return [GroupStateRow(group, "Empty", 0, 1, 1) for group in groups]

    tools = Away()
    monkeypatch.setattr("zkconsumer.cli.groups.GroupTools", lambda *_: tools)
    options = ["g", "g", "--count", "3", "--every", "200ms", *ZOOKEEPER]
    done = CliRunner().invoke(top, options, standalone_mode=False)
    assert done.exception is None
    assert done.stderr == "note: broker 1 is away\n"
    assert tools.notes == []
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("g ")]
    assert [row[3:6] for row in rows] == [["1", "1", "4"]] * 3


class Interrupted(Tools):
    """Groups during whose second look a signal arrives. As kazoo does, they catch what the signal
    handler raises, and raise their own error."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def look(self, result: Any) -> Any:
        self.looks += 1
        assert self.looks < 3, "the signal is ignored"
        if self.looks == 2:
            try:
                signal.raise_signal(signal.SIGINT)
            except BaseException:  # noqa: BLE001 - as kazoo does
                raise ZkUnavailableError("the connection broke") from None
        return result

    def verify(self, *_: object, **__: object) -> list[Finding]:
        return self.look([])  # type: ignore[no-any-return]

    def tree(self, _group: str) -> dict[str, Node]:
        return self.look({"/consumers/g": Node(b"", Stat(1, 1, 0, 0))})  # type: ignore[no-any-return]

    def describe(self, _groups: object) -> list[GroupRow]:
        return self.look([])  # type: ignore[no-any-return]

    def states(self, _groups: object) -> list[GroupStateRow]:
        return [GroupStateRow("g", "Empty", 0, 0, 0)]


@pytest.mark.parametrize(
    ("command", "arguments", "status"),
    [
        (groups, ["verify", "g", "--watch", "--every", "100ms"], 0),
        (tree, ["g", "--watch", "--every", "50ms"], 130),
        (top, ["g", "--every", "200ms"], 130),
    ],
    ids=["verify", "tree", "top"],
)
def test_a_signal_during_a_look_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, command: click.Command, arguments: list[str], status: int
) -> None:
    """The servers are not reported as away then."""
    tools = Interrupted()
    for module in ("groups", "tree"):
        monkeypatch.setattr(f"zkconsumer.cli.{module}.GroupTools", lambda *_: tools)
    done = CliRunner().invoke(command, [*arguments, *ZOOKEEPER], standalone_mode=False)
    assert done.exception is None, done.output
    assert (done.return_value or 0) == status
    assert tools.looks == 2
    assert "the connection broke" not in done.output


@pytest.mark.parametrize("kind", [Pack, Member])
def test_a_member_that_has_ended_is_not_a_closed_standard_output(kind: type[Any]) -> None:
    """Its process gets requests through a pipe as well. The command says what has ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=kind is Pack
    )
    process.wait()
    member = object.__new__(kind)
    member.process, member.row, member.log = process, SimpleNamespace(name="member-1"), "its.log"
    with pytest.raises(ClusterError, match="has ended"):
        member.tell(**({"status": True} if kind is Pack else {"order": "pace 0"}))
    if kind is Pack:
        member.kill()
    else:
        member.leave()
    assert process.stdout is not None
    process.stdout.close()


def test_the_demo_checks_the_picture_s_place_before_it_starts_servers(tmp_path: Path) -> None:
    """A place that cannot be written is one line, not a traceback after two minutes."""
    (tmp_path / "file").touch()
    done = CliRunner().invoke(demo, ["--save-svg", str(tmp_path / "file" / "demo.svg")])
    assert isinstance(done.exception, ClusterError)
    assert str(done.exception).startswith("--save-svg: cannot write ")
