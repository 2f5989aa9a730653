"""A migratable member's behaviour in each mode, case by case."""

from __future__ import annotations

import pytest

from tests.support.specs import classic_spec
from zkconsumer.core.common.commands import Report
from zkconsumer.core.common.types import Pattern, Subscription, TopicPartition
from zkconsumer.core.migration import znodes
from zkconsumer.core.migration.commands import LiveRegistered, ModeLoaded, ReadMode
from zkconsumer.core.migration.machine import (
    Acknowledge,
    Acknowledged,
    ChangeClaims,
    Event,
    Held,
    Join,
    Joined,
    Left,
    LiveMachine,
    ModeRead,
    Registered,
    SessionLost,
    TakeBack,
)
from zkconsumer.core.migration.member import LiveMember
from zkconsumer.core.migration.modes import Mode, Offer, neighbours
from zkconsumer.core.zookeeper.commands import Register
from zkconsumer.core.zookeeper.events import (
    SessionLost as ZkSessionLost,
    SessionOpened,
    SessionResumed,
)
from zkconsumer.core.zookeeper.view import MemberSpec
from zkconsumer.core.zookeeper.znodes import GroupPaths
from zkconsumer.errors import ConfigError, ZnodeFormatError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
ONE, TWO, BOTH, NONE = (
    frozenset({P0}),
    frozenset({P1}),
    frozenset({P0, P1}),
    frozenset[TopicPartition](),
)


def member(*happened: Event) -> LiveMachine:
    """A member after these events."""
    machine = LiveMachine()
    for event in happened:
        machine.on(event)
    return machine


IN_ZOOKEEPER = (ModeRead(Mode.ZOOKEEPER, 0), Joined(Offer.OWN, NONE), Held(BOTH), Acknowledged(0))
IN_KAFKA = (ModeRead(Mode.KAFKA, 2), Joined(Offer.OWN, BOTH), Held(BOTH), Acknowledged(2))
IN_OPEN = (ModeRead(Mode.OPEN, 3), Joined(Offer.USUAL, BOTH), Held(BOTH), Acknowledged(3))


def test_nothing_is_claimed_before_the_mode_is_known() -> None:
    """A member that has not read the mode neither claims nor delivers."""
    machine = LiveMachine()
    assert machine.on(Held(BOTH)) == []
    assert machine.on(Joined(Offer.OWN, BOTH)) == []
    assert not machine.may_claim(P0)


def test_a_member_in_zookeeper_keeps_plain_consumers_out() -> None:
    """It follows ZooKeeper, and joins the coordinator with a strategy that no other client
    knows."""
    machine = LiveMachine()
    assert machine.on(ModeRead(Mode.ZOOKEEPER, 0)) == [
        ChangeClaims(),
        Join(Offer.OWN),
    ]
    assert machine.on(Held(ONE)) == []
    assert machine.delivered == ONE
    assert machine.on(Joined(Offer.OWN, BOTH)) == [Acknowledge(0)]
    assert machine.on(Acknowledged(0)) == []
    assert machine.may_claim(P1)


def test_to_kafka_only_what_moves_is_given_up() -> None:
    """Partitions that the coordinator assigns to their owner are still delivered. The others are
    committed and released.

    Then the mode is acknowledged.
    """
    machine = member(*IN_ZOOKEEPER, ModeRead(Mode.LOCKED, 1), Joined(Offer.OWN, ONE))
    assert machine.delivered == BOTH
    machine.on(Acknowledged(1))
    assert machine.on(ModeRead(Mode.KAFKA, 2)) == [ChangeClaims()]
    assert (machine.delivered, machine.giving_up) == (ONE, TWO)
    assert machine.on(Held(ONE)) == [ChangeClaims(), Acknowledge(2)]


def test_in_kafka_both_locks_are_needed() -> None:
    """A partition is delivered with the coordinator's assignment and the owner znode."""
    machine = member(ModeRead(Mode.KAFKA, 2), Joined(Offer.OWN, ONE))
    assert machine.delivered == NONE
    assert machine.may_claim(P0)
    assert not machine.may_claim(P1)
    assert machine.on(Held(ONE)) == []
    assert machine.delivered == ONE


def test_open_lets_plain_consumers_join() -> None:
    """The member rejoins with its usual strategies, and then acknowledges."""
    machine = member(*IN_KAFKA)
    assert machine.on(ModeRead(Mode.OPEN, 3)) == [ChangeClaims(), Join(Offer.USUAL)]
    assert machine.on(Joined(Offer.USUAL, BOTH)) == [Acknowledge(3)]


def test_a_member_that_does_not_refuse_plain_consumers_does_not_deliver_in_locked() -> None:
    """Another client may deliver the partitions that the coordinator assigns to it."""
    machine = member(*IN_OPEN)
    assert machine.on(ModeRead(Mode.LOCKED, 5)) == [
        TakeBack(BOTH),
        ChangeClaims(),
        Join(Offer.OWN),
    ]
    assert not machine.may_claim(P0)
    assert machine.delivered == NONE
    assert machine.on(Joined(Offer.OWN, NONE)) == [ChangeClaims(), Acknowledge(5)]
    assert machine.delivered == BOTH


@pytest.mark.parametrize("before", [IN_KAFKA, IN_OPEN], ids=["kafka", "open"])
def test_an_expelled_member_gives_everything_up_without_a_commit(
    before: tuple[Event, ...],
) -> None:
    """Others may have delivered them already. They are delivered again only after a new claim."""
    machine = member(*before)
    offer = machine.joined
    assert offer is not None
    assert machine.on(Left())[0] == TakeBack(BOTH)
    assert machine.delivered == NONE
    assert machine.on(Joined(offer, BOTH)) == [ChangeClaims()]
    assert not machine.may_claim(P0)
    assert machine.on(Held(NONE)) == [ChangeClaims()]
    assert machine.on(Held(ONE)) == []
    assert machine.delivered == ONE


def test_in_zookeeper_the_coordinator_does_not_matter() -> None:
    """A member that the coordinator expels still delivers, and rejoins."""
    machine = member(*IN_ZOOKEEPER)
    assert machine.on(Left()) == [Join(Offer.OWN)]
    assert machine.delivered == BOTH


def test_a_new_session_reads_the_mode_first() -> None:
    """The session's end removes the owner znodes, the mode and the acknowledgement."""
    machine = member(*IN_KAFKA)
    assert machine.on(SessionLost()) == []
    assert not machine.may_claim(P0)
    assert machine.delivered == NONE
    assert machine.on(ModeRead(Mode.KAFKA, 2)) == [ChangeClaims(), Acknowledge(2)]


def test_a_new_registration_is_acknowledged_again() -> None:
    """The registration's znode contains the acknowledgement, so a new one has none."""
    machine = member(*IN_KAFKA)
    assert machine.acknowledged == 2
    assert machine.on(Registered(Mode.KAFKA, 2)) == [Acknowledge(2)]
    assert machine.acknowledged is None


def test_an_acknowledgement_of_a_lost_session_does_not_count() -> None:
    """Its znode vanished with the session, even if the answer arrives later."""
    machine = member(ModeRead(Mode.KAFKA, 2), Joined(Offer.OWN, NONE), SessionLost())
    machine.on(Acknowledged(2))
    assert machine.acknowledged is None
    assert Acknowledge(2) in machine.on(ModeRead(Mode.KAFKA, 2))


def test_a_mode_of_an_older_backup_counts() -> None:
    """ZooKeeper was restored. All members must act on the mode that new members find."""
    machine = member(*IN_OPEN)
    assert machine.on(ModeRead(Mode.KAFKA, 2)) == [ChangeClaims(), Join(Offer.OWN)]
    assert machine.on(Joined(Offer.OWN, BOTH)) == [Acknowledge(2)]
    assert (machine.mode, machine.delivered) == (Mode.KAFKA, BOTH)


def test_a_new_session_may_find_an_older_mode() -> None:
    """The member's session is not in the backup. Without a mode it would never deliver again."""
    machine = member(*IN_OPEN, SessionLost(), Registered(Mode.KAFKA, 2))
    assert (machine.mode, machine.version) == (Mode.KAFKA, 2)


def test_a_later_read_may_overtake_a_registration() -> None:
    """The mode changed between the transaction that registered again and its answer."""
    machine = member(*IN_OPEN)
    assert machine.on(Registered(Mode.KAFKA, 2)) == [Acknowledge(3)]
    assert machine.mode is Mode.OPEN


def test_an_acknowledgement_is_stored_again_after_a_reconnection() -> None:
    """A backup may have the mode without the acknowledgement."""
    machine = member(*IN_OPEN)
    assert machine.on(ModeRead(Mode.OPEN, 3)) == []
    assert machine.on(ModeRead(Mode.OPEN, 3, reconnected=True)) == [Acknowledge(3)]


def test_a_mode_that_went_back_is_reported() -> None:
    """The first read after a reconnection counts as such, and no other one."""
    spec = MemberSpec(GroupPaths("g"), "g_m", Subscription(Pattern.STATIC, {"t": 1}))
    whole = LiveMember(spec, classic_spec(), "/mode", ())

    def register(session: int, mode: Mode, version: int) -> list[str]:
        done = whole.on(SessionOpened(session))
        (token,) = (one.token for one in done if isinstance(one, Register))
        done = whole.on(LiveRegistered(token, mode, version))
        return [one.text for one in done if isinstance(one, Report) and one.event == "went-back"]

    assert register(1, Mode.OPEN, 3) == []
    for acknowledged in (None, 3):
        whole.live.acknowledged = 3
        if acknowledged is None:
            assert ReadMode() in whole.on(SessionResumed())
        whole.on(ModeLoaded(Mode.OPEN, 3))
        assert whole.live.acknowledged == acknowledged
    whole.on(ZkSessionLost())
    (text,) = register(2, Mode.KAFKA, 2)
    assert text.startswith("/mode: version 3 went back to 2: ")
    assert whole.live.mode is Mode.KAFKA


def test_a_late_answer_does_not_acknowledge_a_newer_mode() -> None:
    """The acknowledgement names its mode."""
    machine = member(ModeRead(Mode.KAFKA, 2), Joined(Offer.OWN, BOTH))
    assert Acknowledge(3) in [
        *machine.on(ModeRead(Mode.OPEN, 3)),
        *machine.on(Joined(Offer.USUAL, BOTH)),
    ]
    machine.on(Acknowledged(2))
    assert machine.acknowledged is None
    machine.on(Acknowledged(3))
    assert machine.acknowledged == 3


def test_modes_change_one_at_a_time() -> None:
    """From each mode, the next and the previous one can be reached."""
    assert {mode: neighbours(mode) for mode in Mode} == {
        Mode.ZOOKEEPER: (Mode.LOCKED,),
        Mode.LOCKED: (Mode.ZOOKEEPER, Mode.KAFKA),
        Mode.KAFKA: (Mode.LOCKED, Mode.OPEN),
        Mode.OPEN: (Mode.KAFKA,),
    }


# --- znodes ---------------------------------------------------------------------------------------


def test_paths_and_texts() -> None:
    """Written values are read back unchanged."""
    paths = znodes.LivePaths.of("g")
    assert paths.mode == "/consumers/g/live/mode"
    assert paths.member("g_c1") == "/consumers/g/live/members/g_c1"
    for mode in Mode:
        assert znodes.decode_mode(paths.mode, znodes.encode_mode(mode)) is mode
    for number in (None, 0, 2**31 - 1):
        text = znodes.encode_member(number)
        assert znodes.decode_member(paths.member("g_c1"), text) == number
    assert znodes.encode_mode(Mode.LOCKED) == b'{"version":1,"mode":"locked"}'
    assert znodes.encode_member(7) == b'{"version":1,"acknowledged":7}'
    with pytest.raises(ConfigError, match="cannot be part of a ZooKeeper path"):
        znodes.LivePaths.of("a/b")
    with pytest.raises(ZnodeFormatError, match="member name"):
        paths.member("a/b")
    with pytest.raises(ValueError, match="-1"):
        znodes.encode_member(-1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"mode":"locked"}', "with a version"),
        (b'{"version":true,"mode":"locked"}', "with a version"),
        (b'{"version":2,"mode":"locked"}', "format 2"),
        (b'{"version":1}', "no mode"),
        (b'{"version":1,"mode":"LOCKED"}', "no mode"),
        (b'{"version":1,"mode":[]}', "no mode"),
        (b" " * (znodes.MAX_BYTES + 1), "more than"),
    ],
)
def test_a_mode_that_cannot_be_read_is_refused(text: bytes, reason: str) -> None:
    """No member may guess the mode. The error names the znode."""
    with pytest.raises(ZnodeFormatError, match=reason) as caught:
        znodes.decode_mode("/consumers/g/live/mode", text)
    assert "/consumers/g/live/mode" in str(caught.value)


@pytest.mark.parametrize("number", [b"-1", b"true", b'"1"', b"1.5", b"2147483648", b"NaN"])
def test_an_acknowledgement_that_cannot_be_read_is_refused(number: bytes) -> None:
    """A text that is not a version of a znode acknowledges nothing."""
    with pytest.raises(ZnodeFormatError, match="acknowledged"):
        znodes.decode_member("/m", b'{"version":1,"acknowledged":' + number + b"}")
