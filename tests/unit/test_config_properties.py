"""Java .properties files, and the ``config`` command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zkconsumer.cli.main import cli
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.keys import KEYS
from zkconsumer.config.properties import read_properties
from zkconsumer.errors import ConfigError

GOOD = "zookeeper.connect=zk1:2181\ngroup.id=g1\n"


def entries(tmp_path: Path, content: str | bytes) -> list[tuple[str, str, int]]:
    """Return a file's entries."""
    file = tmp_path / "file.properties"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    found, malformed = read_properties(file)
    assert malformed == []
    return [tuple(entry) for entry in found]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("a:b", [("a", "b", 1)]),
        ("a b", [("a", "b", 1)]),
        ("a = b ", [("a", "b ", 1)]),
        ("  a\t:\f b", [("a", "b", 1)]),
        ("a==b", [("a", "=b", 1)]),
        ("a = = b", [("a", "= b", 1)]),
        ("a b=c", [("a", "b=c", 1)]),
        ("a", [("a", "", 1)]),
        ("=b", [("", "b", 1)]),
        ("a=\n\nb=", [("a", "", 1), ("b", "", 3)]),
        ("# x=1\n ! y=2\n\t\na=b#c", [("a", "b#c", 4)]),
        ("a=b\\\n   c\\\n\td\ne=f", [("a", "bcd", 1), ("e", "f", 4)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("a=b\\\n# no comment", [("a", "b# no comment", 1)]),
        ("# comment \\\na=b", [("a", "b", 2)]),
        ("a=b\\", [("a", "b", 1)]),
        ("\\\n a=b", [("a", "b", 2)]),
        ("\\\n# x=1\na=b", [("a", "b", 3)]),
        ("a\\=b\\:c\\ d=e", [("a=b:c d", "e", 1)]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\", 1)]),
        ("a=\\u00e9\\u0041", [("a", "éA", 1)]),
        ("a=b\r\nc=d\re=f", [("a", "b", 1), ("c", "d", 2), ("e", "f", 3)]),
        ("a=é", [("a", "é", 1)]),
        (b"a=\xe9", [("a", "é", 1)]),
        ("\ufeffa=b", [("a", "b", 1)]),
        ("", []),
    ],
)
def test_syntax(tmp_path: Path, content: str | bytes, expected: list[tuple[str, str, int]]) -> None:
    """Files read as java.util.Properties reads them, with the number of each line."""
    assert entries(tmp_path, content) == expected


def test_all_faults_name_file_and_line(tmp_path: Path) -> None:
    """Malformed escapes, bad values and missing keys are reported together, each with its place."""
    file = tmp_path / "c.properties"
    file.write_text("group.id=a b\n\nx=\\u12\nauto.offset.reset=earliest\nsocket.timeout.ms=5\n")
    with pytest.raises(ConfigError) as caught:
        ConsumerConfig.parse(file)
    places = [fault.removeprefix(str(file)).split(" ")[0] for fault in caught.value.faults]
    assert places == [":3:", ":", ":1:", ":4:", ":"]
    assert "zookeeper.connect is missing" in caught.value.faults[1]
    assert "fetch.wait.max.ms=100" in caught.value.faults[4]


def test_repeated_key_counts_with_the_last(tmp_path: Path) -> None:
    """The last value counts, as in Java. The warning names both lines."""
    file = tmp_path / "c.properties"
    file.write_text(GOOD + "group.id=g2\n")
    config = ConsumerConfig.parse(file)
    assert config.group_id == "g2"
    assert config.warnings == (f"{file}:3: group.id replaces its value of line 2",)


@pytest.mark.parametrize("name", ["missing.properties", ".", "a\x00b"])
def test_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """A missing file, a directory or an impossible name gives one fault with the name."""
    with pytest.raises(ConfigError, match="cannot read the properties file"):
        ConsumerConfig.parse(f"{tmp_path}/{name}")


# --- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    """Run ``zkconsumer config`` with these arguments."""
    return CliRunner().invoke(cli, ["config", *arguments])


def test_list_shows_every_key() -> None:
    """Without arguments all keys are listed, defaults in square brackets included."""
    result = run()
    assert result.exit_code == 0
    for row in KEYS:
        assert row.name in result.stdout
    assert "(required)" in result.stdout


def test_one_key_is_explained() -> None:
    """A key is shown with meaning, default, valid values and support."""
    result = run("auto.offset.reset", "offsets.storage")
    assert result.exit_code == 0
    assert "default: largest" in result.stdout
    assert "valid: smallest or largest" in result.stdout
    assert "supported" in result.stdout


def test_unknown_key_ends_with_a_hint() -> None:
    """The error for an unknown key names the nearest one."""
    result = run("auto.offset.rest")
    assert result.exit_code == 1
    assert "did you mean auto.offset.reset?" in result.stderr
    assert result.stdout == ""


def test_json_lists_keys() -> None:
    """JSON has every key, or the requested ones."""
    assert [row["key"] for row in json.loads(run("--json").stdout)] == [r.name for r in KEYS]
    (row,) = json.loads(run("--json", "client.id").stdout)
    assert (row["default"], row["default_from"], row["required"]) == (None, "group.id", False)


def test_check_valid_file(tmp_path: Path) -> None:
    """The status is 0. Warnings go to standard error."""
    file = tmp_path / "c.properties"
    file.write_text(GOOD + "grup.id=x\n")
    result = run("--check", str(file))
    assert result.exit_code == 0
    assert "valid" in result.stdout
    assert f"warning: {file}:3: grup.id is not a known key" in result.stderr


def test_check_strict(tmp_path: Path) -> None:
    """With --strict an unknown key is a fault."""
    file = tmp_path / "c.properties"
    file.write_text(GOOD + "grup.id=x\n")
    result = run("--check", str(file), "--strict")
    assert result.exit_code == 2
    assert f"error: {file}:3: grup.id is not a known key" in result.stderr
    assert result.stdout == ""


def test_check_prints_all_faults_and_warnings(tmp_path: Path) -> None:
    """All faults and warnings of a file are printed, one per line. The status is 2."""
    file = tmp_path / "c.properties"
    file.write_text("group.id=a b\nauto.offset.reset=latest\nmirror.topics.whitelist=x\n")
    result = run("--check", str(file))
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "error", "error", "warning"]


@pytest.mark.parametrize("name", ["missing.properties", "."])
def test_check_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    """It prints one line, without a traceback, and the status is 2."""
    result = run("--check", str(tmp_path / name))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
