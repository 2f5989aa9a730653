"""The transcripts in ``tests/sim/transcripts``: what happens now is what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.transcripts import files
from tests.sim.transcripts.engine import TranscriptError, play


@pytest.mark.parametrize("file", files(), ids=lambda file: file.stem)
def test_a_transcript(file: Path) -> None:
    """The group does what the transcript shows. To accept what it does now, and to review it as a
    diff: ``.venv/bin/python -m tests.sim.transcripts``."""
    expected = file.read_text(encoding="utf-8")
    assert play(expected) == expected


def test_there_are_transcripts_of_each_kind_of_group() -> None:
    """Groups in ZooKeeper, with the behaviour of the JVM's consumer too, both kinds on the
    brokers, and groups that move between the two."""
    kinds = {file.stem.partition("-")[0] for file in files()}
    assert kinds == {"zookeeper", "scala", "classic", "consumer", "live"}
    assert len(files()) >= 30


def test_a_change_is_seen() -> None:
    """A line that is missing, or another one, is put right by playing."""
    (file,) = [file for file in files() if file.stem == "zookeeper-commit"]
    expected = file.read_text(encoding="utf-8")
    lines = expected.splitlines()
    assert play("\n".join(lines[:-1])) == expected
    assert play("\n".join([*lines, "m1 Released"])) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("> start m1 orders", "begins with '> group KIND'"),
        ("> group zookeeper\n> dance m1", "'dance m1': no such input"),
        ("> group zookeeper\n> znode /a/b x", "/a/b: cannot be written"),
    ],
)
def test_an_input_that_cannot_be_played(text: str, message: str) -> None:
    """The message names the input."""
    with pytest.raises(TranscriptError, match=message):
        play(text)
