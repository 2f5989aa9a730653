"""Promises of all three command lines: helps, times with units, the environment, formatting."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from zkaudit.commands.inputs import group_regex
from zkaudit.commands.root import cli as audit_cli
from zkmigrate.commands.root import cli as migrate_cli

from zkconsumer.admin.describe import GroupRow
from zkconsumer.broker.fetching.records import MessageAndMetadata, TimestampType
from zkconsumer.cli.config import config
from zkconsumer.cli.consume.command import consume, given_by
from zkconsumer.cli.consume.formatter import line_format, message_format
from zkconsumer.cli.consume.output import MessageFormatError, Printer
from zkconsumer.cli.groups import describe, verify
from zkconsumer.cli.laboratory.herd import herd
from zkconsumer.cli.laboratory.perf import perf
from zkconsumer.cli.laboratory.simulate import simulate
from zkconsumer.cli.main import COMMANDS, SECTIONS, cli, run
from zkconsumer.cli.top import History, Seen
from zkconsumer.cli.tree import changes, drawn, tree
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.coordinator_keys import CoordinatorConfig
from zkconsumer.console.tables import chosen, either_option
from zkconsumer.console.times import Duration, shown
from zkconsumer.core.zookeeper.ops import Node, Stat
from zkconsumer.errors import ConfigError

TIMED = re.compile(r"-(ms|seconds|timeout|every|watch|wait|grace|backoff)$")
ROOTS = {"zkconsumer": cli, "zkmigrate": migrate_cli, "zkaudit": audit_cli}


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            found = command.get_command(context, sub)
            assert found is not None
            yield from _commands(f"{name} {sub}", found)


ALL = [pair for name, root in ROOTS.items() for pair in _commands(name, root)]
MIGRATE = {name.removeprefix("zkmigrate "): one for name, one in ALL}
AUDIT = {name.removeprefix("zkaudit "): one for name, one in ALL}

HELP = ["-h", "--help"]
"""As the programs have it. A command keeps what it was called with first."""

# What the commands need beside the options in question. No server is there: an error about options
# comes before the first connection.
ZK = ["--zookeeper", "127.0.0.1:1"]
ONE = ["--topic", "t", "--partition", "0", "--bootstrap-server", "127.0.0.1:1"]
PERF = ["--topic", "t", "--messages", "1", *ZK]
RESET = ["--group", "g", "--all-topics", "--to-earliest", *ZK]
LOGS = ["--zookeeper-logs", "l", "--out", "o"]


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_every_command_and_option_has_a_help(name: str, command: click.Command) -> None:
    """Each command has a text, and so has each option that is shown."""
    assert command.help, name
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            assert one.help, f"{name} {one.opts[0]}"


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_one_meaning_of_shared_options(name: str, command: click.Command) -> None:
    """``--group`` is always a name and never a regex. Each waiting time has a unit."""
    for one in command.params:
        if isinstance(one, click.Option) and "--group" in one.opts:
            assert "regex" not in f"{one.metavar} {one.help}".lower(), name
        if isinstance(one, click.Option) and not one.is_flag and any(map(TIMED.search, one.opts)):
            types = one.type.types if isinstance(one.type, click.Tuple) else [one.type]
            assert all(isinstance(kind, Duration) for kind in types), f"{name} {one.opts}"


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_no_option_overwrites_another(name: str, command: click.Command) -> None:
    """Two options never set the same parameter: the last one would win without a word. Of
    ``--json`` and ``--csv``, and of ``--offsets``, ``--members`` and ``--state``, the command takes
    one."""
    names = [one.name for one in command.params]
    assert len(names) == len(set(names)), f"{name} {names}"
    there = {text for one in command.params if isinstance(one, click.Option) for text in one.opts}
    for group in (("--json", "--csv"), ("--offsets", "--members", "--state")):
        for pair in combinations(group, 2):
            is_flag = all(one.is_flag for one in command.params if set(one.opts) & set(pair))
            if not there.issuperset(pair) or not is_flag:
                continue
            done = CliRunner().invoke(command, pair, help_option_names=HELP)
            assert done.exit_code == 2, done.output
            assert f"{pair[0]} and {pair[1]} cannot be used together" in done.output


@pytest.mark.parametrize("program", ROOTS)
def test_each_program_says_its_version_and_runs_as_a_module(program: str) -> None:
    """``--version`` works everywhere, and so does ``python -m``."""
    ended = subprocess.run(
        [sys.executable, "-m", program, "--version"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{program} 0.")


def test_the_help_groups_all_subcommands() -> None:
    """Every subcommand is in exactly one section of the help."""
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    page = CliRunner().invoke(cli, ["--help"]).stdout
    assert all(heading in page for heading in SECTIONS)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5s", 1.5),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("7", 7),
    ],
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    """Every unit is understood. A bare number is in the option's own unit."""
    assert Duration().convert(text, None, None) == pytest.approx(seconds)
    assert Duration(bare="ms").convert("7", None, None) == pytest.approx(0.007)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes", "-1s", "1s2", "0ms"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    """Something else than a time, or too short a time, gives an error that shows how to write
    one."""
    with pytest.raises(click.BadParameter, match=r"write 500ms|too short"):
        Duration(least=0.001).convert(text, None, None)


def test_a_time_is_shown_with_its_unit() -> None:
    """Defaults in the help have a unit."""
    texts = [shown(seconds) for seconds in (0.5, 1, 30, 60, 300, 7200, 172800)]
    assert texts == ["500ms", "1s", "30s", "60s", "5m", "2h", "2d"]


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, "None None"),
        ([], {"ZKCONSUMER_ZOOKEEPER": "z"}, "z None"),
        ([], {"ZKCONSUMER_ZOOKEEPER": "z", "ZKCONSUMER_BOOTSTRAP_SERVER": "b"}, "z b"),
        (["--bootstrap-server", "x"], {"ZKCONSUMER_ZOOKEEPER": "z"}, "None x"),
        (["--zookeeper", "x"], {"ZKCONSUMER_BOOTSTRAP_SERVER": "b"}, "x None"),
        (["--zookeeper", "x", "--bootstrap-server", "y"], {"ZKCONSUMER_ZOOKEEPER": "z"}, "x y"),
    ],
)
def test_the_command_line_wins_over_the_environment(
    arguments: list[str], environment: dict[str, str], expected: str
) -> None:
    """A server on the command line is used, whatever the environment has."""

    @click.command()
    @either_option
    def show(zookeeper: str | None, bootstrap: str | None) -> None:
        click.echo("{} {}".format(*chosen(zookeeper, bootstrap)))

    done = CliRunner().invoke(show, arguments, env=environment)
    assert done.stdout == f"{expected}\n", done.output


@pytest.mark.parametrize(
    ("command", "arguments", "option"),
    [
        (simulate, ["--scenario", "two-claims", "--html", "x.html"], "--html"),
        (simulate, ["--scenario", "two-claims", "--members", "7"], "--members"),
        (simulate, ["--scenario", "two-claims", "--event", "leave"], "--event"),
        (simulate, ["--scenario", "two-claims", "--seeds", "3"], "--seeds"),
        (simulate, ["--scenario", "two-claims", "--jobs", "1"], "--jobs"),
        (herd, ["--seeds", "3"], "--seeds"),
        (herd, ["--service-ms", "1", "2"], "--service-ms"),
        (herd, ["--simulate", "--jvm", "2"], "--jvm"),
        (consume, ["--topic", "t", "--file-rows", "5"], "--file-rows"),
        (consume, ["--topic", "t", "--offset", "5"], "--offset"),
        (consume, ["--topic", "t", "--format", "json", "--property", "a=b"], "--property"),
        (consume, ["--topic", "t", "--formatter", "noop", "--property", "a=b"], "--property"),
        (consume, ["--topic", "t", "--format", "json", "--formatter", "noop"], "--formatter"),
        (
            consume,
            ["--topic", "t", "--format", "json", "--value-deserializer", "long"],
            "--value-deserializer",
        ),
        (
            consume,
            ["--topic", "t", "--format", "arrow", "--out", "x", "--skip-message-on-error"],
            "--skip-message-on-error",
        ),
        *(
            (consume, chosen, "exactly one of --topic, --whitelist and --blacklist")
            for chosen in (
                ZK,
                ["--topic", "t", "--whitelist", "t"],
                ["--whitelist", "a", "--blacklist", "b"],
            )
        ),
        (consume, ["--whitelist", "a{1,2}", *ZK], "a{1|2}"),
        (consume, ["--topic", "t", "--format", "arrow", *ZK], "--out DIR requires"),
        (consume, ["--topic", "t", "--out", "x", *ZK], "--out DIR requires"),
        (consume, ["--topic", "t", "--partition", "0", *ZK], "requires --topic and --bootstrap-"),
        *(
            (consume, ["--topic", "t", *wrong, *ZK], named)
            for wrong, named in (
                (["--consumer-property", "auto.offset.reset=earliest"], "smallest"),
                (["--consumer-property", "novalue"], "--consumer-property 'novalue'"),
                (["--consumer-config", "/nowhere/c.properties"], "/nowhere/c.properties"),
                (["--strict", "--consumer-property", "autocommit.enable=1"], "auto.commit.enable"),
            )
        ),
        (consume, [*ONE, "--from-beginning", "--offset", "5"], "--from-beginning and --offset"),
        (consume, [*ONE, "--streams", "2"], "--streams has no effect with --partition"),
        (consume, [*ONE, "--metrics-port", "0"], "--metrics-port has no effect with --partition"),
        (consume, [*ONE, "--group", "g"], "--group has no effect with --partition"),
        (consume, ["--topic", "t", "--bootstrap-server", "b:1", "--strict"], "--strict"),
        (perf, [*PERF, "--arrow", "--batch", "3"], "--batch has no effect with --arrow"),
        (perf, [*PERF, "--json", "--hide-header"], "--hide-header has no effect with --json"),
        (config, ["--check", "f", "--json"], "--json has no effect with --check"),
        (config, ["--check", "f", "group.id"], "KEY has no effect with --check"),
        (config, ["--strict"], "--strict requires --check"),
        (describe, ["g", "--verbose"], "--verbose"),
        (describe, ["g", "--all"], "GROUP and --all cannot be used together"),
        (describe, [], "name groups, or use --all"),
        (describe, ["g", "--state", "--no-lag"], "--no-lag has no effect with --state"),
        (verify, ["g", "--every", "1s", *ZK], "--every requires --watch"),
        (
            verify,
            ["g", "--hash", "[topic,partition]", *ZK],
            "--hash requires --strategy roundrobin",
        ),
        (verify, ["g", "--watch", "--csv", *ZK], "--csv has no effect with --watch"),
        (tree, ["g", "--every", "1s", *ZK], "--every requires --watch"),
        (MIGRATE["status"], ["--all", "--watch", "1s", "--csv", *ZK], "--csv has no effect with"),
        (
            MIGRATE["status"],
            ["--all", "--group", "g", *ZK],
            "--group and --all cannot be used together",
        ),
        (
            MIGRATE["reset"],
            [*RESET, "--to-latest"],
            "--to-earliest and --to-latest cannot be used together",
        ),
        (
            MIGRATE["reset"],
            [*RESET, "--topic", "t"],
            "--topic and --all-topics cannot be used together",
        ),
        (MIGRATE["lock"], ["--all", "--hold", "--execute", *ZK], "--execute has no effect with"),
        (MIGRATE["lock"], ["--all", "--hold", "--csv", *ZK], "--csv has no effect with --hold"),
        (
            MIGRATE["plan"],
            ["--all", "--out", "p", "--decisions-out", "d", *ZK],
            "--decisions-out has no effect with --out",
        ),
        (
            MIGRATE["plan"],
            ["--all", "--out", "p", "--at-apply", "--from-file", "f", *ZK],
            "--from-file has no effect with --at-apply",
        ),
        (AUDIT["run"], [*LOGS, "--command-config", "f"], "--command-config requires"),
        (
            AUDIT["run"],
            [*LOGS, "--group", "g", "--groups-regex", "g"],
            "--group and --groups-regex cannot be used together",
        ),
        (AUDIT["stream"], [*LOGS, "--once", "--every", "5s"], "--every has no effect with --once"),
    ],
)
def test_an_option_without_effect_is_refused(
    command: click.Command, arguments: list[str], option: str
) -> None:
    """An error names each option that would have no effect."""
    done = CliRunner().invoke(command, arguments, help_option_names=HELP)
    status = done.exception.exit_code if isinstance(done.exception, ConfigError) else done.exit_code
    assert status == 2
    assert option in (str(done.exception) + done.output)


@pytest.mark.parametrize("command", [herd, simulate])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--members", "1"], "--members 1: must be 2 to"),
        (["--members", "10001"], "--members 10001: must be 2 to"),
        (["--members", "ten"], "'ten': write a number, or several separated by commas"),
        (["--partitions", "0"], "--partitions"),
        (["--topics", "0"], "--topics"),
        (["--partitions", "1000", "--topics", "1000"], "must be 1 to 100000"),
        (["--members", "2,3", "--journal", "j.jsonl"], "--journal: only a single run"),
        (["--session-timeout", "0"], "0 is too short: at least 10ms"),
        (["--profile", "scala", "--journal", "/no/j"], "--journal /no/j: No such file"),
        (["--html", "/no/h"], "--html /no/h: No such file"),
    ],
)
def test_herd_and_simulate_refuse_the_same(
    command: click.Command, arguments: list[str], words: str
) -> None:
    """Both share one declaration of a group's options, and one check."""
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code != 0
    assert words in (str(done.exception) + done.output)


@pytest.mark.parametrize("more", [[], ["--scenario", "two-claims"]])
def test_a_full_disk_of_a_journal_is_not_that_of_standard_output(more: list[str]) -> None:
    """The error names the option."""
    small = more or ["--members", "2", "--partitions", "1"]
    words = ["--profile", "scala", *small, "--journal", "/dev/full"]
    done = CliRunner().invoke(simulate, words)
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == "--journal /dev/full: No space left on device"


def test_simulated_sessions_outlast_the_network() -> None:
    """Otherwise no member would ever join, and a run would have no end, or nothing to count."""
    slow = ["--members", "2", "--partitions", "1", "--latency-ms", "1s", "5s"]
    refused = CliRunner().invoke(simulate, slow)
    assert "--session-timeout 6s with --latency-ms 5000: must be" in str(refused.exception)
    assert CliRunner().invoke(simulate, [*slow, "--session-timeout", "50s"]).exit_code == 0


def test_herd_and_simulate_declare_the_same_options() -> None:
    """Their shared options differ only in two texts."""
    both = {option.name: option for option in herd.params}
    shared = [option for option in simulate.params if option.name in both]
    assert {"members", "partitions", "topics", "event", "html"} <= {one.name for one in shared}
    for option in shared:
        assert option.opts == both[option.name].opts


def test_a_group_on_the_brokers_is_configured_as_in_kafka(tmp_path: Path) -> None:
    """A group without a name commits nothing. ``--from-beginning`` means ``earliest``. Ids must
    agree."""
    file = tmp_path / "c.properties"
    file.write_text("group.id=g\n")

    def configured(**options: Any) -> CoordinatorConfig:
        return CoordinatorConfig.parse(given_by(on_brokers=True, bootstrap="b:1", **options)[0])

    made_up = configured(from_beginning=True)
    assert made_up.group_id.startswith("console-consumer-")
    assert made_up.auto_commit_enable is False
    assert made_up.auto_offset_reset == "smallest"
    named = configured(group="g", properties=["group.id=g"], file=str(file))
    assert (named.group_id, named.auto_commit_enable) == ("g", True)
    for properties, source in [(["group.id=h"], None), (["group.id=g"], str(file))]:
        with pytest.raises(ConfigError, match=r"group\.id has more than one value"):
            configured(group="g" if source is None else "h", properties=properties, file=source)
    with pytest.raises(ConfigError, match="contradicts --from-beginning"):
        configured(properties=["auto.offset.reset=latest"], from_beginning=True)


@pytest.mark.parametrize("on_brokers", [True, False])
def test_the_lines_of_a_file_are_checked_wherever_the_group_is(
    tmp_path: Path, on_brokers: bool
) -> None:
    """A malformed line is an error, and a wrong value is named with its file and line."""
    file = tmp_path / "c.properties"
    file.write_text("group.id=g\nsocket.timeout.ms=fast\nclient.id=\\u12\n")
    server = {"bootstrap": "b:1"} if on_brokers else {"zookeeper": "z:1"}
    given, _ = given_by(on_brokers=on_brokers, file=str(file), **server)
    with pytest.raises(ConfigError) as caught:
        (CoordinatorConfig if on_brokers else ConsumerConfig).parse(given)
    places = [fault.partition(" ")[0] for fault in caught.value.faults]
    assert places == [f"{file}:3:", f"{file}:2:"]


MESSAGE = MessageAndMetadata(
    "t", 3, 41, None, b"v", 1_700, TimestampType.CREATE_TIME, (("a", b"1"), ("b", None))
)


@pytest.mark.parametrize(
    ("properties", "line"),
    [
        ([], b"v\n"),
        (["print.key=true"], b"null\tv\n"),
        (["print.key=TRUE", "null.literal=-", "key.separator=|"], b"-|v\n"),
        (["print.value=false", "print.offset=true"], b"Offset:41\n"),
        (
            ["print.timestamp=true", "print.partition=true", "print.headers=true"],
            b"CreateTime:1700\tPartition:3\ta:1,b:null\tv\n",
        ),
        (["line.separator=;"], b"v;"),
        (["line.separator=\udcff"], b"v\xff"),  # a byte of the command line that is not text
    ],
)
def test_a_line_is_formatted_as_asked(properties: list[str], line: bytes) -> None:
    """``--property`` determines the content of a line."""
    assert line_format(properties)(MESSAGE) == line


@pytest.mark.parametrize(
    ("name", "data", "shown"),
    [
        ("string", b"caf\xc3\xa9 \xff", "café \ufffd".encode()),
        ("short", b"\xff\xfe", b"-2"),
        ("integer", b"\x00\x00\x01\x00", b"256"),
        ("long", b"\xff" * 8, b"-1"),
        ("float", b"\x3f\x00\x00\x00", b"0.5"),
        ("double", b"\x3f\xf8" + bytes(6), b"1.5"),
        ("bytes", b"a\\\x00~", rb"a\x5C\x00~"),
        ("org.apache.kafka.common.serialization.LongDeserializer", bytes(7) + b"\x07", b"7"),
        ("org.apache.kafka.common.serialization.ByteArrayDeserializer", b"\xff", b"\xff"),
        ("json:loads", b'{"a": 1}', b"{'a': 1}"),
    ],
)
def test_keys_and_values_are_deserialized(name: str, data: bytes, shown: bytes) -> None:
    """By type, by Kafka's class, or by a function; null stays ``null.literal``."""
    message = MessageAndMetadata("t", 0, 0, data, data, 0, TimestampType.CREATE_TIME, ())
    line = message_format("value", ["print.key=true"], None, name, name)
    assert line(message) == shown + b"\t" + shown + b"\n"
    empty = MessageAndMetadata("t", 0, 0, None, None, 0, TimestampType.CREATE_TIME, ())
    assert line(empty) == b"null\tnull\n"


@pytest.mark.parametrize(
    ("formatter", "line"),
    [
        ("default", b"v\n"),
        ("kafka.tools.DefaultMessageFormatter", b"v\n"),
        ("kafka.tools.NoOpMessageFormatter", b""),
        ("noop", b""),
    ],
)
def test_a_formatter_is_chosen_by_name(formatter: str, line: bytes) -> None:
    """Kafka's names select our formatters."""
    assert message_format("value", (), formatter)(MESSAGE) == line


def test_a_formatter_of_the_user_gets_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``MODULE:FUNCTION`` gets the message, and must return bytes."""
    (tmp_path / "mine_for_a_test.py").write_text(
        "def line(message): return b'%d:%s;' % (message.offset, message.raw_value)\n"
        "def text(message): return 'text'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert message_format("value", (), "mine_for_a_test:line")(MESSAGE) == b"41:v;"
    with pytest.raises(TypeError, match="must return bytes, not str"):
        message_format("value", (), "mine_for_a_test:text")(MESSAGE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formatter": "pretty"}, "--formatter pretty: must be one of default, noop, or MODULE:"),
        ({"key": "UUID"}, "--key-deserializer UUID: must be one of string, short"),
        ({"value": "no_such_module_here:f"}, "PYTHONPATH"),
        ({"value": "json:no_such_function"}, "PYTHONPATH"),
        ({"value": "json:__name__"}, "is not a function"),
    ],
)
def test_a_formatter_that_cannot_be_found_is_named(options: dict[str, str], words: str) -> None:
    """The error names the option, what was given, and what it may be."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        message_format("value", **options)  # type: ignore[arg-type]


def test_a_message_that_cannot_be_formatted_ends_the_command_or_is_skipped() -> None:
    """The error names the message. With ``--skip-message-on-error`` the next one follows, and the
    skipped one counts, as in Kafka's console consumer."""
    long = message_format("value", (), None, None, "long")
    good = MessageAndMetadata("t", 3, 42, None, bytes(8), 0, TimestampType.CREATE_TIME, ())
    out = io.BytesIO()
    with pytest.raises(MessageFormatError, match=r"t-3, offset 41: .*--skip-message-on-error"):
        Printer(out, long, None).write(None, MESSAGE)
    skipped: list[str] = []
    printer = Printer(out, long, 2, skipped.append)
    assert printer.write(None, MESSAGE)
    assert not printer.write(None, good)
    assert (out.getvalue(), printer.count) == (b"0\n", 2)
    assert len(skipped) == 1
    assert skipped[0].startswith("skipped t-3, offset 41: the message cannot be formatted")


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (["auto.offset.reset=smallest"], "goes into --consumer-property"),
        (["print.key"], "write KEY=VALUE"),
        (["print.key=yes"], "must be true or false"),
    ],
)
def test_a_property_that_formats_nothing_is_refused(properties: list[str], words: str) -> None:
    """The error says what is wrong. For a consumer's key, it names the right option."""
    with pytest.raises(ConfigError, match=words):
        line_format(properties)


def _node(data: bytes, czxid: int = 1, session: int = 0) -> Node:
    return Node(data, Stat(czxid, czxid, 0, session))


def test_a_tree_is_drawn_with_numbers_in_order_and_sessions() -> None:
    """Partitions are in numeric order. An ephemeral znode names its session."""
    root = "/consumers/g"
    nodes = {root: _node(b""), f"{root}/ids": _node(b""), f"{root}/ids/m": _node(b"{}", 3, 255)}
    nodes |= {f"{root}/n": _node(b"")} | {f"{root}/n/{number}": _node(b"x") for number in (10, 9)}
    assert list(drawn(nodes)) == [
        "/consumers/g",
        "|-- ids",
        "|   `-- m: {}  (ephemeral, session 0xff)",
        "`-- n",
        "    |-- 9: x",
        "    `-- 10: x",
    ]


def test_a_tree_of_any_depth_is_drawn() -> None:
    """Anyone who reaches ZooKeeper can make one."""
    paths = ["/a" * depth for depth in range(1, 3000)]
    lines = list(drawn({path: _node(b"") for path in paths}))
    assert len(lines) == len(paths)
    assert lines[-1].endswith("    `-- a")


def test_changes_of_a_tree_are_lines() -> None:
    """Created, deleted, changed and recreated znodes are distinct. Unchanged ones are not
    printed."""
    before = {"/a": _node(b"1"), "/b": _node(b"1"), "/c": _node(b"1"), "/e": _node(b"1")}
    now = {"/b": _node(b"2"), "/c": _node(b"1", 9), "/d": _node(b"\x1b"), "/e": _node(b"1")}
    lines = list(changes(before, now))
    assert lines[:4] == ["- /a", "~ /b: 1 -> 2", "- /c", "+ /c: 1"]
    assert lines[4].startswith("+ /d: ")
    assert "\x1b" not in lines[4]


def test_top_counts_rebalances_moves_and_the_rate() -> None:
    """A look that finds other owners is one rebalance. The rate is committed messages per time."""

    def seen(owners: str, offset: int) -> Seen:
        rows = [
            GroupRow(
                "g", "t", number, offset, 100, 100 - offset, owner if owner != "-" else None, ""
            )
            for number, owner in enumerate(owners)
        ]
        return Seen("Stable", 2, rows)

    history = History()
    first = history.row("g", seen("aab", 10), 0.0)
    assert (first.unowned, first.lag, first.rate, first.rebalances) == (0, 270, None, 0)
    same = history.row("g", seen("aab", 20), 2.0)
    assert (same.rate, same.rebalances, same.moves) == (15.0, 0, 0)
    gone = history.row("g", seen("a--", 20), 4.0)
    assert (gone.unowned, gone.rebalances, gone.moves) == (2, 0, 0)
    taken = history.row("g", seen("aaa", 20), 6.0)
    assert (taken.unowned, taken.rebalances, taken.moves) == (0, 1, 2)


def test_groups_of_an_audit_are_names_or_a_regex() -> None:
    """``--group`` takes names, ``--groups-regex`` a regex."""
    assert group_regex(("a.b", "c"), None) == r"\Qa.b\E|\Qc\E"
    assert group_regex((), "a.*") == "a.*"
    assert group_regex((), None) is None


@pytest.mark.parametrize("words", [["groups", "list"], ["consume", "--topic", "t"]])
def test_a_command_without_a_server_names_both_options(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a server, the error says which option is for which groups."""
    assert run(words) == 2
    error = capsys.readouterr().err
    assert "--zookeeper" in error
    assert "--bootstrap-server" in error


@pytest.mark.parametrize("program", ROOTS)
def test_a_shell_can_complete_commands(program: str) -> None:
    """The completion that the reference describes works."""
    (first, *_) = sorted(ROOTS[program].list_commands(click.Context(ROOTS[program])))
    ended = subprocess.run(
        [sys.executable, "-m", program],
        env=os.environ
        | {
            f"_{program.upper()}_COMPLETE": "bash_complete",
            "COMP_WORDS": f"{program} {first[:3]}",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"plain,{first}\n" in ended.stdout
