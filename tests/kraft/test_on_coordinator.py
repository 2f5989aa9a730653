"""Members on the group coordinator of Kafka 4, and the output of the other tools about them."""

from __future__ import annotations

import subprocess
import sys

from zkaudit.sources.offsets import ZkauditOffsets

from tests.support.groups import Reader
from tests.support.members import quick
from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, wait_until
from zkconsumer.servers.produce import send

TRACE = [sys.executable, "-c", "from zkconsumer.cli import main; main()", "trace"]


def test_members_share_a_topic_and_the_audit_sees_their_commits(
    kraft: LocalCluster, group: str, topic: str
) -> None:
    """Two members share the partitions. The next one continues at the exact next message, and
    zkaudit reads the offsets."""
    kraft.create_topic(topic, 4)
    send(kraft.bootstrap, topic, [(b"%d" % n, b"first") for n in range(80)])
    with CoordinatorConsumerConnector(quick(kraft, group)) as one:
        first = Reader(one.create_message_streams({topic: 1})[topic])
        first.wait(80)
        with CoordinatorConsumerConnector(quick(kraft, group)) as two:
            second = Reader(two.create_message_streams({topic: 1})[topic])
            wait_until(lambda: two.health().owned == 2, 20, "both have a share")
            send(kraft.bootstrap, topic, [(b"%d" % n, b"second") for n in range(80)])
            wait_until(
                lambda: len(first.deliveries) + len(second.deliveries) == 160,
                20,
                "everything is read",
            )
    with CoordinatorConsumerConnector(quick(kraft, group)) as three:
        send(kraft.bootstrap, topic, [(b"%d" % n, b"third") for n in range(40)])
        third = Reader(three.create_message_streams({topic: 1})[topic])
        third.wait(40)
    assert {one.value for one in third.deliveries} == {b"third"}
    source = ZkauditOffsets({"bootstrap": kraft.bootstrap})
    reader = source.reader(source.schema())
    last: dict[int, int] = {}
    for part in reader.partitions():
        for batch in reader.read(part):
            for row in batch.to_pylist():  # type: ignore[union-attr]
                if row["group_id"] == group and row["kind"] == "offset" and row["topic"] == topic:
                    last[row["partition"]] = row["committed"]
    assert sum(last.values()) == 200


def test_trace_shows_a_member(kraft: LocalCluster, group: str, topic: str) -> None:
    """Kafka 4 still supports every request that the member sends."""
    kraft.create_topic(topic, 2)
    arguments = ["--bootstrap-server", kraft.bootstrap, "--group", group, "--topic", topic]
    found = subprocess.run(
        [*TRACE, *arguments, "--seconds", "3", "--read"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    steps = {line.split()[1] for line in found.stdout.splitlines() if not line.startswith("      ")}
    assert steps >= {"FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"}
    assert f"assignment={{'{topic}': [0, 1]}}" in found.stdout
