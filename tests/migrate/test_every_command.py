"""Every command keeps to the one rule of exit statuses, and prints JSON as it is documented.

The cluster is simulated, except where it cannot be reached. A command that is added to zkmigrate
must be added here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import pytest
from zkmigrate.commands.export import export
from zkmigrate.commands.live import STAGES
from zkmigrate.commands.output.rows import SCHEMAS
from zkmigrate.commands.root import COMMANDS, cli
from zkmigrate.exits import ATTENTION, FAILED, HELP, USAGE

from tests.migrate.rows import rows_of, run
from tests.migrate.simulated import Simulated, simulated

__all__ = ["simulated"]
GOOD: Final[Mapping[str, str]] = {
    "plan": "plan --group good",
    "apply": "apply good.plan",
    "undo": "undo moved.plan",
    "status": "status --group good",
    "status PLAN": "status moved.plan",
    "lock": "lock --group moved",
    "unlock": "unlock --group moved",
    "gate": "gate --group moved",
    "reset": "reset --group good --all-topics --to-earliest",
    "report": "report moved.plan",
    "offsets export": "offsets export --group good",
    "mirror": "mirror --group good",
    "cut-over": "cut-over --group mirrored",
    "complete": "complete --group moved",
    **{f"live {step}": f"live {step} --group good" for step in ("prepare", "to-zookeeper")},
}  # fmt: skip
"""Command lines that have nothing to complain about."""
ODD: Final[Mapping[str, str]] = {
    "plan": "plan --group bad",
    "apply": "apply bad.plan",
    "undo": "undo late.plan",
    "status": "status --group late",
    "status PLAN": "status bad.plan",
    "lock": "lock --group good",
    "gate": "gate --group good",
    "reset": "reset --group bad --topic none --to-earliest",
    "report": "report bad.plan",
    "offsets export": "offsets export --group torn",
    "mirror": "mirror --group moved",
    "cut-over": "cut-over --group good",
    "complete": "complete --group mirrored",
    **{f"live {step}": f"live {step} --group {group}"
       for step in STAGES
       for group in ("moved" if step in ("prepare", "to-zookeeper") else "bad",)},
}  # fmt: skip
"""Command lines for a group that needs attention. ``unlock`` refuses groups in a live move only."""
WITHOUT_SERVERS: Final = {"report"}
OTHER_JSON: Final = {"offsets export"}
"""A command of ``zkconsumer``, which is in the migrator."""


def leaves(command: click.Command, name: str = "") -> dict[str, click.Command]:
    """Return all commands that have no commands of their own."""
    if not isinstance(command, click.Group):
        return {name: command}
    found: dict[str, click.Command] = {}
    context = click.Context(command)
    for word in command.list_commands(context):
        below = command.get_command(context, word)
        assert below is not None
        found |= leaves(below, f"{name} {word}".strip())
    return found


LEAVES: Final = {**leaves(cli), "offsets export": export}


@pytest.fixture
def groups(simulated: Simulated) -> Simulated:
    """The groups: good; bad, whose offset is outside of the log; moved; used, moved and used
    since; late, with a commit in ZooKeeper since; torn, whose offset is no number; mirrored. And
    their plans."""
    simulated.topic("t", (0, 100))
    for group in ("good", "moved", "used", "late", "mirrored"):
        simulated.in_zookeeper(group, "t", 5)
    simulated.in_zookeeper("bad", "t", 500)
    for group in ("good", "bad", "moved", "used", "late"):
        simulated.run("plan", "--group", group, "--out", f"{group}.plan")
    for group in ("moved", "used", "late"):
        assert simulated.run("apply", f"{group}.plan", "--execute").status == 0
    simulated.in_kafka("used", "t", 9)
    simulated.in_zookeeper("late", "t", 9)
    simulated.znode("/consumers/torn/offsets/t/0", b"x")
    assert simulated.run("mirror", "--group", "mirrored", "--execute", "--once").status == 0
    return simulated


def test_every_command_is_here() -> None:
    """In both tables, or with the reason why it is not."""
    assert LEAVES.keys() == COMMANDS.keys() | OTHER_JSON
    names = LEAVES.keys() - {"live"} | {"status PLAN"}
    assert {name for name in GOOD if not name.startswith("live")} == names
    assert {name for name in ODD if not name.startswith("live")} == names - {"unlock"}
    assert {name for name in ODD if name.startswith("live")} == {f"live {one}" for one in STAGES}


@pytest.mark.parametrize("name", LEAVES)
def test_the_help_of_each_command_gives_the_rule(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And wrong options are 2, also those that are only wrong together."""
    assert run([*name.split(), "--help"]) == 0
    assert HELP.split("(")[0] in " ".join(capsys.readouterr().out.split())
    assert run([*name.split(), "--no-such-option"]) == USAGE
    assert run(name.split()) == USAGE


@pytest.mark.parametrize(("name", "line"), GOOD.items())
def test_a_command_that_is_content(groups: Simulated, name: str, line: str) -> None:
    """The status is 0, and the JSON is that of the command's schema."""
    ran(groups, name, line, 0)


@pytest.mark.parametrize(("name", "line"), ODD.items())
def test_a_group_that_needs_attention(groups: Simulated, name: str, line: str) -> None:
    """The status is 3. The rows are printed all the same."""
    ran(groups, name, line, ATTENTION)


def ran(groups: Simulated, name: str, line: str, status: int) -> None:
    """Run a command, and check its status and its JSON."""
    word = name.split()[0]
    servers = word not in WITHOUT_SERVERS
    more = () if servers else ("--json",)
    found = groups.run(*line.split(), *more, rows=servers and name not in OTHER_JSON)
    if not servers:
        found = groups.run(*line.split(), *more, servers=False)
    assert found.status == status, found
    text = found.err
    if name in OTHER_JSON:
        found = groups.run(*line.split(), "--json", rows=False)
        (listed,) = [one for one in text.splitlines() if one.startswith("[")] or ["[]"]
        for row in json.loads(listed):
            assert row.keys() == {"group", "topic", "partition", "offset"}
    elif not servers:
        document = text[text.index('{"schema"') : text.rindex("}") + 1]
        assert rows_of(document)
    else:
        assert found.rows or (name, status) == ("status PLAN", 0), found


@pytest.mark.parametrize("name", [*sorted(LEAVES.keys() - WITHOUT_SERVERS - {"undo"}), "undo"])
def test_a_server_that_does_not_answer(
    groups: Simulated, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The status is 1, with one line that names it."""
    plans = {"apply": "good.plan", "undo": "moved.plan"}
    line = f"{name} {plans.get(name, '--all')}"
    if name == "live":
        line = "live prepare --all"
    if name == "reset":
        line += " --all-topics --to-earliest"
    monkeypatch.undo()
    monkeypatch.chdir(groups.folder)
    assert run([*line.split(), "--zookeeper", "127.0.0.1:1", "--timeout", "0.2s"]) == FAILED


def test_each_schema_names_the_commands_that_print_it() -> None:
    """Each command with ``--json`` is in one of them, except for those of a format of its own."""
    named = {command.split()[0] for schema in SCHEMAS.values() for command in schema.commands}
    with_json = {
        name
        for name, command in LEAVES.items()
        if any("--json" in option.opts for option in command.params)
    }
    assert with_json == LEAVES.keys()
    assert named == with_json - OTHER_JSON
    page = Path(__file__).parents[2] / "docs/reference/migrate-json.md"
    for name in OTHER_JSON:
        assert name in page.read_text(encoding="utf-8")
