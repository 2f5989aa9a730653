"""``zkconsumer config --translate``: the old consumer's configuration for new clients."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import confluent_kafka
import pytest
from kafka import KafkaConsumer

from zkconsumer.cli.main import run
from zkconsumer.config.translation import CLIENTS
from zkconsumer.servers import fetch_jars, java

LEGACY = """
zookeeper.connect=zk:2181/kafka
group.id=billing
consumer.id=fixed
client.id=app
auto.offset.reset=smallest
auto.commit.enable=true
zookeeper.session.timeout.ms=8000
fetch.message.max.bytes=2097152
fetch.min.bytes=1
fetch.wait.max.ms=150
socket.receive.buffer.bytes=65536
socket.timeout.ms=30000
refresh.leader.backoff.ms=200
rebalance.max.retries=10
rebalance.backoff.ms=2000
exclude.internal.topics=true
partition.assignment.strategy=roundrobin
consumer.timeout.ms=5000
num.consumer.fetchers=2
shoe.size=42
"""

NAMES_OF_JAVA = """
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Names {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.load(System.in);
        config.put("key.deserializer", ByteArrayDeserializer.class);
        config.put("value.deserializer", ByteArrayDeserializer.class);
        new ConsumerConfig(config);
        for (String name : ConsumerConfig.configNames())
            System.out.println(name);
    }
}
"""


def translated(tmp_path: Path, capsys: pytest.CaptureFixture[str], client: str) -> tuple[dict, str]:
    """The new configuration, and the whole output."""
    file = tmp_path / "consumer.properties"
    file.write_text(LEGACY)
    capsys.readouterr()
    assert run(["config", "--translate", str(file), "--client", client]) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines), text


def test_configurations_are_translated_with_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values keep their meaning, changed defaults are noted, and all other keys are listed with a
    reason."""
    for client in CLIENTS:
        found, text = translated(tmp_path, capsys, client)
        named = {name.replace("_", "."): value for name, value in found.items()}
        assert named["auto.offset.reset"] == "earliest"
        assert named["enable.auto.commit"] == "true"
        assert named["auto.commit.interval.ms"] == "60000"
        assert named["session.timeout.ms"] == "8000"
        assert named["group.instance.id"] == "fixed"
        assert named["max.poll.interval.ms"] == "300000"
        for key in ("zookeeper.connect", "consumer.timeout.ms", "shoe.size"):
            assert f"#   {key}=" in text
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if not line.startswith("#"):
                assert lines[number - 1].startswith("#"), f"no reason: {line}"


def test_the_names_exist_in_the_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """kafka-python, librdkafka and the Java consumer of Kafka 3.9 know every property that the
    translation writes. The last two also accept the values."""
    python, _ = translated(tmp_path, capsys, "kafka-python")
    assert set(python) <= set(KafkaConsumer.DEFAULT_CONFIG)
    librdkafka, _ = translated(tmp_path, capsys, "librdkafka")
    confluent_kafka.Consumer(librdkafka).close()
    source = tmp_path / "Names.java"
    source.write_text(NAMES_OF_JAVA)
    words = [java(), "-cp", os.path.join(fetch_jars("3.9"), "*"), str(source)]
    ours, text = translated(tmp_path, capsys, "java")
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(ours) <= set(done.stdout.split())


def test_a_file_that_cannot_be_translated(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names it, and options that do nothing are refused."""
    assert run(["config", "--translate", "missing"]) == 2
    assert "missing" in capsys.readouterr().err
    assert run(["config", "--client", "java"]) == 2
    assert run(["config", "--translate", "missing", "--strict"]) == 2
