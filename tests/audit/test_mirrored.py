"""The log of a mirrored group, as ``zkmigrate`` writes it on a simulated cluster. No Spark."""

from __future__ import annotations

from zkaudit.group import Act, Coverage, Event, Facts, Opened, audit_group

from tests.migrate import matrix
from tests.migrate.simulated import Simulated, simulated
from zkconsumer.core.zookeeper.ops import Create, Multi, Ok, Reply, SetData, ZkOp

__all__ = ["simulated"]  # the fixture

SESSION = 7


def test_there_and_back(simulated: Simulated) -> None:
    """All offsets are the mirror's, also a lower one. Nothing is found."""
    events: list[Event] = []

    def log(op: ZkOp, reply: Reply) -> Reply:
        for idx, part in enumerate(op.ops if isinstance(op, Multi) else (op,)):
            if isinstance(reply, Ok) and isinstance(part, Create | SetData):
                act = Act.CREATE if isinstance(part, Create) else Act.SET
                zxid = simulated.zk.zk.zxid
                events.append(Event(zxid, idx, zxid, SESSION, act, part.path, part.data))
        return reply

    def run(*words: str) -> None:
        ran = simulated.run(*words, "--group", "g", "--execute")
        assert ran.status == 0, ran

    simulated.zk.after = log
    matrix.mirror_zookeeper_leads(simulated)
    run("cut-over", "--wait", "0")
    for offsets in ((400, 300), (90,), (500,)):
        simulated.in_kafka("g", "t", *offsets)
        run("mirror", "--once")
    run("undo", "--wait", "0")
    facts = Facts(opened=Opened([(SESSION, 1)]))
    history, findings = audit_group(events, facts, coverage=Coverage([(0, events[0].zxid)]))
    written = [(one.offset, one.by_mirror) for one in history.commits]
    assert written == [(400, True), (300, True), (90, True), (500, True)]
    assert findings == []
