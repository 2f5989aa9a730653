"""The README's table of what is tested names what the project builds, starts and tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.secure.stage import WAYS
from tests.secure.test_matrix import REFUSED, STAGES
from zkconsumer.servers import KAFKA_LINES
from zkconsumer.servers.jars import JVM_FILES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
STAGED = {"oldest_stage": "0.9", "old_stage": "1.1", "stage": "3.9", "kraft_stage": "4"}


def table() -> dict[str, tuple[str, ...]]:
    """The cells of each row of the README's table: tested, by which targets, and not tested."""
    part = (ROOT / "README.md").read_text().split("\n## Support\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {name: tuple(cells) for name, *cells in rows[1:]}


def versions(text: str) -> set[str]:
    """The versions in a cell."""
    return set(re.findall(r"\d+(?:\.\d+)+t?", text))


def test_every_row_names_targets_that_exist() -> None:
    """And what is not tested."""
    for name, (tested, by, untested) in table().items():
        assert tested, name
        assert untested, name
        targets = re.findall(r"`make ([a-z-]+)`", by)
        assert targets, name
        for target in targets:
            assert re.search(rf"^{target}: ", MAKEFILE, re.MULTILINE), target


def test_servers_are_those_that_can_be_started() -> None:
    """Kafka's releases, and ZooKeeper's that belong to them."""
    assert versions(table()["Kafka"][0]) == set(KAFKA_LINES.values())
    poms = " ".join(path.read_text() for path in JVM_FILES.glob("kafka-*.xml"))
    started = set(re.findall(r"the ZooKeeper (\d[\d.]+\d) it was", poms))
    assert versions(table()["ZooKeeper"][0]) == started


def test_the_audited_servers_are_those_that_wrote_the_tests_logs() -> None:
    """The table has ZooKeeper's releases whose logs the tests read."""
    (row,) = [cells for name, cells in table().items() if "`zkaudit`" in name]
    (recorded,) = re.findall(
        r"^VERSIONS = \((.+)\)$", (ROOT / "tests/audit/conftest.py").read_text(), re.MULTILINE
    )
    assert versions(row[0]) == versions(recorded)


def test_pythons_are_those_of_wheels_and_classifiers() -> None:
    """Wheels are built for all of them, and for no other."""
    named = versions(table()["Python"][0])
    kinds = PROJECT["project"]["classifiers"]
    assert {
        kind[len("Programming Language :: Python :: ") :] for kind in kinds if "3." in kind
    } == named
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert {f"cp{version.replace('.', '')}-*" for version in named} == set(built)
    assert "PYTHON_VERSION),3.14" in MAKEFILE
    assert not versions(table()["Python"][2]) & named


def test_sparks_are_the_oldest_and_the_installed_one() -> None:
    """``make test-spark`` installs the oldest."""
    (oldest,) = re.findall(r"pyspark==([\d.]+)", MAKEFILE)
    asked = "import importlib.metadata as m; print(m.version('pyspark'))"
    newest = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert versions(table()["Spark"][0]) == {oldest, newest}


def test_the_security_of_brokers_is_that_of_the_matrix() -> None:
    """Each mechanism on each release, except where a release is refused."""
    (row,) = [name for name in table() if name.startswith("Brokers: TLS")]
    mechanisms = {way.split("-")[0] for way in WAYS} - {"PLAINTEXT", "SSL"} | {"TLS"}
    named = {word.split("-")[0] for word in re.findall(r"[A-Za-z]+(?:-[A-Z0-9]+)*", row)}
    assert {name for name in mechanisms if " " not in name} <= named
    assert versions(table()[row][0]) == {KAFKA_LINES[STAGED[stage]] for stage in STAGES}
    for stage, way in REFUSED:
        if way in WAYS:
            assert f"{KAFKA_LINES[STAGED[stage]]} (without {way})" in table()[row][0]
