"""The Java consumer of any line of Kafka, which continues where a group was moved to."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from zkconsumer.servers import java
from zkconsumer.servers.legacy_jvm import compiled
from zkconsumer.servers.servers import sharing

_SOURCE = """
import java.io.FileInputStream;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Continue {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.load(new FileInputStream(args[0]));
        int wanted = Integer.parseInt(args[2]);
        Properties about = new Properties();
        about.load(KafkaConsumer.class.getResourceAsStream("/kafka/kafka-version.properties"));
        System.out.println("version " + about.getProperty("version"));
        try (var consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            int seen = 0;
            while (seen < wanted) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.partition() + " " + record.offset());
                    seen++;
                }
                consumer.commitSync();
            }
        }
    }
}
"""


def read_java(
    line: str, bootstrap: str, group: str, topic: str, count: int, folder: Path, **keys: str
) -> Counter[tuple[int, int]]:
    """Return each (partition, offset) that the consumer of a line of Kafka reads before it commits.

    It reads until it has ``count`` messages, and fails without a committed offset. ``keys`` has
    more configuration, with ``_`` instead of dots.
    """
    source, properties = folder / "Continue.java", folder / "continue.properties"
    source.write_text(_SOURCE)
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "none",
        "enable.auto.commit": "false",
        "max.poll.records": str(count),
        **{key.replace("_", "."): value for key, value in keys.items()},
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    words = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *sharing(line, source.stem)]
    words += ["-cp", compiled(line, source), source.stem, str(properties), topic, str(count)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    printed = done.stdout.splitlines()
    assert any(text.startswith(f"version {line}.") for text in printed), printed
    pairs = [text.split() for text in printed if text[:1].isdigit()]
    return Counter((int(partition), int(offset)) for partition, offset in pairs)
