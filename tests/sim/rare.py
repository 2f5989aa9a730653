"""Rare branches of the product, and how often runs of the simulator enter them.

``make rare`` plays runs of each kind and prints the counts, those that no run has entered last. The
exit status is 1 if one of these has no reason in ``UNREACHED``. The product has no code for this: a
branch is named by source lines that end with its own, as ``tests/mutants`` names a bug's place.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.sim.runs.result import EVENTS
from tests.sim.runs.run import COORDINATIONS, run

ROOT: Final = Path(__file__).parents[2]
CORE: Final = "zkconsumer/core/"
SCRIPTS: Final = f"{CORE}zookeeper/scripts/"
LIVE: Final = "migrate/zkmigrate/apply/live.py"

BRANCHES: Final[Mapping[str, tuple[str, str]]] = {
    "a claim is refused, or its answer is lost": (
        f"{SCRIPTS}ownership.py",
        "yield from _ensure(ctx, state.paths.owners_topic, packet)\n                todo += packet",
    ),
    "an earlier owner's first commit arrives after the claim": (
        f"{SCRIPTS}ownership.py",
        "change = SetData(path, node.data, node.stat.version)",
    ),
    "an owner znode to be released is another member's": (
        f"{SCRIPTS}ownership.py",
        "!= ctx.session_id:\n                    foreign.add(tp)",
    ),
    "a release finds that the member is not registered": (
        f"{SCRIPTS}ownership.py",
        "unregistered = True\n                break\n            todo += packet",
    ),
    "a commit is fenced": (f"{SCRIPTS}ownership.py", "fenced.add(tp)\n            return"),
    "an offset disappears below its owner": (
        f"{SCRIPTS}ownership.py",
        "claims[tp] = Claim(claimed.thread, None, None)",
    ),
    "another process writes an owner's offset": (
        f"{SCRIPTS}ownership.py",
        "stored != command.positions[tp]:\n            foreign.add(tp)",
    ),
    "the registration of this session has another version": (
        f"{SCRIPTS}membership.py",
        "yield from attempt(Multi((gone,)))",
    ),
    "a version goes back": (
        f"{CORE}zookeeper/committing.py",
        'self._emit(Report("went-back", text))',
    ),
    "partitions are taken back before a commit": (
        f"{CORE}zookeeper/committing.py",
        "self._remembered.pop(tp, None)\n            self._emit(Drop(taken))",
    ),
    "a release waits for the commit under way": (
        f"{CORE}zookeeper/committing.py",
        "self._after_commit = proceed",
    ),
    "a member is closed while it stops partitions": (
        f"{CORE}zookeeper/machine.py",
        "self._closing.wanted = True\n            return",
    ),
    "another live session has the consumer id": (
        f"{CORE}zookeeper/machine.py",
        "self._answer_start(Outcome.DUPLICATE_ID, text)",
    ),
    "a claim is forbidden by the time it is made": (
        f"{CORE}zookeeper/machine.py",
        "self._disown(forbidden)",
    ),
    "the mode goes back": (
        f"{CORE}migration/member.py",
        'self._out.append(commands.Report("went-back", text))',
    ),
    "a member does not deliver, as Kafka has higher offsets": (
        f"{CORE}migration/member_scripts.py",
        'raise Refused(Code.OTHER, "", ahead_in_kafka(ahead))',
    ),
    "a live move is given up at a gate": (
        LIVE,
        "if self._now() >= deadline or (yield Wait(_POLL)):\n"
        "                return Step(facts.mode, changed, why)",
    ),
    "two operators write a mode": (
        LIVE,
        "except GroupRefusedError as error:\n            return str(error)",
    ),
    "a lock is set after another operator has gone back": (
        LIVE,
        "if sealed is not None and facts.mode is Mode.ZOOKEEPER:\n"
        "                yield from self._let_in()",
    ),
    "the mode cannot be read": (
        f"{CORE}migration/member.py",
        "self._timer(_MODE)",
    ),
    "an acknowledgement cannot be stored": (
        f"{CORE}migration/member.py",
        "self._timer(_ACK)",
    ),
}
"""Name of a branch: its file, and text in it that occurs once and ends with the branch's line."""
UNREACHED: Final[Mapping[str, str]] = {
    "an earlier owner's first commit arrives after the claim": "within one round trip: "
    "tests/unit/test_scripts.py",
    "another process writes an owner's offset": "no run has a tool that writes offsets: "
    "tests/unit/test_scripts.py",
    "another live session has the consumer id": "no two members have one id: "
    "tests/unit/test_machine_cases.py",
}
"""Branches that 75 runs have not entered, and the reason with the tests that enter them."""


def places() -> dict[tuple[str, int], str]:
    """Return the name of each branch by file and line number.

    Raises ValueError for a text that does not occur once.
    """
    found: dict[tuple[str, int], str] = {}
    for name, (file, text) in BRANCHES.items():
        source = (ROOT / file).read_text()
        if source.count(text) != 1:
            raise ValueError(f"{name}: {file} has this text {source.count(text)} times: {text!r}")
        found[str(ROOT / file), source[: source.index(text) + len(text)].count("\n") + 1] = name
    return found


class Reached:
    """Counts branches while it is entered with ``with``. Slows down everything else."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._places = places()
        self._files = {file for file, _ in self._places}

    def __enter__(self) -> Counter[str]:
        sys.settrace(self._called)
        return self.counts

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _value: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, _value: Any) -> Any:
        name = self._places.get((frame.f_code.co_filename, frame.f_lineno))
        if event == "line" and name is not None:
            self.counts[name] += 1
        return self._line


def play(seeds: Iterable[int], kinds: Iterable[str] = COORDINATIONS) -> Counter[str]:
    """Play runs until each branch was entered, or all are played; return how often each was."""
    with Reached() as counts:
        for seed in seeds:
            for kind in kinds:
                if not BRANCHES.keys() - UNREACHED.keys() <= counts.keys():
                    run(seed, coordination=kind, events=EVENTS)
    return counts


def main(arguments: list[str]) -> int:
    """Print how often each branch was entered."""
    first, count = map(int, (arguments or ["0:100"])[0].split(":"))
    counts = play(range(first, first + count))
    for name in sorted(BRANCHES, key=lambda name: -counts[name]):
        reason = "" if counts[name] else f" ({UNREACHED.get(name, 'no reason is known')})"
        sys.stdout.write(f"{counts[name] or 'never':>8}  {name}{reason}\n")
    return int(not BRANCHES.keys() <= counts.keys() | UNREACHED.keys())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
