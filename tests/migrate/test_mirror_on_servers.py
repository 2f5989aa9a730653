"""A group of the original consumer is mirrored on real servers, while a producer runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.migrate.mirrored import Mirrored
from tests.support.legacy_jvm import JvmMembers
from zkconsumer.servers import LocalCluster

NEW = ("kafka-python", "librdkafka")


@pytest.mark.timeout(300)
def test_there_and_back_and_there(
    cluster: LocalCluster, jvm: JvmMembers, tmp_path: Path, group: str, topic: str
) -> None:
    """Two members of the original consumer are replaced by kafka-python's and librdkafka's, come
    back, and are replaced again. The mirror is killed in between. No message is lost. None is
    repeated, as every program commits when it stops."""
    with Mirrored(cluster, jvm, (group, topic), 4, tmp_path, print) as one:
        old = one.old(2)
        one.start_mirror()
        for number in range(2):
            one.wait_delivered(old, 200)
            one.stop(old)
            began = time.monotonic()
            row = one.command("cut-over", "--execute", "--wait", "10s")
            print(f"cut over in {time.monotonic() - began:.1f} s")  # noqa: T201
            assert row["outcome"] == "done"
            new = one.new(*NEW)
            one.wait_delivered(new, 200)
            if number:
                break
            one.kill_mirror()
            one.wait_delivered(new, 200)
            one.stop(new)
            assert one.command("undo", "--execute", "--wait", "10s")["way"] == "mirror back"
            old = one.old(2)
            one.start_mirror()
        assert one.command("complete", "--execute")["outcome"] == "done"
        one.finish(new)
        total = sum(one.sent.values())
        print(f"{total} messages, {one.repeated()} repeated")  # noqa: T201
        assert one.lost() == []
        assert one.repeated() == 0
        row = one.status()
        assert (row["case"], row["locked"], row["kafka_lag"]) == ("moved and used", "locked", 0)
