"""Every command on a group in every state: the one allowed answer.

``STATES`` build a group, with the product's own commands where that is possible. ``COMMANDS`` run
one command on it and say in a few words what it answered: the exit status, and the kinds, verdicts
or outcomes of its rows. ``matrix.csv`` has a row for each state and a column for each command. All
cells are checked on a simulated cluster, and some on real servers. To add a state or a command, add
its function, print the table, and judge each new cell:

    python -m tests.migrate.matrix > new.csv
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from zkmigrate.apply import guard
from zkmigrate.mirror.across import CUT_OVER
from zkmigrate.model import Before, KafkaOffset, Record, Stage, Store
from zkmigrate.stores import record

from tests.migrate.simulated import Ran, Simulated
from zkconsumer.cli.main import run as run_zkconsumer
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths

DO: Final = ("--execute", "--parallel", "1")
TABLE: Final = Path(__file__).with_name("matrix.csv")


class Cluster(Protocol):
    """A cluster with one group: ``Simulated``, or real servers.

    ``group``, ``renamed`` and ``topic_name`` are names that no other group has.
    """

    connect: str
    group: str
    renamed: str
    topic_name: str

    def topic(self, name: str, *ends: tuple[int, int]) -> None: ...
    def in_zookeeper(
        self, group: str, topic: str, *offsets: int | None, where: str = "offsets"
    ) -> None: ...
    def in_kafka(self, group: str, topic: str, *offsets: int | None) -> None: ...
    def forget(self, group: str, *gone: TopicPartition) -> None: ...
    def znode(self, path: str, data: bytes = b"") -> None: ...
    def znodes(self, group: str) -> Mapping[str, object]: ...
    def hide(self, topic: str) -> None: ...
    def held(self, group: str, topic: str) -> tuple[dict[int, int], dict[int, int]]: ...
    def run(self, *words: str) -> Ran: ...
    def file(self, name: str) -> str: ...


# -- states --------------------------------------------------------------------------------------


def untouched(one: Cluster) -> None:
    """The group has offsets 100 and 50 in ZooKeeper."""
    one.topic(one.topic_name, (0, 1000), (0, 1000))
    one.znode(GroupPaths(one.group).ids)
    one.in_zookeeper(one.group, one.topic_name, 100, 50)


def moved(one: Cluster, *words: str) -> None:
    """It was moved to Kafka, and no consumer has run since."""
    untouched(one)
    good(one.run("plan", "--group", one.group, "--out", one.file("move"), *words))
    good(one.run("apply", one.file("move"), *DO))


def used(one: Cluster) -> None:
    """New consumers have committed since the move."""
    moved(one)
    one.in_kafka(one.group, one.topic_name, 500, 501)


def expired(one: Cluster) -> None:
    """Kafka has deleted all of the moved offsets."""
    moved(one)
    one.forget(one.group, TopicPartition(one.topic_name, 0), TopicPartition(one.topic_name, 1))


def expired_in_part(one: Cluster) -> None:
    """Kafka has deleted one of them. Consumers have committed the other."""
    used(one)
    one.forget(one.group, TopicPartition(one.topic_name, 1))


def late_commit(one: Cluster) -> None:
    """An old consumer has committed to ZooKeeper since the move."""
    moved(one)
    one.in_zookeeper(one.group, one.topic_name, 101)


def rolled_back(one: Cluster) -> None:
    """The move was undone."""
    moved(one)
    good(one.run("undo", one.file("move"), *DO))


def interrupted(one: Cluster) -> None:
    """A move was killed after it had committed one of two offsets to Kafka."""
    untouched(one)
    one.in_kafka(one.group, one.topic_name, 100)
    first, second = (TopicPartition(one.topic_name, number) for number in (0, 1))
    zk = {first: KafkaOffset(100), second: KafkaOffset(50)}
    before = Before(Store.KAFKA, "", None, False, frozenset(), zk, {first: None, second: None}, zk)
    begun = Record(id="x", by="a@b", command="apply", plan="p", stage=Stage.BEGUN)
    one.znode(record.path(one.group), record.encode(begun))
    one.znode(record.before_path(one.group), record.encode_before(before))


def written_late(one: Cluster) -> None:
    """The same, and its commit was late, so that newer offsets may be lost."""
    interrupted(one)
    late = tuple(TopicPartition(one.topic_name, number) for number in (0, 1))
    begun = Record(id="x", by="a@b", command="apply", plan="p", stage=Stage.BEGUN, late=late)
    one.znode(record.path(one.group), record.encode(begun))


def moved_back(one: Cluster) -> None:
    """The group was moved to ZooKeeper again, after it was used in Kafka."""
    used(one)
    way = ("--direction", "kafka-to-zk")
    good(one.run("plan", "--group", one.group, "--out", one.file("back"), *way))
    good(one.run("apply", one.file("back"), *DO))


def renamed(one: Cluster) -> None:
    """It was moved to a group of another name."""
    moved(one, "--rename", f"{one.group}={one.renamed}")


def in_kafka(one: Cluster) -> None:
    """Its offsets are in Kafka already (``offsets.storage=kafka``)."""
    one.topic(one.topic_name, (0, 1000), (0, 1000))
    one.znode(GroupPaths(one.group).ids)
    one.in_kafka(one.group, one.topic_name, 100, 50)


def was_in_kafka(one: Cluster) -> None:
    """Such a group was moved, which only records and locks it."""
    in_kafka(one)
    good(one.run("plan", "--group", one.group, "--out", one.file("move")))
    good(one.run("apply", one.file("move"), *DO))


def was_in_kafka_expired(one: Cluster) -> None:
    """Kafka has deleted one of the offsets, which no other store has."""
    was_in_kafka(one)
    one.forget(one.group, TopicPartition(one.topic_name, 1))


def other_layout(one: Cluster) -> None:
    """Another client keeps its offsets beside the group's."""
    untouched(one)
    one.znode(f"/consumers/{one.group}/partition_0", b"4711")


def other_znodes(one: Cluster) -> None:
    """A znode of an unknown kind is next to the group's offsets."""
    untouched(one)
    one.znode(f"/consumers/{one.group}/backup", b"2020")


def misplaced(one: Cluster) -> None:
    """A 1.1.0 broker has stored an offset below ``offset``."""
    untouched(one)
    one.in_zookeeper(one.group, one.topic_name, 200, where="offset")


def hidden(one: Cluster) -> None:
    """zkmigrate may not describe the topic, so brokers do not show its offsets in Kafka."""
    untouched(one)
    one.hide(one.topic_name)


def hidden_in_kraft(one: Simulated) -> None:
    """The same, after the change to KRaft: brokers do not list the topic either."""
    hidden(one)
    one.leave_zookeeper()


def unreadable(one: Cluster) -> None:
    """An offset is not a number."""
    untouched(one)
    one.znode(GroupPaths(one.group).offset(TopicPartition(one.topic_name, 1)), b"x")


def prepared(one: Cluster) -> None:
    """A live move is prepared; the mode is ``zookeeper``."""
    untouched(one)
    good(one.run("live", "prepare", "--group", one.group, "--execute", "--wait", "0"))


def live_locked(one: Cluster) -> None:
    """The mode of the live move is ``locked``."""
    prepared(one)
    good(one.run("lock", "--group", one.group, "--execute", "--wait", "0"))


def live_kafka(one: Cluster) -> None:
    """The mode of the live move is ``kafka``; members have committed in both stores."""
    live_locked(one)
    good(one.run("live", "to-kafka", "--group", one.group, "--execute", "--wait", "0"))
    one.in_kafka(one.group, one.topic_name, 100, 50)


def live_open(one: Cluster) -> None:
    """The mode of the live move is ``open``, and plain consumers have committed since."""
    live_kafka(one)
    good(one.run("live", "finalize", "--group", one.group, "--execute", "--wait", "0"))
    one.in_kafka(one.group, one.topic_name, 500, 501)


def live_finished(one: Cluster) -> None:
    """The live move is complete."""
    live_open(one)
    good(one.run("complete", "--group", one.group, "--execute", "--wait", "0"))


def mirror_zookeeper_leads(one: Cluster) -> None:
    """It is mirrored, and old consumers have committed since."""
    untouched(one)
    good(one.run("mirror", "--group", one.group, "--execute", "--once"))
    one.in_zookeeper(one.group, one.topic_name, 110, 60)


def mirror_kafka_leads(one: Cluster) -> None:
    """It is mirrored and was cut over, and new consumers have committed since."""
    mirror_zookeeper_leads(one)
    good(one.run("cut-over", "--group", one.group, "--execute", "--wait", "0"))
    one.in_kafka(one.group, one.topic_name, 500, 501)


def mirror_stopped(one: Cluster) -> None:
    """It is mirrored, and was stopped: an old client has committed to ZooKeeper after the
    cut-over."""
    mirror_kafka_leads(one)
    good(one.run("mirror", "--group", one.group, "--execute", "--once"))
    one.in_zookeeper(one.group, one.topic_name, 700)
    assert one.run("mirror", "--group", one.group, "--execute", "--once").status == 3


def leaving(one: Simulated) -> None:
    """A cut-over to another cluster has locked it and was killed."""
    untouched(one)
    begun = Record(id="x", by="a@b", command=CUT_OVER, locked=True, to_cluster="there")
    one.zk.run(record.write(one.group, begun))
    assert one.zk.run(guard.lock(one.group)) is None


def handed_over(one: Simulated) -> None:
    """It was handed over to another cluster, which only locks it here."""
    untouched(one)
    done = Record(
        id="x", by="a@b", command=CUT_OVER, locked=True, to_cluster="there", handed_over=True
    )
    one.zk.run(record.write(one.group, done))
    assert one.zk.run(guard.lock(one.group)) is None


STATES: Final[tuple[Callable[[Any], None], ...]] = (
    untouched, moved, used, expired, expired_in_part, late_commit, rolled_back, interrupted,
    written_late, moved_back, renamed, in_kafka, was_in_kafka, was_in_kafka_expired, other_layout,
    other_znodes, misplaced, hidden, hidden_in_kraft, unreadable, prepared, live_locked, live_kafka,
    live_open, live_finished, mirror_zookeeper_leads, mirror_kafka_leads, mirror_stopped,
    leaving, handed_over,
)  # fmt: skip


def good(ran: Ran) -> None:
    """Check that a step of a state succeeded."""
    assert ran.status == 0, ran


# -- commands: each returns the exit status and what it says of the group ------------------------


def said(ran: Ran, *columns: str) -> str:
    """Return the status, and the columns of the group's rows, each once."""
    cells = [row[name] for row in ran.rows for name in columns if row.get(name)]
    words = [str(word) for cell in cells for word in (cell if isinstance(cell, list) else [cell])]
    return " ".join([str(ran.status), *dict.fromkeys(words)]) if words else f"{ran.status} error"


def gate(one: Cluster) -> str:
    """The check before ZooKeeper is switched off."""
    ran = one.run("gate", "--group", one.group)
    row = ran.rows[0]
    return " ".join([str(ran.status), "left" if row["left"] else "nothing", *row["reasons"]])


def plan(one: Cluster) -> str:
    """A plan to Kafka; one that is not kept must say the same."""
    found = said(one.run("plan", "--group", one.group, "--out", one.file("p")), "kind", "verdict")
    assert said(one.run("plan", "--group", one.group), "kind", "verdict") == found
    return found


def plan_back(one: Cluster) -> str:
    """A plan to ZooKeeper."""
    words = ("--direction", "kafka-to-zk", "--out", one.file("p"))
    name = one.renamed if one.held(one.renamed, one.topic_name)[1] else one.group
    return said(one.run("plan", "--group", name, *words), "kind", "verdict")


def apply(one: Cluster) -> str:
    """The plan to Kafka that ``plan`` makes."""
    one.run("plan", "--group", one.group, "--out", one.file("p"))
    return said(one.run("apply", one.file("p"), *DO), "outcome", "reasons")


def apply_again(one: Cluster) -> str:
    """The plan by which the group was moved."""
    return with_plan(one, "apply", *DO)


def undo(one: Cluster) -> str:
    """Takes the group back, without a plan or a journal of the move."""
    words = ("--wait", "0", "--journal", one.file("undo"))
    return said(one.run("undo", "--group", one.group, *DO, *words), "outcome", "way", "reasons")


def status_of_plan(one: Cluster) -> str:
    """Compares the stores with the plan by which the group was moved."""
    return with_plan(one, "status")


def with_plan(one: Cluster, command: str, *words: str) -> str:
    """Run a command with the plan by which the group was moved; ``-`` without one."""
    if not Path(one.file("move")).exists():
        return "-"
    ran = one.run(command, one.file("move"), *words)
    return said(ran, "outcome", "kind", "reasons") if ran.rows else f"{ran.status} as planned"


def status(one: Cluster) -> str:
    """The case, which store is current, whether something needs attention, and the modes."""
    ran = one.run("status", "--group", one.group)
    row = ran.rows[0]
    found = " ".join([f"{ran.status} {row['case']};", row["truth"], row["locked"]])
    found = " ".join([found, *(f"!{reason}" for reason in row["reasons"])])
    if not row["mode"]:
        return found
    gates = [gate.split(": ") for gate in row["next_modes"].split(" | ")]
    after = [name for name, *why in gates if why == ["open"]]
    return f"{found} {row['mode']} before {' or '.join(after) or 'nothing'}"


def lock(one: Cluster) -> str:
    """Keeps old consumers out of a group that was moved, or is in a live move."""
    return step(one, "lock")


def unlock(one: Cluster) -> str:
    """Lifts the lock."""
    return step(one, "unlock")


def step(one: Cluster, *words: str) -> str:
    """Run a command that has steps of live moves."""
    ran = one.run(*words, "--group", one.group, "--execute", "--wait", "0")
    return said(ran, "outcome", "reasons")


def reset(one: Cluster) -> str:
    """Sets offsets in the store that is current."""
    ran = one.run("reset", "--group", one.group, "--all-topics", "--to-earliest", "--execute")
    return said(ran, "store")


def mirror(one: Cluster) -> str:
    """Lets it be mirrored, and brings it into step once."""
    return said(one.run("mirror", "--group", one.group, "--execute", "--once"), "state", "reasons")


def mirror_end(one: Cluster) -> str:
    """Ends that, while ZooKeeper leads."""
    return said(one.run("mirror", "--group", one.group, "--execute", "--end"), "state", "reasons")


def cut_over(one: Cluster) -> str:
    """Lets Kafka lead."""
    return step(one, "cut-over")


def complete(one: Cluster) -> str:
    """Ends the mirror once Kafka leads, or the live move in mode ``open``."""
    return step(one, "complete")


def offsets_import(one: Cluster) -> str:
    """``zkconsumer offsets import``."""
    Path(one.file("jvm")).write_text(f"/consumers/{one.group}/offsets/{one.topic_name}/0:7\n")
    return zkconsumer(one, "offsets", "import", one.file("jvm"))


def groups_delete(one: Cluster) -> str:
    """``zkconsumer groups delete``."""
    return zkconsumer(one, "groups", "delete", one.group)


def zkconsumer(one: Cluster, *words: str) -> str:
    """Run a command of zkconsumer; return its status, and whether the group has changed."""
    before = one.znodes(one.group)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = run_zkconsumer([*words, "--execute", "--zookeeper", one.connect])
    return f"{code} {'changed' if one.znodes(one.group) != before else 'unchanged'}"


def live_step(name: str) -> Callable[[Cluster], str]:
    """A step of a live move."""

    def run(one: Cluster) -> str:
        return step(one, "live", name)

    run.__name__ = f"live_{name.replace('-', '_')}"
    return run


COMMANDS: Final[tuple[Callable[[Cluster], str], ...]] = (
    gate, plan, plan_back, apply, apply_again, undo, status_of_plan, status, lock, unlock,
    reset, offsets_import, groups_delete,
    *map(live_step, ("prepare", "to-kafka", "finalize", "to-zookeeper")),
    mirror, mirror_end, cut_over, complete,
)  # fmt: skip


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield state, command and answer of each cell of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            state = row.pop("state")
            yield from ((state, command, answer) for command, answer in row.items())


def build(one: Cluster, state: str) -> None:
    """Bring the group into a state."""
    next(build for build in STATES if build.__name__ == state)(one)


def answer_of(one: Cluster, command: str) -> str:
    """Return the answer of a command in the present state."""
    return next(run for run in COMMANDS if run.__name__ == command)(one)


def main() -> None:
    """Print the table with the answers of now."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["state", *(one.__name__ for one in COMMANDS)])
    for state in STATES:
        answers = []
        for command in COMMANDS:
            with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
                one = Simulated(patch, Path(folder))
                state(one)
                answers.append(command(one))
        writer.writerow([state.__name__, *answers])


if __name__ == "__main__":
    main()
