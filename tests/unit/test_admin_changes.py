"""Changes of groups on a simulated ZooKeeper while other clients make changes too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from zkmigrate.apply import guard

from tests.unit.tool_zk import ToolZk
from zkconsumer.admin import change, takeover
from zkconsumer.admin.offset_files import OffsetKey
from zkconsumer.admin.takeover import Hold
from zkconsumer.admin.tools import GroupTools
from zkconsumer.core.common.types import TopicPartition
from zkconsumer.core.migration.modes import Mode
from zkconsumer.core.migration.znodes import encode_mode
from zkconsumer.core.zookeeper.ops import (
    AclEntry,
    Code,
    Create,
    Delete,
    Failed,
    GetAcl,
    GetChildren,
    Multi,
    Ok,
    Reply,
    SetAcl,
    SetData,
    ZkOp,
)
from zkconsumer.core.zookeeper.znodes import BROKER_IDS, BROKER_TOPICS, GroupPaths
from zkconsumer.errors import (
    GroupActiveError,
    GroupChangedError,
    ProtectedGroupError,
    ZkUnavailableError,
)

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


@pytest.mark.parametrize(("packet", "gone"), [(1, 0), (2, 2)])
def test_a_member_that_registers_stops_the_deletion_of_a_group(
    zk: Zk, tools: GroupTools, monkeypatch: pytest.MonkeyPatch, packet: int, gone: int
) -> None:
    """This holds for a group that never had a member, too, and for each request. The error says
    how many znodes are deleted."""
    monkeypatch.setattr(change, "_PACKET_OPS", 2)
    packets: list[ZkOp] = []

    def come(op: ZkOp) -> None:
        packets.extend([op] if isinstance(op, Multi) else [])
        if len(packets) == packet:
            zk.register()

    zk.before = come
    said = rf"\(g_m\); {gone} znodes of group g are deleted" if gone else "g_m"
    with pytest.raises(GroupChangedError if gone else GroupActiveError, match=said):
        tools.delete("g")
    assert zk.text(PATHS.member("g_m")) is not None
    assert (zk.text(f"{PATHS.offsets_topic('t')}/0") == b"7") is not gone


def claims(op: ZkOp) -> bool:
    """The multi that claims partitions."""
    return isinstance(op, Multi) and any(
        isinstance(part, Create) and part.path.startswith(f"{PATHS.owners}/") and part.ephemeral
        for part in op.ops
    )


def reads_offsets_folder(op: ZkOp) -> bool:
    """The listing of the topic's owners, which comes after the look for members."""
    return isinstance(op, GetChildren) and op.path == PATHS.owners_topic("t")


def test_the_owner_znode_of_a_member_that_came_meanwhile_is_not_deleted(
    zk: Zk, tools: GroupTools
) -> None:
    """It registers after the tool has looked for members, and claims a partition that is new."""
    claimed: list[ZkOp] = []

    def come(op: ZkOp) -> None:
        if claims(op):
            claimed.append(op)
        if claimed and reads_offsets_folder(op) and zk.zk.get(PATHS.member("g_m")) is None:
            zk.register()
            zk.zk.do(Create(f"{PATHS.owners_topic('t')}/9", b"g_m-0"))
            other = zk.zk.connect(6.0, lambda event: None, lambda state, session: None)
            zk._pass(1.0)
            zk.zk.do(Delete(f"{PATHS.owners_topic('t')}/9"))
            other.submit(Create(f"{PATHS.owners_topic('t')}/9", b"g_m-0", True), lambda reply: None)
            zk._pass(1.0)

    zk.before = come
    with pytest.raises(GroupChangedError, match="was claimed by a member in the meantime"):
        tools.delete("g", "t")
    assert zk.text(f"{PATHS.owners_topic('t')}/9") == b"g_m-0"
    assert zk.text(f"{PATHS.offsets_topic('t')}/0") == b"7"


@pytest.mark.parametrize("act", ["import", "delete"])
def test_the_list_and_the_data_of_ids_stay(zk: Zk, tools: GroupTools, act: str) -> None:
    """They may be the owner's, and have nothing to do with a move."""
    own = (AclEntry(31, "world", "anyone"), AclEntry(1, "digest", "ops:hash"))
    zk.zk.do(Create(PATHS.ids, b"theirs"))
    version = zk.do(GetAcl(PATHS.ids)).value.version
    assert zk.do(SetAcl(PATHS.ids, own, version)) == Ok(None)
    if act == "import":
        tools.carry_out(tools.plan_import({KEY: 9}))
        assert zk.text(KEY.path) == b"9"
    else:
        tools.delete("g", "t")
        assert zk.text(KEY.path) is None
    assert zk.do(GetAcl(PATHS.ids)).value.entries == own
    assert zk.text(PATHS.ids) == b"theirs"
    assert not zk.zk.children(PATHS.ids)


def moved(zk: Zk) -> None:
    """The marker of a move to Kafka."""
    zk.zk.do(Create(f"{PATHS.root}/migration", b'{"version":1,"moved_to":"kafka"}'))


def damaged(zk: Zk) -> None:
    """A marker that cannot be read."""
    zk.zk.do(Create(f"{PATHS.root}/migration", b"{"))


def locked(zk: Zk) -> None:
    """The lock of a move."""
    assert zk.run(guard.lock("g")) is None


def live(zk: Zk) -> None:
    """A live move."""
    zk.zk.do(Create(f"{PATHS.root}/live"))
    zk.zk.do(Create(f"{PATHS.root}/live/mode", encode_mode(Mode.KAFKA)))


def unreadable(zk: Zk) -> None:
    """A mode that cannot be read."""
    zk.zk.do(Create(f"{PATHS.root}/live"))
    zk.zk.do(Create(f"{PATHS.root}/live/mode", b"?"))


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (moved, "it was moved to kafka"),
        (damaged, "/consumers/g/migration cannot be read"),
        (locked, "/consumers/g/ids is locked by zkmigrate"),
        (live, "is in mode kafka"),
        (unreadable, "/consumers/g/live/mode"),
    ],
)
def test_a_protected_group_is_changed_with_force_only(
    zk: Zk, tools: GroupTools, state: Callable[[Zk], None], said: str
) -> None:
    """The dry run of a deletion names the reason too. With force, an import and the deletion of a
    topic keep the lock."""
    state(zk)
    before = zk.do(GetAcl(PATHS.ids)), zk.text(PATHS.ids)
    plan = tools.plan_import({KEY: 9})
    for refused in (
        lambda: tools.carry_out(plan),
        lambda: tools.plan_delete("g", "t"),
        lambda: tools.delete("g", "t"),
        lambda: tools.delete("g"),
    ):
        with pytest.raises(ProtectedGroupError, match=said):
            refused()
    assert zk.text(KEY.path) == b"7"
    tools.carry_out(plan, force=True)
    assert zk.text(KEY.path) == b"9"
    assert not tools.delete("g", "t", force=True).whole
    assert zk.text(KEY.path) is None
    if state is locked:
        assert (zk.do(GetAcl(PATHS.ids)), zk.text(PATHS.ids)) == before
    tools.delete("g", force=True)
    assert zk.text(PATHS.root) is None


@pytest.mark.parametrize("content", [b"", b'{"version":1,"moved_to":"zookeeper"}'])
def test_a_group_that_was_moved_back_is_not_protected(
    zk: Zk, tools: GroupTools, content: bytes
) -> None:
    """Its offsets in ZooKeeper count again."""
    zk.zk.do(Create(f"{PATHS.root}/migration", content))
    tools.carry_out(tools.plan_import({KEY: 9}))
    assert zk.text(KEY.path) == b"9"


def test_an_import_whose_answers_get_lost_is_looked_at_again(zk: Zk, tools: GroupTools) -> None:
    """The offsets are written, and nothing of the claim remains."""

    def lose(op: ZkOp, reply: Reply) -> Reply:
        return Failed(Code.CONNECTION_LOSS) if isinstance(op, Multi) else reply

    zk.after = lose
    tools.carry_out(tools.plan_import({KEY: 9}))
    assert zk.text(KEY.path) == b"9"
    assert not zk.zk.children(PATHS.ids)
    assert not zk.zk.children(PATHS.owners_topic("t"))


@pytest.mark.parametrize("applied", [False, True])
def test_each_answer_of_an_import_may_get_lost(applied: bool) -> None:
    """Whether the request was carried out or not. The topic's parents are created too."""
    key, number, lost = OffsetKey("g", "new", 0), 0, True
    while lost:
        zk = Zk()
        tools = GroupTools("127.0.0.1:1")
        tools._zk = zk  # type: ignore[assignment]
        lost, left, real = False, number, zk._send

        def send(op: ZkOp, real: Callable[[ZkOp], Reply] = real) -> Reply:
            nonlocal lost, left
            left -= 1
            if left != -1:
                return real(op)
            lost = True
            if applied:
                real(op)
            return Failed(Code.CONNECTION_LOSS)

        zk._send = send  # type: ignore[method-assign]
        tools.carry_out(tools.plan_import({key: 5}))
        assert zk.text(key.path) == b"5"
        assert not zk.zk.children(PATHS.ids)
        number += 1
    assert number > 10


@pytest.mark.parametrize("applied", [False, True])
def test_a_forced_import_makes_a_parent_whose_answer_gets_lost(
    zk: Zk, tools: GroupTools, applied: bool
) -> None:
    """Whether or not it was created then."""
    key, real, lost = OffsetKey("g", "new", 0), zk._send, list[ZkOp]()

    def send(op: ZkOp) -> Reply:
        if lost or not isinstance(op, Create):
            return real(op)
        lost.append(op)
        if applied:
            real(op)
        return Failed(Code.CONNECTION_LOSS)

    zk._send = send  # type: ignore[method-assign]
    tools.carry_out(tools.plan_import({key: 5}), force=True)
    assert lost
    assert zk.text(key.path) == b"5"


def test_a_deletion_whose_only_answer_gets_lost_is_done(zk: Zk, tools: GroupTools) -> None:
    """The group is gone when it is read again."""
    lost: list[ZkOp] = []

    def lose(op: ZkOp, reply: Reply) -> Reply:
        if isinstance(op, Multi):
            lost.append(op)
            return Failed(Code.CONNECTION_LOSS)
        return reply

    zk.after = lose
    assert tools.delete("g").whole
    assert len(lost) == 1
    assert zk.text(PATHS.root) is None


def test_a_write_whose_answer_gets_lost_is_not_called_written(zk: Zk, tools: GroupTools) -> None:
    """With force, the write may have been carried out or not."""

    def lose(op: ZkOp, reply: Reply) -> Reply:
        return Failed(Code.CONNECTION_LOSS) if isinstance(op, Multi) else reply

    zk.after = lose
    with pytest.raises(ZkUnavailableError, match="perhaps 1 more"):
        tools.carry_out(tools.plan_import({KEY: 9}), force=True)


def test_what_was_written_is_read_back(zk: Zk, tools: GroupTools) -> None:
    """A consumer that is still running overwrites it."""

    def overwrite(op: ZkOp, reply: Reply) -> Reply:
        if isinstance(op, Delete) and op.path.startswith(PATHS.ids):
            zk.zk.do(SetData(KEY.path, b"8"))
        return reply

    zk.after = overwrite
    with pytest.raises(GroupChangedError, match="now contains another value"):
        tools.carry_out(tools.plan_import({KEY: 9}))


@pytest.mark.parametrize("partition", [0, 5])
def test_an_offset_that_changes_meanwhile_is_left_alone(
    zk: Zk, tools: GroupTools, partition: int
) -> None:
    """The offset is changed or created between the read and the write. Nothing else is written."""
    key, other = OffsetKey("g", "t", partition), OffsetKey("g", "t", 7)
    plan = tools.plan_import({key: 9, other: 1})
    zk.zk.do(SetData(key.path, b"8") if partition == 0 else Create(key.path, b"8"))
    with pytest.raises(GroupChangedError, match=f"{key.path} was changed by another client"):
        tools.carry_out(plan)
    assert (zk.text(key.path), zk.text(other.path)) == (b"8", None)


def test_a_member_that_registers_during_an_import_is_named(zk: Zk, tools: GroupTools) -> None:
    """It may have read an old offset."""

    def come(op: ZkOp) -> None:
        if isinstance(op, Multi) and any(part.path == KEY.path for part in op.ops):
            zk.register()

    zk.before = come
    with pytest.raises(GroupChangedError, match="1 offsets are written, but g_m registered"):
        tools.carry_out(tools.plan_import({KEY: 9}))
    assert zk.text(KEY.path) == b"9"
    assert zk.zk.children(PATHS.ids) == ("g_m",)


def test_an_active_group_is_written_to_with_force_only(zk: Zk, tools: GroupTools) -> None:
    """The members keep offsets in memory."""
    zk.register()
    plan = tools.plan_import({KEY: 9})
    with pytest.raises(GroupActiveError):
        tools.carry_out(plan)
    assert zk.text(KEY.path) == b"7"
    tools.carry_out(plan, force=True)
    assert zk.text(KEY.path) == b"9"


def test_of_many_claims_none_remains_if_the_answer_to_the_first_packet_gets_lost(zk: Zk) -> None:
    """The request was not carried out, and those after it were."""
    wanted = [TopicPartition("t", number) for number in range(700)]
    hold, real, lost = Hold("g", "g_tool", 0), zk._send, list[ZkOp]()
    zk.run(takeover.take(hold, wanted, lambda tp, node: None))
    assert len(zk.zk.children(PATHS.owners_topic("t"))) == 700

    def send(op: ZkOp) -> Reply:
        if lost or not isinstance(op, Multi):
            return real(op)
        lost.append(op)
        return Failed(Code.CONNECTION_LOSS)

    zk._send = send  # type: ignore[method-assign]
    zk.run(takeover.release(hold))
    assert lost
    assert zk.zk.children(PATHS.owners_topic("t")) == ()
    assert zk.zk.children(PATHS.ids) == ()


def test_a_topic_with_an_illegal_name_is_left_out_with_a_note(zk: Zk, tools: GroupTools) -> None:
    """In ``topics list`` and ``topics describe``, as for a group."""
    for path in ("/brokers", BROKER_IDS, BROKER_TOPICS):
        zk.zk.do(Create(path))
    for name in ("good", "bad name"):
        zk.zk.do(Create(f"{BROKER_TOPICS}/{name}", b'{"version":1,"partitions":{"0":[1]}}'))
    for read in (tools.list_topics, tools.describe_topics):
        tools.notes.clear()
        assert [row.topic for row in read()] == ["good"]
        skipped = [note for note in tools.notes if "skipped" in note]
        assert skipped == ["/brokers/topics/bad name is skipped: no topic can have that name"]
