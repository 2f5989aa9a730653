"""Every command on a group in every state: the one allowed answer. On a simulated cluster.

``STATES`` build a group ``g``, with the product's own commands where that is possible. ``COMMANDS``
run one command on it and say in a few words what it answered: the exit status, and the kinds,
verdicts or outcomes of its rows. ``matrix.csv`` has a row for each state and a column for each
command. To add a state or a command, add its function, print the table, and judge each new cell:

    python -m tests.migrate.test_matrix > new.csv
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

import pytest
from zkmigrate.apply import live

from tests.migrate.simulated import Ran, Simulated, simulated
from zkconsumer.cli.main import run as run_zkconsumer
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.zookeeper.znodes import GroupPaths

__all__ = ["simulated"]
DO: Final = ("--execute", "--parallel", "1")
T0: Final = TopicPartition("t", 0)
T1: Final = TopicPartition("t", 1)
TABLE: Final = Path(__file__).with_name("matrix.csv")
OPEN: Final = "?"
"""A cell that is not judged yet: the command's answer is not checked."""


# -- states --------------------------------------------------------------------------------------


def untouched(one: Simulated) -> None:
    """The group has offsets 100 and 50 in ZooKeeper."""
    one.topic("t", (0, 1000), (0, 1000))
    one.znode(GroupPaths("g").ids)
    one.in_zookeeper("g", "t", 100, 50)


def moved(one: Simulated, *words: str) -> None:
    """It was moved to Kafka, and no consumer has run since."""
    untouched(one)
    good(one.run("plan", "--group", "g", "--out", one.file("move"), *words))
    good(one.run("apply", one.file("move"), *DO))


def used(one: Simulated) -> None:
    """New consumers have committed since the move."""
    moved(one)
    one.in_kafka("g", "t", 500, 501)


def expired(one: Simulated) -> None:
    """Kafka has deleted all of the moved offsets."""
    moved(one)
    one.forget("g", T0, T1)


def expired_in_part(one: Simulated) -> None:
    """Kafka has deleted one of them. Consumers have committed the other."""
    used(one)
    one.forget("g", T1)


def late_commit(one: Simulated) -> None:
    """An old consumer has committed to ZooKeeper since the move."""
    moved(one)
    one.in_zookeeper("g", "t", 101)


def rolled_back(one: Simulated) -> None:
    """The move was undone."""
    moved(one)
    good(one.run("rollback", one.file("move"), *DO))


def moved_back(one: Simulated) -> None:
    """The group was moved to ZooKeeper again, after it was used in Kafka."""
    used(one)
    way = ("--direction", "kafka-to-zk")
    good(one.run("plan", "--group", "g", "--out", one.file("back"), *way))
    good(one.run("apply", one.file("back"), *DO))


def renamed(one: Simulated) -> None:
    """It was moved to a group of another name."""
    moved(one, "--rename", "g=new")


def in_kafka(one: Simulated) -> None:
    """Its offsets are in Kafka already (``offsets.storage=kafka``)."""
    one.topic("t", (0, 1000), (0, 1000))
    one.znode(GroupPaths("g").ids)
    one.in_kafka("g", "t", 100, 50)


def other_layout(one: Simulated) -> None:
    """Another client keeps its offsets beside the group's."""
    untouched(one)
    one.znode("/consumers/g/partition_0", b"4711")


def misplaced(one: Simulated) -> None:
    """A 1.1.0 broker has stored an offset below ``offset``."""
    untouched(one)
    one.in_zookeeper("g", "t", 200, where="offset")


def hidden(one: Simulated) -> None:
    """After the change to KRaft, brokers do not show the topic."""
    untouched(one)
    one.hide("t")
    one.leave_zookeeper()


def unreadable(one: Simulated) -> None:
    """An offset is not a number."""
    untouched(one)
    one.znode("/consumers/g/offsets/t/1", b"x")


def prepared(one: Simulated) -> None:
    """A live move is prepared; the mode is ``zookeeper``."""
    untouched(one)
    good(one.run("live", "prepare", "g", "--execute", "--wait", "0"))


def live_locked(one: Simulated) -> None:
    """The mode of the live move is ``locked``."""
    prepared(one)
    good(one.run("live", "lock", "g", "--execute", "--wait", "0"))


def live_kafka(one: Simulated) -> None:
    """The mode of the live move is ``kafka``; members have committed in both stores."""
    live_locked(one)
    good(one.run("live", "to-kafka", "g", "--execute", "--wait", "0"))
    one.in_kafka("g", "t", 100, 50)


def live_open(one: Simulated) -> None:
    """The mode of the live move is ``open``, and plain consumers have committed since."""
    live_kafka(one)
    good(one.run("live", "finalize", "g", "--execute", "--wait", "0"))
    one.in_kafka("g", "t", 500, 501)


def live_finished(one: Simulated) -> None:
    """The live move is complete."""
    live_open(one)
    good(one.run("live", "complete", "g", "--execute", "--wait", "0"))


STATES: Final[tuple[Callable[[Simulated], None], ...]] = (
    untouched, moved, used, expired, expired_in_part, late_commit, rolled_back, moved_back, renamed,
    in_kafka, other_layout, misplaced, hidden, unreadable, prepared, live_locked, live_kafka,
    live_open, live_finished,
)  # fmt: skip


def good(ran: Ran) -> None:
    """Check that a step of a state succeeded."""
    assert ran.status == 0, ran


# -- commands: each returns the exit status and what it says of the group ------------------------


def said(ran: Ran, *columns: str) -> str:
    """Return the status, and the columns of the group's rows, each once."""
    words = [str(row[name]) for row in ran.rows for name in columns if row.get(name)]
    return " ".join([str(ran.status), *dict.fromkeys(words)]) if words else f"{ran.status} error"


def gate(one: Simulated) -> str:
    """The check before ZooKeeper is switched off."""
    ran = one.run("assess", "--group", "g", "--fail-if-left")
    return f"{ran.status} {'left' if ran.rows[0]['left'] else 'nothing'}"


def plan(one: Simulated) -> str:
    """A plan to Kafka; ``assess`` must say the same."""
    found = said(one.run("plan", "--group", "g", "--out", one.file("p")), "kind", "verdict")
    assert said(one.run("assess", "--group", "g"), "kind", "verdict") == found
    return found


def plan_back(one: Simulated) -> str:
    """A plan to ZooKeeper."""
    words = ("--direction", "kafka-to-zk", "--out", one.file("p"))
    name = "new" if one.held("new", "t")[1] else "g"
    return said(one.run("plan", "--group", name, *words), "kind", "verdict")


def apply(one: Simulated) -> str:
    """The plan to Kafka that ``plan`` makes."""
    one.run("plan", "--group", "g", "--out", one.file("p"))
    return said(one.run("apply", one.file("p"), *DO), "outcome")


def apply_again(one: Simulated) -> str:
    """The plan by which the group was moved."""
    return with_plan(one, "apply", *DO)


def rollback(one: Simulated) -> str:
    """Of the plan by which the group was moved."""
    return with_plan(one, "rollback", *DO)


def verify(one: Simulated) -> str:
    """The plan by which the group was moved."""
    return with_plan(one, "verify")


def with_plan(one: Simulated, command: str, *words: str) -> str:
    """Run a command with the plan by which the group was moved; ``-`` without one."""
    if not Path(one.file("move")).exists():
        return "-"
    ran = one.run(command, one.file("move"), *words)
    return said(ran, "outcome", "kind") if ran.rows else f"{ran.status} as planned"


def status(one: Simulated) -> str:
    """Which store is current, and whether something needs attention."""
    ran = one.run("status", "--group", "g")
    row = ran.rows[0]
    return f"{ran.status} {row['truth']}{'!' if row['attention'] else ''} {row['locked']}"


def guard(one: Simulated) -> str:
    """Locks a group that was moved."""
    return said(one.run("guard", "--group", "g", "--execute"), "outcome")


def release(one: Simulated) -> str:
    """Lifts the lock."""
    return said(one.run("release", "--group", "g", "--execute"), "outcome")


def reset(one: Simulated) -> str:
    """Sets offsets in the store that is current."""
    ran = one.run("reset", "--group", "g", "--all-topics", "--to-earliest", "--execute")
    return said(ran, "store")


def offsets_import(one: Simulated) -> str:
    """``zkconsumer offsets import``."""
    Path(one.file("jvm")).write_text("/consumers/g/offsets/t/0:7\n")
    return zkconsumer(one, "offsets", "import", one.file("jvm"))


def groups_delete(one: Simulated) -> str:
    """``zkconsumer groups delete``."""
    return zkconsumer(one, "groups", "delete", "g")


def zkconsumer(one: Simulated, *words: str) -> str:
    """Run a command of zkconsumer; return its status, and whether the group has changed."""
    before = one.zxid()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = run_zkconsumer([*words, "--execute", "--zookeeper", one.connect])
    return f"{code} {'changed' if one.zxid() != before else 'unchanged'}"


def live_step(name: str) -> Callable[[Simulated], str]:
    """A step of a live move."""

    def step(one: Simulated) -> str:
        return said(one.run("live", name, "g", "--execute", "--wait", "0"), "outcome")

    step.__name__ = f"live_{name.replace('-', '_')}"
    return step


COMMANDS: Final[tuple[Callable[[Simulated], str], ...]] = (
    gate, plan, plan_back, apply, apply_again, rollback, verify, status, guard, release, reset,
    offsets_import, groups_delete,
    *map(live_step, ("prepare", "lock", "to-kafka", "finalize", "complete", "to-zookeeper",
                     "unlock")),
)  # fmt: skip


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield state, command and answer of each cell of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            state = row.pop("state")
            yield from ((state, command, answer) for command, answer in row.items())


def answer_of(one: Simulated, patch: pytest.MonkeyPatch, state: str, command: str) -> str:
    """Build a state and return the answer of a command."""
    patch.setattr(live, "_POLL", 0)
    by_name = {step.__name__: step for step in (*STATES, *COMMANDS)}
    by_name[state](one)
    return str(by_name[command](one))


@pytest.mark.parametrize(
    ("state", "command", "answer"), [cell for cell in cells() if cell[2] != OPEN]
)
def test_a_command_in_a_state(
    simulated: Simulated, monkeypatch: pytest.MonkeyPatch, state: str, command: str, answer: str
) -> None:
    """The command gives the one allowed answer."""
    assert answer_of(simulated, monkeypatch, state, command) == answer


def test_every_cell_has_an_answer() -> None:
    """Nothing is left out, and few cells are not judged yet."""
    every = [(one.__name__, two.__name__) for one in STATES for two in COMMANDS]
    assert [cell[:2] for cell in cells()] == every
    assert sum(cell[2] == OPEN for cell in cells()) <= 8


def main() -> None:
    """Print the table with the answers of now. Cells that are not judged stay so."""
    held = {cell[:2]: cell[2] for cell in cells()} if TABLE.exists() else {}
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["state", *(one.__name__ for one in COMMANDS)])
    for state in STATES:
        answers = []
        for command in COMMANDS:
            cell = (state.__name__, command.__name__)
            with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
                found = answer_of(Simulated(patch, Path(folder)), patch, *cell)
            answers.append(OPEN if held.get(cell) == OPEN else found)
        writer.writerow([state.__name__, *answers])


if __name__ == "__main__":
    main()
