"""A rehearsal: the whole plan on copies, in separate servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zkmigrate.apply.outcome import Outcome
from zkmigrate.formats import plan_file

from tests.migrate.rehearsal import Rehearsal, copy_groups, ready

if TYPE_CHECKING:
    from conftest import Bench, Shell  # type: ignore[import-not-found]


def test_a_rehearsal_changes_nothing_and_finds_what_apply_would_find(
    bench: Bench, shell: Shell, unique: str, topic: str, tmp_path: Path
) -> None:
    """A running group, a conflict with a decision, a renamed group and a locked group are moved and
    moved back in the copy. The copy has the offsets and logs of the real servers. A group in which
    no client may register is refused, as it would be on the real servers. The real servers do not
    change."""
    from kazoo.security import ACL, Id

    bench.topic(topic, 2)
    runs, conflict, locked, closed = (f"{unique[-8:]}-{tail}" for tail in ("a", "b", "c", "d"))
    every = (runs, conflict, locked, closed)
    for group in every:
        bench.set_zk(group, topic, {0: 3, 1: 20})
    bench.set_kafka(conflict, topic, {0: 5})
    plan, journal = bench.plan([locked])
    assert bench.apply(plan, journal, lock=True)[0].outcome.good
    bench.set_zk(locked, topic, {0: 7})
    path = str(tmp_path / "plan")
    chosen = [word for group in every for word in ("--group", group)]
    rules = ("--on-conflict", "max", "--rename", f"{runs}=new-name")
    assert shell("plan", *chosen, *rules, "--out", path)[0] == 0
    ids = f"/consumers/{closed}/ids"
    bench.client.create(ids)
    bench.client.set_acls(ids, [ACL(27, Id("world", "anyone"))])
    bench.client.create(f"/consumers/{runs}/ids/x", b"{}", ephemeral=True, makepath=True)
    before = [bench.znodes(group) for group in every]
    kafka = [bench.committed(group, {topic: 2}) for group in every]
    loaded = plan_file.load(path)
    loaded = replace(loaded, groups=tuple(ready(loaded)))
    with bench.stores() as stores:
        copy = copy_groups(stores, list(loaded.groups))
    folder = tmp_path / "copy"
    folder.mkdir()
    with Rehearsal(copy, folder, lambda _step: None) as rehearsal:
        rehearsed = rehearsal.run(loaded, 4, True, lambda _result: None)
        results = {one.result.group: one for one in rehearsed}
    assert {group: one.result.outcome for group, one in results.items()} == {
        runs: Outcome.DONE,
        conflict: Outcome.DONE,
        locked: Outcome.DONE,
        closed: Outcome.REFUSED,
    }, results
    assert all(results[group].good for group in (runs, conflict, locked)), results
    assert "does not let zkmigrate register" in results[closed].result.why
    assert [bench.znodes(group) for group in every] == before
    assert [bench.committed(group, {topic: 2}) for group in every] == kafka
