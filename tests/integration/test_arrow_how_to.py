"""The code blocks of ``docs/how-to/read-with-arrow.md``. ``tests/audit`` runs the Spark block."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_consume_cli import consume
from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-with-arrow.md"
EXPECTED = {"de": 100, "fr": 200}


def block(heading: str, kind: str) -> str:
    """The first block of a language below a heading."""
    return PAGE.read_text().split(f"\n## {heading}\n")[1].split(f"```{kind}\n")[1].split("```")[0]


@pytest.fixture
def events(cluster: LocalCluster, topic: str) -> str:
    """A topic with messages from two countries."""
    cluster.create_topic(topic, partitions=2)
    values = [b'{"country": "%s"}' % (b"de" if i % 3 == 0 else b"fr") for i in range(300)]
    send(cluster.bootstrap, topic, [(None, value) for value in values])
    return topic


def run(heading: str, cluster: LocalCluster, topic: str) -> Any:
    """Run a Python block with this cluster and topic, and return its ``result``."""
    text = block(heading, "python").replace("localhost:2181", cluster.zookeeper)
    text = text.replace('{"events": 1}["events"]', f'{{"{topic}": 1}}["{topic}"]')
    text = text.replace('{"events": 1})["events"]', f'{{"{topic}": 1}})["{topic}"]')
    text = text.replace('"3000"', '"1000"').replace("report-", f"{topic}-")
    names: dict[str, Any] = {}
    exec(compile(text, f"{PAGE.name}: {heading}", "exec"), names)  # our own page
    return names["result"]


def test_polars(cluster: LocalCluster, events: str) -> None:
    """The Polars block counts the messages of each country."""
    assert dict(run("polars", cluster, events).iter_rows()) == EXPECTED


def test_duckdb(cluster: LocalCluster, events: str) -> None:
    """The DuckDB block counts the messages of each country."""
    assert dict(run("DuckDB", cluster, events)) == EXPECTED


def test_pandas(cluster: LocalCluster, events: str) -> None:
    """The pandas block counts the messages of each country."""
    assert run("pandas", cluster, events).to_dict() == EXPECTED


def test_files(
    cluster: LocalCluster, events: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command writes files, and the query counts their messages."""
    words = shlex.split(block("Files", "sh").replace("\\\n", ""))
    assert words[:2] == ["zkconsumer", "consume"]
    given = {"localhost:2181": cluster.zookeeper, "events": events, "files": f"{events}-files"}
    given["3000"] = "1500"
    monkeypatch.chdir(tmp_path)
    done = consume(*(given.get(word, word) for word in words[2:]))
    assert done.returncode == 0, done.stderr
    assert run("Files", cluster, events) == [(300,)]
