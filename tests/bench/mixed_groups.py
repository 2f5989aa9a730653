"""Groups of zkconsumer, librdkafka and Java members on a broker of Kafka 4, under load.

``python -m tests.bench.mixed_groups kills`` runs six members, two of each client, while one of them
is killed every few seconds and replaced. ``roll`` restarts six members one at a time, from
``classic`` to ``consumer`` and back. ``wide`` lets a member join a group of 1,000 partitions and
kills another one, with our members and with Java's in rotation.

Every member is a process. It reports each message with the time at which it was delivered. The exit
status of ``kills`` and ``roll`` is 1 if a message was lost, delivered twice without a reason, or if
two members delivered from one partition at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

from zkconsumer.coordinator import CoordinatorConsumerConnector
from zkconsumer.servers import LocalCluster, fetch_jars, java, wait_until

ROOT: Final = Path(__file__).parents[2]
CLASSES: Final = ROOT / "build" / "bench" / "4"
JAVA: Final = ROOT / "tests" / "integration" / "GroupMembers.java"
MAKES: Final = ("ours", "java", "librdkafka")
SETTLED: Final = 180.0
SESSION, HEARTBEAT, COMMIT = 10_000, 1000, 1000
"""Milliseconds, of every member."""
SLACK: Final = 1.0
"""A commit may be this much later than its interval on a busy machine (seconds)."""


# -- a member's process


def report(*words: object) -> None:
    """Print one line at once, so that a killed member has reported what it delivered."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def holds(partitions: Iterable[int], generation: int) -> None:
    """Report the partitions of this member."""
    report("holds", "m", ",".join(map(str, sorted(partitions))) or "-", generation)


def our_member(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    """A zkconsumer member, until stdin ends."""
    config: dict[str, object] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": COMMIT,
        "session.timeout.ms": SESSION,
        "fetch.wait.max.ms": 100,
    }
    if protocol == "classic":
        config["heartbeat.interval.ms"] = HEARTBEAT
    member = CoordinatorConsumerConnector(config)
    (stream,) = member.create_message_streams({topic: 1})[topic]

    def read() -> None:
        for message in stream:
            report("message", "m", message.partition, message.offset, time.time_ns() // 1_000_000)

    def look() -> None:
        before = None
        while True:
            machine = member._loop.machine  # type: ignore[union-attr]
            now = {tp.partition for tp in tuple(machine.held)}, machine.generation
            if now != before:
                holds(*now)
            before = now
            time.sleep(0.02)

    reader = threading.Thread(target=read)
    reader.start()
    threading.Thread(target=look, daemon=True).start()
    sys.stdin.read()
    member.shutdown()
    reader.join()


def librdkafka_member(bootstrap: str, group: str, topic: str, protocol: str) -> None:
    """A librdkafka member, until stdin ends."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": COMMIT,
        "enable.auto.offset.store": False,
        "fetch.wait.max.ms": 100,
    }
    if protocol == "classic":
        config |= {
            "session.timeout.ms": SESSION,
            "heartbeat.interval.ms": HEARTBEAT,
            "partition.assignment.strategy": "range",
        }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    before: set[int] | None = None
    while not ended.is_set():
        found = consumer.poll(0.05)
        if found is not None and found.error() is None:
            report("message", "m", found.partition(), found.offset(), time.time_ns() // 1_000_000)
            with suppress(KafkaException):  # the partition was taken away meanwhile
                consumer.store_offsets(found)
        now = {tp.partition for tp in consumer.assignment()}
        if now != before:
            holds(now, -1)
        before = now
    consumer.close()


# -- the side that starts members and judges


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that a member has delivered; ``at`` in seconds since 1970."""

    at: float
    member: int
    partition: int
    offset: int


def compile_java() -> None:
    """Compile the Java member, if its source is newer. Raises CalledProcessError."""
    CLASSES.mkdir(parents=True, exist_ok=True)
    compiled = CLASSES / "GroupMembers.class"
    if compiled.exists() and compiled.stat().st_mtime > JAVA.stat().st_mtime:
        return
    words = (java(), "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-proc:none")
    jars = os.pathsep.join(map(str, fetch_jars("4").glob("*.jar")))
    subprocess.run([*words, "-cp", jars, "-d", str(CLASSES), str(JAVA)], check=True, timeout=300)


class Member:
    """A process with one member. Its reports are read by a thread of its own."""

    def __init__(self, number: int, make: str, protocol: str, place: tuple[str, str, str]) -> None:
        self.number, self.make, self.protocol = number, make, protocol
        self.partitions: frozenset[int] = frozenset()
        self.generation = -1
        self.changed = 0.0
        """When the last report of its partitions arrived."""
        self.deliveries: list[Delivery] = []
        self.killed = 0.0
        """When it was killed, seconds since 1970."""
        self.failed = ""
        """What a Java member reported as the reason of its end."""
        words = [sys.executable, "-m", "tests.bench.mixed_groups", "member", make, *place, protocol]
        if make == "java":
            jars = os.path.join(fetch_jars("4"), "*")
            words = [java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
            words += ["-cp", f"{CLASSES}{os.pathsep}{jars}", "GroupMembers"]
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.ready = threading.Event()
        """Set when the process has started, and waits for ``begin``."""
        self._join = ("join", "m", *place, "range", "-", protocol)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Join the group."""
        self._order(*self._join)

    def _order(self, *words: object) -> None:
        assert self.process.stdin is not None
        print(*words, file=self.process.stdin, flush=True)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *words = line.split()
            if kind == "ready":
                self.ready.set()
            elif kind == "message" and len(words) == 4:
                partition, offset, at = map(int, words[1:])
                self.deliveries.append(Delivery(at / 1e3, self.number, partition, offset))
            elif kind == "holds":
                self.partitions = frozenset(int(n) for n in words[1].split(",") if n != "-")
                self.generation, self.changed = int(words[2]), time.time()
            elif kind == "failed":
                self.failed = " ".join(words)
            elif kind == "left" and self.process.stdin is not None:
                self.process.stdin.close()  # ends the JVM
        self.partitions = frozenset()

    def leave(self) -> None:
        """Leave the group cleanly."""
        assert self.process.stdin is not None
        if self.make == "java":
            self._order("leave", "m")
        else:
            self.process.stdin.close()
        self._end()

    def kill(self) -> None:
        """End the process at once."""
        self.process.send_signal(signal.SIGKILL)
        self.killed = time.time()
        self._end()

    def _end(self) -> None:
        self.process.wait(60)
        self._thread.join(30)


class Group:
    """A group, its topic, and all members that it ever had."""

    def __init__(self, cluster: LocalCluster, partitions: int) -> None:
        self.topic = f"mixed-{uuid.uuid4().hex[:8]}"
        self.count = partitions
        self._place = (cluster.bootstrap, self.topic, self.topic)
        self._bootstrap = cluster.bootstrap
        self.everyone: list[Member] = []
        cluster.create_topic(self.topic, partitions)

    def start(self, make: str, protocol: str) -> Member:
        """Start a member."""
        member = self.prepare(make, protocol)
        member.begin()
        return member

    def prepare(self, make: str, protocol: str) -> Member:
        """Start the process of a member, which does not join yet."""
        self.everyone.append(Member(len(self.everyone), make, protocol, self._place))
        return self.everyone[-1]

    def settle(self, members: Sequence[Member]) -> None:
        """Wait until each of the members has a share, and each partition has one owner."""

        def settled() -> bool:
            shares = [one.partitions for one in members]
            whole = len(frozenset[int]().union(*shares)) == sum(map(len, shares)) == self.count
            return whole and all(shares)

        try:
            wait_until(settled, SETTLED, "each partition has one owner")
        except Exception as error:
            for one in members:
                error.add_note(f"{one.make}, {one.protocol}: {sorted(one.partitions)} {one.failed}")
            raise

    def deliveries(self) -> list[Delivery]:
        """All deliveries in the order of time."""
        found = [one for member in self.everyone for one in tuple(member.deliveries)]
        return sorted(found, key=lambda one: one.at)


class Load:
    """Sends messages at a rate, to all partitions in rotation; a thread of its own."""

    def __init__(self, group: Group, bootstrap: str, rate: int) -> None:
        self.acked: dict[tuple[int, int], float] = {}
        """Partition and offset to the time at which the broker acknowledged it."""
        self._end = threading.Event()
        self._group, self._rate = group, rate
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _acked(self, error: object, message: Any) -> None:
        if error is None:
            self.acked[message.partition(), message.offset()] = time.time()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._end.wait(0.01):
            for _ in range(int((time.monotonic() - began) * self._rate) - sent):
                where = sent % self._group.count
                try:
                    self._producer.produce(
                        self._group.topic, b"x" * 100, partition=where, callback=self._acked
                    )
                except BufferError:  # the broker is slow: send more later
                    break
                sent += 1
            self._producer.poll(0)
        self._producer.flush(60)

    def stop(self) -> None:
        """Send no more, and wait for all acknowledgements."""
        self._end.set()
        self._thread.join(90)

    def longest_silence(self, until: float) -> float:
        """Longest time between two acknowledgements: the producer or the broker was slow then."""
        at = sorted(found for found in self.acked.values() if found <= until)
        return max((b - a for a, b in pairwise(at)), default=0.0)


@dataclass(slots=True)
class Verdict:
    """What the deliveries show. Times are seconds."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    repeated: int = 0
    unexplained: int = 0
    """Repeats of messages whose first deliverer was not killed, or long before it was."""
    oldest_repeat: float = 0.0
    """How long before the kill a repeated message was first delivered, at most."""
    two_owners: int = 0
    """Deliveries by one member after a live one had delivered a later message of the partition."""
    silence: float = 0.0
    silence_from: float = 0.0
    partition_silence: float = 0.0
    producer_silence: float = 0.0
    repeats_by: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether nothing was lost, repeated without a reason, or delivered by two members."""
        return not (self.lost or self.unexplained or self.two_owners)

    def __str__(self) -> str:
        by = ", ".join(f"{make} {count}" for make, count in sorted(self.repeats_by.items()))
        return (
            f"{self.sent} sent, lost {self.lost}, repeated {self.repeated}"
            f"{f' (of killed members: {by})' if by else ''}, at most {self.oldest_repeat:.2f} s "
            f"old, unexplained {self.unexplained}; two owners {self.two_owners}; longest silence "
            f"of the group {self.silence:.2f} s, of a partition {self.partition_silence:.2f} s, "
            f"of the producer {self.producer_silence:.2f} s"
        )


def judge(
    deliveries: Sequence[Delivery],
    acked: Iterable[tuple[int, int]],
    killed: Sequence[float],
    began: float,
    ended: float,
) -> Verdict:
    """Compare what was delivered with what was sent.

    ``deliveries`` are in the order of time. ``killed``: when each member was killed, or 0.
    Silences are counted from ``began`` to ``ended``, while messages were sent.
    """
    found, sent = Verdict(delivered=len(deliveries)), set(acked)
    first: dict[tuple[int, int], Delivery] = {}
    ahead: dict[int, dict[int, tuple[int, float]]] = {}
    for one in deliveries:
        key = one.partition, one.offset
        before = first.setdefault(key, one)
        if before is not one:
            found.repeated += 1
            end = killed[before.member]
            age = end - before.at
            if not end or one.at < end or age > COMMIT / 1e3 + SLACK:
                found.unexplained += 1
            else:
                found.oldest_repeat = max(found.oldest_repeat, age)
        others = ahead.setdefault(one.partition, {})
        for other, (offset, at) in others.items():
            alive = not killed[other] or one.at < killed[other]
            if other != one.member and alive and offset > one.offset and at < one.at:
                found.two_owners += 1
                break
        if others.get(one.member, (-1, 0.0))[0] < one.offset:
            others[one.member] = one.offset, one.at
    found.sent, found.lost = len(sent), len(sent - first.keys())
    times = [began, *(one.at for one in deliveries if began < one.at < ended), ended]
    gaps = [(b - a, a) for a, b in pairwise(times)]
    found.silence, found.silence_from = max(gaps, default=(0.0, 0.0))
    each: dict[int, list[float]] = {}
    for one in deliveries:
        if began < one.at < ended:
            each.setdefault(one.partition, []).append(one.at)
    gaps_each = (b - a for some in each.values() for a, b in pairwise(some))
    found.partition_silence = max(gaps_each, default=0.0)
    return found


class Run:
    """A group under load from the moment at which it has settled."""

    def __init__(self, cluster: LocalCluster, group: Group, rate: int) -> None:
        self._group = group
        self._load = Load(group, cluster.bootstrap, rate)
        wait_until(
            lambda: len({one.partition for one in group.deliveries()}) == group.count,
            SETTLED,
            "every partition is delivered",
        )
        self.began = time.time()

    def sent_between(self, began: float, ended: float, partitions: Container[int]) -> float:
        """Longest time in which one of the partitions received no message, in seconds."""
        at: dict[int, list[float]] = {}
        for (partition, _), when in sorted(self._load.acked.copy().items()):
            if partition in partitions and began < when < ended:
                at.setdefault(partition, []).append(when)
        return max((b - a for some in at.values() for a, b in pairwise(some)), default=0.0)

    def finish(self, members: Sequence[Member]) -> Verdict:
        """Stop sending, wait until all is delivered, stop the members, and judge."""
        ended, group = time.time(), self._group
        self._load.stop()
        acked = self._load.acked
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if {(one.partition, one.offset) for one in group.deliveries()} >= acked.keys():
                break
            time.sleep(0.5)
        for member in members:
            member.leave()
        killed = [one.killed for one in group.everyone]
        deliveries = group.deliveries()
        found = judge(deliveries, acked, killed, self.began, ended)
        found.producer_silence = self._load.longest_silence(ended)
        keys: set[tuple[int, int]] = set()
        makers: dict[tuple[int, int], int] = {}
        for one in deliveries:
            key = one.partition, one.offset
            if key in keys:
                found.repeats_by[group.everyone[makers[key]].make] += 1
            keys.add(key)
            makers.setdefault(key, one.member)
        return found


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# -- the parts


def kills(cluster: LocalCluster, options: argparse.Namespace) -> bool:
    """Six members under load; one is killed and replaced every few seconds."""
    chance, group = random.Random(options.seed), Group(cluster, 24)
    protocols = ("consumer", "classic") if options.both else ("consumer", "consumer")
    kinds = [(make, protocol) for protocol in protocols for make in MAKES]
    members = [group.start(*kind) for kind in kinds]
    group.settle(members)
    run = Run(cluster, group, options.rate)
    count: Counter[str] = Counter()
    order: list[int] = []
    while time.time() < run.began + options.seconds:
        order = order or chance.sample(range(len(members)), len(members))
        place = order.pop()
        gone = members[place]
        gone.kill()
        count[gone.make] += 1
        time.sleep(chance.uniform(0, 2))
        members[place] = group.start(*kinds[place])
        group.settle(members)
        time.sleep(chance.uniform(0, 3))
    found = run.finish(members)
    what = ", ".join(f"{make} {number}" for make, number in sorted(count.items()))
    groups = "consumer and classic" if options.both else "consumer"
    say(f"kills, {groups}, {options.seconds:.0f} s, killed: {what}; {found}; seed {options.seed}")
    return found.good


def roll(cluster: LocalCluster, options: argparse.Namespace) -> bool:
    """Six members restart one at a time, from classic to consumer and back."""
    group = Group(cluster, 24)
    makes = MAKES * 2
    members = [group.start(make, "classic") for make in makes]
    group.settle(members)
    run = Run(cluster, group, options.rate)
    steps: list[tuple[float, str]] = []
    for protocol in ("consumer", "classic"):
        for place, make in enumerate(makes):
            if protocol == "classic" and place == len(makes) - 1:
                classic = [one for one in members[:-1] if one.make != "librdkafka"]
                wait_until(
                    lambda classic=classic: len({one.generation for one in classic}) == 1,  # type: ignore[misc]
                    SETTLED,
                    "the classic members have caught up",
                )
                time.sleep(2 * HEARTBEAT / 1e3)  # librdkafka does not report its generation
            steps.append((time.time(), f"{make} leaves"))
            members[place].leave()
            steps.append((time.time(), f"{make} {protocol} starts"))
            members[place] = group.start(make, protocol)
            group.settle(members)
            steps.append((time.time(), "settled"))
    found = run.finish(members)
    say(f"roll of 6, classic to consumer and back, {options.rate} messages a second: {found}")
    near = [(at, what) for at, what in steps if at <= found.silence_from + found.silence]
    after = ", ".join(f"{what} {found.silence_from - at:+.2f} s" for at, what in near[-4:])
    say(f"the longest silence began, counted from: {after}")
    if options.steps:
        at = [one.at for one in group.deliveries() if run.began < one.at]
        longest = sorted(((b - a, a) for a, b in pairwise(at)), reverse=True)[:8]
        for gap, begin in longest:
            last = [what for when, what in steps if when <= begin + gap][-3:]
            say(f"  {gap:.2f} s at {begin - run.began:.2f} s: {' / '.join(last)}")
    return found.good and not found.repeated


def wide(cluster: LocalCluster, options: argparse.Namespace) -> bool:
    """1,000 partitions: one joins, one is killed; ours and Java's in rotation."""
    found: dict[str, list[dict[str, float]]] = {"ours": [], "java": []}
    for turn in range(options.rounds):
        for make in found if turn % 2 else reversed(found):
            found[make].append(wide_round(cluster, make, options.rate))
            say(json.dumps({"make": make, **found[make][-1]}))
    for make, rounds in found.items():
        middle = {name: median(one[name] for one in rounds) for name in rounds[0]}
        say(f"wide, {make}: " + ", ".join(f"{name} {value:.2f}" for name, value in middle.items()))
    return True


def wide_round(cluster: LocalCluster, make: str, rate: int) -> dict[str, float]:
    """One group of two members: a third joins, then the second is killed. Seconds."""
    group = Group(cluster, 1000)
    members = [group.start(make, "consumer") for _ in range(2)]
    group.settle(members)
    run = Run(cluster, group, rate)
    time.sleep(2)

    def change(name: str, event: Callable[[], None]) -> dict[str, float]:
        before = {n: one.number for one in members for n in one.partitions}
        began = time.time()
        event()
        group.settle(members)
        settled = max(one.changed for one in members)
        time.sleep(2)
        stays = {n for one in members for n in one.partitions if before.get(n) == one.number}
        at: dict[int, list[float]] = {}
        for one in group.deliveries():
            if began - 1 < one.at < settled + 1 and one.partition in stays:
                at.setdefault(one.partition, []).append(one.at)
        gaps = [b - a for some in at.values() for a, b in pairwise(some)]
        sent = run.sent_between(began - 1, settled + 1, stays)
        return {
            name: settled - began,
            f"{name}, pause of those that stay": max(gaps, default=0.0),
            f"{name}, pause of the producer": sent,
        }

    def kill() -> None:
        members.pop(1).kill()

    third = group.prepare(make, "consumer")
    third.ready.wait(SETTLED)
    members.append(third)
    figures = change("join", third.begin)
    figures |= change("kill", kill)
    verdict = run.finish(members)
    figures["lost"], figures["unexplained"] = verdict.lost, verdict.unexplained
    return figures


PARTS: Final = {"kills": kills, "roll": roll, "wide": wide}


def main(arguments: Sequence[str]) -> int:
    """Run a part, or be a member."""
    if arguments[:1] == ["member"]:
        _, make, *place, protocol = arguments
        report("ready")
        sys.stdin.readline()  # the order to join
        (our_member if make == "ours" else librdkafka_member)(*place, protocol)
        return 0
    parser = argparse.ArgumentParser(prog="mixed_groups", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=240.0, help="of kills")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--rounds", type=int, default=3, help="of wide")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--both", action="store_true", help="kills: half of the members classic")
    parser.add_argument("--steps", action="store_true", help="roll: print the longest silences")
    parser.add_argument("--interval", type=int, default=1000, help="assignment interval, ms")
    options = parser.parse_args(arguments)
    compile_java()
    broker = {
        "group.consumer.min.session.timeout.ms": str(SESSION),
        "group.consumer.session.timeout.ms": str(SESSION),
        "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT),
        "group.consumer.heartbeat.interval.ms": str(HEARTBEAT),
        "group.consumer.assignment.interval.ms": str(options.interval),
    }
    with LocalCluster("4", properties=broker) as cluster:
        return 0 if PARTS[options.part](cluster, options) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
