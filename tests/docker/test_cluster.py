"""The cluster in containers: its servers, a mixed group on them, and a complete cleanup."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.support.docker import DockerCluster
from tests.support.docker_engine import CLUSTER_LABEL, DockerContainer
from tests.support.groups import GroupWatch, Producer
from zkconsumer.errors import ClusterError
from zkconsumer.servers import KAFKA_LINES, wait_until
from zkconsumer.servers.servers import read_metadata

PARTITIONS = range(8)


def lines(*members: DockerContainer) -> set[bytes]:
    """The members' output so far."""
    return {line for member in members for line in member.output().splitlines()}


def left(engine: Any, cluster: str) -> list[Any]:
    """Containers of a cluster that exist, running or stopped."""
    found: list[Any] = engine.api.containers(
        all=True, filters={"label": f"{CLUSTER_LABEL}={cluster}"}
    )
    return found


def test_a_mixed_group_outlives_its_servers(
    engine: Any, image: str, group: str, topic: str
) -> None:
    """A Python member and the original consumer share a group while a broker and a ZooKeeper are
    killed.

    Every partition has one owner, and both members own some. Every message is delivered in each
    phase, and both members leave cleanly. Afterwards no container remains.
    """
    with DockerCluster(brokers=2, zookeepers=3, image=image) as cluster:
        cluster.create_topic(topic, len(PARTITIONS), replication=2)
        common = ["auto.offset.reset=smallest", "zookeeper.session.timeout.ms=6000"]
        ours = ["zkconsumer", "consume", "--zookeeper", cluster.zookeeper, "--topic", topic]
        ours += ["--group", group, "--consumer-property", "consumer.id=ours"]
        theirs = ["kafka-jvm", "run", "1.1", "kafka.tools.ConsoleConsumer"]
        theirs += ["--zookeeper", cluster.zookeeper, "--topic", topic]
        theirs += ["--group", group, "--consumer-property", "consumer.id=theirs"]
        for setting in common:
            ours += ["--consumer-property", setting]
            theirs += ["--consumer-property", setting]

        def shared(owners: dict[int, str]) -> bool:
            halves = {thread.rpartition("-")[0] for thread in owners.values()}
            return set(owners) == set(PARTITIONS) and halves == {f"{group}_ours", f"{group}_theirs"}

        with (
            GroupWatch(cluster.zookeeper, group) as watch,
            Producer(cluster.bootstrap, topic, PARTITIONS) as producer,
        ):
            members = [cluster.run("ours", ours), cluster.run("theirs", theirs)]
            sent: set[bytes] = set()

            def all_delivered(phase: str) -> None:
                watch.wait_owners(topic, shared, 60.0, f"{phase}: the members share the topic")
                sent.update(producer.send(400))
                try:
                    wait_until(
                        lambda: sent <= lines(*members), 60.0, f"{phase}: everything is delivered"
                    )
                except ClusterError as error:
                    for member in members:
                        error.add_note(f"{member.name}: {member.log_text()[-2000:]}")
                    raise
                watch.wait_owners(topic, shared, 60.0, f"{phase}: the members still share it")

            all_delivered("at first")
            cluster.broker_servers[0].kill()
            all_delivered("without broker 0")
            cluster.broker_servers[0].start()
            cluster.broker_servers[0].wait_ready()
            cluster.zookeeper_servers[1].kill()
            all_delivered("without ZooKeeper 2")

            assert lines(*members) == sent
            assert all(lines(member) for member in members)
            for member in members:
                member.stop()
            assert [member.exit_status for member in members] == [143, 143]
            assert watch.members() == []
            assert watch.owners(topic) == {}
            stored = watch.offsets(topic)
            assert sum(stored.values()) == len(sent)
        assert len(left(engine, cluster.id)) == 7
    assert left(engine, cluster.id) == []


def test_a_server_stops_pauses_and_returns(engine: Any, image: str, topic: str) -> None:
    """A broker can be paused, resumed, stopped, killed and started. It keeps its topics and
    port."""
    with DockerCluster(image=image) as cluster:
        cluster.create_topic(topic)
        (broker,) = cluster.broker_servers
        broker.pause()
        assert broker.running
        assert read_metadata(broker.port) is None
        broker.resume()
        assert read_metadata(broker.port) is not None
        for end, status in ((broker.stop, 143), (broker.kill, 137)):
            end()
            assert (broker.running, broker.exit_status) == (False, status)
            assert read_metadata(broker.port) is None
            broker.start()
            broker.wait_ready()
            with pytest.raises(ClusterError, match="broker-0 is running already"):
                broker.start()

        def led_again() -> bool:
            view = read_metadata(broker.port)
            return view is not None and view.leaders.get(topic) == {0: 0}

        wait_until(led_again, 30.0, f"broker 0 leads {topic} again")
        cluster.add_partitions(topic, 3)
        cluster.delete_topic(topic)


@pytest.mark.parametrize("kafka", sorted(set(KAFKA_LINES) - {"3.9", "4"}))
def test_the_older_lines_start(engine: Any, image: str, topic: str, kafka: str) -> None:
    """Every line of Kafka runs from the image, on an ensemble of its own ZooKeeper version."""
    with DockerCluster(kafka, brokers=2, zookeepers=3, image=image) as cluster:
        cluster.create_topic(topic, 4, replication=2)


def test_a_broker_that_cannot_start_is_told(engine: Any, image: str) -> None:
    """A failed start names the server and the reason, and leaves no container."""
    cluster = DockerCluster(image=image, properties={"num.partitions": "many"})
    with pytest.raises(
        ClusterError, match=r"broker-0 exited right after its start: .*num\.partitions"
    ):
        cluster.start()
    assert left(engine, cluster.id) == []


def test_containers_of_a_killed_process_are_removed(engine: Any, image: str) -> None:
    """The next start removes the containers of a killed process, but not those of a running one."""
    script = (
        "import os, signal, sys\n"
        "from tests.support.docker import DockerCluster\n"
        "cluster = DockerCluster(image=sys.argv[1])\n"
        "cluster.start()\n"
        "print(cluster.id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with DockerCluster(image=image) as living:
        killed = subprocess.run(
            [sys.executable, "-c", script, image], capture_output=True, text=True, check=False
        )
        orphan = killed.stdout.strip()
        assert len(left(engine, orphan)) == 2, killed.stderr
        with DockerCluster(image=image):
            assert left(engine, orphan) == []
            assert len(left(engine, living.id)) == 2


def test_an_image_that_was_not_built_is_named(engine: Any) -> None:
    """The error names the missing image and the script that builds it."""
    with (
        pytest.raises(ClusterError, match=r"zkconsumer-none.*docker/build\.sh"),
        DockerCluster(image="zkconsumer-none"),
    ):
        pass
