"""The demo's check finds lost messages, and accepts only repetitions that a kill explains."""

from __future__ import annotations

from pathlib import Path

from zkconsumer.cli.laboratory.demo_verdict import ENTRY, Kill, Place, judge, read_record
from zkconsumer.cli.laboratory.demo_view import ranges, real_lines, verdict_lines

SENT = {0: 3, 1: 2}
ALL = [Place(0, 0), Place(0, 1), Place(0, 2), Place(1, 0), Place(1, 1)]


def test_all_once_is_good() -> None:
    """Each message once, from any member."""
    verdict = judge(SENT, {"a": ALL[:2], "b": ALL[2:]}, None)
    assert (verdict.good, verdict.sent, verdict.delivered, verdict.repeated) == (True, 5, 5, 0)


def test_a_missing_message_is_lost() -> None:
    """A message that no member recorded is named, and the run fails."""
    verdict = judge(SENT, {"a": ALL[:4]}, None)
    assert verdict.lost == (Place(1, 1),)
    assert not verdict.good
    assert "lost: partition 1 offset 1" in verdict_lines(verdict, None)


def test_a_kill_explains_what_it_had_not_committed() -> None:
    """Messages repeated from the committed offset on are explained and counted."""
    verdict = judge(SENT, {"a": ALL[:3], "b": ALL[1:]}, Kill("a", {0: 1}))
    assert (verdict.good, verdict.repeated, verdict.delivered) == (True, 2, 7)


def test_other_repetitions_are_unexplained() -> None:
    """Committed before the kill, another member's, without a kill, or a third time."""
    kill = Kill("a", {0: 2})
    below = judge(SENT, {"a": ALL[:3], "b": ALL[1:]}, kill)
    assert below.unexplained == (Place(0, 1),)
    not_owned = judge(SENT, {"a": [*ALL], "b": [Place(1, 1)]}, kill)
    assert not_owned.unexplained == (Place(1, 1),)
    by_others = judge(SENT, {"a": [], "b": ALL, "c": [Place(0, 2)]}, kill)
    assert by_others.unexplained == (Place(0, 2),)
    no_kill = judge(SENT, {"a": ALL, "b": ALL[:1]}, None)
    assert no_kill.unexplained == (Place(0, 0),)
    thrice = judge(SENT, {"a": ALL, "b": ALL[2:3], "c": ALL[2:3]}, kill)
    assert thrice.unexplained == (Place(0, 2),)
    assert not any(v.good for v in (below, not_owned, by_others, no_kill, thrice))


def test_a_message_never_sent_is_unexplained() -> None:
    """An offset beyond what the brokers acknowledged is impossible."""
    assert judge(SENT, {"a": [*ALL, Place(1, 2)]}, None).unexplained == (Place(1, 2),)


def test_a_torn_last_entry_is_left_out(tmp_path: Path) -> None:
    """A member that was killed while writing leaves a record that can be read."""
    file = tmp_path / "record"
    file.write_bytes(ENTRY.pack(7, 2**40) + b"\x00\x01")
    assert read_record(file) == [Place(7, 2**40)]


def test_input_is_real_and_enough(tmp_path: Path) -> None:
    """Logs come first. This machine has 200,000 lines, each with its own key."""
    (tmp_path / "server.log").write_text("one\n\ntwo\n")
    lines = real_lines(tmp_path, 200_000)
    assert lines[:2] == [(b"server.log:1", b"one"), (b"server.log:3", b"two")]
    assert len(lines) == len({key for key, _ in lines}) == 200_000


def test_ranges() -> None:
    """Runs of partitions are drawn together."""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2 5 7-8"
    assert ranges([]) == ""
