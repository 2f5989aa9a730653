"""The examples on the data sources' reference pages run."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
from pyspark.sql import DataFrame, SparkSession
from zkaudit import register
from zkaudit.sources.reference import SOURCES, Source

from zkconsumer.servers import LocalCluster

JOURNAL = [
    {"at": 1, "kind": "run", "schema": 1, "clock": "epoch", "settings": {"group": "g"}},
    {"at": 2, "kind": "event", "name": "Claimed", "member": "m", "session": "0x1", "attempt": 1},
]
Real = Callable[[str], str]


@pytest.fixture
def real(recordings: Any, cluster: LocalCluster, unique: str, tmp_path: Path) -> Real:
    """Replaces the paths and addresses of an example by real ones."""
    data = str(recordings("3.9.3").logs[0].parent.parent)
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in JOURNAL))
    cluster.create_topic(unique, 1)
    kafka = {"bootstrap_servers": cluster.bootstrap, "group_id": unique}
    with closing(KafkaConsumer(**kafka)) as member:
        member.assign([TopicPartition(unique, 0)])
        member.commit({TopicPartition(unique, 0): OffsetAndMetadata(1, "", -1)})
    places = {
        "/var/lib/zookeeper": data,
        "/consumers/": "/",  # the recorded servers have no groups
        "logs/zk1": data,
        "logs/zk2": str(recordings("3.6.4").logs[0].parent),
        "logs/zk3": str(recordings("3.5.10").logs[0].parent),
        "journals": str(tmp_path),
        "kafka1:9092": cluster.bootstrap,
    }

    def replaced(text: str) -> str:
        for place, found in places.items():
            text = text.replace(f"'{place}'", f"'{found}'").replace(f'"{place}"', f'"{found}"')
        return text

    return replaced


@pytest.fixture
def registered(spark: SparkSession) -> SparkSession:
    """The session after the registration that the pages show."""
    register(spark)
    return spark


def test_brokers_without_groups_have_no_records(
    registered: SparkSession, cluster: LocalCluster
) -> None:
    """The topic ``__consumer_offsets`` does not exist before the first group."""
    rows = registered.read.format("zkaudit_offsets").option("bootstrap", cluster.bootstrap).load()
    assert rows.collect() == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_sql_example_runs(registered: SparkSession, real: Real, source: Source) -> None:
    """The view is created, and the query returns rows."""
    view, query = (part for part in real(source.sql).split(";") if part.strip())
    registered.sql(view)
    try:
        assert registered.sql(query).collect()
    finally:
        registered.catalog.dropTempView(view.split()[3])


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_python_example_runs(
    registered: SparkSession, real: Real, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every statement runs. ``show`` prints a table, and the stream reads rows until its end."""
    known: dict[str, Any] = {"spark": registered}
    started = []
    for line in ast.parse(real(source.python)).body:
        if isinstance(line, ast.Expr):
            started.append(eval(compile(ast.Expression(line.value), "example", "eval"), known))
        else:
            exec(compile(ast.Module([line], []), "example", "exec"), known)
    assert "+--" in capsys.readouterr().out
    queries = [query for query in started if query is not None]
    assert len(queries) == source.python.count(".start()")
    for query in queries:
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert sum(progress.numInputRows for progress in query.recentProgress) > 100
    assert any(isinstance(value, DataFrame) for value in known.values())
