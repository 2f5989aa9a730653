"""Java and zkconsumer read properties files of original consumers without changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.groups import Delivery, GroupWatch
from tests.support.legacy_jvm import JvmMember
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.keys import KEYS
from zkconsumer.config.properties import read_properties
from zkconsumer.config.tool_security import is_security
from zkconsumer.errors import ClusterError
from zkconsumer.servers import wait_until

FILES = sorted((Path(__file__).parent / "properties").glob("*.properties"))
WRONG = sorted((Path(__file__).parent / "properties" / "wrong").glob("*.properties"))
ROWS = {row.name: row for row in KEYS}
COMMAND = Path(sys.executable).with_name("zkconsumer")


def test_the_files_hold_every_key() -> None:
    """The files contain every key of the JVM consumer. That consumer had no keys for security."""
    used = {entry.key for path in FILES for entry in read_properties(path)[0]}
    known = {row.name for row in KEYS if row.since != "zkconsumer" and not is_security(row.name)}
    assert known - used == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(
    clusters: Callable,
    jvms: Callable,
    process: Callable,
    unique: str,
    path: Path,
) -> None:
    """The ``consume`` command shares a group with a JVM member that was started with the same,
    unchanged file. It reports keys that it does not know or that have no effect."""
    cluster = clusters("1.1.1")
    config = ConsumerConfig.parse(path)
    for entry in read_properties(path)[0]:
        row = ROWS.get(entry.key)
        told = any(f":{entry.line}: {entry.key}" in warning for warning in config.warnings)
        assert told or (row is not None and row.ignored is None)
    topic, group = unique, config.group_id
    cluster.create_topic(topic, 4)
    jvm = jvms("1.1.1")
    with GroupWatch(cluster.zookeeper, group) as watch:
        watch.client.delete(watch.paths.root, recursive=True)
        for partition in range(4):
            path_ = f"{watch.paths.offsets_topic(topic)}/{partition}"
            watch.client.create(path_, b"0", makepath=True)
        own = {"zookeeper.connect": cluster.zookeeper, "group.id": group, "consumer.id": "original"}
        theirs = JvmMember(jvm, own, topics={topic: 1}, file=path)
        options = [f"--consumer-config={path}", f"--zookeeper={cluster.zookeeper}"]
        ours = process({}, topic, *options)
        try:
            watch.wait_owners(
                topic,
                lambda found: len(found) == 4 and len(set(found.values())) == 2,
                30,
                "both have their share",
            )
            values = jvm.produce(cluster.bootstrap, topic, 0, [b"0"])
            for partition in (1, 2, 3):
                values += jvm.produce(cluster.bootstrap, topic, partition, [b"%d" % partition])
            assert values == [0, 0, 0, 0]

            def read(member: JvmMember | object) -> set[bytes | None]:
                deliveries: list[Delivery] = member.deliveries
                return {delivery.value for delivery in deliveries}

            wait_until(lambda: len(read(ours)) == len(read(theirs)) == 2, 30, "each reads its half")
            assert read(ours) | read(theirs) == {b"0", b"1", b"2", b"3"}
            assert ours.stop() == 143
            watch.wait_owners(
                topic,
                lambda found: list(found.values()) == [f"{theirs.consumer_id}-0"] * 4,
                30,
                "the original one has all",
            )
        finally:
            ours.kill()
            theirs.shutdown()
        stored = watch.offsets(topic)
        assert sorted(stored.values()) == ([1, 1, 1, 1] if config.auto_commit_enable else [0] * 4)


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_wrong_file(jvms: Callable, path: Path) -> None:
    """Our consumer refuses every file that the JVM consumer refuses, and names the file, the line
    and the key."""
    own = {"consumer.id": path.stem}
    with pytest.raises(ClusterError, match="Exception"):
        JvmMember(jvms("1.1.1"), own, topics={"t": 1}, file=path).wait_joined()
    argv = [COMMAND, "consume", "--topic=t", f"--consumer-config={path}"]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 2
    lines = {entry.key: f":{entry.line}" for entry in read_properties(path)[0]}
    line = lines.get(path.stem, "")  # a missing key has none
    assert f"{path}{line}: {path.stem}" in told.stderr
