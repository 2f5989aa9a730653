"""One configuration for both sides of a migratable member."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer.config.migratable import MigratableConfig
from zkconsumer.errors import ConfigError

NEEDED = {"zookeeper.connect": "zk:2181/k", "bootstrap.servers": "b:9092", "group.id": "g"}


def test_each_side_gets_its_keys() -> None:
    """A key with a different meaning on each side is ZooKeeper's. The newer names are known."""
    found = MigratableConfig.parse(
        {
            **NEEDED,
            "partition.assignment.strategy": "roundrobin",
            "zkconsumer.live.strategies": "cooperative-sticky,range",
            "session.timeout.ms": 7000,
            "zookeeper.session.timeout.ms": 9000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "zkconsumer.journal.dir": "journals",
        }
    )
    assert found.warnings == ()
    assert found.zookeeper.journal_dir == "journals", "one journal, of the ZooKeeper side"
    assert found.zookeeper.partition_assignment_strategy == "roundrobin"
    assert found.coordinator.strategies == ["cooperative-sticky", "range"]
    assert found.coordinator.session_timeout_ms == 7000
    assert found.zookeeper.zookeeper_session_timeout_ms == 9000
    assert found.zookeeper.auto_offset_reset == found.coordinator.auto_offset_reset == "smallest"
    assert not found.zookeeper.auto_commit_enable
    assert not found.coordinator.auto_commit_enable
    assert not found.zookeeper.bootstrap_servers, "members learn brokers from ZooKeeper"


def test_a_file_does_as_well(tmp_path: Path) -> None:
    """A Java properties file may have the same keys."""
    file = tmp_path / "member.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in NEEDED.items()))
    assert MigratableConfig.parse(file) == MigratableConfig.parse(NEEDED)


def test_faults_of_a_file_name_the_line(tmp_path: Path) -> None:
    """Also those of keys with another name on one side."""
    file = tmp_path / "member.properties"
    more = {"zkconsumer.live.strategies": "fair", "fetch.max.wait.ms": "x"}
    file.write_text("".join(f"{key}={value}\n" for key, value in {**NEEDED, **more}.items()))
    with pytest.raises(ConfigError) as caught:
        MigratableConfig.parse(file)
    assert sorted(fault.partition("=")[0] for fault in caught.value.faults) == [
        f"{file}:4: zkconsumer.live.strategies",
        f"{file}:5: fetch.wait.max.ms",
    ]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"offsets.storage": "kafka"}, "offsets.storage"),
        ({"zkconsumer.profile": "scala"}, "zkconsumer.profile"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl"),
        ({"zkconsumer.live.strategies": "fair"}, "zkconsumer.live.strategies"),
        ({"bootstrap.servers": None}, "bootstrap.servers"),
        ({"zookeeper.connect": None}, "zookeeper.connect"),
    ],
)
def test_what_cannot_be_is_named(more: dict[str, object], named: str) -> None:
    """The error names a key that has no meaning here, or is missing."""
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        MigratableConfig.parse({**NEEDED, **more})


def test_unknown_keys_are_told_once() -> None:
    """A key that neither side knows gives one warning."""
    found = MigratableConfig.parse({**NEEDED, "gruop.id": "x"})
    assert len([text for text in found.warnings if "gruop.id" in text]) == 1
