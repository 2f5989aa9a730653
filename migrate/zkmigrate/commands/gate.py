"""``zkmigrate gate``."""

from __future__ import annotations

from dataclasses import replace

import click

from zkconsumer.console.tables import How, print_notes
from zkconsumer.core.zookeeper.znodes import is_legal_group
from zkconsumer.errors import ZooKeeperError
from zkconsumer.zk.blocking import or_refusal
from zkmigrate.commands.options.decisions import decisions_option, rules_in
from zkmigrate.commands.options.selection import Selection, selection
from zkmigrate.commands.options.servers import (
    print_not_looked_at,
    reading,
    server_options,
)
from zkmigrate.commands.output.cells import only_problems_option
from zkmigrate.commands.output.rows import format_options, print_table
from zkmigrate.exits import HELP, exit_status
from zkmigrate.model import GroupState, Store
from zkmigrate.plan.left import Left, what_is_left
from zkmigrate.plan.options import Options
from zkmigrate.reasons import Reason
from zkmigrate.stores.cluster import Servers


@click.command(epilog=HELP)
@selection
@decisions_option
@server_options
@only_problems_option
@format_options
def gate(
    which: Selection, decisions: str | None, servers: Servers, only_problems: bool, how: How
) -> None:
    """Check whether ZooKeeper can be switched off without loss.

    A group needs attention if an offset or a member is only in ZooKeeper, or if one of its znodes
    has an unknown format. Its row shows the reason, and when the group last stored an offset.

    With --all, a chroot without groups is accepted if it belongs to a cluster. The whole ensemble
    is searched for znodes of other clients that look like offsets (a guess). Each such place has a
    row with its path and layout, see zkmigrate plan --layout.

    Groups that --decisions ignores do not count. A rule with a path in place of a group ignores
    that znode and all below it. Rules for groups, such as *, do not apply to paths.
    """
    options = Options(rules=rules_in(decisions))
    from zkmigrate.stores.group_states import read_states  # loads kafka-python, which takes long
    from zkmigrate.stores.surroundings import Sweep, below_leaves

    rows: list[Left] = []
    places: list[Left] = []
    with reading(servers, "looking", "left") as (progress, stores):
        names = stores.group_names(Store.ZOOKEEPER)
        if names or not which.everything or not stores.is_a_cluster():
            names = which.among(names, Store.ZOOKEEPER.value, "is the chroot right?")
        progress.total = len(names)
        legal = [name for name in names if is_legal_group(name)]
        deeper = stores.zk.run_all(or_refusal(below_leaves(name)) for name in legal)
        below = dict(zip(legal, deeper, strict=True))
        for state in read_states(stores, names, {}, False):
            if isinstance(state, GroupState):
                odd = below[state.group]
                if isinstance(odd, ZooKeeperError):
                    state = replace(state, faults=(*state.faults, str(odd)))
                else:
                    state = replace(state, foreign=(*state.foreign, *odd))
                one = what_is_left(state)
            else:
                one = Left.unknown(state[0], state[1].kind, state[1].what)
            reason = options.ignored(one.group)
            rows.append(one.ignored(reason) if one.left and reason else one)
            progress.group(one.group, not rows[-1].left)
        if which.everything:
            sweep = Sweep(options.ignored)
            sweep.look(stores.zk, servers)
            places += [Left.elsewhere(*one) for one in sorted(sweep.places.values())]
            skipped = ((path, "", path, 0, 0, "") for path in sweep.left_out)
            places += [Left.elsewhere(*one).ignored(sweep.left_out[one[0]]) for one in skipped]
            print_notes(sweep.said())
        else:
            print_not_looked_at(stores.zk, servers)
    left = [one for one in rows if one.left]
    elsewhere = [one for one in places if one.left]
    shown = [*left, *elsewhere] if only_problems else [*rows, *places]
    print_table("gate", shown, how)
    live = sum(one.members > 0 for one in left)
    click.echo(
        f"{len(left)} of {len(rows)} groups would lose something without ZooKeeper: "
        f"{sum(one.lost for one in left)} offsets; {live} groups have live members"
        + (f"; {len(elsewhere)} other places may have offsets" if elsewhere else ""),
        err=True,
    )
    ignored = [one for one in (*rows, *places) if Reason.IGNORED in one.reasons]
    print_notes(f"{one.group} is {one.why}" for one in places if one in ignored)
    print_notes(f"group {one.group} is {one.why}" for one in rows if one in ignored)
    decided = sum(one.decided for one in rows)
    if decided:
        print_notes([f"{decided} offsets stay in ZooKeeper because a plan skipped them"])
    click.get_current_context().exit(exit_status(attention=bool(left or elsewhere)))
