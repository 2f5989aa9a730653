"""``kafka-jvm`` in the image starts single servers of each line, and the original tools."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkconsumer.servers import KAFKA_LINES, wait_until
from zkconsumer.servers.jars import KRAFT_LINES
from zkconsumer.servers.servers import read_metadata
from zkconsumer.servers.waiting import free_port


@pytest.mark.parametrize("kafka", sorted(set(KAFKA_LINES) - set(KRAFT_LINES)))
def test_each_line_starts(docker: Callable[..., str], image: str, topic: str, kafka: str) -> None:
    """A broker on a ZooKeeper of its own version. The line's own tool creates a topic, and the
    broker leads it, also after it was killed and started again."""
    zookeeper, port = free_port(), free_port()
    jvm = ["--network", "host", "--env", f"KAFKA_LINE={kafka}", "--entrypoint", "kafka-jvm", image]
    started: list[str] = []
    try:
        started.append(docker("run", "-d", *jvm, "zookeeper", zookeeper))
        started.append(docker("run", "-d", *jvm, "broker", 0, port, f"127.0.0.1:{zookeeper}"))
        wait_until(lambda: read_metadata(port) is not None, 60.0, "the broker answers")
        words = f"--create --topic {topic} --partitions 4 --replication-factor 1".split()
        at = ("--zookeeper", f"127.0.0.1:{zookeeper}")
        # Kafka 3 has no option --zookeeper any more.
        line = "1.1" if kafka == "3.9" else kafka
        docker("run", "--rm", *jvm, "run", line, "kafka.admin.TopicCommand", *at, *words)

        def leads() -> bool:
            view = read_metadata(port)
            return view is not None and view.leaders.get(topic) == dict.fromkeys(range(4), 0)

        wait_until(leads, 30.0, f"the broker leads {topic}")
        docker("kill", started[1])
        docker("start", started[1])
        wait_until(leads, 60.0, f"the broker leads {topic} again")
    finally:
        if started:
            docker("rm", "-f", "-v", *started)
