"""``zkconsumer demo``: a legacy group at work on real servers, from start to verdict. It runs on
one thread. It starts the servers and the members (``demo_member``, one process each). It reads the
group's znodes a few times a second, injects faults, and adds up the members' records. The members'
stdin is a pipe from this process. They leave when it ends, for any reason."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zkconsumer.admin.change import tree
from zkconsumer.admin.snapshot import GroupSnapshot, Nodes, partition_number, read_group
from zkconsumer.cli.laboratory.demo_verdict import ENTRY, Kill, Verdict, judge, read_record
from zkconsumer.cli.laboratory.demo_view import (
    MemberRow,
    Message,
    Moment,
    Story,
    View,
    real_lines,
    save_svg,
    show_znodes,
    verdict_lines,
    verdict_panel,
)
from zkconsumer.console.tables import count_option
from zkconsumer.core.common.types import ConsumerThreadId, TopicPartition
from zkconsumer.core.zookeeper.ops import Node
from zkconsumer.core.zookeeper.scripts.common import Script, read_many
from zkconsumer.core.zookeeper.znodes import GroupPaths, decode_offset
from zkconsumer.errors import ClusterError
from zkconsumer.servers import LocalCluster
from zkconsumer.servers.produce import send
from zkconsumer.zk.blocking import BlockingZk

GROUP = "demo"
TOPIC = "lines"
PARTITIONS = 12
STREAMS = 2
NAMES = ("member-1", "member-2", "member-3")
BEAT = 1.5
"""Seconds from the end of one change to the next change."""
PACED_STREAM_SECONDS = 120.0
"""Seconds that reading all lines would take at the members' pace, summed over streams. It is long
enough that some lines remain after the last change. Then the members read as fast as they can."""
SETTLE_SECONDS = 40.0
FINISH_SECONDS = 120.0
LEAVE_SECONDS = 20.0
LOOK_SECONDS = 0.15


@click.command()
@count_option("--lines", default=200_000, least=1000, help="How many messages to send.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the servers' files and the records in this empty directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option(
    "--save-svg",
    "svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the summary as an SVG image in this file.",
)
def demo(lines: int, keep: Path | None, as_json: bool, svg: Path | None) -> int:
    """Start real servers and show a group at work, with faults.

    Sends lines of text found on this machine to 12 partitions, starts three members with two
    streams each, kills one, lets one leave, and compares the messages sent with those delivered.
    The exit status is 1 if a message was lost, or delivered twice without a reason.
    """
    view = View(Console(stderr=as_json, highlight=False))
    view.say("starting ZooKeeper and Kafka 3.9 ...")
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise ClusterError(f"{keep} is not empty: use another --keep directory")
    if svg is not None:
        try:
            svg.parent.mkdir(parents=True, exist_ok=True)
            svg.touch()
        except OSError as error:
            raise ClusterError(f"--save-svg: cannot write {svg}: {error.strerror}") from error
    began = time.monotonic()
    with LocalCluster("3.9", dir=keep) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        view.say(f"ready after {time.monotonic() - began:.1f} s: ZooKeeper {cluster.zookeeper}")
        root = cluster.zookeeper_server.log.parents[1]
        sent = _send(cluster, real_lines(root / "logs", lines), view)
        play = Play(cluster, root, sent, view)
        verdict, kill = play.perform()
        if svg is not None:
            save_svg(svg, play.story, verdict, kill)
    if as_json:
        click.echo(json.dumps(_summary(play, verdict, kill, time.monotonic() - began), indent=2))
        for line in verdict_lines(verdict, kill):
            view.say(line)
    else:
        if view.console.is_terminal:
            view.console.print(verdict_panel(verdict, kill))
        else:
            view.say("\n".join(verdict_lines(verdict, kill)))
            view.say("nothing lost" if verdict.good else "FAILED")
    if keep is not None:
        view.say(f"kept in {keep}: logs, data, records")
    return 0 if verdict.good else 1


def _send(cluster: LocalCluster, messages: list[Message], view: View) -> Mapping[int, int]:
    """Send all messages, with a progress bar on a terminal. Return the number stored by
    partition."""
    began = time.monotonic()
    progress = Progress(
        TextColumn("sending"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=view.console,
        disable=not view.console.is_terminal,
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=len(messages))
        sent = send(
            cluster.bootstrap, TOPIC, messages, lambda n: progress.update(task, completed=n)
        )
    took = time.monotonic() - began
    size = sum(len(value) for _, value in messages) / 1e6
    view.say(
        f"sent {sum(sent.values()):,} lines ({size:.1f} MB: the servers' logs and Python's own "
        f"sources) to {PARTITIONS} partitions in {took:.1f} s"
    )
    return sent


class Member:
    """A member's process, its record, and its row in the table."""

    def __init__(self, name: str, zookeeper: str, root: Path, pace: float) -> None:
        self.row = MemberRow(name)
        self.record = root / "records" / name
        self.log = root / "logs" / f"{name}.log"
        self.record.parent.mkdir(exist_ok=True)
        self.record.touch()
        arguments = {
            "zookeeper": zookeeper,
            "group": GROUP,
            "id": name,
            "topic": TOPIC,
            "record": self.record,
            "streams": STREAMS,
            "pace": pace,
        }
        argv = [sys.executable, "-m", "zkconsumer.cli.laboratory.demo_member"]
        for option, value in arguments.items():
            argv += [f"--{option}", str(value)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def id(self) -> str:
        """The member's consumer id."""
        return f"{GROUP}_{self.row.name}"

    def tell(self, order: str) -> None:
        """Write a command to the standard input of the process."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{order}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise ClusterError(f"{self.row.name} has ended: see {self.log}") from None

    def leave(self) -> None:
        """Make the member leave; kill it if it does not end in time. Afterwards the process has
        ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already
        try:
            self.process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def check(self) -> None:
        """Raise ClusterError if the process has ended although it was not told to."""
        status = self.process.poll()
        if status is not None:
            lines = self.log.read_text(errors="replace").splitlines()
            raise ClusterError(
                f"{self.row.name} exited with status {status}: "
                f"{lines[-1] if lines else 'it printed nothing'}"
            )


class _Group(NamedTuple):
    owners: Mapping[TopicPartition, str]
    offsets: Mapping[TopicPartition, int]
    members: Sequence[str]


class Play:
    """The steps of the demo: members join, one is killed, one leaves, the others end."""

    def __init__(
        self, cluster: LocalCluster, root: Path, sent: Mapping[int, int], view: View
    ) -> None:
        self.story = Story(sum(sent.values()))
        self.kill: Kill | None = None
        self._zookeeper = cluster.zookeeper
        self._root = root
        self._sent = sent
        self._view = view
        self._members: dict[str, Member] = {}
        self._began = time.monotonic()
        self._interrupted = False
        self._zk = BlockingZk(cluster.zookeeper, 15.0)

    def perform(self) -> tuple[Verdict, Kill | None]:
        """Run all steps; return the verdict and the kill that explains repeated messages."""
        with self._zk, self._showing(), self._interruptible():
            try:
                for name in NAMES:
                    self._join(name)
                self._kill("member-2")
                self._stop("member-1")
                self._finish()
                self._view.stop()
                show_znodes(self._view, self._zk.run(_znodes()))
            finally:
                for member in self._members.values():
                    member.leave()
        records = {name: read_record(member.record) for name, member in self._members.items()}
        return judge(self._sent, records, self.kill), self.kill

    @contextmanager
    def _showing(self) -> Iterator[None]:
        self._view.start(self.story)
        try:
            yield
        finally:
            self._view.stop()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Delay Ctrl-C until the next check, because kazoo would swallow the exception during a
        request."""

        def note(_number: int, _frame: object) -> None:
            self._interrupted = True

        before = signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # -- acts ----------------------------------------------------------------------------------

    def _join(self, name: str) -> None:
        pace = self.story.sent / PACED_STREAM_SECONDS
        member = Member(name, self._zookeeper, self._root, pace)
        self._members[name] = member
        self.story.members[name] = member.row
        self._settle(f"{name} joins", lambda: setattr(member.row, "state", "running"))

    def _kill(self, name: str) -> None:
        member = self._members[name]
        member.process.kill()
        member.process.wait()
        member.row.state = "killed"
        # What it had sent has arrived by now, and its owner znodes stay until its session ends.
        self._pass(0.5)
        owners, offsets, _ = self._group()
        owned = [tp for tp, text in owners.items() if text.startswith(f"{member.id}-")]
        if not owned:
            raise ClusterError(f"{name} owned nothing when it was killed: its session had ended")
        self.kill = Kill(name, {tp.partition: offsets.get(tp, 0) for tp in owned})
        self._settle(f"{name} is killed (SIGKILL)")

    def _stop(self, name: str) -> None:
        member = self._members[name]
        member.row.state = "leaving"
        member.process.terminate()
        self._settle(f"{name} leaves", lambda: setattr(member.row, "state", "left"))

    def _finish(self) -> None:
        for member in self._running():
            member.tell("pace 0")
        began = time.monotonic()

        def all_committed() -> bool:
            offsets = self._group().offsets
            return all(offsets.get(TopicPartition(TOPIC, p), 0) >= n for p, n in self._sent.items())

        self._until(all_committed, FINISH_SECONDS, "every message is delivered and committed")
        self._look()
        self._note("all is committed", began)

    # -- looking -------------------------------------------------------------------------------

    def _group(self) -> _Group:
        """Read the group from ZooKeeper. Raises ZnodeFormatError for an invalid offset."""
        snapshot = self._zk.run(read_group(GROUP)) or GroupSnapshot(GROUP)
        offset = snapshot.paths.offset
        return _Group(
            {tp: data.decode("utf-8", "replace") for tp, data in _leaves(snapshot.owners)},
            {tp: decode_offset(offset(tp), data) for tp, data in _leaves(snapshot.offsets)},
            sorted(snapshot.members),
        )

    def _running(self) -> list[Member]:
        return [m for m in self._members.values() if m.row.state in ("starting", "running")]

    def _settle(self, event: str, then: Callable[[], object] = lambda: None) -> None:
        """Wait until each stream of the remaining members owns its share, then let the
        group run."""
        began = time.monotonic()
        names = [member.id for member in self._running()]
        share = PARTITIONS // (STREAMS * len(names))

        def settled() -> bool:
            owned: dict[str, int] = {}
            owners, _, registered = self._group()
            for text in owners.values():
                owned[text] = owned.get(text, 0) + 1
            threads = {f"{name}-{stream}": share for name in names for stream in range(STREAMS)}
            return owned == threads and registered == names

        self._until(settled, SETTLE_SECONDS, f"every partition has its owner (after: {event})")
        then()
        self._look()
        self._note(event, began)
        self._pass(BEAT)

    def _note(self, event: str, began: float) -> None:
        now = time.monotonic()
        owned = {name: row.owned() for name, row in self.story.members.items()}
        moment = Moment(now - self._began, event, now - began, self.story.delivered, owned)
        self._view.add(self.story, moment)

    def _pass(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._look()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))
            self._look()

    def _until(self, true: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise ClusterError(f"timed out after {seconds:g} s, waiting until {what}")
            self._look()
            time.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        """Update the story, and check that no member has ended unexpectedly."""
        if self._interrupted:
            raise KeyboardInterrupt
        owned: dict[str, list[list[int]]] = {}
        free = set(range(PARTITIONS))
        for tp, text in self._group().owners.items():
            thread = ConsumerThreadId.parse(text)
            streams = owned.setdefault(thread.consumer, [[] for _ in range(STREAMS)])
            streams[thread.stream].append(tp.partition)
            free.discard(tp.partition)
        for member in self._members.values():
            partitions = owned.get(member.id, [])
            member.row.streams = tuple(tuple(sorted(numbers)) for numbers in partitions)
            member.row.delivered = member.record.stat().st_size // ENTRY.size
        for member in self._running():
            member.check()
        self.story.unowned = tuple(sorted(free))
        self._view.update(self.story)


def _leaves(nodes: Nodes) -> Iterator[tuple[TopicPartition, bytes]]:
    for topic, content in nodes.items():
        for name, node in content.items():
            number = partition_number(name)
            if number is not None:
                yield TopicPartition(topic, number), node.data


def _znodes() -> Script[list[tuple[str, Node]]]:
    """Return all znodes of the group, parents before children, numbers in numeric order."""
    paths = sorted((yield from tree(GroupPaths(GROUP).root)), key=_natural)
    nodes = yield from read_many(paths)
    return [(path, node) for path, node in zip(paths, nodes, strict=True) if node is not None]


def _natural(path: str) -> list[tuple[bool, int, str]]:
    names = path.split("/")
    return [(not name.isdecimal(), int(name) if name.isdecimal() else 0, name) for name in names]


def _summary(play: Play, verdict: Verdict, kill: Kill | None, seconds: float) -> dict[str, object]:
    return {
        "good": verdict.good,
        "sent": verdict.sent,
        "delivered": verdict.delivered,
        "lost": len(verdict.lost),
        "delivered_twice": verdict.repeated,
        "delivered_twice_because": f"{kill.member} was killed" if kill else None,
        "unexplained": len(verdict.unexplained),
        "by_member": {name: row.delivered for name, row in play.story.members.items()},
        "events": [
            {
                "at_s": round(moment.at, 2),
                "event": moment.event,
                "settled_after_s": round(moment.took, 2),
                "delivered": moment.delivered,
                "owned": dict(moment.owned),
            }
            for moment in play.story.moments
        ],
        "seconds": round(seconds, 1),
    }
