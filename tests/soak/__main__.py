"""Run a group under many faults and judge it from outside: ``python -m tests.soak``.

Faults disturb real servers and members for a while, following a plan that depends only on a seed.
Then zkaudit reads ZooKeeper's logs, Kafka's offsets and the members' journals. ``tests.soak.judge``
checks its tables and the ledgers of producer and members. Exit status 0: no violation. 1:
violations. 2: the run failed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
from pathlib import Path
from subprocess import SubprocessError
from types import FrameType

from kazoo.handlers.threading import KazooTimeoutError

from tests.soak.arena import Settings
from tests.soak.faults import named
from tests.soak.kinds import KINDS
from tests.soak.run import Run, judge_again, shown
from zkconsumer.errors import ZkConsumerError


def faults_of(text: str) -> frozenset[str]:
    """The faults of ``--only``."""
    try:
        return named([name for name in text.split(",") if name])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="zookeeper")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, help="of the plan; drawn and printed by default")
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="for all files")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--broken", default="", help="a broken build: see tests/soak/broken.py")
    parser.add_argument(
        "--recovery", type=int, metavar="ROUNDS", help="one fault at a time, so many of each kind"
    )
    parser.add_argument(
        "--only",
        default=frozenset(),
        type=faults_of,
        metavar="FAULTS",
        help='of a recovery run: "kill,leader: killed"',
    )
    parser.add_argument("--every", type=float, help="one fault each so many seconds, no storms")
    parser.add_argument("--audit", action="store_true", help="with all findings of zkaudit")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="judge a run's files again")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    return parser.parse_args()


def interrupted(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends a run like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the chosen kinds of groups, and return the exit status."""
    options = parse()
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    if options.judge is not None:
        again = judge_again(options.judge)
        print(json.dumps(again, indent=1) if options.json else "\n".join(shown(again)))  # noqa: T201
        return int(bool(again["violations"]))
    seed = random.randrange(10**6) if options.seed is None else options.seed
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    status, results = 0, []
    for kind in kinds:
        mode = "recovery" if options.recovery else options.broken
        name = "-".join(filter(None, [kind, str(seed), mode]))
        folder = (options.out / name).absolute()
        settings = Settings(
            kind=kind,
            seconds=options.seconds,
            seed=seed,
            rate=options.rate,
            members=options.members,
            partitions=options.partitions,
            brokers=options.brokers,
            out=folder,
            broken=options.broken,
            audit=options.audit,
        )
        run = Run(settings, options.recovery, options.every, options.only, quiet=options.json)
        if options.plan:
            run.show_plan()
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            result = run.play()
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            return 2
        except (ZkConsumerError, OSError, SubprocessError, KazooTimeoutError) as error:
            sys.stderr.write(f"could not run: {error}\n")
            status = 2
            continue
        results.append(result)
        if result["violations"]:
            status = max(status, 1)
    if options.json:
        print(json.dumps(results, indent=1))  # noqa: T201
    return status


if __name__ == "__main__":
    sys.exit(main())
