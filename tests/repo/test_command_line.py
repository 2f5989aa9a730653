"""Promises of the command line as a whole: errors, exit statuses, missing extras."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import click
import pytest
import zkaudit.cli
import zkmigrate.cli
from zkaudit.commands.root import cli as audit_cli
from zkmigrate.commands.root import cli as migrate_cli

from zkconsumer.cli.main import COMMANDS, cli, run
from zkconsumer.errors import ClusterError, ConfigError, ZkConsumerError


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes every subcommand raise the given error."""

    def install(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        monkeypatch.setattr(type(cli), "get_command", lambda *_: fail)

    return install


@pytest.mark.parametrize("error", [ClusterError("not up"), ConfigError(["a: bad", "b: bad"])])
def test_our_errors_are_one_line_and_their_status(
    error: ZkConsumerError,
    fail_with: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of our errors is printed as ``error: <text>`` on stderr, and its ``exit_code`` is the
    status."""
    fail_with(error)
    assert run(["fail"]) == error.exit_code
    assert capsys.readouterr() == ("", f"error: {error}\n")


def test_ctrl_c_is_130(
    fail_with: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends with status 130 and no traceback."""
    fail_with(KeyboardInterrupt())
    assert run(["fail"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tool", "group"), [(zkaudit.cli, audit_cli), (zkmigrate.cli, migrate_cli)]
)
def test_ctrl_c_is_130_without_standard_error(
    tool: ModuleType, group: click.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has no place then, but the status does."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(group, "main", interrupted)
    monkeypatch.setattr(sys, "stderr", None)
    assert tool.run([]) == 130


PROGRAMS = ["zkconsumer.cli", "zkmigrate.cli", "zkaudit.cli"]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_a_closed_pipe_is_quiet(program: str, arguments: list[str]) -> None:
    """If the reader goes away, as ``| head`` does, the command ends without output."""
    command = subprocess.Popen(
        [sys.executable, "-c", f"from {program} import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.wait(timeout=30) == 141
    assert command.stderr is not None
    assert command.stderr.read() == ""
    command.stderr.close()


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("zkconsumer.cli", ["config", "--json"]), *((name, ["--version"]) for name in PROGRAMS)],
)
def test_a_full_disk_is_one_line(program: str, arguments: list[str]) -> None:
    """Standard output is redirected to a file, and the disk is full."""
    script = f"from {program} import main; main()"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output: No space left on device\n"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_closed_standard_output_is_one_line(program: str) -> None:
    """``command >&-``: there is nowhere to print to."""
    script = f'exec "$0" -c "from {program} import main; main()" --version >&-'
    ended = subprocess.run(
        ["sh", "-c", script, sys.executable],
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == "error: standard output is closed: redirect it to /dev/null instead\n"


def test_wrong_usage_is_2() -> None:
    """An unknown subcommand or option gives status 2."""
    assert run(["nonsense"]) == 2
    assert run(["--nonsense"]) == 2


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_each_subcommand_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every subcommand of the table exists and has a help text."""
    assert run([name, "--help"]) == 0
    assert f"Usage: zkconsumer {name}" in capsys.readouterr().out


@pytest.mark.parametrize("root", [cli, migrate_cli, audit_cli], ids=lambda root: root.name)
def test_summaries_fit_into_a_terminal(root: click.Group) -> None:
    """In 80 columns, the list of commands has the whole first sentence of each command's help."""
    groups = [click.Context(root, info_name="p", terminal_width=80)]
    for context in groups:
        group = context.command
        assert isinstance(group, click.Group)
        commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
        formatter = click.HelpFormatter(width=80)
        group.format_commands(context, formatter)
        lines = [" ".join(line.split()) for line in formatter.getvalue().splitlines()]
        for name, command in commands.items():
            assert command is not None
            assert f"{name} {command.get_short_help_str(200)}" in lines
            if isinstance(command, click.Group):
                groups.append(click.Context(command, context, info_name=name))


@pytest.mark.parametrize("program", ["zkconsumer", "zkmigrate", "zkaudit"])
def test_the_list_of_commands_imports_none_of_them(program: str) -> None:
    """Importing all would take most of a second."""
    script = f"import sys; from {program}.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    script += "print({'kazoo', 'kafka', 'pyspark'} & sys.modules.keys())"
    words = [sys.executable, "-c", script, "--help"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "set()"


def test_a_missing_extra_is_named() -> None:
    """Without the libraries of an extra, the command prints one line that says what to install."""
    script = "import sys; sys.modules['click'] = None\nfrom zkconsumer.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", script, "cluster", "status"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    fix = "in a clone run pip install '.[cli]'"
    assert ended.stderr == f"error: the command line needs click: {fix}\n"


def test_the_version_and_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` prints one line. With ``--verbose``, the libraries and the build follow."""
    assert run(["--version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("zkconsumer ")
    assert run(["--version", "--verbose"]) == 0
    found = dict(row.split(None, 1) for row in capsys.readouterr().out.splitlines()[1:-1])
    assert {"python", "kazoo", "kafka-python", "crc32c", "lz4"} < set(found)
    assert run(["--version", "--verbose", "groups"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "record decoder  pure Python"
    assert run(["--verbose"]) == 2
    assert "--verbose requires --version" in capsys.readouterr().err
