"""``zkmigrate live``: moves running groups between ZooKeeper and the coordinator."""

from __future__ import annotations

from typing import Final

import click

from zkconsumer.core.migration.modes import Mode
from zkmigrate.commands.options.running import Work, open_run, work_options
from zkmigrate.commands.options.servers import open_stores
from zkmigrate.commands.output.outcomes import Outcomes
from zkmigrate.commands.steps import LOCK, Stage, carry_out, legal_names
from zkmigrate.exits import HELP
from zkmigrate.plan.table import Action

STAGES: Final = {
    "prepare": LOCK._replace(action=Action.PREPARE, act=lambda move: move.prepare()),
    "to-kafka": Stage(Action.TO_KAFKA, Mode.KAFKA, False, lambda move: move.go(Mode.KAFKA)),
    "finalize": Stage(Action.FINALIZE, Mode.OPEN, False, lambda move: move.go(Mode.OPEN)),
    "to-zookeeper": Stage(Action.TO_ZOOKEEPER, Mode.LOCKED, True, lambda move: move.back()),
}
"""The steps of a live move, without ``lock``, ``unlock`` and ``complete``."""


@click.command(epilog=HELP)
@click.argument("step", type=click.Choice(list(STAGES)))
@work_options("How long to wait for a group's members and offsets.")
def live(step: str, work: Work) -> None:
    """Move running groups to the coordinator, or back.

    All members must be instances of MigratableConsumerConnector. Each STEP checks whether the group
    is ready, writes the group's mode and waits until all members act on it. To resume an
    interrupted step, run the same command again, on any machine.

    prepare: give groups a mode, and list the members that are not migratable. Restart these as
    MigratableConsumerConnector, one at a time. Then run zkmigrate lock. A mirrored group where
    ZooKeeper leads is no longer mirrored.

    to-kafka: let the coordinator assign the partitions; offsets are stored in both stores.

    finalize: let plain Kafka consumers join. Then replace the members, one at a time, and run
    zkmigrate complete.

    to-zookeeper: let ZooKeeper assign the partitions again. It is refused while plain consumers are
    members. Then run zkmigrate unlock.

    With --all or a pattern, a step leaves out groups that have no migratable members.
    """
    stage = STAGES[step]
    named = frozenset(work.which.groups)
    with (
        Outcomes("moving", work, named) as outcomes,
        open_stores(work.servers, outcomes.progress) as stores,
        open_run(work, stores.cluster_id(), {"step": step}, stage.direction) as run,
    ):
        names = legal_names(work.which, stores.zk, outcomes.add)
        outcomes.progress.total = len(names)
        for result in carry_out(stage, run, stores, names, named, work):
            outcomes.add(result)
    outcomes.finish(names)
