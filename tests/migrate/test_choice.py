"""Which groups a command chooses, and under which names they are in both stores. No server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import zkmigrate
from zkmigrate.apply.holding import Event, Holding
from zkmigrate.apply.outcome import Outcome, Result
from zkmigrate.commands.options.renaming import Rename, choose
from zkmigrate.commands.options.selection import Selection
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.planning import Summary
from zkmigrate.commands.root import COMMANDS, cli
from zkmigrate.errors import MigrationError
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import Direction, KafkaOffset, MigrationMarker, Retention, Store
from zkmigrate.plan.group import plan_group
from zkmigrate.plan.options import Options
from zkmigrate.plan.status import MOVING, status_of
from zkmigrate.plan.values import GroupPlan
from zkmigrate.reasons import Reason
from zkmigrate.stores import migration_marker, record
from zkmigrate.stores.sessions import Stores

from tests.migrate import matrix
from tests.migrate.simulated import Simulated, simulated
from tests.migrate.test_plan import BACK, FORTH, TP, kinds, made, state
from tests.unit.tool_zk import ToolZk
from zkconsumer.admin.takeover import release
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.znodes import encode_member
from zkconsumer.core.zookeeper.ops import Create, Delete

__all__ = ["simulated"]
OTHER = TopicPartition("payments", 0)
EXPORT = ("offsets", "export", "--format", "csv")
EVERY = Selection((), None, True, ())


def named(*groups: str) -> Selection:
    """These groups."""
    return Selection(groups, None, False, ())


@pytest.fixture
def stores() -> Any:
    """Groups in ZooKeeper: ``a`` is ``x`` in Kafka, ``b`` was moved, ``c`` rolled back, ``d`` never
    moved, ``e`` moved live, ``f`` has a marker that cannot be read. Kafka also has ``only``."""
    zk = ToolZk()
    zk.zk.do(Create("/consumers"))
    contents = {
        "a": migration_marker.encode(Store.KAFKA, 1, {TP: 5}, "x"),
        "b": migration_marker.encode(Store.KAFKA, 1, {TP: 5}),
        "c": migration_marker.ROLLED_BACK,
        "f": b"?",
    }
    for name in "abcdef":
        zk.zk.do(Create(f"/consumers/{name}"))
        if name in contents:
            zk.zk.do(Create(f"/consumers/{name}/migration", contents[name]))
    for path, data in (("live", b""), ("live/mode", b'{"version":1,"mode":"open"}')):
        zk.zk.do(Create(f"/consumers/e/{path}", data))
    found = SimpleNamespace(
        zk=zk,
        group_names=lambda store: (
            list("abcdef") if store is Store.ZOOKEEPER else ["x", "b", "odd[1]"]
        ),
    )
    found.moved_groups = lambda: Stores.moved_groups(found)
    return found


def test_the_groups_that_were_moved(stores: Any) -> None:
    """By stopped and by live moves. One whose marker cannot be read is not left out."""
    assert stores.moved_groups() == {"a": "x", "b": "b", "e": "e", "f": "f"}


@pytest.mark.parametrize(
    ("which", "renames", "own", "renamed"),
    [
        (EVERY, (), {"a": "a", "b": "b", "e": "e", "f": "f"}, {"a": "x"}),
        (Selection((), "a|x|d|only", False, ()), (), {"a": "a"}, {"a": "x"}),
        (named("a"), (), {"a": "a"}, {"a": "x"}),
        (named("*"), (), {"a": "a", "b": "b", "e": "e", "f": "f"}, {"a": "x"}),
        (named("odd[1]"), (), {"odd[1]": "odd[1]"}, {}),
        (named("only", "e*"), (), {"only": "only", "e": "e"}, {}),
        (named("x"), (), {"x": "a"}, {"a": "x"}),
        (named("x"), (Rename("x", "a"),), {"x": "a"}, {"a": "x"}),
        (named("a"), (Rename("x", "g"),), {"a": "g"}, {"g": "x"}),
        (named("only"), (), {"only": "only"}, {}),
        (named("only"), (Rename("only", "new"),), {"only": "new"}, {"new": "only"}),
    ],
)
def test_a_group_goes_back_to_its_own_name(
    stores: Any,
    which: Selection,
    renames: tuple[Rename, ...],
    own: dict[str, str],
    renamed: dict[str, str],
) -> None:
    """Whichever of its names is given. Only a group that is named may be one that never was in
    ZooKeeper."""
    assert choose(stores, BACK, which, renames) == (own, renamed)


KNOWN = ("etl-a", "etl-b", "mail", "odd[1]*")


@pytest.mark.parametrize(
    ("groups", "excluded", "chosen"),
    [
        (("etl-*",), (), ["etl-a", "etl-b"]),
        (("mail", "etl-?", "etl-a"), (), ["mail", "etl-a", "etl-b"]),
        (("*",), ("etl-*", "mail"), ["odd[1]*"]),
        (("odd[1]*",), (), ["odd[1]*"]),
    ],
)
def test_a_glob_chooses_groups(
    groups: tuple[str, ...], excluded: tuple[str, ...], chosen: list[str]
) -> None:
    """In the same words as ``--exclude``. A group whose name looks like a glob can be named."""
    which = Selection(groups, None, False, excluded)
    for store in Store:
        assert which.of_store(lambda: list(KNOWN), store) == chosen


def test_a_glob_that_matches_nothing_is_an_error() -> None:
    """A run that checks nothing must not look good."""
    for groups in (("x*",), ("mail", "x*")):
        with pytest.raises(MigrationError, match=r"there is no group x\* among the 4"):
            named(*groups).of_store(lambda: list(KNOWN), Store.ZOOKEEPER)


def test_a_live_step_leaves_groups_without_migratable_members_out(simulated: Simulated) -> None:
    """Unless they are named. On all groups, the step would give every group of the estate a
    mode."""
    simulated.topic("t", (0, 100))
    for name in ("etl-a", "etl-b", "mail"):
        simulated.in_zookeeper(name, "t", 5)
    simulated.znode("/consumers/etl-a/live/members/etl-a_new", encode_member(0))
    words = ("live", "prepare", "--execute", "--wait", "0")
    for choice in (("--all",), ("--group", "etl-*"), ("--groups-regex", ".*", "--exclude", "mail")):
        ran = simulated.run(*words, *choice)
        assert [row["group"] for row in ran.rows] == ["etl-a"], choice
    ran = simulated.run(*words, "--group", "mail")
    assert [(row["group"], row["outcome"]) for row in ran.rows] == [("mail", "done")]


def test_no_name_is_chosen_twice(stores: Any) -> None:
    """Both names of one group, or a new name that another group has."""
    with pytest.raises(MigrationError, match="a, x are the same group, a"):
        choose(stores, BACK, named("a", "x"), ())
    with pytest.raises(MigrationError, match="another group has that name"):
        choose(stores, FORTH, named("a"), (Rename("a", "d"),))
    assert choose(stores, FORTH, named("a", "d"), (Rename("a", "d"), Rename("d", "n")))[1] == {
        "a": "d",
        "d": "n",
    }


@pytest.mark.parametrize("direction", [FORTH, BACK])
def test_a_new_name_of_an_existing_group_is_a_problem(direction: Direction) -> None:
    """Also if the other group has offsets of other topics only, which are no conflict. An offset of
    -1 is none. A group that was moved under this name before is the same group."""
    found = replace(state(5 if direction is FORTH else None), kafka_group="x")
    if direction is FORTH:
        other = replace(found, kafka={OTHER: KafkaOffset(3)})
        none = replace(found, kafka={OTHER: KafkaOffset(-1)})
    else:
        none = replace(found, kafka={TP: KafkaOffset(5)})
        other = replace(none, zk=state().zk)
    assert Reason.GROUP_EXISTS in kinds(made(other, direction))
    assert Reason.GROUP_EXISTS not in kinds(made(none, direction))
    again = MigrationMarker(Store.KAFKA, 1, {}, b"x", "x")
    assert Reason.GROUP_EXISTS not in kinds(made(replace(other, marker=again), direction))
    another = replace(again, kafka_group="y")
    assert Reason.GROUP_EXISTS in kinds(made(replace(other, marker=another), direction))


@pytest.mark.parametrize("how", ["table", "json", "csv"])
def test_tables_show_both_names(how: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and CSV have a column for the name in Kafka."""
    plans: Any = (GroupPlan("a", kafka_group="x"),)
    summary = Summary(how, False, ())
    assert list(summary.watch(plans)) == list(plans)
    summary.print_all()
    work: Any = SimpleNamespace(execute=True, how=how, only_problems=False)
    outcomes = Outcomes("moving", work)
    outcomes.add(Result("a", Outcome.DONE, 1, kafka_group="x"))
    with pytest.raises(click.exceptions.Exit), click.Context(click.Command("apply")):
        outcomes.finish(["a"])
    text = capsys.readouterr().out
    assert text.count("a (x in Kafka)" if how == "table" else "kafka_group") == 2
    assert how == "table" or ('"x"' in text or ",x\n" in text)


@pytest.mark.parametrize(
    ("group", "member", "tool"),
    [
        ("g", "g_zkmigrate-12345678", True),
        ("g", "g_zkmigrate-probe", True),
        ("etl_zkmigrate-test", "etl_zkmigrate-test_host-1717171717171-abcdef01", False),
        ("etl_zkmigrate-test", "etl_zkmigrate-test_zkmigrate-12345678", True),
        ("g", "g_zkmigrate-host-12345678", False),
        ("g", "other_zkmigrate-12345678", False),
    ],
)
def test_a_member_is_not_the_tool_because_of_its_name(group: str, member: str, tool: bool) -> None:
    """A live consumer that counts as the tool would not be seen by status."""
    found = status_of(replace(state(), group=group, members=(member,)), "no", 0, None)[0]
    assert (found.truth == MOVING, found.zookeeper_members) == (tool, int(not tool))


def test_a_marker_without_room_for_offsets_is_not_silent() -> None:
    """Late commits cannot be seen then. A group with nothing left in the source store needs no
    offsets in its marker."""
    many = {TopicPartition("t" * 200, number): number for number in range(100_000)}
    data = migration_marker.encode(Store.KAFKA, 1, many)
    assert len(data) < migration_marker.MAX_BYTES
    marker = MigrationMarker(Store.KAFKA, 1, {}, data)
    moved = replace(state(5, 5), marker=marker)
    assert "no room for the offsets" in status_of(moved, "locked", 0, None)[0].attention
    for quiet in (replace(moved, zk={}), replace(moved, marker=replace(marker, values={TP: 5}))):
        assert "no room" not in status_of(quiet, "locked", 0, None)[0].attention


def test_hold_prints_only_the_groups_that_it_holds(simulated: Simulated) -> None:
    """Of an estate, most groups are locked or were never moved: a number says it."""
    simulated.topic("t", (0, 100))
    for number in range(30):
        simulated.in_zookeeper(f"g{number}", "t", 5)
    ran = simulated.run("lock", "--all", "--hold", rows=False)
    assert ran.status == 0
    assert "group g" not in ran.err
    assert "0 groups are held" in ran.err
    assert "30 others are locked or were not moved to Kafka" in ran.err
    named = simulated.run("lock", "--group", "g1", "--hold", rows=False)
    assert (named.status, "group g1: was not moved to Kafka" in named.err) == (3, True)


@pytest.mark.parametrize("name", ["g[1]", "a:b"])
def test_offsets_of_a_group_with_an_odd_name_are_skipped(
    simulated: Simulated, tmp_path: Path, name: str
) -> None:
    """By a decision about all groups or that group, and by the option that the plan advises."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper(name, "t", 5)
    simulated.in_zookeeper(name, "gone", 7)
    (problem,) = simulated.run("plan", "--group", name).rows
    words = [("--skip", problem["fix"].rpartition(" ")[2])]
    for group in ("*", name):
        file = tmp_path / "decisions.toml"
        file.write_text(f'[[rule]]\ngroup = "{group}"\ntopic = "gone"\nskip = true\n')
        words.append(("--decisions", str(file)))
        ran = simulated.run("plan", "--group", name, *words[-1])
        assert [one["topic"] for row in ran.rows for one in row["stays_behind"]] == ["gone"], ran
    ran = simulated.run("plan", "--group", name, *words[0])
    assert (ran.status, "keeps no offset" in ran.err) == (0, False), (words[0], ran)


def test_offsets_of_several_groups_keep_the_names_of_their_groups(simulated: Simulated) -> None:
    """A glob may mean several groups, so it is not the name of the group in a file."""
    simulated.topic("t", (0, 100))
    for name, topic in (("etl-a", "t"), ("etl-b", "u")):
        simulated.in_zookeeper(name, topic, 5)
    both, one = (simulated.file(name) for name in ("both", "one"))
    assert simulated.run(*EXPORT, "--group", "etl-*", "--out", both, rows=False).status == 0
    assert Path(both).read_text() == "etl-a,t,0,5\netl-b,u,0,5\n"
    assert simulated.run(*EXPORT, "--group", "etl-a", "--out", one, rows=False).status == 0
    assert Path(one).read_text() == "t,0,5\n"
    words = ("--from-file", one, "--execute")
    assert simulated.run("reset", "--group", "etl-*", *words, rows=False).status == 2
    assert simulated.kafka.committed == {}, "no group is called etl-*"
    assert simulated.run("reset", "--group", "etl-a", *words).status == 0


@pytest.mark.parametrize("words", [("--all",), ("--group", "*"), ("--group", "new")])
def test_a_renamed_group_is_reset_once(simulated: Simulated, words: tuple[str, ...]) -> None:
    """Both of its names are listed, the one in ZooKeeper and the one in Kafka."""
    matrix.renamed(simulated)
    ran = simulated.run("reset", *words, "--all-topics", "--shift-by", "-10", "--execute")
    assert (ran.status, len(ran.rows)) == (0, 2), ran
    assert simulated.held("new", "t")[1] == {0: 90, 1: 40}


@pytest.mark.parametrize("from_file", [False, True])
def test_a_reset_by_the_name_in_kafka_is_one_of_the_group(
    simulated: Simulated, from_file: bool
) -> None:
    """Its record says that offsets are in doubt, and no longer says so then."""
    matrix.renamed(simulated)
    where = record.path("g")
    node = simulated.zk.zk.get(where)
    assert node is not None
    late = (TopicPartition("t", 0), TopicPartition("t", 1))
    simulated.znode(where, record.encode(replace(record.decode(where, node), late=late)))
    assert "written-late" in simulated.run("status", "--group", "g").rows[0]["reasons"]
    Path("offsets").write_text("new,t,0,7\nnew,t,1,8\n")
    words = ("--from-file", "offsets") if from_file else ("--all-topics", "--to-offset", "7")
    ran = simulated.run("reset", "--group", "new", *words, "--execute")
    assert (ran.status, {row["group"] for row in ran.rows}) == (0, {"g"}), ran
    assert simulated.held("new", "t")[1] == {0: 7, 1: 8 if from_file else 7}
    assert "written-late" not in simulated.run("status", "--group", "g").rows[0]["reasons"]


def test_a_file_with_both_names_of_a_group_is_refused(simulated: Simulated) -> None:
    """It is not clear which offsets count."""
    matrix.renamed(simulated)
    Path("offsets").write_text("g,t,0,7\nnew,t,0,8\n")
    ran = simulated.run("reset", "--all", "--from-file", "offsets", "--execute", rows=False)
    assert (ran.status, "g, new are the same group, g: name it once" in ran.err) == (1, True), ran
    assert simulated.held("new", "t")[1] == {0: 100, 1: 50}


def test_groups_that_kafka_cannot_list_are_not_passed_over(simulated: Simulated) -> None:
    """A partition of the coordinators' log has no leader, so groups may be missing."""
    matrix.untouched(simulated)
    simulated.topic("__consumer_offsets", (0, 1), (0, 1))
    for number, leader in ((0, 0), (1, -1)):
        state = {"leader": leader, "isr": [], "leader_epoch": 1, "version": 1}
        path = f"/brokers/topics/__consumer_offsets/partitions/{number}/state"
        simulated.zk.set(path, json.dumps({**state, "controller_epoch": 1}).encode())
    for words in (("status",), ("reset", "--all-topics", "--to-latest")):
        ran = simulated.run(*words, "--all")
        assert (
            ran.status,
            "groups may be missing, because these" in ran.err,
        ) == (
            1,
            True,
        ), ran
        assert simulated.run(*words, "--group", "g").status == 0


def test_a_misspelt_group_is_no_empty_export(simulated: Simulated) -> None:
    """Kafka's groups are not listed for names, since old brokers cannot."""
    matrix.moved(simulated)
    for name, status in (("g", 0), ("gg", 3)):
        words = ("--store", "kafka", "--out", simulated.file(name))
        ran = simulated.run(*EXPORT, "--group", name, *words, rows=False)
        assert (ran.status, f"group {name} has no offset in Kafka" in ran.err) == (
            status,
            status == 3,
        ), ran


def test_a_name_with_a_number_sign_in_a_file_of_groups(
    simulated: Simulated, tmp_path: Path
) -> None:
    """A comment begins after a space or at the beginning of a line."""
    simulated.topic("t", (0, 100))
    for name in ("etl", "etl#1"):
        simulated.in_zookeeper(name, "t", 5)
    file = tmp_path / "groups"
    file.write_text("# one\netl#1 # two\n")
    ran = simulated.run("plan", "--groups-from", str(file))
    assert [row["group"] for row in ran.rows] == ["etl#1"], ran


@pytest.mark.parametrize("command", ["lock", "undo"])
def test_a_group_that_needs_no_hold_any_more_is_not_held(
    simulated: Simulated, command: str
) -> None:
    """Its session had ended, and another operator has locked the group or taken it back."""
    matrix.moved(simulated)
    assert simulated.run("unlock", "--group", "g", "--execute").status == 0
    holding = Holding(simulated.zk, ["g"])
    assert [event for _, event, _ in holding.take()] == [Event.HELD]
    simulated.zk.run(release(holding.held["g"]))
    assert simulated.run(command, "--group", "g", "--execute").status == 0
    assert len(list(holding.look())) == 2
    assert (holding.held, list(holding.look())) == ({}, [])


def test_a_held_group_is_held_after_a_restore(simulated: Simulated) -> None:
    """The backup has the registration of ``lock --hold``, but not all of its claims."""
    matrix.moved(simulated)
    assert simulated.run("unlock", "--group", "g", "--execute").status == 0
    holding = Holding(simulated.zk, ["g"])
    assert [event for _, event, _ in holding.take()] == [Event.HELD]
    simulated.zk.zk.do(Delete("/consumers/g/owners/t/0"))
    simulated.zk.interrupt()
    assert [event for _, event, _ in holding.look()] == [Event.OTHER, Event.HELD]
    assert simulated.zk.text("/consumers/g/owners/t/0") is not None
    assert not list(holding.look())


def test_a_short_retention_is_told_in_minutes_and_only_for_what_can_be_moved() -> None:
    """Not as 0.000694444 days, and not of groups that are refused."""
    now, short = 1_700_000_000_000, Retention(1, True)
    plan = plan_group(state(), FORTH, Options(), now, short)
    assert any("(1 minutes): start consumers" in note for note in plan.notes)
    refused = plan_group(replace(state(), members=("g_h-1",)), FORTH, Options(), now, short)
    assert not any("deletes these offsets" in note for note in refused.notes)


def test_one_rule_decides_every_exit_status() -> None:
    """No command has a number of its own, and each command's help refers to the table."""
    for path in (Path(zkmigrate.__file__).parent / "commands").glob("*.py"):
        text = path.read_text()
        assert not re.search(
            r"\.exit\((?!exit_status|status_of_outcomes|summary\.status|"
            r"look_once_or_often|status\))",
            text,
        ), path

    def commands(command: click.Command) -> Iterator[click.Command]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                yield from commands(command.get_command(context, name) or command)
        else:
            yield command

    every = list(commands(cli))
    assert {command.name for command in every} == set(COMMANDS)
    assert [one.name for one in every if one.epilog != HELP] == []
    assert [exit_status(failed=f, attention=a) for f in (False, True) for a in (False, True)] == [
        0,
        3,
        1,
        1,
    ]


def test_the_help_of_plan_fits_on_two_screens() -> None:
    """It has more options than any other command."""
    shown = subprocess.run(
        [sys.executable, "-m", "zkmigrate", "plan", "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        check=True,
    )
    assert shown.stdout.count(b"\n") <= 96


def test_a_limit_leaves_out_what_was_rolled_back(simulated: Simulated) -> None:
    """Such a group needs a new plan, and must not hold up the others."""
    simulated.topic("t", (0, 100))
    for group in ("a", "b"):
        simulated.in_zookeeper(group, "t", 5)
    assert simulated.run("plan", "--all", "--out", "p").status == 0
    assert simulated.run("apply", "p", "--limit", "1", "--execute").status == 0
    assert simulated.run("undo", "p", "--group", "a", "--execute").status == 0
    ran = simulated.run("apply", "p", "--limit", "1", "--execute")
    assert [(row["group"], row["outcome"]) for row in ran.rows] == [("b", "done")]


def test_an_export_of_kafka_has_its_groups_by_their_names_there(simulated: Simulated) -> None:
    """A group was moved under another name, and another group of Kafka has the old one."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    assert simulated.run("plan", "--all", "--rename", "g=new", "--out", "p").status == 0
    assert simulated.run("apply", "p", "--execute").status == 0
    simulated.in_kafka("g", "t", 77)
    words = (*EXPORT, "--all", "--store", "kafka", "--out", "copy")
    assert simulated.run(*words, rows=False).status == 0
    assert Path("copy").read_text().split() == ["g,t,0,77", "new,t,0,5"]


@pytest.mark.parametrize("words", ["lock", "unlock", "live prepare", "lock --hold"])
def test_a_named_group_that_cannot_be_moved_is_refused(simulated: Simulated, words: str) -> None:
    """Its name is too long for zkmigrate. With --all such a group is left out."""
    simulated.topic("t", (0, 100))
    simulated.in_zookeeper("g", "t", 5)
    name = "x" * 256
    simulated.znode(f"/consumers/{name}/offsets/t/0", b"1")
    holds = words == "lock --hold"  # a line for each event, no document
    ran = simulated.run(*words.split(), "--group", name, rows=not holds)
    assert ran.status == 3
    if holds:
        assert name in ran.err
    else:
        assert [row["reasons"] for row in ran.rows] == [["bad-name"]]
        left_out = ("--group", name, "--group", "g*", "--exclude", name)
        assert simulated.run(*words.split(), *left_out).status == 0
    assert simulated.run(*words.split(), "--all").status == 0
