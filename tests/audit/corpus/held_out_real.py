"""Held-out incidents with real members, real tools and real messages.

The members are those of the original consumer (two releases) and of this library. They run on one
cluster, each group with its own topic, and the cluster's ZooKeeper log is the recording. The author
had not read the rules, and labelled the incidents from the pages and the recorded transactions,
before the first audit.

``python -m tests.audit.corpus.held_out_real`` records them again. Members race with each other, so
read the transactions of a new recording before you trust the labels: see the comments on those that
depend on timing.
"""

# ruff: noqa: D103 - the name and the steps say what happens

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import cast

from kafka import KafkaConsumer
from kazoo.client import KazooClient

from tests.audit.corpus.incidents import Corpus, Incident, Play, wait
from tests.audit.corpus.play import CUT, RECORDED, store
from tests.support.groups import Delivery, GroupWatch, Producer, Reader
from tests.support.legacy_jvm import JvmMember, JvmMembers
from tests.support.tcp_proxy import TcpProxy
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.servers import LocalCluster, expire_session, wait_until

LIMITS = {
    "unowned_seconds": 10.0,
    "storm_seconds": 30.0,
    "flapping_seconds": 60.0,
    "stalled_seconds": 15.0,
    "herd_members": 20,
}
HELD_OUT_REAL = Corpus("held_out_real", LIMITS)
LINE = "1.1"
AT_A_TIME = 4
"""How many incidents are played at the same time."""
COMMIT_MS = 700
PATIENCE = 90.0

Act = Callable[["Group"], None]


def incident(*must: str, may: tuple[str, ...] = (), partitions: int = 2) -> Callable[[Act], Act]:
    """Register an incident. It is played in one go, and has labels for the whole log only."""

    def add(act: Act) -> Act:
        name = act.__name__
        HELD_OUT_REAL.incidents[name] = Incident(
            name, cast(Play, act), must, (), may, partitions=partitions
        )
        return act

    return add


class Group:
    """A group and its topic. ``stack`` ends when the incident has been played, and ``kept`` when
    the log has been copied."""

    def __init__(self, lab: Lab, name: str, partitions: int) -> None:
        self.lab, self.name, self.topic = lab, name, f"t-{name}"
        self.partitions = partitions
        self.stack = ExitStack()
        lab.cluster.create_topic(self.topic, partitions)
        self.watch = self.stack.enter_context(GroupWatch(lab.cluster.zookeeper, name))

    # Members.

    def config(self, name: str, timeout: int) -> dict[str, object]:
        return {
            "zookeeper.connect": self.lab.cluster.zookeeper,
            "group.id": self.name,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": timeout,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": COMMIT_MS,
            "rebalance.backoff.ms": 500,
            "rebalance.max.retries": 40,
        }

    def ours(
        self,
        name: str,
        timeout: int = 15_000,
        handle: Callable[[Delivery], object] | None = None,
        zookeeper: str | None = None,
    ) -> ZookeeperConsumerConnector:
        config = self.config(name, timeout)
        if zookeeper is not None:
            config["zookeeper.connect"] = zookeeper
        member = ZookeeperConsumerConnector(config)
        Reader(member.create_message_streams({self.topic: 1})[self.topic], handle)
        return member

    def theirs(self, name: str, jvm: JvmMembers | None = None, timeout: int = 15_000) -> JvmMember:
        config = self.config(name, timeout)
        member = JvmMember(jvm or self.lab.jvm, config, topics={self.topic: 1})
        member.wait_joined(PATIENCE)
        return member

    def settled(self, members: int) -> None:
        """Wait until this many members are registered and own all partitions."""

        def right(owners: dict[int, str]) -> bool:
            names = {text.rpartition("-")[0] for text in owners.values()}
            whole = len(owners) == self.partitions
            return whole and len(names) == members == len(self.watch.members())

        self.watch.wait_owners(self.topic, right, PATIENCE, f"{members} members own {self.topic}")

    # Messages and offsets.

    @contextmanager
    def traffic(self, interval: float = 0.05) -> Iterator[Producer]:
        numbers = list(range(self.partitions))
        with Producer(self.lab.cluster.bootstrap, self.topic, numbers, interval) as producer:
            yield producer
            producer.stop()

    def fill(self, total: int) -> None:
        """Send messages until each partition's log ends at ``total``."""
        for partition in range(self.partitions):
            with Producer(self.lab.cluster.bootstrap, self.topic, [partition]) as producer:
                producer.send(1)
                ((_, last),) = producer.acked
                assert last < total, (last, total)
                producer.send(total - last - 1)

    def read_to(self, *offsets: int) -> None:
        """Wait until these offsets are stored: one for each partition, or one for all."""
        wanted = offsets if len(offsets) > 1 else offsets * self.partitions
        wait_until(
            lambda: self.watch.offsets(self.topic) == dict(enumerate(wanted)),
            PATIENCE,
            f"{self.topic} is read up to {wanted}",
        )

    def moved(self) -> None:
        """Wait until every partition's stored offset has grown."""
        begin = self.watch.offsets(self.topic)

        def grown() -> bool:
            now = self.watch.offsets(self.topic)
            return len(now) == self.partitions and all(now[p] > begin.get(p, 0) for p in now)

        wait_until(grown, PATIENCE, f"all offsets of {self.topic} have grown")

    # Tools.

    def offset(self, partition: int) -> str:
        return f"/consumers/{self.name}/offsets/{self.topic}/{partition}"

    def owner(self, partition: int) -> str:
        return f"/consumers/{self.name}/owners/{self.topic}/{partition}"

    def set_offsets(self, offsets: dict[int, int]) -> None:
        """Write offsets as an operator's script does, in one session."""
        with client(self.lab.cluster.zookeeper) as script:
            for partition, offset in offsets.items():
                script.set(self.offset(partition), str(offset).encode())

    def command(self, module: str, *words: str) -> None:
        """Run a command of this project in its own process."""
        where = ("--zookeeper", self.lab.cluster.zookeeper)
        argv = [sys.executable, "-m", module, *words, *where]
        subprocess.run(argv, check=True, timeout=120, stdout=subprocess.DEVNULL)

    def file(self, name: str) -> str:
        return str(self.lab.folder / f"{self.name}-{name}")

    def migrate(self, number: int, *options: str, apply: tuple[str, ...] = ()) -> None:
        """Move the offsets of the stopped group with ``zkmigrate``."""
        plan = self.file(f"plan{number}")
        self.command("zkmigrate", "plan", "--group", self.name, "--out", plan, *options)
        self.command("zkmigrate", "apply", plan, "--execute", *apply)


@contextmanager
def client(zookeeper: str) -> Iterator[KazooClient]:
    """A session that is not a member's."""
    session = KazooClient(zookeeper, timeout=20)
    session.start(timeout=30)
    try:
        yield session
    finally:
        session.stop()
        session.close()


class Lab:
    """The cluster, and the JVM in which most original members run."""

    def __init__(self, cluster: LocalCluster, folder: Path, jvm: JvmMembers) -> None:
        self.cluster, self.folder, self.jvm = cluster, folder, jvm
        self.kept = ExitStack()
        self.lock = threading.Lock()

    def keep(self, *ends: Callable[[], object]) -> None:
        """Let members run until the log has been copied."""
        with self.lock:
            for end in ends:
                self.kept.callback(end)

    def play(self, which: Incident) -> None:
        begin = time.monotonic()
        group = Group(self, which.name, which.partitions)
        with group.stack:
            cast(Act, which.play)(group)
        sys.stdout.write(f"{which.name}: {time.monotonic() - begin:.0f} s\n")
        sys.stdout.flush()


def record(out: Path) -> None:
    """Play all incidents and write ``out/log.1.gz``. An exception of an incident is raised."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        cluster = stack.enter_context(LocalCluster(LINE, dir=folder / "cluster"))
        jvm = stack.enter_context(JvmMembers())
        lab = Lab(cluster, folder, jvm)
        stack.enter_context(lab.kept)
        with client(cluster.zookeeper) as marks, ThreadPoolExecutor(AT_A_TIME) as pool:
            marks.create(CUT)
            playing = [pool.submit(lab.play, one) for one in HELD_OUT_REAL.incidents.values()]
            for done in playing:
                done.result()
            wait(2)
            marks.create("/end")
            (log,) = (folder / "cluster" / "data" / "zookeeper").rglob("log.*")
            copy = folder / log.name
            shutil.copy(log, copy)
        store(HELD_OUT_REAL, copy, out)


# The longest incidents come first, so that the recording is short.


class Blocked:
    """An application whose thread can be blocked while it handles a message."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()

    def __call__(self, message: Delivery) -> None:
        self.free.wait(PATIENCE)


@incident("stalled owner", "lost messages/lost/200")
def blocked_thread_and_later_a_raised_offset(g: Group) -> None:
    """Member anna has partition 0. Later, a script sets the wrong offset: of one partition only."""
    thread = Blocked()
    anna, jane = g.ours("anna", handle=thread), g.theirs("jane")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(10)
        thread.free.clear()
        wait(24)
        thread.free.set()
        g.moved()
    g.fill(700)
    g.read_to(700)
    anna.shutdown()
    jane.leave()
    g.fill(1000)
    g.set_offsets({1: 900})
    jane = g.theirs("jane")
    g.read_to(1000)
    jane.leave()


@incident("flapping member")
def bad_link_expires_a_member_three_times(g: Group) -> None:
    with TcpProxy(int(g.lab.cluster.zookeeper.rpartition(":")[2])) as link, g.traffic():
        jane = g.theirs("jane")
        anna = g.ours("anna", 4000, zookeeper=link.address)
        g.settled(2)
        g.moved()
        for _ in range(3):
            wait(7)
            link.stall()
            g.settled(1)
            g.moved()
            link.cut()
            link.resume()
            g.settled(2)
            g.moved()
        anna.shutdown()
        g.settled(1)
        jane.leave()


@incident("rebalance storm", partitions=3)
def restarted_every_two_seconds(g: Group) -> None:
    jane = g.theirs("jane")
    with g.traffic():
        g.settled(1)
        g.moved()
        for _ in range(22):
            begin = time.monotonic()
            anna = g.ours("anna")
            wait(max(1.6, 2 - (time.monotonic() - begin)))
            anna.shutdown()
        anna = g.ours("anna")
        g.settled(2)
        g.moved()
    anna.shutdown()
    g.settled(1)
    jane.leave()


@incident()
def imported_offsets_then_an_idle_topic(g: Group) -> None:
    """The group is new, and has offsets from elsewhere. No messages arrive for 22 seconds."""
    g.fill(300)
    offsets = Path(g.file("offsets"))
    offsets.write_text("".join(f"{g.offset(partition)}:{100}\n" for partition in range(2)))
    g.command("zkconsumer", "offsets", "import", str(offsets), "--execute")
    jane, anna = g.theirs("jane"), g.ours("anna")
    g.settled(2)
    g.read_to(300)
    with g.traffic():
        g.moved()
        wait(8)
    wait(22)
    with g.traffic():
        g.moved()
        wait(3)
    anna.shutdown()
    g.settled(1)
    jane.leave()


@incident(partitions=4)
def rolling_restart_of_both_kinds(g: Group) -> None:
    with g.traffic():
        jane, anna = g.theirs("jane"), g.ours("anna")
        g.settled(2)
        g.moved()
        wait(8)
        jane.leave()
        g.settled(1)
        wait(8)
        jane = g.theirs("jane")
        g.settled(2)
        wait(8)
        anna.shutdown()
        g.settled(1)
        wait(8)
        anna = g.ours("anna")
        g.settled(2)
        g.moved()
        wait(8)
    anna.shutdown()
    g.settled(1)
    jane.leave()


# Depends on timing. The original consumer registers again, and carries out a commit of before the
# pause. The owner commits again before it releases the partition.
@incident("zombie commit/repaired")
def paused_beyond_its_timeout(g: Group) -> None:
    """SIGSTOP for a JVM. The other JVM takes over, then the first one continues."""
    with g.traffic(), JvmMembers(LINE) as other:
        jane, stopped = g.theirs("jane"), g.theirs("stopped", other, 4000)
        g.settled(2)
        g.moved()
        wait(3)
        os.kill(other._process.pid, signal.SIGSTOP)
        g.settled(1)
        g.moved()
        wait(2)
        os.kill(other._process.pid, signal.SIGCONT)
        g.settled(2)
        g.moved()
        wait(2)
        stopped.leave()
        g.settled(1)
        g.moved()
        jane.leave()


@incident()
def moved_to_kafka_and_back(g: Group) -> None:
    """In between, a plain consumer of the same group reads on."""
    jane, anna = g.theirs("jane"), g.ours("anna")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(3)
    anna.shutdown()
    jane.leave()
    g.migrate(1)
    g.fill(400)
    with closing(
        KafkaConsumer(
            g.topic,
            bootstrap_servers=g.lab.cluster.bootstrap,
            group_id=g.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
    ) as plain:

        def done() -> bool:
            plain.poll(500)
            return {plain.position(place) for place in plain.assignment()} == {400}

        wait_until(done, PATIENCE, "the plain consumer has read everything")
        plain.commit()
    g.migrate(2, "--direction", "kafka-to-zk")
    g.fill(500)
    jane, anna = g.theirs("jane"), g.ours("anna")
    g.settled(2)
    g.read_to(500)
    anna.shutdown()
    g.settled(1)
    jane.leave()


# One for each partition: a member's writes in a row are one finding.
@incident("commit past the end of a move", "commit past the end of a move")
def started_again_after_the_move(g: Group) -> None:
    """Nobody has locked the group, and a machine that restarts starts its old member."""
    jane = g.theirs("jane")
    with g.traffic():
        g.settled(1)
        g.moved()
        wait(4)
    jane.leave()
    g.migrate(1, apply=("--no-lock",))
    with g.traffic():
        jane = g.theirs("jane")
        g.settled(1)
        g.moved()
        wait(4)
    jane.leave()


@incident("offset regression/repeated/150", "offset regression/repeated/150")
def restored_from_an_export(g: Group) -> None:
    saved = g.file("saved")
    jane, anna = g.theirs("jane"), g.ours("anna")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(4)
    g.fill(200)
    g.read_to(200)
    g.command("zkconsumer", "offsets", "export", "--group", g.name, "--out", saved)
    with g.traffic():
        g.moved()
        wait(4)
    g.fill(350)
    g.read_to(350)
    jane.leave()
    anna.shutdown()
    g.command("zkconsumer", "offsets", "import", saved, "--execute")
    jane, anna = g.theirs("jane"), g.ours("anna")
    g.fill(500)
    g.read_to(500)
    jane.leave()
    g.settled(1)
    anna.shutdown()


@incident("lost messages/lost/250", "lost messages/lost/250")
def backlog_skipped_by_a_script(g: Group) -> None:
    jane = g.theirs("jane")
    with g.traffic():
        g.settled(1)
        g.moved()
        wait(4)
    g.fill(150)
    g.read_to(150)
    jane.leave()
    g.fill(450)
    g.set_offsets({0: 400, 1: 400})
    jane, anna = g.theirs("jane"), g.ours("anna")
    g.settled(2)
    g.fill(500)
    g.read_to(500)
    anna.shutdown()
    g.settled(1)
    jane.leave()


# No number: the log does not show how far anna had read.
@incident("lost messages/lost")
def raised_under_a_slow_member_of_ours(g: Group) -> None:
    """Our member lets the larger offset stand, and stops before it has read that far."""
    g.fill(1500)
    anna = g.ours("anna", handle=lambda _: wait(0.02))
    g.settled(1)
    first = wait_until(
        lambda: [p for p, offset in g.watch.offsets(g.topic).items() if offset >= 100],
        PATIENCE,
        "anna has read 100 messages",
    )[0]
    g.set_offsets({first: 1400})
    wait(4)
    anna.shutdown()
    jane = g.theirs("jane")
    g.settled(1)
    g.read_to(1500)
    jane.leave()


@incident("offset of a deleted topic/lost/120", "offset of a deleted topic/lost/120")
def recreated_between_two_runs(g: Group) -> None:
    jane = g.theirs("jane")
    with g.traffic():
        g.settled(1)
        g.moved()
        wait(4)
    g.fill(120)
    g.read_to(120)
    jane.leave()
    g.lab.cluster.delete_topic(g.topic)
    g.lab.cluster.create_topic(g.topic, g.partitions)
    g.fill(300)
    jane, anna = g.theirs("jane"), g.ours("anna")
    g.settled(2)
    g.read_to(300)
    anna.shutdown()
    g.settled(1)
    jane.leave()


# Depends on timing. A script deletes the owner znode of jane, who commits on: orphan commits. When
# anna joins, she claims the free partition at once. Then jane rebalances: she commits the partition
# that anna owns, and deletes its owner znode. In other recordings jane was a little faster, or anna
# did not notice for half a minute.
@incident("foreign release", "orphan commit", "zombie commit", "foreign release", partitions=3)
def owner_deleted_by_a_script(g: Group) -> None:
    """The original consumer does not notice."""
    jane, john = g.theirs("jane"), g.theirs("john")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(4)
        with client(g.lab.cluster.zookeeper) as script:
            script.delete(g.owner(0))
        wait(4)
        anna = g.ours("anna")
        g.settled(3)
        g.moved()
        wait(4)
    anna.shutdown()
    g.settled(2)
    jane.leave()
    john.leave()


@incident()
def deleted_topic_with_running_members(g: Group) -> None:
    jane, anna = g.theirs("jane"), g.ours("anna")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(4)
    g.lab.cluster.delete_topic(g.topic)
    wait(13)
    anna.shutdown()
    wait(2)
    jane.leave()


@incident(partitions=4)
def killed_and_taken_over(g: Group) -> None:
    """SIGKILL for a JVM. Its replacement has another id."""
    with g.traffic() as messages:
        anna = g.ours("anna")
        with JvmMembers(LINE) as other:
            g.theirs("victim", other, 6000)
            g.settled(2)
            g.moved()
            wait(4)
            other.kill()
        g.settled(1)
        g.moved()
        wait(4)
        jane = g.theirs("jane")
        g.settled(2)
        g.moved()
        wait(4)
        messages.stop()
    g.lab.keep(anna.shutdown, jane.shutdown)


@incident()
def session_of_ours_expires(g: Group) -> None:
    jane, anna = g.theirs("jane"), g.ours("anna")
    with g.traffic():
        g.settled(2)
        g.moved()
        wait(4)
        expire_session(g.lab.cluster.zookeeper, *anna._zk._client.client_id)
        wait(2)
        g.settled(2)
        g.moved()
        wait(4)
    anna.shutdown()
    g.settled(1)
    jane.leave()


@incident("tool write/repaired", "tool write/repaired")
def reset_while_it_runs(g: Group) -> None:
    """The original consumer overwrites both offsets with its next commit."""
    jane = g.theirs("jane")
    with g.traffic():
        g.settled(1)
        g.moved()
        wait(4)
        g.set_offsets({0: 3, 1: 100_000})
        wait(3)
        g.moved()
        wait(4)
    g.lab.keep(jane.shutdown)


@incident(partitions=3)
def scale_out_then_more_partitions(g: Group) -> None:
    """Members of three kinds. All run until the end."""
    oldest = JvmMembers("0.8.2")
    g.lab.keep(oldest.kill)
    with g.traffic() as messages:
        jane = g.theirs("jane")
        g.settled(1)
        g.moved()
        wait(4)
        anna = g.ours("anna")
        g.settled(2)
        g.moved()
        wait(4)
        otto = g.theirs("otto", oldest)
        g.settled(3)
        g.moved()
        wait(4)
        g.lab.cluster.add_partitions(g.topic, 6)
        g.partitions = 6
        messages.set_partitions(range(6))
        g.settled(3)
        g.moved()
        wait(4)
    g.lab.keep(jane.shutdown, anna.shutdown, otto.shutdown)


if __name__ == "__main__":
    record(RECORDED / HELD_OUT_REAL.name)
