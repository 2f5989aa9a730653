"""One membership change in a group of many real members on a real ZooKeeper, and its cost.

Used from one thread. Members live in processes (``herd_members``) that write journals. The figures
are computed from those, and compared with the server's own counters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    GroupPaths,
    broker_path,
    topic_path,
)
from zkconsumer.errors import ClusterError
from zkconsumer.herd.measures import Measures, measure
from zkconsumer.herd.parameters import (
    BOUNCE_SECONDS,
    GROUP,
    RESTART_SECONDS,
    HerdGroup,
    broker_content,
    member_name,
)
from zkconsumer.herd.tally import Tally
from zkconsumer.journal.json_lines import JournalWriter, read_journal
from zkconsumer.journal.recorder import Entry, event_entry, run_entry
from zkconsumer.servers.herd.members import HerdSettings
from zkconsumer.servers.legacy_jvm import JvmHerd
from zkconsumer.servers.servers import four_letters
from zkconsumer.servers.waiting import wait_until

CHROOT = "/herd"
_START_SECONDS = 180.0
_SETTLE_SECONDS = 300.0
_QUIET_SECONDS = 1.0
#: Requests of a member that starts, without those of its scripts: session, chroot, multi-read.
_START_REQUESTS = 3


@dataclass(frozen=True, slots=True)
class RealHerd(HerdGroup):
    """The parameters of a run on a local server's ``port``. Times are in seconds.

    The members run in ``processes`` processes, except the member that a crash kills, which has its
    own process. ``restart`` is the time until a stopped member starts again, and then until the
    next one is stopped; ``bounce`` is how long a broker is down.
    """

    port: int = field(kw_only=True)
    processes: int = 2
    restart: float = RESTART_SECONDS
    bounce: float = BOUNCE_SECONDS


class Pack:
    """A process that runs some of the group's members."""

    def __init__(self, settings: HerdSettings, journal: Path) -> None:
        self.journal = journal
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "zkconsumer.servers.herd.members",
                settings.as_json(),
                str(journal),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def tell(self, **order: Any) -> None:
        """Send a request without waiting for the answer. Raises ClusterError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ClusterError("members of the herd: a process has ended") from None

    def answer(self) -> dict[str, Any]:
        """Return the next answer. Raises ClusterError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "a process has ended"}
        if "error" in answer:
            raise ClusterError(f"members of the herd: {answer['error']}")
        return answer

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        self.tell(**order)
        return self.answer()

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):  # a request that did not get there
                if pipe is not None:
                    pipe.close()


def server_counters(port: int) -> dict[str, int]:
    """Return the server's counters (``mntr``), by their names without ``zk_``."""
    counters = {}
    for line in four_letters(port, "mntr").splitlines():
        name, _, value = line.partition("\t")
        if value.strip().lstrip("-").isdigit():
            counters[name.removeprefix("zk_")] = int(value)
    return counters


class HerdRun:
    """One run. No other client may use the server during the run."""

    def __init__(self, herd: RealHerd, directory: Path, jvm: JvmHerd | None = None) -> None:
        self.herd = herd
        self._jvm = jvm
        self._directory = directory
        self._paths = GroupPaths(GROUP)
        self._settings = HerdSettings(f"127.0.0.1:{herd.port}", CHROOT, herd)
        self._packs: list[Pack] = []
        self._home: dict[str, Pack] = {}
        self._events: list[Entry] = []
        self._topics = herd.topic_names()
        self._own_requests = 0

    def perform(self, progress: Callable[[str], object] = lambda text: None) -> Measures:
        """Start the members, wait until they settle, trigger the event, and measure. Raises
        ClusterError."""
        herd = self.herd
        with self._client() as client, ExitStack() as stack:
            self._prepare(client)
            for number in range(herd.processes):
                self._packs.append(self._pack(stack, f"pack-{number}"))
            victim = herd.members // 2
            if herd.event == "crash":
                self._packs.append(self._pack(stack, "victim"))
            progress(f"starting {herd.members} members")
            for number in range(herd.members):
                crashes = herd.event == "crash" and number == victim
                pack = self._packs[-1 if crashes else number % herd.processes]
                self._home[member_name(number)] = pack
            self._start(list(self._home))
            if self._jvm is not None:
                progress(f"starting {self._jvm.count} members of the original consumer")
                stack.callback(self._jvm.close)
                address = f"127.0.0.1:{herd.port}{CHROOT}"
                self._jvm.start(address, GROUP, herd.topic_names())
            self._settle(client, progress)
            jvm_attempts = self._jvm.attempts() if self._jvm is not None else 0
            for pack in self._packs:
                pack.ask(flush=True)  # of a killed member only that is left
            idle = self._idle_rate()
            self._own_requests = 0
            before = server_counters(herd.port)
            start_us = time.time_ns() // 1000
            progress(herd.event)
            self._trigger(client, victim)
            self._settle(client, progress, quiet=True)
            after = server_counters(herd.port)
            end_us = time.time_ns() // 1000
            for pack in self._packs:
                if pack.process.poll() is None:
                    pack.ask(flush=True)
            notes: list[str] = []
            theirs: set[TopicPartition] = set()
            if self._jvm is not None:
                made = self._jvm.attempts() - jvm_attempts
                theirs = self._owned_by_others(client)
                notes.append(
                    f"{self._jvm.count} JVM members made {made} attempts and own {len(theirs)} "
                    "partitions, which are not counted in the figures on ownership"
                )
            return self._measures(start_us, end_us, before, after, idle, theirs, notes)

    # -- the course

    @contextmanager
    def _client(self) -> Iterator[KazooClient]:
        client = KazooClient(f"127.0.0.1:{self.herd.port}", timeout=30.0)
        client.start(timeout=15.0)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def _pack(self, stack: ExitStack, name: str) -> Pack:
        pack = Pack(self._settings, self._directory / f"{name}.jsonl")
        stack.callback(pack.kill)
        return pack

    def _prepare(self, client: KazooClient) -> None:
        if client.exists(CHROOT):
            client.delete(CHROOT, recursive=True)
        for path in (BROKER_IDS, BROKER_TOPICS, self._paths.ids):
            client.ensure_path(CHROOT + path)
        for broker in range(self.herd.brokers):
            self._add_broker(client, broker)
        for topic in self._topics:
            self._add_topic(client, topic)

    def _add_broker(self, client: KazooClient, broker: int) -> None:
        self._own_requests += 1
        client.create(CHROOT + broker_path(broker), broker_content(broker))

    def _add_topic(self, client: KazooClient, topic: str) -> None:
        numbers = range(self.herd.partitions)
        for parent in (self._paths.owners_topic(topic), self._paths.offsets_topic(topic)):
            client.ensure_path(CHROOT + parent)
        waiting = [
            client.create_async(CHROOT + self._paths.offset(TopicPartition(topic, n)), b"0")
            for n in numbers
        ]
        for answer in waiting:
            answer.get(timeout=30.0)
        self._own_requests += len(waiting) + 7
        client.create(CHROOT + topic_path(topic), self.herd.topic_content())

    def _start(self, names: Sequence[str]) -> None:
        by_pack: dict[Pack, list[str]] = {}
        for name in names:
            by_pack.setdefault(self._home[name], []).append(name)
        self._own_requests += _START_REQUESTS * len(names)
        for pack, some in by_pack.items():
            pack.tell(start=some)
        for pack in by_pack:
            pack.answer()

    def _stop(self, name: str) -> None:
        self._own_requests += 1
        self._home[name].ask(stop=[name])

    def _status(self) -> dict[str, int]:
        live = [pack for pack in self._packs if pack.process.poll() is None]
        answers = [pack.ask(status=True) for pack in live]
        return {key: sum(answer[key] for answer in answers) for key in answers[0]}

    def _settle(
        self, client: KazooClient, progress: Callable[[str], object], quiet: bool = False
    ) -> None:
        """Wait until all members are idle, and all partitions are held or some member has given
        up."""
        wanted = self.herd.partitions * len(self._topics)
        owners = [CHROOT + self._paths.owners_topic(topic) for topic in self._topics]
        since: float | None = None

        def settled() -> bool:
            nonlocal since
            status = self._status()
            progress(f"{status['resting']}/{status['members']} rest, {status['held']} held")
            rests = status["resting"] == status["members"]
            held = status["held"]
            if rests and self._jvm is not None:  # the others tell nothing: look at the znodes
                self._own_requests += len(owners)
                held = sum(len(client.get_children(path)) for path in owners)
            if not rests or (held != wanted and not status["failed"]):
                since = None
            elif since is None:
                since = time.monotonic()
            return since is not None and time.monotonic() - since > _QUIET_SECONDS

        wait_until(settled, _SETTLE_SECONDS, "the group has settled")
        if not quiet and self._status()["failed"]:
            self._revive(client, progress)

    def _revive(self, client: KazooClient, progress: Callable[[str], object]) -> None:
        """Make members of the scala profile that gave up at the start try again at the next
        change."""
        for _ in range(10):
            path = f"{CHROOT}{self._paths.ids}/nudge"
            client.create(path, b"")
            client.delete(path)
            self._settle(client, progress, quiet=True)
            if not self._status()["failed"]:
                return
        raise ClusterError("the group did not settle before the event: some members gave up")

    def _note(self, name: str, member: str = "") -> None:
        self._events.append(event_entry(time.time_ns() // 1000, name, member))

    def _trigger(self, client: KazooClient, victim: int) -> None:
        herd = self.herd
        match herd.event:
            case "join":
                name = member_name(herd.members)
                self._home[name] = self._packs[0]
                self._note("join", name)
                self._start([name])
            case "leave":
                self._note("leave", member_name(victim))
                self._stop(member_name(victim))
            case "crash":
                self._note("crash", member_name(victim))
                self._packs[-1].kill()
                ids = CHROOT + self._paths.ids

                def ended() -> bool:
                    self._own_requests += 1
                    return len(client.get_children(ids)) < herd.members

                wait_until(
                    ended, herd.session_timeout * 3, "the session of the killed member has ended"
                )
            case "rolling-restart":
                self._note("rolling-restart")
                for number in range(herd.members):
                    pack = self._home[member_name(number)]
                    self._stop(member_name(number))
                    time.sleep(herd.restart)
                    again = member_name(number, 1)
                    self._home[again] = pack
                    self._start([again])
                    time.sleep(herd.restart)
            case "broker-bounce":
                self._note("broker-bounce")
                client.delete(CHROOT + broker_path(0))
                time.sleep(herd.bounce)
                self._add_broker(client, 0)
            case "topic-create":
                self._note("topic-create")
                self._topics.append("t-new")
                self._add_topic(client, "t-new")

    # -- looking

    def _owned_by_others(self, client: KazooClient) -> set[TopicPartition]:
        """Return the number of partitions of members without a journal."""
        partitions = set()
        for topic in self._topics:
            for number in range(self.herd.partitions):
                tp = TopicPartition(topic, number)
                owner = client.get(CHROOT + self._paths.owner(tp))[0].decode()
                if owner.rpartition("-")[0] not in self._home:
                    partitions.add(tp)
        return partitions

    def _idle_rate(self) -> float:
        """Return the packets per second that the idle group sends, which are pings."""
        began, first = time.monotonic(), server_counters(self.herd.port)
        time.sleep(min(3.0, max(1.0, self.herd.session_timeout / 3)))
        last = server_counters(self.herd.port)
        packets = last.get("packets_received", 0) - first.get("packets_received", 0)
        return packets / (time.monotonic() - began)

    def _measures(
        self,
        start_us: int,
        end_us: int,
        before: dict[str, int],
        after: dict[str, int],
        idle: float,
        theirs: set[TopicPartition],
        notes: list[str],
    ) -> Measures:
        herd = self.herd
        entries = list(self._events)
        for pack in self._packs:
            entries += [entry for entry in read_journal(pack.journal) if entry["kind"] != "run"]
        entries.sort(key=lambda entry: entry["at"])
        with JournalWriter(self._directory / "journal.jsonl") as writer:
            writer.write(run_entry(start_us, "epoch", asdict(herd)))
            for entry in entries:
                writer.write(entry)
        tally = Tally(start=start_us)
        for entry in entries:
            tally.entry(entry, len(CHROOT))
        partitions = [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in range(herd.partitions)
            if TopicPartition(topic, number) not in theirs
        ]
        seconds = (end_us - start_us) / 1e6
        total = tally.total
        server = {
            "packets_received": _delta(before, after, "packets_received"),
            "znodes": after.get("znode_count", 0),
            "watches": after.get("watch_count", 0),
            "packets_idle": round(idle * seconds),
            "packets_expected": total.requests + round(idle * seconds) + self._own_requests,
        }
        if "bytes_received_count" in after:
            server["bytes_received"] = _delta(before, after, "bytes_received_count")
        return measure(
            tally,
            partitions,
            end_us,
            herd,
            mode="real",
            server=server,
            notes=notes,
        )


def _delta(before: dict[str, int], after: dict[str, int], name: str) -> int:
    return after.get(name, 0) - before.get(name, 0)


def run_herd(
    herd: RealHerd,
    directory: Path,
    progress: Callable[[str], object] = lambda text: None,
    jvm: JvmHerd | None = None,
) -> Measures:
    """Run one change. Journals are written below ``directory``. Raises ClusterError.

    With ``jvm`` members, partitions that they own at the end are left out of the figures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return HerdRun(herd, directory, jvm).perform(progress)
