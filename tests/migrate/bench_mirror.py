"""``python -m tests.migrate.bench_mirror``: what a mirror of many groups costs at rest, and how
late it copies while offsets change, on real servers."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kazoo.client import KazooClient
from zkmigrate.model import Store

from zkconsumer.broker.groups.coordinator_calls import StoredOffset
from zkconsumer.broker.groups.group_coordinators import GroupCoordinators
from zkconsumer.core.common.types import BrokerEndpoint, TopicPartition
from zkconsumer.servers import LocalCluster, wait_until

TOPIC = "orders"
SAMPLERS = 4
"""How many threads measure how late an offset is."""


class Bench:
    """Groups on a cluster, and the process that mirrors them."""

    def __init__(
        self, cluster: LocalCluster, groups: int, partitions: int, leader: Store, folder: Path
    ) -> None:
        self.leader = leader
        self.names = [f"g{number:04}" for number in range(groups)]
        self.partitions = partitions
        self.zk = KazooClient(cluster.zookeeper, timeout=30.0)
        self.zk.start()
        cluster.create_topic(TOPIC, partitions)
        for name in self.names:
            self.zk.ensure_path(f"/consumers/{name}/ids")
            self.zk.ensure_path(f"/consumers/{name}/offsets/{TOPIC}")
            for one in [
                self.zk.create_async(self.path(name, at), b"0") for at in range(partitions)
            ]:
                one.get()
        endpoint = BrokerEndpoint(0, "127.0.0.1", cluster.broker_servers[0].port)
        self.kafka = GroupCoordinators("bench", lambda: [endpoint])
        if leader is Store.KAFKA:  # the store that is chosen must have every offset
            zeros = {TopicPartition(TOPIC, at): StoredOffset(0) for at in range(partitions)}
            for name in self.names:
                self.kafka.commit(name, zeros)
        self.errors = folder / "errors"
        words = [sys.executable, "-c", "from zkmigrate.cli import main; main()", "mirror", "--all"]
        with self.errors.open("wb") as errors:
            self.mirror = subprocess.Popen(
                [*words, "--lead", leader.value, "--execute", "--zookeeper", cluster.zookeeper],
                stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def path(self, group: str, partition: int) -> str:
        """The path of an offset."""
        return f"/consumers/{group}/offsets/{TOPIC}/{partition}"

    def wait_in_step(self) -> None:
        """Wait until the mirror reports that all groups are in step."""
        text = f"groups: {len(self.names)} in step"
        wait_until(lambda: text in self.errors.read_text(), 600, text)

    def used(self) -> float:
        """Seconds of a core that the mirror has used so far."""
        fields = Path(f"/proc/{self.mirror.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def mebibytes(self) -> float:
        """The memory of the mirror."""
        lines = Path(f"/proc/{self.mirror.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def share(self, seconds: float) -> float:
        """The share of a core that the mirror uses for some time."""
        before, began = self.used(), time.monotonic()
        time.sleep(seconds)
        return (self.used() - before) / (time.monotonic() - began)

    def change(self, over: threading.Event, rate: int) -> None:
        """Change offsets of random partitions, so many each second."""
        kafka, number, began = self.kafka.another(), 0, time.monotonic()
        while not over.wait(0.05):
            while number < (time.monotonic() - began) * rate:
                number += 1
                group = random.choice(self.names[SAMPLERS:])
                at = random.randrange(self.partitions)
                if self.leader is Store.ZOOKEEPER:
                    self.zk.set_async(self.path(group, at), b"%d" % number)
                else:
                    kafka.commit(group, {TopicPartition(TOPIC, at): StoredOffset(number)})
        kafka.close()

    def sample(self, over: threading.Event, group: str, late: list[float]) -> None:
        """Change an offset, and wait until the other store has it; again and again."""
        kafka, number, tp = self.kafka.another(), 1, TopicPartition(TOPIC, 0)
        while not over.is_set():
            number += 1
            began = time.monotonic()
            if self.leader is Store.ZOOKEEPER:
                self.zk.set(self.path(group, 0), b"%d" % number)
                while kafka.fetch(group, [tp])[tp].offset != number:
                    time.sleep(0.02)
            else:
                kafka.commit(group, {tp: StoredOffset(number)})
                while self.zk.get(self.path(group, 0))[0] != b"%d" % number:
                    time.sleep(0.02)
            late.append(time.monotonic() - began)
            time.sleep(random.random() * 0.5)
        kafka.close()


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--partitions", type=int, default=20)
    parser.add_argument("--leader", type=Store, default=Store.ZOOKEEPER)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LocalCluster("3.9") as cluster:
        wanted = options.groups, options.partitions, options.leader
        bench = Bench(cluster, *wanted, Path(folder))
        try:
            bench.wait_in_step()
            bench.share(options.seconds / 2)
            share = bench.share(options.seconds)
            print(f"at rest: {share:.1%} of a core, {bench.mebibytes():.0f} MiB")  # noqa: T201
            over, late = threading.Event(), list[float]()
            rate = options.groups * options.partitions // 100
            threads = [threading.Thread(target=bench.change, args=(over, rate))]
            threads += [
                threading.Thread(target=bench.sample, args=(over, name, late))
                for name in bench.names[:SAMPLERS]
            ]
            for one in threads:
                one.start()
            share = bench.share(options.seconds)
            over.set()
            for one in threads:
                one.join()
            late.sort()
            half, most = late[len(late) // 2], late[len(late) * 99 // 100]
            print(f"{rate} offsets/s: {share:.1%} of a core, {bench.mebibytes():.0f} MiB")  # noqa: T201
            print(f"late: p50 {half:.2f} s, p99 {most:.2f} s of {len(late)}")  # noqa: T201
        finally:
            bench.mirror.kill()
            bench.mirror.wait()
            bench.kafka.close()
            bench.zk.stop()
            bench.zk.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
