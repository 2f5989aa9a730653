"""Changes of groups on a simulated ZooKeeper while other clients make changes too."""

from __future__ import annotations

import pytest

from tests.unit.tool_zk import ToolZk
from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.tools import GroupTools
from zkconsumer.core.zookeeper.ops import (
    Code,
    Create,
    Failed,
    Multi,
    Reply,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import GroupActiveError, GroupChangedError, ZkUnavailableError

PATHS = GroupPaths("g")
KEY = OffsetKey("g", "t", 0)


class Zk(ToolZk):
    """A group with offsets of two topics, of which one had owners."""

    def __init__(self) -> None:
        super().__init__()
        for path in ("/consumers", PATHS.root, PATHS.owners, PATHS.offsets):
            self.zk.do(Create(path))
        for topic in ("t", "u"):
            self.zk.do(Create(PATHS.offsets_topic(topic)))
            self.zk.do(Create(f"{PATHS.offsets_topic(topic)}/0", b"7"))
        self.zk.do(Create(PATHS.owners_topic("t")))

    def register(self) -> None:
        """Register a member."""
        for path in (PATHS.ids, PATHS.member("g_m")):
            if self.zk.get(path) is None:
                self.zk.do(Create(path))


@pytest.fixture
def zk() -> Zk:
    """The group."""
    return Zk()


@pytest.fixture
def tools(zk: Zk) -> GroupTools:
    """The tools that use it."""
    made = GroupTools("127.0.0.1:1")
    made._zk = zk  # type: ignore[assignment]
    return made


def test_the_offsets_of_a_topic_never_owned_stay(zk: Zk, tools: GroupTools) -> None:
    """The group has the topic as well, although only the other topic has owners."""
    assert not tools.delete("g", "t").whole
    assert zk.text(f"{PATHS.offsets_topic('t')}/0") is None
    assert zk.text(f"{PATHS.offsets_topic('u')}/0") == b"7"


def test_a_member_that_registers_stops_the_deletion_of_a_topic(zk: Zk, tools: GroupTools) -> None:
    """This holds for a group that never had a member, too."""
    zk.before = lambda op: zk.register() if isinstance(op, Multi) else None
    with pytest.raises(GroupActiveError):
        tools.delete("g", "t")
    assert zk.text(f"{PATHS.offsets_topic('t')}/0") == b"7"


def test_a_write_whose_answer_gets_lost_is_not_called_written(zk: Zk, tools: GroupTools) -> None:
    """The write may have been carried out or not."""

    def lose(op: ZkOp, reply: Reply) -> Reply:
        return Failed(Code.CONNECTION_LOSS) if isinstance(op, Multi) else reply

    zk.after = lose
    with pytest.raises(ZkUnavailableError, match="perhaps 1 more"):
        tools.carry_out(tools.plan_import({KEY: 9}))


def test_what_was_written_is_read_back(zk: Zk, tools: GroupTools) -> None:
    """A consumer that is still running overwrites it."""

    def overwrite(op: ZkOp, reply: Reply) -> Reply:
        if isinstance(op, Multi):
            zk.zk.do(SetData(KEY.path, b"8"))
        return reply

    zk.after = overwrite
    with pytest.raises(GroupChangedError, match="now contains another value"):
        tools.carry_out(tools.plan_import({KEY: 9}))


def test_an_offset_that_changes_meanwhile_is_left_alone(zk: Zk, tools: GroupTools) -> None:
    """The offset changes between the read and the write."""
    plan = tools.plan_import({KEY: 9})
    zk.zk.do(SetData(KEY.path, b"8"))
    with pytest.raises(GroupChangedError, match="was changed by another client"):
        tools.carry_out(plan)
    assert zk.text(KEY.path) == b"8"


def test_an_active_group_is_written_to_with_force_only(zk: Zk, tools: GroupTools) -> None:
    """The members keep offsets in memory."""
    zk.register()
    plan = tools.plan_import({KEY: 9})
    with pytest.raises(GroupActiveError):
        tools.carry_out(plan)
    assert zk.text(KEY.path) == b"7"
    tools.carry_out(plan, force=True)
    assert zk.text(KEY.path) == b"9"


def test_a_negative_offset_is_not_exported(zk: Zk, tools: GroupTools) -> None:
    """Old tools store -1 if there is no offset."""
    zk.zk.do(SetData(KEY.path, b"-1"))
    assert tools.export() == {OffsetKey("g", "u", 0): 7}
    assert len(tools.notes) == 1
