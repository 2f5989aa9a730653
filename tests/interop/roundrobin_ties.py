"""Generate tests/unit/roundrobin_ties.json: ``python -m tests.interop.roundrobin_ties``.

The file has groups in which partitions of different topics have equal hashes, and the assignment of
each by the JVM's own RoundRobinAssignor. The program writes each group to a real ZooKeeper as
registrations and topics. The JVM classes of every release in ``RELEASES`` read them from there. So
the file also has the order in which that ZooKeeper lists members and topics. This takes about two
minutes once Maven has fetched the jars.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from kazoo.client import KazooClient

from zkconsumer.core.common.java_hash import java_hash
from zkconsumer.core.common.scala_maps import _place
from zkconsumer.servers import LocalZooKeeper
from zkconsumer.servers.jars import JVM_FILES, cache_dir, java

GOLDEN = Path(__file__).parents[1] / "unit" / "roundrobin_ties.json"

RELEASES = {
    "[topic,partition]-0.8.2": ["2.10-0.8.2.2", "2.11-0.8.2.2", "2.10-0.9.0.1", "2.11-0.10.1.1"],
    "[topic,partition]": ["2.10-0.10.2.2", "2.11-0.10.2.2", "2.12-0.10.2.2", "2.11-0.11.0.2"],
    "topic-partition": ["2.11-1.0.0", "2.12-1.0.2", "2.11-1.1.1", "2.12-1.1.1"],
}
"""Builds (Scala and Kafka release), grouped by the form of roundrobin on which they must agree."""

SEED = 20_11_12
GROUPS = 40
NAMES = 300_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Case = dict[str, Any]


def colliding(form: str, rng: Random) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Pairs of partitions with equal hashes. The hashes of their topics differ."""
    text = "{}-{}" if form == "topic-partition" else "[{},{}]"
    seen: dict[int, tuple[str, int]] = {}
    found = []
    for _ in range(NAMES):
        topic = "".join(rng.choices(LETTERS, k=rng.randint(5, 8)))
        for number in (0, 3, 10, 11):
            hashed = java_hash(text.format(topic, number))
            other = seen.setdefault(hashed, (topic, number))
            if java_hash(other[0]) != java_hash(topic):
                found.append((other, (topic, number)))
    return found


def make_case(number: int, rng: Random, form: str, pairs: Sequence[Any]) -> Case:
    """One group: ``members`` (name, pattern, topics to streams) and ``topics`` to partitions.

    In every third group the order of insertion matters although the names' hashes differ. It has
    few topics, and two of them share a bucket.
    """
    topics: dict[str, list[int]] = {}
    fillers = rng.choice([0, 0, 1, 5, 12, 30, 90])
    if number % 3 == 0:
        close = [pair for pair in pairs if len({_place(topic) >> 28 for topic, _ in pair}) == 1]
        for topic, partition in rng.choice(close):
            topics[topic] = [partition]
        fillers = rng.randint(1, 4)
    elif rng.random() < 0.8:  # names with equal hashes
        width = rng.randint(1, 3)
        names = ["".join(parts) for parts in product(["Aa", "BB"], repeat=width)]
        ends = ["", "-x", ".log"][: rng.randint(1, 3)]
        for name in rng.sample(names, rng.randint(2, len(names))):
            for end in ends:
                topics[name + end] = list(range(rng.randint(1, 3)))
    if not topics or (number % 3 and rng.random() < 0.7):
        for one, other in rng.sample(pairs, rng.randint(1, min(4, len(pairs)))):
            for topic, partition in (one, other):
                topics.setdefault(topic, []).append(partition)
    for _ in range(fillers):
        topics["".join(rng.choices(LETTERS, k=4))] = list(range(rng.randint(0, 3)))
    order = list(topics)
    rng.shuffle(order)
    topics = {topic: sorted(set(topics[topic])) for topic in order}
    alike = form.endswith("0.8.2")  # these releases require it
    static, streams = rng.random() < 0.6, rng.randint(1, 3)
    names = rng.sample([f"c{n}" for n in range(30)], rng.randint(1, 5))
    members = []
    for name in names:
        wanted = dict.fromkeys(order, streams)
        if static and not alike:
            some = rng.sample(order, rng.randint(1, len(order)))
            wanted = {topic: rng.randint(1, 2) for topic in some}
        if static:
            members.append([name, "static", wanted])
        elif alike or rng.random() < 0.7:
            regexes = [("white_list", {".*": 1}), ("black_list", {"-": 1})]
            members.append([name, *rng.choice(regexes)])
        else:
            members.append([name, "static", wanted])
    return {"members": members, "topics": topics}


def write(client: KazooClient, root: str, case: Case) -> None:
    """Write a group to ZooKeeper, and record the order in which it lists members and topics."""
    ids = f"{root}/consumers/g/ids"
    for name, pattern, wanted in case["members"]:
        document = {"version": 1, "subscription": wanted, "pattern": pattern, "timestamp": "1"}
        client.create(f"{ids}/g_{name}", json.dumps(document).encode(), makepath=True)
    for topic, numbers in case["topics"].items():
        document = {"version": 1, "partitions": {str(number): [0] for number in numbers}}
        path = f"{root}/brokers/topics/{topic}"
        client.create(path, json.dumps(document).encode(), makepath=True)
    by_name = {f"g_{member[0]}": member for member in case["members"]}
    case["members"] = [[name, *by_name[name][1:]] for name in client.get_children(ids)]
    listed = client.get_children(f"{root}/brokers/topics")
    case["topics"] = {topic: case["topics"][topic] for topic in listed}


def fetched(build: str) -> Path:
    """A directory with the jars of one build. Maven fetches them on first use."""
    scala, _, kafka = build.partition("-")
    jars = cache_dir() / "jars" / f"roundrobin-ties-{build}"
    if not jars.is_dir():
        line = "1.1" if kafka[0] == "1" else "0.8.2"
        pinned = {"1.1": "1.1.1", "0.8.2": "0.8.2.2"}[line]
        text = (JVM_FILES / f"kafka-{line}.xml").read_text()
        text = text.replace("kafka_2.11", f"kafka_{scala}").replace(f">{pinned}<", f">{kafka}<")
        with tempfile.TemporaryDirectory() as where:
            (Path(where) / "pom.xml").write_text(text)
            argv = ["mvn", "-q", "-B", "-f", f"{where}/pom.xml", "dependency:copy-dependencies"]
            subprocess.run([*argv, f"-DoutputDirectory={where}/lib"], check=True)
            jars.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", f"{where}/lib", jars], check=True)
    return jars


@contextmanager
def running(build: str) -> Iterator[subprocess.Popen[str]]:
    """A JVM that runs LegacyMembers with the classes of one build."""
    jars = fetched(build)
    with tempfile.TemporaryDirectory() as where:
        source = JVM_FILES / "LegacyMembers.java"
        argv = [java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-proc:none"]
        paths = os.pathsep.join(str(jar) for jar in sorted(jars.glob("*.jar")))
        subprocess.run([*argv, "-cp", paths, "-d", where, str(source)], check=True)
        logging = f"-Dlog4j.configuration=file:{JVM_FILES / 'log4j.properties'}"
        process = subprocess.Popen(
            [java(), logging, "-cp", f"{where}{os.pathsep}{jars}/*", source.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def ask(process: subprocess.Popen[str], words: Sequence[str]) -> list[str]:
    """Send one command and return the words of its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\t".join(urllib.parse.quote_plus(word) for word in words) + "\n")
    process.stdin.flush()
    while True:
        line = process.stdout.readline()
        found = [urllib.parse.unquote_plus(word) for word in line.rstrip("\n").split("\t")]
        if not line or found[0] == "failed":
            raise AssertionError(f"{words}: {found}")
        if found[0] != "ready":
            return found[2:]


def owners(process: subprocess.Popen[str], zookeeper: str, case: Case) -> Mapping[str, str]:
    """Partition to thread, as all the JVM's members compute it."""
    names = [member[0] for member in case["members"]]
    found = ask(process, ["assign", "#1", zookeeper, "g", "roundrobin", "true", *names])
    result: dict[str, str] = {}
    for topic, number, thread in zip(found[0::3], found[1::3], found[2::3], strict=True):
        known = result.setdefault(f"{topic}/{number}", thread)
        assert known == thread, f"members differ about {topic}/{number}"
    return dict(sorted(result.items()))


def main() -> int:
    """Write the file. The exit status is 1 if builds of one form differ."""
    cases: dict[str, list[Case]] = {}
    differing = defaultdict(list)
    with LocalZooKeeper() as cluster:
        client = KazooClient(cluster.zookeeper)
        client.start(timeout=15)
        for form, builds in RELEASES.items():
            rng = Random(f"{SEED} {form}")
            pairs = colliding(form, rng)
            cases[form] = [make_case(number, rng, form, pairs) for number in range(GROUPS)]
            for number, case in enumerate(cases[form]):
                write(client, f"/{form.translate({ord(c): None for c in '[],'})}-{number}", case)
            for build in builds:
                with running(build) as process:
                    for number, case in enumerate(cases[form]):
                        root = f"/{form.translate({ord(c): None for c in '[],'})}-{number}"
                        found = owners(process, cluster.zookeeper + root, case)
                        if case.setdefault("owners", found) != found:
                            differing[build].append(number)
                sys.stderr.write(f"{form}: {build} done\n")
        client.stop()
        client.close()
    for build, numbers in differing.items():
        sys.stderr.write(f"error: {build} differs from the first build in groups {numbers}\n")
    text = ",\n".join(
        f"{json.dumps(form)}: {{\n"
        f'"builds": {json.dumps(RELEASES[form])},\n"groups": [\n'
        + ",\n".join(json.dumps(case, separators=(",", ":")) for case in some)
        + "\n]}"
        for form, some in cases.items()
    )
    GOLDEN.write_text(f"{{\n{text}\n}}\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
