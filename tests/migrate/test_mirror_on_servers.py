"""A group of the original consumer is mirrored on real servers, while a producer runs."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.migrate.mirrored import Mirrored, New, Old
from tests.support.legacy_jvm import JvmMembers
from zkconsumer.servers import LocalCluster

NEW = ("kafka-python", "librdkafka")


@pytest.mark.timeout(400)
def test_there_and_back_and_there(
    cluster: LocalCluster, jvm: JvmMembers, tmp_path: Path, group: str, topic: str
) -> None:
    """Four members of the original consumer with 24 partitions are replaced by those of librdkafka,
    Java and kafka-python, come back, and are replaced again. The mirror is killed in between. No
    message is lost, and none is repeated that its program had committed when it stopped. Besides
    the programs' own stop and start, delivery is interrupted for less than three seconds.

    ``ZKC_SEED`` draws for how long each program runs, and in which order new members start.
    """
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(10**6))
    print(f"repeat with ZKC_SEED={seed}")  # noqa: T201
    chance = random.Random(seed)
    with Mirrored(cluster, jvm, (group, topic), 24, tmp_path, print, 1000) as one:

        def new() -> New:
            return one.new(*chance.sample(("librdkafka", "java", "kafka-python"), 3))

        def run(members: Old | New) -> None:
            one.wait_delivered(members, chance.randint(1000, 5000))

        one.java()
        old = one.old(4)
        one.start_mirror()
        for number in range(2):
            run(old)
            members = one.change(old, "cut-over", new)
            run(members)
            if number:
                break
            one.kill_mirror()
            run(members)
            old = one.change(members, "undo", lambda: one.old(4))
            one.start_mirror()
        assert one.command("complete", "--execute")["outcome"] == "done"
        one.finish(members)
        print(one.figures())  # noqa: T201
        assert one.lost() == []
        assert one.repeated() <= one.uncommitted
        row = one.status()
        assert (row["case"], row["locked"], row["kafka_lag"]) == ("moved and used", "locked", 0)
        assert max(one.command for one in one.changes) < 3.0, one.changes


@pytest.mark.timeout(600)
def test_killed_at_random(jvm: JvmMembers, tmp_path: Path, group: str, topic: str) -> None:
    """The mirror is killed or suspended, a server is suspended, and commands are killed, there and
    back. After each fault both stores are in step again. No message is lost, and only a few are
    repeated: what a member had not committed when it lost its partitions.

    ``ZKC_SEED`` draws, ``MIRROR_ROUNDS`` is how often the group goes there and back.
    """
    seed = int(os.environ.get("ZKC_SEED") or random.randrange(10**6))
    rounds = int(os.environ.get("MIRROR_ROUNDS", "1"))
    print(f"repeat with ZKC_SEED={seed} MIRROR_ROUNDS={rounds}")  # noqa: T201
    chance = random.Random(seed)
    with (
        LocalCluster("3.9") as cluster,
        Mirrored(cluster, jvm, (group, topic), 4, tmp_path, print) as one,
    ):

        def fault() -> None:
            kind = chance.choice(("killed", "suspended", "broker", "zookeeper"))
            seconds = chance.uniform(0.5, 9.0) if kind == "suspended" else chance.uniform(0.5, 3.0)
            print(f"== {kind} {seconds:.1f} s")  # noqa: T201
            if kind == "killed":
                one.kill_mirror()
            elif kind == "suspended":
                one.suspend_mirror(seconds)
            else:
                broker, zookeeper = cluster.broker_servers[0], cluster.zookeeper_server
                server = broker if kind == "broker" else zookeeper
                server.pause()
                time.sleep(seconds)
                server.resume()
            one.start_mirror()
            began = time.monotonic()
            one.wait_in_step()
            print(f"  in step after {time.monotonic() - began:.1f} s")  # noqa: T201

        for _ in range(rounds):
            old = one.old(2)
            one.start_mirror()
            one.wait_delivered(old, 100)
            fault()
            one.wait_delivered(old, 100)
            one.stop(old)
            one.kill_during("cut-over", "--execute", after=chance.uniform(0.8, 3.0))
            one.command("cut-over", "--execute", "--wait", "20s")
            new = one.new(*NEW)
            one.wait_delivered(new, 100)
            fault()
            one.wait_delivered(new, 100)
            one.stop(new)
            one.kill_during("undo", "--execute", after=chance.uniform(0.8, 3.0))
            one.command("undo", "--execute", "--wait", "20s")
        one.command("cut-over", "--execute")
        one.finish(one.new(*NEW))
        print(one.figures())  # noqa: T201
        assert one.lost() == []
        assert one.repeated() < 500
